"""`.eval_results/*.yaml`: results that the Hub shows beside a model and on the leaderboards of benchmark datasets.

The Hub wants the id of a task that the `eval.yaml` of the dataset defines. A result of which this is not known has no entry.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hf_factuality.errors import HubError
from hf_factuality.hub.results import COMMIT
from hf_factuality.io.files import write_atomically
from hf_factuality.io.markdown import one_line


logger = logging.getLogger(__name__)
FOLDER = ".eval_results"
_FILE_NAME = re.compile(r"[^./\\\0\n][^/\\\0\n]*")
METRIC = "accuracy"
"""What leaderboards rank by; values are shares in [0, 1]."""
_OURS = "# Written by hf_factuality from files of results; removed when these hold it no more.\n"


@dataclass(frozen=True)
class LeaderboardResult:
    """A result of a whole benchmark dataset of the Hub: its entry of the file of results, and where that file is published."""

    entry: Mapping[str, Any]
    source: str | None = None


@dataclass(frozen=True)
class LeaderboardFiles:
    """Texts of the files by name, and why other results have none, a reason each."""

    texts: Mapping[str, str] = field(default_factory=dict)
    left_out: Sequence[str] = ()


def leaderboard_files(results: Sequence[LeaderboardResult]) -> LeaderboardFiles:
    """A file per benchmark whose dataset defines the task of its result; asks the Hub for the tasks."""
    from huggingface_hub import eval_result_entries_to_yaml, parse_eval_result_entries

    texts, left_out, tasks = {}, [], {}
    times = Counter(it.entry["benchmark"] for it in results if _wanted(it.entry) is None)
    for it in results:
        name, entry = it.entry["benchmark"], it.entry
        reason = _wanted(entry)
        if reason is None and times[name] > 1:
            reason = "it was measured in several ways"
        if reason is None:
            dataset = entry["leaderboard"]["id"]
            tasks[dataset] = tasks[dataset] if dataset in tasks else _tasks_of(dataset)
            found = tasks[dataset]
            reason = found if isinstance(found, str) else None
            if reason is None and (task := _task_id(found, entry["leaderboard"])) is None:
                reason = f"{dataset} defines no task of this configuration and split"
        if reason is not None:
            # Nobody expects a file or a closed world on a leaderboard.
            if "/" in entry["dataset"].get("dataset", ""):
                left_out.append(f"{name} {entry['metric']} ({reason})")
            continue
        plain = eval_result_entries_to_yaml([_hub_entry(it, task)])
        text = _OURS + yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
        parse_eval_result_entries(yaml.safe_load(text))
        texts[f"{name}.yaml"] = text
    return LeaderboardFiles(texts, list(dict.fromkeys(left_out)))


def write_leaderboard_files(folder: Path, results: Sequence[LeaderboardResult]) -> None:
    """Write the files into the folder of a model, remove ours of results that are gone, and tell in one line what has none.
    `HubError`: they cannot be written, or their folder is a link."""
    found, there = leaderboard_files(results), folder / FOLDER
    if there.is_symlink() or (there.exists() and not there.is_dir()):
        raise HubError(
            f"{there} must be a folder and no link, for the files of results that the Hub reads; move it away"
        )
    try:
        _write(there, found.texts)
    except OSError as error:
        raise HubError(f"the files of results in {there} cannot be written: {error}") from error
    if found.left_out:
        logger.warning("without an entry in %s: %s", FOLDER, "; ".join(found.left_out))


def _write(there: Path, texts: Mapping[str, str]) -> None:
    for path in sorted(there.glob("*.yaml")):
        if path.name not in texts and path.is_file() and path.read_bytes().startswith(_OURS.encode()):
            path.unlink()
    for name, text in texts.items():
        path = there / name
        if path.exists() and not path.read_bytes().startswith(_OURS.encode()):
            logger.warning("%s is not ours, and stays as it is", path)
            continue
        there.mkdir(exist_ok=True)
        write_atomically(path, text.encode("utf-8"))


def check_leaderboard_file(name: str, content: bytes) -> None:
    """`HubError` if the Hub could not read a file of `.eval_results`."""
    from huggingface_hub import parse_eval_result_entries

    try:
        rows = yaml.safe_load(content)
        if not isinstance(rows, list) or not rows:
            raise ValueError("it holds no list of results")
        parse_eval_result_entries(rows)
    except (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else one_line(error)
        raise HubError(
            f"{name} is no file of results as the Hub reads it ({what:.200}); mend it, or leave it out with `exclude`"
        ) from None


def _wanted(entry: Mapping[str, Any]) -> str | None:
    """Why a result has no place on any leaderboard."""
    if not isinstance(entry.get("leaderboard"), Mapping):
        return "not the whole default dataset of a benchmark on the Hub"
    if not _FILE_NAME.fullmatch(entry["benchmark"]):
        return "its benchmark names a folder"
    if entry["metric"] != METRIC:
        return f"leaderboards rank by {METRIC}"
    return "no value" if entry["value"] is None else None


def _tasks_of(dataset: str) -> list[Any] | str:
    """The tasks that a dataset defines, or why there are none."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError

    try:
        content = Path(hf_hub_download(dataset, "eval.yaml", repo_type="dataset")).read_bytes()
        found = yaml.safe_load(content)
        tasks = found.get("tasks") if isinstance(found, dict) else None
        return tasks if isinstance(tasks, list) else f"the eval.yaml of {dataset} names no tasks"
    except yaml.YAMLError:
        return f"the eval.yaml of {dataset} cannot be read"
    except RemoteEntryNotFoundError:
        return f"{dataset} is no benchmark of the Hub: it has no eval.yaml"
    except (LocalEntryNotFoundError, OSError, ValueError):
        return f"the Hub could not be asked for the tasks of {dataset}"


def _task_id(tasks: Sequence[Any], wanted: Mapping[str, Any]) -> str | None:
    """The only task of this configuration and split; `None` if there is none, or several."""
    ids = [
        task.get("id")
        for task in tasks
        if isinstance(task, dict)
        and (task.get("config") or "default") == (wanted.get("config") or "default")
        and task.get("split") == wanted.get("split")
    ]
    return ids[0] if len(ids) == 1 and isinstance(ids[0], str) and ids[0] else None


def _hub_entry(result: LeaderboardResult, task: str) -> Any:
    from huggingface_hub import EvalResultEntry

    entry, generation = result.entry, result.entry["generation"]
    revision = entry["dataset"].get("revision")
    samples = generation.get("n_samples") or 1
    notes = [f"style {entry['dataset'].get('style') or 'chat'}", f"mean of {samples} samples" if samples > 1 else ""]
    named = {} if result.source is None else {"source_url": result.source, "source_name": "hf-factuality evaluate"}
    return EvalResultEntry(
        dataset_id=entry["leaderboard"]["id"],
        task_id=task,
        value=entry["value"],
        dataset_revision=revision if isinstance(revision, str) and COMMIT.fullmatch(revision) else None,
        date=entry["created"],
        notes=", ".join(["hf_factuality", *filter(None, notes)]),
        **named,
    )

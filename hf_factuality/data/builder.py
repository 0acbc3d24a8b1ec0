"""What builders of datasets from sampled responses share: questions, a run that may be killed, a dataset with its card.

A builder opens [`judged_responses`], makes rows of what it yields, and hands them to its [`DatasetKind`]. Its run lives in a
folder, which docs/preferences.md describes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from hf_factuality import __version__
from hf_factuality.data.batches import BatchVerification, over_ray, sample_batch
from hf_factuality.data.questions import PreferenceQuestion, check_evidence
from hf_factuality.data.sampling import Sampler
from hf_factuality.errors import DataError, HubError
from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.scoring import SUPPORTED_LABELS
from hf_factuality.generation.failures import Failures
from hf_factuality.generation.journal import LineFile, only_run
from hf_factuality.io.files import last_name, write_atomically, writing
from hf_factuality.io.markdown import cell, escaped
from hf_factuality.io.upload import publish
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.guard import Worker, answer_of


if TYPE_CHECKING:
    from datasets import Dataset, Features


logger = logging.getLogger(__name__)

_CARD = """
## How it was made

| | |
|---|---|
{settings}

## What was dropped

| what | number |
|---|---|
{dropped}
"""


@contextmanager
def judged_responses(
    questions: Sequence[PreferenceQuestion],
    sampler: Sampler,
    verifier: Verifier,
    folder: str | os.PathLike,
    file: str | None = None,
    *,
    seed: int = 0,
    questions_per_batch: int = 1,
    patience: float = 3600.0,
    progress: bool = True,
    overlap: bool | None = None,
    workers: int = 0,
    gpus_per_worker: float = 0.0,
) -> Iterator[tuple[LineFile, LineFile]]:
    """Sample and verify what the folder does not hold yet; yields responses and verdicts by the id of the question.

    A response is `[text, finished]`, a verdict the dictionary of a `Verification`; either may be `None`. `file` is the dataset
    that will be made; the other arguments are those of [`~hf_factuality.data.preferences_from`].
    """
    from tqdm.auto import tqdm

    check_evidence(questions, verifier, type(verifier).__name__)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    batches = [questions[i : i + questions_per_batch] for i in range(0, len(questions), questions_per_batch)]
    with ExitStack() as stack:
        taken = f"another run is under way in {folder}; wait for it, or use another folder"
        stack.enter_context(only_run(folder / ".lock", taken))
        made = {"seed": seed, "questions_per_batch": questions_per_batch} | ({"dataset": file} if file else {})
        _check_settings(folder / "settings.json", questions, sampler, verifier, made)
        responses, verdicts = LineFile(folder / "responses.jsonl"), LineFile(folder / "verifications.jsonl")
        stack.callback(responses.close)
        stack.callback(verdicts.close)
        bar = stack.enter_context(tqdm(total=len(questions), desc="questions", unit="question", disable=not progress))
        work = BatchVerification(responses, verdicts, verifier, patience, bar)
        if workers:
            over_ray(batches, sampler, seed, work, workers, gpus_per_worker)
            batches = []
        lost = Failures(known=len(responses))
        worker, behind = Worker("verification"), None  # of one batch, while the next is sampled
        stack.callback(worker.close)
        try:
            for batch in batches:
                if not all(question.id in responses for question in batch):
                    responses.add(sample_batch(batch, sampler, seed, patience, lost))
                if not (work.served if overlap is None else overlap):
                    work.judge(batch)
                    continue
                if behind:
                    answer_of(behind)
                behind = worker.submit(partial(work.judge, batch))
            if behind:
                answer_of(behind)
        except Exception:
            answer_of(worker.submit(bool))  # the sampler is gone; what it sampled before is still verified
            raise
        except BaseException:
            work.stopped = True  # a thread that waits for its server ends
            raise
        failed = [question for question in questions if any(map(work.failed, verdicts[question.id]))]
        if failed:
            logger.warning("the verifier failed on responses to %d questions; trying these again", len(failed))
            work.judge(failed, again=True)
        yield responses, verdicts


class Unjudged:
    """Judges nothing: what is sampled is read otherwise."""

    requires_evidence = False

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        return [Verification()] * len(inputs)


def questions_digest(questions: Sequence[PreferenceQuestion]) -> str:
    """Sixteen hexadecimal digits that tell these questions, with their evidence, from others."""
    asked = [[q.id, list(map(dict, q.messages)), q.question, q.evidence] for q in questions]
    return hashlib.sha256("".join(map(json.dumps, asked)).encode()).hexdigest()[:16]


def _check_settings(path: Path, questions, sampler: Sampler, verifier: Verifier, made: Mapping[str, Any]) -> None:
    settings = {
        "questions": questions_digest(questions),
        "number_of_questions": len(questions), **made, "sampling": sampler.describe(), "verifier": _describe(verifier),
    }  # fmt: skip
    settings = json.loads(json.dumps(settings))
    if not path.exists():
        write_atomically(path, json.dumps({**settings, "hf_factuality": __version__}, indent=2) + "\n")
        return
    try:
        # Once only pairs were made, and no dataset was named.
        before = {"dataset": "pairs.parquet"} | json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError) as error:
        raise DataError(f"{path} is no file of settings ({error}); use another folder") from None
    for key, value in settings.items():
        if before.get(key) != value:
            raise DataError(
                f"{path.parent} holds a run with other settings: {key} was {before.get(key)!r}, now {value!r}; use the same, "
                "or another folder"
            )


def _describe(verifier: Verifier) -> dict[str, Any]:
    """Class and plain settings of a verifier and its stages; no addresses, no keys, no folders."""
    found: dict[str, Any] = {"class": type(verifier).__name__}
    for stage in ("extractor", "retriever", "judge"):
        part = getattr(verifier, stage, None)
        if part is not None:
            found[stage] = {"class": type(part).__name__}
            for source in (part, getattr(part, "client", None), getattr(part, "base", None)):
                for name in ("model", "revision", "scorer", "scorers", "threshold", "fingerprint", "top_k"):
                    value = getattr(source, name, None)
                    if name == "scorers" and isinstance(value, list):
                        value = ",".join(value)
                    if isinstance(value, (str, int, float)):
                        local = name == "model" and Path(str(value)).exists()
                        found[stage][name] = Path(str(value)).name if local else value
    return found


def describe_labels(folder: Path) -> str:
    """Who labelled the responses of a run, as far as its `settings.json` says it."""
    try:
        verifier = dict(json.loads((folder / "settings.json").read_text(encoding="utf-8"))["verifier"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
    stages = ", ".join(_call(**part) for part in verifier.values() if isinstance(part, dict))
    return f", labelled by {verifier.get('class')}" + (f" ({stages})" if stages else "")


def describe_run(folder: str | os.PathLike) -> str:
    """What a run has made, for `info.description` of a dataset that was read from its folder and the card of a model that is
    trained on it; empty if the folder holds no finished run."""
    try:
        report = json.loads((Path(folder) / "report.json").read_text(encoding="utf-8"))
        item, settings = next(
            (name.removesuffix("_settings"), it) for name, it in report.items() if name.endswith("_settings")
        )
        kind = settings.get("variant") or settings.get("output")
    except (OSError, ValueError, AttributeError, StopIteration):
        return ""
    what = report.get("rows_are") or f"{item}s {DatasetKind.origin}"
    return what + (f" ({kind})" if kind else "") + describe_labels(Path(folder))


def verified_responses(
    question: PreferenceQuestion, responses: LineFile, verdicts: LineFile, counts: Counter, finished: bool = False
) -> list[tuple[str, Verification | None]]:
    """Text and verification of each response to a question, or of the finished ones; `counts` gets how many there are, were
    cut off, and were lost."""
    both = list(zip(responses[question.id], verdicts[question.id], strict=True))
    kept = [(*response, verdict) for response, verdict in both if response is not None]
    cut_off = sum(not finished for _, finished, _ in kept)
    counts.update(responses=len(kept), cut_off_responses=cut_off, lost_responses=len(both) - len(kept))
    kept = [(text, verdict) for text, ended, verdict in kept if ended or not finished]
    return [(text, None if verdict is None else Verification.from_dict(verdict)) for text, verdict in kept]


@dataclass(frozen=True)
class DatasetKind:
    """What a builder makes: the file of the dataset, what it and one of its rows are called, why something is dropped, and
    its card, with tags. The template of a card has the places `{version}` and those of the report; tables follow."""

    file: str
    what: str
    item: str
    reasons: Mapping[str, str]
    template: str
    tags: tuple[str, ...]
    apart: str | None = None  # another file, which is a configuration of its own
    origin: str = "that a model's own answers made"  # of the rows, for the card of a model that is trained on them

    def write(
        self,
        folder: Path,
        rows: Sequence[Mapping[str, Any]],
        columns: str,
        report: Mapping[str, Any],
        config: Any,
        shown: Mapping[str, Any] | None = None,
        apart: tuple[Sequence[Mapping[str, Any]], str] | None = None,
        texts: frozenset[str] = frozenset(),
        features: Mapping[str, Any] = MappingProxyType({}),
    ) -> Dataset:
        """Write report and dataset of a run with its card, which loads with `datasets.load_dataset(folder)`.

        Of the rows these columns are kept, those in `texts` as text, those that other datasets do not have as `features` says;
        `apart` are the rows and columns of the other file. The card shows `config`, but for what `shown` says instead.
        """
        from datasets import Dataset
        from huggingface_hub import DatasetCard, DatasetCardData

        (folder / "README.md").unlink(missing_ok=True)  # a push needs it: never that of other rows
        dropped = {reason: report[reason] for reason in self.reasons if reason in report}
        report = {name: value for name, value in report.items() if name not in dropped}
        report |= {
            "dropped": dropped,
            "rows_are": f"{self.item}s {self.origin}",
            f"{self.item}_settings": asdict(config),
        }
        write_atomically(folder / "report.json", json.dumps(report, indent=2) + "\n")
        dropped = {self.reasons[reason]: count for reason, count in dropped.items()}
        if not rows:
            (folder / self.file).unlink(missing_ok=True)  # of a run with other settings of rows
            why = "; ".join(f"{count} {reason}" for reason, count in dropped.items() if count)
            raise DataError(f"nothing is left for {folder / self.file}; dropped: {why}")
        parts = ({self.apart: apart} if apart else {}) | {self.file: (rows, columns)}
        for file, (own, names) in parts.items():
            types = features_of(names, texts, features)
            # Parquet holds no half surrogates; a question mark in their place keeps the offsets of spans.
            found = {name: [row[name] for row in own] for name in types}
            plain = json.loads(json.dumps(found, ensure_ascii=False).encode("utf-8", "replace"))
            dataset = Dataset.from_dict(plain, features=types)
            dataset.info.description = describe_run(folder)
            with writing(folder / file) as partial:
                dataset.to_parquet(str(partial))
        dropped["responses that were cut off, and kept"] = report["cut_off_responses"]
        dropped["responses that could not be sampled"] = report["lost_responses"]
        run = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
        version = run.pop("hf_factuality", __version__)
        settings = {**run, f"{self.item}s": asdict(config) | (shown or {})}
        tables = {"settings": _table(_flat(settings)), "dropped": _table(dropped)}
        text = (self.template + _CARD).format_map({**report, "version": version, **tables})
        configs = [{"config_name": "default", "data_files": self.file}]
        if self.apart:
            configs.append({"config_name": self.apart.partition(".")[0], "data_files": self.apart})
        data = DatasetCardData(tags=["hf-factuality", *self.tags], configs=configs)
        write_atomically(folder / "README.md", str(DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{text}")))
        return dataset

    def push(self, folder: str | os.PathLike, repo_id: str, **arguments: Any) -> str:
        """Publish the dataset of a finished run with its card, which replaces an earlier one: its figures are of these rows.

        Samples and verifications stay on this machine.

        Args:
            folder (`str` or `PathLike`):
                Folder of the run.
            repo_id (`str`):
                The repository; made if it is not there.
            **arguments:
                `private` (`bool`; of a new one: one that exists and is otherwise is refused), `revision` (`str`, branch to
                write to), `commit_message` (`str`) and `token` (`str` or `bool`), all optional.

        Returns:
            `str`: address of the commit.

        Raises:
            `DataError`: the run is not finished.
            [`HubError`]: the upload failed; the dataset stays in the folder.
        """
        files = {name: Path(folder) / name for name in (self.file, self.apart, "README.md") if name}
        for path in files.values():
            if not path.is_file():
                raise DataError(f"there is no {path}; a run writes it at its end: start it again to finish it")
        arguments = {"commit_message": f"Upload {self.what}"} | arguments
        try:
            return publish(files, repo_id, repo_type="dataset", **arguments).commit_url
        except HubError as error:
            raise HubError(f"the {self.what} in {folder} could not be pushed, and stay there: {error}") from None


def column_types() -> dict[str, Any]:
    """Types of the columns that mean the same in all datasets that builders make; others hold text."""
    from datasets import Value

    text, number, place = Value("string"), Value("float64"), Value("int64")
    messages = [{"role": text, "content": text}]
    spans = [{"start": place, "end": place, "label": text, "score": number, "claim": text, "evidence": text}]
    kinds = {
        "id question topic": text,
        "prompt completion messages chosen rejected first second": messages,
        "answer evidence checklist steps": [text],
        "chosen_spans rejected_spans": spans,
        "correct entropy chosen_score rejected_score": number,
        "labels": [number],
        "counts": [place],
        "sure": Value("bool"),
    }
    return {name: kind for names, kind in kinds.items() for name in names.split()}


def features_of(
    columns: str, texts: frozenset[str] = frozenset(), own: Mapping[str, Any] = MappingProxyType({})
) -> Features:
    """Columns by their names: `Value("string")` unless `own` or [`column_types`] say otherwise, or if among `texts`."""
    from datasets import Features, Value

    text = Value("string")
    known = {**column_types(), **own, **dict.fromkeys(texts, text)}
    return Features({name: known.get(name, text) for name in columns.split()})


def _call(**part: Any) -> str:
    name = part.pop("class", "")
    return f"{name}({', '.join(f'{key}={_shown(value)!r}' for key, value in part.items())})"


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix} {key}".strip()
        found |= _flat(value, name) if isinstance(value, Mapping) else {name: value}
    return found


def _shown(value: Any) -> Any:
    """Of a folder, here or on the machine of a server, only the last name."""
    return last_name(value) if isinstance(value, str) else value


def _table(rows: Mapping[str, Any]) -> str:
    cells = {name: "" if value is None else cell(escaped(_shown(value))) for name, value in rows.items()}
    return "\n".join(f"| {cell(escaped(_shown(name)))} | {value} |" for name, value in cells.items())


def response_right(text: str, verdict: Verification | None) -> bool | None:
    if not text.strip():
        return False
    labels = [unit.label for unit in judged_units(verdict)] if verdict and not verdict.error else [None]
    return None if None in labels else bool(labels) and all(label in SUPPORTED_LABELS for label in labels)


def seeded_random(seed: int, key: str) -> random.Random:
    digest = hashlib.sha256(f"{seed} {key}".encode("utf-8", "surrogatepass")).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))

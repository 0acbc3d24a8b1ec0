"""What of files of results stands on a model card: whose they are, the table, and the entries of `model-index`."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError, HubError
from hf_factuality.hub.leaderboards import LeaderboardResult
from hf_factuality.hub.results import (
    COMMIT,
    SCHEMA,
    changed_measurement,
    format_value,
    load_results,
    measurement,
    shown_count,
    shown_value,
)
from hf_factuality.io.markdown import cell, escaped


logger = logging.getLogger(__name__)
REPO_ID = re.compile(r"(?:[A-Za-z0-9][\w.-]*/)?[A-Za-z0-9][\w.-]*")
ROLES = ("before", "after")


@dataclass(frozen=True)
class ModelIdentity:
    """What tells a model from others: its names, its commit on the Hub, the `folder_fingerprint` of its weights."""

    names: frozenset[str] = frozenset()
    revision: str | None = None
    fingerprint: str | None = None

    def differs(self, model: Mapping[str, Any]) -> str | None:
        """Why results of `model` (the entry of a file) are not of this one; `None` if they are, by all that is known."""
        theirs, name = model.get("fingerprint"), model["adapter"] or model["name"]
        if self.fingerprint and theirs:
            if self.fingerprint != theirs:
                now = self.fingerprint[:8]
                return f"it was measured on other weights of {name!r} (fingerprint {theirs[:8]}, now {now})"
            return None
        if name not in self.names:
            return f"it is of {name!r}, not of {' or '.join(map(repr, sorted(self.names))) or 'a model that is known'}"
        commits = [it for it in (self.revision, model["revision"]) if it and COMMIT.fullmatch(it)]
        if len(set(commits)) > 1:
            return f"it is of the revision {commits[1][:8]} of {name!r}, not of {commits[0][:8]}"
        return None


@dataclass(frozen=True)
class CardResults:
    """Results as a card shows them: rows of the table, notes on how they were measured, and arguments of `EvalResult`.

    `files` are those that lie in the folder, and so are published with the card; `leaderboards` is every result, for the files of
    `.eval_results`.
    """

    rows: list[dict[str, str]]
    notes: list[str]
    eval_results: list[dict[str, Any]]
    files: list[Path] = field(default_factory=list)
    leaderboards: list[LeaderboardResult] = field(default_factory=list)


def card_results(
    given: Any, folder: Path, this: ModelIdentity, base: ModelIdentity, repo_id: str | None = None
) -> CardResults | None:
    """Results for the card of a model, from files alone, `given` as for the trainers' `card_results` (docs/cards.md); `None` if
    nothing is known of the trained model.
    """
    files: dict[str, list[tuple[Path, dict[str, Any]]]] = {role: [] for role in ROLES}
    explicit = given is not None
    for path, role in _named(given if explicit else sorted(folder.glob("results*.json"))):
        if not path.is_file():
            if explicit:
                logger.warning("%s does not exist; the card shows nothing of it", path)
            continue
        try:
            content = load_results(path)
        except (DataError, OSError) as error:
            if explicit:
                raise HubError(f"no results for a card: {error}") from error
            if isinstance(error, OSError) or f'"{SCHEMA}"' in path.read_text(encoding="utf-8", errors="replace"):
                logger.warning("left out of the card: %s", error)
            continue
        role, reason = _role(content["model"], role, explicit, this, base)
        if reason is None:
            files[role].append((path, content))
        elif explicit:
            raise HubError(f"{path} has no place on this card: {reason}")
        else:
            logger.warning("%s is left out of the card: %s", path, reason)
    return _merge(files["before"], files["after"], folder, repo_id) if files["after"] else None


def _named(given: Any) -> list[tuple[Path, str | None]]:
    """Paths that a caller gave, each with its role if the caller says it."""
    if isinstance(given, Mapping):
        if not given or set(given) - set(ROLES):
            keys = sorted(map(str, given))
            raise HubError(f"results for a card are files, got the keys {keys}; name them 'before' and 'after'")
        return [(path, role) for role, paths in given.items() for path, _ in _named(paths)]
    if isinstance(given, (str, Path)):
        return [(Path(given), None)]
    if isinstance(given, Sequence):
        return [pair for item in given for pair in _named(item)]
    raise HubError(f"results for a card are files of hf-factuality evaluate, got {type(given).__name__}")


def _role(
    model: Mapping[str, Any], wanted: str | None, explicit: bool, this: ModelIdentity, base: ModelIdentity
) -> tuple[str, str | None]:
    """`"before"` or `"after"`, and why not, if the file is not of that model."""
    reasons = {"after": this.differs(model), "before": base.differs(model)}
    if wanted is None:
        fits = [role for role in ("after", "before") if reasons[role] is None]
        own = model["adapter"] or model["name"]
        if len(fits) > 1 and own in base.names and own not in this.names:  # weights that training did not change
            fits = ["before"]
        if not fits:
            return "after", f"{reasons['after']}; nor is it of the base model: {reasons['before']}"
        wanted = fits[0]
    reason = reasons[wanted]
    if reason is None and wanted == "after" and not explicit and not (this.fingerprint and model.get("fingerprint")):
        reason = "it has the name of this model, but nothing ties it to these weights; name it as card_results if it is of them"
    return wanted, reason


def _merge(before: list[tuple], after: list[tuple], folder: Path, repo_id: str | None) -> CardResults:
    old, new = _entries(before), _entries(after)
    by_name = {(entry["benchmark"], entry["metric"]): entry for entry, _ in old.values()}
    rows, notes, index, used, leaderboards = [], [], [], [], []
    published = {path for path, _ in before + after if path.parent.resolve() == folder.resolve()}
    for key, (entry, file) in new.items():
        name = entry["benchmark"], entry["metric"]
        first, origin = old.get(key, (None, None))
        rows.append(
            {
                "benchmark": escaped(name[0]),
                "metric": escaped(entry.get("title") or name[1]),
                "before": "not measured" if first is None else shown_value(first),
                "after": shown_value(entry),
                "n": shown_count(entry) if first is None or shown_count(first) == shown_count(entry) else
                f"{shown_count(first)} before, {shown_count(entry)} after",
            }
        )  # fmt: skip
        rows += _share_rows(rows[-1], first, entry)
        used += [file] if origin is None else [origin, file]
        if first is None and name in by_name:
            changed = ", ".join(changed_measurement(by_name[name], entry))
            notes.append(_cell(f"{name[0]}, {name[1]}: measured differently before ({changed}), so not compared."))
        source = file if len(after) == 1 and file in published and "/" in (repo_id or "") else None
        url = source and f"https://huggingface.co/{repo_id}/blob/main/{source.name}"
        leaderboards.append(LeaderboardResult(entry, url))
        if entry["value"] is not None:
            index.append(_eval_result(entry, first, file in published and file.name, url))
    notes = [*_how([entry for entry, _ in new.values()]), *notes]
    return CardResults(rows, notes, index, [path for path in dict.fromkeys(used) if path in published], leaderboards)


_SHARES = {"abstention": {"right": "accuracy", "wrong": "hallucination_rate", "declined": "abstention_rate"}}
"""Metrics that weigh shares into one value, which alone says too little -> those shares, and their names among the parts."""


def _share_rows(
    row: Mapping[str, str], before: Mapping[str, Any] | None, after: Mapping[str, Any]
) -> list[dict[str, str]]:
    """Rows below that of a result, with the shares that its value is made of."""
    found = []
    for name, part in _SHARES.get(after["metric"], {}).items():
        value, old = after["parts"].get(part), None if before is None else before["parts"].get(part)
        if isinstance(value, float):
            first = row["before"] if before is None else format_value(old if isinstance(old, float) else None)
            found.append({**row, "metric": f"{row['metric']}: {name}", "before": first, "after": format_value(value)})
    return found


def _entries(files: Sequence[tuple[Path, dict[str, Any]]]) -> dict[str, tuple[dict[str, Any], Path]]:
    """Entries and their files, by how they were measured; of two alike the later."""
    found: dict[str, tuple[dict[str, Any], Path]] = {}
    for path, content in files:
        for entry in content["results"]:
            key = measurement(entry)
            if key not in found or found[key][0]["created"] <= entry["created"]:
                found[key] = entry, path
    return found


def _eval_result(
    entry: Mapping[str, Any],
    before: Mapping[str, Any] | None,
    file: str | None,
    url: str | None,
) -> dict[str, Any]:
    dataset = entry["dataset"]
    name = str(dataset.get("dataset") or entry["benchmark"])
    on_the_hub = "/" in name and REPO_ID.fullmatch(name)
    revision = dataset.get("revision")
    arguments = {"benchmark": entry["benchmark"], **_arguments(entry)}
    if before is not None and before["value"] is not None:
        arguments |= {"before": before["value"], **_arguments(before, "before_")}
    found = {
        "task_type": "text-generation",
        "dataset_type": name if on_the_hub else entry["benchmark"],
        "dataset_name": name,
        "dataset_split": dataset.get("split"),
        "dataset_revision": revision if isinstance(revision, str) and COMMIT.fullmatch(revision) else None,
        "metric_type": entry["metric"],
        "metric_name": entry.get("title") or f"{entry['metric']} ({entry['benchmark']})",
        "metric_value": entry["value"],
        "metric_args": {**arguments, **({"results_file": file} if file else {})},
    }
    if url is not None:
        found |= {"source_name": "hf-factuality evaluate", "source_url": url}
    return found


def _arguments(entry: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found, interval = {f"{prefix}n": entry["n_scored"]}, entry["confidence_interval"]
    if interval is not None:
        found[f"{prefix}confidence_interval"] = [interval["low"], interval["high"]]
        found[f"{prefix}confidence_level"] = interval["level"]
    return found


def _how(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """One sentence per way of measuring."""
    metrics: dict[str, list[str]] = {}
    for entry in entries:
        metrics.setdefault(_how_one(entry), []).append(entry["metric"])
    notes = list(metrics)
    levels = {entry["confidence_interval"]["level"] for entry in entries if entry["confidence_interval"]}
    if levels:
        shown = " and ".join(f"{100 * level:g} %" for level in sorted(levels))
        notes.append(f"In brackets: {shown} interval, bootstrap over the items; it does not cover the judges' errors.")
    for wanted, text in ((False, "Lower is better"), (None, "Neither higher nor lower is better")):
        names = [entry.get("title") or entry["metric"] for entry in entries if entry["higher_is_better"] is wanted]
        notes += [f"{text}: {'; '.join(dict.fromkeys(names))}."] if names else []
    return [_cell(note) for note in notes]


def _how_one(entry: Mapping[str, Any]) -> str:
    if entry.get("note"):
        return f"{entry['benchmark']}: {entry['note']}"
    dataset, generation, verifier = entry["dataset"], entry["generation"], entry["verifier"] or {}
    parts = [str(dataset.get("dataset") or entry["benchmark"])]
    if dataset.get("split"):
        parts.append(f"split {dataset['split']}")
    if "used" in dataset and "rows" in dataset:
        parts.append(f"{dataset['used']} of {dataset['rows']} items")
    if generation.get("temperature") is not None:
        parts.append(f"temperature {generation['temperature']:g}")
    if "max_new_tokens" in generation:
        parts.append(f"up to {generation['max_new_tokens']} new tokens")
    if generation.get("n_samples", 1) != 1:
        parts.append(f"{generation['n_samples']} samples per item")
    if rule := entry["settings"].get("data_source"):
        rules = rule.items() if isinstance(rule, Mapping) else [(rule, None)]
        shown = [f"{name} ({count} of {entry['n']} items)" if count else str(name) for name, count in rules]
        parts.append(f"answers compared by the rule of {', '.join(shown)}")
    judge = entry["judge"] or {}
    names = [it.get("name") if not it.get("model") else f"{it.get('name')} {it['model']}" for it in (verifier, judge)]
    names = list(dict.fromkeys(name for name in names if name))
    if names:
        parts.append(f"judged by {', '.join(names)}")
    return f"{entry['benchmark']}: {', '.join(parts)}."


def _cell(text: str) -> str:
    return cell(escaped(text))

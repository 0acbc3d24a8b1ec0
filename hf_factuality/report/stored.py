"""Completions as rows of a file, with what was found in them, from which a page is painted later."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError, SpanError
from hf_factuality.io.files import write_atomically
from hf_factuality.io.rows import read_rows
from hf_factuality.report.page import OUTCOMES, ReportSample, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification


FOLDER = "completions"
"""Folder of a run that holds them, beside the tables of TRL."""
LOG_FILE = "training_log.jsonl"
"""File of a run with a line per logged step."""
OUTCOME_MEANINGS = {Label.SUPPORTED: "right", Label.CONTRADICTED: "wrong", Label.NO_FACT: "declined"}
"""What labels mean where whole answers are painted by what became of them."""
_BY_ACCURACY: dict[Any, str] = {1.0: "correct", 0.0: "wrong"}
_OUTCOME_LABELS = {"correct": Label.SUPPORTED, "wrong": Label.CONTRADICTED, "refused": Label.NO_FACT}


@dataclass(frozen=True)
class StoredCompletion:
    """A completion, what was found in it, and what it earned.

    Args:
        completion (`str`):
            The text.
        verification ([`Verification`], *optional*):
            What was found; `None` if nobody judged it.
        question (`str`, *optional*), gold (`str`, *optional*):
            What was asked, and the right answer.
        id (`str`, *optional*, defaults to `""`):
            Name of the row.
        outcome (`str`, *optional*):
            `"correct"`, `"wrong"`, `"refused"`, or `"answered"` where it is not known whether it is right.
        verifier (`str`, *optional*, defaults to `""`):
            Who judged.
        rewards (`Mapping[str, float | None]`, *optional*):
            Rewards and scores by name; `None` where one is not known.
        step (`int`, *optional*):
            Step of the training.
    """

    completion: str
    verification: Verification | None = None
    question: str | None = None
    gold: str | None = None
    id: str = ""
    outcome: str | None = None
    verifier: str = ""
    rewards: Mapping[str, float | None] = field(default_factory=dict)
    step: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as a line of JSON."""
        rewards = {name: _finite(it) for name, it in self.rewards.items()}
        found = {
            "id": self.id,
            "question": self.question,
            "gold": self.gold,
            "completion": self.completion,
            "outcome": self.outcome,
            "verifier": self.verifier,
            "rewards": rewards,
            "step": self.step,
        }
        found = {name: value for name, value in found.items() if value not in (None, "", {})}
        return {**found, "verification": None if self.verification is None else self.verification.to_dict()}


def store_completions(path: Path, completions: Iterable[StoredCompletion]) -> None:
    """Write a file of completions (JSON Lines), whose folder is made; one that is there is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(it.to_dict()) + "\n" for it in completions]
    write_atomically(path, "".join(lines))


def outcome_verification(text: str, outcome: str | None, gold: str | None) -> Verification:
    """A whole answer, labelled by what became of it."""
    evidence = None if gold is None else f"the gold answer is {gold}"
    whole = LabeledSpan(0, len(text), _OUTCOME_LABELS.get(outcome or ""), evidence=evidence)
    return Verification((whole,) if text else ())


def stored_samples(
    sides: Mapping[str, Sequence[StoredCompletion]],
) -> tuple[list[ReportSample], Mapping[Label, str], str]:
    """Completions as a page shows them, what its labels mean, and a note.

    With several `sides`, such as `"before"` and `"after"`, completions of the same step, id and question stand beside each
    other; those that a side lacks are left out and counted. Where nobody judged any of them, whole answers are painted by
    their outcomes.
    """
    every = [it for side in sides.values() for it in side]
    by_outcome = any(it.outcome for it in every) and not any(it.verification and it.verification.spans for it in every)
    keyed = [dict(_keyed(side)) for side in sides.values()]
    common = [key for key in keyed[0] if all(key in side for side in keyed)]
    samples = [
        _sample([*sides], [side[key] for side in keyed], number, by_outcome) for number, key in enumerate(common)
    ]
    alone = sum(len(side) - len(common) for side in keyed)
    note = f"{alone} completions are on one side only, and are left out." if alone else ""
    return samples, OUTCOME_MEANINGS if by_outcome else {}, note


def write_before_and_after(
    folder: Path,
    note: str,
    table: Sequence[Mapping[str, Any]],
    sides: Mapping[str, Sequence[StoredCompletion]],
    limit: int | None = None,
) -> Path:
    """Write `report.html` with completions before and after training, at most `limit`, and a file of all of each side; returns
    the page."""
    for name, side in sides.items():
        store_completions(folder / FOLDER / f"{name}.jsonl", side)
    samples, meanings, _ = stored_samples(sides)
    return write_report(folder / "report.html", "Before and after training", note, table, samples[:limit], meanings)


def _keyed(side: Sequence[StoredCompletion]) -> Iterator[tuple[tuple[Any, ...], StoredCompletion]]:
    """Completions by step, id and question; of the samples of one question, each by its number."""
    seen: Counter[tuple[Any, ...]] = Counter()
    for it in side:
        key = (it.step, it.id, it.question)
        seen[key] += 1
        yield (*key, seen[key]), it


def _sample(names: Sequence[str], sides: Sequence[StoredCompletion], number: int, by_outcome: bool) -> ReportSample:
    last = sides[-1]
    figures: dict[str, float | None] = dict(last.rewards)
    if len(sides) > 1:
        for name, value in last.rewards.items():
            before = sides[0].rewards.get(name)
            figures[f"change of {name}"] = None if value is None or before is None else value - before
    place = [] if last.step is None else [f"step {last.step}"]
    if not last.id:
        place.insert(0, f"completion {number + 1}")
    for name in last.rewards:
        shown = ["unknown" if (it := side.rewards.get(name)) is None else f"{it:.3g}" for side in sides]
        place.append(f"{name} {' → '.join(shown)}")
    groups = {"step": "" if last.step is None else str(last.step), "verifier": last.verifier}
    return ReportSample(
        ": ".join(filter(None, (last.id, last.question))) or f"completion {number + 1}",
        last.gold,
        [(name if len(sides) > 1 else "", it.completion, _found(it, by_outcome)) for name, it in zip(names, sides, strict=True)],
        place=", ".join(place),
        name=last.id,
        outcomes=() if by_outcome else [it.outcome for it in sides],
        figures=figures,
        groups={name: value for name, value in groups.items() if value},
    )  # fmt: skip


def _found(it: StoredCompletion, by_outcome: bool) -> Verification:
    if by_outcome:
        return outcome_verification(it.completion, it.outcome, it.gold)
    return it.verification or Verification()


def read_completions(path: Path, completion_column: str = "completion") -> Iterator[StoredCompletion]:
    """The rows of a file: of [`store_completions`], of `verify`, of `evaluate`, or of TRL's table of completions.

    Raises:
        `DataError`: a row has no completion, or its verification is none.
    """
    for number, row in read_rows(path, any_name=True):
        if isinstance(row, dict) and str(row.get("schema", "")).startswith("hf_factuality.answers/"):
            continue
        place = f"{path.name}, row {number}"
        if not isinstance(row, dict):
            raise DataError(f"{place} must be an object, got {row!r:.100}")
        try:
            yield from _read_row(row, number, completion_column)
        except (SpanError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise DataError(f"{place}: {error}") from None


def _read_row(row: Mapping[str, Any], number: int, column: str) -> Iterator[StoredCompletion]:
    name = row.get("id")
    name = str(name) if isinstance(name, (str, int)) and not isinstance(name, bool) else ""
    if "turn" in row and "conversation" in row:
        name = f"{row['conversation']}, turn {row['turn']}"
    scores = row.get("scores") or {}
    outcome = row.get("outcome")
    if outcome is None and _is_number(scores.get("accuracy")):
        outcome = _BY_ACCURACY.get(scores["accuracy"])
    known: dict[str, Any] = {
        "question": _text(row.get("question")) or _text(row.get("prompt")),
        "gold": _gold(row),
        "outcome": outcome if isinstance(outcome, str) and outcome in OUTCOMES else None,
        "verifier": row.get("verifier") if isinstance(row.get("verifier"), str) else "",
        "step": row.get("step") if isinstance(row.get("step"), int) else None,
    }
    figures = {**(row.get("rewards") or {}), **scores}
    if "advantage" in row:  # of TRL's table, in which each reward is a column
        figures |= {name: value for name, value in row.items() if name != "step" and _is_number(value)}
    known["rewards"] = {
        str(key): _finite(value) for key, value in figures.items() if value is None or _is_number(value)
    }
    samples = row.get("samples")
    if samples is None:
        text = _text(row.get(column))
        if text is None and "verification" not in row:
            fix = f"it has {sorted(row)}; name the column with `completion_column`"
            raise ValueError(f"has no text in {column!r}: {fix}")
        yield StoredCompletion(text or "", _verification(row.get("verification"), text or ""), id=name, **known)
        return
    given = [samples[key] for key in sorted(samples, key=int)] if isinstance(samples, dict) else samples
    for place, sample in enumerate(given):
        text = (sample or {}).get("text")
        if text is None:
            continue
        # What became of an answer is said of the first one.
        own: dict[str, Any] = {} if place == 0 else {"outcome": None, "rewards": {}}
        here = name if len(given) == 1 else ", ".join(filter(None, (name, f"sample {place + 1}")))
        yield StoredCompletion(text, _verification(sample.get("verification"), text), id=here, **{**known, **own})


def _verification(found: Any, text: str) -> Verification | None:
    if isinstance(found, str):  # of a table without types
        found = json.loads(found)
    return None if found is None else Verification.from_dict(found).validate(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: float | None) -> float | None:
    """A number, or `None` for one that nobody can sort by."""
    return None if value is None or not math.isfinite(value) else value


def _text(value: Any) -> str | None:
    """A text, or the last message of a chat."""
    if isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)) and value and isinstance(value[-1], dict):
        content = value[-1].get("content")
        return content if isinstance(content, str) else None
    return None


def _gold(row: Mapping[str, Any]) -> str | None:
    gold = row.get("gold")
    gold = gold[0] if isinstance(gold, list) and gold else gold
    return gold if isinstance(gold, str) else None


def read_log(path: Path) -> Sequence[Mapping[str, Any]]:
    """The logged steps of `training_log.jsonl`, or of transformers' `trainer_state.json`. `DataError`: it is neither."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.name == LOG_FILE:
            # The last line of a run that goes on may be half written.
            entries = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        else:
            entries = json.loads(text)["log_history"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is no log of a training: {error!r:.100}") from None
    if not isinstance(entries, list) or not all(isinstance(it, dict) for it in entries):
        raise DataError(f"{path} is no log of a training: its entries are no objects")
    return entries

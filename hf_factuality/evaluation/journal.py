"""Answers on disk: lines as they come, and one row per item in the end. Both forms are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.generation.journal import Lines, dumps
from hf_factuality.hub.results import differences
from hf_factuality.io.files import write_atomically


SCHEMA = "hf_factuality.answers/1"
_MARK = b'{"schema": "hf_factuality.answers/'
_SAMPLE_KEYS = set("text finish_reason verification verified votes voted checklist checked selection selected".split())


class KnownAnswers:
    """What is known of answers, in memory.

    `answers` holds it by the id of an item: `prompt`, `log_likelihoods`, and `completions`, a list with a dictionary per
    sample, `None` for one to come.
    """

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}

    def _take(self, row: Mapping[str, Any]) -> None:
        answer = self.answers.setdefault(str(row.get("id")), {"completions": []})
        answer |= {key: row[key] for key in ("prompt", "log_likelihoods") if key in row}
        samples = row["samples"] if "samples" in row else {str(row["sample"]): row} if "sample" in row else {}
        for number, found in samples.items() if isinstance(samples, dict) else enumerate(samples):
            place = int(number)
            answer["completions"] += [None] * (place + 1 - len(answer["completions"]))
            if found is not None:
                kept = {key: value for key, value in found.items() if key in _SAMPLE_KEYS}
                answer["completions"][place] = {**(answer["completions"][place] or {}), **kept}

    def sample(self, name: str, number: int = 0) -> dict[str, Any]:
        """What is known of a completion of an item; empty if it is to come."""
        samples = self.answers.get(name, {}).get("completions", [])
        return (samples[number] if number < len(samples) else None) or {}

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows (`id`, and `sample` or `log_likelihoods`)."""
        for row in rows:
            self._take(row)


class Journal(KnownAnswers):
    """The file of answers of one benchmark, open for adding; `overwrite` begins anew, other `settings` are a `DataError`."""

    def __init__(self, path: Path, settings: Mapping[str, Any], overwrite: bool = False):
        super().__init__()
        self.path = path
        self._settings = json.loads(json.dumps(settings))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and (self._is_empty() or overwrite):
            path.unlink()
        self._lines = Lines(path, lambda row, place: self._take(row) if place else self._compare(row), sync=False)
        self.close = self._lines.close
        if self._lines.empty:
            self._lines.add([{"schema": SCHEMA, "settings": self._settings}])

    def _is_empty(self) -> bool:
        """Whether there is no answer yet, so that other settings do no harm; refuses what is no such file."""
        with self.path.open("rb") as file:
            first, *others = islice(file, 2) if self.path.stat().st_size else [b""]
        if first[: len(_MARK)] != _MARK[: len(first)]:  # a run may have been killed while it wrote the first line
            raise DataError(f"{self.path} is no file of answers, and is not overwritten; name another `out`")
        return not others

    def _compare(self, first: Mapping[str, Any]) -> None:
        if first.get("schema") != SCHEMA or not isinstance(first.get("settings"), dict):
            raise DataError(f"{self.path} has the schema {first.get('schema')!r}; this version reads {SCHEMA!r}")
        different = differences(first["settings"], self._settings)
        if different:
            fix = "take the same, name another `out`, or add `overwrite` to answer anew"
            raise DataError(f"{self.path} holds answers of other settings: {'; '.join(different)}; {fix}")

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add lines; they are on their way to the disk when this returns."""
        for row in rows:
            self._lines.add([row])
            self._take(row)

    def finish(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Close, and replace the file by these rows, one per item; what is known of other items is kept behind them."""
        self.close()
        kept = {str(row["id"]) for row in rows}
        others = [{"id": name, **journal_row(answer)} for name, answer in self.answers.items() if name not in kept]
        lines = [dumps({"schema": SCHEMA, "settings": self._settings}), *map(dumps, rows), *map(dumps, others)]
        write_atomically(self.path, b"".join(lines))


def journal_row(answer: Mapping[str, Any]) -> dict[str, Any]:
    """What the file holds of one of [`Journal.answers`], besides its id."""
    found = {key: answer[key] for key in ("prompt", "log_likelihoods") if key in answer}
    return found | ({"samples": answer["completions"]} if answer.get("completions") else {})

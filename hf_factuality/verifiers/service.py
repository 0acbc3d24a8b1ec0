"""The one loop that asks a verifier: rows in, verifications out, in order and in bounded memory.

Trainers, rewards, metrics and commands judge through [`judge_rows`], so that the part of a completion that is judged, rows
that cannot be judged and failures mean the same everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

from tqdm import tqdm

from hf_factuality.errors import JudgingError
from hf_factuality.generation.failures import Failures
from hf_factuality.io.transcripts import TranscriptTurn
from hf_factuality.reading.completion import read
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier


CHUNK = 64
"""Rows that are sent at a time; as many as [`GuardedVerifier`] sends in a call."""
LEFT_OUT = 32
"""Times as many rows are in memory at most, where others are left out between those that are sent."""
NO_ANSWER = "no answer"
"""Error of rows whose answer is missing."""
NO_EVIDENCE = "no evidence"
"""Error of rows that lack the evidence that the verifier needs."""


@dataclass(frozen=True)
class VerificationRequest:
    """A completion that is to be judged."""

    input: VerifierInput  # the whole completion
    scope: str = "completion"  # what of it is judged: one of `SCOPES`
    opened: bool = False  # whether the prompt ends in an opened `<think>`
    key: Any = None  # the caller's name for the row
    missing: bool = False  # whether there is no answer: it is never judged
    turn: TranscriptTurn | None = None  # of a conversation with tools: without evidence its claims are "not found"

    @cached_property
    def _part(self) -> tuple[str, list[tuple[int, int]]]:
        # What the answer states of itself, a confidence or a verdict, is no part of what it says.
        return read(self.input.completion, self.opened).part(self.scope)

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Characters of the completion that are in the scope; empty if only white space is."""
        return self._part[1]

    @cached_property
    def declines(self) -> bool:
        """Whether what is judged declines to answer, and states nothing."""
        return read(self.shown.completion).declines

    @cached_property
    def shown(self) -> VerifierInput:
        """What the verifier gets: the part in the scope as the completion, without a stated confidence."""
        text = self._part[0]
        return self.input if text == self.input.completion else replace(self.input, completion=text)


@dataclass(frozen=True)
class JudgedRow:
    """A row with what was found in it."""

    row: VerificationRequest
    found: Verification  # in characters of `row.shown.completion`
    left_out: str | None = (
        None  # why it was not sent: "missing", "empty" (nothing is in the scope), "no_evidence", "known" (before)
    )
    ratings: Sequence[int | None] = ()  # RLFH's informativeness of each statement

    @cached_property
    def verification(self) -> Verification:
        """What was found, in characters of the whole completion."""
        return self.found.spread(self.row.ranges) if self.row.ranges else self.found


@dataclass
class JudgingReport(Failures):
    """Counts over the rows so far."""

    rows: int = 0
    missing: int = 0  # answers
    empty: int = 0
    no_evidence: int = 0

    def add(self, judged: JudgedRow, needs_label: bool = True) -> None:
        """Count a row."""
        self.rows += 1
        self.missing += judged.left_out == "missing"
        self.empty += judged.left_out == "empty"
        self.no_evidence += judged.left_out == "no_evidence"
        self.known += judged.left_out == "known"
        if judged.left_out:
            return
        fine = judged.found.judged if needs_label else judged.found.error is None
        self.count(None if fine else judged.found.failure)


class Verdicts(Protocol):
    """Keeps verifications from one run to the next."""

    def get(self, row: VerificationRequest) -> Verification | None:
        """What is known of a row, in characters of its completion; `None` if it is to be judged."""

    def add(self, judged: Sequence[JudgedRow]) -> None:
        """Keep what was found in rows that were sent, failures included."""


def judge_rows(
    verifier: Verifier | GuardedVerifier,
    rows: Iterable[VerificationRequest],
    *,
    chunk: int | None = CHUNK,
    report: JudgingReport | None = None,
    give_up_after: int | None = None,
    needs_label: bool = True,
    verdicts: Verdicts | None = None,
    progress: str | None = None,
    total: int | None = None,
) -> Iterator[list[JudgedRow]]:
    """Judge rows, `chunk` at a time with what is left out between them; yields the rows of a chunk, in order. With `None` all
    are one list and one call of the guard, also where there are none, so that its `last_report` is of this call.

    Rows with nothing in their scope, or without the evidence that the verifier needs, are not sent to it; what goes wrong with
    a row is said in its verification. `report` counts the rows, each before the caller sees it. `give_up_after` are failures
    in a row after which the verifier is taken to be down, as it is if all rows that were sent have failed in the end; with
    `needs_label` a completion none of whose sentences got a label counts as one. `verdicts` is what was judged before, and
    where to keep what is judged now; `progress` and `total` are the unit of a progress bar on a terminal, and the number of
    rows. `JudgingError`: it gives up; all chunks until then have been yielded.
    """
    guard = verifier if isinstance(verifier, GuardedVerifier) else GuardedVerifier(verifier)
    report = JudgingReport() if report is None else report
    hidden = progress is None or total == 0 or not sys.stderr.isatty()
    with tqdm(total=total, unit=progress or "", disable=hidden, file=sys.stderr) as bar:
        read = ((row, left_out(guard, row, verdicts)) for row in rows)
        for taken in _chunks(read, chunk):
            judged = _judge(guard, taken, verdicts, report, needs_label)
            yield judged
            bar.update(len(judged))
            if give_up_after is not None:
                report.check("the verifier is down", _failures(report, total), give_up_after)
        if give_up_after is not None and report.all_failed:
            raise JudgingError(f"the verifier failed on every answer: {_failures(report, total)}")


_Read = tuple[VerificationRequest, JudgedRow | None]
"""A row, and what [`left_out`] says of it."""


def left_out(guard: GuardedVerifier, row: VerificationRequest, verdicts: Verdicts | None) -> JudgedRow | None:
    """What a row is without being sent; `None` if it is to be sent."""
    if row.missing:
        return JudgedRow(row, Verification(error=NO_ANSWER), "missing")
    if guard.requires_evidence and not row.input.evidence and row.turn is None:
        return JudgedRow(row, Verification(error=NO_EVIDENCE), "no_evidence")
    if not row.ranges:
        return JudgedRow(row, Verification(), "empty")
    known = verdicts.get(row) if verdicts is not None else None
    return None if known is None else JudgedRow(row, known.gather(row.ranges), "known")


def _chunks(rows: Iterable[_Read], size: int | None) -> Iterator[list[_Read]]:
    if size is None:
        yield list(rows)
        return
    taken: list[_Read] = []
    sent = 0
    for row in rows:
        taken.append(row)
        sent += row[1] is None
        if sent == size or len(taken) == LEFT_OUT * size:
            yield taken
            taken, sent = [], 0
    if taken:
        yield taken


def _judge(
    guard: GuardedVerifier, rows: Sequence[_Read], verdicts: Verdicts | None, report: JudgingReport, needs_label: bool
) -> list[JudgedRow]:
    sent = [row for row, result in rows if result is None]
    found = guard.verify([row.shown for row in sent])
    fresh = [JudgedRow(row, it) for row, it in zip(sent, found, strict=True)]
    if verdicts is not None and fresh:
        verdicts.add(fresh)
    waiting = iter(fresh)
    judged = [next(waiting) if result is None else result for _, result in rows]
    for result in judged:
        report.add(result, needs_label)
    return judged


def _failures(report: JudgingReport, total: int | None) -> str:
    row = f"row {report.rows}" if total is None else f"row {report.rows} of {total}"
    return f"it failed on {report.failed_in_a_row} completions in a row, {row} the last: {report.reason}"

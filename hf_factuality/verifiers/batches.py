"""Judges the generation batches of a training, in parts while the rest is still generated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from hf_factuality.verifiers.guard import GuardedVerifier, GuardReport, UnjudgedBatches, Worker, answer_of
from hf_factuality.verifiers.service import JudgedRow, Row, judge_rows


class BatchJudge:
    """A guarded verifier of a training, and its end where nothing is judged any more ([`UnjudgedBatches`]).

    [`ahead`] judges the first rows of the next batch on a thread, in the order in which they come. [`judge`] is given the
    whole batch, waits for these and judges the rest. What goes wrong on the thread rises there.

    Args:
        guard ([`GuardedVerifier`]):
            Judges.
        unjudged ([`UnjudgedBatches`]):
            Counts.
        then (`Callable`, *optional*):
            What else is asked about judged rows, on the same thread: takes and returns them.
    """

    def __init__(
        self,
        guard: GuardedVerifier,
        unjudged: UnjudgedBatches,
        then: Callable[[list[JudgedRow]], list[JudgedRow]] | None = None,
    ):
        self.guard, self.unjudged, self.then = guard, unjudged, then
        self.report = GuardReport()  # of the last batch; its seconds are those of the verifier
        self.waited = 0.0  # seconds that the caller of `judge` waited
        self._worker: Worker | None = None
        self._begun: list[tuple[Sequence[Row], SimpleQueue[Any]]] = []

    def ahead(self, rows: Sequence[Row]) -> None:
        """Begin with the next rows of the batch."""
        worker = self._worker = self._worker or Worker("verifier ahead")
        later = bool(self._begun)
        # What was stopped before its turn is not asked any more.
        self._begun.append((rows, worker.submit(lambda: self._ask(rows, later) if worker is self._worker else None)))

    def judge(self, rows: Sequence[Row], counts: bool = True) -> list[JudgedRow]:
        """What was found in a batch, in order. `JudgingError` if the verifier is down; see [`UnjudgedBatches.add`]."""
        started = time.perf_counter()
        judged: list[JudgedRow] = []
        reports = []
        try:
            for begun, answers in self._begun:
                asked = rows[len(judged) : len(judged) + len(begun)]
                if list(map(_question, begun)) != list(map(_question, asked)):
                    break  # other rows than those that were generated
                found, report = answer_of(answers)
                judged += [replace(one, row=row) for one, row in zip(found, asked, strict=True)]
                reports.append(report)
        finally:
            self.stop()
        if len(judged) < len(rows) or not rows:
            found, report = self._ask(rows[len(judged) :], bool(reports))
            judged += found
            reports.append(report)
        self.report = GuardReport(*(sum(values) for values in zip(*map(_numbers, reports), strict=True)))
        self.waited = time.perf_counter() - started
        self.unjudged.add(self.guard.verifier, [one.found for one in judged if one.left_out is None], counts)
        return judged

    def stop(self) -> None:
        """Forget what was begun; a call that is under way ends by itself, at the latest at the guard's time limit."""
        if self._worker is not None:
            self._worker.close()
        self._worker, self._begun = None, []

    def _ask(self, rows: Sequence[Row], later: bool) -> tuple[list[JudgedRow], GuardReport]:
        self.guard.goes_on = later
        (judged,) = judge_rows(self.guard, rows, chunk=None)
        report = self.guard.last_report
        return judged if self.then is None else self.then(judged), report


def _question(row: Row) -> tuple[Any, ...]:
    return row.input.completion, row.input.question, row.input.evidence, row.scope, row.opened


def _numbers(report: GuardReport) -> tuple[int, int, float]:
    return report.sent, report.failed, report.seconds

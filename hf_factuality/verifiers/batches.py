"""Judges the generation batches of a training, in parts while the rest is still generated."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from hf_factuality.verifiers.guard import GuardedVerifier, UnjudgedBatches, Worker, answer_of
from hf_factuality.verifiers.service import JudgedRow, Row, judge_rows


class BatchJudge:
    """A guarded verifier, and the end of a training in which it judges nothing any more ([`UnjudgedBatches`]).

    [`ahead`] judges the next rows of a batch on a thread, in order. [`judge`] is given the whole batch, waits for these and
    judges the rest; what went wrong on the thread rises there. `then` takes and returns judged rows, on the same thread.
    """

    then: Callable[[list[JudgedRow]], list[JudgedRow]] | None = None
    seconds = waited = 0.0  # of the last batch: those of the verifier, and those that the caller of `judge` waited
    _worker: Worker | None = None

    def __init__(self, guard: GuardedVerifier, unjudged: UnjudgedBatches):
        self.guard, self.unjudged = guard, unjudged
        self._begun: list[tuple[Sequence[Row], SimpleQueue[Any]]] = []

    def ahead(self, rows: Sequence[Row]) -> None:
        """Begin with the next rows of the batch."""
        worker = self._worker = self._worker or Worker("verifier ahead")
        later = bool(self._begun)
        # What was stopped before its turn is not asked any more.
        self._begun.append((rows, worker.submit(lambda: self._ask(rows, later) if worker is self._worker else None)))

    def judge(self, rows: Sequence[Row], counts: bool = True) -> list[JudgedRow]:
        """What was found in a batch, in order. `JudgingError` if the verifier is down; see [`UnjudgedBatches.add`]."""
        started, seconds = time.perf_counter(), 0.0
        judged: list[JudgedRow] = []
        try:
            for begun, answers in self._begun:
                asked = rows[len(judged) : len(judged) + len(begun)]
                if list(map(_question, begun)) != list(map(_question, asked)):
                    break  # other rows than those that were generated
                found, took = answer_of(answers)
                judged += [replace(one, row=row) for one, row in zip(found, asked, strict=True)]
                seconds += took
        finally:
            self.stop()
        if len(judged) < len(rows):
            found, took = self._ask(rows[len(judged) :], bool(judged))
            judged, seconds = judged + found, seconds + took
        self.seconds, self.waited = seconds, time.perf_counter() - started
        self.unjudged.add(self.guard.verifier, [one.found for one in judged if one.left_out is None], counts)
        return judged

    def stop(self) -> None:
        """Forget what was begun; a call that is under way ends by itself, at the latest at the guard's time limit."""
        worker, self._worker, self._begun = self._worker, None, []
        if worker is not None:
            worker.close()

    def _ask(self, rows: Sequence[Row], later: bool) -> tuple[list[JudgedRow], float]:
        self.guard.goes_on = later
        (judged,) = judge_rows(self.guard, rows, chunk=None)
        seconds = self.guard.last_report.seconds
        return judged if self.then is None else self.then(judged), seconds


def _question(row: Row) -> tuple[Any, ...]:
    return row.input.completion, row.input.question, row.input.evidence, row.scope, row.opened

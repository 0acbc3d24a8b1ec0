"""Judges the generation batches of a training, in parts while the rest is still generated."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any

from hf_factuality.verifiers.guard import GuardedVerifier, UnjudgedBatches, Worker, answer_of
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest, judge_rows


@dataclass
class _Begun:
    """Rows of a batch that are judged ahead, by their place in it."""

    worker: Worker
    rows: dict[int, VerificationRequest] = field(default_factory=dict)
    waiting: deque[tuple[int, VerificationRequest]] = field(default_factory=deque)
    calls: list[SimpleQueue[Any]] = field(default_factory=list)
    asked: bool = False


class BatchJudge:
    """A guarded verifier, and the end of a training in which it judges nothing any more ([`UnjudgedBatches`]).

    [`ahead`] judges rows of a batch on a thread: what came while the verifier was busy goes to it in one call. [`judge`] is
    given the whole batch, adds the rest and waits; what went wrong on the thread rises there. `then` takes and returns
    judged rows, on the same thread.
    """

    then: Callable[[list[JudgedRow]], list[JudgedRow]] | None = None
    seconds = waited = 0.0  # of the last batch: those of the verifier, and those that the caller of `judge` waited
    _begun: _Begun | None = None

    def __init__(self, guard: GuardedVerifier, unjudged: UnjudgedBatches):
        self.guard, self.unjudged = guard, unjudged
        self._asking = threading.Lock()  # what was left behind ends before the next call

    def ahead(self, rows: Sequence[VerificationRequest], places: Sequence[int]) -> None:
        """Begin with rows that will stand at these places of the batch."""
        begun = self._begun = self._begun or _Begun(Worker("verifier ahead"))
        begun.rows |= zip(places, rows, strict=True)
        begun.waiting.extend(zip(places, rows, strict=True))
        begun.calls.append(begun.worker.submit(lambda: self._take(begun)))

    def _take(self, begun: _Begun) -> tuple[dict[int, JudgedRow], float]:
        taken = [begun.waiting.popleft() for _ in range(len(begun.waiting))]
        if not taken or begun is not self._begun:  # what was stopped before its turn is not asked any more
            return {}, 0.0
        later, begun.asked = begun.asked, True
        found, seconds = self._ask([row for _, row in taken], later)
        return {place: one for (place, _), one in zip(taken, found, strict=True)}, seconds

    def judge(self, rows: Sequence[VerificationRequest], counts: bool = True) -> list[JudgedRow]:
        """What was found in a batch, in order. `JudgingError` if the verifier is down; see [`UnjudgedBatches.add`]."""
        started, seconds, begun = time.perf_counter(), 0.0, self._begun
        known: dict[int, JudgedRow] = {}
        try:
            if begun is None:
                found, seconds = self._ask(rows, False) if rows else ([], 0.0)
                known = dict(enumerate(found))
            else:
                # What is asked otherwise than when it was begun is asked again.
                ahead = {place: _question(row) for place, row in begun.rows.items()}
                rest = [place for place, row in enumerate(rows) if ahead.get(place) != _question(row)]
                self.ahead([rows[place] for place in rest], rest)
                for answers in begun.calls:
                    found, took = answer_of(answers)
                    known |= found
                    seconds += took
        finally:
            self.stop()
        judged = [replace(known[place], row=row) for place, row in enumerate(rows)]
        self.seconds, self.waited = seconds, time.perf_counter() - started
        self.unjudged.add(self.guard.verifier, [one.found for one in judged if one.left_out is None], counts)
        return judged

    def stop(self) -> None:
        """Forget what was begun; a call that is under way ends by itself, at the latest at the guard's time limit."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.worker.close()

    def _ask(self, rows: Sequence[VerificationRequest], later: bool) -> tuple[list[JudgedRow], float]:
        with self._asking:
            self.guard.goes_on = later
            (judged,) = judge_rows(self.guard, rows, chunk=None)
            seconds = self.guard.last_report.seconds
            return judged if self.then is None else self.then(judged), seconds


def _question(row: VerificationRequest) -> tuple[Any, ...]:
    return row.input.completion, row.input.question, row.input.evidence, row.scope, row.opened

"""Requests wait in a queue, and are judged together on one thread, so that the event loop never waits for the verifier."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

from hf_factuality.evaluation._shared import limits_of
from hf_factuality.evaluation.verify import Tally
from hf_factuality.reading.completion import read
from hf_factuality.server.messages import RefusedRequest
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import REQUEST_FAILED, Verifier
from hf_factuality.verifiers.guard import GuardedVerifier, Worker
from hf_factuality.verifiers.service import CHUNK, NO_EVIDENCE, JudgedRow, VerificationRequest, judge_rows


logger = logging.getLogger(__name__)

BATCH_CHARACTERS = 1 << 18
"""Characters that are judged together at most, so that one large request does not cost small ones their time."""
BATCH_SHARE = 0.25
"""Share of a request's time that a batch may be expected to take: all that is judged together is late together."""
MAX_HANGING = 2
"""Calls of the verifier that were given up and have not returned, after which no request is taken."""
_MARGIN = 1.0  # seconds that a request waits longer than the guard, whose answer has the counts
_TOLD = ("timeout: ", "not sent: ", NO_EVIDENCE)  # how errors of our own begin, which name nothing of this machine
_CLASS = re.compile(r"[A-Z]\w*(?:Error|Exception|Exit)\b")
_STATUS = re.compile(r"\bHTTP \d{3}\b")
_SILENT = re.compile(r"\b(does not answer|gave no answer for \d+ s)\b")  # as clients say of a server that is not there


@dataclass
class JudgedRequest:
    """What was found in the rows of a request, as plain values, and the HTTP status that says whether it was judged."""

    status: int
    content: dict[str, Any]


@dataclass(eq=False)
class _Job:
    rows: list[VerificationRequest]
    answer: asyncio.Future[JudgedRequest]

    @property
    def size(self) -> int:
        return sum(len(row.input.completion) + sum(map(len, row.input.evidence)) for row in self.rows)


class JudgingQueue:
    """The verifier of a server: whoever waits while it is busy is judged in one call of the judging loop.

    All methods are of the event loop; the verifier is called on a thread of its own.

    Args:
        verifier ([`~hf_factuality.verifiers.Verifier`]):
            The verifier, loaded.
        name (`str`):
            Its name in answers.
        timeout (`float`):
            Seconds that a request may take, waiting included.
        max_claims (`int`):
            Sentences of a row that are judged at most.
    """

    def __init__(self, verifier: Verifier, name: str, timeout: float, max_claims: int):
        self.guard = GuardedVerifier(verifier, timeout=timeout)
        self.name, self.timeout, self.max_claims = name, timeout, max_claims
        self.notes = limits_of(verifier)
        self.ending = False
        self._thread = Worker("judging")
        self._waiting: deque[_Job] = deque()
        self._judged: list[_Job] = []  # now
        self._row_seconds = 0.0  # that a row took in the last call

    @property
    def hangs(self) -> bool:
        """Whether the verifier has been called so often without returning that it is not called any more."""
        return len(self.guard.hanging) >= MAX_HANGING

    async def judge(self, rows: list[VerificationRequest]) -> JudgedRequest:
        """The answer to the rows of a request. [`RefusedRequest`]: it took too long, or the server is ending."""
        if self.ending:
            raise _ending()
        job = _Job(rows, asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._next()
        try:
            async with asyncio.timeout(self.timeout + _MARGIN):
                return await job.answer
        except TimeoutError:
            if job in self._waiting:
                raise RefusedRequest(503, f"the verifier was busy for {self.timeout:g} s", 5) from None
            raise RefusedRequest(504, f"the verifier gave no answer within {self.timeout:g} s") from None
        finally:
            if job in self._waiting:  # the client has gone, or it took too long
                self._waiting.remove(job)

    def close(self, grace: float) -> None:
        """Refuse what waits, and after `grace` seconds what is judged."""
        self.ending = True
        while self._waiting:
            _fail(self._waiting.popleft(), _ending())
        for job in self._judged:
            asyncio.get_running_loop().call_later(grace, _fail, job, _ending())

    def _next(self) -> None:
        if self._judged or not self._waiting:
            return
        if self.hangs:
            while self._waiting:
                _fail(
                    self._waiting.popleft(),
                    RefusedRequest(503, "the verifier has not returned from earlier requests", 10),
                )
            return
        most = CHUNK
        if self._row_seconds > 0:
            most = min(CHUNK, int(BATCH_SHARE * self.timeout / self._row_seconds))
        batch = [self._waiting.popleft()]
        count, size = len(batch[0].rows), batch[0].size
        while self._waiting:
            count, size = count + len(self._waiting[0].rows), size + self._waiting[0].size
            if count > most or size > BATCH_CHARACTERS:
                break
            batch.append(self._waiting.popleft())
        self._judged = batch
        loop = asyncio.get_running_loop()

        def run() -> None:
            began = time.monotonic()
            outcomes = self._judge(batch)
            self._row_seconds = (time.monotonic() - began) / sum(len(job.rows) for job in batch)
            try:
                loop.call_soon_threadsafe(self._done, batch, outcomes)
            except RuntimeError:  # the server has ended
                logger.debug("nobody waits for what was judged")

        self._thread.submit(run)

    def _done(self, batch: Sequence[_Job], outcomes: Sequence[JudgedRequest | Exception]) -> None:
        for job, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Exception):
                _fail(job, outcome)
            elif not job.answer.done():
                job.answer.set_result(outcome)
        for worker in self.guard.hanging:
            worker.end_call()
        self._judged = []
        self._next()

    def _judge(self, batch: Sequence[_Job]) -> list[JudgedRequest | Exception]:
        """On the thread: an outcome per job."""
        refused = [_outcome(partial(self._check, job)) for job in batch]
        rows = [row for job, why in zip(batch, refused, strict=True) if why is None for row in job.rows]
        judged = _outcome(partial(next, judge_rows(self.guard, rows, chunk=None)))
        if isinstance(judged, Exception):
            return [judged if why is None else why for why in refused]
        waiting = iter(judged)
        return [
            _outcome(partial(self._answer, list(islice(waiting, len(job.rows))))) if why is None else why
            for job, why in zip(batch, refused, strict=True)
        ]

    def _check(self, job: _Job) -> None:
        """Reads the rows, which [`judge_rows`] does too; what is read is kept."""
        for number, row in enumerate(job.rows):
            where = f"rows.{number}." if len(job.rows) > 1 else ""
            sentences = len(read(row.shown.completion).sentences) if row.ranges else 0
            if sentences > self.max_claims:
                raise RefusedRequest(413, f"{where}completion has {sentences} sentences; at most {self.max_claims}")
        if self.guard.requires_evidence and not any(row.input.evidence for row in job.rows):
            raise RefusedRequest(422, f"evidence: {self.name} needs evidence, and there is none")

    def _answer(self, rows: Sequence[JudgedRow]) -> JudgedRequest:
        tally = Tally()
        for judged in rows:
            tally.report.add(judged)
            tally.add(judged)
        content = {
            "rows": [_row(judged) for judged in rows],
            "summary": tally.summary(),
            "verifier": self.name,
            "notes": self.notes,
        }
        errors = [judged.found.error for judged in rows if judged.left_out is None]
        if not errors or not all(errors):
            return JudgedRequest(200, content)
        slow = all(str(error).startswith(("timeout: ", "not sent: ")) for error in errors)
        return JudgedRequest(
            504 if slow else 502, {"error": f"nothing could be judged: {told_error(errors[0])}", **content}
        )


def told_error(error: str | None) -> str | None:
    """What a client learns of an error of a verifier, whose text may name files of this machine."""
    if error is None or error.startswith(_TOLD):
        return error
    named, status = _CLASS.match(error), _STATUS.search(error)
    silent = _SILENT.search(error)
    said = ", ".join(filter(None, (named and named[0], status and status[0], silent and f"its server {silent[1]}")))
    return f"the verifier failed ({said})" if said else "the verifier failed"


def _row(judged: JudgedRow) -> dict[str, Any]:
    completion = judged.row.input.completion

    def span(it: LabeledSpan) -> dict[str, Any]:
        found = {**it.to_dict(), "text": it.text(completion)}
        if it.reason and it.reason.startswith(REQUEST_FAILED):
            found["reason"] = f"not judged: {told_error(it.reason.removeprefix(REQUEST_FAILED))}"
        return found

    found = judged.verification
    return {
        "id": judged.row.key,
        "verification": {
            **found.to_dict(),
            "spans": [*map(span, found.spans)],
            "claims": [*map(span, found.claims)],
            "error": told_error(found.error),
            "unanswered": found.unanswered,
        },
        "declined": judged.left_out is None and judged.row.declines,
    }


def _outcome(call: Callable[[], Any]) -> Any:
    """What a call returns, or its error: the thread and the other requests of a batch go on."""
    try:
        return call()
    except RefusedRequest as refused:
        return refused
    except Exception as error:
        logger.exception("a request could not be judged")
        return error


def _fail(job: _Job, error: Exception) -> None:
    if not job.answer.done():
        job.answer.set_exception(error)


def _ending() -> RefusedRequest:
    return RefusedRequest(503, "the server is ending", 5)

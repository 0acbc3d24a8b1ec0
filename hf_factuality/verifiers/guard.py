"""Runs a verifier so that it can fail, hang or answer nonsense without stopping the run that called it."""

from __future__ import annotations

import atexit
import ctypes
import logging
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from hf_factuality.errors import JudgingError, SpanError
from hf_factuality.io.ray import ray_map
from hf_factuality.io.secrets import redact
from hf_factuality.spans import Verification, first_failure
from hf_factuality.verifiers.base import Verifier, VerifierInput, require_method


logger = logging.getLogger(__name__)


@contextmanager
def quiet_guard() -> Iterator[None]:
    """Without the warnings per call: commands count failures, and tell them once."""
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


_PIECE = 64  # inputs that a worker of Ray gets at once
_AHEAD = 20_000  # for which workers are started
# A verifier that times out this often in a row is taken to be down, and the rest of the batch is not sent to it.
MAX_TIMEOUTS_IN_A_ROW = 2
# Generation batches in a row of which nothing is judged, before a training stops.
MAX_UNJUDGED_BATCHES = 3
# Seconds that a call which was given up gets to end before the process does.
SECONDS_AT_EXIT = 2.0
# Seconds that the inputs of a chunk may fail for when they are sent one at a time; the rest is not sent then.
MAX_SECONDS_LOST = 300.0


class TimedOut(Exception):
    """The guard's own timeout, with what was judged before; a verifier's `TimeoutError` is a failure like any other."""

    def __init__(self, judged: Sequence[Verification] = ()):
        super().__init__()
        self.judged = judged


class Worker:
    """One daemon thread that runs calls; given up when a call outlasts its timeout.

    Not a `ThreadPoolExecutor`: its threads are joined when the interpreter exits, so a hanging verifier would keep a
    finished training alive. What is still called then is ended first ([`_end_calls`]).
    """

    def __init__(self, name: str = "verifier"):
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._busy = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        _WORKERS.add(self)

    def _run(self):
        while (call := self._calls.get()) is not None:
            self._busy = True
            function, answers = call
            try:
                answers.put((function(), None))
            except BaseException as error:  # handed to the caller, whatever it is
                answers.put((None, error))
            # While it waits, the thread must not keep the last call's verifier and texts alive.
            del call, function, answers
            self._busy = False

    def submit(self, function: Callable[[], Any]) -> queue.SimpleQueue:
        """Call `function` after those that came before; [`answer_of`] reads what is returned."""
        answers: queue.SimpleQueue = queue.SimpleQueue()
        self._calls.put((function, answers))
        return answers

    @property
    def calls(self) -> bool:
        """Whether a call is running."""
        return self._busy and self._thread.is_alive()

    def end_call(self):
        """Raise `SystemExit` in the call, as soon as it is in Python again."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread.ident), ctypes.py_object(SystemExit))

    def close(self):
        self._calls.put(None)


_WORKERS: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end_calls() -> None:
    """A verifier that was given up may still be computing when the process ends.

    A thread that comes back from C++ code of torch then finds an interpreter that is being torn down, is unwound within a
    destructor, and aborts a process whose work is done ("terminate called without an active exception", status 134).
    """
    left, end = [worker for worker in _WORKERS if worker.calls], time.monotonic() + SECONDS_AT_EXIT
    for worker in left:
        worker.end_call()
    while any(worker.calls for worker in left) and time.monotonic() < end:
        time.sleep(0.01)


def answer_of(answers: queue.SimpleQueue, timeout: float | None = None) -> Any:
    """Result of a function that was submitted; raises what it raises, and `TimedOut` after `timeout` seconds."""
    try:
        result, error = answers.get(timeout=None if timeout is None else max(timeout, 0.0))
    except queue.Empty:
        raise TimedOut from None
    if error is None:
        return result
    if isinstance(error, Exception):
        raise error
    raise RuntimeError(f"the verifier raised {type(error).__name__}") from error  # SystemExit ends only its thread


@dataclass
class GuardReport:
    """What one [`GuardedVerifier.verify`] call met: inputs, those without a usable verification, seconds of wall time."""

    sent: int = 0
    failed: int = 0
    seconds: float = 0.0


class GuardedVerifier:
    """A [`Verifier`] that does not raise: what goes wrong with a completion is said in its `Verification.error`.

    Inputs go to the wrapped verifier in chunks of `batch_size`. A chunk that raises or returns another number of results is
    sent again one input at a time, so that one bad completion costs only itself, until these failures have cost five
    minutes. A chunk has `timeout` seconds, sending again included (`None`: for ever, on the calling thread); what is not
    judged by then counts as failed, and after two such chunks in a row the rest of the batch is not sent. A call that hangs
    cannot be killed: its thread is left behind, and later calls may run beside it. Errors in `raises` are of the verifier,
    not of an input, and rise to the caller, who waits for it.
    """

    def __init__(
        self,
        verifier: Verifier,
        timeout: float | None = 300.0,
        batch_size: int = 64,
        raises: tuple[type[Exception], ...] = (),
    ):
        require_method(verifier, "verify", "a verifier")
        if timeout is not None and not 0 < timeout < math.inf:
            raise ValueError(f"timeout must be a finite positive number of seconds, or None, got {timeout!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        self.verifier = verifier
        self.timeout = timeout
        self.batch_size = batch_size
        self.raises = raises
        self.requires_evidence = getattr(verifier, "requires_evidence", True)
        self.last_report = GuardReport()
        self.goes_on = False  # whether the next call is of the same batch as the last, and timeouts in a row count on
        self._timeouts = 0
        self._worker: Worker | None = None
        self._given_up: list[Worker] = []

    @property
    def hanging(self) -> list[Worker]:
        """Those whose call was given up, and has not returned."""
        self._given_up = [worker for worker in self._given_up if worker.calls]
        return self._given_up

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order, each valid for its completion or with `error` set."""
        started = time.perf_counter()
        results: list[Verification] = []
        timeouts = self._timeouts if self.goes_on else 0
        for start in range(0, len(inputs), self.batch_size):
            chunk = inputs[start : start + self.batch_size]
            if timeouts >= MAX_TIMEOUTS_IN_A_ROW:
                error = f"not sent: the verifier timed out {timeouts} times in a row"
                results += [Verification(error=error)] * len(chunk)
                continue
            deadline = None if self.timeout is None else time.monotonic() + self.timeout
            try:
                results += self._verify_chunk(chunk, deadline)
                timeouts = 0
            except TimedOut as stop:
                missing = len(chunk) - len(stop.judged)
                error = f"timeout: no answer within {self.timeout:g} s"
                results += [*stop.judged, *[Verification(error=error)] * missing]
                timeouts += 1
        self._timeouts = timeouts
        failed = [result for result in results if not result.judged]
        if failed:
            logger.warning(
                f"{type(self.verifier).__name__}: {len(failed)} of {len(results)} completions could not be judged and "
                f"are left out; the first: {first_failure(failed)}"
            )
        self.last_report = GuardReport(sent=len(inputs), failed=len(failed), seconds=time.perf_counter() - started)
        return results

    def _verify_chunk(self, chunk: Sequence[VerifierInput], deadline: float | None) -> list[Verification]:
        try:
            results = self._call(chunk, deadline)
        except (TimedOut, *self.raises):
            raise
        except Exception as error:
            if len(chunk) == 1:
                return [Verification(error=redact(f"{type(error).__name__}: {error}"))]
        else:
            return [_usable(result, item) for result, item in zip(results, chunk, strict=True)]
        judged: list[Verification] = []
        lost = 0.0
        for item in chunk:
            if lost > MAX_SECONDS_LOST:
                judged.append(Verification(error=f"not sent: others of its batch failed for {lost:.0f} s"))
                continue
            started = time.monotonic()
            try:
                judged += self._verify_chunk([item], deadline)
            except TimedOut:
                raise TimedOut(judged) from None
            if judged[-1].error is not None:
                lost += time.monotonic() - started
        return judged

    def _call(self, chunk: Sequence[VerifierInput], deadline: float | None) -> list[Any]:
        if deadline is None:
            results = self.verifier.verify(chunk)
        else:
            if self._worker is None:
                self._worker = Worker()
                weakref.finalize(self, self._worker.close)
            try:
                answers = self._worker.submit(lambda: self.verifier.verify(chunk))
                results = answer_of(answers, deadline - time.monotonic())
            except (TimedOut, KeyboardInterrupt):
                self._worker.close()  # it ends by itself if the call ever returns
                self._given_up = [*self.hanging, self._worker]
                self._worker = None
                raise
        if not isinstance(results, (list, tuple)) or len(results) != len(chunk):
            size = len(results) if isinstance(results, (list, tuple)) else type(results).__name__
            raise ValueError(f"the verifier must return a list of {len(chunk)} verifications, got {size}")
        return list(results)


class UnjudgedBatches:
    """Ends a training whose judge is gone: when it judges nothing of the first batch, or of `limit` in a row later.

    A batch is that of all processes: each of them adds its part of every batch, and all raise together. Batches of which
    nothing was sent do not count.
    """

    def __init__(self, limit: int = MAX_UNJUDGED_BATCHES):
        if limit < 1:
            raise ValueError(f"max_unjudged_batches={limit!r} must be at least 1")
        self.limit, self.batches, self.ever_judged = limit, 0, False

    def add(self, verifier: Verifier, found: Sequence[Verification], counts: bool = True) -> None:
        """Count what `verifier` made of the completions that this process sent it.

        Without `counts` it is none of the batches in a row; one of an evaluation may be a single completion. Raises
        `JudgingError` where the limit is reached.
        """
        import torch.distributed as dist

        parts: list[Any] = [(len(found), sum(v.judged for v in found), [v.error for v in found if v.error][-1:])]
        if dist.is_available() and dist.is_initialized():
            here, parts = parts[0], [None] * dist.get_world_size()
            dist.all_gather_object(parts, here)
        sent, judged = (sum(part[i] for part in parts) for i in (0, 1))
        self.ever_judged = self.ever_judged or judged > 0
        if judged:
            self.batches = 0
        elif sent and counts:
            self.batches += 1
        first = not self.ever_judged and sent > 1
        if not first and self.batches < self.limit:
            return
        batches = f"the first {sent} completions" if first else f"the completions of {self.batches} batches in a row"
        error = next((error for part in reversed(parts) for error in part[2]), "none, but no sentence got a verdict")
        raise JudgingError(
            f"{type(verifier).__name__} judged none of {batches}, so no factuality would be trained; the last error: {error}"
            + ("" if first else "; when it judges again, resume from the last checkpoint")
        )


def _usable(result: Any, item: VerifierInput) -> Verification:
    if not isinstance(result, Verification):
        return Verification(error=f"not a Verification but a {type(result).__name__}")
    try:
        return result.validate(item.completion)
    except SpanError as error:
        return Verification(error=f"SpanError: {error}")


class OverRay:
    """A verifier that gets the inputs `ahead`, in order: they are judged in Ray's workers, each behind a guard of its own.

    What Ray cannot run raises here.
    """

    def __init__(self, verifier: Verifier, ahead: Iterator[VerifierInput], workers: int, gpus_per_worker: float = 0.0):
        self.requires_evidence = getattr(verifier, "requires_evidence", True)
        found = _judged_ahead([(GuardedVerifier(verifier).verify, gpus_per_worker)], ahead, workers)
        self._found = chain(list(islice(found, 1)), found)

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        return list(islice(self._found, len(inputs)))


def _judged_ahead(stages: Sequence[Any], ahead: Iterator[VerifierInput], workers: int) -> Iterator[Verification]:
    while some := list(islice(ahead, _AHEAD)):
        pieces = [some[start : start + _PIECE] for start in range(0, len(some), _PIECE)]
        came, found = ray_map(stages, pieces, workers), {}
        for number in range(len(pieces)):
            while number not in found:
                found.update([next(came)])
            yield from found.pop(number)

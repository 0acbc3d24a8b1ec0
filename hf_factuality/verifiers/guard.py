"""Runs a verifier so that it can fail, hang or answer nonsense without stopping the run that called it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_factuality.errors import SpanError
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput


logger = logging.getLogger(__name__)

# A verifier that times out this often in a row is taken to be down, and the rest of the batch is not sent to it.
MAX_TIMEOUTS_IN_A_ROW = 2


class _TimedOut(Exception):
    """The guard's own timeout; a `TimeoutError` that the verifier raises is a failure like any other."""


class _Worker:
    """One daemon thread that runs calls; given up when a call outlasts its timeout.

    Not a `ThreadPoolExecutor`: its threads are joined when the interpreter exits, so a hanging verifier would keep a
    finished training alive.
    """

    def __init__(self):
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        threading.Thread(target=self._run, name="verifier", daemon=True).start()

    def _run(self):
        while (call := self._calls.get()) is not None:
            function, answers = call
            try:
                answers.put((function(), None))
            except BaseException as error:  # handed to the caller, whatever it is
                answers.put((None, error))

    def call(self, function: Callable[[], Any], timeout: float) -> Any:
        """Result of `function`; raises what it raises, and `_TimedOut` after `timeout` seconds."""
        answers: queue.SimpleQueue = queue.SimpleQueue()
        self._calls.put((function, answers))
        try:
            result, error = answers.get(timeout=timeout)
        except queue.Empty:
            raise _TimedOut(f"no answer within {timeout:g} s") from None
        if error is None:
            return result
        if isinstance(error, Exception):
            raise error
        raise RuntimeError(f"the verifier raised {type(error).__name__}") from error  # SystemExit ends only its thread

    def close(self):
        self._calls.put(None)


@dataclass
class GuardReport:
    """What one [`GuardedVerifier.verify`] call met.

    Args:
        failed (`int`):
            Inputs without a usable verification.
        seconds (`float`):
            Wall time.
    """

    failed: int = 0
    seconds: float = 0.0


class GuardedVerifier:
    """A [`Verifier`] that never raises: what goes wrong with a completion is said in its `Verification.error`.

    Inputs go to the wrapped verifier in chunks. A chunk that raises or returns another number of results is sent again
    one input at a time, so that one bad completion costs only itself. A chunk that outlasts the timeout is given up (its
    thread cannot be killed and is left behind), and after two in a row so is the rest of the batch.

    Args:
        verifier ([`Verifier`]):
            What to run.
        timeout (`float`, *optional*, defaults to `300.0`):
            Seconds per chunk, or per input when a chunk is sent again. `None` waits for ever and stays on the calling
            thread.
        batch_size (`int`, *optional*, defaults to `64`):
            Inputs per chunk: what one hanging input costs at most.

    Raises:
        `ValueError`: `timeout` or `batch_size` is not positive.
        `TypeError`: `verifier` has no `verify` method.
    """

    def __init__(self, verifier: Verifier, timeout: float | None = 300.0, batch_size: int = 64):
        if not callable(getattr(verifier, "verify", None)):
            raise TypeError(f"a verifier needs a `verify(inputs)` method; {type(verifier).__name__} has none")
        if timeout is not None and not timeout > 0:
            raise ValueError(f"timeout must be a positive number of seconds or None, got {timeout!r}")
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        self.verifier = verifier
        self.timeout = timeout
        self.batch_size = batch_size
        self.requires_evidence = getattr(verifier, "requires_evidence", True)
        self.last_report = GuardReport()
        self._worker: _Worker | None = None
        self._timeouts_in_a_row = 0

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order, each valid for its completion or with `error` set."""
        started = time.perf_counter()
        self._timeouts_in_a_row = 0
        results: list[Verification] = []
        for start in range(0, len(inputs), self.batch_size):
            results += self._verify_chunk(inputs[start : start + self.batch_size])
        failed = [result.error for result in results if not result.judged]
        if failed:
            reason = next((error for error in failed if error), "no sentence could be judged")
            logger.warning(
                f"{type(self.verifier).__name__}: {len(failed)} of {len(results)} completions could not be judged and "
                f"are left out; the first: {reason}"
            )
        self.last_report = GuardReport(failed=len(failed), seconds=time.perf_counter() - started)
        return results

    def _verify_chunk(self, chunk: Sequence[VerifierInput]) -> list[Verification]:
        if self._timeouts_in_a_row >= MAX_TIMEOUTS_IN_A_ROW:
            error = f"not sent: the verifier timed out {self._timeouts_in_a_row} times in a row"
            return [Verification(error=error)] * len(chunk)
        try:
            results = self._call(chunk)
        except _TimedOut as error:
            self._timeouts_in_a_row += 1
            return [Verification(error=f"timeout: {error}")] * len(chunk)
        except Exception as error:
            self._timeouts_in_a_row = 0
            if len(chunk) == 1:
                return [Verification(error=f"{type(error).__name__}: {error}")]
            return [result for item in chunk for result in self._verify_chunk([item])]
        self._timeouts_in_a_row = 0
        return [_usable(result, item) for result, item in zip(results, chunk, strict=True)]

    def _call(self, chunk: Sequence[VerifierInput]) -> list[Any]:
        if self.timeout is None:
            results = self.verifier.verify(chunk)
        else:
            if self._worker is None:
                self._worker = _Worker()
            try:
                results = self._worker.call(lambda: self.verifier.verify(chunk), self.timeout)
            except _TimedOut:
                self._worker.close()  # it ends by itself if the call ever returns
                self._worker = None
                raise
        if not isinstance(results, (list, tuple)) or len(results) != len(chunk):
            size = len(results) if isinstance(results, (list, tuple)) else type(results).__name__
            raise ValueError(f"the verifier must return a list of {len(chunk)} verifications, got {size}")
        return list(results)


def _usable(result: Any, item: VerifierInput) -> Verification:
    if not isinstance(result, Verification):
        return Verification(error=f"not a Verification but a {type(result).__name__}")
    try:
        return result.validate(item.completion)
    except SpanError as error:
        return Verification(error=f"SpanError: {error}")

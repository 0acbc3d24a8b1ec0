import gc
import math
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import types
import weakref

import pytest

from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from tests.conftest import fast_few


GOOD = Verification(spans=(LabeledSpan(0, 2, Label.SUPPORTED),))


class Scripted:
    """Does what each completion says; counts the calls."""

    def __init__(self):
        self.calls = []

    def verify(self, inputs):
        self.calls.append(len(inputs))
        results = []
        for item in inputs:
            if item.completion == "raise":
                raise RuntimeError("the judge is out")
            if item.completion == "exit":
                raise SystemExit(3)
            if item.completion == "timeout error":
                raise TimeoutError("a server did not answer")
            if item.completion == "hang":
                time.sleep(60)
            results.append(
                {"garbage": "yes", "outside": Verification(spans=(LabeledSpan(0, 99),))}.get(item.completion, GOOD)
            )
        return results


def verify(texts, **settings):
    guard = GuardedVerifier(Scripted(), **{"timeout": 60.0, **settings})
    return guard, guard.verify([VerifierInput(text) for text in texts])


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("raise", "RuntimeError: the judge is out"),
        ("exit", "RuntimeError: the verifier raised SystemExit"),
        ("timeout error", "TimeoutError: a server did not answer"),
        ("garbage", "not a Verification but a str"),
        ("outside", "SpanError: span \\[0, 99\\) ends after the completion"),
    ],
)
def test_a_bad_completion_costs_only_itself(text, error, caplog):
    guard, results = verify(["ok", text, "fine"])
    assert [result.judged for result in results] == [True, False, True]
    assert re.match(error, results[1].error)
    assert guard.last_report.failed == 1 and guard.last_report.seconds > 0
    assert "1 of 3 completions could not be judged" in caplog.text


def test_a_hanging_chunk_is_given_up_and_the_next_goes_on():
    guard, results = verify(["ok", "hang", "fine"], timeout=1.5, batch_size=1)
    assert [result.judged for result in results] == [True, False, True]
    assert results[1].error == "timeout: no answer within 1.5 s"


def test_calls_that_were_given_up_are_known_until_they_end():
    class Loops:
        def verify(self, inputs):
            while True:
                time.sleep(0.01)

    guard = GuardedVerifier(Loops(), timeout=0.1)
    assert guard.hanging == []
    for number in (1, 2):
        assert not guard.verify([VerifierInput("x")])[0].judged and len(guard.hanging) == number
    for worker in guard.hanging:
        worker.end_call()
    end = time.monotonic() + 10
    while guard.hanging and time.monotonic() < end:
        time.sleep(0.01)
    assert guard.hanging == []


def test_the_call_after_ctrl_c_does_not_wait_for_the_one_that_hangs():
    guard = GuardedVerifier(Scripted(), timeout=5.0)
    pressed = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    pressed.start()
    with pytest.raises(KeyboardInterrupt):
        guard.verify([VerifierInput("hang")])
    pressed.join()
    assert guard.verify([VerifierInput("ok")]) == [GOOD]


@pytest.fixture
def clock(monkeypatch):
    """Time that only tests pass: a call has answered once the thread is through, unless its time was over by then."""
    clock = types.SimpleNamespace(now=0.0, monotonic=lambda: clock.now, perf_counter=lambda: clock.now, hangs=False)

    class Queue(queue.SimpleQueue):
        def get(self, timeout=None):
            end = math.inf if timeout is None else clock.now + timeout
            while clock.now < end and not (timeout is not None and clock.hangs):
                try:
                    answer = super().get(timeout=0.01)
                except queue.Empty:
                    continue
                if clock.now < end:
                    return answer
            clock.now, clock.hangs = max(end, clock.now), False
            raise queue.Empty

    def sleep(seconds):
        clock.hangs = True
        release.wait(60)

    release = threading.Event()
    monkeypatch.setattr("hf_factuality.verifiers.guard.time", clock)
    monkeypatch.setattr(
        "hf_factuality.verifiers.guard.queue", types.SimpleNamespace(SimpleQueue=Queue, Empty=queue.Empty)
    )
    monkeypatch.setattr("tests.verifiers.test_guard.time", types.SimpleNamespace(sleep=sleep))
    yield clock
    release.set()


def test_after_two_timeouts_in_a_row_the_rest_is_not_sent(clock):
    guard, results = verify(["hang"] * 4 + ["ok"], timeout=1.0, batch_size=1)
    assert clock.now == 2.0
    assert len(guard.verifier.calls) == 2
    assert results[4].error == "not sent: the verifier timed out 2 times in a row"
    assert guard.last_report.failed == 5
    # The next batch is tried again: the server may be back.
    assert guard.verify([VerifierInput("ok")]) == [GOOD]


@pytest.mark.parametrize("returned", [None, [], [GOOD, GOOD, GOOD], "text", 5])
def test_a_wrong_number_of_results_is_a_failure(returned):
    class Wrong:
        def verify(self, inputs):
            return returned

    results = GuardedVerifier(Wrong(), timeout=None).verify([VerifierInput("a"), VerifierInput("b")])
    assert len(results) == 2 and not any(result.judged for result in results)
    assert "must return a list of 1 verifications" in results[0].error


def test_a_chunk_has_its_time_once_however_often_it_is_sent_again(clock):
    """Each call fails slowly: without a common deadline, all 60 inputs would be sent again."""
    calls = []

    class SlowFailure:
        def verify(self, inputs):
            calls.append(len(inputs))
            clock.now += 10
            raise RuntimeError("busy")

    results = GuardedVerifier(SlowFailure(), timeout=155).verify([VerifierInput("x")] * 60)
    late = "timeout: no answer within 155 s"
    assert [result.error for result in results] == ["RuntimeError: busy"] * 14 + [late] * 46
    assert calls == [60, *[1] * 15]


def test_single_failures_have_a_budget_without_a_timeout_too(clock):
    """Each failure takes 100 seconds, and each success 1,000, which cost nothing."""

    class Slow(Scripted):
        def verify(self, inputs):
            clock.now += 100 if "raise" in [item.completion for item in inputs] else 1000
            return super().verify(inputs)

    guard = GuardedVerifier(Slow(), timeout=None)
    results = guard.verify([VerifierInput(text) for text in ["ok"] * 5 + ["raise", "ok"] * 10])
    assert [result.judged for result in results] == [True] * 5 + [False, True] * 3 + [False] * 14
    assert results[-1].error == "not sent: others of its batch failed for 400 s"
    assert guard.verifier.calls == [25, *[1] * 12]


def test_what_was_judged_before_a_timeout_is_kept(clock):
    _, results = verify(["ok", "raise", "hang", "fine"], timeout=1.5)
    assert [result.judged for result in results] == [True, False, False, False]


def test_errors_are_kept_without_secrets():
    class Leaks:
        def verify(self, inputs):
            raise RuntimeError("401 for https://me:pw@host/v1, Bearer abc.def, key sk-abcdefghijkl, hf_abcdefghijkl")

    (result,) = GuardedVerifier(Leaks()).verify([VerifierInput("x")])
    assert result.error == "RuntimeError: 401 for https://***@host/v1, Bearer *** key ***, ***"


def test_no_input_and_no_timeout():
    guard = GuardedVerifier(Scripted(), timeout=None)
    assert guard.verify([]) == [] and guard.verifier.calls == []
    assert guard.verify([VerifierInput("ok"), VerifierInput("fine")]) == [GOOD, GOOD]
    assert guard.verifier.calls == [2] and guard.last_report.failed == 0


def test_settings_are_checked():
    with pytest.raises(TypeError, match="dict has none"):
        GuardedVerifier({})
    for timeout in (0, float("inf")):
        with pytest.raises(ValueError, match=f"finite positive number of seconds, or None, got {timeout}"):
            GuardedVerifier(Scripted(), timeout=timeout)
    with pytest.raises(ValueError, match="at least 1, got 0"):
        GuardedVerifier(Scripted(), batch_size=0)
    assert GuardedVerifier(Scripted()).requires_evidence is True


def test_a_guard_that_is_gone_leaves_no_thread_and_no_verifier():
    class Nothing:
        def verify(self, inputs):
            return [Verification() for _ in inputs]

    before = set(threading.enumerate())
    verifier = Nothing()
    guard, gone = GuardedVerifier(verifier, timeout=5.0), weakref.ref(verifier)
    guard.verify([VerifierInput("A.")])
    (thread,) = set(threading.enumerate()) - before
    del guard, verifier
    gc.collect()
    thread.join(60)
    assert not thread.is_alive() and gone() is None


AT_EXIT = """
import sys, time, torch
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier, Worker

def compute():
    end, numbers = time.monotonic() + 60, torch.ones(200, 200)
    while time.monotonic() < end:
        numbers = (numbers @ numbers).clamp(-1, 1)

class Computes:
    def verify(self, inputs):
        compute()

def give_up():
    GuardedVerifier(Computes(), timeout=0.2).verify([VerifierInput("a")])

def fail():
    Worker().submit(compute)
    time.sleep(0.2)
    raise RuntimeError("the training failed")

{}()
print("done", flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "status"), fast_few([("give_up", 0), ("fail", 1)], 0))
def test_a_verifier_that_computes_at_the_end_does_not_abort_the_process(ends, status):
    """A thread that comes back from C++ to an interpreter that is gone would: status -6."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT.format(ends)], capture_output=True, text=True, timeout=60)
    assert done.returncode == status and ("done" in done.stdout) == (status == 0), done.stderr[-2000:]

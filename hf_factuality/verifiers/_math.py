"""Mathematical equality of a final answer and its gold answers, decided in a child process.

The `math-verify` library limits its run time with `signal.alarm`, which raises outside the main thread, cancels the alarms of
others and cannot interrupt a call into C; without a limit one answer such as `9^{9^{9^9}}` stops a training run for good. A
child can be killed from any thread on any system.
"""

from __future__ import annotations

import atexit
import functools
import importlib.util
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Sequence

from hf_factuality.errors import JudgingError
from hf_factuality.reading.marks import solved, unboxed


logger = logging.getLogger(__name__)

MATH_TIMEOUT = 5.0
"""Seconds that the gold answer, and then the comparison, may take."""
MATH_START_TIMEOUT = 300.0
"""Seconds that the child process may take to import `math-verify` (network file systems are slow)."""
MATH_MAX_LENGTH = 1000
"""Characters beyond which an answer is not parsed; the longest answer of MATH has 159."""

_warned: set[str] = set()


def warn_once(key: str, message: str, *args: object) -> None:
    """Log a warning the first time that `key` is seen in this process."""
    if key not in _warned:
        _warned.add(key)
        logger.warning(message, *args)


def math_match(prediction: str, golds: Sequence[str]) -> float | None:
    """1 if the prediction is mathematically equal to a gold answer, else 0; `None` if one of them could not be parsed.

    Raises `ImportError` if `math-verify` is not installed, `JudgingError` if the child process could not be started.
    """
    verdicts = []
    for gold in golds:
        verdicts.append(math_equal(prediction, gold))
        if verdicts[-1]:
            return 1.0
    return None if None in verdicts else 0.0


def gsm8k_match(prediction: str, golds: Sequence[str]) -> float | None:
    """[`math_match`] of numbers: `,` and `$` are taken out, and of a worked solution the line after `####` counts."""
    return math_match(_number(prediction), list(map(_number, golds)))


def _number(text: str) -> str:
    answer = solved(text)  # what comes below it is a check of the answer, or a word in parting
    answer = text if answer is None else answer
    return answer.replace(",", "").replace("\\$", "").replace("$", "").strip()


def math_equal(prediction: str, gold: str) -> bool | None:
    r"""Whether two answers are mathematically equal, for example `\frac{1}{2}` and `0.5`; `None`: gold cannot be parsed.

    Both are LaTeX with or without `$` or `\boxed`, or plain. A prediction that cannot be parsed, or compared within
    [`MATH_TIMEOUT`] seconds, is not equal. Raises as [`math_match`].
    """
    require_math()
    gold, prediction = _bare(gold), _bare(prediction)
    if gold and gold == prediction:
        return True
    if not gold or len(gold) > MATH_MAX_LENGTH:
        return None
    # Not `False` at once for what cannot be parsed: whether the gold answer can be is still to be found out.
    return _compare(gold, prediction if len(prediction) <= MATH_MAX_LENGTH else "")


@functools.cache
def require_math() -> None:
    """Raises `ImportError`, which names the command that installs `math-verify`, if it is not installed."""
    if importlib.util.find_spec("math_verify") is None:
        raise ImportError(
            "the answers of MATH and GSM8K are compared by the math-verify library, which is not installed; "
            "run: pip install hf_factuality[math]"
        )


def _bare(text: str) -> str:
    r"""Drop what is not part of the expression: `\boxed`, `$`, `\(`, `\[` around it, a full stop or comma after it."""
    text = unboxed(text.strip().replace("\\$", "").strip())
    for left, right in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = text[len(left) : len(text) - len(right)]
        if len(text) > len(left) + len(right) and text.startswith(left) and text.endswith(right) and left not in inner:
            return _bare(inner)
    return text.rstrip(".,").rstrip()


# Groups of completions share answers, and a prediction that runs into the time limit should do so once.
@functools.lru_cache(maxsize=8192)
def _compare(gold: str, prediction: str) -> bool | None:
    return _process.compare(gold, prediction)


class _MathProcess:
    """A child process that compares answers, one at a time, for any thread; started on first use without `__main__`."""

    def __init__(self):
        self.lock = threading.Lock()
        self.process: subprocess.Popen | None = None

    def compare(self, gold: str, prediction: str) -> bool | None:
        gold_parsed = False
        with self.lock:
            for _ in range(2):  # somebody may have killed it; the answers have if it dies again
                if self.process is None or self.process.poll() is not None:
                    self._start()
                self._write([gold, prediction])
                try:
                    if not self._read(MATH_TIMEOUT):
                        return None
                    gold_parsed = True
                    return bool(self._read(MATH_TIMEOUT))
                except TimeoutError:
                    break
                except EOFError:
                    continue
        if not gold_parsed:
            return None
        warn_once("math", "an answer could not be compared within %g s and counts as wrong; said once", MATH_TIMEOUT)
        return False

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def _start(self) -> None:
        self.stop()
        code = (
            "import json, sys; sys.path[:] = json.loads(sys.stdin.readline()); "
            "from hf_factuality.verifiers._math import _serve; _serve()"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, encoding="ascii"
        )
        self._write([os.path.abspath(path) for path in sys.path])
        try:
            self._read(MATH_START_TIMEOUT)
        except (TimeoutError, EOFError):
            raise JudgingError(
                f"the process that runs math-verify did not start; try: {sys.executable} -c 'import math_verify'"
            ) from None

    def _write(self, value: object) -> None:
        try:
            self.process.stdin.write(json.dumps(value) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # a dead child: the next read says so

    def _read(self, timeout: float) -> object:
        """The next value that the child writes; `TimeoutError` if it was silent and is killed, `EOFError` if it is dead."""
        process, late = self.process, threading.Event()
        timer = threading.Timer(timeout, lambda: (late.set(), process.kill()))
        timer.daemon = True
        timer.start()
        try:
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.stop()
            raise TimeoutError if late.is_set() else EOFError
        return json.loads(line)


def _serve() -> None:
    """Body of the child: per line `[gold, prediction]`, write whether gold parses, then whether they are equal."""
    import faulthandler

    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)  # whatever the parser prints must not be read as a reply
    logging.disable(logging.CRITICAL)
    try:
        import resource

        # An answer can ask for a number with 10^10 digits; a MemoryError is an answer too.
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    except (ImportError, OSError, ValueError):
        pass
    from math_verify import parse, verify

    def reply(value: object) -> None:
        replies.write(json.dumps(value) + "\n")
        replies.flush()

    reply("ready")
    with open(os.devnull, "w") as null:
        for line in sys.stdin:
            # The parent may die during a comparison that never ends.
            faulthandler.dump_traceback_later(4 * MATH_TIMEOUT, exit=True, file=null)
            gold, prediction = json.loads(line)
            wanted = parse(_latex(gold), parsing_timeout=None)
            # Where parsing fails, the library returns the string, cut where it gave up: "a + b + c" becomes "a +".
            if all(isinstance(item, str) for item in wanted):
                reply(False)
            else:
                reply(True)
                found = parse(_latex(prediction), parsing_timeout=None)
                reply(bool(found) and bool(verify(wanted, found, timeout_seconds=None)))
            faulthandler.cancel_dump_traceback_later()


def _latex(text: str) -> str:
    # The library looks for LaTeX between anchors only. Without them it would also take the last number of a plain text
    # for the answer: 12 of "(3, 12)".
    return text if "$" in text or "\\boxed" in text else f"${text}$"


_process = _MathProcess()


def _reset_after_fork() -> None:
    # The child of a fork shares the pipes of its parent, and perhaps a lock that nobody will release.
    global _process
    _process = _MathProcess()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_after_fork)
atexit.register(lambda: _process.stop())

"""Limits on the tools that a rollout calls."""

import asyncio
import threading
import time

import pytest

from hf_factuality.trainers._tools import ToolGuard


def guard(**settings):
    return ToolGuard(["<|end|>", " "], **{"timeout": 0.1, "characters": 20, **settings})


def hang():
    threading.Event().wait(20)


def test_a_tool_that_hangs_is_given_up_for_the_batch(caplog):
    limits, started = guard(), time.monotonic()
    called = limits.guarded(hang)
    for expected in ("did not answer within 0.1 s", "did not answer within", "does not answer", "does not answer"):
        with pytest.raises(TimeoutError, match=expected):
            called()
    assert time.monotonic() - started < 5 and limits.counts == {"timeouts": 2, "failed": 2}
    assert len(caplog.records) == 1 and "'hang' took longer" in caplog.text
    limits.begin()
    with pytest.raises(TimeoutError, match="did not answer within"):
        called()


def test_whoever_hung_is_known():
    class Environment:
        def look(self):
            hang()

    one, limits = Environment(), guard()
    with pytest.raises(TimeoutError):
        limits.guarded(one.look)()
    assert limits.hanging == [one]


@pytest.mark.parametrize("error", [ValueError("a key: sk-abcdefghijklmnopqrstuvwx"), SystemExit(3), GeneratorExit()])
def test_what_a_tool_raises_is_told_and_no_more(error, caplog):
    def fails():
        raise error

    with pytest.raises(RuntimeError) as told:
        guard(characters=500).guarded(fails)()
    assert "sk-abc" not in str(told.value) + caplog.text


def test_ctrl_c_ends_the_run():
    def fails():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guard(timeout=None).guarded(fails)()


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ("a<|end|>b c", "ab c"),
        ("x" * 2**20, "x" * 20),
        (["a", {"b": 1}], '["a", {"b": 1}]'),
        ({"a": "<|end|>"}, "{'a': ''}"),
        ({"a": "x" * 99}, '{"a": "' + "x" * 13),
        (None, "None"),
        (b"bytes", "b'bytes'"),
        ("\ud800", "\ufffd"),
    ],
)
def test_results_are_text_of_some_length(result, expected):
    assert guard().guarded(lambda: result)() == expected


def test_tools_that_are_waited_for():
    async def slow():
        await asyncio.sleep(20)

    async def fine():
        return "a" * 30

    limits = guard()
    assert asyncio.run(limits.guarded(fine)()) == "a" * 20
    with pytest.raises(TimeoutError):
        asyncio.run(limits.guarded(slow)())
    assert limits.counts == {"cut": 1, "timeouts": 1}

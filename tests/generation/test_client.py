import asyncio
import logging
import math
import os
import pickle
import signal
import subprocess
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from hf_factuality.errors import JudgingError
from hf_factuality.generation.cache import AnswerCache
from hf_factuality.generation.client import ChatAnswer, ChatClient, ChatRequest, RetryPolicy, ServerError
from hf_factuality.generation.transport import _retry_after
from tests.conftest import fast_few
from tests.generation.fake_server import FAST, HASTY, PROBE, FakeServer


def ask(*prompts, **kwargs):
    return [ChatRequest((("user", prompt),), **kwargs) for prompt in prompts]


def echo(prompt, body):
    return f"re: {prompt}"


def test_batch_in_list_out_in_order():
    with FakeServer(echo) as server:
        client = server.client()
        answers = client.chat(ask(*[f"p{i}" for i in range(50)]))
        assert [answer.text for answer in answers] == [f"re: p{i}" for i in range(50)]
        assert {(answer.error, answer.finish_reason, answer.cached) for answer in answers} == {(None, "stop", False)}
        assert client.chat([]) == []
        body = next(body for body in server.bodies if body["messages"][-1]["content"] == "p0")
        assert body == {
            "model": "fake",
            "messages": [{"role": "user", "content": "p0"}],
            "temperature": 0.0,
            "top_p": 1.0,
            "max_tokens": 256,
        }
        client.close()
        assert client.chat(ask("after close"))[0].text == "re: after close"


def test_equal_requests_are_sent_once():
    with FakeServer(echo) as server:
        answers = server.client().chat(ask("a", "b", "a", "a"))
        assert [answer.text for answer in answers] == ["re: a", "re: b", "re: a", "re: a"]
        assert server.received == {"a": 1, "b": 1}
        first, second = server.client().chat(ask("a", seed=1, temperature=1.0) + ask("a", seed=2, temperature=1.0))
        assert server.received["a"] == 3 and first.text == second.text


@pytest.mark.parametrize("run", [lambda f: f(), lambda f: asyncio.run(_inside_a_loop(f))], ids=["plain", "loop"])
def test_callable_with_and_without_a_running_loop(run):
    with FakeServer(echo) as server:
        assert run(lambda: server.client().chat(ask("x")))[0].text == "re: x"


async def _inside_a_loop(function):
    return function()


@pytest.mark.parametrize(("concurrency", "least"), [(1, 1), (32, 16)])
def test_concurrency_is_bounded_and_used(concurrency, least):
    with FakeServer(echo, delay=0.5 if concurrency > 1 else 0.0) as server:
        server.client(concurrency=concurrency).chat(ask(*[f"p{i}" for i in range(64)]))
        assert least <= server.most <= concurrency


def test_threads_share_the_bound():
    with FakeServer(echo, delay=0.2) as server, ThreadPoolExecutor(3) as pool:
        client = server.client(concurrency=4)
        list(pool.map(lambda name: client.chat(ask(*[f"{name}{i}" for i in range(5)])), "abc"))
        assert server.most == 4
        assert len(server.answered) == 15


@pytest.mark.parametrize("trouble", [408, 409, 429, 500, 502, 503, 529, "drop", "garbage"])
def test_passing_trouble_is_retried(trouble):
    with FakeServer(echo, trouble=lambda prompt, count: trouble if count <= 2 else None) as server:
        client = server.client(concurrency=2)
        answers = client.chat(ask("a", "b", "c"))
        assert [answer.text for answer in answers] == ["re: a", "re: b", "re: c"]
        assert server.answered == {"a": 1, "b": 1, "c": 1}
        assert client.stats.retried == 6 and client.stats.failed == 0


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_rejected_request_costs_only_itself(status):
    with FakeServer(echo, trouble=lambda prompt, count: status if prompt == "bad" else None) as server:
        answers = server.client().chat(ask("a", "bad", "b"))
        assert [answer.text for answer in answers] == ["re: a", "", "re: b"]
        assert answers[1].error.startswith(f"HTTP {status}")
        assert server.received["bad"] == 1


@pytest.mark.parametrize("trouble", fast_few([500, "drop", "garbage", "hang"], 0, 1, 2))
def test_a_request_that_always_fails_costs_only_itself(trouble, tmp_path):
    with FakeServer(echo, trouble=lambda prompt, count: trouble if prompt == "bad" else None) as server:
        once = replace(FAST, retries=1)
        client = server.client(
            timeout=1.5 if trouble == "hang" else 60.0, cache=tmp_path / "c", concurrency=4, retry=once
        )
        answers = client.chat(ask(*[f"p{i}" for i in range(20)], "bad", *[f"q{i}" for i in range(20)]))
        assert sum(answer.error is None for answer in answers) == 40
        assert answers[20].error
        assert server.received["bad"] == 2
        assert len(client.cache) == 40  # a failure is not kept


@pytest.mark.parametrize("trouble", [500, 400, 403, pytest.param("hang", marks=pytest.mark.slow)])
def test_requests_that_always_fail_do_not_hold_back_the_others(trouble):
    """20 of 178, first in the line, and for much longer than the patience with a server."""
    prompts = [*[f"bad {i}" for i in range(20)], *[f"p{i}" for i in range(158)]]
    policy = RetryPolicy(retries=2, backoff=0.05, max_backoff=0.1, breaker_failures=3, give_up_after=0.05)
    with FakeServer(echo, trouble=lambda prompt, count: trouble if prompt.startswith("bad") else None) as server:
        client = server.client(timeout=3.0 if trouble == "hang" else 60.0, retry=policy)
        assert client.chat(ask("hello"))[0].text  # that 403 is not for the key's sake
        answers = client.chat(ask(*prompts))
        assert [answer.error is None for answer in answers] == [False] * 20 + [True] * 158
        assert all(server.received[prompt] == 1 for prompt in prompts[20:])
        assert all(1 <= server.received[prompt] <= policy.retries + 1 for prompt in prompts[:20])
        assert server.received[PROBE] <= 20  # one for three failures: at most 60, of 20 requests
        # Those that fail try again behind the others: none is sent again before the last of the others is under way.
        sent = [body["messages"][-1]["content"] for body in server.bodies[1:]]
        again = next((i for i, prompt in enumerate(sent) if prompt != PROBE and prompt in sent[:i]), len(sent))
        assert len(set(prompts) - set(sent[:again])) <= 32


@pytest.mark.slow
def test_a_dead_server_is_given_up_although_requests_failed_alone_before(tmp_path):
    """Once probes are not answered either, the batch ends and says what is kept."""
    prompts = [*[f"bad {i}" for i in range(20)], *[f"p{i}" for i in range(40)]]
    dead = []

    def trouble(prompt, count):
        if prompt == "p39":
            dead.append(True)
        return 500 if dead or prompt.startswith("bad") else None

    with FakeServer(echo, trouble=trouble) as server:
        client = server.client(concurrency=4, cache=tmp_path / "c", retry=HASTY)
        with pytest.raises(ServerError) as caught:
            client.chat(ask(*prompts))
        done = len(client.cache)
        assert 0 < done < 40
        for part in (server.url, "HTTP 500", f"{done} of 60 requests were answered", str(tmp_path / "c")):
            assert part in str(caught.value)


def test_a_server_that_fails_everything_is_given_up():
    with FakeServer(echo, trouble=lambda prompt, count: 500) as server:
        client = server.client(retry=RetryPolicy(1000, 0.01, 0.05, 3, 0.5), concurrency=8)
        with pytest.raises(ServerError, match="HTTP 500"):
            client.chat(ask(*[f"p{i}" for i in range(20)]))


def test_strange_replies():
    replies = {
        "none": (None, "stop"),
        "parts": ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "stop"),
        "number": (7, "stop"),
        "surrogate": ("\ud800", None),
        "reason": ("x", 3),
    }
    with FakeServer(lambda prompt, body: replies[prompt]) as server:
        found = dict(zip(replies, server.client().chat(ask(*replies)), strict=True))
    assert found["none"] == ChatAnswer("", "stop")
    assert found["parts"].text == "ab"
    assert found["number"].error
    assert found["surrogate"].text == "\ud800"
    assert found["reason"] == ChatAnswer("x", None)


def test_retry_after_holds_everybody_back():
    seen = []
    trouble = lambda prompt, count: (429, {"Retry-After": "0.3"}) if prompt == "p0" and count == 1 else None  # noqa: E731
    with FakeServer(lambda prompt, body: seen.append(time.monotonic()) or "ok", trouble=trouble) as server:
        client = server.client(concurrency=1)
        start = time.monotonic()
        answers = client.chat(ask(*[f"p{i}" for i in range(6)]))
        assert all(answer.error is None for answer in answers)
        assert len(seen) == 6 and min(seen) - start >= 0.3
        assert client.stats.sent == 7


def test_a_rate_limit_costs_no_retries():
    with FakeServer(echo, trouble=lambda prompt, count: 429 if count <= 6 else None) as server:
        assert server.client().chat(ask("a"))[0].text == "re: a"
        assert server.received["a"] == 7 > FAST.retries + 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("nan", None),
        ("soon", None),
        ("Mon, 01 Jan 2001 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_header(value, expected):
    assert _retry_after(value) == expected


def test_restart_in_the_middle_loses_and_repeats_nothing(tmp_path, caplog):
    prompts = [f"p{i}" for i in range(200)]
    with FakeServer(echo, delay=0.02) as server:
        client = server.client(concurrency=8, cache=tmp_path / "c")
        thread = server.die_at(60, back_after=0.3)
        with caplog.at_level(logging.WARNING):
            answers = client.chat(ask(*prompts))
        thread.join()
        assert [answer.text for answer in answers] == [f"re: {prompt}" for prompt in prompts]
        assert server.answered == dict.fromkeys(prompts, 1)
        assert "does not answer" in caplog.text and "answers again" in caplog.text
        # While it was away one request at a time looked for it: far fewer attempts than 8 workers would have made.
        assert client.stats.sent - 200 < 60
        assert len(client.cache) == 200


def test_gone_for_good_is_a_clear_error_and_keeps_what_was_done(tmp_path):
    prompts = [f"p{i}" for i in range(200)]
    with FakeServer(echo, delay=0.02) as server:
        client = server.client(concurrency=8, cache=tmp_path / "c", retry=HASTY)
        thread = server.die_at(60)
        start = time.monotonic()
        found = []
        with pytest.raises(JudgingError) as caught:
            found.extend(client.stream(ask(*prompts)))
        assert time.monotonic() - start >= HASTY.give_up_after
        thread.join()
        server.dies_at = math.inf
        done = sum(server.answered.values())
        assert 60 <= done < 200
        message = str(caught.value)
        assert server.url in message and "refused" in message.lower() or "connect" in message.lower()
        assert f"{done} of 200" in message and str(tmp_path / "c") in message
        assert len(dict(found)) == done
        # The next call does not wait again.
        sent = client.stats.sent
        with pytest.raises(ServerError):
            client.chat(ask("another"))
        assert client.stats.sent == sent + 1
        # A later run asks only for what is missing.
        server.start()
        answers = server.client(cache=tmp_path / "c").chat(ask(*prompts))
        assert [answer.text for answer in answers] == [f"re: {prompt}" for prompt in prompts]
        assert sum(answer.cached for answer in answers) == done
        assert server.answered == dict.fromkeys(prompts, 1)
        assert client.chat(ask("another"))[0].text == "re: another"


def test_a_failure_before_an_idle_time_does_not_count():
    bad = {"a"}
    with FakeServer(echo, trouble=lambda prompt, count: 500 if prompt in bad else None) as server:
        client = server.client(retry=RetryPolicy(1, 0.01, 0.05, 3, 0.3))
        assert client.chat(ask("a"))[0].error
        time.sleep(0.4)
        bad.add("b")
        assert client.chat(ask("b"))[0].error.startswith("HTTP 500")


def test_nobody_there():
    with FakeServer() as server:
        pass
    with pytest.raises(ServerError, match="0 of 3 requests were answered$"):
        server.client(retry=replace(HASTY, give_up_after=0.3)).chat(ask("a", "b", "c"))


@pytest.mark.parametrize(
    ("settings", "key", "message"),
    [
        ({"model": "other"}, None, "does not exist"),
        ({"key": "right-key"}, "wrong-key", "401"),
        ({"trouble": lambda prompt, count: (307, {"Location": "http://127.0.0.1:1/"})}, None, "307"),  # not followed
        ({"trouble": lambda prompt, count: (429, {"Retry-After": "86400"})}, None, "HTTP 429"),  # beyond all patience
    ],
)
def test_a_server_that_will_not_answer_ends_the_batch_at_once(settings, key, message):
    with FakeServer(**settings) as server, pytest.raises(ServerError, match=message):
        server.client(api_key=key).chat(ask("a"))
    assert len(server.bodies) == 1


@pytest.mark.parametrize("field", ["structured_outputs", "guided_choice"])
@pytest.mark.parametrize("strict", [False, True])
def test_constrained_choice_is_found(field, strict):
    with FakeServer(lambda prompt, body: "Well, I think yes", choice_field=field, strict=strict) as server:
        answers = server.client().chat(ask(*"abcdef", choices=("yes", "no")))
        assert [answer.text for answer in answers] == ["yes"] * 6
        sent = [body for body in server.bodies if body["messages"][0]["content"] in "abcdef"]
        assert all(field in body for body in sent)
        assert sum(server.answered[prompt] for prompt in "abcdef") == 6
        assert server.received[PROBE] <= 2


@pytest.mark.parametrize("strict", [False, True])
def test_a_server_without_constraints_is_asked_without(strict):
    with FakeServer(lambda prompt, body: "Well, I think yes", strict=strict) as server:
        client = server.client()
        answers = client.chat(ask(*"abcdef", choices=("yes", "no"), logprobs=20))
        assert [answer.text for answer in answers] == ["Well, I think yes"] * 6
        assert {answer.logprobs for answer in answers} == {None}
        probes = len(server.bodies) - 6
        assert probes <= 4
        for body in server.bodies[probes:]:
            assert not {"structured_outputs", "guided_choice", "logprobs", "top_logprobs"} & set(body)
        client.chat(ask("g", choices=("yes", "no")))
        assert len(server.bodies) == probes + 7  # nothing is found out twice


def test_logprobs():
    with FakeServer(lambda prompt, body: "supported", logprobs=True) as server:
        (answer,) = server.client().chat(ask("a", logprobs=20))
        assert [token.token for token in answer.logprobs] == ["supp", "orted"]
        assert answer.logprobs[0].candidates[0] == ("supp", pytest.approx(-0.10536, abs=1e-4))
        assert server.bodies[-1]["top_logprobs"] == 20


def test_broken_logprobs_are_none():
    for broken in ("x", [], [{"token": "a"}], [{"token": "a", "logprob": "b"}], [None]):
        with FakeServer(logprobs=lambda text, broken=broken: broken) as server:
            assert server.client().chat(ask("a", logprobs=5))[0] == ChatAnswer("ok", "stop")


def test_a_warm_cache_sends_nothing(tmp_path):
    prompts = ask(*[f"p{i}" for i in range(200)])
    with FakeServer(echo) as server:
        first = server.client(cache=tmp_path / "c", concurrency=16).chat(prompts)
        client = server.client(cache=tmp_path / "c")
        second = client.chat(prompts)
        assert [answer.text for answer in first] == [answer.text for answer in second]
        assert all(answer.cached for answer in second) and client.stats.sent == 0
        assert sum(server.received.values()) == 200


def test_the_cache_does_not_know_the_server_but_all_that_decides(tmp_path):
    client = ChatClient("http://a/v1", "m", cache=False)
    base = ChatRequest((("user", "x"),))
    other_server = ChatClient("http://b:9/v1", "m", cache=False, timeout=1.0, concurrency=2)
    assert client.key(base) == other_server.key(base)
    keys = {client.key(base)}
    for change in (
        {"messages": (("user", "y"),)},
        {"messages": (("system", "x"),)},
        {"choices": ("a",)},
        {"logprobs": 5},
        {"temperature": 1.0},
        {"top_p": 0.5},
        {"max_new_tokens": 9},
        {"seed": 1},
    ):
        keys.add(client.key(ChatRequest(**{"messages": base.messages, **change})))
    for other in ({"model": "n"}, {"revision": "r"}, {"extra_body": {"top_k": 1}}):
        keys.add(ChatClient("http://a/v1", **{"model": "m", "cache": False, **other}).key(base))
    assert len(keys) == 12


def test_the_key_is_nowhere_to_be_seen(caplog, monkeypatch, tmp_path):
    secret = "very-secret-value-42"
    monkeypatch.setenv("HF_FACTUALITY_API_KEY", secret)
    with caplog.at_level(logging.DEBUG), FakeServer(key="another") as server:
        client = server.client(cache=tmp_path / "c")
        with pytest.raises(ServerError) as caught:
            client.chat(ask("a"))
        assert "Bearer ***" in str(caught.value)
        shown = "".join(traceback.format_exception(caught.value)) + repr(client) + caplog.text
        shown += repr(client._transport) + pickle.dumps(client).decode("latin-1")
        assert secret not in shown
        server.key = secret
        assert client.chat(ask("a"))[0].text == "ok"
        assert pickle.loads(pickle.dumps(client)).chat(ask("b"))[0].text == "ok"
    assert secret.encode() not in (tmp_path / "c").read_bytes()


def test_a_client_with_a_key_of_its_own_is_not_pickled(monkeypatch):
    """Its copy in another process would have no key, and the server would refuse all of its requests."""
    monkeypatch.delenv("HF_FACTUALITY_API_KEY", raising=False)
    settings = {"base_url": "http://x/v1", "model": "m", "cache": False}
    pickle.dumps(ChatClient(**settings))
    for client in (
        ChatClient(**settings, api_key="key-1"),
        ChatClient(**settings, api_key="key-1", api_key_env="OTHER"),
    ):
        with pytest.raises(ValueError, match="set (HF_FACTUALITY_API_KEY|OTHER)") as caught:
            pickle.dumps(client)
        assert "key-1" not in str(caught.value)
    monkeypatch.setenv("HF_FACTUALITY_API_KEY", "key-1")
    pickle.dumps(ChatClient(**settings, api_key="key-1"))


def test_another_services_key_is_not_taken(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "openai-key")
    monkeypatch.delenv("HF_FACTUALITY_API_KEY", raising=False)
    with FakeServer(key="openai-key") as server:
        with pytest.raises(ServerError, match="401"):
            server.client().chat(ask("a"))
        assert server.client(api_key_env="OPENAI_API_KEY").chat(ask("a"))[0].text == "ok"


@pytest.mark.parametrize(
    "arguments",
    [
        {"base_url": "localhost:8000"},
        {"base_url": "ftp://x"},
        {"base_url": "http://user:password@x/v1"},
        {"base_url": "http://x/v1?api-key=password"},
        {"model": ""},
        {"timeout": 0},
        {"timeout": float("inf")},
        {"concurrency": 0},
        {"api_key": "pass\nword"},
        {"api_key": ""},
        {"extra_body": {"messages": []}},
        {"max_prompt_chars": 0},
    ],
)
def test_bad_arguments(arguments):
    with pytest.raises(ValueError) as caught:
        ChatClient(**{"base_url": "http://x/v1", "model": "m", "cache": False, **arguments})
    assert "password" not in str(caught.value)


def test_bad_policies():
    for bad in ({"retries": -1}, {"breaker_failures": 0}, {"backoff": 0}, {"give_up_after": 0}):
        with pytest.raises(ValueError):
            RetryPolicy(**bad)
    delays = [RetryPolicy().delay(attempt) for attempt in (0, 1, 2, 50, 10_000)]
    assert 0.25 <= delays[0] <= 0.5 and 0.5 <= delays[1] <= 1 and 1 <= delays[2] <= 2
    assert 15 <= delays[3] <= 30 and 15 <= delays[4] <= 30
    assert len({RetryPolicy().delay(3) for _ in range(20)}) > 10


def test_extra_body_adds_and_removes():
    with FakeServer() as server:
        client = server.client(extra_body={"max_tokens": None, "max_completion_tokens": 5})
        client.chat(ask("a"))
        assert "max_tokens" not in server.bodies[0] and server.bodies[0]["max_completion_tokens"] == 5


def test_overlong_prompts_are_not_sent():
    with FakeServer() as server:
        answers = server.client(max_prompt_chars=100).chat(ask("a" * 101, "b"))
        assert "101 characters" in answers[0].error and answers[1].text == "ok"
        assert list(server.received) == ["b"]


def test_endless_replies_are_cut(monkeypatch):
    monkeypatch.setattr("hf_factuality.generation.transport.MAX_REPLY", 1000)
    with FakeServer(lambda prompt, body: "x" * 2000) as server:
        assert "more than 1000 bytes" in server.client().chat(ask("a"))[0].error


def test_ctrl_c_calls_off_what_is_under_way():
    code = (
        "import signal, sys\n"
        "from hf_factuality.generation.client import ChatClient, ChatRequest\n"
        "client = ChatClient(sys.argv[1], 'fake', cache=False)\n"
        # A shell that starts a job in the background has it ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "try:\n    client.chat([ChatRequest((('user', 'slow'),))])\n"
        "except KeyboardInterrupt:\n    print(client.chat([ChatRequest((('user', 'next'),))])[0].text)\n"
    )
    started = []

    def trouble(prompt, count):
        if prompt != "slow":
            return None
        started[0].send_signal(signal.SIGINT)
        return "hang"

    with FakeServer(echo, trouble=trouble) as server:
        command = [sys.executable, "-c", code, server.url]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        out, err = started[0].communicate(timeout=300)
    assert out.strip() == "re: next", err
    assert "Unclosed" not in err and "Traceback" not in err


@pytest.mark.timeout(60)
def test_ctrl_c_before_anybody_waits_calls_off_too(monkeypatch):
    """The signal may come once the loop has the request and before the caller has a future to cancel."""
    start = asyncio.run_coroutine_threadsafe
    with FakeServer(echo, trouble=lambda prompt, count: "hang") as server:
        client = server.client()
        client._transport.call(asyncio.sleep(0))
        loop = client._transport._loop

        def interrupted(coroutine, where):
            future = start(coroutine, where)
            if where is not loop:  # another client that is being cleaned up
                return future
            while not server.bodies:
                time.sleep(0.01)
            raise KeyboardInterrupt

        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.chat(ask("slow"))
        monkeypatch.undo()
        deadline = time.monotonic() + 30
        while asyncio.all_tasks(loop) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not asyncio.all_tasks(loop)
        client.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_survives_a_fork(tmp_path):
    with FakeServer(echo) as server:
        code = (
            "import os, sys\n"
            "from hf_factuality.generation.client import ChatClient, ChatRequest\n"
            "client = ChatClient(sys.argv[1], 'fake', cache=sys.argv[2])\n"
            "ask = lambda prompt: client.chat([ChatRequest((('user', prompt),))])[0].text\n"
            "assert ask('before') == 're: before'\n"
            "child = os.fork()\n"
            "if not child:\n    os._exit(ask('in child') != 're: in child' or ask('before') != 're: before')\n"
            "assert os.waitpid(child, 0)[1] == 0\n"
            "assert ask('after') == 're: after'\n"
            "print(len(client.cache))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, server.url, str(tmp_path / "c")], capture_output=True, text=True, timeout=300
        )
        assert done.stdout.strip() == "3", done.stderr


def test_a_cache_that_cannot_be_used_costs_only_itself(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with FakeServer(echo) as server, caplog.at_level(logging.WARNING):
        client = server.client(cache=AnswerCache(tmp_path / "file" / "c"))
        assert client.chat(ask("a"))[0].text == "re: a"
        assert "going on without" in caplog.text

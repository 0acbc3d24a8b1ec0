import json
import pickle

import pytest

from hf_factuality.generation import ChatClient, ChatRequest, ScoreClient, ServerError
from tests.generation.fake_server import FAST, HASTY, FakeServer


TURNS = (("user", "Where?"), ("assistant", "Leeds."))


def connect(server, **kwargs):
    return ScoreClient(server.url, "fake", **{"cache": False, "retry": FAST, "timeout": 60.0, **kwargs})


def plain(*texts):
    return [(("", text),) for text in texts]


def score(client, asked):
    """Numbers of each text, or its error."""
    answers = client.chat([ChatRequest(messages) for messages in asked])
    return [answer.error or json.loads(answer.text) for answer in answers]


def length(prompt, body):
    return [float(len(prompt)), -1.5]


@pytest.mark.parametrize(
    ("settings", "own"),
    [
        ({}, {"use_activation": False}),
        ({"activation": True}, {"use_activation": True}),
        ({"extra_body": {"truncate_prompt_tokens": 9}}, {"use_activation": False, "truncate_prompt_tokens": 9}),
        (
            {"extra_body": {"use_activation": None, "activation": False}},
            {"activation": False},
        ),  # as older vLLM calls it
    ],
)
def test_a_text_is_sent_as_it_is(settings, own):
    with FakeServer(length) as server:
        client = connect(server, **settings)
        assert score(client, plain("ab", "abcd")) == [[2.0, -1.5], [4.0, -1.5]]
        assert server.paths == ["/classify"] * 2
        assert {"model": "fake", "input": "ab", **own} in server.bodies
        assert client.models() == ["fake"]


def test_messages_are_rendered_by_the_server_and_the_address_may_lack_v1():
    with FakeServer(length) as server:
        client = ScoreClient(server.url.removesuffix("/v1") + "/", "fake", cache=False)
        assert score(client, [TURNS]) == [[6.0, -1.5]]
        assert server.bodies == [
            {
                "model": "fake",
                "messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Leeds."}],
                "use_activation": False,
            }
        ]


def test_what_fails_for_one_text_costs_only_itself():
    replies = {"nan": [float("nan")], "none": [], "word": ["a"], "text": "12", "nested": [[1.0]], "good": [2.0]}
    replies |= {"mixed": [0.9, "0.1"], "bool": [True]}
    with FakeServer(
        lambda prompt, body: replies[prompt], trouble=lambda p, count: 400 if p == "long" else None
    ) as server:
        client = connect(server, max_prompt_chars=10)
        names = [*replies, "long", "a" * 11]
        found = dict(zip(names, score(client, plain(*names)), strict=True))
        assert found.pop("good") == [2.0]
        assert found["long"].startswith("HTTP 400") and "not sent" in found["a" * 11]
        assert all(
            "no usable answer" in found[name] for name in ("nan", "none", "word", "text", "nested", "mixed", "bool")
        )
        assert server.received["a" * 11] == 0


@pytest.mark.slow
def test_killed_and_back_again_asks_only_what_was_under_way():
    texts = [f"text {number:03}" for number in range(100)]
    with FakeServer(lambda prompt, body: [float(prompt[-3:])], delay=0.02) as server:
        trouble = server.die_at(40, back_after=0.5)
        client = connect(server, concurrency=8)
        found = score(client, plain(*texts))
        trouble.join(30)
        assert found == [[float(number)] for number in range(100)]
        assert set(server.answered.values()) == {1} and client.stats.failed == 0 and client.stats.retried > 0


@pytest.mark.slow
def test_gone_for_good_is_an_error():
    server = FakeServer(length)
    with server:
        client = connect(server, retry=HASTY)
        score(client, plain("a"))
    with pytest.raises(ServerError, match=r"gave no answer for .*; 0 of 1 requests"):
        score(client, plain("b"))
    with pytest.raises(ServerError, match="does not answer: ClientConnectorError"):
        client.models()


def test_the_cache_tells_texts_messages_and_activations_apart(tmp_path):
    with FakeServer(length) as server:
        cache = tmp_path / "scores.sqlite"
        asked = [*plain("a", "b"), (("user", "a"),)]
        first = connect(server, cache=cache)
        found = score(first, asked)
        assert first.stats.sent == 3
        again = pickle.loads(pickle.dumps(first))
        assert score(again, asked) == found and again.stats.sent == 0 and again.stats.cached == 3
        other = connect(server, cache=cache, activation=True)
        score(other, asked[:1])
        assert other.stats.sent == 1 and pickle.loads(pickle.dumps(other)).extra_body == {"use_activation": True}


def test_the_list_of_models_of_a_server_that_has_none_or_wants_a_key(monkeypatch):
    monkeypatch.delenv("HF_FACTUALITY_API_KEY", raising=False)
    with FakeServer(length, key="sk-secret-of-the-test") as server:
        assert connect(server, api_key="sk-secret-of-the-test").models() == ["fake"]
        with pytest.raises(ServerError, match="does not answer: HTTP 401") as caught:
            connect(server, api_key="sk-other-secret").models()
        assert "sk-other-secret" not in str(caught.value)
        client = ChatClient(f"{server.url}/nothing", "fake")
        with pytest.raises(ServerError, match="does not answer: HTTP 404"):
            client.models()


def test_bad_arguments():
    with pytest.raises(ValueError, match="http"):
        ScoreClient("localhost:1", "m")


@pytest.mark.parametrize("address", ["user:secret@host:8000", "http://user:secret@host/v1"])
def test_a_login_in_an_address_is_refused_and_not_shown(address):
    with pytest.raises(ValueError, match="must hold no login") as error:
        ScoreClient(address, "m")
    assert "secret" not in str(error.value)

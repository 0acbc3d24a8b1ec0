"""Judges and extractors on `transformers serve`, which knows neither constrained choice nor log-probabilities."""

import importlib.util
import logging

import pytest

from hf_factuality.generation.client import ChatClient
from hf_factuality.spans import Label
from hf_factuality.verifiers.judges.llm import LLMJudge
from tests.servers import checks
from tests.servers.running import CountingProxy, transformers_serve


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(map(importlib.util.find_spec, ("fastapi", "uvicorn", "openai"))), reason="needs transformers[serving]"
    ),
]


@pytest.fixture(scope="module")
def server(judge_model, tmp_path_factory):
    with transformers_serve(judge_model, tmp_path_factory.mktemp("serve") / "log.txt") as running:
        yield running


@pytest.fixture
def client(server, judge_model):
    return ChatClient(server.url, judge_model, cache=False, concurrency=8)


def test_the_judge_notices_and_parses_strictly(server, judge_model, caplog):
    inputs, labels = checks.plain_claims()
    likes, loves = checks.claim("likes"), checks.claim("loves")
    with CountingProxy(server) as proxy, caplog.at_level(logging.INFO):
        client = ChatClient(proxy.url, judge_model, cache=False, concurrency=8)
        judge = LLMJudge(client)
        found = judge.judge([*inputs, likes, loves])
        # Prose: after the reminder the one is told in a label, the other again in prose, and has no verdict.
        assert [result.label for result in found] == [*labels, Label.UNVERIFIABLE, None]
        assert [result.score for result in found] == [None] * len(found)
        assert (judge.last_report.unparsed, judge.last_report.failed) == (1, 0)
        assert "no constrained choice" in caplog.text and "no log-probabilities" in caplog.text
        # Two spellings of constrained choice and the log-probabilities are tried once; from then on none is sent.
        probes = [
            set(body) for body in proxy.bodies if {"structured_outputs", "guided_choice", "logprobs"} & set(body)
        ]
        assert len(probes) == 3 and len(proxy.bodies) == 3 + len(inputs) + 2 * 2
        assert sum(proxy.asked().values()) == len(inputs) + 2 * 2


def test_extraction(client):
    checks.check_extraction(client)


def test_pipeline(client):
    checks.check_pipeline(client)


def test_three_turns_of_anah(client):
    checks.check_anah(client)


def test_self_judging(client):
    checks.check_self(client)


@pytest.mark.slow
def test_killed_and_started_again(server, judge_model, tmp_path):
    checks.check_killed_and_started_again(server, judge_model, tmp_path)


@pytest.mark.slow
def test_gone_for_good(server, judge_model, tmp_path):
    checks.check_gone_for_good(server, judge_model, tmp_path)

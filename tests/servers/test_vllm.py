"""Judges and extractors on a real vLLM server, with constrained choice and log-probabilities."""

import pytest
import torch

from hf_factuality.generation.client import ChatClient
from hf_factuality.verifiers.judges.llm import LLMJudge
from tests.servers import checks
from tests.servers.running import CountingProxy, vllm_server
from tests.servers.tiny_judge import LABELS


pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def server(vllm_python, judge_model, tmp_path_factory):
    with vllm_server(vllm_python, judge_model, tmp_path_factory.mktemp("vllm") / "log.txt") as running:
        yield running


@pytest.fixture
def client(server, judge_model):
    return ChatClient(server.url, judge_model, cache=False)


@pytest.fixture(scope="module")
def first_token(judge_model):
    """Of messages, the model's own probabilities that its answer begins as each label does, computed here."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(judge_model)
    model = AutoModelForCausalLM.from_pretrained(judge_model, dtype=torch.float32).eval()
    texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]

    def probabilities(messages, labels):
        ids = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        with torch.no_grad():
            shares = model(**ids).logits[0, -1].double().softmax(-1)
        # No two labels begin with the same letter, so that every beginning belongs to one label.
        begins = [[token for token, text in enumerate(texts) if text and label.startswith(text)] for label in labels]
        return [shares[tokens].sum().item() for tokens in begins]

    return probabilities


def test_verdicts_are_labels_and_scores_the_models_own_probabilities(server, judge_model, first_token):
    inputs, labels = checks.plain_claims()
    unsure = [checks.claim(kind="unsure", name=name, city=city) for name in checks.NAMES for city in checks.CITIES]
    prose = [checks.claim(verb, name=name) for verb in ("likes", "loves") for name in checks.NAMES]
    with CountingProxy(server) as proxy:
        judge = LLMJudge(ChatClient(proxy.url, judge_model, cache=False))
        found = judge.judge([*inputs, *unsure, *prose])
        bodies = {body["messages"][-1]["content"]: body for body in proxy.bodies}
    assert judge.last_report.unknown == 0  # also where the model would rather have written prose
    assert [result.label for result in found[: len(inputs)]] == labels
    scores = []
    for item, result in zip([*inputs, *unsure, *prose], found, strict=True):
        body = bodies[next(judge._talk(item)).messages[0][1]]
        assert body["structured_outputs"] == {"choice": list(LABELS)} and body["top_logprobs"] == 20
        shares = first_token(body["messages"], LABELS)
        assert result.label is checks.OF_LABEL[LABELS[max(range(3), key=shares.__getitem__)]]
        # Two float32 programs of two layers: they differ by 3e-7 at most. vLLM gives the log-probabilities after the
        # constraint, so there is a score also where the labels have hardly any probability without it.
        assert (sum(shares) < 0.1) == (item in prose)
        assert result.score == pytest.approx(shares[0] / sum(shares), abs=1e-5)
        scores.append(result.score)
    # The tiny model is sure of some and unsure of others: neither 0 nor 1 throughout.
    assert min(scores) < 0.01 and max(scores) > 0.99
    assert all(0.1 < score < 0.5 for score in scores[len(inputs) : -len(prose)])


def test_extraction(client):
    checks.check_extraction(client)


def test_pipeline(client):
    checks.check_pipeline(client)


def test_three_turns_of_anah(client):
    checks.check_anah(client)


def test_self_judging(client, first_token):
    checks.check_self(client, first_token)


def test_killed_and_started_again(server, judge_model, tmp_path):
    checks.check_killed_and_started_again(server, judge_model, tmp_path)


def test_gone_for_good(server, judge_model, tmp_path):
    checks.check_gone_for_good(server, judge_model, tmp_path)

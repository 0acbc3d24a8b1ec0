"""Rewards of answers that may decline, alone and in the trainer."""

import math

import pytest
import torch

from hf_factuality import FactGRPOConfig
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.generation.client import ChatClient
from hf_factuality.generation.transport import ServerError
from hf_factuality.rewards import GradedOutcome, abstention_reward
from hf_factuality.rewards.names import named_rewards
from tests.generation.fake_server import FakeServer
from tests.tiny import rows
from tests.trainers.recording import SETTINGS, FactGRPO


ANSWERS = ["Paris", "I'm not sure.", "Rome", "", "I don't know", "Rome, but I'm not sure"]
ASKED = {
    "prompts": [""] * 6,
    "completions": [f"<think>x</think><answer>{answer}</answer>" for answer in ANSWERS],
    "answer": ["Paris"] * 6,
}


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (abstention_reward("truthrl"), [1, 0, -1, -1, 0, -1]),
        (abstention_reward("knowrl"), [2, 1, -1, -1, 1, -1]),
        (abstention_reward("binary"), [1, -1, -1, -1, -1, -1]),
        (abstention_reward("target-0.75"), [0.25, 0, -0.75, -0.75, 0, -0.75]),
        (abstention_reward(threshold=0), [1, 0, 0, 0, 0, 0]),
        (abstention_reward(threshold=1), [0, 0, -1, -1, 0, -1]),
        (abstention_reward(correct=5, abstained=2, wrong=1, abstains="knowrl"), [5, 1, 1, 1, 2, 1]),
        (abstention_reward("truthrl", abstains=lambda text: "sure" in text), [1, 0, -1, -1, -1, 0]),
    ],
)
def test_rewards(reward, expected):
    assert reward(**ASKED) == expected
    assert reward(**{**ASKED, "answer": [""] * 6}) == [None] * 6  # no gold answer: unknown


def test_answers_in_plain_words():
    """Of a model that was not asked for tags; reasoning is no answer, and tags are read where there are some."""
    texts = ["Paris", "It is unknown. I don't know.", "Rome", "", "<think>Paris</think>", "<think>Rome</think>Paris."]
    texts += ["<answer>Paris</answer>", "Paris <confidence>.8</confidence>", "<think>Paris"]
    given = {"prompts": [""] * 9, "completions": texts, "answer": ["Paris"] * 9}
    assert abstention_reward("truthrl", tags=False)(**given) == [1, 0, -1, -1, -1, 1, 1, 1, -1]
    messages = [[{"role": "assistant", "content": text}] for text in texts]
    assert abstention_reward("truthrl", tags=False)(**given | {"completions": messages}) == [
        1,
        0,
        -1,
        -1,
        -1,
        1,
        1,
        1,
        -1,
    ]
    assert abstention_reward("truthrl")(**given) == [-1] * 6 + [1, -1, -1]
    opened = {
        "prompts": ["Capital?<think>"] * 2,
        "completions": ["Paris", "Hm.</think>Paris"],
        "answer": ["Paris"] * 2,
    }
    assert abstention_reward("truthrl", tags=False)(**opened) == [-1, 1]


def test_a_scorer_of_the_users_gets_what_it_got():
    """Messages where completions are messages, and no word of a `<think>` that was taken out."""
    seen = []

    def scorer(completions, answer, **columns):
        seen.append((completions, columns))
        return [1.0] * len(completions)

    message = [{"role": "assistant", "content": "Hm.</think>Paris"}]
    reward = abstention_reward("truthrl", scorer=scorer, tags=False)
    given = {"prompts": ["", ""], "answer": ["Paris"] * 2, "think_opened": [True, True]}
    assert reward(completions=[message, "Hm.</think>Paris"], **given) == [1, 1]
    ((completions, columns),) = seen
    assert completions == [[{"role": "assistant", "content": "<answer>Paris</answer>"}], "<answer>Paris</answer>"]
    assert "think_opened" not in columns


def test_it_is_said_once_that_no_answer_has_tags(caplog, monkeypatch):
    """Else a run would pay every completion the same, learn nothing and end well."""
    monkeypatch.setattr("hf_factuality.verifiers._math._warned", set())
    given = {"prompts": [""] * 2, "answer": ["Paris"] * 2}
    abstention_reward("truthrl")(completions=["<answer>Rome</answer>", "Rome"], **given)
    abstention_reward("truthrl", tags=False)(completions=["Rome", ""], **given)
    assert not caplog.records
    for _ in range(2):
        abstention_reward("truthrl")(completions=["Rome", "Paris"], **given)
    (record,) = caplog.records
    assert "none of 2 completions" in record.getMessage() and "AbstentionReward(tags=False)" in record.getMessage()


def test_a_stated_confidence_is_no_part_of_the_answer():
    inside = [
        "<answer>Paris <confidence>.8</confidence></answer>",
        "<answer>I don't know</answer><confidence>0</confidence>",
    ]
    given = {"prompts": [""] * 2, "answer": ["Paris"] * 2}
    assert abstention_reward("truthrl")(completions=inside, **given) == [1, 0]
    messages = [[{"role": "assistant", "content": text}] for text in inside]
    assert abstention_reward("truthrl")(completions=messages, **given) == [1, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give a preset, a threshold, or all of"),
        ({"preset": "truthrl", "threshold": 0.5}, "give a preset"),
        ({"correct": 1, "wrong": -1}, "give a preset"),
        ({"preset": "rlvr"}, "unknown preset 'rlvr'"),
        ({"correct": 1, "abstained": 2, "wrong": -1}, "abstained=2.*from wrong to correct"),
        ({"correct": math.nan, "abstained": 0, "wrong": -1}, "correct=nan.*finite"),
        ({"threshold": 2}, "threshold=2 must be a probability"),
    ],
)
def test_refused_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        abstention_reward(**arguments)
    with pytest.raises(DataError, match="unknown abstention rule 'polite'"):
        abstention_reward("truthrl", abstains="polite")


class Gone:
    def chat(self, requests):
        error = ServerError("gone")
        error.answers = [None] * len(requests)
        raise error


def test_a_judge_grades_and_what_is_no_verdict_is_unknown():
    def grade(prompt, body):
        answer = prompt.split("[BEGIN ANSWER")[1].split("[END ANSWER")[0]
        assert "confidence" not in answer and "x" not in answer.split("\n")[1:-1]
        return "CORRECT" if "Paris" in answer else "NOT_ATTEMPTED" if "sure" in answer else "it is INCORRECT, I think"

    with FakeServer(grade) as server:
        reward = abstention_reward("truthrl", outcome=GradedOutcome(ChatClient(server.url, "fake")))
        found = reward(**ASKED, question=["Where?"] * 6)
    assert found == [1, 0, None, -1, None, 0]  # an empty answer is wrong without asking
    reward.outcome.client = Gone()
    assert [reward(**ASKED, question=["Where?"] * 6) for _ in range(2)] == [[None, None, None, -1, None, None]] * 2
    with pytest.raises(JudgingError, match="3 batches in a row"):
        reward(**ASKED, question=["Where?"] * 6)
    with pytest.raises(DataError, match="grading needs the columns 'answer' and 'question'"):
        reward(**ASKED)


def train(model, folder, outcomes, **settings):
    config = {**SETTINGS, "max_steps": 1, "credit": "none", "factuality_reward_weight": 0.0, **settings}
    reward = abstention_reward("truthrl", outcome=lambda completions, **columns: outcomes[: len(completions)])
    args = FactGRPOConfig(str(folder), **config)
    trainer = FactGRPO(model=model, reward_funcs=reward, args=args, verifier=None, train_dataset=rows())
    trainer.train()
    return trainer


def test_groups_that_teach_nothing(tiny_model, tmp_path):
    """The groups of a batch of 8: all decline, nothing is known. Then one that does teach, with an unknown answer."""
    nothing = train(tiny_model, tmp_path, ["refused"] * 4 + [None] * 4)
    assert not any(bool(advantages.any()) for advantages in nothing.advantages)
    assert all(bool(torch.isfinite(loss)) for loss in nothing.losses)
    some = train(tiny_model, tmp_path, ["correct", "refused", "wrong", None] + ["refused"] * 4)
    found = sorted(float(one) for advantages in some.advantages for one in advantages.flatten().unique())
    scale = 1 / (1 + 1e-4)  # of 1, 0 and -1 the standard deviation is 1; the unknown one has advantage 0
    assert found[0] == pytest.approx(-scale) and found[-1] == pytest.approx(scale) and set(found[1:-1]) == {0.0}


def test_names_in_reward_funcs():
    found = named_rewards(["truthrl", "target-0.25", "binary", "rlcr", "dcpo", "rlcr_released"])
    assert [one.__name__ for one in found] == [
        "truthrl",
        "target-0.25",
        "binary",
        "rlcr",
        "correct",
        "calibration",
        "rlcr",
    ]
    assert found[1].threshold == 0.25
    with pytest.raises(ValueError, match="did you mean 'truthrl'"):
        named_rewards("truth_rl")
    with pytest.raises(ValueError, match="threshold|unknown preset"):
        named_rewards("target-7")
    with pytest.raises(ValueError, match="'lovec' reads what a verifier found"):
        named_rewards("lovec")

"""Rewards of steps: one number or paid where steps end, in stock GRPO, FactGRPO and PPO."""

import pytest
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    Label,
    LabeledSpan,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.errors import SpanError
from hf_factuality.rewards import ProcessReward
from hf_factuality.spans import Verification
from hf_factuality.verifiers import StepExtractor
from tests.tiny import rows
from tests.trainers.recording import QUIET


class Steps:
    """Scores a step by its last character, a digit: 7 is .7; `?` is unknown."""

    requires_evidence = False

    def __init__(self):
        self.seen = []

    def verify(self, inputs):
        self.seen += inputs
        return [Verification(tuple(map(self.judged, spans, [i.completion] * len(spans))))
                for i, spans in zip(inputs, StepExtractor().extract(inputs), strict=True)]  # fmt: skip

    def judged(self, span, text):
        last = span.text(text)[-1]
        score = None if last == "?" else int(last) / 10 if last.isdigit() else 0.5
        label = None if score is None else Label.SUPPORTED if score >= 0.5 else Label.CONTRADICTED
        return LabeledSpan(span.start, span.end, label, score)


TEXTS = ["a9\n\nb5\nc8", "a9\nb?", "\n", "<think>x1</think>a2"]
ASKED = {"prompts": [[{"role": "user", "content": "How many?"}]] * 4}


@pytest.mark.parametrize(("how", "wanted"), [("min", 0.5), ("product", 0.36), ("last", 0.8), ("mean", 2.2 / 3)])
def test_one_number(how, wanted):
    verifier = Steps()
    found = ProcessReward(verifier, how, scope="answer")(
        [[{"role": "assistant", "content": text}] for text in TEXTS], **ASKED
    )
    assert found == [pytest.approx(wanted), None, 0.0, 0.2], "reasoning is left out"
    assert {item.question for item in verifier.seen} == {"How many?"}
    assert ProcessReward(Steps(), how)(TEXTS, completion_texts=TEXTS, question=list("abcd"), **ASKED)[0] == found[0]


def test_paid_where_steps_end():
    assert ProcessReward(Steps(), at="steps", scope="answer")(TEXTS, **ASKED) == [
        [(0, 2, 0.9), (4, 6, 0.5), (7, 9, 0.8)], None, [], [(17, 19, 0.2)],
    ]  # fmt: skip
    assert ProcessReward(Steps(), at="gains")(TEXTS, **ASKED)[0] == [
        (0, 2, 0.9), (4, 6, pytest.approx(-0.4)), (7, 9, pytest.approx(0.3)),
    ]  # fmt: skip
    for wrong, error in (({"how": "max"}, ValueError), ({"at": "tokens"}, ValueError), ({"scope": "x"}, SpanError)):
        with pytest.raises(error, match="unknown|must be"):
            ProcessReward(Steps(), **wrong)


@pytest.mark.slow
def test_in_each_trainer(tiny_model, tmp_path):
    few = {**QUIET, "max_steps": 1, "per_device_train_batch_size": 4, "max_completion_length": 24}
    group = {**few, "num_generations": 4, "temperature": 1.0}
    reward, at_steps = ProcessReward(Steps()), ProcessReward(Steps(), at="gains")
    trainers = [
        GRPOTrainer(tiny_model, reward, GRPOConfig(str(tmp_path), **group), rows()),
        # The labels of the steps shape the advantages.
        FactGRPOTrainer(tiny_model, reward, FactGRPOConfig(str(tmp_path), **group), rows(), verifier=Steps()),
        TokenRewardPPOTrainer(tiny_model, at_steps, None, TokenRewardPPOConfig(str(tmp_path), **few), rows()),
    ]
    for trainer in trainers:
        trainer.train()
        (logged,) = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert 0 <= logged["rewards/process/mean"] <= 1

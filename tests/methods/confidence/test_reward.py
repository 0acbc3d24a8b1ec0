"""Rewards of the confidence that answers state, by hand."""

import math

import pytest

from hf_factuality.rewards import DCPORewards, LoVeCReward, RLCRReward
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers import SentenceExtractor
from hf_factuality.verifiers.base import Judgement, VerifierInput
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


def asked(*texts):
    return {"prompts": [""] * len(texts), "completions": list(texts), "answer": ["Paris"] * len(texts)}


def test_rlcr():
    texts = [
        "<answer>Paris</answer><confidence>80%</confidence>",
        "<answer>Rome <confidence>0.8</confidence></answer>",
        "<answer>Paris</answer>",
        "<think><answer>Paris</answer><confidence>1</confidence></think><answer>Rome</answer><confidence>0</confidence>",
        "<answer>Paris</answer><confidence>1</confidence><confidence>1</confidence>",
    ]
    assert RLCRReward()(**asked(*texts)) == pytest.approx([0.96, -0.64, 0, 0, 0])
    # .5 for a number, .5 for being right, .5 for 1 less the squared error
    assert RLCRReward(released=True)(**asked(*texts)) == pytest.approx([1.48, 0.68, 0.5, 1.0, 0.5])
    assert RLCRReward()(**{**asked(*texts), "answer": [None] * 5}) == [None] * 5
    opened = {**asked("<confidence>1</confidence>"), "prompts": ["Where? <think>"]}
    assert RLCRReward()(**opened) == [-1]  # it never ends its reasoning
    figures = {}
    RLCRReward()(**asked(*texts), log_metric=figures.__setitem__)
    assert figures["confidence/stated"] == 0.6 and figures["confidence/mean"] == pytest.approx(1.6 / 3)


class Judge:
    """False where a sentence says so, unknown where it says nothing of the kind."""

    def judge(self, inputs):
        assert not any("confidence" in item.claim + item.completion for item in inputs)
        named = {"true": Label.SUPPORTED, "false": Label.CONTRADICTED, "well": Label.NO_FACT}
        return [
            Judgement(next((label for word, label in named.items() if word in item.claim), None)) for item in inputs
        ]


def verified(text):
    (judged,) = judge_rows(
        VerifierPipeline(SentenceExtractor(), Judge()),
        [VerificationRequest(VerifierInput(text, None, ("e",)), "answer")],
    )
    return judged[0].verification


@pytest.mark.parametrize("lead", ["", "  \n", "<think>It is true. <confidence>0</confidence></think> "])
def test_lovec_of_any_verifier(lead):
    text = (
        lead
        + "This is true. <confidence>9</confidence> This is false. So is true.<confidence> 6 </confidence> Who knows."
        " <confidence>10</confidence> Oh well. <confidence>0</confidence> It is true. <confidence>high</confidence>"
    )
    bound = -math.log(0.001)
    each = [1 + math.log(0.9) / bound, 1 + math.log(0.4) / bound, 0]  # unknown and fact-free ones are left out
    columns = {"completions": [text], "verifications": [verified(text)], "completion_texts": [text]}
    assert LoVeCReward(power=1)(**columns) == [pytest.approx(sum(each) / 3)]
    more = LoVeCReward(lambda **columns: [0.25], lambda **columns: [0.5], weight=0.5, power=1)
    assert more(**columns) == [pytest.approx(sum(each) / 6 + 0.75)]
    assert LoVeCReward(lambda **columns: [None])(**columns) == [None]
    assert LoVeCReward()(**{**columns, "verifications": [Verification(error="down")]}) == [None]


def test_one_number_for_claims_of_which_one_is_false():
    text = "He was born in Rome in 1901. <confidence>10</confidence>"
    claims = (LabeledSpan(0, 27, Label.SUPPORTED), LabeledSpan(0, 27, Label.UNVERIFIABLE), LabeledSpan(0, 27))
    found = Verification(claims[:1], claims)
    reward = LoVeCReward(power=1)(completions=[text], verifications=[found], completion_texts=[text])
    assert reward == [pytest.approx(0, abs=1e-9)]


@pytest.mark.parametrize("value", [math.nan, math.inf, "1", None, -1])
def test_settings_that_are_no_numbers_are_refused(value):
    for make in (
        lambda: DCPORewards(mix=value), lambda: DCPORewards(power=value), lambda: LoVeCReward(weight=value),
        lambda: LoVeCReward(power=value),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"(mix|power|weight)={value!r} must be a finite number"):
            make()

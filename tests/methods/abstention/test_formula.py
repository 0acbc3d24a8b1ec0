"""Who declines, on texts that were labelled by hand, and at which probability declining pays."""

import json
import math
import time
from pathlib import Path

import pytest

from hf_factuality.methods.abstention.formula import (
    PRESETS,
    OutcomeRewards,
    abstention_threshold,
    preset_rewards,
    threshold_rewards,
)
from hf_factuality.reading.rules import ABSTENTION, abstains, is_refusal_sentence


CASES = json.loads((Path(__file__).parents[2] / "cases" / "declining.json").read_text(encoding="utf-8"))


def chinese(text):
    return any("\u4e00" <= character <= "\u9fff" for character in text)


@pytest.mark.parametrize(
    ("part", "in_chinese", "precision", "recall"),
    [("tuned", False, 1, 1), ("tuned", True, 1, 1), ("held_out", False, 1, 1), ("held_out", True, 1, 1)],
)  # fmt: skip
def test_precision_and_recall_on_labelled_texts(part, in_chinese, precision, recall):
    """Four false alarms on the texts that were held out (.83 and .91) were mended since; their declining ones were all found."""
    declining, answering = (
        [text for text in CASES[part][kind] if chinese(text) == in_chinese] for kind in ("declines", "answers")
    )
    assert min(len(declining), len(answering)) >= 20
    hits, alarms = sum(map(abstains, declining)), sum(map(abstains, answering))
    assert (hits / (hits + alarms), hits / len(declining)) == (precision, recall)


def test_reasoning_and_the_answer_s_tags_do_not_count():
    assert abstains("<think>It was Paris.</think><answer>I don't know</answer>")
    assert not abstains("<think>I don't know</think>") and not abstains("") and not abstains("...")
    assert not ABSTENTION["knowrl"]("I'm not sure.") and ABSTENTION["knowrl"]("I don’t know.")
    # RLFH's rule is on sentences that tell nothing, which an apology with a guess is not to ours.
    assert ABSTENTION["rlfh"]("I'm sorry, it is Rome.") and not abstains("I'm sorry, it is Rome.")


def test_refusal_sentences():
    """Among the statements, "apologized" holds the letters of "i apologize"."""
    cases = json.loads((Path(__file__).parents[2] / "cases" / "refusal_sentences.json").read_text(encoding="utf-8"))
    for kind, texts in cases.items():
        assert [text for text in texts if is_refusal_sentence(text) != (kind == "refusals")] == []


@pytest.mark.parametrize(
    "unit", ["作为", "based on ", "i'm so sorry, ", "i really ", "，", "我不知道", "there is no ", "i ("]
)
def test_no_text_takes_it_long(unit):
    start = time.perf_counter()
    abstains(unit * (50_000 // len(unit)))
    assert time.perf_counter() - start < 5


@pytest.mark.parametrize(("name", "threshold"), [("truthrl", 1 / 2), ("knowrl", 2 / 3), ("binary", 0.0)])
def test_thresholds_of_the_presets(name, threshold):
    assert abstention_threshold(*PRESETS[name]) == pytest.approx(threshold)


@pytest.mark.parametrize("t", [0, 0.25, 0.5, 0.75, 0.9, 1])
def test_declining_pays_below_the_threshold(t):
    rewards = threshold_rewards(t)
    assert abstention_threshold(*rewards) == pytest.approx(t) and max(map(abs, rewards)) <= 1
    for p in [n / 20 for n in range(21)]:
        answering = p * rewards.correct + (1 - p) * rewards.wrong
        assert math.isclose(answering, p - t, abs_tol=1e-9)  # against 0 for declining
        if t < 1:  # the published 1, 0, -t / (1 - t) differ by a positive factor
            assert math.isclose(answering, (1 - t) * (p - (1 - p) * t / (1 - t)), abs_tol=1e-9)
    assert preset_rewards(f"target-{t}") == rewards


@pytest.mark.parametrize(
    "given", [(1, 0, 1), (0, 0, 1), (1, 2, -1), (1, -2, -1), (math.nan, 0, -1), (math.inf, 0, -1), ("1", 0, -1)]
)
def test_rewards_without_a_threshold_are_refused(given):
    with pytest.raises(ValueError, match=r"correct=.*wrong=.*correct above wrong"):
        abstention_threshold(*given)


def test_names_and_outcomes_are_checked():
    for name in ("target-1.5", "target-", "target-nan", "target-５", "ternary", "target--1", "target-.5e0"):
        with pytest.raises(ValueError, match=r"unknown preset|must be a probability"):
            preset_rewards(name)
    for threshold in (-0.1, 1.1, math.nan, True, "0.5", None):
        with pytest.raises(ValueError, match=r"threshold=.*from 0"):
            threshold_rewards(threshold)
    rewards = OutcomeRewards(3, 2, 1)
    assert [rewards.of(it) for it in ("correct", "refused", "wrong", None)] == [3, 2, 1, None]
    with pytest.raises(ValueError, match="got 'right'"):
        rewards.of("right")

"""The number that an answer states, against attempts to fool the reader, and what it earns, by hand."""

import math

import pytest

from hf_factuality.methods.confidence.formula import dcpo_calibration, lovec, rlcr
from hf_factuality.reading.marks import confidence_spans, sentence_confidences, stated_confidence, without_confidence
from hf_factuality.spans import Label


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT


def tagged(number):
    return f"<answer>Paris</answer><confidence>{number}</confidence>"


@pytest.mark.parametrize(
    ("number", "value"),
    [("0.8", 0.8), (" .8\n", 0.8), ("1", 1), ("0", 0), ("1.0", 1), ("80%", 0.8), (" 70 % ", 0.7), ("0.5%", 0.005), ("100%", 1),
     ("0.3333333333333333", 1 / 3)],
)  # fmt: skip
def test_numbers(number, value):
    assert stated_confidence(tagged(number)) == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize(
    "number",
    ["", " ", "1.5", "2", "-0.5", "+0.5", "1e-3", "NaN", "inf", "９", "0.８", "٣", "101%", "-5%", "0,8", "0.8 0.9", "high", "0.8.", "1/2",
     "9" * 5000, "0." + "9" * 5000, "0.8%%", "<b>0.8</b>", "0x1", "1_0%", "0.8</answer>"],
)  # fmt: skip
def test_what_is_no_number(number):
    assert stated_confidence(tagged(number)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (tagged(0.2) + "<confidence>0.9</confidence>", None),
        (tagged(0.2) + "<confidence>", None),
        ("</confidence>" + tagged(0.2), None),
        ("<confidence><confidence>0.9</confidence></confidence>", None),
        ("<confidence>0.9", None),
        ("<confidence >0.9</confidence>", None),
        ("<confidence\n>0.9</confidence>", None),
        ("<CONFIDENCE>0.9</Confidence>", 0.9),
        ("<think>" + tagged(0.9) + "</think>Paris", None),
        ("<think>" + tagged(0.9) + "</think>" + tagged(0.4), 0.4),
        ("a" + tagged(0.9) + "</think>Paris", None),  # the prompt opened it
        ("<think>never closed " + "<confidence>0.9</confidence>", None),
        ("<answer>Paris <confidence>0.9</confidence></answer>", 0.9),
        ("<confidence><answer>0.9</answer></confidence>", None),
        ("", None),
    ],
)  # fmt: skip
def test_which_tags_count(text, value):
    assert stated_confidence(text) == value
    assert value is None or len(confidence_spans(text)) == 1


def test_a_prompt_may_have_opened_the_reasoning():
    assert stated_confidence("<confidence>0.9</confidence>", opened=True) is None
    assert stated_confidence("I see.</think><confidence>0.9</confidence>", opened=True) == 0.9


def test_the_number_is_no_part_of_the_answer():
    text = "<answer>Paris <confidence>80%</confidence></answer>"
    bare = without_confidence(text)
    assert len(bare) == len(text) and bare.split() == ["<answer>Paris", "</answer>"]
    assert without_confidence("a<confidence x>b</CONFIDENCE>c").split() == ["a", "b", "c"]
    start, end = confidence_spans(text)[0]
    assert text[start:end] == "<confidence>80%</confidence>"


def test_rlcr():
    assert rlcr(True, 0.8) == pytest.approx(0.96) and rlcr(False, 0.8) == pytest.approx(-0.64)
    assert rlcr(True, None) == 0 and rlcr(False, None) == -1
    assert rlcr(True, 0.8, (0.5, 0.25)) == pytest.approx(0.49)
    # Among all confidences the truthful one pays most, whatever the chance of being right; no number never does.
    for p in (0.0, 0.3, 0.7, 1.0):
        paid = {q: p * rlcr(True, q) + (1 - p) * rlcr(False, q) for q in [n / 10 for n in range(11)]}
        assert max(paid, key=paid.get) == p and min(paid.values()) >= p * rlcr(True, None) + (1 - p) * rlcr(
            False, None
        )


def test_dcpo():
    assert dcpo_calibration(0.9, True, 0.5, mix=0.5) == pytest.approx(-0.15)  # against .75
    assert dcpo_calibration(0.9, False, 0.5, mix=1.0) == pytest.approx(-0.4)
    assert dcpo_calibration(0.9, False, 0.5, mix=0.0, power=2) == pytest.approx(-0.81)
    assert dcpo_calibration(None, True, 1.0) == -1 <= dcpo_calibration(0.0, True, 1.0)


def test_lovec():
    bound = -math.log(0.001)
    expected = (1 + math.log(0.9) / bound + 1 + math.log(0.4) / bound) / 2
    assert lovec([S, C, None, N], [0.9, 0.6, 0.1, 1.0], power=1) == pytest.approx(expected)
    assert lovec([S, C], [0.9, 0.6]) == pytest.approx(expected**1.5)
    assert lovec([S, U], [1.0, 1.0], power=1) == pytest.approx((1 + math.log(0.999) / bound + 0) / 2)
    assert lovec([S], [None]) == 0 and lovec([None], [0.5]) is None and lovec([], []) == 0
    assert lovec([S], [None], extra=-0.25) == -0.125 and lovec([N], [None], extra=0.25) == 0.125
    # No number never pays: it earns what the worst number does.
    assert all(lovec([f], [c / 10]) >= lovec([f], [None]) for f in (S, C) for c in range(11))
    with pytest.raises(ValueError, match="argument 2"):
        lovec([S], [])


def test_sentences_before_their_numbers():
    text = "<think>X. <confidence>3</confidence></think>Ada was born. <confidence>9</confidence> She died. <confidence>high</confidence>Then"
    found = [(text[start:end].strip(), number) for start, end, number in sentence_confidences(text)]
    assert found == [("Ada was born.", 0.9), ("She died.", None), ("Then", None)]
    assert [c for *_, c in sentence_confidences("a <confidence>10</confidence> <confidence>5</confidence>")] == [1.0]
    assert [c for *_, c in sentence_confidences("a <confidence>11</confidence>b<confidence>0.5</confidence>")] == [
        None
    ] * 2

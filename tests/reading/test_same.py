"""What is said twice counts once."""

import pytest

from hf_factuality.functional import factual_precision
from hf_factuality.functional.scoring import f1_at_k
from hf_factuality.reading import distinct_units
from hf_factuality.spans import Label, LabeledSpan


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
HS, HC = Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED


def units_of(*statements):
    """Sentences of a text, each with its label."""
    text, units = "", []
    for sentence, label in statements:
        units.append(LabeledSpan(len(text), len(text) + len(sentence), label))
        text += sentence + " "
    return units, text


def test_one_true_sentence_32_times_is_one_fact():
    units, text = units_of(*[("Ada was born in Leeds.", S)] * 32)
    assert f1_at_k([unit.label for unit in units], 32).f1 == 1.0
    (kept,) = distinct_units(units, text)
    assert kept == units[0] and f1_at_k([kept.label], 32).recall == 1 / 32
    # 2 * 1 * 1/32 / (1 + 1/32)
    assert f1_at_k([kept.label], 32).f1 == pytest.approx(2 / 33)


def test_a_true_sentence_does_not_dilute_a_false_one():
    units, text = units_of(*[("Ada was born in Leeds.", S)] * 9, ("She died in Rome.", C))
    assert factual_precision(units) == 0.9 and factual_precision(distinct_units(units, text)) == 0.5


@pytest.mark.parametrize(
    ("labels", "least"),
    [
        ((S, C), C), ((S, U), U), ((U, C), C), ((HS, S), HS), ((HC, U), HC), ((None, S), S), ((S, None), S), ((None, None), None),
        ((N, S), S), ((S, N), S), ((N, None), N), ((N, N), N), ((S, S), S),
    ],
)  # fmt: skip
def test_the_least_favourable_label_that_is_known_counts(labels, least):
    units, text = units_of(*[("Ada won.", label) for label in labels])
    (kept,) = distinct_units(units, text)
    assert (kept.start, kept.end, kept.label) == (0, 8, least)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Ada won.", "ada won", True),
        ("The film won.", "film  won!!", True),
        ("**Ada won.**", "Ada won.", True),
        ("Ada won 1,000 dollars.", "Ada won 1000 dollars.", True),
        ("It is 1.2.", "It is 12.", False),
        ("Ada won.", "Ada lost.", False),
        ("Ada did not win.", "Ada did win.", False),
        ("阿达赢了。", "阿达赢了", True),
        ("It is -5.", "It is 5.", False),
        ("...", "...", False),
    ],
)
def test_the_same_words(one, other, same):
    units, text = units_of((one, S), (other, S))
    assert len(distinct_units(units, text)) == 2 - same


def test_claims_by_their_statements_and_bare_labels_by_nothing():
    units = [LabeledSpan(0, 9, S, claim="Ada won."), LabeledSpan(3, 9, C, claim="ada won"), LabeledSpan(0, 9, S)]
    assert [unit.label for unit in distinct_units(units, "Ada won !")] == [C, S]
    bare = [LabeledSpan(0, 9, S)] * 3
    assert len(distinct_units(bare, "Ada won !")) == len(distinct_units(bare, None)) == 3


def test_equal_labels_keep_the_lowest_score():
    units = [LabeledSpan(0, 3, S, 0.9, claim="Ada won"), LabeledSpan(4, 7, S, 0.6, claim="Ada won.")]
    (kept,) = distinct_units(units, "")
    assert (kept.start, kept.score) == (0, 0.6)

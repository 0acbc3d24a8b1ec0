"""Rewards of long answers: numbers by hand, bounds, and what one more claim does."""

import math
from itertools import product

import pytest

from hf_factuality.functional.scoring import f1_at_k
from hf_factuality.methods.klcf.formula import checklist_scores
from hf_factuality.methods.long_form import formula as long_form
from hf_factuality.spans import Label


S, HS, U, C, HC, N = (
    Label.SUPPORTED,
    Label.HEDGED_SUPPORTED,
    Label.UNVERIFIABLE,
    Label.CONTRADICTED,
    Label.HEDGED_CONTRADICTED,
    Label.NO_FACT,
)
ALL_LISTS = [labels for size in range(5) for labels in product([S, U, C, None], repeat=size)]


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([S, U, S], 1.0),
        ([S, C], 0.0),
        ([HC], 0.0),
        ([U], 1.0),
        ([N], 1.0),
        ([], 1.0),
        ([None], None),
        ([None, None], None),
        ([None, C], 0.0),  # the rest cannot make it right
        ([None, S], 1.0),
        ([None, N], None),  # what states no fact says nothing about what could not be judged
    ],
)
def test_binary_rar(labels, expected):
    assert long_form.binary_rar(labels) == expected


def test_silence_may_be_worth_less():
    assert long_form.binary_rar([], empty=0.0) == 0.0 and long_form.binary_rar([N], empty=0.0) == 0.0


@pytest.mark.parametrize(
    ("labels", "settings", "expected"),
    [
        ([S, S, S, C], {}, 3 / 5 + 0.1 * math.log(4)),
        ([S, HS, U, C], {"detail_weight": 0}, 2 / 5),
        ([S], {"relevance": 1.0, "relevance_weight": 0.5}, 1 / 2 + 0.1 * math.log(2) + 0.5),
        ([S, None], {}, 1 / 2 + 0.1 * math.log(2)),
        ([], {}, 0.0),
        ([None], {}, None),
        ([S], {"relevance": None}, None),
        ([S], {"relevance": None, "relevance_weight": 0}, 1 / 2 + 0.1 * math.log(2)),
    ],
)
def test_precision_detail_relevance(labels, settings, expected):
    assert long_form.precision_detail_relevance(labels, **settings) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("outcome", "labels", "paper", "released"),
    [
        ("correct", [S, S, C, U], 2.5, 2.0),
        ("refused", [S], 2.0, 1.0),
        ("wrong", [S, C], -0.5, -1 + 0.5 * math.exp(1 - 10 / 2)),
        ("wrong", [S] * 11, 0.0, 0.0),
        ("wrong", [], -1.0, -1.0),
        ("correct", [], 2.0, 2.0),
        ("wrong", [None], None, None),
        ("correct", [None], None, 2.0),
        (None, [S], None, None),
        ("wrong", [S, None], 0.0, -1 + math.exp(1 - 10 / 2)),  # a judge that fails makes no reasoning short
    ],
)
def test_knowrl(outcome, labels, paper, released):
    assert long_form.knowrl(outcome, labels) == pytest.approx(paper)
    assert long_form.knowrl(outcome, labels, released=True) == pytest.approx(released)


def test_an_unknown_outcome_is_named():
    with pytest.raises(ValueError, match="'right'"):
        long_form.knowrl("right", [])


def test_corver():
    counts = [None, 0, 1, 4, 5, 19, 20, 10**6]
    assert [long_form.corver(count) for count in counts] == [0, -0.3, -0.1, -0.1, 0, 0, 0.1, 0.1]
    with pytest.raises(ValueError, match="-1"):
        long_form.corver(-1)
    for count in (math.nan, math.inf, "20"):
        with pytest.raises(ValueError, match=f"count={count!r} must be a finite number"):
            long_form.corver(count)


@pytest.mark.parametrize(
    ("labels", "recall", "precision"),
    [
        ([S, S, C, U], 0.5, 2 / 3),
        ([U, U], 0.0, None),
        ([S, None], 1.0, 1.0),
        ([C], 0.0, 0.0),
        ([None], None, None),
        ([], None, None),
    ],
)
def test_checklist_scores(labels, recall, precision):
    assert checklist_scores(labels) == (recall, precision)


def detail(labels):
    return long_form.precision_detail_relevance(labels)


def f1(labels):
    return f1_at_k(labels, 3).f1


def recall(labels):
    return checklist_scores(labels).recall


def reasoned(labels):
    return long_form.knowrl("wrong", labels)


@pytest.mark.parametrize(
    ("formula", "least", "top"),
    [(long_form.binary_rar, 0, 1), (detail, 0, 1.2), (f1, 0, 1), (recall, 0, 1), (reasoned, -1, 0)],
)
def test_bounds_and_what_one_more_claim_does(formula, least, top):
    for labels in ALL_LISTS:
        value = formula(labels)
        if value is None:
            assert all(label is None for label in labels)
            continue
        assert least <= value <= top
        if formula is not recall:
            assert formula((*labels, S)) >= value
            assert formula((*labels, C)) <= value


def test_a_false_claim_pays_under_the_released_knowrl():
    """By its penalty of short texts, as the page says: `exp(1 - 10 / n)` grows faster than the share falls."""
    assert long_form.knowrl("wrong", [S, C], released=True) > long_form.knowrl("wrong", [S], released=True)


def test_recall_and_precision_grow_with_each_consistent_item_and_fall_with_each_contradicted_one():
    def won(labels):
        recall, precision = checklist_scores(labels)
        return recall + (precision or 0.0)

    for labels in ALL_LISTS[1:]:
        if None in labels:
            continue
        assert 0 <= won(labels) <= 2
        for i in [i for i, label in enumerate(labels) if label is U]:  # of items that were missing
            better, worse = ((*labels[:i], label, *labels[i + 1 :]) for label in (S, C))
            assert won(better) > won(labels) >= won(worse)


@pytest.mark.parametrize("formula", [long_form.binary_rar, detail, f1])
def test_shares_sum_up_to_what_the_claims_won(formula):
    for labels in ALL_LISTS:
        shares = long_form.claim_shares(formula, labels)
        judged = [label for label in labels if label is not None]
        expected = 0.0 if not judged else formula(judged) - formula([])
        assert sum(shares) == pytest.approx(expected)
        assert all(share == 0 for share, label in zip(shares, labels, strict=True) if label is None)


def test_shares_by_hand():
    assert long_form.claim_shares(long_form.binary_rar, [S, C, U, C]) == [0, -1, 0, 0]
    assert long_form.claim_shares(f1, [S, None, S, C]) == pytest.approx([0.5, 0, 0.3, 4 / 6 - 0.8])

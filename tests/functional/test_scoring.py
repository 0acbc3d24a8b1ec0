"""Scores of claims against hand arithmetic and slow loops."""

import math
import random

import pytest

from hf_factuality.functional import scoring
from hf_factuality.spans import Label, LabeledSpan


S, H, U, X, C, N = (
    Label.SUPPORTED,
    Label.HEDGED_SUPPORTED,
    Label.UNVERIFIABLE,
    Label.HEDGED_CONTRADICTED,
    Label.CONTRADICTED,
    Label.NO_FACT,
)


def spans(labels):
    return [LabeledSpan(0, 1, label) for label in labels]


@pytest.mark.parametrize(
    "labels, expected",
    [([S, U, C, None], 0.0), ([S, S, U, None], 2 / 3), ([], 0.0), ([None], None), ([H, X, X], -1 / 3)],
)
def test_mean_factuality(labels, expected):
    assert scoring.mean_factuality(spans(labels)) == (None if expected is None else pytest.approx(expected))


@pytest.mark.parametrize(
    "labels, precision, decided",
    [
        ([S, H, C, U, N], 2 / 4, 2 / 3),
        ([S, U, U, U, U, U], 1 / 6, 1.0),
        ([U, N, None], 0.0, None),
        ([X, S, None], 1 / 2, 1 / 2),
        ([N, None], None, None),
        ([], None, None),
    ],
)
def test_precision_is_of_all_judged_claims_and_decided_precision_of_the_decided_ones(labels, precision, decided):
    found = scoring.factual_precision(spans(labels)), scoring.decided_precision(spans(labels))
    assert found == tuple(None if value is None else pytest.approx(value) for value in (precision, decided))


def test_counts():
    counts = scoring.count_claims([S, H, U, X, C, N, None, None])
    assert tuple(counts) == (2, 5, 2) and counts.stated == 7 and counts.precision == 0.4
    assert scoring.count_claims([N]).precision is None and scoring.count_claims([]).stated == 0
    assert tuple(scoring.count_sentences([S, H, U, X, C, N, None])) == (3, 6, 1)


def test_mean():
    assert scoring.mean([1, None, 0]) == 0.5 and scoring.mean([None]) is None and scoring.mean([]) is None


def slow_factscore(responses, gamma):
    """The definition, word by word."""
    scores = []
    for labels in responses:
        if labels is None:
            continue
        supported = judged = stated = 0
        for label in labels:
            if label == N:
                continue
            stated += 1
            if label is not None:
                judged += 1
                if label in (S, H):
                    supported += 1
        if judged > 0:
            score = supported / judged
            if stated <= gamma:
                score *= math.e ** (1 - gamma / stated)
            scores.append(score)
    return sum(scores) / len(scores) if scores else None


def slow_f1(labels, k):
    supported = sum(1 for label in labels if label == S or label == H)
    other = sum(1 for label in labels if label == C or label == X or label == U)
    if supported == 0:
        return 0.0
    precision, recall = supported / (supported + other), min(1, supported / k)
    return 2 / (1 / precision + 1 / recall)


def test_against_slow_loops():
    generator = random.Random(0)
    for _ in range(200):
        responses = [
            None if generator.random() < 0.1 else generator.choices([S, H, U, X, C, N, None], k=generator.randrange(8))
            for _ in range(generator.randrange(6))
        ]
        gamma = generator.choice([0, 1, 3, 10])
        expected = slow_factscore(responses, gamma)
        found = scoring.factscore_scores(responses, gamma)
        assert found["score"] == (None if expected is None else pytest.approx(expected))
        left = found["abstained"] + found["no_facts"] + found["unjudged"]
        assert left + sum(score is not None for score in found["scores"]) == len(responses)
        k = generator.choice([1, 2, 5])
        known = [r for r in responses if r is not None and not (None in r and set(r) <= {None, N})]
        expected = sum(slow_f1(r, k) for r in known) / len(known) if known else None
        found = scoring.mean_f1_at_k(responses, [k] * len(responses))
        assert found["score"] == (None if expected is None else pytest.approx(expected))


def test_what_a_border_refuses():
    with pytest.raises(ValueError, match="k=-1 must be .*above 0"):
        scoring.mean_f1_at_k([[S], [S]], [None, -1])
    for k in ("32", float("nan"), float("inf"), [1]):
        for refuses in (scoring.f1_at_k, scoring.longwiki_scores):
            with pytest.raises(ValueError, match="k=.* must be a finite number"):
                refuses([S] if refuses is scoring.f1_at_k else [[S]], k)
        with pytest.raises(ValueError, match="k must give a number above 0"):
            scoring.veriscore_scores([[S]], ["a"], {"a": k})
    with pytest.raises(ValueError, match="length_penalty needs"):
        scoring.length_penalty(3, -1)

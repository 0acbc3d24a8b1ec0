"""Hand arithmetic, slow loops over all pairs, and a search on a grid."""

import itertools
import math
import random

import pytest

from hf_factuality.functional.calibration import (
    Bin,
    auroc,
    brier_score,
    expected_calibration_error,
    fit_temperature,
    reliability_bins,
    risk_coverage,
    sigmoid,
)


def drawn(n, seed, digits=1):
    rng = random.Random(seed)
    return [round(rng.random(), digits) for _ in range(n)], [rng.random() < 0.6 for _ in range(n)]


@pytest.mark.parametrize("seed", range(5))
def test_auroc_counts_pairs(seed):
    scores, labels = drawn(60, seed)  # eleven values: many ties
    true = [s for s, y in zip(scores, labels, strict=True) if y]
    false = [s for s, y in zip(scores, labels, strict=True) if not y]
    wins = sum((t > f) + (t == f) / 2 for t in true for f in false)
    assert auroc(scores, labels) == pytest.approx(wins / (len(true) * len(false)), abs=1e-12)


def test_auroc_by_hand():
    assert auroc([0.1, 0.4, 0.35, 0.8], [False, False, True, True]) == 0.75  # of the documentation of scikit-learn
    assert auroc([-3.0, 2.0], [True, False]) == 0.0 and auroc([1, 1], [True, False]) == 0.5
    assert auroc([0.3], [True]) is None and auroc([], []) is None
    with pytest.raises(ValueError, match="NaN"):
        auroc([math.nan, 0.2], [True, False])
    with pytest.raises(ValueError, match="shorter|longer"):
        auroc([0.2], [True, False])


def test_bins_by_hand():
    probabilities, labels = [0.05, 0.1, 0.19, 0.95, 1.0], [False, True, False, True, True]
    found = reliability_bins(probabilities, labels)
    assert [found[0], found[2]] == [Bin(1, 0.05, 0.0), Bin(2, 0.975, 1.0)]  # .1 is in the second bin, 1 in the last
    assert found[1].count == 2 and found[1].confidence == pytest.approx(0.145) and found[1].accuracy == 0.5
    # (1 * .05 + 2 * .355 + 2 * .025) / 5
    assert expected_calibration_error(probabilities, labels) == pytest.approx(0.162)
    assert brier_score(probabilities, labels) == pytest.approx((0.0025 + 0.81 + 0.0361 + 0.0025) / 5)
    masses = reliability_bins(probabilities, labels, 2, "mass")
    assert [bin.count for bin in masses] == [3, 2]
    # (3 * |1/3 - .34/3| + 2 * |1 - .975|) / 5
    assert expected_calibration_error(probabilities, labels, 2, "mass") == pytest.approx(0.142)


@pytest.mark.parametrize("bins", [1, 7, 15])
def test_error_of_calibration_counts_claims(bins):
    probabilities, labels = drawn(200, bins, digits=6)
    total = 0.0
    for k in range(bins):
        own = [(p, y) for p, y in zip(probabilities, labels, strict=True) if k / bins <= p < (k + 1) / bins]
        total += abs(sum(y - p for p, y in own))
    assert expected_calibration_error(probabilities, labels, bins) == pytest.approx(total / 200, abs=1e-12)
    many = reliability_bins(probabilities, labels, bins, "mass")
    assert sum(bin.count for bin in many) == 200 and max(many).count - min(many).count <= 1


def test_nothing_to_bin_and_what_is_refused():
    assert (
        reliability_bins([], []) == [] and expected_calibration_error([], []) is None and brier_score([], []) is None
    )
    for wrong in ({"bins": 0}, {"binning": "height"}):
        with pytest.raises(ValueError, match="bins=.*binning="):
            reliability_bins([0.5], [True], **wrong)
    for value in (1.2, -0.1, math.nan):
        with pytest.raises(ValueError, match=r"\[0, 1\]"):
            brier_score([value], [True])


def log_loss(log_odds, labels, temperature):
    return sum(
        math.log1p(math.exp(-abs(z / temperature))) + max(-z / temperature if y else z / temperature, 0)
        for z, y in zip(log_odds, labels, strict=True)
    )


@pytest.mark.parametrize("true_temperature", [0.2, 1.0, 3.0])
def test_the_temperature_has_the_least_loss(true_temperature):
    rng = random.Random(3)
    log_odds = [rng.gauss(0.5, 2) for _ in range(4000)]
    labels = [rng.random() < sigmoid(z / true_temperature) for z in log_odds]
    found = fit_temperature(log_odds, labels)
    assert found == pytest.approx(true_temperature, rel=0.1)
    for factor in (0.99, 1.01):
        assert log_loss(log_odds, labels, found) < log_loss(log_odds, labels, found * factor)


def test_the_temperature_has_bounds():
    assert fit_temperature([2.0, 1.0, -1.0], [True, True, False]) == pytest.approx(0.01)  # separable
    assert fit_temperature([2.0, 1.0, -1.0], [False, False, True]) == pytest.approx(100)  # the wrong way round
    assert fit_temperature([1e308, -1e308, 1e308], [True, False, False]) <= 100
    # The derivative is 0 where sigmoid(x) = 3/4, x = ln 3: of four claims with the same log-odds, three are true.
    assert fit_temperature([2.0] * 4, [True, True, True, False]) == pytest.approx(2 / math.log(3))
    for log_odds, labels in (([1.0, 2.0], [True, True]), ([math.inf, 1.0], [True, False]), ([], [])):
        with pytest.raises(ValueError, match="finite log-odds of claims that are true and of claims that are false"):
            fit_temperature(log_odds, labels)


def test_equal_mass_does_not_depend_on_the_order_of_ties():
    # One stated confidence for all: one bin, |1/2 - .9|. Cut by rank it would be 0.5 * .1 + 0.5 * .9, or .4, by the order.
    for labels in ([True, True, False, False], [False, True, False, True]):
        assert expected_calibration_error([0.9] * 4, labels, 2, "mass") == pytest.approx(0.4)
    assert [bin.count for bin in reliability_bins([0.1, 0.5, 0.5, 0.5], [True] * 4, 2, "mass")] == [4]
    assert [bin.count for bin in reliability_bins([0.1, 0.2, 0.5, 0.5], [True] * 4, 2, "mass")] == [2, 2]


def test_risk_over_coverage_by_hand():
    # Right, wrong, right, wrong: 0/1, 1/2, 1/3, 2/4.
    found = risk_coverage([0.7, 0.9, 0.6, 0.8], [True, True, False, False])
    assert found == [(0.25, 0.0), (0.5, 0.5), (0.75, 1 / 3), (1.0, 0.5)]
    assert risk_coverage([-3.0], [True]) == [(1.0, 0.0)] and risk_coverage([], []) == []
    with pytest.raises(ValueError, match="NaN"):
        risk_coverage([math.nan], [True])


@pytest.mark.parametrize("seed", range(3))
def test_risk_over_coverage_is_the_mean_over_all_orders_of_ties(seed):
    scores, labels = drawn(7, seed, digits=1)
    scores = [min(score, 0.6) for score in scores]  # ties
    ranked = [
        order
        for order in itertools.permutations(range(7))
        if all(scores[a] >= scores[b] for a, b in itertools.pairwise(order))
    ]
    assert len(ranked) > 1
    risks = [[sum(not labels[i] for i in order[:k]) / k for k in range(1, 8)] for order in ranked]
    expected = [sum(column) / len(ranked) for column in zip(*risks, strict=True)]
    assert [risk for _, risk in risk_coverage(scores, labels)] == pytest.approx(expected, abs=1e-12)


def test_labels_may_be_shares():
    """A step's share of right rollouts: ranked by the side of .5 that it is on, calibrated to the share itself."""
    scores, labels = [0.9, 0.6, 0.2, 0.4], [0.75, 0.3, 0.5, 0.0]
    assert auroc(scores, labels) == 0.5, "true are .9 and .2: of four pairs two are in order"
    assert brier_score(scores, labels) == pytest.approx((0.15**2 + 0.3**2 + 0.3**2 + 0.4**2) / 4)
    assert expected_calibration_error(scores, labels) == pytest.approx((0.15 + 0.3 + 0.3 + 0.4) / 4)
    rng = random.Random(0)
    odds = [rng.gauss(0, 2) for _ in range(300)]
    shares = [1 / (1 + math.exp(-z / 2.5)) for z in odds]
    assert fit_temperature(odds, shares) == pytest.approx(2.5, rel=1e-6), "that of the shares"
    with pytest.raises(ValueError, match="claims that are true"):
        fit_temperature([1.0, 2.0], [0.0, 0.0])

"""Scores of choices, votes and probabilities, and intervals, against other generators, slow loops and arithmetic."""

import math
import random
from fractions import Fraction
from statistics import NormalDist

import pytest
import torch

from hf_factuality.functional import metrics


def test_seeded_choices_are_those_of_splitmix64():
    """The outputs for seed 1234567 that the generator's reference implementation prints, by their top bit."""
    reference = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert metrics.seeded_choices(5, 1234567) == [value >= 2**63 for value in reference]
    assert metrics.seeded_choices(3, 1234567) == metrics.seeded_choices(5, 1234567)[:3]
    assert metrics.seeded_choices(0) == [] and metrics.seeded_choices(50, 1) != metrics.seeded_choices(50, 2)
    share = sum(metrics.seeded_choices(10_000, 5)) / 10_000
    assert abs(share - 0.5) < 4 * 0.005  # four standard deviations


@pytest.mark.parametrize(
    "votes, expected",
    [
        ([True] * 3 + [False] * 2, True),
        ([True] * 2 + [False] * 3, False),
        ([True] * 3 + [None] * 2, True),
        ([True, False, None, None, None], None),
        ([True, False], None),
        ([None], None),
        ([], None),
    ],
)
def test_majority(votes, expected):
    assert metrics.majority(votes) is expected


def test_multiple_choice_against_plain_probabilities():
    """Exact fractions as probabilities."""
    generator = random.Random(1)
    for _ in range(100):
        weights = [Fraction(generator.randrange(1, 50)) for _ in range(generator.randrange(2, 7))]
        correct = [True, False] + [generator.random() < 0.5 for _ in weights[2:]]
        total = sum(weights)
        likelihoods = [math.log(weight / total) for weight in weights]
        expected = sum(weight for weight, good in zip(weights, correct, strict=True) if good) / total
        assert metrics.mc2(likelihoods, correct) == pytest.approx(float(expected))
        one = [position == 1 for position in range(len(weights))]
        expected = all(weights[1] > weight for position, weight in enumerate(weights) if position != 1)
        assert metrics.mc1(likelihoods, one) == float(expected)


@pytest.mark.parametrize(
    "likelihoods, correct, one, two",
    [
        ([-math.inf, -1.0], [True, False], 0.0, 0.0),
        ([-1.0, -math.inf], [True, False], 1.0, 1.0),
        ([-math.inf, -math.inf], [True, False], None, None),
        ([math.nan, -1.0], [True, False], None, None),
        ([math.inf, -1.0], [True, False], None, None),
        ([None, -1.0], [True, False], None, None),
        ([-1.0, -1.0, -1.0], [True, True, False], None, 2 / 3),
        ([-1.0], [True], None, None),
        ([-1.0], [False], None, None),
        ([], [], None, None),
        ([-5000.0, -5000.0], [True, False], 0.0, 0.5),
    ],
)
def test_multiple_choice_at_its_edges(likelihoods, correct, one, two):
    assert metrics.mc1(likelihoods, correct) == one
    assert metrics.mc2(likelihoods, correct) == (None if two is None else pytest.approx(two))


@pytest.mark.parametrize("values", [[0.5, -1.0], [-1.0, 3], ["-1", -2.0]])  # a probability, a negative one, a text
def test_what_is_no_log_likelihood_is_refused(values):
    for score in (metrics.mc1, metrics.mc2):
        with pytest.raises(ValueError, match="is no log-likelihood"):
            score(values, [True, False])


def slow_average_precision(confidences, correct):
    """Sum over every threshold of the step in recall times precision."""
    area, recall_before = Fraction(0), Fraction(0)
    for threshold in sorted(set(confidences), reverse=True):
        kept = [good for value, good in zip(confidences, correct, strict=True) if value >= threshold]
        recall = Fraction(sum(kept), sum(correct))
        area += (recall - recall_before) * Fraction(sum(kept), len(kept))
        recall_before = recall
    return float(area)


def test_average_precision():
    generator = random.Random(2)
    for _ in range(200):
        n = generator.randrange(1, 12)
        confidences = [generator.randrange(6) / 5 for _ in range(n)]
        correct = [generator.random() < 0.5 for _ in range(n)]
        expected = pytest.approx(slow_average_precision(confidences, correct)) if any(correct) else None
        assert metrics.average_precision(confidences, correct) == expected
    with pytest.raises(ValueError):
        metrics.average_precision([0.1], [True, False])


def test_win_rate_refuses_other_verdicts():
    with pytest.raises(ValueError, match="'C'"):
        metrics.win_rate([("C", "A")])


class TestBootstrap:
    def test_near_the_normal_interval(self):
        """Mean of 400 coin tosses: the interval is close to the textbook's p +- 1.96 sqrt(p (1 - p) / n)."""
        values = [1.0] * 100 + [0.0] * 300
        low, high = metrics.bootstrap_interval(values, resamples=4000)
        half = NormalDist().inv_cdf(0.975) * math.sqrt(0.25 * 0.75 / 400)
        assert low == pytest.approx(0.25 - half, abs=0.006) and high == pytest.approx(0.25 + half, abs=0.006)

    def test_the_seed_decides_and_the_global_generator_is_left_alone(self):
        values = [0.1, 0.5, 0.9, 0.3]
        state = torch.get_rng_state()
        assert metrics.bootstrap_interval(values, seed=1) == metrics.bootstrap_interval(values, seed=1)
        assert metrics.bootstrap_interval(values * 9, seed=1) != metrics.bootstrap_interval(values * 9, seed=2)
        assert torch.equal(torch.get_rng_state(), state)

    def test_where_there_is_none(self):
        assert metrics.bootstrap_interval([]) is None and metrics.bootstrap_interval([1.0]) is None
        assert metrics.bootstrap_interval([1.0, 2.0], resamples=0) is None
        assert metrics.bootstrap_interval([1.0, 2.0], lambda drawn: None) is None
        assert metrics.bootstrap_interval([1.0, 1.0, 1.0]) == (1.0, 1.0)

    def test_resamples_without_a_value_are_left_out(self):
        found = metrics.bootstrap_interval([0.0, 1.0], lambda drawn: 1.0 if sum(drawn) == 2 else None)
        assert found == (1.0, 1.0)

    @pytest.mark.parametrize("settings", [{"level": 0}, {"level": 1}, {"resamples": -1}])
    def test_bad_settings(self, settings):
        with pytest.raises(ValueError, match="0 < level < 1"):
            metrics.bootstrap_interval([0.0, 1.0], **settings)

    def test_chunks_do_not_show(self):
        """Many values are drawn a few rows at a time; the rows are those of one large draw."""
        values = torch.rand(300_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()
        low, high = metrics.bootstrap_interval(values, resamples=15)
        draw = torch.randint(300_000, (15, 300_000), generator=torch.Generator().manual_seed(0))
        means = torch.tensor(values, dtype=torch.float64)[draw].mean(dim=1)
        assert low == pytest.approx(torch.quantile(means, 0.025).item())
        assert high == pytest.approx(torch.quantile(means, 0.975).item())


def test_intervals_of_sums_are_those_of_the_rows_one_by_one():
    rng = random.Random(3)
    rows = [[rng.randrange(5), rng.randrange(5), 1] for _ in range(30)]

    def ratio(sums):
        return sums[0] / sums[1] if sums[1] else None

    slow = metrics.bootstrap_interval(rows, lambda drawn: ratio([sum(column) for column in zip(*drawn, strict=True)]))
    assert metrics.bootstrap_interval(rows, ratio, summed=True) == pytest.approx(slow, abs=1e-12)

"""The guarantee of kept claims: by hand, and in simulated draws whose true risks are known."""

import math
import random
from bisect import bisect_left
from fractions import Fraction
from itertools import accumulate

import pytest

from hf_factuality.functional.risk_control import binomial_tail, controlled_threshold, labels_needed
from tests.conftest import fast_few


@pytest.mark.parametrize(("count", "n", "p"), [(0, 22, 0.1), (3, 40, 0.05), (7, 9, 0.5), (12, 200, 0.1), (9, 9, 0.2)])
def test_binomial_tail_is_the_exact_sum(count, n, p):
    q = Fraction(p)
    exact = sum(math.comb(n, i) * q**i * (1 - q) ** (n - i) for i in range(count + 1))
    assert binomial_tail(count, n, p) == pytest.approx(float(exact), rel=1e-9)


def test_thresholds_by_hand():
    assert [labels_needed(level) for level in (0.8, 0.9, 0.95)] == [11, 22, 45]  # .9^22 = .098, .9^21 = .109
    scores = [1 - n / 100 for n in range(50)]
    assert controlled_threshold(scores[:21], [True] * 21, 0.9) is None
    assert controlled_threshold(scores[:22], [True] * 22, 0.9) == (-1.0, 22, 0)
    # One wrong among the best 22: that first test fails and nothing is kept, although one of 38 would pass.
    right = [n != 10 for n in range(50)]
    assert binomial_tail(1, 37, 0.1) > 0.1 > binomial_tail(1, 38, 0.1)
    assert controlled_threshold(scores, right, 0.9) is None
    # Wrong ones behind the 30th: it stops where their test fails.
    right = [n < 30 for n in range(50)]
    found = controlled_threshold(scores, right, 0.9)
    assert (found.kept, found.wrong) == (30, 0) and found.threshold == scores[30]
    # Ties are kept together or not at all, and a claim without a score never.
    found = controlled_threshold([0.9] * 30 + [0.5] * 10 + [None] * 10, [True] * 30 + [False] * 20, 0.9)
    assert found == (0.5, 30, 0)
    with pytest.raises(ValueError, match="between 0 and 1"):
        controlled_threshold(scores, right, 1.0)


class World:
    """Claims of a judge that knows something: their scores are continuous, a part is never called supported, 40 % are wrong."""

    def __init__(self, sharpness, digits=None):
        self.sharpness, self.digits = sharpness, digits
        known = sorted((pair for pair in self.draw(random.Random(0), 100_000) if pair[0] is not None), reverse=True)
        self._scores = [-score for score, _ in known]
        self._wrong = [0, *accumulate(not right for _, right in known)]

    def draw(self, generator, n):
        found = []
        for _ in range(n):
            right = generator.random() < 0.6
            score = 1 / (1 + math.exp(-generator.gauss(self.sharpness if right else -self.sharpness, 1.5)))
            score = score if self.digits is None else round(score, self.digits)
            found.append((score if score >= 0.3 else None, right))
        return found

    def risk(self, threshold):
        """Share of wrong claims among those with a score above the threshold."""
        kept = bisect_left(self._scores, -threshold)
        return self._wrong[kept] / kept

    def violations(self, choose, draws, n):
        """In how many draws of labelled claims the kept ones are wrong too often, and in how many something is kept."""
        generator, bad, some = random.Random(1), 0, 0
        for _ in range(draws):
            labelled = self.draw(generator, n)
            found = choose([score for score, _ in labelled], [right for _, right in labelled])
            some += found is not None
            bad += found is not None and self.risk(found[0]) > 1 - choose.level
        return bad, some


def guaranteed(level):
    def choose(scores, right):
        return controlled_threshold(scores, right, level)

    choose.level = level
    return choose


def naive(level):
    """The lowest threshold with a share of wrong labelled claims that is low enough, which promises nothing."""

    def choose(scores, right):
        known = sorted(((s, y) for s, y in zip(scores, right, strict=True) if s is not None), reverse=True)
        wrong = [*accumulate(not y for _, y in known)]
        fine = [n for n in range(19, len(known) - 1) if wrong[n] / (n + 1) <= 1 - level]
        return (known[fine[-1] + 1][0],) if fine else None

    choose.level = level
    return choose


@pytest.mark.parametrize(
    ("level", "sharpness", "n"), fast_few([(0.8, 1.0, 100), (0.9, 1.4, 200), (0.95, 1.5, 400)], 0)
)
def test_the_guarantee_holds_in_a_thousand_draws(level, sharpness, n):
    world = World(sharpness)
    bad, some = world.violations(guaranteed(level), 1000, n)
    # It may fail in a tenth of the draws; three standard errors above would be a false guarantee.
    assert bad <= 100 + 3 * math.sqrt(90)
    assert some > 500  # and something is kept
    # A threshold that only looks right fails far more often.
    assert world.violations(naive(level), 1000, n)[0] > 250


@pytest.mark.slow
def test_the_guarantee_holds_with_tied_scores():
    bad, some = World(1.4, digits=1).violations(guaranteed(0.9), 1000, 200)
    assert bad <= 100 + 3 * math.sqrt(90) and some > 300


def test_the_guarantee_is_not_far_too_careful():
    """Where the risk of all claims that are kept first is just above the limit, nearly a tenth of the draws may fail, and some do."""
    generator, bad = random.Random(2), 0
    for _ in range(1000):
        right = [generator.random() < 0.899 for _ in range(200)]
        bad += controlled_threshold([generator.random() for _ in right], right, 0.9) is not None
    assert 20 <= bad <= 100 + 3 * math.sqrt(90)

"""Labels of steps against hand arithmetic and a slow, exact second implementation; steps; aggregates."""

import math
import random
from fractions import Fraction

import pytest

from hf_factuality.methods.process_reward.formula import aggregate_steps, process_label, solution_steps
from tests.conftest import searched


def exact(rewards, eta):
    """(1/eta) ln mean exp(eta r), the exponentials as their series in fractions of 300 digits."""

    def power(x):
        total = term = Fraction(1)
        for n in range(1, 400):
            term = term * x / n
            term = Fraction(round(term * 10**300), 10**300)
            total += term
        return total

    mean = sum(power(Fraction(eta) * Fraction(r)) for r in rewards) / len(rewards)
    digits = mean.numerator * 10**60 // mean.denominator
    shift = len(str(digits)) - 1
    return (math.log(Fraction(digits, 10**shift)) + (shift - 60) * math.log(10)) / eta


@searched(10, 300)
def test_entropy_against_series(count):
    rng = random.Random(0)
    for _ in range(count):
        rewards = [rng.choice([0.0, 1.0, rng.random()]) for _ in range(rng.randint(1, 16))]
        eta = rng.choice([-1, 1]) * 10 ** rng.uniform(-1, 1.8)
        assert process_label(rewards, "entropy", eta) == pytest.approx(exact(rewards, eta), abs=1e-9)


@pytest.mark.parametrize(
    ("right", "of", "eta", "label"),
    # Half of the rollouts right: ln((1 + e^eta) / 2) / eta, as the released code prints it to three places.
    [(8, 16, 0.1, 0.512), (8, 16, 1, 0.620), (8, 16, 2, 0.717), (8, 16, 10, 0.931), (1, 16, 1, 0.102), (0, 16, 2, 0), (16, 16, 2, 1)],
)  # fmt: skip
def test_entropy_by_hand(right, of, eta, label):
    assert process_label([1] * right + [0] * (of - right), "entropy", eta) == pytest.approx(label, abs=5e-4)


def test_limits_of_eta():
    rewards = [1, 0, 0, 0.5]
    mean, high, low = 0.375, 1, 0
    for eta in (0, 0.0, 1e-300, -1e-300, 1e-12, -1e-12, 5e-324):
        assert process_label(rewards, eta=eta) == pytest.approx(mean, abs=1e-11)
    for eta, limit in ((math.inf, high), (-math.inf, low), (1e300, high), (-1e300, low)):
        assert process_label(rewards, eta=eta) == pytest.approx(limit, abs=1e-290)
    assert process_label(rewards, eta=1e4) == pytest.approx(high - math.log(4) / 1e4, rel=1e-12)
    values = [process_label(rewards, eta=eta) for eta in (-math.inf, -30, -1, -0.01, 0, 0.01, 1, 30, math.inf)]
    assert values == sorted(values) and len(set(values)) == 9, "it rises with eta"
    assert process_label(rewards, "soft") == mean and process_label(rewards, "hard") == 1.0
    assert process_label([0, 0, 0.4], "hard") == 0.0


def test_a_step_without_rollouts_is_unknown():
    for how in ("entropy", "soft", "hard"):
        assert process_label([], how) is None and process_label([None, None], how) is None
        assert process_label([None, 1, None, 1], how, 2.0) == 1.0
    for wrong in ({"how": "mean"}, {"eta": math.nan}, {"rewards": [1.5]}, {"rewards": [math.nan]}, {"rewards": [-1]}):
        with pytest.raises(ValueError, match="must be one of|is in"):
            process_label(**{"rewards": [1], **wrong})


def test_aggregates():
    scores = [0.9, 0.5, 0.8]
    assert [aggregate_steps(scores, how) for how in ("min", "product", "last", "mean")] == pytest.approx(
        [0.5, 0.36, 0.8, 2.2 / 3]
    )
    for how in ("min", "product", "last", "mean"):
        assert (
            aggregate_steps([], how)
            is aggregate_steps([0.2, None], how)
            is aggregate_steps([math.nan, 1], how)
            is None
        )
    with pytest.raises(ValueError, match="unknown aggregate 'max'"):
        aggregate_steps([1], "max")


def test_steps():
    text = "  Half of 48 is 24.\r\n\n\n48 + 24 = 72. \n#### 72\n"
    assert [text[start:end] for start, end in solution_steps(text)] == [
        "Half of 48 is 24.",
        "48 + 24 = 72.",
        "#### 72",
    ]
    assert [text[start:end] for start, end in solution_steps(text, "\n\n")] == [
        "Half of 48 is 24.",
        "48 + 24 = 72. \n#### 72",
    ]
    assert solution_steps("é玛丽\U0001f600") == [(0, 4)] and solution_steps("") == solution_steps(" \n\t") == []
    assert solution_steps("ab ", lambda found: [(0, 1), (2, 3)]) == [(0, 1)]
    with pytest.raises(ValueError, match="split at a text"):
        solution_steps("a", "")

"""Advantages, returns, whitening and critic losses, against hand arithmetic and slow loops in Python's floats."""

import math
import operator
import statistics

import pytest
import torch

from hf_factuality.functional.gae import (
    explained_variance,
    generalized_advantages,
    kl_estimate,
    masked_moments,
    value_loss,
    whiten,
)


NAN, INF = math.nan, math.inf
LN2 = math.log(2)


def f64(rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def random_batch(seed: int, rows: int, length: int, keep: float, dtype=torch.float64):
    """Rewards, values and a mask with holes anywhere."""
    generator = torch.Generator().manual_seed(seed)
    rewards, values = (torch.randn(rows, length, generator=generator, dtype=torch.float64).to(dtype) for _ in "rv")
    return rewards, values, torch.rand(rows, length, generator=generator) < keep


def td_sums(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """The definition: A_t is the sum over l of (gamma lam)^l delta_{t+l}; the value after the last token is 0."""
    after = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(len(values))]
    weights = [(gamma * lam) ** step for step in range(len(values))]
    return [math.fsum(map(operator.mul, weights, deltas[t:])) for t in range(len(values))]


def lambda_returns(rewards: list[float], values: list[float], gamma: float, lam: float) -> list[float]:
    """Another definition: the average of all n-step returns, weighted by (1 - lam) lam^(n-1); the last has the rest."""
    after, found = [*values[1:], 0.0], []
    for t in range(len(rewards)):
        total, last = 0.0, len(rewards) - t
        for n in range(1, last + 1):
            step = math.fsum(gamma**i * rewards[t + i] for i in range(n)) + gamma**n * after[t + n - 1]
            total += lam ** (n - 1) * (1.0 if n == last else 1 - lam) * step
        found.append(total)
    return found


def by_row(function, rewards, values, mask, gamma, lam) -> torch.Tensor:
    """`function` on each row's kept tokens alone, written back to where they stood; 0 elsewhere."""
    rows = []
    for row_rewards, row_values, row_mask in zip(rewards.tolist(), values.tolist(), mask.tolist(), strict=True):
        kept = [t for t, keep in enumerate(row_mask) if keep]
        found = function([row_rewards[t] for t in kept], [row_values[t] for t in kept], gamma, lam)
        rows.append([found[kept.index(t)] if t in kept else 0.0 for t in range(len(row_mask))])
    return f64(rows)


def assert_near(found: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "gamma, lam, advantages, returns",
    [
        # delta = (0 + .25 - .5, 0 + .5 - .25, 1 - .5) = (-.25, .25, .5)
        (1.0, 0.5, [0.0, 0.5, 0.5], [0.5, 0.75, 1.0]),
        (1.0, 0.0, [-0.25, 0.25, 0.5], [0.25, 0.5, 1.0]),
        (1.0, 1.0, [0.5, 0.75, 0.5], [1.0, 1.0, 1.0]),
        # delta = (.125 - .5, .25 - .25, .5), weights 1, .25, .0625
        (0.5, 0.5, [-0.34375, 0.125, 0.5], [0.15625, 0.375, 1.0]),
        (0.0, 0.5, [-0.5, -0.25, 0.5], [0.0, 0.0, 1.0]),
    ],
)
def test_three_tokens_by_hand(gamma, lam, advantages, returns):
    rewards, values = torch.tensor([[0.0, 0.0, 1.0]]), torch.tensor([[0.5, 0.25, 0.5]])
    found = generalized_advantages(rewards, values, torch.ones(1, 3), gamma, lam)
    assert torch.equal(found[0], torch.tensor([advantages])) and torch.equal(found[1], torch.tensor([returns]))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("lam", [0.0, 0.95, 1.0])
@pytest.mark.parametrize("rows, length, keep", [(5, 17, 0.6), (3, 40, 0.95), (4, 9, 0.2), (2, 1, 0.5)])
def test_slow_sums_of_td_errors_on_random_masks(gamma, lam, rows, length, keep):
    batch = random_batch(length, rows, length, keep)
    advantages, returns = generalized_advantages(*batch, gamma, lam)
    assert_near(advantages, by_row(td_sums, *batch, gamma, lam), 1e-9)
    assert_near(returns, by_row(lambda_returns, *batch, gamma, lam), 1e-9)


@pytest.mark.parametrize("rubbish", [NAN, INF, -INF, 1e300])
def test_masked_rubbish_never_leaks(rubbish):
    rewards, values, mask = random_batch(6, 4, 15, 0.6)
    clean = [x.masked_fill(~mask, 0.0) for x in (rewards, values)]
    dirty = [x.masked_fill(~mask, rubbish) for x in (rewards, values)]
    for found, expected in zip(
        generalized_advantages(*dirty, mask), generalized_advantages(*clean, mask), strict=True
    ):
        assert found.isfinite().all() and torch.equal(found, expected)
    assert torch.equal(masked_moments(dirty[0], mask), masked_moments(clean[0], mask))
    assert torch.equal(whiten(dirty[0], mask), whiten(clean[0], mask))
    assert torch.equal(explained_variance(*dirty, mask), explained_variance(*clean, mask))
    assert explained_variance(*dirty, mask).isfinite()


def test_masked_rubbish_does_not_leak_into_gradients():
    mask = torch.tensor([[1, 1, 0, 0]])
    values = torch.tensor([[0.5, -1.0, NAN, INF]], requires_grad=True)
    old_values, returns = torch.tensor([[0.0, -1.0, NAN, INF]]), torch.tensor([[1.0, 1.0, NAN, -INF]])
    loss, clipped = value_loss(values, old_values, returns, clip=0.25, mask=mask)
    assert torch.equal(loss, torch.tensor([[0.28125, 2.0, 0.0, 0.0]]))
    assert clipped.tolist() == [[True, False, False, False]]
    loss.sum().backward()
    assert torch.equal(values.grad, torch.tensor([[0.0, -2.0, 0.0, 0.0]]))
    values.grad = None
    whiten(values, mask)[0, 0].backward()
    assert values.grad.isfinite().all() and torch.equal(values.grad[0, 2:], torch.zeros(2))


def test_empty_rows_and_batches():
    rewards, values, _ = random_batch(7, 3, 5, 1.0)
    mask = torch.tensor([[0] * 5, [1] * 5, [0] * 5])
    advantages, returns = generalized_advantages(rewards, values, mask)
    assert advantages[[0, 2]].count_nonzero() == returns[[0, 2]].count_nonzero() == 0
    assert advantages[1].count_nonzero() == 5
    assert torch.equal(whiten(torch.tensor([[1.0, NAN]]), torch.zeros(1, 2)), torch.zeros(1, 2))
    for shape in [(0, 4), (4, 0), (0, 0)]:
        nothing = torch.zeros(shape)
        assert [x.shape for x in generalized_advantages(nothing, nothing, nothing)] == [shape, shape]
        assert torch.equal(masked_moments(nothing, nothing), torch.zeros(3).double())
        assert whiten(nothing, nothing).shape == kl_estimate(nothing, nothing).shape == shape
        assert [x.shape for x in value_loss(nothing, nothing, nothing, mask=nothing)] == [shape, shape]
        assert explained_variance(nothing, nothing, nothing).isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_low_precision_is_summed_in_float32(dtype):
    # In bfloat16 a sum of ones would stop at 256, in float16 at 2048.
    ones = torch.ones(2, 3000, dtype=dtype)
    advantages, returns = generalized_advantages(ones, torch.zeros_like(ones), ones, 1.0, 1.0)
    to_go = torch.arange(3000, 0, -1).float().expand(2, 3000)
    assert torch.equal(advantages, to_go) and torch.equal(returns, to_go)
    batch = random_batch(9, 3, 200, 0.8, dtype)
    advantages, returns = generalized_advantages(*batch, 0.99, 0.95)
    assert advantages.dtype == returns.dtype == torch.float32
    expected = by_row(td_sums, *batch, 0.99, 0.95)
    assert_near(advantages.double(), expected, 1e-5)
    assert_near(returns.double(), expected + batch[1].double().masked_fill(~batch[2], 0.0), 1e-5)
    # Of two dtypes the wider one counts.
    for wide in (0, 1):
        pair = [x.double() if k == wide else x for k, x in enumerate(batch[:2])]
        assert_near(generalized_advantages(*pair, batch[2], 0.99, 0.95)[0], expected, 1e-9)


@pytest.mark.parametrize(
    "estimator, expected",
    [
        # p = 1/2, 1/4, 1/3 and p_ref = 1/4, 1/2, 1/3, so d = ln 2, -ln 2, 0
        ("k1", [LN2, -LN2, 0.0]),
        ("k2", [0.2402265069591007, 0.2402265069591007, 0.0]),
        ("k3", [0.5 - 1 + LN2, 2 - 1 - LN2, 0.0]),
    ],
)
def test_kl_by_hand(estimator, expected):
    third = math.log(1 / 3)
    found = kl_estimate(f64([[-LN2, -2 * LN2, third]]), f64([[-2 * LN2, -LN2, third]]), estimator)
    assert_near(found, f64([expected]), 1e-15)


def test_k1_and_k3_are_unbiased_and_k2_is_not():
    # Over all tokens, each as often as the policy samples it; the divergence is .3 ln 2.5.
    p, q = [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]
    logps, ref_logps = (f64([[math.log(x) for x in row]]) for row in (p, q))
    divergence = 0.3 * math.log(2.5)
    expected = {
        name: math.fsum(w * k for w, k in zip(p, kl_estimate(logps, ref_logps, name)[0].tolist(), strict=True))
        for name in ("k1", "k2", "k3")
    }
    assert abs(expected["k1"] - divergence) < 1e-12 and abs(expected["k3"] - divergence) < 1e-12
    assert abs(expected["k2"] - 0.35 * math.log(2.5) ** 2) < 1e-12
    assert expected["k2"] - divergence > 0.01


def test_k3_of_bfloat16_is_that_of_the_numbers():
    # The difference of two numbers near d, d^2 / 2 apart: rounded to bfloat16 on the way it would be 0.
    found = kl_estimate(torch.tensor([[2.0**-6]], dtype=torch.bfloat16), torch.zeros(1, 1, dtype=torch.bfloat16))
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(math.expm1(-(2.0**-6)) + 2.0**-6, rel=1e-4)


def test_whitening_by_hand():
    # Mean 2 and variance 2/3, beside which 1e-8 stands.
    values, mask = f64([[1.0, 2.0, 100.0], [3.0, -50.0, 0.0]]), torch.tensor([[1, 1, 0], [1, 0, 0]])
    unit = 1 / math.sqrt(2 / 3 + 1e-8)
    assert torch.equal(masked_moments(values, mask), f64([3.0, 6.0, 14.0]))
    assert_near(whiten(values, mask), f64([[-unit, 0.0, 0.0], [unit, 0.0, 0.0]]), 1e-14)


@pytest.mark.parametrize("scale, offset", [(1.0, 0.0), (30.0, -7.0), (1e-3, 0.5), (2.0, 100.0)])
def test_whitened_values_have_mean_0_and_variance_1(scale, offset):
    values, _, mask = random_batch(12, 6, 50, 0.7)
    values = values * scale + offset
    whitened = whiten(values, mask)
    kept, variance = whitened[mask].tolist(), statistics.pvariance(values[mask].tolist())
    assert abs(statistics.fmean(kept)) < 1e-11 and whitened[~mask].count_nonzero() == 0
    # The sums of squares lose digits with (mean / standard deviation)^2.
    lost = 1e-14 * (1 + (offset / scale) ** 2)
    assert abs(statistics.pvariance(kept) - variance / (variance + 1e-8)) < lost


def test_moments_of_two_processes_whiten_as_one():
    # Two halves of other widths and other padding, and a third process with nothing at all.
    whole, _, mask = random_batch(13, 9, 24, 0.6)
    mask[4:, 16:] = False
    halves = [(whole[:4], mask[:4]), (whole[4:, :16], mask[4:, :16]), (torch.full((2, 3), NAN), torch.zeros(2, 3))]
    moments = sum(masked_moments(*half) for half in halves)
    numbers = whole[mask].tolist()
    assert_near(moments, f64([len(numbers), math.fsum(numbers), math.fsum(x * x for x in numbers)]), 1e-12)
    mean, deviation = statistics.fmean(numbers), math.sqrt(statistics.pvariance(numbers) + 1e-8)
    for half, keep in halves[:2]:
        expected = ((half - mean) / deviation).masked_fill(~keep, 0.0)
        assert_near(whiten(half, keep, moments), expected, 1e-12)
        # Control: by its own moments, a half comes out otherwise.
        assert not torch.allclose(whiten(half, keep), expected, atol=1e-3)
    assert torch.equal(whiten(*halves[2], moments), torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_whitening_rounds_only_at_the_end(dtype):
    values, _, mask = random_batch(15, 4, 40, 0.8, dtype)
    numbers = values[mask].double().tolist()
    mean, deviation = statistics.fmean(numbers), math.sqrt(statistics.pvariance(numbers) + 1e-8)
    whitened = whiten(values, mask)
    assert whitened.dtype == dtype
    assert torch.equal(whitened[mask], f64([(x - mean) / deviation for x in numbers]).to(dtype))
    assert masked_moments(values, mask).dtype == torch.float64


VALUE_LOSSES = [
    # value, old value, return, clip: loss, clipped, gradient
    (0.125, 0.0, 1.0, 0.25, 0.3828125, False, -0.875),  # within the limit
    (0.25, 0.0, 1.0, 0.25, 0.28125, False, -0.75),  # on it
    (0.5, 0.0, 1.0, 0.25, 0.28125, True, 0.0),  # beyond it, towards the return
    (-0.5, 0.0, -1.0, 0.25, 0.28125, True, 0.0),
    (0.5, 0.0, -1.0, 0.25, 1.125, False, 1.5),  # beyond it, away from the return
    (0.5, 0.0, 0.4375, 0.25, 0.017578125, True, 0.0),  # a little past the return
    (0.75, 0.0, 0.0625, 0.25, 0.236328125, False, 0.6875),  # far past it
    (1.5, 2.0, 3.0, 0.25, 1.125, False, -1.5),
    (0.5, 0.0, 1.0, None, 0.125, False, -0.5),  # no limit
    (0.5, 0.0, 1.0, INF, 0.125, False, -0.5),
]


@pytest.mark.parametrize("value, old, target, clip, loss, clipped, gradient", VALUE_LOSSES)
def test_value_loss_by_hand(value, old, target, clip, loss, clipped, gradient):
    values, old_values, returns = (torch.tensor([[x]], requires_grad=True) for x in (value, old, target))
    found, found_clipped = value_loss(values, old_values, returns, clip)
    assert found.item() == loss and found_clipped.dtype == torch.bool and found_clipped.item() is clipped
    found.sum().backward()
    assert values.grad.item() == gradient
    assert old_values.grad is None and returns.grad is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_clips_nothing_that_is_within_the_limit(dtype):
    generator = torch.Generator().manual_seed(18)
    old_values = (100 * torch.randn(1, 20_000, generator=generator)).to(dtype)
    values, returns = (torch.randn(1, 20_000, generator=generator).to(dtype) for _ in "vr")
    loss, clipped = value_loss(values, old_values, returns, clip=1000.0)
    assert (values.double() - old_values.double()).abs().max() < 1000
    assert not clipped.any() and loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), (values.double() - returns.double()).square() / 2, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "values, expected",
    [
        ([1.0, 2.0, 3.0, 4.0], 1.0),
        ([6.0, 7.0, 8.0, 9.0], 1.0),  # a constant error is no variance
        ([2.5] * 4, 0.0),
        ([-80.0] * 4, 0.0),
        ([1.0, 2.0, 3.0, 3.0], 0.85),  # errors 0, 0, 0, 1: variance 3/16 of 5/4
        ([-1.0, -2.0, -3.0, -4.0], -3.0),  # errors twice the returns
        ([1.0, 2.0, 3.0, 8.0], -1.4),  # errors 0, 0, 0, -4: variance 3 of 5/4
    ],
)
def test_explained_variance_by_hand(values, expected):
    values, returns = f64([[*values, 55.0]]), f64([[1.0, 2.0, 3.0, 4.0, -3.0]])
    found = explained_variance(values, returns, torch.tensor([[1, 1, 1, 1, 0]]))
    assert found.shape == () and found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("constant", [0.0, 0.1, -1000.1])
@pytest.mark.parametrize("count", [1, 3, 7, 1000])
def test_constant_returns_leave_nothing_to_explain(constant, count):
    values, returns = torch.arange(count).double().view(1, -1), torch.full((1, count), constant, dtype=torch.float64)
    assert explained_variance(values, returns, torch.ones(1, count)).isnan()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_returns_that_differ_by_rounding_alone_are_constant(dtype):
    _, values, mask = random_batch(20, 8, 300, 1.0, dtype)
    rewards = torch.zeros_like(values)
    rewards[:, -1] = 1.0  # every completion earns the same
    _, returns = generalized_advantages(rewards, values, mask, 1.0, 1.0)
    assert returns.unique().numel() > 1 and explained_variance(values, returns, mask).isnan()
    rewards[0, -1] += 1000 * torch.finfo(dtype).eps  # control: a difference, if a small one
    _, returns = generalized_advantages(rewards, values, mask, 1.0, 1.0)
    assert explained_variance(values, returns, mask).isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_explained_variance_subtracts_in_float64(dtype):
    values, returns, mask = random_batch(19, 10, 100, 0.5, dtype)
    kept, errors = returns[mask].double().tolist(), (returns[mask].double() - values[mask].double()).tolist()
    expected = 1 - statistics.pvariance(errors) / statistics.pvariance(kept)
    assert explained_variance(values, returns, mask).item() == pytest.approx(expected, abs=1e-12)


ONES, LONG, HALVES = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.long), torch.full((2, 3), 0.5)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: generalized_advantages(ONES, ONES[:, :2], ONES), r"rewards \(2, 3\), values \(2, 2\), mask \(2, 3\)"),
        (lambda: generalized_advantages(ONES[0], ONES[0], ONES[0]), r"shape \(B, T\), got \(3,\)"),
        (lambda: generalized_advantages(LONG, ONES, ONES), "rewards must be floating point, got torch.int64"),
        (lambda: generalized_advantages(ONES, ONES, HALVES), "mask must be bool"),
        (lambda: generalized_advantages(ONES, ONES, ONES * -INF), "mask must be bool"),
        (lambda: generalized_advantages(ONES, ONES, ONES, gamma=1.01), r"gamma must be in \[0, 1\], got 1.01"),
        (lambda: generalized_advantages(ONES, ONES, ONES, lam=-0.1), r"lam must be in \[0, 1\], got -0.1"),
        (lambda: kl_estimate(ONES, ONES, "k4"), r"estimator='k4' is unknown; choose one of \['k1', 'k2', 'k3'\]"),
        (lambda: kl_estimate(ONES, ONES[:1]), r"ref_logps \(1, 3\)"),
        (lambda: whiten(ONES, ONES[:, :1], torch.ones(3)), r"mask \(2, 1\)"),
        (lambda: whiten(LONG, ONES), "values must be floating point"),
        (lambda: value_loss(ONES, ONES, ONES[:, :1]), r"returns \(2, 1\)"),
        (lambda: value_loss(ONES, ONES, ONES, mask=ONES[:1]), r"mask \(1, 3\)"),
        (lambda: value_loss(ONES, ONES, ONES, clip=0.0), "clip must be positive, or None for no limit, got 0.0"),
    ],
)
def test_wrong_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()

"""Credit by what tokens earn: hand arithmetic, a slow second implementation, and exact gradients of a small bandit."""

import dataclasses
import itertools
import statistics

import pytest
import torch
from torch.nn.functional import pad

from hf_factuality.functional.credit import CREDITS
from hf_factuality.functional.group_credit import (
    PLACES,
    GroupRewards,
    credit_tokens,
    gae_credit,
    group_to_go,
    own_credit,
    process_advantages,
    regressed_values,
    rewards_to_go,
    signed_gae_credit,
    statement_index,
    to_go_credit,
)
from tests.conftest import fast_few


def group(rewards, ends=None, lengths=None, known=None, size=None, own=None, spread="none"):
    rewards = torch.tensor(rewards, dtype=torch.float32)
    lengths = lengths or [rewards.size(1)] * len(rewards)
    mask = torch.arange(rewards.size(1)) < torch.tensor(lengths).unsqueeze(1)
    ends = rewards != 0 if ends is None else torch.tensor(ends, dtype=bool)
    known = torch.ones(len(rewards), dtype=bool) if known is None else torch.tensor(known)
    own = rewards if own is None else torch.tensor(own, dtype=torch.float32)
    return GroupRewards(rewards, own, ends, mask, known, size or len(rewards), False, spread)


def test_rewards_to_go_by_hand():
    rewards = torch.tensor([[1.0, 0.0, 2.0, -4.0]])
    assert rewards_to_go(rewards).tolist() == [[-1.0, -2.0, -2.0, -4.0]]


def test_statements_are_counted_by_their_ends():
    assert statement_index(torch.tensor([[0, 1, 0, 0, 1, 0]], dtype=bool)).tolist() == [[0, 0, 1, 1, 1, 2]]


def test_to_go_by_hand():
    # Two statements of 2 tokens each against one of 3 tokens that earns 1.
    found = group([[0, 2, 0, 4], [0, 0, 1, 0]], lengths=[4, 3])
    assert group_to_go(found, "token").tolist() == [[5, 5, 3, 4], [-5, -5, -3, 0]]
    # Where its second statement begins, the other has ended with 0 to go; its last token is after the statement.
    assert group_to_go(found, "statement").tolist() == [[5, 5, 4, 4], [-5, -5, -5, 0]]


@pytest.mark.parametrize("width", [3, 4, 16])
def test_the_same_share_by_hand(width):
    """To go are 3, 2, 2 and 4, 3; of 3 tokens the second is at the first of 2, of 2 the second at the second of 3."""
    rewards = [[1, 0, 2] + [0] * (width - 3), [1, 3] + [0] * (width - 2)]
    found = group_to_go(group(rewards, lengths=[3, 2]), "share")
    assert found[:, :3].tolist() == [[-1, -2, -1], [1, 1, 0]] and not found[:, 3:].any()


def slow_to_go(found, place):
    rewards, mask = found.rewards.tolist(), found.mask.tolist()
    length = len(rewards[0])

    def to_go(row, at):
        return sum(rewards[row][k] for k in range(at, length)) if at < length else 0.0

    def statement(row, at):
        return sum(found.ends[row][:at].tolist())

    out = [[0.0] * length for _ in rewards]
    for row, at in itertools.product(range(len(rewards)), range(length)):
        first = row // found.group_size * found.group_size
        others = [k for k in range(first, first + found.group_size) if k != row and found.known[k]]
        if not (mask[row][at] and found.known[row] and others):
            continue
        same = []
        for other in others:
            lengths = [max(sum(mask[k]), 1) for k in (row, other)]
            if place == "token":
                there = at
            elif place == "statement":
                there = next((t for t in range(length) if statement(other, t) >= statement(row, at)), length)
            else:
                there = at * lengths[1] // lengths[0]
            same.append(to_go(other, there))
        out[row][at] = to_go(row, at) - sum(same) / len(same)
    return torch.tensor(out)


def random_group(seed, size=4, groups=3, length=9):
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, length + 1, (size * groups,), generator=rng)
    mask = torch.arange(length) < lengths.unsqueeze(1)
    ends = (torch.rand(mask.shape, generator=rng) < 0.3) & mask
    rewards = torch.randn(mask.shape, generator=rng) * ends * (torch.rand(mask.shape, generator=rng) < 0.8)
    known = torch.rand(len(mask), generator=rng) < 0.8
    return GroupRewards(rewards, rewards, ends, mask, known, size, False, "none")


BY_REWARDS = {name: credit.rewards for name, credit in CREDITS.items() if credit.rewards}


@pytest.mark.parametrize("name", BY_REWARDS)
@pytest.mark.parametrize("seed", range(8))
def test_what_a_row_gets_does_not_depend_on_its_padding(name, seed):
    found = random_group(seed)
    before = torch.randn(len(found.mask), generator=torch.Generator().manual_seed(seed))
    narrow = BY_REWARDS[name](before, found, 0.9)
    for more in (1, 4, 23):
        tensors = {key: pad(getattr(found, key), (0, more)) for key in ("rewards", "own", "ends", "mask")}
        wide = BY_REWARDS[name](before, dataclasses.replace(found, **tensors), 0.9)
        torch.testing.assert_close(wide, pad(narrow, (0, more)), atol=1e-5, rtol=1e-5)


# The slope of "signed_gae" is that of the other groups.
@pytest.mark.parametrize("name", sorted(BY_REWARDS.keys() - {"signed_gae"}))
@pytest.mark.parametrize("seed", range(8))
def test_what_a_group_gets_does_not_depend_on_the_others(name, seed):
    found, size = random_group(seed), 4
    before = torch.randn(len(found.mask), generator=torch.Generator().manual_seed(seed))
    together = BY_REWARDS[name](before, found, 0.9)
    for start in range(0, len(before), size):
        rows = slice(start, start + size)
        width = max(int(found.mask[rows].sum(1).max()), 1)
        tensors = {key: getattr(found, key)[rows, :width] for key in ("rewards", "own", "ends", "mask")}
        alone = dataclasses.replace(found, known=found.known[rows], **tensors)
        torch.testing.assert_close(
            BY_REWARDS[name](before[rows], alone, 0.9), together[rows, :width], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("seed", range(8))
def test_to_go_is_that_of_a_slow_loop(place, seed):
    found = random_group(seed)
    torch.testing.assert_close(group_to_go(found, place), slow_to_go(found, place), atol=1e-5, rtol=1e-5)


def test_unknown_place_is_named():
    with pytest.raises(ValueError, match="place='word' is unknown"):
        group_to_go(random_group(0), "word")


def test_process_supervision_by_hand():
    # Steps 1, 3 and 2, 2: mean 2, standard deviation of (1, 3, 2, 2).
    found = process_advantages(group([[0, 1, 3], [2, 0, 2]]))
    z = 1 / (statistics.stdev([1, 3, 2, 2]) + 1e-4)
    torch.testing.assert_close(found, torch.tensor([[0, 0, z], [0, 0, 0]]), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_process_supervision_is_that_of_a_slow_loop(seed):
    found, expected = random_group(seed), []
    for first in range(0, len(found.rewards), found.group_size):
        rows = [row for row in range(first, first + found.group_size) if found.known[row]]
        steps = {row: found.ends[row].nonzero().flatten().tolist() for row in rows}
        values = [found.rewards[row, at].item() for row in rows for at in steps[row]]
        sd = statistics.stdev(values) if len(values) > 1 else 0.0
        for row in range(first, first + found.group_size):
            z = {
                at: (found.rewards[row, at].item() - statistics.mean(values)) / (sd + 1e-4)
                for at in steps.get(row, ())
            }
            width = found.mask[row].sum().item() if row in steps else 0
            expected.append(
                [sum(z[k] for k in z if k >= at) if at < width else 0.0 for at in range(found.rewards.size(1))]
            )
    torch.testing.assert_close(process_advantages(found), torch.tensor(expected), atol=1e-3, rtol=1e-4)


def test_own_adds_what_the_statement_earns_to_its_tokens():
    found = group([[0, 2, 0, -2, 0], [0, 0, 2, 0, 0]], lengths=[5, 4])
    advantages = torch.tensor([0.5, -0.5])
    added = own_credit(advantages, found, 0.25)
    assert added.tolist() == [[1.0, 1.0, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, -0.5, 0.0]]
    # Over the root mean square, 2: as much as one of 1 without it.
    divided = own_credit(advantages, group(found.rewards.tolist(), lengths=[5, 4], spread="group"), 0.5)
    torch.testing.assert_close(divided, added, atol=1e-4, rtol=1e-4)


def test_a_share_of_to_go_and_the_rest_of_the_whole():
    found = group([[0, 2, 0, 4], [0, 0, 1, 0]], lengths=[4, 3])
    mixed = to_go_credit("token")(torch.zeros(2), found, 0.5)
    assert mixed.tolist() == [[5, 5, 4, 4.5], [-5, -5, -4, 0]]


def test_gae_by_hand():
    # To go are 6, 4, 4 and 1, 1; each is what the other's state is worth, and nothing is worth something after the end.
    found = group([[2, 0, 4], [0, 1, 0]], lengths=[3, 2])
    assert gae_credit(torch.zeros(2), found, 0.0).tolist() == [[2, -1, 4], [-2, -3, 0]]
    assert gae_credit(torch.zeros(2), found, 0.5).tolist() == [[2.5, 1, 4], [-3.5, -3, 0]]


@pytest.mark.parametrize("seed", range(8))
def test_gae_with_lambda_one_is_to_go(seed):
    found = random_group(seed)
    torch.testing.assert_close(
        gae_credit(torch.zeros(len(found.mask)), found, 1.0), group_to_go(found, "token"), atol=1e-5, rtol=1e-5
    )


def slow_values(found):
    rewards, size = found.rewards.tolist(), found.group_size
    rows, length = range(len(rewards)), range(len(rewards[0]))

    def others(row):
        first = row // size * size
        return [k for k in range(first, first + size) if k != row and found.known[k]]

    def means(row, at):
        both = [(sum(rewards[k][at:]), sum(rewards[k][:at])) for k in others(row)]
        return [statistics.mean(column) for column in zip(*both, strict=True)] if both else (0.0, 0.0)

    out = [[0.0] * len(length) for _ in rows]
    for row, at in itertools.product(rows, length):
        both = squares = 0.0
        for other in rows:
            if found.known[other] and others(other):
                left, before = means(other, at)
                squares += (sum(rewards[other][:at]) - before) ** 2
                if other // size != row // size:
                    both += (sum(rewards[other][:at]) - before) * (sum(rewards[other][at:]) - left)
        left, before = means(row, at)
        out[row][at] = left + both / (squares + 1e-4) * (sum(rewards[row][:at]) - before)
    return torch.tensor(out)


@pytest.mark.parametrize("seed", range(8))
def test_regressed_values_against_a_slow_loop(seed):
    found = random_group(seed)
    values = regressed_values(found)[found.learned]
    torch.testing.assert_close(values, slow_values(found)[found.learned], atol=1e-4, rtol=1e-4)


def test_a_slope_by_hand():
    """In both groups who has earned 1 more earns 3 more. Products of 2 x 3 and 2 x 12, squares of 2 + 8."""
    rewards = [[0, 0, 1], [1, 0, 4], [0, 0, 5], [2, 0, 11]]
    values = regressed_values(group(rewards, size=2))
    # Before anything is earned there is nothing to tell them apart.
    assert values[:, 0].tolist() == [5, 1, 13, 5]
    expected = torch.tensor([4 - 2.4 * 1, 1 + 2.4 * 1, 11 - 0.6 * 2, 5 + 0.6 * 2])
    torch.testing.assert_close(values[:, 2], expected, atol=1e-3, rtol=0)


def test_statements_have_the_sign_of_what_they_earn():
    rewards = [[0, 1, 0, -1, 0, 3], [0, 1, 0, 0, 0, 0]]
    ends = [[0, 1, 0, 1, 0, 0], [0, 1, 0, 1, 0, 0]]
    own = [[0, 1, 0, -1, 0, 0], [0, 1, 0, 0, 0, 0]]
    found = group(rewards, ends, own=own)
    plain, signed = gae_credit(None, found, 0.9), signed_gae_credit(None, found, 0.9)
    torch.testing.assert_close(signed.abs(), plain.abs())  # one group: no slope
    assert (signed[:, :2] > 0).all() and (signed[0, 2:4] < 0).all() and (plain[0, 2:4] > 0).all()
    assert torch.equal(signed[1, 2:], plain[1, 2:]) and torch.equal(signed[0, 4:], plain[0, 4:])


def test_process_counts_the_end_where_it_may_be_paid():
    """Every statement is alike, the answers differ: without the ends there would be nothing to learn from."""
    rewards = [[1, 1, 1], [1, 1, 0]]
    found = process_advantages(group(rewards, ends=[[1, 1, 0], [1, 1, 0]]))
    assert not found.any()
    paid = group(rewards, ends=[[1, 1, 0], [1, 1, 0]])
    paid = GroupRewards(
        *(getattr(paid, name) for name in ("rewards", "own", "ends", "mask", "known", "group_size")), True
    )
    z = [(value - 5 / 6) / (statistics.stdev([1, 1, 1, 1, 1, 0]) + 1e-4) for value in (1, 0)]
    expected = torch.tensor([[3 * z[0], 2 * z[0], z[0]], [2 * z[0] + z[1], z[0] + z[1], z[1]]])
    torch.testing.assert_close(process_advantages(paid), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("spread", ["group", "batch", "none"])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_learnt_where_nothing_is_known(spread, seed):
    found = random_group(seed)
    found = GroupRewards(
        found.rewards, found.own, found.ends, found.mask, found.known, found.group_size, False, spread
    )
    for credit in (own_credit, gae_credit, signed_gae_credit, *map(to_go_credit, PLACES)):
        shaped = credit(torch.ones(len(found.mask)), found, 0.5)
        assert torch.isfinite(shaped).all() and not shaped[~found.learned].any() and shaped.any()
        # A group's advantages are bounded, however alike its rewards are.
        assert shaped.abs().max() < 50


# A bandit whose gradients are exact: a policy draws tokens until it draws the last one or has drawn four.
WORDS, LENGTH, SIZE = 3, 4, 2
REWARDS = torch.tensor([[1.0, -0.5, 0.3], [0.7, 0.2, -1.0], [-0.4, 2.0, 0.5], [0.6, -0.8, 1.5]])


def completions(length=LENGTH):
    for words in itertools.product(range(WORDS), repeat=length):
        stop = next((at for at, word in enumerate(words) if word == WORDS - 1), length - 1)
        if all(word == 0 for word in words[stop + 1 :]):  # each completion once
            yield words[: stop + 1]


def log_prob(theta, words):
    """Of each token; it depends on the token before, so that an early choice moves what later ones earn."""
    before = [WORDS, *words[:-1]]
    return torch.stack([torch.log_softmax(theta[b], 0)[w] for b, w in zip(before, words, strict=True)])


def expected_gradients(advantages, length=LENGTH, groups=1):
    """The exact mean over all pairs of completions (of all groups), and the gradient of the mean reward."""
    theta = torch.randn(
        WORDS + 1, WORDS, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).requires_grad_()
    all_words = list(completions(length))
    logs = [log_prob(theta, words) for words in all_words]
    chances = [log.sum().exp() for log in logs]
    earned = [[REWARDS[at, word].item() for at, word in enumerate(words)] for words in all_words]
    assert sum(chances).item() == pytest.approx(1)
    goal = sum(chance * sum(row) for chance, row in zip(chances, earned, strict=True))
    truth = torch.autograd.grad(goal, theta, retain_graph=True)[0]
    surrogate = 0.0
    for drawn in itertools.product(range(len(all_words)), repeat=SIZE * groups):
        rows = [earned[k] + [0.0] * (length - len(earned[k])) for k in drawn]
        # Every other token ends a statement.
        ends = [[at < len(all_words[k]) and all_words[k][at] != 0 for at in range(length)] for k in drawn]
        found = group(rows, ends, [len(all_words[k]) for k in drawn], size=SIZE)
        shaped = advantages(found).double()
        terms = sum((shaped[number, : len(logs[k])] * logs[k]).sum() for number, k in enumerate(drawn))
        chance = torch.stack([chances[k] for k in drawn]).prod().detach()
        surrogate = surrogate + chance * terms / len(drawn)
    return torch.autograd.grad(surrogate, theta)[0], truth


def sum_credit(found):
    sums = found.rewards.sum(1, keepdim=True)
    return (sums - sums.flip(0)) * found.mask


UNBIASED = {
    "sum": sum_credit,
    "token": lambda found: group_to_go(found, "token"),
    "statement": lambda found: group_to_go(found, "statement"),
    "half": lambda found: to_go_credit("token")(None, found, 0.5),
}
BIASED = {
    "share": lambda found: group_to_go(found, "share"),
    "gae": lambda found: gae_credit(sum_credit(found)[:, 0], found, 0.5),
    "own": lambda found: own_credit(sum_credit(found)[:, 0], found, 0.5),
    "signed_gae": lambda found: signed_gae_credit(None, found, 1.0),
    "process": process_advantages,
}


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased(name):
    found, truth = expected_gradients(UNBIASED[name])
    torch.testing.assert_close(found, truth, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_regressed_values_are_a_baseline():
    """Two groups, each of which gives the other its slope."""

    def advantages(found):
        return (rewards_to_go(found.rewards) - regressed_values(found)) * found.mask

    found, truth = expected_gradients(advantages, length=2, groups=2)
    torch.testing.assert_close(found, truth, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", fast_few(BIASED, 0, 1))
def test_biased(name):
    found, truth = expected_gradients(BIASED[name])
    assert (found - truth).abs().max() > 1e-2 * truth.abs().max()


@pytest.mark.parametrize("name", [name for name, credit in CREDITS.items() if credit.rewards is not None])
def test_tokens_of_others_in_between_are_as_if_they_were_not_there(name):
    """As in rollouts with tools."""
    generator = torch.Generator().manual_seed(0)
    lengths, places = [5, 4, 5, 3], [[0, 1, 4, 5, 7], [0, 3, 4, 5], [0, 1, 2, 3, 4], [1, 2, 6]]
    tight, wide = (
        {kind: torch.zeros(4, size, dtype=dtype) for kind, dtype in
         (("rewards", torch.float32), ("own", torch.float32), ("ends", torch.bool), ("mask", torch.bool))}
        for size in (5, 8)
    )  # fmt: skip
    for row, (length, own) in enumerate(zip(lengths, places, strict=True)):
        paid, ends = torch.randn(length, generator=generator), torch.rand(length, generator=generator) < 0.5
        for kind, values in (("rewards", paid), ("own", paid * ends), ("ends", ends), ("mask", torch.ones(length).bool())):  # fmt: skip
            tight[kind][row, :length] = values
            wide[kind][row, own] = values
    known, advantages = torch.ones(4, dtype=torch.bool), torch.randn(4, generator=generator)
    expected, found = (
        credit_tokens(CREDITS[name].rewards, advantages, GroupRewards(**own, known=known, group_size=2), 0.5)
        for own in (tight, wide)
    )
    assert expected.any()
    for row, own in enumerate(places):
        torch.testing.assert_close(found[row, own], expected[row, : len(own)])
    assert (found[~wide["mask"]] == 0).all()

"""Step rewards and prefixes against arithmetic by hand."""

import torch

from hf_factuality import Label, LabeledSpan
from hf_factuality.functional.group_credit import GroupRewards
from hf_factuality.functional.labels import BINARY_VALUES, TERNARY_VALUES
from hf_factuality.methods.faithrl.formula import faithful_prefix, faithrl_credit, faithrl_step_rewards


def test_a_prefix_ends_before_the_first_unfaithful_step():
    units = [
        LabeledSpan(30, 40, Label.CONTRADICTED),
        LabeledSpan(10, 20, Label.UNVERIFIABLE),
        LabeledSpan(0, 10, Label.SUPPORTED),
        LabeledSpan(5, 9, None),
    ]
    assert faithful_prefix(units, BINARY_VALUES) == 10
    assert faithful_prefix(units, TERNARY_VALUES) == 30
    assert faithful_prefix(units[2:], BINARY_VALUES) is None and faithful_prefix([], BINARY_VALUES) is None
    assert faithful_prefix([LabeledSpan(0, 10, Label.CONTRADICTED)], BINARY_VALUES) == 0


def group(rewards, own, ends, size=2, mask=None):
    tensors = [torch.tensor(it, dtype=torch.float32) for it in (rewards, own)]
    mask = torch.ones(tensors[0].shape, dtype=torch.bool) if mask is None else torch.tensor(mask, dtype=torch.bool)
    known = torch.ones(len(mask), dtype=torch.bool)
    return GroupRewards(*tensors, torch.tensor(ends, dtype=torch.bool), mask, known, size)


def test_faithrl_pays_every_token_of_a_step():
    # Two steps of two tokens and an answer of one. The first completion is right, its second step unfaithful; the second is wrong.
    own = [[0, 0.5, 0, -0.5, 0], [0, 0.5, 0, 0.5, 0]]
    rewards = [[0, 0.5, 0, -0.5, 1.0], [0, 0.5, 0, 0.5, 0.0]]
    ends = [[0, 1, 0, 1, 0]] * 2
    given = group(rewards, own, ends)
    expected = [[1.0, 1.0, -1.0, -1.0, 1.0], [-1.0] * 5]
    assert faithrl_step_rewards(given).tolist() == expected
    flat = torch.tensor(expected).flatten()
    by_hand = (flat - flat.mean()) / (flat.std(correction=0) + 1e-6)
    torch.testing.assert_close(faithrl_credit(torch.zeros(2), given, 1.0).flatten(), by_hand)


def test_faithrl_leaves_out_what_the_policy_did_not_write():
    mask = [[1, 0, 1], [1, 1, 0]]
    found = faithrl_credit(
        torch.zeros(2), group([[0, 0, 1.0], [0, 0, 0]], [[0.0] * 3] * 2, [[0] * 3] * 2, mask=mask), 1.0
    )
    assert (found[~torch.tensor(mask, dtype=torch.bool)] == 0).all()
    torch.testing.assert_close(found[0, 0], torch.tensor(1.0)) and torch.testing.assert_close(
        found[1, 1], -found[0, 0]
    )
    alone = group([[1.0]], [[0.0]], [[0]], size=1)
    assert faithrl_credit(torch.zeros(1), alone, 1.0).tolist() == [[0.0]]

"""Every expected value is written out by hand from the truth table."""

import pytest
import torch

from hf_factuality.functional import add_factuality, flip_advantages, scale_by_agreement


def test_flip_truth_table():
    advantages = torch.tensor([2.0, -3.0, 0.0])
    factuality = torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0], [1.0, 0.0, -1.0]])
    expected = torch.tensor([[2.0, 2.0, -2.0], [3.0, -3.0, -3.0], [0.0, 0.0, 0.0]])
    assert torch.equal(flip_advantages(advantages, factuality), expected)


def test_flip_takes_token_advantages_and_integer_maps():
    advantages = torch.tensor([[1.0, -1.0, 0.5, -0.5]])
    factuality = torch.tensor([[-1, 1, 1, 0]], dtype=torch.int8)
    assert torch.equal(flip_advantages(advantages, factuality), torch.tensor([[-1.0, 1.0, 0.5, -0.5]]))


def test_flip_of_a_zero_map_is_the_advantage_itself():
    advantages = torch.tensor([0.1, -0.7], dtype=torch.float64)
    flipped = flip_advantages(advantages, torch.zeros(2, 3))
    assert flipped.dtype == torch.float64
    assert torch.equal(flipped, torch.tensor([[0.1] * 3, [-0.7] * 3], dtype=torch.float64))


def test_additive_and_scaled_by_hand():
    advantages = torch.tensor([2.0, -1.0])
    factuality = torch.tensor([[1.0, 0.0, -1.0], [1.0, 0.0, -1.0]])
    assert torch.equal(
        add_factuality(advantages, factuality, 0.5), torch.tensor([[2.5, 2.0, 1.5], [-0.5, -1.0, -1.5]])
    )
    assert torch.equal(
        scale_by_agreement(advantages, factuality, 0.5), torch.tensor([[3.0, 2.0, 1.0], [-0.5, -1.0, -1.5]])
    )
    # At full strength, disagreement silences the token instead of turning it.
    assert torch.equal(
        scale_by_agreement(advantages, factuality, 1.0), torch.tensor([[4.0, 2.0, 0.0], [0.0, -1.0, -2.0]])
    )


@pytest.mark.parametrize(
    ("advantages", "factuality", "message"),
    [
        (torch.ones(2), torch.zeros(3, 4), r"\(3,\) or \(3, 4\)"),
        (torch.ones(2, 3), torch.zeros(2, 4), r"\(2,\) or \(2, 4\)"),
        (torch.ones(2), torch.zeros(2), r"shape \(B, T\)"),
        (torch.ones(2, dtype=torch.long), torch.zeros(2, 3), "floating point"),
        (torch.ones(1), torch.full((1, 2), 0.5), "-1, 0 or \\+1"),
    ],
)
def test_wrong_input_is_refused_by_name(advantages, factuality, message):
    with pytest.raises(ValueError, match=message):
        flip_advantages(advantages, factuality)

"""GSPO-token's ratio against a loop over the tokens, in float64, with finite differences for the gradients."""

import math

import pytest
import torch

from hf_factuality.functional.sequence_ratio import gspo_token_reference


MASK = [[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]


def example():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 4, 5, dtype=torch.float64, generator=generator)
    ids = torch.randint(5, (3, 4), generator=generator)
    old = logits + 0.4 * torch.randn(logits.shape, dtype=torch.float64, generator=generator)
    advantages = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    advantages[0, :2], advantages[0, 2:] = 1.0, -1.5
    return logits, ids, gather(old, ids), advantages


def gather(logits, ids):
    return logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def loss_of(logits, ids, old, advantages, epsilon):
    """As TRL computes it at its level "token"."""
    logps, mask = gather(logits, ids), torch.tensor(MASK)
    ratio = torch.exp(logps - gspo_token_reference(logps, old, mask))
    losses = -torch.min(ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages)
    return ((losses * mask).sum(1) / mask.sum(1)).mean()


def by_hand(logits, ids, old, advantages, epsilon):
    """Eq. 13 to 16: value, and gradient per logit; the ratio's value is the completion's, its gradient the token's."""
    step, value, gradient = 1e-6, 0.0, torch.zeros_like(logits)

    def logp(row, token, changed=None, by=0.0):
        numbers = [logits[row, token, j].item() + (by if j == changed else 0.0) for j in range(5)]
        return numbers[ids[row, token]] - math.log(sum(map(math.exp, numbers)))

    for row in range(3):
        length = sum(MASK[row])
        ratio = math.exp(sum(logp(row, t) - old[row, t].item() for t in range(length)) / length)
        for token in range(length):
            a = advantages[row, token].item()
            clipped = (a > 0 and ratio > 1 + epsilon) or (a < 0 and ratio < 1 - epsilon)
            bound = min(max(ratio, 1 - epsilon), 1 + epsilon)
            value -= (bound if clipped else ratio) * a / length / 3
            for j in range(5):
                slope = (logp(row, token, j, step) - logp(row, token, j, -step)) / (2 * step)
                gradient[row, token, j] = 0.0 if clipped else -ratio * a * slope / length / 3
    return value, gradient


@pytest.mark.parametrize("epsilon", [10.0, 0.05])
def test_value_of_the_sequence_and_gradient_of_the_token(epsilon):
    logits, ids, old, advantages = example()
    value, gradient = by_hand(logits, ids, old, advantages, epsilon)
    assert gradient.any() and (
        epsilon == 10.0
        or (gradient[0] == 0).all(dim=1).tolist() in ([True, True, False, False], [False, False, True, True])
    )
    logits.requires_grad_()
    loss = loss_of(logits, ids, old, advantages, epsilon)
    loss.backward()
    assert loss.item() == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(logits.grad, gradient, rtol=1e-7, atol=1e-9)


def test_half_precision_and_empty_completions():
    logps = torch.tensor([[-9.0, -8.5], [-1.0, -1.0]], dtype=torch.bfloat16)
    old = logps.float() - 3e-4  # less than a step of bfloat16 there
    reference = gspo_token_reference(logps, old, torch.tensor([[1, 1], [0, 0]]))
    assert reference.dtype == torch.float32 and not reference.requires_grad
    torch.testing.assert_close(
        logps.float() - reference, torch.tensor([[3e-4, 3e-4], [0.0, 0.0]]), rtol=1e-2, atol=1e-9
    )

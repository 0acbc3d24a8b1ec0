"""Micro-batches without padding: what is cut, what stays, and that training is the same."""

import pytest
import torch

from hf_factuality.trainers import token_reward_ppo_trainer
from hf_factuality.trainers.token_reward_ppo_trainer import without_padding
from tests.trainers.test_token_reward_ppo_trainer import CRITICS, RecordingGiven, ids_as_rewards, state
from tests.trainers.token_reward_ppo_oracle import make


def test_columns_that_no_row_uses_are_cut():
    inputs = {
        "prompt_ids": torch.tensor([[0, 0, 5, 6], [0, 0, 0, 7]]),
        "prompt_mask": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]),
        "completion_ids": torch.tensor([[8, 0, 0, 0], [9, 8, 0, 0]]),
        "completion_mask": torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]]),
        "returns": torch.arange(8.0).view(2, 4),
        "num_items_in_batch": torch.tensor(9),
        "per_completion": torch.tensor([1.0, 2.0]),
        "nothing": None,
    }
    found = without_padding(inputs)
    assert found["prompt_ids"].tolist() == [[5, 6], [0, 7]] and found["prompt_mask"].tolist() == [[1, 1], [0, 1]]
    assert found["completion_ids"].tolist() == [[8, 0], [9, 8]]
    assert found["completion_mask"].tolist() == [[1, 0], [1, 1]]
    assert found["returns"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert found["num_items_in_batch"] == 9 and found["per_completion"].tolist() == [1.0, 2.0]
    assert found["nothing"] is None and inputs["completion_ids"].shape == (2, 4)


def test_one_column_stays_where_nothing_counts():
    inputs = {name: torch.zeros(2, 3, dtype=torch.long) for name in ("prompt_ids", "prompt_mask")}
    inputs |= {name: torch.zeros(2, 5, dtype=torch.long) for name in ("completion_ids", "completion_mask")}
    found = without_padding(inputs)
    assert found["prompt_ids"].shape == (2, 1) and found["completion_ids"].shape == (2, 1)


@pytest.mark.parametrize("critic", CRITICS)
def test_training_is_the_same_and_passes_are_shorter(tiny_model, tmp_path, critic, monkeypatch):
    found = {}
    for cut in (True, False):
        if not cut:
            monkeypatch.setattr(token_reward_ppo_trainer, "without_padding", lambda inputs: inputs)
        trainer = make(
            tiny_model, tmp_path, ids_as_rewards, trainer=RecordingGiven, critic_model=critic, max_steps=2,
            num_iterations=2, per_device_train_batch_size=1, gradient_accumulation_steps=4,
        )  # fmt: skip
        columns = []
        trainer.model.register_forward_pre_hook(
            lambda module, args, kwargs, columns=columns: columns.append(kwargs["labels"].size(1))
            if module.training and "labels" in kwargs else None,
            with_kwargs=True,
        )  # fmt: skip
        trainer.train()
        found[cut] = (trainer, columns)
    (ours, short), (other, long) = found[True], found[False]
    assert len(short) == len(long) and sum(short) < sum(long) and max(short) == max(long)
    for one, same in zip(state(ours), state(other), strict=True):
        for name in one:
            assert torch.allclose(one[name], same[name], rtol=1e-4, atol=1e-6), name
    assert ours.losses == pytest.approx(other.losses, rel=1e-4)


def test_the_critics_gradients_are_there_before_the_policys_pass(tiny_model, tmp_path, monkeypatch):
    """What the critic keeps for its gradients and what the policy keeps are not in memory together."""
    trainer = make(tiny_model, tmp_path, ids_as_rewards, critic_model="policy", max_steps=1)
    seen = []
    trainer.model.register_forward_pre_hook(
        lambda module, args: seen.append(any(p.grad is not None for p in trainer.critic.parameters()))
        if torch.is_grad_enabled() else None
    )  # fmt: skip
    trainer.train()
    assert seen and all(seen)

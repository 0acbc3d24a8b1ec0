"""TRL's trainers score only labelled positions on CPUs, and learn the same."""

import pytest
import torch
import trl.trainer.utils as trl_utils
from datasets import Dataset
from trl import SFTConfig, SFTTrainer
from trl.kernels import chunked_logprob

from hf_factuality.trainers.lm_head import score_labelled_positions_on_cpus
from tests.trainers.recording import QUIET


@pytest.fixture
def trl_as_it_is(monkeypatch):
    """Whatever ran in this process before."""
    monkeypatch.setattr(trl_utils, "_use_triton", chunked_logprob._use_triton)


def step(model, folder):
    """Loss, gradients by name, and how many positions went through the head, of one step."""
    rows = [{"prompt": f"Where was person {n} born? " * n, "completion": " In Ulm."} for n in range(1, 5)]
    config = SFTConfig(str(folder), max_steps=1, per_device_train_batch_size=4, **QUIET)
    trainer = SFTTrainer(model, config, train_dataset=Dataset.from_list(rows))
    seen, scored = {}, trl_utils._ChunkedLogProbFunction.apply

    def apply(hidden, *others):
        seen["positions"] = len(hidden)
        return scored(hidden, *others)

    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trl_utils._ChunkedLogProbFunction, "apply", apply)
        loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    gradients = {name: one.grad.clone() for name, one in trainer.model.named_parameters() if one.grad is not None}
    return (
        loss.item(),
        gradients,
        seen["positions"],
        int((batch["labels"][:, 1:] != -100).sum()),
        batch["labels"][:, 1:].numel(),
    )


def test_fewer_positions_and_the_same_gradients(tiny_model, tmp_path, trl_as_it_is):
    loss, gradients, positions, labelled, everything = step(tiny_model, tmp_path)
    assert positions == everything > 2 * labelled, (
        "TRL leaves them out itself: remove hf_factuality/trainers/lm_head.py"
    )
    score_labelled_positions_on_cpus()
    found = step(tiny_model, tmp_path)
    assert found[2] == labelled and found[0] == loss and found[1].keys() == gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-5, atol=1e-7)


def test_it_is_set_once_and_accelerators_are_as_they_were(trl_as_it_is):
    score_labelled_positions_on_cpus()
    first = trl_utils._use_triton
    score_labelled_positions_on_cpus()
    assert trl_utils._use_triton is first and first(torch.device("cpu")) and not first(torch.device("meta"))


def test_a_batch_without_a_label(tiny_model, tmp_path, trl_as_it_is):
    """Its loss is 0 and can be differentiated."""
    score_labelled_positions_on_cpus()
    config = SFTConfig(str(tmp_path), max_steps=1, per_device_train_batch_size=1, **QUIET)
    trainer = SFTTrainer(tiny_model, config, train_dataset=Dataset.from_list([{"prompt": "A?", "completion": " B."}]))
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    batch["labels"] = torch.full_like(batch["labels"], -100)
    loss = trainer.compute_loss(trainer.model, batch)
    loss.backward()
    assert loss.item() == 0

"""With nothing labelled, FactGRPO is GRPO, through the same (B, T) code that labels take; one labelled token is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label
from tests.tiny import letters_reward, rows
from tests.trainers.recording import (
    SETTINGS,
    FactGRPO,
    FirstCharacterOfTheFirst,
    StockGRPO,
    WholeCompletion,
    same_to_the_last_bit,
)


LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo", "vespo"]
REPOSITORY = Path(__file__).resolve().parents[2]


def run(trainer_class, config_class, model, folder, verifier=None, config=None, **settings):
    args = config_class(output_dir=str(folder), **{**SETTINGS, **settings}, **(config or {}))
    extra = {} if verifier is None else {"verifier": verifier}
    trainer = trainer_class(model=model, reward_funcs=letters_reward, args=args, train_dataset=rows(), **extra)
    trainer.train()
    return trainer


def fact(model, folder, verifier, **settings):
    config = {"verify_scope": "completion", "factuality_reward_weight": 0.0}
    return run(FactGRPO, FactGRPOConfig, model, folder, verifier, config, **settings)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_all_zero_map_is_stock_grpo_to_the_last_bit(tiny_model, tmp_path, loss_type):
    stock = run(StockGRPO, GRPOConfig, tiny_model, tmp_path, loss_type=loss_type)
    ours = fact(tiny_model, tmp_path, WholeCompletion(), loss_type=loss_type)
    assert all(a.dim() == 2 for a in ours.advantages) and all(a.dim() == 1 for a in stock.advantages)
    assert same_to_the_last_bit(ours, stock) == []


@pytest.mark.parametrize("loss_type", [t for t in LOSS_TYPES if t != "vespo"])
def test_sequence_level_importance_sampling_within_1e_6(tiny_model, tmp_path, loss_type):
    """The (B, T) advantages sum the ratio's gradient in another order, so equality holds within 1e-6 only."""
    settings = dict(loss_type=loss_type, importance_sampling_level="sequence")
    stock = run(StockGRPO, GRPOConfig, tiny_model, tmp_path, **settings)
    ours = fact(tiny_model, tmp_path, WholeCompletion(), **settings)
    torch.testing.assert_close(torch.stack(ours.losses), torch.stack(stock.losses), rtol=1e-6, atol=1e-6)
    for a, b in zip(ours.recorder.gradients, stock.recorder.gradients, strict=True):
        for name in b:
            torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)
    assert ours.rewards_logged == stock.rewards_logged


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_one_labelled_token_moves_the_loss(tiny_model, tmp_path, loss_type):
    """Of one completion's first token, either support or contradiction goes against the sign of its advantage."""
    settings = dict(loss_type=loss_type, max_steps=2, num_iterations=1)
    neutral = fact(tiny_model, tmp_path, WholeCompletion(), **settings)
    moved = []
    for label in (Label.SUPPORTED, Label.CONTRADICTED):
        control = fact(tiny_model, tmp_path, FirstCharacterOfTheFirst(label), **settings)
        assert control.advantages[0].shape == neutral.advantages[0].shape
        changed = sum(int((a != b).sum()) for a, b in zip(control.advantages[:2], neutral.advantages[:2], strict=True))
        differs = any(not torch.equal(a, b) for a, b in zip(control.losses[:2], neutral.losses[:2], strict=True))
        assert differs == (changed > 0)
        moved.append(changed)
    assert min(moved) == 0 and max(moved) == 1


def launch_two_processes(model, *loss_types):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone",
               "-m", "tests.trainers.two_processes", model, *loss_types]  # fmt: skip
    return subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60 + 60 * len(loss_types)
    )


def test_two_processes_equal_stock_grpo_to_the_last_bit(tiny_model):
    result = launch_two_processes(tiny_model, "grpo", "dapo")
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert result.stdout.count("identical") == 4, result.stdout
    assert result.stdout.count("went on") == 2, result.stdout


@pytest.mark.slow
def test_two_processes_equal_stock_grpo_for_every_loss_type(tiny_model):
    result = launch_two_processes(tiny_model, *LOSS_TYPES)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert result.stdout.count("identical") == 2 * len(LOSS_TYPES), result.stdout

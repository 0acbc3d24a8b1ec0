"""With nothing labelled, FactGRPO is GRPO, through the same (B, T) code that labels take; one labelled token is not."""

import functools

import pytest
import torch
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import letters_reward, rows
from tests.trainers.recording import (
    SETTINGS,
    FactGRPO,
    FirstCharacterOfTheFirst,
    StockGRPO,
    WholeCompletion,
    same_to_the_last_bit,
)


LOSS_TYPES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo"]


def run(trainer_class, config_class, model, folder, verifier=None, config=None, **settings):
    args = config_class(output_dir=str(folder), **{**SETTINGS, **settings}, **(config or {}))
    extra = {} if verifier is None else {"verifier": verifier}
    trainer = trainer_class(model=model, reward_funcs=letters_reward, args=args, train_dataset=rows(), **extra)
    trainer.train()
    return trainer


def fact(model, folder, verifier, **settings):
    config = {"verify_scope": "completion", "factuality_reward_weight": 0.0}
    return run(FactGRPO, FactGRPOConfig, model, folder, verifier, config, **settings)


@pytest.fixture(scope="module")
def neutral(tiny_model, tmp_path_factory):
    """One run per loss type in which nothing is labelled."""
    folder = tmp_path_factory.mktemp("neutral")
    return functools.cache(lambda loss_type: fact(tiny_model, folder, WholeCompletion(), loss_type=loss_type))


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_an_all_zero_map_is_stock_grpo_to_the_last_bit(neutral, tiny_model, tmp_path, loss_type):
    stock, ours = run(StockGRPO, GRPOConfig, tiny_model, tmp_path, loss_type=loss_type), neutral(loss_type)
    assert all(a.dim() == 2 for a in ours.advantages) and all(a.dim() == 1 for a in stock.advantages)
    assert same_to_the_last_bit(ours, stock) == []


# The others differ from these in the sum's divisor or in the clipping of the same ratio.
FEW = ["grpo", "dapo", "luspo"]


@pytest.mark.parametrize(
    "loss_type", [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in LOSS_TYPES if each not in FEW)]
)
def test_sequence_level_importance_sampling_within_1e_6(tiny_model, tmp_path, loss_type):
    """GSPO-token sums the ratio's gradient in another order, so equality with GSPO holds within 1e-6 only."""
    settings = dict(loss_type=loss_type, importance_sampling_level="sequence", use_bias_correction_kl=False)
    stock = run(StockGRPO, GRPOConfig, tiny_model, tmp_path, **settings)
    ours = fact(tiny_model, tmp_path, WholeCompletion(), **settings)
    torch.testing.assert_close(torch.stack(ours.losses), torch.stack(stock.losses), rtol=1e-6, atol=1e-6)
    for a, b in zip(ours.recorder.gradients, stock.recorder.gradients, strict=True):
        for name in b:
            torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)
    assert ours.rewards_logged == stock.rewards_logged


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_one_labelled_token_moves_the_loss(neutral, tiny_model, tmp_path, loss_type):
    """Of one completion's first token, either support or contradiction goes against the sign of its advantage."""
    unlabelled, moved = neutral(loss_type), []
    for label in (Label.SUPPORTED, Label.CONTRADICTED):
        control = fact(tiny_model, tmp_path, FirstCharacterOfTheFirst(label), loss_type=loss_type, max_steps=1)
        assert len(control.losses) == 2
        cells = list(zip(control.advantages, unlabelled.advantages[:2], strict=True))
        assert all(a.shape == b.shape for a, b in cells)
        changed = sum(int((a != b).sum()) for a, b in cells)
        differs = any(not torch.equal(a, b) for a, b in zip(control.losses, unlabelled.losses[:2], strict=True))
        assert differs == (changed > 0)
        moved.append(changed)
    assert min(moved) == 0 and max(moved) == 1


def test_a_token_keeps_its_own_credit_under_sequence_level_importance_sampling(tiny_model, tmp_path):
    """Off the policy that sampled, the gradient is the ratio of the completion times each token's own."""
    trainer = fact(
        tiny_model, tmp_path, WholeCompletion(), importance_sampling_level="sequence", beta=0.0, max_steps=1
    )
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions([trainer.train_dataset[0]] * 4)
    mask = batch["completion_mask"]
    batch["advantages"] = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0))
    batch["old_per_token_logps"] = batch["old_per_token_logps"] + 0.1 * torch.randn(
        mask.shape, generator=torch.Generator().manual_seed(1)
    )
    trainer.epsilon_low = trainer.epsilon_high = 10.0
    trainer.loss_type = "grpo"

    def gradient(loss):
        found = torch.autograd.grad(loss, list(trainer.model.parameters()), retain_graph=True)
        return torch.cat([g.flatten() for g in found]).double()

    ours = gradient(trainer._compute_loss(trainer.model, dict(batch)))
    assert trainer.importance_sampling_level == "sequence" and "old_per_token_logps" in batch
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention = torch.cat([batch["prompt_mask"], mask], dim=1)
    expected = torch.zeros_like(ours)
    for row in range(4):
        length = int(mask[row].sum())
        logits = trainer.model(input_ids=ids[row : row + 1], attention_mask=attention[row : row + 1]).logits[0]
        logps = logits.log_softmax(-1)[-mask.size(1) - 1 : -1].gather(1, batch["completion_ids"][row][:, None])[:, 0]
        ratio = (logps - batch["old_per_token_logps"][row])[:length].mean().exp().item()
        for token in range(length):
            a = batch["advantages"][row, token].item()
            expected -= ratio * a / length / 4 * gradient(logps[token])
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-6)
    mean = (batch["advantages"] * mask).sum(1) / mask.sum(1)
    of_the_mean = gradient(trainer._compute_loss(trainer.model, {**batch, "advantages": mean}))
    assert (of_the_mean - ours).norm() > 0.1 * ours.norm()


@pytest.mark.slow
def test_two_processes_equal_stock_grpo_for_every_loss_type(tiny_model):
    done = run_ranks("tests.trainers.two_processes", tiny_model, *LOSS_TYPES)
    assert_ended_well(done)
    for each in done:
        assert each.stdout.count("identical") == len(LOSS_TYPES), each.stdout
        assert "went on" in each.stdout and "stopped" in each.stdout, each.stdout

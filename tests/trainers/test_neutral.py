"""With nothing labelled FactGRPO is GRPO, and with everything kept MaskDPO is DPO, through the same code that labels and
masks take, to the last bit; one labelled or masked token is not."""

import functools
import itertools

import pytest
import torch
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label
from tests.conftest import fast_few
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import letters_reward, rows
from tests.trainers import mask_dpo_recording
from tests.trainers.mask_dpo_recording import FULL_MASKS, VARIANTS, but_one, fully_labelled, pairs
from tests.trainers.recording import (
    SETTINGS,
    FactGRPO,
    FirstCharacterOfTheFirst,
    MaskDPO,
    StockDPO,
    StockGRPO,
    WholeCompletion,
    same_to_the_last_bit,
)


GRPO_LOSSES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo", "luspo"]
DPO_LOSSES = [
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
]  # fmt: skip


def run(trainer_class, config_class, model, folder, verifier=None, config=None, **settings):
    args = config_class(output_dir=str(folder), **{**SETTINGS, **settings}, **(config or {}))
    extra = {} if verifier is None else {"verifier": verifier}
    trainer = trainer_class(model=model, reward_funcs=letters_reward, args=args, train_dataset=rows(), **extra)
    trainer.skip_padding = False  # which changes the order of sums
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


@pytest.mark.parametrize("loss_type", fast_few(GRPO_LOSSES, 0))
def test_an_all_zero_map_is_stock_grpo(neutral, tiny_model, tmp_path, loss_type):
    stock, ours = run(StockGRPO, GRPOConfig, tiny_model, tmp_path, loss_type=loss_type), neutral(loss_type)
    assert all(a.dim() == 2 for a in ours.advantages) and all(a.dim() == 1 for a in stock.advantages)
    assert same_to_the_last_bit(ours, stock) == []


# The others differ from this one in the sum's divisor or in the clipping of the same ratio.
FEW = ["dapo"]


@pytest.mark.parametrize(
    "loss_type", [*FEW, *(pytest.param(each, marks=pytest.mark.slow) for each in GRPO_LOSSES if each not in FEW)]
)
def test_sequence_level_importance_sampling_within_1e_6(tiny_model, tmp_path, loss_type):
    """GSPO-token sums the ratio's gradient in another order, so equality with GSPO holds within 1e-6 a token only: where the
    others take a mean, luspo multiplies by the 16 tokens of a completion."""
    settings = dict(loss_type=loss_type, importance_sampling_level="sequence", use_bias_correction_kl=False)
    stock = run(StockGRPO, GRPOConfig, tiny_model, tmp_path, **settings)
    ours = fact(tiny_model, tmp_path, WholeCompletion(), **settings)
    tolerance = 1e-6 * (SETTINGS["max_completion_length"] if loss_type == "luspo" else 1)
    torch.testing.assert_close(torch.stack(ours.losses), torch.stack(stock.losses), rtol=1e-6, atol=tolerance)
    for a, b in zip(ours.recorder.gradients, stock.recorder.gradients, strict=True):
        for name in b:
            torch.testing.assert_close(a[name], b[name], rtol=1e-5, atol=1e-6)
    for a, b in zip(ours.logged, stock.logged, strict=True):
        assert all(a[name] == b[name] for name in b if name.startswith("reward"))


@pytest.mark.parametrize("loss_type", fast_few(GRPO_LOSSES, 0))
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
    noise = [torch.randn(mask.shape, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1)]
    batch["advantages"], batch["old_per_token_logps"] = noise[0], batch["old_per_token_logps"] + 0.1 * noise[1]
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


# DPO


@pytest.fixture(scope="module")
def stock_of(tiny_model, tmp_path_factory):
    """One run of stock DPO for each variant."""
    folder = tmp_path_factory.mktemp("stock")
    return functools.cache(lambda variant: mask_dpo_recording.run(StockDPO, tiny_model, folder, **VARIANTS[variant]))


def compare(model, folder, data=None, full="keep", stock=None, **settings):
    stock = stock or mask_dpo_recording.run(StockDPO, model, folder, data, **settings)
    ours = mask_dpo_recording.run(MaskDPO, model, folder, fully_labelled(data), **FULL_MASKS[full], **settings)
    assert ours.mask_statistics["train"].kept == {"chosen": 1.0, "rejected": 1.0}
    assert same_to_the_last_bit(ours, stock) == []


@pytest.mark.parametrize(
    ("full", "variant"), fast_few(itertools.product(FULL_MASKS, VARIANTS), 0, len(FULL_MASKS) * len(VARIANTS) - 1)
)
def test_full_masks_are_stock_dpo(stock_of, tiny_model, tmp_path, variant, full):
    compare(tiny_model, tmp_path, full=full, stock=stock_of(variant), **VARIANTS[variant])


SLOW = [
    {"max_length": None, "pad_to_multiple_of": 16},
    {"ld_alpha": 0.3},
    {"loss_type": ["sigmoid", "sft"], "loss_weights": [0.8, 0.3]},
    {"f_divergence_type": "js_divergence"},
    {"f_divergence_type": "alpha_divergence"},
    {"gradient_checkpointing": True},
    {"sync_ref_model": True, "ref_model_sync_steps": 1},
    {"precompute_ref_log_probs": True, "ld_alpha": 0.3},
    *({"loss_type": [each], "label_smoothing": 1e-3 * (each == "exo_pair"), **variant}
      for each in DPO_LOSSES for variant in VARIANTS.values()),
]  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 30, "truncation_mode": "keep_end"},
        pytest.param({"max_length": 30, "truncation_mode": "keep_start"}, marks=pytest.mark.slow),
        *(pytest.param(settings, marks=pytest.mark.slow) for settings in SLOW),
    ],
    ids=str,
)
def test_options_and_losses_of_the_parent(tiny_model, tmp_path, settings):
    compare(tiny_model, tmp_path, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("implicit", fast_few([False, True], 1))
def test_plain_text(tiny_model, tmp_path, implicit):
    def join(row):
        found, shift = {"prompt": None}, len(row["prompt"])
        for side in ("chosen", "rejected"):
            found[side] = row["prompt"] + row[side]
            moved = [{**s, "start": s["start"] + shift, "end": s["end"] + shift} for s in row[f"{side}_spans"]]
            found[f"{side}_spans"] = moved
        return found

    data = pairs(conversational=False)
    compare(tiny_model, tmp_path, data.map(join).remove_columns("prompt") if implicit else data)


@pytest.mark.parametrize("variant", fast_few(["plain", "peft+precompute"], 0))
def test_one_masked_token_moves_loss_and_gradient(stock_of, tiny_model, tmp_path, variant):
    stock, settings = stock_of(variant), {**FULL_MASKS["keep"], **VARIANTS[variant]}
    control = mask_dpo_recording.run(MaskDPO, tiny_model, tmp_path, but_one(), **settings)
    cells = zip(control.batches, stock.batches, strict=True)
    changed = [int((a["completion_mask"] != b["completion_mask"]).sum()) for a, b in cells]
    assert max(changed) == 1 and sum(changed[:4]) == 1  # the four batches of the first epoch hold the row once
    differs = same_to_the_last_bit(control, stock)
    assert "losses" in differs and any(name.startswith("gradient") for name in differs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "cases"), [("two_processes", GRPO_LOSSES), ("mask_dpo_recording", list(VARIANTS))], ids=["grpo", "dpo"]
)
def test_two_processes_equal_the_stock_trainers(tiny_model, tmp_path, module, cases):
    done = run_ranks(f"tests.trainers.{module}", tiny_model, tmp_path, *cases)
    assert_ended_well(done)
    assert [each.stdout.count("identical") for each in done] == [len(cases)] * 2, [each.stdout for each in done]
    if module == "two_processes":
        assert all(word in each.stdout for each in done for word in ("ahead", "went on", "stopped"))

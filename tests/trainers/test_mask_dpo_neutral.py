"""With everything kept, MaskDPO is DPO, through the same code that masks take; one masked token is not."""

import functools

import pytest

from tests.processes import assert_ended_well, run_ranks
from tests.trainers.mask_dpo_recording import (
    FULL_MASKS,
    VARIANTS,
    MaskDPO,
    StockDPO,
    but_one,
    fully_labelled,
    make,
    pairs,
    run,
    same_to_the_last_bit,
)


LOSS_TYPES = [
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
]  # fmt: skip


@pytest.fixture(scope="module")
def stock_of(tiny_model, tmp_path_factory):
    """One run of stock DPO for each variant."""
    folder = tmp_path_factory.mktemp("stock")
    return functools.cache(lambda variant: run(StockDPO, tiny_model, folder, **VARIANTS[variant]))


def compare(model, folder, data=None, full="keep", stock=None, **settings):
    stock = stock or run(StockDPO, model, folder, data, **settings)
    neutral = run(MaskDPO, model, folder, fully_labelled(data), **FULL_MASKS[full], **settings)
    assert neutral.mask_statistics["train"].kept == {"chosen": 1.0, "rejected": 1.0}
    assert same_to_the_last_bit(neutral, stock) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_full_masks_are_stock_dpo_to_the_last_bit(stock_of, tiny_model, tmp_path, variant):
    compare(tiny_model, tmp_path, stock=stock_of(variant), **VARIANTS[variant])


def test_no_mask_by_rule_is_stock_dpo_to_the_last_bit(stock_of, tiny_model, tmp_path):
    compare(tiny_model, tmp_path, full="all", stock=stock_of("plain"))


@pytest.mark.parametrize("mode", ["keep_start", "keep_end"])
def test_both_truncation_modes(tiny_model, tmp_path, mode):
    compare(tiny_model, tmp_path, max_length=30, truncation_mode=mode)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": None, "pad_to_multiple_of": 16},
        {"ld_alpha": 0.3},
        {"loss_type": ["sigmoid", "sft"], "loss_weights": [0.8, 0.3]},
        {"f_divergence_type": "js_divergence"},
        {"f_divergence_type": "alpha_divergence"},
        {"gradient_checkpointing": True},
        {"sync_ref_model": True, "ref_model_sync_steps": 1},
        {"precompute_ref_log_probs": True, "ld_alpha": 0.3},
    ],
    ids=str,
)
def test_options_of_the_parent(tiny_model, tmp_path, settings):
    compare(tiny_model, tmp_path, **settings)


def test_plain_text(tiny_model, tmp_path):
    compare(tiny_model, tmp_path, pairs(conversational=False))


def test_plain_text_with_an_implicit_prompt(tiny_model, tmp_path):
    def join(row):
        found = {"prompt": None}
        for side in ("chosen", "rejected"):
            found[side] = row["prompt"] + row[side]
            shift = len(row["prompt"])
            moved = [{**s, "start": s["start"] + shift, "end": s["end"] + shift} for s in row[f"{side}_spans"]]
            found[f"{side}_spans"] = moved
        return found

    data = pairs(conversational=False).map(join).remove_columns("prompt")
    compare(tiny_model, tmp_path, data)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_every_loss_type(tiny_model, tmp_path, loss_type, variant):
    smoothing = {"label_smoothing": 1e-3} if loss_type == "exo_pair" else {}
    compare(tiny_model, tmp_path, loss_type=[loss_type], **smoothing, **VARIANTS[variant])


@pytest.mark.parametrize("variant", ["plain", "peft+precompute"])
def test_one_masked_token_moves_loss_and_gradient(stock_of, tiny_model, tmp_path, variant):
    stock = stock_of(variant)
    control = run(MaskDPO, tiny_model, tmp_path, but_one(), **FULL_MASKS["keep"], **VARIANTS[variant])
    cells = zip(control.batches, stock.batches, strict=True)
    changed = [int((a["completion_mask"] != b["completion_mask"]).sum()) for a, b in cells]
    assert max(changed) == 1 and sum(changed[:4]) == 1  # the four batches of the first epoch hold the row once
    differs = same_to_the_last_bit(control, stock)
    assert "losses" in differs and any(name.startswith("gradient") for name in differs)


def test_a_masked_token_gets_no_gradient_of_its_own(tiny_model, tmp_path):
    """The masked token's log-probability is zero in the sum, and stays context for the tokens after it."""
    control = make(MaskDPO, tiny_model, tmp_path, but_one(), **FULL_MASKS["keep"])
    row = control.train_dataset[0]
    assert row["chosen_mask"][0] == 0 and set(row["chosen_mask"][1:]) <= {1, 2}
    batch = control.data_collator([row])
    n = len(row["prompt_ids"])
    assert batch["completion_mask"][0, : n + 2].tolist() == [0] * n + [0, 1]
    assert batch["attention_mask"][0, n] == 1
    assert batch["input_ids"][0, n] == row["chosen_ids"][0]


@pytest.mark.slow
def test_two_processes_equal_stock_dpo_to_the_last_bit(tiny_model, tmp_path):
    done = run_ranks("tests.trainers.mask_dpo_recording", tiny_model, tmp_path, *VARIANTS)
    assert_ended_well(done)
    assert [each.stdout.count("identical") for each in done] == [len(VARIANTS)] * 2

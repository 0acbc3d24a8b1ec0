"""What MaskDPO does with settings, with pairs that cannot teach anything, with caches and with other kinds of datasets."""

import math
from collections import Counter

import pytest
import torch
from datasets import Dataset, load_from_disk
from transformers import AutoTokenizer

from hf_factuality import MaskDPOConfig, MaskDPOTrainer
from hf_factuality.errors import DataError
from tests.conftest import fast_few
from tests.trainers.mask_dpo_recording import LABELS, SETTINGS, make, pairs, run
from tests.trainers.recording import MaskDPO


def labelled(*labels):
    """One sentence per completion: (label of the chosen one, label of the rejected one) per pair."""
    rows = []
    for number, (chosen, rejected) in enumerate(labels):
        row = {"prompt": [{"role": "user", "content": f"Who is {number}?"}]}
        for side, label in (("chosen", chosen), ("rejected", rejected)):
            text = f"Ada sat on chair {number} {side}."
            row[side] = [{"role": "assistant", "content": text}]
            row[f"{side}_spans"] = [{"start": 0, "end": len(text), "label": label}]
        rows.append(row)
    return Dataset.from_list(rows)


GOOD = ("supported", "contradicted")


# Which labels count, and pairs without any.


def test_pairs_without_signal_are_dropped_and_counted(tiny_model, tmp_path, caplog):
    data = labelled(GOOD, ("contradicted", "contradicted"), ("no_fact", "unverifiable"), ("supported", "supported"),
                    (None, None), ("supported", None), GOOD)  # fmt: skip
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path, data, tokens_outside="after_last")
    assert [row["prompt"][0]["content"] for row in trainer.train_dataset] == ["Who is 0?", "Who is 2?", "Who is 6?"]
    statistics = trainer.mask_statistics["train"]
    assert (statistics.pairs, statistics.dropped) == (7, 4)
    assert statistics.dropped_by_side == {"chosen": 2, "rejected": 3}
    assert "4 of 7 pairs of the train dataset are dropped" in caplog.text


def test_a_pair_that_truncation_empties_is_dropped(tiny_model, tmp_path):
    """The released code trains it as plain DPO."""
    data = pairs(2)
    rows = data.to_list()
    for side, label in zip(("chosen", "rejected"), GOOD, strict=True):  # only the last sentence counts
        rows[0][f"{side}_spans"] = [*({**s, "label": None} for s in rows[0][f"{side}_spans"][:2]),
                                    {**rows[0][f"{side}_spans"][2], "label": label}]  # fmt: skip
    data = Dataset.from_list(rows)
    for mode, dropped in (("keep_start", 1), ("keep_end", 0)):
        trainer = make(MaskDPOTrainer, tiny_model, tmp_path, data, max_length=22, truncation_mode=mode)
        assert trainer.mask_statistics["train"].dropped == dropped


def test_prompts_that_fill_the_sequence_are_counted(tiny_model, tmp_path):
    """The parent drops these in silence."""
    rows = pairs(4).to_list()
    for row in rows[:3]:
        row["prompt"][0]["content"] *= 4
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path, Dataset.from_list(rows), max_length=40)
    statistics = trainer.mask_statistics["train"]
    assert (statistics.pairs, statistics.dropped, len(trainer.train_dataset)) == (4, 3, 1)
    with pytest.raises(DataError, match="no pair of the train dataset is left: of 3, .*max_length=40"):
        make(MaskDPOTrainer, tiny_model, tmp_path, Dataset.from_list(rows[:3]), max_length=40)


def test_labels_and_masks_on_one_side_only(tiny_model, tmp_path):
    data = labelled(GOOD, ("contradicted", "contradicted"), (None, "supported"))
    one = make(MaskDPOTrainer, tiny_model, tmp_path, data, chosen_labels=["all"])
    assert len(one.train_dataset) == 2  # the third has nothing false to learn against
    assert one.mask_statistics["train"].kept["chosen"] == 1.0 > one.mask_statistics["train"].kept["rejected"]
    other = make(MaskDPOTrainer, tiny_model, tmp_path, data, chosen_labels="contradicted", rejected_labels=["all"])
    assert [row["prompt"][0]["content"] for row in other.train_dataset] == ["Who is 1?"]


@pytest.mark.slow
def test_shares_and_dropped_pairs_are_logged(tiny_model, tmp_path):
    data = pairs(7).to_list() + labelled((None, None)).to_list()
    trainer = run(MaskDPO, tiny_model, tmp_path, Dataset.from_list(data))
    kept, total = Counter(), Counter()
    for row in trainer.train_dataset:
        for side in ("chosen", "rejected"):
            kept[side] += sum(value > 0 for value in row[f"{side}_mask"])
            total[side] += len(row[f"{side}_ids"])
    entry = trainer.state.log_history[0]
    assert entry["mask/chosen_kept"] == pytest.approx(kept["chosen"] / total["chosen"])
    assert entry["mask/rejected_kept"] == pytest.approx(kept["rejected"] / total["rejected"])
    assert 0.1 < entry["mask/chosen_kept"] < 0.9
    assert entry["mask/dropped_pairs"] == 1.0
    assert {"rewards/chosen", "rewards/margins", "rewards/accuracies", "logps/rejected"} <= entry.keys()


def test_the_tokenizers_end_of_sequence_pads_if_nothing_else_does(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model, pad_token=None)
    args = MaskDPOConfig(str(tmp_path), **SETTINGS)
    trainer = MaskDPOTrainer(tiny_model, args=args, train_dataset=pairs(), processing_class=tokenizer)
    batch = trainer.data_collator(list(trainer.train_dataset))
    assert batch["input_ids"][batch["attention_mask"] == 0].unique().tolist() == [tokenizer.eos_token_id]


# Reference log-probabilities in the cache.


class CountsReferences(MaskDPOTrainer):
    computed = 0

    def compute_ref_log_probs(self, model, inputs):
        type(self).computed += 1
        return super().compute_ref_log_probs(model, inputs)


@pytest.mark.slow
def test_no_stale_reference_log_probabilities(tiny_model, tmp_path):
    """On disk, where TRL finds a cache by the fingerprint of the dataset and the weights of the model alone."""
    pairs(6).save_to_disk(tmp_path / "data")

    def references(**settings):
        CountsReferences.computed = 0
        data = load_from_disk(tmp_path / "data")
        settings = {"precompute_ref_log_probs": True, "max_length": 36, **settings}
        trainer = make(CountsReferences, tiny_model, tmp_path, data, **settings)
        rows = trainer.train_dataset
        return CountsReferences.computed, [list(rows[f"ref_{side}_logps"]) for side in ("chosen", "rejected")]

    computed, first = references()
    assert computed > 0
    assert references() == (0, first)  # the same settings find the cache
    changes = [
        {"chosen_labels": ["supported"]},
        {"rejected_labels": LABELS},
        {"tokens_outside": "after_last"},
        {"max_length": 26},
        {"max_length": None},
        {"truncation_mode": "keep_end"},
        {"ld_alpha": 0.5},
    ]
    for change in changes:
        computed, found = references(**change)
        assert computed > 0, change
        assert found != first, change
    assert references(**change) == (0, found)


def test_cached_references_are_those_of_the_masked_tokens(tiny_model, tmp_path):
    trainer = make(MaskDPO, tiny_model, tmp_path, precompute_ref_log_probs=True)
    row = trainer.train_dataset[0]
    for side in ("chosen", "rejected"):
        ids = row["prompt_ids"] + row[f"{side}_ids"]
        with torch.no_grad():
            logps = trainer.model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        total = sum(
            logps[place - 1, ids[place]].item()
            for place in range(len(row["prompt_ids"]), len(ids))
            if row[f"{side}_mask"][place - len(row["prompt_ids"])]
        )
        assert math.isclose(row[f"ref_{side}_logps"], total, rel_tol=1e-5)


# Kinds of datasets, and evaluation.


@pytest.mark.parametrize("workers", fast_few([0, 2], 0))
def test_a_stream_is_masked_dropped_and_counted_as_it_passes(tiny_model, tmp_path, workers):
    rows = pairs(6).to_list()
    data = Dataset.from_list([rows[0], *labelled((None, None)).to_list(), *rows[1:]])
    stream = data.to_iterable_dataset(num_shards=2)
    settings = {"dataloader_num_workers": workers, "max_steps": 2, "gradient_accumulation_steps": 1}
    trainer = run(MaskDPO, tiny_model, tmp_path, stream, **settings)
    whole = make(MaskDPO, tiny_model, tmp_path, data)
    assert trainer.mask_statistics["train"].dropped == 1
    assert trainer.state.log_history[0]["mask/dropped_pairs"] == 1.0
    known = {tuple(row["prompt_ids"] + row["chosen_ids"]): row for row in whole.train_dataset}
    pad = trainer.processing_class.pad_token_id
    for batch in trainer.batches:
        for ids, mask in list(zip(batch["input_ids"], batch["completion_mask"], strict=True))[:2]:
            length = int((ids != pad).sum())
            row = known[tuple(ids[:length].tolist())]
            expected = [0] * len(row["prompt_ids"]) + [int(value > 0) for value in row["chosen_mask"]]
            assert mask[:length].tolist() == expected


@pytest.mark.slow
def test_evaluation_prepares_its_datasets_the_same_way(tiny_model, tmp_path):
    args = MaskDPOConfig(str(tmp_path), **SETTINGS)
    data = {"near": pairs(4, seed=1), "far": labelled(GOOD, (None, None))}
    trainer = MaskDPO(tiny_model, args=args, train_dataset=pairs(), eval_dataset=data)
    assert trainer.mask_statistics["far"].dropped == 1
    found = trainer.evaluate()
    trainer.evaluate({"train": data["far"]})
    assert trainer.mask_statistics["eval_train"].dropped == 1
    assert (trainer.mask_statistics["train"].pairs, trainer.mask_statistics["train"].dropped) == (8, 0)
    again = trainer.evaluate({"near": trainer.eval_dataset["near"]})  # prepared once more
    assert found["eval_near_loss"] == again["eval_near_loss"]
    assert found["eval_far_loss"] == pytest.approx(math.log(2))  # the policy is still the reference
    with pytest.raises(DataError, match="no column 'rejected_spans'"):
        trainer.evaluate(pairs(2).remove_columns("rejected_spans"))


# Training.


@pytest.mark.parametrize("peft", fast_few([False, True], 0), ids=["full", "peft"])
def test_training_widens_the_margin_and_moves_what_it_should(tiny_model, tmp_path, peft):
    settings = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "max_steps": 12}
    trainer = make(MaskDPO, tiny_model, tmp_path, peft=peft, learning_rate=5e-3, beta=0.5, **settings)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, parameter in trainer.model.named_parameters() if not torch.equal(parameter, before[name])}
    expected = {name for name in before if "lora_" in name} if peft else set(before)
    assert moved == expected and moved
    log = [entry for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert log[0]["rewards/margins"] == 0.0 < 0.1 < log[-1]["rewards/margins"]
    assert log[-1]["loss"] < log[0]["loss"]


def test_model_card(tiny_model, tmp_path):
    trainer = make(MaskDPOTrainer, tiny_model, tmp_path, tokens_outside="after_last", loss_type=["ipo"], beta=0.3)
    trainer.create_model_card(model_name="mine", dataset_name=str(tmp_path))
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "Mask-DPO" in card and "2503.02846" in card and "mask-dpo" in card
    assert "ipo loss on supported, hedged_supported, no_fact spans" in card and "tokens outside: after_last" in card
    assert "| `beta` | `0.3` |" in card and str(tmp_path) not in card

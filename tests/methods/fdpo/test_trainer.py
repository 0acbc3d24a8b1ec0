"""FDPOTrainer against stock DPO to the last bit, against arithmetic by hand, and what it refuses."""

import inspect
import math

import pytest
import torch
from datasets import Dataset, load_from_disk
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import DPOConfig, DPOTrainer

from hf_factuality import FDPOConfig, FDPOTrainer
from hf_factuality.errors import DataError
from hf_factuality.hub.cards.check import card_problems
from tests.conftest import fast_few
from tests.trainers.mask_dpo_recording import LORA, SETTINGS, VARIANTS, pairs
from tests.trainers.recording import RecordsLosses, StockDPO, same_to_the_last_bit


class FDPO(RecordsLosses, FDPOTrainer):
    pass


def labelled(labels, conversational=True):
    """Pairs with one label a side, `(chosen, rejected)`, and without spans."""
    rows = pairs(len(labels), conversational).remove_columns(["chosen_spans", "rejected_spans"]).to_list()
    columns = ("chosen_hallucinated", "rejected_hallucinated")
    return Dataset.from_list(
        [row | dict(zip(columns, both, strict=True)) for row, both in zip(rows, labels, strict=True)]
    )


def exchanged(dataset, *numbers):
    """With the completions of these rows the other way round."""
    rows = dataset.to_list()
    for number in numbers:
        row = rows[number]
        row["chosen"], row["rejected"] = row["rejected"], row["chosen"]
    return Dataset.from_list(rows)


def make(trainer_class, model, folder, dataset, peft=False, ref_model=None, eval_dataset=None, **settings):
    config = FDPOConfig if issubclass(trainer_class, FDPOTrainer) else DPOConfig
    args = config(output_dir=str(folder), **{**SETTINGS, **settings})
    extra = {"peft_config": LoraConfig(**LORA)} if peft else {}
    return trainer_class(model, ref_model, args=args, train_dataset=dataset, eval_dataset=eval_dataset, **extra)


def run(*args, **kwargs):
    trainer = make(*args, **kwargs)
    trainer.train()
    return trainer


ORDERED, SAME, BOTH, WRONG, UNKNOWN = (0, 1), (0, 0), (1, 1), (1, 0), (None, 1)
MIXED = [ORDERED, SAME, BOTH, ORDERED, UNKNOWN, SAME, ORDERED, BOTH]


# Against stock DPO.


@pytest.mark.parametrize("variant", fast_few(VARIANTS, 3))
def test_no_flip_and_no_margin_is_stock_dpo_to_the_last_bit(tiny_model, tmp_path, variant):
    data = labelled(MIXED)
    stock = run(StockDPO, tiny_model, tmp_path, data, **VARIANTS[variant])
    neutral = run(FDPO, tiny_model, tmp_path, data, factuality_margin=0.0, **VARIANTS[variant])
    assert same_to_the_last_bit(neutral, stock) == []
    # The control: a margin of a thousandth of a nat, and one pair that is exchanged.
    moved = run(FDPO, tiny_model, tmp_path, data, factuality_margin=1e-3, **VARIANTS[variant])
    assert "losses" in same_to_the_last_bit(moved, stock)
    flipped = labelled([WRONG, *MIXED[1:]])
    moved = run(FDPO, tiny_model, tmp_path, flipped, factuality_margin=0.0, **VARIANTS[variant])
    assert "losses" in same_to_the_last_bit(moved, stock)


@pytest.mark.parametrize(
    "loss_type", fast_few(["hinge", "ipo", "nca_pair", "apo_zero", "aot", "sigmoid_norm", ["sigmoid", "sft"]], 6)
)
def test_other_losses_without_a_margin(tiny_model, tmp_path, loss_type):
    data = labelled(MIXED)
    stock = run(StockDPO, tiny_model, tmp_path, data, loss_type=loss_type)
    neutral = run(FDPO, tiny_model, tmp_path, data, loss_type=loss_type, factuality_margin=0.0)
    assert same_to_the_last_bit(neutral, stock) == []


@pytest.mark.parametrize("conversational", fast_few([True, False], 0))
def test_pairs_of_equal_or_unknown_labels_are_those_of_stock_dpo(tiny_model, tmp_path, conversational):
    data = labelled([SAME, BOTH, UNKNOWN, (1, None)] * 2, conversational)
    stock = run(StockDPO, tiny_model, tmp_path, data)
    ours = run(FDPO, tiny_model, tmp_path, data, factuality_margin=50.0)
    assert same_to_the_last_bit(ours, stock) == []


def test_a_flip_is_the_pair_the_other_way_round(tiny_model, tmp_path):
    data = labelled([WRONG, SAME, WRONG, ORDERED] * 2)
    stock = run(StockDPO, tiny_model, tmp_path, exchanged(data, 0, 2, 4, 6))
    ours = run(FDPO, tiny_model, tmp_path, data, factuality_margin=0.0)
    assert same_to_the_last_bit(ours, stock) == []
    assert ours.pair_counts["train"] == {"ordered": 2, "flipped": 4, "reversed": 0, "same": 2, "unknown": 0}
    kept = run(FDPO, tiny_model, tmp_path, data, factuality_margin=0.0, flip_pairs=False)
    assert same_to_the_last_bit(kept, run(StockDPO, tiny_model, tmp_path, data)) == []
    assert kept.pair_counts["train"]["reversed"] == 4


def test_an_implicit_prompt_is_flipped_too(tiny_model, tmp_path):
    rows = labelled([WRONG] * 4, conversational=False).to_list()
    implicit = [
        {
            **{k: v for k, v in row.items() if k != "prompt"},
            **{s: row["prompt"] + row[s] for s in ("chosen", "rejected")},
        }
        for row in rows
    ]
    ours = make(FDPO, tiny_model, tmp_path, Dataset.from_list(implicit)).train_dataset
    stock = make(StockDPO, tiny_model, tmp_path, exchanged(Dataset.from_list(implicit), 0, 1, 2, 3)).train_dataset
    for column in ("prompt_ids", "chosen_ids", "rejected_ids"):
        assert ours[:][column] == stock[:][column]


# Against arithmetic.


@pytest.mark.parametrize(
    ("settings", "ordered", "same", "against"),
    fast_few([
        # The policy is the reference: m = 0. log(1 + e^1), log 2, log(1 + e^-1).
        ({}, 1.313262, 0.693147, 0.313262),
        ({"beta": 0.5, "factuality_margin": 4}, 2.126928, 0.693147, 0.126928),
        ({"loss_type": "hinge"}, 2.0, 1.0, 0.0),
        # 1.8 of log(1 + e^1) less .2 / .8 ... : (.9 log(1 + e) - .1 log(1 + 1 / e)) / .8
        ({"loss_type": "robust", "label_smoothing": 0.1}, 1.438262, 0.693147, 0.188262),
    ], 3),
)  # fmt: skip
def test_losses_before_the_first_step(tiny_model, tmp_path, settings, ordered, same, against):
    """beta .1 and lambda 10 if nothing else is said."""
    sets = {"ordered": labelled([ORDERED] * 2), "flipped": labelled([WRONG] * 2), "same": labelled([SAME, BOTH])}
    settings = {"beta": 0.1, "factuality_margin": 10.0, **settings}
    trainer = make(FDPO, tiny_model, tmp_path, labelled(MIXED), eval_dataset=sets, **settings)
    found = trainer.evaluate()
    assert found["eval_ordered_loss"] == found["eval_flipped_loss"] == pytest.approx(ordered, abs=2e-6)
    assert found["eval_same_loss"] == pytest.approx(same, abs=2e-6)
    kept = make(FDPO, tiny_model, tmp_path, labelled(MIXED), eval_dataset=sets, flip_pairs=False, **settings)
    assert kept.evaluate()["eval_flipped_loss"] == pytest.approx(against, abs=2e-6)


def test_a_policy_that_is_not_the_reference_against_a_loop(tiny_model, tmp_path):
    """In float64, a sequence at a time, without trainer or collator: -log sigmoid(.2 (m - 7 gap))."""
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    policy.save_pretrained(tmp_path / "policy")
    reference = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    data = labelled([ORDERED, WRONG, BOTH, UNKNOWN, ORDERED, SAME, WRONG, WRONG])
    trainer = make(
        FDPO, policy, tmp_path, data, ref_model=reference, eval_dataset=data, beta=0.2, factuality_margin=7.0,
        per_device_eval_batch_size=8,
    )  # fmt: skip
    expected = []
    models = [AutoModelForCausalLM.from_pretrained(name).double() for name in (tmp_path / "policy", tiny_model)]
    for row in data:
        totals = {}
        for side in ("chosen", "rejected"):
            head = f"<|user|>{row['prompt'][0]['content']}<|end|><|assistant|>"
            ids = trainer.processing_class(head + row[side][0]["content"] + "<|end|>")["input_ids"]
            start = len(trainer.processing_class(head)["input_ids"])
            for sign, model in zip((1, -1), models, strict=True):
                logps = model(torch.tensor([ids])).logits[0].log_softmax(-1)
                total = sum(logps[place - 1, ids[place]].item() for place in range(start, len(ids)))
                totals[side] = totals.get(side, 0.0) + sign * total
        m, labels = totals["chosen"] - totals["rejected"], (row["chosen_hallucinated"], row["rejected_hallucinated"])
        m = -m if labels == WRONG else m
        expected.append(math.log1p(math.exp(-0.2 * (m - 7.0 * (labels in (ORDERED, WRONG))))))
    found = trainer.evaluate()
    assert found["eval_loss"] == pytest.approx(sum(expected) / 8, rel=1e-5)
    assert found["eval_fdpo/margin"] == pytest.approx(7.0 * 5 / 8)
    assert max(expected) - min(expected) > 0.5  # the pairs differ


def test_training_raises_the_factual_completion_and_moves_all_weights(tiny_model, tmp_path):
    trainer = make(FDPO, tiny_model, tmp_path, labelled([ORDERED, WRONG] * 4), max_steps=12)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert entries[0]["loss"] == pytest.approx(1.313262, abs=1e-5) and entries[-1]["loss"] < 0.8 * entries[0]["loss"]
    assert entries[0]["fdpo/margin"] == 10.0
    assert all((value != before[name]).any() for name, value in trainer.model.named_parameters())
    # By the parent's figure, after the margin of 10 with beta .1: -1 at first.
    assert entries[0]["rewards/margins"] == pytest.approx(-1.0, abs=1e-5) and entries[-1]["rewards/margins"] > 0


# Labels.


def test_labels_come_from_spans_where_there_are_no_columns(tiny_model, tmp_path):
    rows = pairs(6).to_list()
    labels = [("supported", "contradicted"), ("contradicted", "no_fact"), ("unverifiable", "contradicted"),
              (None, "supported"), ("hedged_supported", "no_fact"), ("supported", "supported")]  # fmt: skip
    for row, both in zip(rows, labels, strict=True):
        for side, label in zip(("chosen", "rejected"), both, strict=True):
            row[f"{side}_spans"] = [{**span, "label": label} for span in row[f"{side}_spans"]]
    trainer = make(FDPO, tiny_model, tmp_path, Dataset.from_list(rows))
    assert trainer.train_dataset["pair_order"][:] == ["ordered", "flipped", "same", "unknown", "same", "same"]
    assert not {"chosen_spans", "rejected_spans"} & {*trainer.train_dataset.column_names}
    assert trainer.train_dataset[1]["chosen"] == rows[1]["rejected"]
    # Columns of labels go first.
    rows = [{**row, "chosen_hallucinated": True, "rejected_hallucinated": False} for row in rows]
    trainer = make(FDPO, tiny_model, tmp_path, Dataset.from_list(rows))
    assert trainer.pair_counts["train"]["flipped"] == 6


def test_unknown_labels_are_counted(tiny_model, tmp_path, caplog):
    trainer = make(FDPO, tiny_model, tmp_path, labelled(MIXED), eval_dataset={"train": labelled([WRONG])})
    assert trainer.pair_counts["train"] == {"ordered": 3, "flipped": 0, "reversed": 0, "same": 4, "unknown": 1}
    assert trainer.pair_counts["eval_train"]["flipped"] == 1
    assert "1 of 8 pairs of the train dataset lack a label" in caplog.text


def test_a_dataset_that_was_prepared_is_not_flipped_back(tiny_model, tmp_path):
    data = labelled([WRONG, ORDERED, SAME, SAME])
    trainer = make(FDPO, tiny_model, tmp_path, data, eval_dataset=data)
    first = trainer.evaluate()["eval_loss"]
    assert trainer.evaluate(trainer.eval_dataset)["eval_loss"] == trainer.evaluate(data)["eval_loss"] == first


def test_a_stream_is_ordered_as_it_passes(tiny_model, tmp_path):
    data = labelled([WRONG, ORDERED, SAME, UNKNOWN] * 2)
    whole = run(FDPO, tiny_model, tmp_path, data, train_sampling_strategy="sequential")
    stream = run(FDPO, tiny_model, tmp_path, data.to_iterable_dataset())
    assert stream.pair_counts == {}
    assert [batch["factuality_margin"].tolist() for batch in stream.batches][:2] == [[10.0, 10.0], [0.0, 0.0]]
    assert [loss.item() for loss in stream.losses][:4] == [loss.item() for loss in whole.losses][:4]


@pytest.mark.slow
def test_cached_references_are_those_of_the_order(tiny_model, tmp_path):
    """TRL finds them by the fingerprint of the dataset and the weights of the model; a margin does not change them."""
    labelled([WRONG] * 4).save_to_disk(tmp_path / "data")

    class Counts(FDPOTrainer):
        computed = 0

        def compute_ref_log_probs(self, model, inputs):
            type(self).computed += 1
            return super().compute_ref_log_probs(model, inputs)

    def references(**settings):
        Counts.computed = 0
        settings = {"precompute_ref_log_probs": True, "max_length": 36, "truncation_mode": "keep_end", **settings}
        rows = make(Counts, tiny_model, tmp_path, load_from_disk(tmp_path / "data"), **settings).train_dataset
        return Counts.computed > 0, rows["ref_chosen_logps"][:], rows["ref_rejected_logps"][:]

    new, chosen, rejected = references()
    assert new and references(factuality_margin=3.0) == (False, chosen, rejected)
    assert references(flip_pairs=False) == (True, rejected, chosen)
    for change in ({"max_length": 26}, {"max_length": None}, {"truncation_mode": "keep_start"}, {"ld_alpha": 0.5}):
        assert references(**change)[0]


# Refusals, and the card.


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"factuality_margin": -1.0}, "factuality_margin=-1.0 must be a finite number, 0 or more"),
        ({"factuality_margin": math.inf}, "factuality_margin=inf must be"),
        ({"factuality_margin": "1"}, "factuality_margin='1' must be"),
        ({"loss_type": "ipo"}, "has no place for the margin"),
        ({"loss_type": ["sigmoid", "aot"]}, "has no place for the margin"),
        ({"loss_type": "sft"}, "has no place for the margin"),
        ({"f_divergence_type": "js_divergence"}, "would bend the margin"),
        ({"truncation_mode": "middle"}, "truncation_mode='middle' is unknown"),
        ({"padding_free": True}, "padding_free=True"),
        ({"pad_token": "x"}, "pad_token='x'"),
    ],
)
def test_the_config_names_the_bad_value(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        FDPOConfig(str(tmp_path), **{**SETTINGS, **settings})


def test_config_adds_few_fields_with_help():
    own = {
        name: f for name, f in FDPOConfig.__dataclass_fields__.items() if name not in DPOConfig.__dataclass_fields__
    }
    assert own.keys() == {"factuality_margin", "flip_pairs"}
    for name, field in own.items():
        assert field.metadata.get("help") and f"{name} (`" in FDPOConfig.__doc__
    assert FDPOConfig("out", use_cpu=True).bf16 is False


def test_hooks_of_trl_have_the_signature_that_is_overridden():
    hooks = ["_prepare_dataset", "_set_signature_columns_if_needed", "compute_ref_log_probs", "_compute_loss"]
    overridden = {name for name, value in vars(FDPOTrainer).items() if callable(value) and hasattr(DPOTrainer, name)}
    assert overridden == {"__init__", *hooks}
    for name in hooks:
        ours, theirs = (inspect.signature(getattr(kind, name)) for kind in (FDPOTrainer, DPOTrainer))
        assert list(ours.parameters) == list(theirs.parameters), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.remove_columns("chosen_hallucinated"), "has no labels, only .*build-preferences"),
        (lambda rows: rows.remove_columns("rejected"), "no column 'rejected'"),
        (lambda rows: rows.map(lambda row: {"chosen_hallucinated": 2}), "`chosen_hallucinated` must be 0 .*got 2"),
        (lambda rows: rows.map(lambda row: {"rejected_hallucinated": "no"}), "`rejected_hallucinated` must be 0"),
        (lambda rows: rows.add_column("image", [0] * 8), "does not support images"),
    ],
)
def test_datasets_that_are_refused(tiny_model, tmp_path, change, message):
    with pytest.raises(DataError, match=message):
        make(FDPOTrainer, tiny_model, tmp_path, change(labelled(MIXED)))


def test_spans_that_are_none(tiny_model, tmp_path):
    rows = [{**row, "chosen_spans": [{"start": 0, "end": 3, "label": "wrong"}]} for row in pairs(2).to_list()]
    with pytest.raises(DataError, match="`chosen_spans` must be a list of spans"):
        make(FDPOTrainer, tiny_model, tmp_path, Dataset.from_list(rows))


def test_other_arguments_that_are_refused(tiny_model, tmp_path):
    with pytest.raises(TypeError, match="args must be a FDPOConfig"):
        FDPOTrainer(tiny_model, args=DPOConfig(str(tmp_path), **SETTINGS), train_dataset=labelled(MIXED))
    with pytest.raises(ValueError, match="data_collator=.*leave it out"):
        args = FDPOConfig(str(tmp_path), **SETTINGS)
        FDPOTrainer(tiny_model, args=args, data_collator=len, train_dataset=labelled(MIXED))


@pytest.mark.parametrize(
    ("settings", "named", "cites", "tagged"),
    [
        ({}, "trained with F-DPO, the method of", True, True),
        ({"factuality_margin": 0.0}, "trained with DPO with the label flip of F-DPO, after", True, False),
        ({"flip_pairs": False}, "trained with DPO with the margin of F-DPO, after", True, False),
        ({"flip_pairs": False, "factuality_margin": 0.0}, "trained with DPO, the method of", False, False),
    ],
)
def test_the_card_names_what_was_done(tiny_model, tmp_path, settings, named, cites, tagged):
    trainer = make(FDPOTrainer, tiny_model, tmp_path, labelled(MIXED), **settings)
    trainer.create_model_card(model_name="m")
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert card_problems(text) == [] and named in text
    assert ("2601.03027" in text) == cites and ("\n- f-dpo\n" in text) == tagged == (
        "f-dpo" in trainer.model.model_tags
    )

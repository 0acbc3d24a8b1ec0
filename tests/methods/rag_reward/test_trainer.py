"""Pairs on axes that want opposite things: one head cannot please both, a head each can; and one head is TRL's own training."""

import json
import os
import random
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer

from hf_factuality import VerifierInput, load_verifier
from hf_factuality.errors import DataError
from hf_factuality.functional.calibration import sigmoid
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.hub.results import load_results
from hf_factuality.trainers import RAGRewardConfig, RAGRewardTrainer
from tests.processes import assert_ended_well, run_ranks
from tests.trainers.recording import QUIET


SHORT, LONG = "She was born in London.", "She was born in London. London is in England."
AXES = ["verbosity", "comprehensiveness"]
SETTINGS = {**QUIET, "per_device_train_batch_size": 8, "learning_rate": 3e-3, "max_steps": 40, "max_length": 200,
            "lr_scheduler_type": "constant"}  # fmt: skip


def pairs(people=30, start=0, axes=AXES):
    rows, rng = [], random.Random(start)
    for number in range(start, start + people):
        for axis in axes:
            best, worst = (SHORT, LONG) if axis == "verbosity" else (LONG, SHORT)
            rows.append({
                "axis": axis, "prompt": [{"role": "user", "content": f"Who is person {number}?"}],
                "chosen": [{"role": "assistant", "content": best}], "rejected": [{"role": "assistant", "content": worst}],
            })  # fmt: skip
    rng.shuffle(rows)
    return Dataset.from_list(rows)


def make(model, folder, train=None, test=None, peft_config=None, **settings):
    args = RAGRewardConfig(str(folder), **{**SETTINGS, **settings})
    return RAGRewardTrainer(model, args, pairs() if train is None else train, test, peft_config=peft_config)


def rewards(folder, **settings):
    verifier = load_verifier(f"reward:{folder}", **settings)
    inputs = [VerifierInput(text, "Who is person 500?") for text in (SHORT, LONG)]
    return [found.spans[0].score for found in verifier.verify(inputs)]


@pytest.mark.slow
@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
def test_a_head_each_learns_what_one_head_cannot(tiny_model, tmp_path, lora):
    config = LoraConfig(r=8, target_modules="all-linear", task_type="SEQ_CLS") if lora else None
    trainer = make(tiny_model, tmp_path / "heads", None, pairs(8, 100), config, heads=AXES)
    before = {name: value.clone() for name, value in trainer.model.named_parameters() if value.requires_grad}
    trainer.train()
    assert all(
        not torch.equal(before[name], value) for name, value in trainer.model.named_parameters() if name in before
    )
    assert [trainer.figures[name] for name in ("accuracy", *(f"accuracy_{axis}" for axis in AXES))] == [1.0] * 3
    assert trainer.figures["ece"] < 0.4 and trainer.figures["brier"] < 0.25
    trainer.save_model()
    trainer.create_model_card()
    validate_card(tmp_path / "heads")
    card = (tmp_path / "heads" / "README.md").read_text()
    assert "accuracy, verbosity" in card and "2501.13264" in card and "a head each for verbosity" in card
    entries = {entry["metric"]: entry for entry in load_results(tmp_path / "heads" / "results-reward.json")["results"]}
    assert entries["accuracy_verbosity"]["n"] == 8 and entries["accuracy"]["n"] == 16
    short, long = rewards(tmp_path / "heads", axis="verbosity")
    assert short > 0.5 > long or short > long
    other = rewards(tmp_path / "heads", axis="comprehensiveness")
    assert other[1] > other[0]
    single = make(tiny_model, tmp_path / "one", None, pairs(8, 100))
    single.train()
    assert single.figures["accuracy"] == 0.5, "one head cannot prefer both"


def test_what_the_verifier_gives_is_the_reward_of_the_saved_model(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, pairs(4, axes=AXES[:1]), max_steps=2)
    trainer.train()
    trainer.save_model()
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text, score in zip((SHORT, LONG), rewards(tmp_path), strict=True):
        messages = [{"role": "user", "content": "Who is person 500?"}, {"role": "assistant", "content": text}]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, return_tensors="pt")
        with torch.no_grad():
            assert score == pytest.approx(sigmoid(model(**ids).logits.item()), abs=1e-6)


def test_one_head_is_the_parent_to_the_last_bit_and_heads_of_one_axis_too(tiny_model, tmp_path):
    ours = make(tiny_model, tmp_path / "ours", pairs(6), max_steps=3)
    stock = RewardTrainer(tiny_model, RewardConfig(str(tmp_path / "stock"), **{**SETTINGS, "max_steps": 3}),
                          train_dataset=pairs(6))  # fmt: skip
    heads = make(tiny_model, tmp_path / "heads", pairs(6), max_steps=3, heads=AXES)
    for trainer in (ours, stock, heads):
        trainer.train()
    for (name, value), other in zip(ours.model.named_parameters(), stock.model.parameters(), strict=True):
        assert torch.equal(value, other), name
    own = dict(heads.model.named_parameters())
    assert not all(torch.equal(v, own[n]) for n, v in ours.model.named_parameters() if v.shape == own[n].shape)


def test_the_other_heads_get_no_gradient(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, pairs(4, axes=AXES[:1]), heads=AXES)
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    trainer.compute_loss(trainer.model, batch).backward()
    gradient = trainer.model.score.weight.grad
    assert gradient[0].abs().sum() > 0 and torch.equal(gradient[1], torch.zeros_like(gradient[1]))


def test_bad_input_is_refused_before_training(tiny_model, tmp_path):
    with pytest.raises(DataError, match=r"train dataset has pairs of \{'comprehensiveness'\}"):
        make(tiny_model, tmp_path, heads=["verbosity"])
    with pytest.raises(DataError, match="pairs of"):
        make(tiny_model, tmp_path, pairs(2).remove_columns("axis"), heads=AXES)
    with pytest.raises(ValueError, match="heads"):
        make(tiny_model, tmp_path, heads=["a", "a"])
    with pytest.raises(DataError, match="no row of the eval dataset is left.* max_length=60"):
        long = pairs(2).map(lambda row: {"chosen": [{"role": "assistant", "content": "word " * 90}]})
        make(tiny_model, tmp_path, pairs(2, axes=["verbosity"]), long, max_length=60)
    with pytest.raises(ValueError, match="one eval_dataset"):
        make(tiny_model, tmp_path, None, {"a": pairs(2)})
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=3)
    with pytest.raises(ValueError, match="as many labels, not of 3"):
        make(model, tmp_path, heads=AXES)
    with pytest.raises(ValueError, match=r"axis='x': the reward model has the heads \['LABEL_0'"):
        load_verifier(f"reward:{tiny_model}", axis="x")


def test_what_ends_a_turn_is_text_and_what_is_too_long_is_unknown(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, pairs(4, axes=AXES[:1]), max_steps=1)
    trainer.train()
    trainer.save_model()
    verifier = load_verifier(f"reward:{tmp_path}", max_length=40)
    ids = verifier.judge.encode([[{"role": "assistant", "content": "a<|end|><|user|>b"}]])[0]
    special = verifier.judge.tokenizer.convert_tokens_to_ids(["<|end|>", "<|user|>"])
    assert ids.count(special[0]) == 1 and special[1] not in ids
    long, good = verifier.verify([VerifierInput("word " * 200, "Who?"), VerifierInput(SHORT, "Who?", ("A passage.",))])
    assert long.spans[0].label is None and long.spans[0].score is None
    assert good.spans[0].score is None or 0 < good.spans[0].score < 1


def test_a_completion_goes_on_from_the_assistants_words(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, pairs(4, axes=AXES[:1]), max_steps=1)
    trainer.train()
    trainer.save_model()
    verifier, prompt = load_verifier(f"reward:{tmp_path}"), [{"role": "user", "content": "Who?"}]
    begun = [*prompt, {"role": "assistant", "content": "She was"}]
    rows = [VerifierInput(" born in London.", row={"prompt": begun}), VerifierInput(SHORT, row={"prompt": prompt})]
    one, other = verifier.verify([*rows])
    assert one.spans[0].score == pytest.approx(other.spans[0].score, abs=1e-6)


@pytest.mark.slow
def test_a_killed_run_goes_on_to_the_same_heads(tiny_model, tmp_path):
    settings = {"heads": AXES, "max_steps": 6, "save_strategy": "steps", "save_steps": 3}
    whole = make(tiny_model, tmp_path / "whole", pairs(8), pairs(4, 100), **settings)
    whole.train()
    resumed = make(tiny_model, tmp_path / "whole", pairs(8), pairs(4, 100), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-3"))
    for (name, value), other in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(value, other), name
    assert whole.figures == resumed.figures


def main():
    model, folder, *deepspeed = sys.argv[1:]
    torch.set_num_threads(1)
    if deepspeed:
        from deepspeed import init_distributed

        init_distributed("gloo")
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    more = {"deepspeed": deepspeed[0]} if deepspeed else {}
    settings = {"heads": AXES, "max_steps": 6, "logging_steps": 1, "per_device_train_batch_size": 8 // ranks, **more}
    trainer = make(model, folder, pairs(16), pairs(7, 100), **settings)
    trainer.train()
    trainer.save_model()
    if trainer.is_world_process_zero():
        log = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        Path(folder, "found.json").write_text(json.dumps([*log, *trainer.figures.values()]))
    if ranks > 1:
        torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("zero3", [False, True], ids=["ddp", "zero3"])
def test_two_processes_train_and_measure_as_one(tiny_model, tmp_path, monkeypatch, zero3):
    config, one, two = tmp_path / "zero3.json", tmp_path / "one", tmp_path / "two"
    if zero3:
        pytest.importorskip("deepspeed")
        auto = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
        stage = {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}
        config.write_text(json.dumps({"zero_optimization": stage} | dict.fromkeys(auto, "auto")))
    monkeypatch.setattr(sys, "argv", ["main", tiny_model, str(one)])
    main()
    assert_ended_well(run_ranks("tests.methods.rag_reward.test_trainer", tiny_model, two, *[config] * zero3))
    assert json.loads((two / "found.json").read_text()) == pytest.approx(
        json.loads((one / "found.json").read_text()), abs=1e-5
    )
    assert rewards(two, axis="verbosity") == pytest.approx(rewards(one, axis="verbosity"), abs=1e-4)

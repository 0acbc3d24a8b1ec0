"""Soft labels at step ends, the two heads, and that what is saved is a verifier which judges steps in one pass."""

import math
import random

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, pipeline

from hf_factuality import Label, VerifierInput, load_verifier
from hf_factuality.errors import DataError
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.hub.results import load_results
from hf_factuality.methods.process_reward.formula import UNIT, process_loss
from hf_factuality.trainers import ProcessRewardConfig, ProcessRewardTrainer
from hf_factuality.verifiers import (  # noqa: F401 - registers
    JudgeInput,
    Judgement,
    ProcessJudge,
    ProcessVerifier,
    transformers_pipeline,
)
from tests.conftest import fast_few
from tests.trainers.recording import QUIET


GOOD, BAD = "She was born in London.", "She was born in Paris."
QUESTION = "Where was person 7 born?"
SETTINGS = {**QUIET, "per_device_train_batch_size": 16, "learning_rate": 5e-3, "max_steps": 80, "calibration_share": 0.3,
            "lr_scheduler_type": "constant"}  # fmt: skip


def solutions(people=90, start=0):
    """Three steps each; a solution is lost from the first step that speaks of Paris on, and three in four before."""
    rng, rows = random.Random(start), []
    for number in range(start, start + people):
        steps = [rng.choice([GOOD, GOOD, GOOD, BAD]) for _ in range(3)]
        lost = [BAD in steps[: place + 1] for place in range(3)]
        labels = [0.0 if bad else 0.75 for bad in lost]
        rows.append({
            "question": f"Where was person {number} born?", "steps": steps, "labels": labels,
            "completion": [{"role": "assistant", "content": "\n\n".join(steps)}],
        })  # fmt: skip
    return Dataset.from_list(rows)


def make(model, folder, train=None, test=None, peft_config=None, **settings):
    args = ProcessRewardConfig(str(folder), **{**SETTINGS, **settings})
    return ProcessRewardTrainer(model, args, solutions() if train is None else train, test, peft_config=peft_config)


def scores(verifier, text=f"{GOOD}\n\n{BAD}\n{GOOD}"):
    return [
        (span.text(text), span.label, span.score) for span in verifier.verify([VerifierInput(text, QUESTION)])[0].spans
    ]


HEADS = {"new": {}, "label_tokens": {"head": "label_tokens", "label_tokens": ["a", "b"], "step_tag": " ки"}}


@pytest.fixture(scope="module", params=fast_few(HEADS, 0))
def trained(tiny_model, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("process") / "process-model"
    trainer = make(tiny_model, folder, test=solutions(12, start=100), logging_steps=1, **HEADS[request.param])
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    return trainer, folder


def test_a_step_that_loses_the_solution_is_told(trained):
    trainer, folder = trained
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < sum(losses[:5]) and trainer.figures["auroc"] > 0.9
    found = scores(load_verifier(f"process:{folder}"))
    assert [text for text, *_ in found] == [GOOD, BAD, GOOD]
    assert [label for _, label, _ in found] == [Label.SUPPORTED, Label.CONTRADICTED, Label.CONTRADICTED]
    assert abs(found[0][2] - 0.75) < 0.15, "calibrated to the soft label, not to the side of .5 that it is on"
    for verifier in (load_verifier(f"pipeline:{folder}"), pipeline("fact-verification", str(folder)).verifier):
        assert scores(verifier) == found and verifier.requires_evidence is False
    assert [text for text, *_ in scores(load_verifier(f"process:{folder}", split=". "))][
        0
    ] == f"{GOOD}\n\n{BAD}\n{GOOD}"


def test_a_score_is_read_at_the_end_of_its_step(trained):
    """By hand: one stock forward pass per step, over the text up to its end and nothing behind it."""
    trainer, folder = trained
    tokenizer, model = trainer.processing_class, trainer.model.eval()
    tag = trainer.args.step_tag or ""
    wanted, text = [], ""
    for step, between in ((GOOD, "\n\n"), (BAD, "\n"), (GOOD, "")):
        text += step + tag
        with torch.no_grad():
            logits = model(**tokenizer(f"<|user|>{QUESTION}<|end|><|assistant|>{text}", return_tensors="pt")).logits
        bad, good = logits[0, -1].double().exp().tolist()
        wanted.append(good / (good + bad))
        text += between
    assert [score for *_, score in scores(load_verifier(f"process:{folder}"))] == pytest.approx(wanted, abs=1e-5)


def test_card_and_results(trained):
    trainer, folder = trained
    validate_card(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "VerifierPipeline.from_pretrained" in card and "2412.11006" in card and "KLCF" not in card
    assert "after each step the probability" in card and "| steps | mean P(true) | true |" in card
    entries = {e["metric"]: e for e in load_results(folder / "results-process.json")["results"]}
    assert {name: entry["value"] for name, entry in entries.items()} == trainer.figures
    assert entries["accuracy"]["n"] == 36 and "steps at their natural ratio" in entries["accuracy"]["note"]
    rows = [(p, r) for p, r in zip(trainer._measured, trainer._labels, strict=True)]
    assert trainer.figures["brier"] == pytest.approx(sum((p - r) ** 2 for p, r in rows) / 36), "of soft labels"
    assert trainer.figures["accuracy"] == sum((p >= 0.5) == (r == 0.75) for p, r in rows) / 36


def test_two_label_tokens_are_the_models_own_softmax(tiny_model, tmp_path):
    """Before training: what the causal model says of the good token, against the bad one; the released labels are inverted."""
    trainer = make(tiny_model, tmp_path, **HEADS["label_tokens"])
    tokenizer, causal = trainer.processing_class, AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    good, bad = tokenizer("a")["input_ids"] + tokenizer("b")["input_ids"]
    with torch.no_grad():
        logits = causal(**tokenizer(f"<|user|>{QUESTION}<|end|><|assistant|>{GOOD} ки", return_tensors="pt")).logits[
            0, -1
        ]
    wanted = 1 / (1 + math.exp(logits[bad] - logits[good]))
    judge = ProcessJudge(trainer.model, tokenizer)
    assert judge.judge([JudgeInput(GOOD, (), QUESTION)])[0].score == pytest.approx(wanted, abs=1e-5)
    with pytest.raises(ValueError, match="each must be one of its own"):
        make(tiny_model, tmp_path, head="label_tokens", label_tokens=["zqx", "b"])
    with pytest.raises(ValueError, match="pass the model by name"):
        make(trainer.model, tmp_path, head="label_tokens")
    with pytest.raises(ValueError, match="step_tag='<.end.>' holds a special token"):
        make(tiny_model, tmp_path, step_tag="<|end|>")


def test_the_loss_is_soft_cross_entropy():
    rng = random.Random(0)
    logits = [[(rng.uniform(-4, 4), rng.uniform(-4, 4)) for _ in range(5)] for _ in range(3)]
    labels = [[rng.choice([None, 0.0, 1.0, rng.random()]) for _ in range(5)] for _ in range(3)]
    terms = []
    for row, own in zip(logits, labels, strict=True):
        for (bad, good), r in zip(row, own, strict=True):
            if r is not None:
                p = math.exp(good) / (math.exp(good) + math.exp(bad))
                terms.append(-r * math.log(p) - (1 - r) * math.log(1 - p))
    both, known = torch.tensor(logits), [[-100 if r is None else round(r * UNIT) for r in row] for row in labels]
    loss = process_loss(both[..., 1] - both[..., 0], torch.tensor(known))
    assert loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-5)


def test_which_tokens_are_labelled(tiny_model, tmp_path):
    rows = [
        {"prompt": "Who?", "steps": [GOOD, GOOD, BAD], "labels": [0.3, None, 1], "topic": topic, "completion": None}
        for topic in "abcdef"
    ]
    odd = [
        {**rows[0], "labels": [None] * 3},
        {**rows[0], "steps": ["long " * 600, GOOD, BAD]},
        {**rows[0], "steps": [GOOD, "e\u0301 x<y", BAD]},
    ]
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    args = ProcessRewardConfig(str(tmp_path), step_tag=" ки", **SETTINGS)
    trainer = ProcessRewardTrainer(tiny_model, args, Dataset.from_list(rows + odd), processing_class=tokenizer)
    ids, labels = (trainer.train_dataset[0][name] for name in ("input_ids", "labels"))
    decode = trainer.processing_class.decode
    assert decode(ids) == f"<|user|>Who?<|end|><|assistant|>{GOOD} ки\n{GOOD} ки\n{BAD} ки"
    ends = [n for n, label in enumerate(labels) if label != -100]
    assert [labels[n] for n in ends] == [300_000_000, UNIT]
    assert [decode(ids[: n + 1]).rpartition("<|assistant|>")[2] for n in ends] == [f"{GOOD} ки", decode(ids)[32:]]
    assert trainer.left_out == {
        "train: no label": 1,
        "train: longer than 512 tokens": 1,
        "train: step without a label": 6,
        "train: changed by the tokenizer": 1,
    }


@pytest.mark.slow
def test_lora_and_trl_columns(tiny_model, tmp_path):
    """TRL's stepwise format: `prompt`, `completions` and booleans. With LoRA the head is trained whole."""
    found = solutions().rename_columns({"steps": "completions", "question": "prompt"}).remove_columns("completion")
    found = found.map(lambda row: {"labels": [label > 0.5 for label in row["labels"]]})
    trainer = make(tiny_model, tmp_path, found, peft_config=LoraConfig(r=2, target_modules="all-linear"), max_steps=4)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert any("lora_B" in name for name in moved)
    assert all("lora_" in name or "score.modules_to_save" in name for name in moved)
    trainer.save_model()
    judge = ProcessJudge(trainer.model, trainer.processing_class)
    (wanted,) = judge.judge([JudgeInput(GOOD, (), QUESTION)])
    found = load_verifier(f"process:{tmp_path}").verify([VerifierInput(GOOD, QUESTION)])[0].spans[0]
    assert found.score == pytest.approx(wanted.score, abs=1e-5)


def test_what_cannot_be_judged_is_unknown(trained):
    _, folder = trained
    verifier = ProcessVerifier(str(folder), max_length=100)
    texts = [f"{GOOD}\n" + "very " * 100, "", "\n \n", "Ada <|end|>\ud800 玛丽。\n\n<|user|>ки + x<y"]
    found = [one.spans for one in verifier.verify([VerifierInput(text, "<|user|>?") for text in texts])]
    assert [[span.label for span in spans] for spans in found[:3]] == [[None, None], [], []]
    assert len(found[3]) == 2 and all(0 <= span.score <= 1 for span in found[3])
    assert verifier.judge.judge([]) == []
    with torch.no_grad():
        verifier.judge.model.score.weight.fill_(math.nan)
    assert verifier.judge.judge([JudgeInput("Ada.", ())]) == [Judgement(None)]


@pytest.mark.parametrize(
    ("change", "settings", "error", "message"),
    [
        (lambda rows: rows.remove_columns("labels"), {}, DataError, "columns 'steps' and 'labels', got"),
        (lambda rows: rows.map(lambda row: {"labels": [1.0]}), {}, DataError, "row 0 .*3 steps need as many labels"),
        (lambda rows: rows.map(lambda row: {"labels": [1.0, 2.0, 0.0]}), {}, DataError, r"row 0 .*labels in \[0, 1\].*2.0"),
        (lambda rows: rows.map(lambda row: {"steps": ["x", "y", "z"]}), {}, DataError, "row 0 .*'x' is not in the completion"),
        (lambda rows: rows.map(lambda row: {"steps": ["x", " ", "z"]}), {}, DataError, "row 0 .*texts that are not blank"),
        (lambda rows: rows.map(lambda row: {"labels": [0.1] * 3}), {}, DataError, "steps for train are 0 supported"),
        (solutions, {"ratio": 2.0}, ValueError, "ratio=2.0 must be None"),
        (solutions, {"head": "old"}, ValueError, "head='old' is unknown"),
        (solutions, {"label_tokens": ["+", "+"]}, ValueError, "label_tokens=.* must be two different texts"),
        (solutions, {"step_tag": " "}, ValueError, "step_tag=' ' must be a text that is not blank"),
        (solutions, {"step_split": ""}, ValueError, "steps are split at a text that is not empty"),
        (solutions, {"template": "{{claim|plain}} "}, ValueError, "template=.* must be a text that ends"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_loaded(tiny_model, tmp_path, monkeypatch, change, settings, error, message):
    monkeypatch.setattr(AutoModelForTokenClassification, "from_pretrained", None)
    with pytest.raises(error, match=message):
        make(tiny_model, tmp_path, change(solutions()) if error is DataError else change(), **settings)

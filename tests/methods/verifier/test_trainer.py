"""What is trained, what of the evidence is read, and that the calibration in the head is the one that was fitted."""

import math

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_factuality import load_verifier
from hf_factuality.demos.own_verifier import build_encoder
from hf_factuality.errors import DataError
from hf_factuality.hub.results import load_results
from hf_factuality.methods.verifier.trainer import figure
from hf_factuality.trainers import VerifierConfig, VerifierTrainer
from hf_factuality.verifiers import JudgeInput, NLIJudge
from tests.trainers.recording import QUIET


PLACES = ("Leeds", "York", "Hull")


def rows(people=24, start=0, **more):
    """What is said of Leeds is true; a tiny model can learn that much."""
    return Dataset.from_list([
        {"claim": f"Person {n} {verb} {place}.", "evidence": f"Person {n} was born in Leeds. Person {n} worked in Leeds.",
         "label": place == "Leeds", "kind": "entity" if place != "Leeds" else "same", **more}
        for n in range(start, start + people) for place in PLACES for verb in ("was born in", "worked in")
    ])  # fmt: skip


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    texts = [text for row in rows(60) for text in (row["claim"], row["evidence"])]
    return build_encoder(tmp_path_factory.mktemp("tiny") / "encoder", texts, hidden_size=32, layers=1)


def make(model, folder, train=None, test=None, **settings):
    steps = {"per_device_train_batch_size": 16, "learning_rate": 5e-3, "max_steps": 40, "max_length": 48}
    args = VerifierConfig(str(folder), **{**QUIET, **steps, "calibration_share": 0.3, **settings})
    return VerifierTrainer(model, args, rows() if train is None else train, test)


def test_it_learns_and_its_folder_is_a_verifier(encoder, tmp_path):
    trainer = make(encoder, tmp_path / "out", test=rows(6, 30, source="test.jsonl"))
    before = {name: value.clone() for name, value in trainer.model.named_parameters()}
    trainer.train()
    assert trainer.figures["test.jsonl: auroc"] > 0.95 and trainer.figures["test.jsonl: balanced_accuracy"] > 0.9
    assert {"test.jsonl: accuracy of entity", "test.jsonl: accuracy of same"} <= {*trainer.figures}
    moved = {name for name, value in trainer.model.named_parameters() if not torch.equal(value, before[name])}
    assert {"classifier.weight", "bert.embeddings.word_embeddings.weight"} <= moved
    trainer.save_model()
    judge = load_verifier(f"pipeline:{tmp_path / 'out'}").judge
    assert isinstance(judge, NLIJudge) and judge.threshold == trainer.model.config.claim_verifier["threshold"]
    found = judge.judge([JudgeInput(row["claim"], (row["evidence"],)) for row in rows(6, 30)])
    assert [one.score for one in found] == pytest.approx(trainer._measured, abs=1e-6)
    entries = {entry["metric"]: entry for entry in load_results(tmp_path / "out" / "results-verifier.json")["results"]}
    said = [(one.score, row["label"], one.label == "supported") for one, row in zip(found, rows(6, 30), strict=True)]
    assert entries["balanced_accuracy"]["value"] == pytest.approx(figure("balanced_accuracy", said))
    assert entries["auroc"]["benchmark"] == "test.jsonl" and entries["accuracy_entity"]["n"] == 24


@pytest.mark.parametrize("bias", [True, False])
def test_the_curve_is_in_the_head(encoder, tmp_path, bias):
    """The score of every claim is the sigmoid of scale times its old log-odds plus shift; without a bias there is no shift."""
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)
    if not bias:
        model.classifier.bias = None
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    args = VerifierConfig(str(tmp_path), **{**QUIET, "max_length": 48, "calibration_share": 0.3})
    trainer = VerifierTrainer(model, args, rows(), rows(6, 30), processing_class=tokenizer)
    _, before, _ = trainer._judged(trainer.eval_dataset)
    trainer.calibrate()
    _, after, _ = trainer._judged(trainer.eval_dataset)
    kept = trainer.model.config.claim_verifier
    assert after == pytest.approx([kept["scale"] * z + kept["shift"] for z in before], abs=1e-4)
    assert (kept["shift"] != 0.0) == bias and kept["scale"] > 0
    # Calibrated: what was fitted on is true as often as it says.
    shares = [1 / (1 + math.exp(-z)) for z in trainer._judged(trainer.calibration_dataset)[1]]
    if bias:
        assert sum(shares) == pytest.approx(sum(trainer.calibration_dataset["labels"]), abs=0.05 * len(shares))


def test_training_reads_the_window_with_the_claims_words(encoder, tmp_path):
    long = " ".join(f"Person {n} worked in York." for n in range(40))
    given = [{"claim": f"Person {n} was born in Leeds.", "evidence": f"{long} Person {n} was born in Leeds.", "label": n % 2 == 0}
             for n in range(40, 52)]  # fmt: skip
    given[0]["window"] = "Person 40 worked."
    trainer = make(
        encoder, tmp_path, Dataset.from_list([{"window": None, **row} for row in given]), calibration_share=0.4
    )
    shown = trainer.processing_class.batch_decode(list(trainer.train_dataset["input_ids"]))
    shown += trainer.processing_class.batch_decode(list(trainer.calibration_dataset["input_ids"]))
    assert sum(text.count("was born in leeds") == 2 for text in shown) == 11
    assert sum("person 40 worked. [SEP]" in text for text in shown) == 1
    assert all(len(ids) <= 48 for ids in trainer.train_dataset["input_ids"])
    # Measuring reads all of it.
    assert max(len(row["evidence"][0]) for row in trainer.calibration_dataset) > 900


def test_what_it_refuses(encoder, tmp_path):
    with pytest.raises(
        DataError, match="the train dataset must be a Dataset with columns 'claim', 'evidence' and 'label'"
    ):
        make(encoder, tmp_path, Dataset.from_list([{"claim": "a", "label": True}]))
    with pytest.raises(DataError, match="the train dataset, row 0: the label .* got 3"):
        make(encoder, tmp_path, Dataset.from_list([{"claim": "a", "evidence": "b", "label": 3}]))
    with pytest.raises(ValueError, match="template='x.*' must be None"):
        make(encoder, tmp_path, template="x{{claim|plain}}")
    model = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=2)
    model.config.max_position_embeddings = 32
    with pytest.raises(ValueError, match="max_length=48 is more than the 32 tokens that the encoder reads"):
        make(model, tmp_path)


def test_rows_without_a_label_are_left_out(encoder, tmp_path):
    given = rows(24).to_list()
    trainer = make(encoder, tmp_path, Dataset.from_list([*given, {**given[0], "label": None}]))
    assert trainer.left_out == {"train: without a label": 1}


def test_figures_by_hand():
    items = [(0.9, True, True), (0.6, True, False), (0.7, False, True), (0.1, False, False)]
    assert figure("accuracy", items) == 0.5 and figure("balanced_accuracy", items) == 0.5
    assert figure("auroc", items) == 0.75 and figure("balanced_accuracy", items[:2]) is None
    assert figure("brier", items) == pytest.approx((0.01 + 0.16 + 0.49 + 0.01) / 4)

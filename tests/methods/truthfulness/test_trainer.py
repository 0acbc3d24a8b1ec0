"""What is trained, how it is calibrated, and that what is saved is a verifier like any other."""

import json
import math
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PromptTuningConfig
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BartConfig,
    BartForSequenceClassification,
    pipeline,
)

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, VerifierInput, VerifierPipeline, load_verifier
from hf_factuality.errors import DataError, NonFiniteError
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.hub.results import load_results
from hf_factuality.methods.long_form.reward import truthfulness_reward
from hf_factuality.methods.truthfulness.trainer import chat_template
from hf_factuality.trainers import TruthfulnessConfig, TruthfulnessTrainer
from hf_factuality.verifiers import JudgeInput, TruthfulnessJudge, transformers_pipeline  # noqa: F401 - registers
from tests.conftest import fast_few
from tests.hub.loopback import TOKEN
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import rows
from tests.trainers.claims import FALSE, QUESTION, TRUE, claims, make
from tests.trainers.recording import QUIET


LORA = dict(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
HELD_OUT = claims(12, start=40)
ASKED = VerifierInput(f"{TRUE} {FALSE}", QUESTION)


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """A trainer of all weights that has trained and saved, and its folder."""
    folder = tmp_path_factory.mktemp("truthfulness") / "claims-model"
    trainer = make(tiny_model, folder, test=HELD_OUT, save_strategy="steps", save_steps=60, logging_steps=1)
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    return trainer, folder


def scores(verifier):
    return [(span.label, span.score) for span in verifier.verify([ASKED])[0].spans]


@pytest.mark.slow
def test_a_true_and_a_false_claim_come_apart_however_it_is_loaded(trained):
    _, folder = trained
    first = scores(load_verifier(f"truthfulness:{folder}"))
    assert [label for label, _ in first] == [Label.SUPPORTED, Label.CONTRADICTED]
    assert first[0][1] > 0.7 and first[1][1] < 0.3
    for verifier in (load_verifier(f"pipeline:{folder}"), pipeline("fact-verification", str(folder)).verifier):
        assert scores(verifier) == first and verifier.requires_evidence is False
    assert load_verifier(f"pipeline:{folder}").judge.model.config.id2label == {0: "contradicted", 1: "supported"}


def test_the_head_that_is_saved_is_the_trained_one_over_the_temperature(trained):
    """The checkpoint is not calibrated: its margin by stock transformers, over T, is the log-odds of the judge."""
    trainer, folder = trained
    temperature = json.loads((folder / "config.json").read_text())["truthfulness"]["temperature"]
    before, after = (load_file(f / "model.safetensors") for f in (folder / "checkpoint-60", folder))
    torch.testing.assert_close(after.pop("score.weight"), before.pop("score.weight") / temperature)
    assert before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
    raw = AutoModelForSequenceClassification.from_pretrained(folder / "checkpoint-60").eval()
    assert raw.config.truthfulness["temperature"] is None and abs(temperature - 1) > 0.01
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for (_, score), claim in zip(scores(load_verifier(f"truthfulness:{folder}")), (TRUE, FALSE), strict=True):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": QUESTION}], tokenize=False, add_generation_prompt=True
        )
        with torch.no_grad():
            (logits,) = raw(**tokenizer(text + claim, return_tensors="pt")).logits.double().tolist()
        assert score == pytest.approx(1 / (1 + math.exp((logits[0] - logits[1]) / temperature)), abs=1e-5)


def test_the_temperature_is_of_topics_that_are_not_trained_on(trained):
    trainer, _ = trained
    held_out = {row["topic"] for row in trainer.calibration_dataset}
    assert len(held_out) == 9 and held_out.isdisjoint(trainer.train_dataset["topic"])
    assert len(trainer.calibration_dataset) == 9 * 6, "at their natural ratio"
    assert trainer.figures["auroc"] > 0.85 > 0.5 and set(trainer.figures) == {
        "auroc", "ece", "brier", "accuracy", "ece_uncalibrated", "brier_uncalibrated"
    }  # fmt: skip
    logged = [entry for entry in trainer.state.log_history if "temperature" in entry]
    assert len(logged) == 1 and logged[0]["calibrated_auroc"] == trainer.figures["auroc"]
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-4:]) < 0.6 * sum(losses[:4])


def test_card_and_results(trained):
    trainer, folder = trained
    validate_card(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "VerifierPipeline.from_pretrained" in card and "text-generation" not in card and "2509.23765" in card
    assert "pipeline_tag: text-classification" in card and "reconstruction" in card
    table = card.partition("### Reliability")[2].partition("## Training")[0]
    counts = [int(line.split("|")[1]) for line in table.splitlines() if line.startswith("| ") and line[2].isdigit()]
    assert sum(counts) == len(HELD_OUT) and "](reliability.svg)" in table
    assert (folder / "reliability.svg").read_text(encoding="utf-8").count("<circle") == len(counts)
    entries = {e["metric"]: e for e in load_results(folder / "results-truthfulness.json")["results"]}
    assert {name: entry["value"] for name, entry in entries.items()} == trainer.figures
    assert (
        entries["auroc"]["n"] == len(HELD_OUT) and "neither training nor temperature saw" in entries["auroc"]["note"]
    )
    interval = entries["auroc"]["confidence_interval"]
    assert interval["low"] < entries["auroc"]["value"] < interval["high"]


def test_it_is_pushed_and_loaded_from_the_hub(trained, tmp_path, hub, monkeypatch):
    trainer, folder = trained
    monkeypatch.setattr(trainer.args, "hub_token", TOKEN)
    monkeypatch.setattr(trainer.args, "hub_model_id", "someone/claims-model")
    trainer.hub_model_id = None
    trainer.push_to_hub()
    files = hub.repos["model", "someone/claims-model"].files()
    assert {
        "verifier_config.json",
        "config.json",
        "model.safetensors",
        "results-truthfulness.json",
        "reliability.svg",
    } <= set(files)
    assert b"claims-model" not in files["verifier_config.json"] and str(tmp_path).encode() not in files["README.md"]
    assert b'from_pretrained("someone/claims-model")' in files["README.md"]
    verifier = VerifierPipeline.from_pretrained("someone/claims-model")
    assert scores(verifier) == scores(load_verifier(f"truthfulness:{folder}"))
    # Saved elsewhere it names the repository and its commit.
    verifier.save_pretrained(tmp_path / "elsewhere")
    settings = json.loads((tmp_path / "elsewhere" / "verifier_config.json").read_text())["judge"]["settings"]
    commit = hub.repos["model", "someone/claims-model"].refs["main"]
    assert (settings["model"], settings["revision"]) == ("someone/claims-model", commit)


@pytest.mark.slow
def test_an_adapter_trains_itself_and_the_head_and_loads(tiny_model, tmp_path):
    config = LoraConfig(**LORA)
    trainer = make(tiny_model, tmp_path, peft_config=config, gradient_checkpointing=True)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert moved and all("lora_" in name or "score.modules_to_save" in name for name in moved)
    assert any("score" in name for name in moved) and any("lora_B" in name for name in moved)
    assert config.task_type == "CAUSAL_LM", "the caller's is left alone"
    trainer.save_model()
    assert not (tmp_path / "model.safetensors").exists()
    own = TruthfulnessJudge(trainer.model, trainer.processing_class)
    inputs = [JudgeInput(claim, (), QUESTION) for claim in (TRUE, FALSE)]
    wanted = [found.score for found in own.judge(inputs)]
    assert wanted[0] - wanted[1] > 0.1
    for name in ("truthfulness", "pipeline"):
        found = [score for _, score in scores(load_verifier(f"{name}:{tmp_path}"))]
        assert found == pytest.approx(wanted, abs=1e-5)
    assert [score for _, score in scores(pipeline("fact-verification", str(tmp_path)).verifier)] == found


@pytest.mark.slow
@pytest.mark.parametrize("lora", fast_few([False, True], 0))
def test_a_token_opens_private_repositories(tiny_model, tmp_path, hub, monkeypatch, lora):
    files = {path.name: path.read_bytes() for path in Path(tiny_model).iterdir() if path.is_file()}
    hub.add("someone/base", files, private=True)
    where = {"hub_model_id": "someone/claims", "hub_private_repo": True, "max_steps": 2}
    trainer = make("someone/base", tmp_path, peft_config=LoraConfig(**LORA) if lora else None, **where)
    trainer.train()
    trainer.push_to_hub()
    assert hub.repos["model", "someone/claims"].private
    wanted = scores(load_verifier(f"truthfulness:{tmp_path}"))
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "empty"))
    with pytest.raises(Exception, match="(?i)someone/claims|logged in|token"):
        pipeline("fact-verification", "someone/claims")
    known = pipeline("fact-verification", "someone/claims", token=TOKEN).verifier
    saved = VerifierPipeline.from_pretrained("someone/claims", token=TOKEN)
    assert scores(known) == scores(saved) == wanted
    known.save_pretrained(tmp_path / "settings")
    assert TOKEN not in (tmp_path / "settings" / "verifier_config.json").read_text() and TOKEN not in repr(known.judge)


@pytest.mark.slow
@pytest.mark.parametrize("lora", fast_few([False, True], 0))
def test_resumed_equals_uninterrupted(tiny_model, tmp_path, lora):
    def run(folder, **resume):
        config = LoraConfig(**LORA) if lora else None
        trainer = make(tiny_model, folder, peft_config=config, max_steps=4, save_strategy="steps", save_steps=2)
        trainer.train(**resume)
        return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}, trainer.figures

    whole, figures = run(tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "cut" / "checkpoint-2")
    resumed, again = run(tmp_path / "cut", resume_from_checkpoint=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole) and figures == again


@pytest.mark.slow
def test_probabilities_are_those_of_the_natural_ratio(tiny_model, tmp_path):
    """Nothing tells the claims apart: the best that the model can say is the share that is true, 1 in 5, and not 2 in 3."""
    rows = [
        {"claim": "She worked.", "label": "supported" if n % 5 == 0 else "contradicted", "topic": str(n // 10)}
        for n in range(400)
    ]
    trainer = make(tiny_model, tmp_path, Dataset.from_list(rows), max_steps=60, per_device_train_batch_size=32)
    assert sorted(trainer.train_dataset["labels"]).index(1) * 2 == trainer.train_dataset["labels"].count(1), "2 to 1"
    trainer.calibrate = lambda: None  # a temperature of the right size would hide it
    trainer.train()
    trainer.model.eval()
    judge = TruthfulnessJudge(trainer.model, trainer.processing_class)
    assert judge.judge([JudgeInput("She worked.", ())])[0].score == pytest.approx(0.2, abs=0.04)


def test_ratio_none_keeps_all_and_labels_of_no_use_are_counted(tiny_model, tmp_path):
    more = [{"claim": "It may be.", "label": label, "question": "?"} for label in ("no_fact", "unverifiable", None)]
    more.append({"claim": "very " * 600 + "long.", "label": "supported", "question": "?"})
    data = Dataset.from_list([*claims().to_list(), *more])
    trainer = make(tiny_model, tmp_path, data, ratio=None, max_length=100)
    assert len(trainer.train_dataset) + len(trainer.calibration_dataset) == 180 and trainer._log_odds_added == 0
    counted = {f"train: {name}": 1 for name in ("no_fact", "unverifiable", None, "longer than 100 tokens")}
    assert trainer.left_out == counted


def test_topics_may_be_numbers(tiny_model, tmp_path):
    """0 is one, and a row without falls back to its question."""
    rows = [{**row, "topic": n // 6 if n < 60 else None} for n, row in enumerate(claims())]
    trainer = make(tiny_model, tmp_path, Dataset.from_list(rows), ratio=None)
    topics = {*trainer.train_dataset["topic"], *trainer.calibration_dataset["topic"]}
    assert {"0", "9", rows[-1]["question"]} <= topics and rows[0]["question"] not in topics


def test_what_is_saved_while_training_goes_on_has_no_figures_of_before(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, max_steps=1)
    trainer.train()
    trainer.save_model()
    assert (tmp_path / "results-truthfulness.json").exists() and trainer.figures
    trainer.calibrate = trainer.save_model  # as a push of every save does
    trainer.train()
    assert json.loads((tmp_path / "config.json").read_text())["truthfulness"]["temperature"] is None
    assert not (tmp_path / "results-truthfulness.json").exists() and not trainer.figures
    assert not (tmp_path / "reliability.svg").exists()


def test_calibrated_twice_the_product_is_recorded(tiny_model, tmp_path):
    """It is what the head of the training was divided by."""
    trainer = make(tiny_model, tmp_path, max_steps=1)
    before = trainer.model.score.weight.detach().clone()
    first = trainer.calibrate()
    trainer.calibration_dataset = trainer.calibration_dataset.select(range(5, 30))
    assert abs(trainer.calibrate() / first - 1) > 0.01
    recorded = trainer.model.config.truthfulness["temperature"]
    torch.testing.assert_close(trainer.model.score.weight, before / recorded)


def one_kind(label):
    return claims().filter(lambda row: row["label"] == label)


@pytest.mark.parametrize(
    ("change", "settings", "error", "message"),
    [
        (partial(one_kind, "supported"), {}, DataError, "train are .* supported and 0 contradicted.*Label more"),
        (partial(one_kind, "contradicted"), {}, DataError, "train are 0 supported"),
        (partial(claims, 1), {}, DataError, "train are 0 supported and 0 contradicted"),
        (lambda: Dataset.from_list([{"claim": "a", "label": "suported"}]), {}, DataError, "row 0 .*'suported'"),
        (
            lambda: Dataset.from_list([{"claim": 3, "label": "supported"}]),
            {},
            DataError,
            "row 0 .*claim or question is text.* 3,",
        ),
        (lambda: claims().map(lambda _: {"question": 7}), {}, DataError, "row 0 .*question is text.*7"),
        (lambda: claims().rename_column("claim", "text"), {}, DataError, "columns 'claim' and 'label', got .*'text'"),
        (lambda: list(claims()), {}, DataError, "must be a Dataset"),
        (claims, {"ratio": 0.0}, ValueError, "ratio=0.0 must be positive"),
        (claims, {"calibration_share": 1.0}, ValueError, "calibration_share=1.0 must be between 0 and 1"),
        (claims, {"remove_unused_columns": False}, ValueError, "remove_unused_columns=False must be True"),
        (claims, {"template": "{{question|plain}}"}, ValueError, "lacks a place for"),
        (claims, {"template": "{{claim}} {{answer}}"}, ValueError, r"uses \['answer'\]"),
    ],
)
def test_refused_before_anything_is_loaded(tiny_model, tmp_path, monkeypatch, change, settings, error, message):
    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", None)
    with pytest.raises(error, match=message):
        make(tiny_model, tmp_path, change(), **settings)


def test_other_things_that_are_refused(tiny_model, tmp_path):
    with pytest.raises(DataError, match="claims for eval are 0 supported and 0 contradicted"):
        make(tiny_model, tmp_path, test=claims().select([]))
    model = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=3)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    args = TruthfulnessConfig(str(tmp_path), **QUIET)
    bart = BartForSequenceClassification(BartConfig(vocab_size=40, d_model=16, num_labels=2))
    for wrong, named in (
        (model, "num_labels=3"),
        (bart, "BartForSequenceClassification with num_labels=2"),  # its head has another name
        (AutoModelForCausalLM.from_pretrained(tiny_model), "LlamaForCausalLM"),
    ):
        with pytest.raises(
            ValueError, match=f"{named}.*pass its name, or a model ForSequenceClassification of 2 classes"
        ):
            TruthfulnessTrainer(wrong, args, claims(), processing_class=tokenizer)
    with pytest.raises(ValueError, match="PromptTuningConfig cannot be merged.*LoraConfig"):
        make(tiny_model, tmp_path, peft_config=PromptTuningConfig(num_virtual_tokens=4))
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match="pad_token"):
        TruthfulnessTrainer(model, args, claims(), processing_class=tokenizer)
    with pytest.raises(TypeError, match="TruthfulnessConfig"):
        TruthfulnessTrainer(tiny_model, FactGRPOConfig(str(tmp_path), **QUIET), claims())
    with pytest.raises(ValueError, match="no truthfulness model"):
        TruthfulnessJudge(
            AutoModelForSequenceClassification.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
        )


def test_a_loss_that_is_not_finite_ends_the_run(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path)
    with torch.no_grad():
        trainer.model.score.weight[0, 0] = math.nan
    with pytest.raises(NonFiniteError, match="after 0 steps"):
        trainer.train()
    (path,) = tmp_path.glob("not_finite_step0_*.jsonl")
    assert "was born in" in path.read_text() or "worked in" in path.read_text()


def test_the_template_of_a_tokenizer(tiny_model):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    assert chat_template(tokenizer) == "<|user|>{{question|plain}}<|end|><|assistant|>{{claim|plain}}"
    tokenizer.chat_template = None
    assert chat_template(tokenizer) == "{{question|plain}}\n{{claim|plain}}"


def test_it_pays_a_policy(trained, tiny_model, tmp_path):
    _, folder = trained
    args = FactGRPOConfig(
        str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_steps=1, max_completion_length=16,
        credit="none", factuality_reward_weight=0.0, verify_scope="completion", **QUIET,
    )  # fmt: skip
    verifier = load_verifier(f"pipeline:{folder}")
    trainer = FactGRPOTrainer(tiny_model, [truthfulness_reward], args, rows(evidence=False), verifier=verifier)
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "rewards/truthfulness/mean" in entry]
    assert 0 < logged["rewards/truthfulness/mean"] < 1 and logged["rewards/truthfulness/std"] > 0


@pytest.mark.slow
def test_two_processes_agree(tiny_model, tmp_path):
    """Each divides its head by the same temperature, of the claims of both."""
    assert_ended_well(run_ranks("tests.trainers.claims", tiny_model, tmp_path))
    one, other = (json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1))
    assert one == other and one["measured"] == 54 and one["temperature"] != 1
    judge = TruthfulnessJudge(str(tmp_path / "out"))
    assert judge.model.score.weight.sum().item() == pytest.approx(one["head"], abs=1e-6)

"""What moves and what does not, how tokens are labelled, and that what is saved is a verifier like any other."""

import math
import random
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import normalizers
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification, AutoTokenizer, Qwen3Config, pipeline

from hf_factuality import Label, VerifierInput, VerifierPipeline, load_verifier
from hf_factuality.errors import DataError
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.hub.results import load_results
from hf_factuality.trainers import ProbeConfig, ProbeTrainer
from hf_factuality.verifiers import JudgeInput, Judgement, ProbeJudge, transformers_pipeline  # noqa: F401 - registers
from tests.conftest import fast_few
from tests.hub.loopback import TOKEN
from tests.trainers.recording import QUIET


TRUE, FALSE = "Person 7 was born in London.", "Person 7 was born in Paris."
QUESTION = "Where was person 7 born?"
SETTINGS = {
    **QUIET,
    "per_device_train_batch_size": 16,
    "learning_rate": 2e-2,
    "max_steps": 150,
    "calibration_share": 0.3,
}


def completions(people=90, start=0):
    """Two sentences each; what is said of London is true."""
    rng, rows = random.Random(start), []
    for number in range(start, start + people):
        spans, text = [], ""
        for verb in ("was born in", "worked in"):
            place = rng.choice(["London", "London", "Warsaw", "Paris"])
            begin = len(text)
            text += f"Person {number} {verb} {place}."
            label = "supported" if place == "London" else rng.choice(["contradicted", "unverifiable"])
            spans.append({"start": begin, "end": len(text), "label": label})
            text += " "
        found = {"spans": spans, "claims": [], "abstained": False, "error": None}
        rows.append(
            {"question": f"Where was person {number} born?", "completion": text.strip(), "verification": found}
        )
    return Dataset.from_list(rows)


def make(model, folder, train=None, test=None, peft_config=None, **settings):
    args = ProbeConfig(str(folder), **{**SETTINGS, **settings})
    return ProbeTrainer(model, args, completions() if train is None else train, test, peft_config=peft_config)


def scores(verifier, text=f"{TRUE} {FALSE}"):
    return [(span.label, span.score) for span in verifier.verify([VerifierInput(text, QUESTION)])[0].spans]


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("probe") / "probe-model"
    trainer = make(tiny_model, folder, test=completions(12, start=100), layer=1.0, logging_steps=1)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    trainer.save_model()
    trainer.create_model_card()
    return trainer, folder, before


@pytest.mark.slow
def test_the_head_learns_and_the_base_stays(trained, tiny_model):
    trainer, _, before = trained
    now = dict(trainer.model.named_parameters())
    moved = {name for name in now if not torch.equal(before[name], now[name])}
    assert moved == {f"base_model.model.score.modules_to_save.default.{part}" for part in ("weight", "bias")}
    base = AutoModelForCausalLM.from_pretrained(tiny_model).model.state_dict()
    kept = trainer.model.base_model.model.model.state_dict()
    assert base.keys() == kept.keys() and all(torch.equal(base[name], kept[name]) for name in base)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5]) and trainer.figures["auroc"] > 0.9


def test_a_true_and_a_false_sentence_come_apart_however_it_is_loaded(trained):
    _, folder, _ = trained
    first = scores(load_verifier(f"probe:{folder}"))
    assert [label for label, _ in first] == [Label.SUPPORTED, Label.CONTRADICTED] and first[0][1] > first[1][1] + 0.3
    for verifier in (load_verifier(f"pipeline:{folder}"), pipeline("fact-verification", str(folder)).verifier):
        assert scores(verifier) == first and verifier.requires_evidence is False
    assert load_verifier(f"probe:{folder}", threshold=1.0).judge.threshold == 1.0


def test_a_score_is_that_of_the_most_doubtful_token(trained):
    """Read by hand: stock transformers, every prefix decoded to place the tokens, two exponentials."""
    trainer, folder, _ = trained
    tokenizer, model = trainer.processing_class, trainer.model.eval()
    text = f"{TRUE} {FALSE}"
    ids = tokenizer(f"<|user|>{QUESTION}<|end|><|assistant|>{text}")["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    ends = [len(tokenizer.decode(ids[: n + 1], skip_special_tokens=True)) - len(QUESTION) for n in range(len(ids))]
    doubts = [math.exp(a) / (math.exp(a) + math.exp(b)) for a, b in logits.tolist()]
    wanted = []
    for first, last in ((0, len(TRUE)), (len(TRUE) + 1, len(text))):
        wanted.append(
            1
            - max(p for p, end, before in zip(doubts, ends, [0, *ends], strict=False) if before < last and end > first)
        )
    assert [score for _, score in scores(load_verifier(f"probe:{folder}"))] == pytest.approx(wanted, abs=1e-5)


def test_card_and_results(trained):
    trainer, folder, _ = trained
    validate_card(folder)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert (
        "VerifierPipeline.from_pretrained" in card
        and "2509.03531" in card
        and "alone (the adapter has no layer)" in card
        and "threshold of P(true) 0." in card
    )
    entries = {e["metric"]: e for e in load_results(folder / "results-probe.json")["results"]}
    assert {name: entry["value"] for name, entry in entries.items()} == trainer.figures
    assert entries["auroc"]["n"] == 24, "sentences"


@pytest.mark.slow
@pytest.mark.parametrize("lora", fast_few([False, True], 0))
def test_pushed_and_loaded_from_the_hub(tiny_model, tmp_path, hub, lora):
    """With LoRA its layers learn too, those below the layer that is read."""
    files = {path.name: path.read_bytes() for path in Path(tiny_model).iterdir() if path.is_file()}
    hub.add("someone/base", files, private=True)
    config = LoraConfig(r=2, target_modules="all-linear") if lora else None
    where = {"hub_model_id": "someone/probe", "hub_private_repo": True, "max_steps": 4, "layer": 0.5}
    trainer = make("someone/base", tmp_path, peft_config=config, **where)
    before = {name: parameter.detach().clone() for name, parameter in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(before[name], p)}
    assert any("lora_B" in name for name in moved) == lora
    assert all("lora_" in name or "score.modules_to_save" in name for name in moved)
    assert trainer.model.config.num_hidden_layers == 1 and not any("layers.1" in name for name in before)
    trainer.push_to_hub()
    assert "model.safetensors" not in hub.repos["model", "someone/probe"].files()
    wanted = scores(load_verifier(f"probe:{tmp_path}"))
    assert scores(VerifierPipeline.from_pretrained("someone/probe", token=TOKEN)) == wanted
    own = ProbeJudge(trainer.model, trainer.processing_class)
    inputs = [JudgeInput(FALSE, (), QUESTION, f"{TRUE} {FALSE}", (len(TRUE) + 1, len(TRUE) + 1 + len(FALSE)))]
    assert own.judge(inputs)[0].score == pytest.approx(wanted[1][1], abs=1e-5)


def test_which_tokens_are_labelled(tiny_model, tmp_path):
    """Those of judged spans of the answer; overlapping claims by the worst; no fact and no verdict are left out."""
    text = "<think>Was it Paris?</think>Ada was born. She worked."
    start, second = text.index("Ada"), text.index("She")
    spans = [(start, start + 13, "supported"), (second, len(text), "no_fact"), (start + 4, start + 13, "contradicted")]
    spans = [dict(zip(("start", "end", "label"), span, strict=True)) for span in spans]
    row = {
        "prompt": [{"role": "user", "content": "Who?"}],
        "completion": text,
        "topic": "a",
        "verification": {"spans": spans},
    }
    rows = [{**row, "topic": topic} for topic in "abcdef"] + [{**row, "verification": {"spans": [], "error": "down"}}]
    trainer = make(tiny_model, tmp_path, Dataset.from_list(rows))
    (ids, labels) = (trainer.train_dataset[0][name] for name in ("input_ids", "labels"))
    decode = trainer.processing_class.decode
    assert decode(ids) == "<|user|>Who?<|end|><|assistant|>Ada was born. She worked."
    assert decode([i for i, label in zip(ids, labels, strict=True) if label == 1]).strip() == "Ada"
    assert decode([i for i, label in zip(ids, labels, strict=True) if label == 2]).strip() == "was born."
    assert set(labels) == {-100, 1, 2}
    assert trainer.left_out == {"train: no_fact": 6, "train: no claim": 1}


def test_the_threshold_is_that_of_the_calibration_claims(trained):
    trainer, _, _ = trained
    threshold = trainer.model.config.probe["threshold"]
    margins, truths, _ = trainer._claims(trainer.predict(trainer.calibration_dataset))
    scores = [1 / (1 + math.exp(-margin)) for margin in margins]

    def balanced(cut):
        right = [
            sum((s >= cut) == bool(t) for s, t in zip(scores, truths, strict=True) if t == kind) for kind in (0, 1)
        ]
        return right[0] / truths.count(0) + right[1] / truths.count(1)

    assert balanced(threshold) == pytest.approx(max(map(balanced, scores))) and 0 < threshold < 1


def test_layer_types_are_cut_with_the_layers(tiny_model, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = Qwen3Config(vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=4,
                         num_attention_heads=2, num_key_value_heads=2, head_dim=8)  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    trainer = make(str(tmp_path / "base"), tmp_path / "out", max_steps=1, layer=0.7)
    trainer.train()
    trainer.save_model()
    assert trainer.model.config.num_hidden_layers == len(trainer.model.config.layer_types) == 3
    assert len(scores(load_verifier(f"probe:{tmp_path / 'out'}"))) == 2


def test_what_cannot_be_judged_is_unknown(trained, caplog):
    _, folder, _ = trained
    judge = ProbeJudge(str(folder), max_length=100)
    judge.tokenizer.backend_tokenizer.normalizer = normalizers.NFC()
    texts = [
        "very " * 60,
        "",
        "e\u0301",
        "Ada <|end|>\ud800 玛丽。",
        "x<y \x00\r\n[INST]",
    ]  # the third is not given back
    found = judge.judge([JudgeInput(text, (), "<|user|>?") for text in texts])
    assert found[:3] == [Judgement(None)] * 3 and all(0 <= one.score <= 1 for one in found[3:])
    assert "3 of 5 claims were not judged" in caplog.text and judge.judge([]) == []
    with torch.no_grad():
        judge.model.score.weight.fill_(math.nan)
    assert judge.judge([JudgeInput("Ada.", ())]) == [Judgement(None)]


@pytest.mark.parametrize(
    ("change", "settings", "error", "message"),
    [
        (lambda rows: rows.remove_columns("verification"), {}, DataError, "columns 'completion' and 'verification', got"),
        (lambda rows: rows.remove_columns("question"), {}, DataError, "row 0 of the train dataset has no question"),
        (lambda rows: rows.map(lambda row: {"completion": "Ada."}), {}, DataError, "row 0 .*ends after the completion"),
        (lambda rows: rows.filter(lambda row: False), {}, DataError, "has no rows"),
        (completions, {"ratio": 2.0}, ValueError, "ratio=2.0 must be None"),
        (completions, {"layer": 0.0}, ValueError, r"layer=0.0 must be in \(0, 1\]"),
        (completions, {"pool": "min"}, ValueError, "pool='min' is unknown"),
        (completions, {"span_weight": 2.0}, ValueError, "span_weight=2.0 must be in"),
        (completions, {"template": "{{claim|plain}} "}, ValueError, "template=.* must be a text that ends"),
    ],
)  # fmt: skip
def test_refused_before_anything_is_loaded(tiny_model, tmp_path, monkeypatch, change, settings, error, message):
    monkeypatch.setattr(AutoModelForTokenClassification, "from_pretrained", None)
    with pytest.raises(error, match=message):
        make(tiny_model, tmp_path, change(completions(4)) if change is not completions else None, **settings)


def test_other_models_are_refused(tiny_model, tmp_path):
    with pytest.raises(
        ValueError, match="LlamaForCausalLM.*pass its name, or a model ForTokenClassification of 2 classes"
    ):
        ProbeTrainer(
            AutoModelForCausalLM.from_pretrained(tiny_model), ProbeConfig(str(tmp_path), **QUIET), completions(),
            processing_class=AutoTokenizer.from_pretrained(tiny_model),
        )  # fmt: skip
    with pytest.raises(ValueError, match="is no probe model.*no 'probe'"):
        ProbeJudge(
            AutoModelForTokenClassification.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
        )


@pytest.mark.slow
def test_resumed_equals_uninterrupted(tiny_model, tmp_path):
    """The share of the spans in the loss goes on where it was; the layers are evaluated on the way."""

    def run(folder, **resume):
        settings = {
            "max_steps": 4,
            "save_strategy": "steps",
            "save_steps": 2,
            "eval_strategy": "steps",
            "eval_steps": 2,
        }
        trainer = make(tiny_model, folder, **settings)
        trainer.train(**resume)
        assert [0 < e["eval_auroc"] <= 1 for e in trainer.state.log_history if "eval_auroc" in e] == [True, True]
        return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}, trainer.figures

    whole, figures = run(tmp_path / "whole")
    (tmp_path / "cut").mkdir()
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "cut" / "checkpoint-2")
    resumed, again = run(tmp_path / "cut", resume_from_checkpoint=True)
    assert all(torch.equal(whole[name], resumed[name]) for name in whole) and figures == again


def test_settings_of_others_are_checked(trained):
    trainer, _, _ = trained
    found = dict(trainer.model.config.probe)
    try:
        for wrong in ({"pool": "min"}, {"threshold": "0.5"}, {"threshold": float("nan")}):
            trainer.model.config.probe = {**found, **wrong}
            with pytest.raises(ValueError, match=r"pool=.* must be one of .*, threshold=.* in \[0, 1\]"):
                ProbeJudge(trainer.model, trainer.processing_class)
    finally:
        trainer.model.config.probe = found


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_batch_changes_no_score(trained, side):
    _, folder, _ = trained
    judge = ProbeJudge(str(folder))
    judge.tokenizer.padding_side = side
    texts = [TRUE, f"{TRUE} {FALSE}", "Ada."]
    alone = [judge.token_log_odds([(QUESTION, text)])[0] for text in texts]
    for (places, values), (others, wanted) in zip(
        judge.token_log_odds([(QUESTION, t) for t in texts]), alone, strict=True
    ):
        assert places == others and values == pytest.approx(wanted, abs=1e-4)

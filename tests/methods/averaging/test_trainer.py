"""Ratios of an average: their gradients, what they learn, and that the model trained is the model written."""

import json
import math
from hashlib import sha256
from pathlib import Path
from statistics import fmean

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_factuality.errors import CheckpointError
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.methods.averaging.average import Ratios
from hf_factuality.trainers import AdaptiveAveragingConfig, AdaptiveAveragingTrainer
from tests.conftest import fast_few
from tests.hub.loopback import TOKEN
from tests.processes import assert_ended_well, run_ranks
from tests.trainers.recording import QUIET


LAYERS = 4
SETTINGS = {**QUIET, "blocks": 2, "learning_rate": 0.1, "per_device_train_batch_size": 4, "max_steps": 4,
            "lr_scheduler_type": "constant", "logging_steps": 1}  # fmt: skip


def save_pair(folder, tiny_model, tied=True, dtype=torch.float32, noise=0.05):
    """The model before alignment and after, as folders."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=2,
        num_key_value_heads=1, tie_word_embeddings=tied, initializer_range=0.2, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(dtype)
    for name in ("before", "after"):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += noise * torch.randn_like(parameter)
    return folder / "before", folder / "after"


def rows(n=16):
    return Dataset.from_dict({
        "prompt": [[{"role": "user", "content": f"Where was person {number} born?"}] for number in range(n)],
        "completion": [[{"role": "assistant", "content": "In Warsaw." if number % 2 else "It is not known."}]
                       for number in range(n)],
    })  # fmt: skip


def make(pair, out, data=None, **settings):
    before, after = pair
    args = AdaptiveAveragingConfig(str(out), **{**SETTINGS, **settings})
    return AdaptiveAveragingTrainer(str(after), str(before), args, rows() if data is None else data, rows(4))


def files_of(folder):
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()}


def loss_of(trainer):
    torch.manual_seed(0)
    trainer.model.train()
    batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
    trainer.current_gradient_accumulation_steps = 1
    return trainer.compute_loss(trainer.model, batch)


def gradient(trainer):
    trainer.model.zero_grad()
    loss_of(trainer).backward()
    return trainer._logits.grad.clone()


def weights_kept(trainer, shape):
    """Averages of a shape that the backward pass finds in memory; the two models' own weights are left out."""
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda it: kept.append(it) or it, lambda it: it):
        loss_of(trainer)
    own = {parameter.data_ptr() for parameter in trainer.model.parameters()}
    return len({it.data_ptr() for it in kept if it.shape in (shape, shape[::-1])} - own)


def by_hand(pair, ratio_of):
    """All tensors of the average in float64, by a function of their names."""
    before, after = (load_file(folder / "model.safetensors") for folder in pair)
    return {
        name: ratio_of(name) * before[name].double() + (1 - ratio_of(name)) * after[name].double() for name in before
    }


@pytest.mark.parametrize(
    ("level", "variant", "tied"),
    fast_few(
        [
            ("block", "paper", True),
            ("layer", "paper", False),
            ("linear", "paper", True),
            ("linear", "released", False),
        ],
        0,
    ),
)
def test_gradients_are_those_of_finite_differences(tiny_model, tmp_path, level, variant, tied):
    pair = save_pair(tmp_path, tiny_model, tied)
    settings = dict(level=level, variant=variant, penalty_coef=0.01, penalty="middle")
    exact = {"model_init_kwargs": {"dtype": torch.float64}}
    trainer = make(pair, tmp_path / "out", **settings, **exact)
    logits = trainer._logits
    with torch.no_grad():
        logits.copy_(1.0 - 2.0 * (torch.arange(len(logits)) % 2))  # away from the kink of the penalty
    found = gradient(trainer)
    assert not any(p.requires_grad for p in trainer.model.parameters() if p is not logits)
    for place in {0, len(logits) // 3, len(logits) - 1}:
        losses = []
        for step in (0.4, -0.4, 0.2, -0.2):  # large: norms and loss are float32
            logits.data[place] += step
            losses.append(loss_of(trainer).item())
            logits.data[place] -= step
        coarse, fine = (losses[0] - losses[1]) / 0.8, (losses[2] - losses[3]) / 0.4
        assert found[place].item() == pytest.approx((4 * fine - coarse) / 3, rel=1e-3, abs=1e-5)
    assert found.abs().min() > 1e-7  # no ratio is without effect
    if level == "block":  # the loss is that of the model made by hand
        parts = torch.sigmoid(logits.detach().double()) + 0.2
        ratios = (0.4 * parts / parts.sum()).tolist()
        model = AutoModelForCausalLM.from_pretrained(pair[1], dtype=torch.float64)
        model.load_state_dict(by_hand(pair, by_block(ratios)), strict=False)
        batch = trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))
        trainer._metrics["train"].clear()
        expected = model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["labels"]).loss
        # Two layers a block, of seven linear modules; the output layer is tied.
        costs = [7 * sum(25 / (abs(layer - 13) + 1) for layer in layers) for layers in ((0, 1), (2, 3))]
        penalty = sum(cost * abs(ratio - 0.2) for cost, ratio in zip(costs, ratios, strict=True))
        trainer.model.train()
        loss = trainer.compute_loss(trainer.model, batch)
        assert loss.item() == pytest.approx(expected.item() + 0.01 * penalty, abs=1e-5)
    checkpointed = make(pair, tmp_path / "other", gradient_checkpointing=True, **settings, **exact)
    checkpointed._logits.data.copy_(logits.data)
    checkpointed.model.gradient_checkpointing_enable()
    assert torch.equal(gradient(checkpointed), found)
    shape = trainer.model.model.layers[0].mlp.up_proj.weight.shape
    assert (weights_kept(trainer, shape), weights_kept(checkpointed, shape)) == (3 * LAYERS, 0)


def by_block(ratios):
    def ratio_of(name):
        layer = int(name.split(".")[2]) if ".layers." in name else 0 if "embed" in name else LAYERS - 1
        return ratios[layer // (LAYERS // 2)]

    return ratio_of


@pytest.mark.parametrize(("tied", "dtype"), fast_few([(True, torch.float32), (False, torch.bfloat16)], 0))
def test_what_is_trained_is_what_is_written_and_the_models_stay(tiny_model, tmp_path, tied, dtype):
    pair = save_pair(tmp_path, tiny_model, tied, dtype)
    kept = [files_of(folder) for folder in pair]
    trainer = make(pair, tmp_path / "out", model_init_kwargs={"dtype": dtype})
    trainer.train()
    held = dict(trainer.model.named_parameters())
    for folder, end in zip(pair, ("0.before", "original"), strict=True):
        for name, value in load_file(folder / "model.safetensors").items():
            parent, _, key = name.rpartition(".")
            assert torch.equal(held[f"{parent}.parametrizations.{key}.{end}"], value), name
    trainer.save_model()
    assert [files_of(folder) for folder in pair] == kept
    found = json.loads((tmp_path / "out" / "ratios.json").read_text())
    assert (found["alpha"], found["level"], found["blocks"], found["variant"]) == (0.2, "block", 2, "paper")
    ratios = [found["ratios"][key] for key in "01"]
    assert abs(fmean(ratios) - 0.2) < 1e-15 and abs(ratios[0] - ratios[1]) > 0.001
    written = load_file(tmp_path / "out" / "model.safetensors")
    for name, value in by_hand(pair, by_block(ratios)).items():
        torch.testing.assert_close(written[name].double(), value, rtol=1e-6 if tied else 2**-8, atol=1e-7)
    assert_same_model(trainer, tmp_path / "out")
    trainer.create_model_card()
    validate_card(tmp_path / "out")
    assert ", ".join(f"{ratio:.3f}" for ratio in ratios) in (tmp_path / "out" / "README.md").read_text()
    first = (tmp_path / "out" / "model.safetensors").stat().st_ino
    trainer.save_model()  # a push saves again
    assert (tmp_path / "out" / "model.safetensors").stat().st_ino == first
    trainer._logits.data[0] += 1
    trainer.save_model()
    assert_same_model(trainer, tmp_path / "out")


def assert_same_model(trainer, folder):
    ids = torch.randint(5, 200, (2, 20))
    with torch.no_grad():
        written = AutoModelForCausalLM.from_pretrained(folder)(input_ids=ids).logits
        assert torch.equal(trainer.model.eval()(input_ids=ids).logits, written)


@pytest.mark.parametrize(("level", "count"), fast_few([("layer", LAYERS), ("linear", 7 * LAYERS)], 1))
@pytest.mark.parametrize("variant", fast_few(["paper", "released"], 1))
def test_levels_and_variants_are_written_as_they_were_trained(tiny_model, tmp_path, level, count, variant):
    pair = save_pair(tmp_path, tiny_model, variant == "paper")
    trainer = make(pair, tmp_path / "out", level=level, variant=variant)
    trainer.train()
    trainer.save_model()
    assert len(Ratios.load(tmp_path / "out").ratios) == count
    assert_same_model(trainer, tmp_path / "out")
    norm = "model.layers.1.input_layernorm.weight"
    written, before = (load_file(path / "model.safetensors")[norm] for path in (tmp_path / "out", pair[0]))
    assert torch.equal(written, before) == (variant == "released")


@pytest.mark.slow
def test_ratios_go_to_the_better_model_of_each_block(tiny_model, tmp_path):
    """Before is good in the first block, after in the last: answers are drawn from the model that is good in both."""
    before, after = save_pair(tmp_path, tiny_model, noise=0.0)
    good = AutoModelForCausalLM.from_pretrained(before)
    for folder, spoilt in ((before, (2, 3)), (after, (0, 1))):
        bad = AutoModelForCausalLM.from_pretrained(before)
        torch.manual_seed(1)
        for layer in spoilt:
            for parameter in bad.model.layers[layer].parameters():
                parameter.data += 0.1 * torch.randn_like(parameter)
        bad.save_pretrained(folder)
    drawn = good.generate(torch.randint(5, 200, (64, 3)), do_sample=True, min_new_tokens=24, max_new_tokens=24)
    data = Dataset.from_dict({"input_ids": drawn.tolist()})
    trainer = make((before, after), tmp_path / "out", data, alpha=0.5, max_steps=40, per_device_train_batch_size=16)
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert log[0]["ratios/0"] < log[9]["ratios/0"] < log[-1]["ratios/0"] and log[-1]["ratios/0"] > 0.7
    assert fmean(entry["loss"] for entry in log[:4]) > fmean(entry["loss"] for entry in log[-4:]) + 0.02
    for entry in log:
        assert entry["ratios/mean"] == pytest.approx(0.5, abs=1e-15)
        # A block has 2 layers of 7 linear modules.
        distance = abs(entry["ratios/0"] - 0.5) + abs(entry["ratios/1"] - 0.5)
        assert entry["ratios/penalty"] == pytest.approx(1e-4 * 14 * distance, abs=1e-12)


@pytest.mark.slow
def test_a_resumed_run_ends_with_the_same_bits_and_checkpoints_hold_no_model(tiny_model, tmp_path):
    pair = save_pair(tmp_path, tiny_model)
    saves = dict(save_strategy="steps", save_steps=2, level="layer", gradient_accumulation_steps=2)
    whole = make(pair, tmp_path / "run", **saves)
    whole.train()
    assert not any(path.stat().st_size > 50_000 for path in (tmp_path / "run" / "checkpoint-2").iterdir())
    again = make(pair, tmp_path / "run", **saves)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-2"))
    assert torch.equal(again._logits, whole._logits) and again._logits.std() > 0
    best = make(pair, tmp_path / "best", **saves, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True,
                metric_for_best_model="loss", greater_is_better=True)  # fmt: skip
    best.train()  # of a loss that falls, the first
    held = load_file(best.state.best_model_checkpoint + "/ratio_logits.safetensors")["ratio_logits"]
    assert best.state.best_global_step == 2 and torch.equal(best._logits, held)
    with pytest.raises(CheckpointError, match=r"is of .*alpha=0.2.*, and not of .*alpha=0.3.*; set it so"):
        make(pair, tmp_path / "run", alpha=0.3, **saves).train(resume_from_checkpoint=True)


@pytest.mark.slow
def test_an_adapter_is_averaged_with_its_base_in_one_commit_of_the_hub(tiny_model, tmp_path, hub):
    before, _ = save_pair(tmp_path, tiny_model)
    lora = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(before), lora)
    adapted.save_pretrained(tmp_path / "adapter")
    trainer = make((before, tmp_path / "adapter"), tmp_path / "out", level="linear", hub_model_id="someone/averaged",
                   hub_token=TOKEN)  # fmt: skip
    trainer.train()
    merged = adapted.merge_and_unload().state_dict()
    for name, parameter in trainer.model.named_parameters():
        if name.endswith(".original"):
            torch.testing.assert_close(
                parameter, merged[name.replace(".parametrizations", "").removesuffix(".original")]
            )
    trainer.push_to_hub()
    found = hub.repos["model", "someone/averaged"].files("main")
    assert {"model.safetensors", "ratios.json", "README.md", "tokenizer.json"} <= found.keys()
    assert len(Ratios.load(tmp_path / "out").ratios) == 7 * LAYERS  # the tied output layer has none of its own


def test_what_cannot_work_is_refused_before_a_model_is_loaded(tiny_model, tmp_path):
    pair = before, after = save_pair(tmp_path, tiny_model)
    for settings, told in [
        ({"alpha": 1.2}, r"alpha=1.2 must be in \[0, 1\]"),
        ({"blocks": 0}, "blocks=0 must be at least 1"),
        ({"blocks": 5}, "5 blocks cannot be made of 4 layers"),
        ({"variant": "released", "blocks": 3}, "leaves a block of this model without layers"),
        ({"level": "tensor"}, "level='tensor' is unknown"),
        ({"penalty_coef": math.inf}, "penalty_coef=inf must be"),
        ({"chat_template_path": "org/model"}, "would add tokens"),
        ({"hub_strategy": "every_save"}, "would push checkpoints"),
        ({"gradient_checkpointing_kwargs": {"use_reentrant": True}}, "leave out use_reentrant"),
        ({"model_init_kwargs": {"revision": "main"}}, "pass 'id@revision'"),
        ({"output_dir": str(after)}, "is one of the models"),
    ]:
        with pytest.raises(ValueError, match=told):
            make(pair, settings.pop("output_dir", tmp_path / "out"), **settings)
    model = AutoModelForCausalLM.from_pretrained(before)
    args = AdaptiveAveragingConfig(str(tmp_path / "out"), **SETTINGS)
    with pytest.raises(TypeError, match="model is a LlamaForCausalLM; pass a folder"):
        AdaptiveAveragingTrainer(model, str(before), args, rows())
    with pytest.raises(ValueError, match="does not support peft_config"):
        AdaptiveAveragingTrainer(str(after), str(before), args, rows(), peft_config=LoraConfig())
    model.config.quantization_config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    model.config.save_pretrained(before)
    with pytest.raises(CheckpointError, match="quantization_config"):
        make(pair, tmp_path / "out")
    del model.config.quantization_config
    model.save_pretrained(before)
    model.resize_token_embeddings(500)
    model.save_pretrained(tmp_path / "larger")
    with pytest.raises(CheckpointError, match="was the vocabulary resized"):
        make((before, tmp_path / "larger"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", ["on", "off"])
def test_two_processes_learn_what_one_learns(tiny_model, tmp_path, checkpointing):
    from tests.methods.averaging.processes import run

    save_pair(tmp_path, tiny_model)
    assert_ended_well(run_ranks("tests.methods.averaging.processes", tmp_path, checkpointing))
    (logits, losses), (other, _) = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    expected, expected_losses = run(tmp_path, tmp_path / "one", checkpointing == "on", 1)
    way = (expected - torch.tensor(0.2).logit()).norm()
    assert torch.equal(logits, other) and way > 0.003 and (logits - expected).norm() < 1e-3 * way
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    one, two = (Ratios.load(tmp_path / name).ratios.values() for name in ("one", "two"))
    assert list(two) == pytest.approx(list(one), abs=1e-5)
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "two")

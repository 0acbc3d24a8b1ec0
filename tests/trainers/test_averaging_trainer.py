"""Adaptive model averaging: gradients of the ratios, what is trained and what is not, and what is written."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

from hf_factuality.checkpoints.average import Ratios
from hf_factuality.errors import CheckpointError
from hf_factuality.trainers import AdaptiveAveragingConfig, AdaptiveAveragingTrainer
from tests.processes import assert_ended_well, run_ranks
from tests.tiny import save_tiny_model


SETTINGS = {
    "per_device_train_batch_size": 2, "max_steps": 3, "report_to": "none", "bf16": False, "use_cpu": True, "max_length": 48,
    "save_strategy": "no", "logging_steps": 1, "blocks": 2, "disable_tqdm": True, "gradient_checkpointing": False,
}  # fmt: skip


def answers(n=16):
    rows = [
        {"prompt": f"Where was person {k} born?", "completion": f" In {'London' if k % 2 else 'Warsaw'}."}
        for k in range(n)
    ]
    return Dataset.from_list(rows)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders of a model before and after alignment, which differ in every tensor."""
    folder = tmp_path_factory.mktemp("averaging")
    before = Path(save_tiny_model(folder / "before"))
    shutil.copytree(before, folder / "after")
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: tensor + 0.1 * torch.randn(tensor.shape, generator=generator)
        for name, tensor in load_file(before / "model.safetensors").items()
    }
    save_file(tensors, folder / "after" / "model.safetensors", {"format": "pt"})
    return before, folder / "after"


def make(models, out, dtype=None, **settings):
    before, after = models
    args = AdaptiveAveragingConfig(str(out), **{**SETTINGS, **settings}, model_init_kwargs=dtype and {"dtype": dtype})
    return AdaptiveAveragingTrainer(str(after), str(before), args, answers())


def mixed(models, ratio_of):
    """The model whose tensors are averages, made another way."""
    old, new = (load_file(path / "model.safetensors") for path in models)
    model = AutoModelForCausalLM.from_pretrained(models[1], dtype=torch.float64)
    state = {n: ratio_of(n) * old[n].double() + (1 - ratio_of(n)) * new[n].double() for n in old}
    model.load_state_dict(state, strict=False)
    return model


def batch_of(trainer):
    return trainer._prepare_inputs(next(iter(trainer.get_train_dataloader())))


def by_block(ratios):
    def ratio_of(name):
        return ratios[1] if ".layers.1." in name or name == "model.norm.weight" else ratios[0]

    return ratio_of


@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_are_those_of_finite_differences(models, tmp_path, checkpointing):
    trainer = make(models, tmp_path, alpha=0.3, penalty_coef=0.02, gradient_checkpointing=checkpointing)
    trainer.model.train()
    batch = batch_of(trainer)
    logits = torch.tensor([0.4, -0.9])
    trainer._averaging.logits.data.copy_(logits)
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    assert [n for n, p in trainer.model.named_parameters() if p.grad is not None] == ["averaging.logits"]

    def direct(logits):
        parts = torch.sigmoid(logits) + 0.2
        ratios = (0.3 * 2 * parts / parts.sum()).tolist()
        assert sum(ratios) / 2 == pytest.approx(0.3, abs=1e-15)
        with torch.no_grad():
            output = mixed(models, by_block(ratios))(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        kept = batch["labels"][:, 1:] != -100
        loss = torch.nn.functional.cross_entropy(output[:, :-1][kept], batch["labels"][:, 1:][kept])
        # Seven linear modules a layer; the output layer is tied to the embeddings.
        return loss.item() + 0.02 * 7 * sum(abs(ratio - 0.3) for ratio in ratios)

    assert loss.item() == pytest.approx(direct(logits.double()), abs=1e-5)
    for k in range(2):
        step = torch.zeros(2, dtype=torch.float64)
        step[k] = 4e-3  # norms are computed in float32, so that smaller steps drown in rounding
        slope = (direct(logits.double() + step) - direct(logits.double() - step)) / 8e-3
        assert trainer._averaging.logits.grad[k].item() == pytest.approx(slope, rel=1e-3, abs=5e-5)


def test_both_models_stay_and_the_average_is_written(models, tmp_path):
    trainer = make(models, tmp_path / "out", max_steps=5, learning_rate=0.5)
    frozen = {n: p.detach().clone() for n, p in trainer.model.named_parameters() if n != "averaging.logits"}
    assert trainer.ratios.ratios == {"0": pytest.approx(0.2), "1": pytest.approx(0.2)}
    trainer.train()
    assert all(torch.equal(p, frozen[n]) for n, p in trainer.model.named_parameters() if n in frozen)
    ratios = list(trainer.ratios.ratios.values())
    assert abs(ratios[0] - 0.2) > 0.01 and sum(ratios) / 2 == pytest.approx(0.2, abs=1e-16)
    logged = [entry for entry in trainer.state.log_history if "ratios/0" in entry]
    assert (
        len(logged) == 5
        and logged[0]["ratios/0"] == pytest.approx(0.2, abs=1e-6)
        and logged[0]["ratios/penalty"] < 1e-9
    )
    trainer.save_model()
    assert Ratios.load(tmp_path / "out") == trainer.ratios
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    expected = mixed(models, by_block(ratios))
    for name, tensor in loaded.state_dict().items():
        assert torch.allclose(tensor, expected.state_dict()[name].float(), rtol=1e-6, atol=1e-7), name
    batch = batch_of(trainer)
    trainer.model.eval()
    with torch.no_grad():
        pair = [
            m(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
            for m in (trainer.model, loaded.eval())
        ]
    assert torch.allclose(*pair, atol=1e-5)
    assert {"config.json", "tokenizer.json", "ratios.json", "model.safetensors"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    written = (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns
    trainer.save_model()  # a push saves again
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns == written
    trainer._averaging.logits.data += torch.tensor([0.0, 1.0])
    trainer.save_model()
    assert (tmp_path / "out" / "model.safetensors").stat().st_mtime_ns != written
    trainer.create_model_card()
    card = (tmp_path / "out" / "README.md").read_text()
    assert "Adaptive model averaging" in card and "2309.06256" in card


def test_ratios_move_to_the_better_model(models, tmp_path):
    """Before knows the answers, and after is the same but for noise in its second layer: its block alone is to give way."""
    before, worse = tmp_path / "before", tmp_path / "worse"
    trained = SFTTrainer(
        str(models[0]), SFTConfig(str(before), **{n: v for n, v in SETTINGS.items() if n != "blocks"} | {"max_steps": 30, "learning_rate": 5e-3}),
        train_dataset=answers(),
    )  # fmt: skip
    trained.train()
    trained.save_model()
    shutil.copytree(before, worse)
    tensors = load_file(worse / "model.safetensors")
    noisy = {n: t + 0.2 * torch.randn_like(t) if ".layers.1." in n else t for n, t in tensors.items()}
    save_file(noisy, worse / "model.safetensors", {"format": "pt"})
    trainer = make(
        (before, worse), tmp_path / "out", max_steps=30, learning_rate=0.2, alpha=0.5, per_device_train_batch_size=8
    )
    trainer.train()
    first, second = trainer.ratios.ratios.values()
    assert second > 0.7 and first + second == pytest.approx(1.0)


@pytest.mark.parametrize(("level", "count"), [("layer", 2), ("linear", 14)])
@pytest.mark.parametrize("variant", ["paper", "released"])
def test_levels_and_variants_are_written_as_they_were_trained(models, tmp_path, level, variant, count):
    trainer = make(models, tmp_path / "out", level=level, variant=variant, learning_rate=0.5, penalty="middle")
    trainer.train()
    trainer.save_model()
    found = Ratios.load(tmp_path / "out")
    assert len(found.ratios) == count and (found.level, found.variant) == (level, variant)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    batch = batch_of(trainer)
    trainer.model.eval()
    with torch.no_grad():
        pair = [m(batch["input_ids"], attention_mask=batch["attention_mask"]).logits for m in (trainer.model, loaded)]
    assert torch.allclose(*pair, atol=1e-5)


def test_in_bfloat16_ratios_are_float32_and_weights_rounded_once(models, tmp_path):
    for path in models:
        shutil.copytree(path, tmp_path / path.name)
        save_file(
            {n: t.bfloat16() for n, t in load_file(path / "model.safetensors").items()},
            tmp_path / path.name / "model.safetensors",
            {"format": "pt"},
        )
    trainer = make(
        (tmp_path / "before", tmp_path / "after"), tmp_path / "out", dtype=torch.bfloat16, learning_rate=0.5
    )
    trainer.train()
    assert trainer._averaging.logits.dtype == torch.float32
    trainer.save_model()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16
    weight = trainer.model.model.layers[0].mlp.up_proj.weight
    assert weight.dtype == torch.bfloat16
    assert torch.allclose(weight.float(), loaded.model.layers[0].mlp.up_proj.weight.float(), rtol=2**-7)


def test_a_resumed_run_ends_with_the_same_ratios(models, tmp_path):
    settings = {"max_steps": 4, "learning_rate": 0.3, "save_strategy": "steps", "save_steps": 2}
    whole = make(models, tmp_path / "whole", **settings)
    whole.train()
    saved = {path.name for path in (tmp_path / "whole" / "checkpoint-2").iterdir()}
    assert "averaging_logits.safetensors" in saved and not any(name.startswith("model") for name in saved)
    again = make(models, tmp_path / "whole", **settings)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert torch.equal(again._averaging.logits, whole._averaging.logits)
    (tmp_path / "whole" / "checkpoint-2" / "averaging_logits.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="averaging_logits"):
        make(models, tmp_path / "whole", **settings).train(
            resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2")
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"alpha": 1.2}, r"alpha=1.2 must be in \[0, 1\]"),
        ({"blocks": 3}, "3 blocks cannot be made of 2 layers"),
        ({"penalty_coef": -1.0}, "penalty_coef=-1.0"),
        ({"level": "row"}, "level='row' is unknown"),
    ],
)
def test_settings_that_are_refused(models, tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        make(models, tmp_path, **settings)


def test_models_that_are_refused(models, tmp_path):
    with pytest.raises(TypeError, match="before_model must be a folder or a name on the Hub, not a Linear"):
        AdaptiveAveragingTrainer(str(models[1]), torch.nn.Linear(1, 1), None, answers())
    config = json.loads((models[0] / "config.json").read_text())
    other = AutoModelForCausalLM.from_config(
        type(AutoModelForCausalLM.from_pretrained(models[0]).config)(**{**config, "vocab_size": 7})
    )
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(ValueError, match="not of one architecture: 'model.embed_tokens.weight'"):
        make((tmp_path / "other", models[1]), tmp_path / "out")
    args = AdaptiveAveragingConfig(str(tmp_path), **SETTINGS)
    with pytest.raises(ValueError, match="peft_config"):
        AdaptiveAveragingTrainer(str(models[1]), str(models[0]), args, answers(), peft_config=object())


def test_an_adapter_is_the_model_after(models, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = AutoModelForCausalLM.from_pretrained(models[0])
    torch.manual_seed(2)
    wrapped = get_peft_model(base, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    wrapped.save_pretrained(tmp_path / "adapter")
    shutil.copy(models[0] / "tokenizer.json", tmp_path / "adapter")
    shutil.copy(models[0] / "tokenizer_config.json", tmp_path / "adapter")
    trainer = make((models[0], tmp_path / "adapter"), tmp_path / "out", alpha=0.5)
    trainer.train()
    trainer.save_model()
    merged = wrapped.merge_and_unload().state_dict()
    found = load_file(tmp_path / "out" / "model.safetensors")
    old = load_file(models[0] / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.weight"
    ratio = trainer.ratios.ratios["0"]
    assert torch.allclose(found[name], ratio * old[name] + (1 - ratio) * merged[name], atol=1e-6)


def main():
    torch.set_num_threads(1)
    before, after, out, size = sys.argv[1:]
    size = int(size)
    trainer = make((Path(before), Path(after)), out, per_device_train_batch_size=size, learning_rate=0.3, max_steps=3)
    trainer.train()
    print(json.dumps(trainer._averaging.logits.tolist()))


@pytest.mark.slow
def test_two_processes_learn_what_one_does(models, tmp_path):
    found = []
    for ranks, size in ((1, 4), (2, 2)):
        done = run_ranks("tests.trainers.test_averaging_trainer", *models, tmp_path / str(ranks), size, ranks=ranks)
        assert_ended_well(done)
        found.append([json.loads(rank.stdout.splitlines()[-1]) for rank in done])
    assert found[1][0] == found[1][1] and found[1][0] == pytest.approx(found[0][0], abs=1e-4)

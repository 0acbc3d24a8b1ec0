"""The other formats: ZeRO partitions, LoRA adapters, folders of a trainer."""

import importlib.util
import json
import math
import os
import re
import shutil
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from hf_factuality.checkpoints.adapters import _first_matches
from hf_factuality.checkpoints.merge import merge
from hf_factuality.errors import CheckpointError
from tests.checkpoints.merge_inputs import make_model
from tests.checkpoints.test_merge import assert_same, stored
from tests.conftest import fast_few
from tests.hub.loopback import Blob
from tests.tiny import save_tiny_model


class LossScaler:
    """Stands where DeepSpeed's class would, so that files name it."""


@pytest.fixture
def loss_scaler(monkeypatch):
    name = ""
    for part in ("deepspeed", "runtime", "fp16", "loss_scaler"):
        name = f"{name}.{part}".strip(".")
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
    module.LossScaler = LossScaler
    monkeypatch.setattr(LossScaler, "__module__", name)
    return LossScaler()


def llama(tied):
    model = make_model("Llama", {"tie_word_embeddings": tied})
    return model, {name: tensor.detach() for name, tensor in model.named_parameters()}


def write_zero(folder, stage, world, groups, scaler, frozen=None, shared=None, buffers=None):
    """Files as DeepSpeed lays them out: `groups` is a list of name to tensor."""
    folder.mkdir(parents=True)
    shapes = [{name: tensor.shape for name, tensor in group.items()} for group in groups]
    frozen, buffers = frozen or {}, buffers or {}
    for rank in range(world):
        flats = []
        for group in groups:
            if stage == 3:  # every parameter is padded and cut on its own
                parts = []
                for tensor in group.values():
                    size = -(-tensor.numel() // world)
                    padded = torch.cat([tensor.reshape(-1), torch.full((size * world - tensor.numel(),), 7.0)])
                    parts.append(padded[rank * size : (rank + 1) * size])
                flats.append(torch.cat(parts))
            else:  # the group is flattened, padded and cut
                flat = torch.cat([tensor.reshape(-1) for tensor in group.values()])
                flat = torch.cat([flat, torch.full((-len(flat) % (2 * world),), 7.0)])
                flats.append(flat.chunk(world)[rank].clone())
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        optimizer = {"loss_scaler": scaler, "zero_stage": stage, "partition_count": world, key: flats}
        torch.save(
            {"optimizer_state_dict": optimizer}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        )
        parts = {}
        for name, tensor in frozen.items():
            size = -(-tensor.numel() // world)
            padded = torch.cat([tensor.reshape(-1), torch.zeros(size * world - tensor.numel(), dtype=tensor.dtype)])
            parts[name] = padded[rank * size : (rank + 1) * size] if stage == 3 else tensor
        model = {
            "module": {name: tensor.bfloat16() for group in groups for name, tensor in group.items()} | buffers,
            "buffer_names": list(buffers),
            "param_shapes": shapes,
            "frozen_param_shapes": {name: tensor.shape for name, tensor in frozen.items()},
            "frozen_param_fragments": parts,
            "shared_params": shared or {},
        }
        if stage == 3:
            torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        elif not rank:
            torch.save(model, folder / "mp_rank_00_model_states.pt")


@pytest.mark.parametrize(("stage", "world", "tied"), [(1, 1, False), (2, 3, True), (3, 2, False), (3, 4, True)])
def test_zero(stage, world, tied, tmp_path, loss_scaler):
    model, weights = llama(tied)
    frozen = {name: weights[name] for name in weights if name.startswith("model.layers.1.")}
    trained = {name: tensor for name, tensor in weights.items() if name not in frozen}
    groups = [{n: t for n, t in trained.items() if t.ndim == 2}, {n: t for n, t in trained.items() if t.ndim < 2}]
    shared = {"lm_head.weight": "model.embed_tokens.weight"} if tied else {}
    run = tmp_path / "checkpoint-7"
    write_zero(run / "global_step7", stage, world, groups, loss_scaler, frozen, shared)
    (run / "latest").write_text("global_step7")
    model.config.save_pretrained(run)
    report = merge(run, tmp_path / "model")
    assert report.format == f"DeepSpeed ZeRO-{stage}, world size {world}"
    assert_same(stored(tmp_path / "model"), weights)
    if stage == 3:
        file = run / "global_step7" / "zero_pp_rank_1_mp_rank_00_model_states.pt"
        state = torch.load(file, weights_only=False)
        name, _ = state["frozen_param_fragments"].popitem()
        torch.save(state, file)
        with pytest.raises(CheckpointError, match=f"lacks its part of the frozen '{name}'"):
            merge(run, tmp_path / "again")
    last = run / "global_step7" / f"bf16_zero_pp_rank_{world - 1}_mp_rank_00_optim_states.pt"
    if world > 1:
        last.unlink()
        with pytest.raises(CheckpointError, match=rf"has {world - 1} of {world} files .* missing: rank {world - 1}\."):
            merge(run, tmp_path / "again")


def test_zero_partitions_that_are_too_short(tmp_path, loss_scaler):
    model, weights = llama(tied=False)
    for stage in (2, 3):
        folder = tmp_path / f"global_step{stage}"
        write_zero(folder, stage, 2, [weights], loss_scaler)
        model.config.save_pretrained(folder)
        file = folder / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
        state = torch.load(file, weights_only=False)
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        state["optimizer_state_dict"][key] = [state["optimizer_state_dict"][key][0][:-50].clone()]
        torch.save(state, file)
        with pytest.raises(CheckpointError, match="the partitions hold|rank 1 holds"):
            merge(folder, tmp_path / "model")


@pytest.mark.parametrize("stage", [2, 3])
def test_zero_partitions_that_come_twice(stage, tmp_path, loss_scaler):
    model, weights = llama(tied=False)
    folder = tmp_path / f"global_step{stage}"
    write_zero(folder, stage, 2, [weights], loss_scaler)
    model.config.save_pretrained(folder)
    first, second = (folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1))
    other = folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"
    shutil.copy(second, other)
    with pytest.raises(CheckpointError, match="the same rank of two runs; take one away"):
        merge(folder, tmp_path / "model")
    other.unlink()
    merge(folder, tmp_path / "whole")
    torch.save(torch.load(first, weights_only=False), second)  # a copy has the first name in it, and is known by that
    with pytest.raises(CheckpointError, match="rank_1_.* holds the same partition as .*rank_0_"):
        merge(folder, tmp_path / "model")
    # A model of equal numbers alone has equal partitions.
    write_zero(tmp_path / "ones", stage, 2, [{n: torch.ones_like(t) for n, t in weights.items()}], loss_scaler)
    model.config.save_pretrained(tmp_path / "ones")
    merge(tmp_path / "ones", tmp_path / "merged-ones")


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed")
def test_zero_of_deepspeed_itself(tmp_path):
    """Against DeepSpeed's own converter, which unpickles freely."""
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.checkpoints.merge_inputs_zero", str(tmp_path / "runs")]
    subprocess.run(command, check=True, timeout=600, cwd=Path(__file__).resolve().parents[2], env=environment)
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

    for run in sorted((tmp_path / "runs").glob("zero[123]")):
        merge(run, tmp_path / run.name)
        expected = dict(get_fp32_state_dict_from_zero_checkpoint(str(run)))
        start, found = load_file(run / "start.safetensors"), stored(tmp_path / run.name)
        if run.name == "zero2":
            assert torch.equal(expected.pop("lm_head.weight"), expected["model.embed_tokens.weight"])
        # DeepSpeed's converter leaves frozen weights of stage 1 out; they are in bfloat16 among the model's.
        frozen = {name: t.bfloat16() for name, t in start.items() if name.startswith("model.layers.0.")}
        assert_same(found, frozen | {name: tensor.contiguous() for name, tensor in expected.items()})
        moved = {name for name in start if not torch.equal(found[name].bfloat16(), start[name].bfloat16())}
        assert moved and not any(name.startswith("model.layers.0.") for name in moved)


def make_gpt2(**settings):
    """Its layers are Conv1D, which store (in, out), and a Linear at the end; `c_proj` of the attention is square."""
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=37, n_layer=2, n_head=1, n_positions=16, tie_word_embeddings=False, **settings)
    return GPT2LMHeadModel(config)


def adapter(tmp_path, base_settings, **settings):
    """A base model and an adapter with random matrices on it, written by PEFT; the folder of the adapter, PEFT's merge of it."""
    peft = pytest.importorskip("peft")
    model = make_gpt2(**base_settings) if "n_embd" in base_settings else make_model("Qwen2", base_settings)
    model.save_pretrained(tmp_path / "base")
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    torch.manual_seed(2)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name or "modules_to_save" in name or (name.endswith(".bias") and settings.get("bias")):
            parameter.data = torch.randn_like(parameter)
    wrapped.peft_config["default"].base_model_name_or_path = str(tmp_path / "base")
    wrapped.save_pretrained(tmp_path / "adapter")
    fresh = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    merged = peft.PeftModel.from_pretrained(fresh, tmp_path / "adapter").merge_and_unload()
    return tmp_path / "adapter", merged


LORA = {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "down_proj", "up_proj"]}
VARIANTS = {
    "plain": ({"tie_word_embeddings": True}, LORA),
    "bfloat16": ({"tie_word_embeddings": True, "dtype": "bfloat16"}, LORA),
    "rslora": ({"tie_word_embeddings": False}, LORA | {"use_rslora": True}),
    "patterns": (
        {"tie_word_embeddings": False},
        LORA | {"rank_pattern": {"layers.1.mlp.up_proj": 5}, "alpha_pattern": {"q_proj": 4, "up_proj": 9}},
    ),
    "saved": ({"tie_word_embeddings": False}, LORA | {"modules_to_save": ["lm_head", "model.norm"]}),
    "embedding": ({"tie_word_embeddings": False}, LORA | {"target_modules": ["embed_tokens", "v_proj"]}),
    "embedding, bfloat16": (
        {"tie_word_embeddings": False, "dtype": "bfloat16"},
        LORA | {"target_modules": ["embed_tokens", "v_proj"]},
    ),
    "MiCA, bfloat16": ({"tie_word_embeddings": False, "dtype": "bfloat16"}, LORA | {"init_lora_weights": "mica"}),
    "saved, bfloat16": (
        {"tie_word_embeddings": False, "dtype": "bfloat16"},
        LORA | {"modules_to_save": ["lm_head", "model.norm"], "use_rslora": True},
    ),
    # Square layers, whose shapes do not tell whether they are transposed; the configuration's one flag is the last layer's.
    **{
        f"Conv1D, {', '.join(targets)}": (
            {"n_embd": size},
            {"r": 3, "lora_alpha": 7, "target_modules": targets, **more},
        )
        for size, targets, more in (
            (40, ["attn.c_proj", "lm_head"], {}),
            (40, ["attn.c_proj"], {"fan_in_fan_out": True}),
            (40, ["lm_head"], {"fan_in_fan_out": True}),
            (37, ["attn.c_proj", "lm_head", "wte"], {"use_rslora": True}),
            (36, ["c_attn", "attn.c_proj", "mlp.c_proj", "wpe"], {"alpha_pattern": {r"h\.1\..*c_proj": 3}}),
            (36, ["c_fc", "attn.c_proj"], {"rank_pattern": {"c_fc": 5}, "modules_to_save": ["lm_head"]}),
        )
    },
}


@pytest.mark.parametrize("variant", fast_few(VARIANTS, *range(0, 99, 3)))
def test_adapter_equals_pefts_own_merge(variant, tmp_path):
    base, lora = VARIANTS[variant]
    folder, merged = adapter(tmp_path, base, **lora)
    report = merge(folder, tmp_path / "model")
    assert report.format.startswith("PEFT adapter on ")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    expected = merged.state_dict()
    assert_same(found.state_dict(), expected)
    start = load_file(tmp_path / "base" / "model.safetensors")
    changed = {name for name in start if not torch.equal(expected[name], start[name])}
    names = (*lora["target_modules"], *lora.get("modules_to_save", ()))
    assert changed == {name for name in start if name.removesuffix(".weight").endswith(names) and "bias" not in name}
    ids = torch.tensor([[1, 5, 36, 0, 7]])
    with torch.no_grad():
        assert torch.equal(found(ids).logits, merged(ids).logits)


@pytest.mark.parametrize("flag", [True, False, None])
def test_the_layer_says_whether_it_is_transposed(flag, tmp_path):
    folder, merged = adapter(
        tmp_path, {"n_embd": 40}, r=3, target_modules=["attn.c_proj", "lm_head"], fan_in_fan_out=True
    )
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["fan_in_fan_out"] is False  # PEFT's own, though the other layers are Conv1D
    (folder / "adapter_config.json").write_text(json.dumps(config | {"fan_in_fan_out": flag}))
    merge(folder, tmp_path / "model")
    assert_same(stored(tmp_path / "model"), merged.state_dict())


def test_adapters_with_biases(tmp_path):
    for bias in ("all", "lora_only"):
        folder, merged = adapter(tmp_path / bias, {"tie_word_embeddings": False}, **LORA, bias=bias)
        merge(folder, tmp_path / bias / "model")
        assert_same(stored(tmp_path / bias / "model"), merged.state_dict())


def test_adapters_that_cannot_simply_be_added(tmp_path):
    folder, _ = adapter(tmp_path, {"tie_word_embeddings": True}, **LORA)
    config = json.loads((folder / "adapter_config.json").read_text())

    def refused(**values):
        (folder / "adapter_config.json").write_text(json.dumps(config | values))
        with pytest.raises(CheckpointError) as caught:
            merge(folder, tmp_path / "model")
        assert not (tmp_path / "model").exists()
        return str(caught.value)

    assert "uses use_dora" in refused(use_dora=True)
    assert "uses lora_bias" in refused(lora_bias=True)
    for start in ("pissa", "pissa_niter_4", "olora", "loftq"):  # these rewrite the base
        assert f"has init_lora_weights='{start}', which rewrites the base" in refused(init_lora_weights=start)
    assert "is of type IA3; only LoRA is merged here" in refused(peft_type="IA3")
    for name in (None, 5, ["x"], {"a": "b"}):
        assert "names no base model" in refused(base_model_name_or_path=name)
    assert "could not be had from the Hub" in refused(base_model_name_or_path="x" * 5000)
    for scale in (
        *(
            {"alpha_pattern": pattern}
            for pattern in ({"(": 1}, {"(" * 100_000: 1}, {".*": "x"}, {".*": None}, [".*"], 5)
        ),
        *({"lora_alpha": alpha} for alpha in ("8", None, [], 10**400, math.inf, math.nan)),
    ):
        assert "does not say how 'model.layers.0." in refused(**scale)
    assert "is no folder, and could not be had from the Hub" in refused(base_model_name_or_path="nobody/nothing")
    tensors = load_file(folder / "adapter_model.safetensors")
    save_file(tensors | {"base_model.model.other.weight": torch.ones(2)}, folder / "adapter_model.safetensors")
    assert "has 'other.weight', which the model does not have" in refused()
    name = next(name for name in tensors if name.endswith("lora_A.weight"))
    for odd in (torch.tensor(1.0), torch.ones(16), torch.ones(0, 16), torch.ones(1, 3, 16)):
        save_file(tensors | {name: odd}, folder / "adapter_model.safetensors")
        refused()
    several = tensors | {name.replace("lora_A", "lora_A.other"): tensors[name] + 1}
    save_file(several, folder / "adapter_model.safetensors")
    assert "has several adapters" in refused()
    only = {name: tensor for name, tensor in tensors.items() if "lora_A" in name}
    save_file(only, folder / "adapter_model.safetensors")
    assert "only one of the two matrices" in refused()


def published(hub, repo_id, *folders):
    """A repository with a commit per folder; their names."""
    repo, commits = hub.add(repo_id), []
    for folder in folders:
        files = {path.name: Blob(path.read_bytes(), large=path.stat().st_size > 9000) for path in folder.iterdir()}
        commits.append(repo.commit("main", "another", files).oid)
    return commits


def test_the_revision_of_the_base_is_honoured(hub, tmp_path):
    folder, merged = adapter(tmp_path, {"tie_word_embeddings": False}, **LORA)
    shutil.copytree(tmp_path / "base", tmp_path / "later")
    later = {name: tensor + 1 for name, tensor in load_file(tmp_path / "base" / "model.safetensors").items()}
    save_file(later, tmp_path / "later" / "model.safetensors", {"format": "pt"})
    first, main = published(hub, "someone/base", tmp_path / "base", tmp_path / "later")
    hub.repos["model", "someone/base"].refs["v1"] = first
    config = json.loads((folder / "adapter_config.json").read_text())

    def merged_on(of, revision=None, base_model=None):
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}"
        (folder / "adapter_config.json").write_text(
            json.dumps(config | {"base_model_name_or_path": of, "revision": revision})
        )
        report = merge(folder, out, base_model=base_model)
        found = stored(out)
        assert found.keys() == later.keys()
        norm = found["model.norm.weight"]  # is as the base has it
        if torch.equal(norm, merged.state_dict()["model.norm.weight"]):
            assert_same(found, merged.state_dict())
            return report.format, "first"
        assert torch.equal(norm, later["model.norm.weight"])
        return report.format, "later"

    of = "PEFT adapter on someone/base"
    assert merged_on("someone/base") == (of, "later")
    for revision in ("v1", first):
        assert merged_on("someone/base", revision) == (f"{of}@{revision}", "first")
        assert merged_on("someone/base", "main", f"someone/base@{revision}") == (f"{of}@{revision}", "first")
    assert merged_on("someone/base", "v1", "someone/base") == (f"{of}@v1", "first")
    assert merged_on("someone/base", "v1", f"someone/base@{main}") == (f"{of}@{main}", "later")
    assert merged_on("someone/other", "v2", "someone/base") == (of, "later")  # that revision is the other's
    assert merged_on(str(tmp_path / "base"), "v1") == (f"PEFT adapter on {tmp_path / 'base'}", "first")
    for revision in ("gone", "../main", "/v1", ["v1"], 5):
        with pytest.raises(CheckpointError, match="could not be had from the Hub"):
            merged_on("someone/base", revision)
    (folder / "adapter_config.json").write_text(json.dumps(config | {"revision": "v1"}))
    (note,) = merge(folder, tmp_path / "out", dry_run=True).notes[:1]
    assert note.startswith("the adapter is of revision v1 of its base; the folder ")
    report = merge(tmp_path / "base", tmp_path / "out", model_config=f"someone/base@{first}", dry_run=True)
    assert report.architecture == "Qwen2ForCausalLM"


@pytest.mark.parametrize("kind", fast_few(["both", "sharded", "pickle"], 0))
def test_what_is_downloaded_of_a_base(hub, tmp_path, kind):
    """No weights twice: pickles only where there are no safetensors, and no files that transformers does not read."""
    folder, merged = adapter(tmp_path, {"tie_word_embeddings": False}, **LORA)
    base, wanted = tmp_path / "base", {"config.json", "generation_config.json", "model.safetensors"}
    torch.save(load_file(base / "model.safetensors"), base / "pytorch_model.bin")
    for name in ("consolidated.safetensors", "adapter_model.safetensors", "optimizer.pt", "training_args.bin", "key"):
        (base / name).write_bytes(b"not wanted")
    if kind == "sharded":
        AutoModelForCausalLM.from_pretrained(base).save_pretrained(base, max_shard_size="5KB")
        (base / "model.safetensors").unlink()
        wanted = {"config.json", "generation_config.json", *(path.name for path in base.glob("model*"))}
        assert len(wanted) > 4
    if kind == "pickle":
        (base / "model.safetensors").unlink()
        wanted = {"config.json", "generation_config.json", "pytorch_model.bin"}
    published(hub, "someone/base", base)
    merge(folder, tmp_path / "out", base_model="someone/base")
    assert_same(stored(tmp_path / "out"), merged.state_dict())
    asked = {path.rpartition("/")[2] for method, path in hub.calls if "/resolve/" in path}
    assert asked == wanted


def wrapped(base, matrices):
    """What PEFT calls the weights of a model with an adapter."""
    state = {name.replace(".weight", ".default.weight"): tensor for name, tensor in matrices.items()}
    for name, tensor in base.items():
        module, _, kind = name.rpartition(".")
        inner = ".base_layer" if module.endswith(tuple(LORA["target_modules"])) else ""
        state[f"base_model.model.{module}{inner}.{kind}"] = tensor
    return state


def test_rank_files_of_a_lora_run(tmp_path):
    """verl saves the wrapped model: base layers and matrices, under PEFT's names."""
    folder, merged = adapter(tmp_path, {"tie_word_embeddings": True}, **LORA)
    base = load_file(tmp_path / "base" / "model.safetensors")
    base["lm_head.weight"] = base["model.embed_tokens.weight"]
    state = wrapped(base, load_file(folder / "adapter_model.safetensors"))
    actor = tmp_path / "actor"
    actor.mkdir()
    torch.save(state, actor / "model_world_size_1_rank_0.pt")
    shutil.copy(tmp_path / "base" / "config.json", actor)
    with pytest.raises(CheckpointError, match="holds LoRA matrices, but no adapter_config.json"):
        merge(actor, tmp_path / "model")
    (actor / "lora_train_meta.json").write_text(json.dumps({"r": 3, "lora_alpha": 7, "task_type": "CAUSAL_LM"}))
    merge(actor, tmp_path / "model")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert_same(found.state_dict(), merged.state_dict())


def test_folder_of_a_trainer(tmp_path):
    run = tmp_path / "checkpoint-3"
    save_tiny_model(run)
    (run / "critic").mkdir()
    save_file({"score.weight": torch.ones(1, 32)}, run / "critic" / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin", "trainer_state.json"):
        (run / name).write_bytes(b"of the run")
    report = merge(run, tmp_path / "model", max_shard_size="20KB")
    assert report.format == "model folder" and report.notes == ["the critic is not part of the model, and was left"]
    assert_same(stored(tmp_path / "model"), load_file(run / "model.safetensors"))
    kept = {path.name for path in (tmp_path / "model").iterdir()} - set(report.shards)
    assert kept == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
        "model.safetensors.index.json",
    }  # fmt: skip
    merge(tmp_path / "model", tmp_path / "again")  # several files into one
    assert_same(load_file(tmp_path / "again" / "model.safetensors"), load_file(run / "model.safetensors"))
    (tmp_path / "model" / list(report.shards)[1]).unlink()
    with pytest.raises(CheckpointError, match="lacks 'model-0000"):
        merge(tmp_path / "model", tmp_path / "third")
    os.truncate(run / "model.safetensors", 5000)
    with pytest.raises(CheckpointError, match="is cut off or damaged"):
        merge(run, tmp_path / "third")


def test_two_models_in_one_checkpoint(tmp_path):
    """Averaged weights or a reference beside the policy: which one is meant is not guessed."""
    model, weights = llama(tied=True)
    others = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    model.config.save_pretrained(tmp_path)

    def refused(**parts):
        state = {prefix.replace("_dot", ".") + name: t for prefix, held in parts.items() for name, t in held.items()}
        torch.save(state, tmp_path / "pytorch_model.bin")
        with pytest.raises(CheckpointError) as caught:
            merge(tmp_path, tmp_path / "model")
        return str(caught.value)

    assert "holds the model several times, under 'ema.' and 'model.'" in refused(model_dot=weights, ema_dot=others)
    assert "several times, under '' and 'ema.'" in refused(**{"": weights, "ema_dot": others})
    assert "twice, with and without a wrapper's name" in refused(**{"": weights, "_orig_mod_dot": others})
    few = {name: tensor for name, tensor in others.items() if "layers.0" in name}
    torch.save({f"model.{n}": t for n, t in weights.items()} | {f"ema.{n}": t for n, t in few.items()},
               tmp_path / "pytorch_model.bin")  # fmt: skip
    merge(tmp_path, tmp_path / "model")
    assert_same(stored(tmp_path / "model"), weights)


def test_a_file_beside_the_index_of_another_save(tmp_path):
    """The file counts, as for transformers."""
    model = make_model("Llama", {"tie_word_embeddings": False})
    model.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    save_file({name: torch.zeros_like(tensor) for name, tensor in weights.items()}, tmp_path / "old.safetensors")
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, "old.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    merge(tmp_path, tmp_path / "model")
    assert_same(stored(tmp_path / "model"), weights)
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path).state_dict(), weights)


def test_old_binary_files(tmp_path):
    run = tmp_path / "run"
    save_tiny_model(run)
    state = load_file(run / "model.safetensors")
    (run / "model.safetensors").unlink()
    torch.save(state, run / "pytorch_model.bin")
    merge(run, tmp_path / "model")
    assert_same(stored(tmp_path / "model"), state)
    torch.save(state, run / "模型.bin")  # the name is in the file
    (run / "模型.bin").replace(run / "pytorch_model.bin")
    merge(run, tmp_path / "again")
    assert_same(stored(tmp_path / "again"), state)
    torch.save(state, run / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    with pytest.raises(CheckpointError, match="is no zip file of torch.save"):
        merge(run, tmp_path / "third")


@pytest.mark.parametrize(
    "pattern",
    [
        "q_proj", "layers.1.mlp.up_proj", r"layers\.(0|1)\..*_proj", r"model\.layers\.\d{1,2}\.self_attn\.[qk]_proj", "proj",
        r".*\.mlp\.(up|down)_proj", "up_proj|q_proj", r"^model.*q_proj", r"(?:model\.)?layers\.[01]\.mlp\.\w+", "mlp", "",
    ],
)  # fmt: skip
def test_patterns_match_as_pefts_do(pattern):
    get_pattern_key = pytest.importorskip("peft").utils.other.get_pattern_key
    names = [
        f"model.layers.{i}.{kind}" for i in (0, 1, 10, 11) for kind in ("self_attn.q_proj", "mlp.up_proj", "mlp.gate")
    ]
    for patterns in ([pattern], [pattern, "mlp.gate"], ["gate", pattern], ["layers.1.*", pattern]):
        expected = {name: get_pattern_key(patterns, name) for name in (*names, "lm_head")}
        assert _first_matches(patterns, list(expected)) == {name: key for name, key in expected.items() if key != name}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("pattern", ["(([a-z_.0-9]+)*)*X", "(.*)*(.*)*(.*)*(.*)*(.*)*x"])
def test_patterns_made_to_hang_do_not(pattern, tmp_path):
    folder, merged = adapter(tmp_path, {"tie_word_embeddings": False}, **LORA)
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"alpha_pattern": {pattern: 1}}))
    merge(folder, tmp_path / "model")
    assert_same(stored(tmp_path / "model"), merged.state_dict())  # none of them matches


@pytest.mark.parametrize(
    "pattern", ["(?=q)q_proj", r"(q)\1_proj", "q_proj{,1}", "[[:alpha:]]_proj", "q" * 2000, "(", "a**"]
)
def test_patterns_that_cannot_be_read_alike_are_named(pattern):
    with pytest.raises(ValueError, match=re.escape(repr(pattern[:20])[:10])):
        _first_matches([pattern], ["model.layers.0.self_attn.q_proj"])

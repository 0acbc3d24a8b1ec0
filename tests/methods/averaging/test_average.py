"""Averages against direct computation, to the last bit; the ends of the path; what cannot be averaged."""

import json
import shutil
import sys

import peft
import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_factuality.checkpoints.merge import merge
from hf_factuality.cli import main
from hf_factuality.errors import CheckpointError
from hf_factuality.methods.averaging.average import Ratios, average
from tests.checkpoints.merge_inputs import CASES, make_model
from tests.checkpoints.test_merge import assert_same, stored
from tests.conftest import fast_few


def save(folder, kind="Qwen2", seed=None, untied=True, **settings):
    """A model of the tests of merging as a folder; with a seed others numbers than its own."""
    model = make_model(kind, {"tie_word_embeddings": not untied, **settings})
    generator = torch.Generator().manual_seed(seed or 0)
    for parameter in model.parameters() if seed else ():
        parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    model.save_pretrained(folder)
    return folder


def direct(before, after, ratio):
    """The definition, a tensor at a time: in float32, rounded once."""
    if isinstance(ratio, float):
        ratio = dict.fromkeys(before, ratio)
    sums = {name: ratio[name] * before[name].float() + (1 - ratio[name]) * after[name].float() for name in before}
    return {name: sums[name].to(after[name].dtype) for name in sums}


@pytest.mark.parametrize("case", fast_few(CASES, 2, 6))
def test_every_format_is_averaged_to_the_last_bit(case, shards, tmp_path):
    kind, _, settings, _, _ = CASES[case]
    settings = {**settings, "untied": not settings["tie_word_embeddings"]}
    before = save(tmp_path / "before", kind, 7, **{k: v for k, v in settings.items() if k != "tie_word_embeddings"})
    ranks, config = shards / case, {"model_config": shards / case / "huggingface"}
    old, new = load_file(before / "model.safetensors"), load_file(ranks / "whole.safetensors")
    average(before, ranks, tmp_path / "out", alpha=0.3, max_shard_size=1500, **config)
    assert_same(stored(tmp_path / "out"), direct(old, new, 0.3))
    average(ranks, before, tmp_path / "turned", alpha=0.3)
    assert_same(stored(tmp_path / "turned"), direct(new, old, 0.3))
    average(ranks, ranks, tmp_path / "same", alpha=0.5, **config)  # both in shards
    assert_same(stored(tmp_path / "same"), direct(new, new, 0.5))


def test_one_sharded_by_ranks_with_a_distributed_one(shards, tmp_path):
    one, other = (shards / name for name in ("uneven3", "dcp3"))
    average(one, other, tmp_path / "out", alpha=0.25, model_config=other / "huggingface")
    assert_same(stored(tmp_path / "out"), direct(*(load_file(it / "whole.safetensors") for it in (one, other)), 0.25))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_ends_of_the_path_are_the_inputs_byte_for_byte(dtype, tmp_path):
    inputs = [save(tmp_path / name, seed=seed, dtype=dtype) for name, seed in (("before", 1), ("after", 2))]
    odd = {"model.norm.weight": torch.tensor([-0.0, float("inf"), 1e-40, *[1.0] * 13]).to(getattr(torch, dtype))}
    save_file(load_file(inputs[0] / "model.safetensors") | odd, inputs[0] / "model.safetensors", {"format": "pt"})
    found = average(*inputs, tmp_path / "path", alpha=[0, 0.5, 1])
    assert [report.out.name for report in found] == ["alpha-0", "alpha-0.5", "alpha-1"]
    for name, source in zip(("alpha-1", "alpha-0"), inputs, strict=True):
        merge(source, tmp_path / f"merged-{name}")
        merged, averaged = (
            path / "model.safetensors" for path in (tmp_path / f"merged-{name}", tmp_path / "path" / name)
        )
        assert averaged.read_bytes() == merged.read_bytes()
        assert_same(load_file(averaged), load_file(source / "model.safetensors"))
    assert (tmp_path / "path" / "alpha-0.5" / "config.json").read_bytes() == (
        tmp_path / "path/alpha-1/config.json"
    ).read_bytes()


@pytest.mark.parametrize(
    ("one", "other", "given", "written"),
    [
        ("float32", "float32", "bfloat16", "bfloat16"),
        ("float32", "bfloat16", None, "float32"),
        ("float16", "bfloat16", None, "float32"),
        ("bfloat16", "float32", "float16", "float16"),
    ],
)
def test_a_cast_rounds_once(one, other, given, written, tmp_path):
    inputs = (
        [save(tmp_path / dtype, seed=n, dtype=dtype) for n, dtype in enumerate((one, other), start=1)]
        if one != other
        else [save(tmp_path / str(n), seed=n, dtype=one) for n in (1, 2)]
    )
    average(*inputs, tmp_path / "out", alpha=0.3, dtype=given)
    old, new = (load_file(path / "model.safetensors") for path in inputs)
    new = {name: tensor.to(getattr(torch, written)) for name, tensor in new.items()} if given is None else new
    sums = direct({k: v.float() for k, v in old.items()}, {k: v.float() for k, v in new.items()}, 0.3)
    assert_same(stored(tmp_path / "out"), {name: it.to(getattr(torch, written)) for name, it in sums.items()})


def test_an_adapter_is_the_model_after_on_its_base(tmp_path):
    base = save(tmp_path / "base", "Llama", 3)
    model = make_model("Llama", {"tie_word_embeddings": False})
    model.load_state_dict(load_file(base / "model.safetensors"))
    wrapped = peft.get_peft_model(
        model, peft.LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    )
    wrapped.peft_config["default"].base_model_name_or_path = str(base)
    wrapped.save_pretrained(tmp_path / "adapter")
    average(base, tmp_path / "adapter", tmp_path / "out", alpha=0.4)
    new = wrapped.merge_and_unload().state_dict()
    assert_same(stored(tmp_path / "out"), direct(load_file(base / "model.safetensors"), new, 0.4))


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_blocks_of_a_tied_model(variant, tmp_path):
    inputs = [save(tmp_path / str(seed), seed=seed, untied=False, num_hidden_layers=9) for seed in (1, 2)]
    average(*inputs, tmp_path / "out", ratios=[0.1, 0.5, 0.9], variant=variant)
    ratio = {}
    for name in (old := load_file(inputs[0] / "model.safetensors")):
        layer = int(name.split(".")[2]) if ".layers." in name else 0 if "embed" in name else 8
        third = (layer >= 8) if variant == "released" else layer // 3
        ratio[name] = (0.1, 0.5, 0.9)[third] if variant == "paper" or "proj" in name else 1.0
    assert_same(stored(tmp_path / "out"), direct(old, load_file(inputs[1] / "model.safetensors"), ratio))
    assert Ratios.load(tmp_path / "out").ratios == {"0": 0.1, "1": 0.5, "2": 0.9}


def test_the_command_with_learned_ratios_of_linear_modules(tmp_path, capsys):
    inputs = [save(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    names = load_file(inputs[0] / "model.safetensors")
    modules = sorted({name.rpartition(".")[0] for name in names if "proj" in name} | {"lm_head"})
    values = {name: n / 20 for n, name in enumerate(modules)}
    learned = Ratios(values, sum(values.values()) / len(values), "linear")
    (tmp_path / "run").mkdir()
    learned.save(tmp_path / "run")
    assert main(["average", *map(str, inputs), "--ratios", str(tmp_path / "run"), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'out'}\n"
    written = stored(tmp_path / "out")
    for name in ("lm_head.weight", "model.layers.1.self_attn.q_proj.bias"):
        ratio = values[name.rpartition(".")[0]]
        expected = ratio * names[name] + (1 - ratio) * load_file(inputs[1] / "model.safetensors")[name]
        assert torch.equal(written[name], expected)
    assert Ratios.load(tmp_path / "out" / "ratios.json") == learned


def test_where_only_one_model_ties_its_output_layer(tmp_path):
    tied, apart = save(tmp_path / "tied", "Llama", 1, untied=False), save(tmp_path / "apart", "Llama", 2)
    average(tied, apart, tmp_path / "out", alpha=0.5)
    old, new = (load_file(path / "model.safetensors") for path in (tied, apart))
    old["lm_head.weight"] = old["model.embed_tokens.weight"]
    assert_same(stored(tmp_path / "out"), direct(old, new, 0.5))
    with pytest.raises(CheckpointError, match="only one has 'lm_head.weight'"):
        average(apart, tied, tmp_path / "other", alpha=0.5)


def test_slerp_is_that_of_mergekit(tmp_path, monkeypatch):
    inputs = [save(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    with pytest.raises(ValueError, match="pip install mergekit"):
        monkeypatch.setitem(sys.modules, "mergekit.merge_methods.slerp", None)
        average(*inputs, tmp_path / "out", alpha=0.3, merge_method="slerp")
    asked = []

    class Stub:
        @staticmethod
        def slerp(t, v0, v1):
            asked.append((t.item(), v0.shape))
            return v0 * 2 + v1

    for name in ("mergekit", "mergekit.merge_methods", "mergekit.merge_methods.slerp"):
        monkeypatch.setitem(sys.modules, name, Stub)
    average(*inputs, tmp_path / "out", alpha=0.3, merge_method="slerp")
    old, new = (load_file(path / "model.safetensors") for path in inputs)
    assert_same(stored(tmp_path / "out"), {name: old[name] * 2 + new[name] for name in old})
    assert {round(t, 6) for t, _ in asked} == {0.7} and (1, 37, 16) in {shape for _, shape in asked}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either `alpha`"),
        ({"alpha": 0.5, "ratios": [0.1]}, "either `alpha`"),
        ({"alpha": 20}, r"in \[0, 1\], got 20"),
        ({"alpha": float("nan")}, "got nan"),
        ({"alpha": [0.1, 0.1]}, "each once"),
        ({"alpha": []}, "each once"),
        ({"ratios": [0.5, 2.0]}, "got 2.0"),
        ({"ratios": [0.1, 0.2, 0.3]}, "3 blocks cannot be made of 2 layers"),
        ({"ratios": [0.1, 0.2], "blocks": 1}, "1 ratios are needed, named '0'; '1' differ"),
        ({"ratios": [0.1, 0.2], "variant": "published"}, "'published'"),
        ({"ratios": Ratios({"a": 0.1}, 0.1, "linear")}, "15 ratios are needed"),
        ({"alpha": 0.1, "merge_method": "ties"}, "'ties' is unknown"),
        ({"alpha": 0.1, "blocks": 3}, "are of ratios in order"),
        ({"ratios": Ratios({"0": 0.1}, 0.1), "variant": "released"}, "are of ratios in order"),
    ],
)
def test_arguments_that_are_wrong(arguments, message, tmp_path):
    inputs = [save(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    with pytest.raises(ValueError, match=message):
        average(*inputs, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_models_that_do_not_belong_together(tmp_path):
    before = save(tmp_path / "before")
    for settings, message in (
        ({"vocab_size": 38}, "vocabulary resized"),
        ({"num_hidden_layers": 3}, r"only one has 'model.layers.2.*\(12 such names\)"),
        ({"kind": "Llama"}, "only one has 'model.layers.0.self_attn.k_proj.bias'"),
    ):
        shutil.rmtree(tmp_path / "after", ignore_errors=True)
        with pytest.raises(CheckpointError, match=message):
            average(before, save(tmp_path / "after", **settings), tmp_path / "out", alpha=0.5)
    with pytest.raises(CheckpointError, match="is no folder, and could not be had"):
        average("nobody/nothing", before, tmp_path / "out", alpha=0.5)


def test_a_fault_in_the_last_of_several_leaves_nothing(tmp_path, capsys):
    inputs = [save(tmp_path / str(seed), seed=seed) for seed in (1, 2)]
    broken = load_file(inputs[0] / "model.safetensors")
    broken["model.norm.weight"][3] = float("nan")
    save_file(broken, inputs[0] / "model.safetensors", {"format": "pt"})
    out = tmp_path / "deep" / "out"
    assert main(["average", *map(str, inputs), "--alpha", "0", "0.5", "--out", str(out)]) == 2
    assert "'model.norm.weight' has a NaN" in capsys.readouterr().err and not out.parent.exists()
    assert main(["average", *map(str, inputs), "--alpha", "0", "--out", str(out)]) == 0  # it is of the other one


@pytest.mark.parametrize("content", ["[]", "{}", '{"ratios": 3}', "{", '{"alpha": 0.5, "level": "block", "blocks": 2, '
                                     '"variant": "paper", "ratios": {"0": "x", "1": 0.1}}'])  # fmt: skip
def test_a_file_of_ratios_that_is_none(content, tmp_path, capsys):
    (tmp_path / "ratios.json").write_text(content)
    arguments = ["average", str(tmp_path), str(tmp_path), "--ratios", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    assert "ratio" in capsys.readouterr().err


def test_a_dry_run_and_several_to_push(tmp_path, capsys):
    inputs = [str(save(tmp_path / str(seed), seed=seed)) for seed in (1, 2)]
    arguments = ["average", *inputs, "--alpha", "0", "1", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--dry_run"]) == 0
    assert "alpha" not in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert main([*arguments, "--push_to_hub", "me/model"]) == 2
    assert "push the folder that you choose" in capsys.readouterr().err
    assert json.loads((tmp_path / "1" / "config.json").read_text())["vocab_size"] == 37

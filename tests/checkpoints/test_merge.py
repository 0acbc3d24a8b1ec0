"""Round trips: what torch's own FSDP2 wrote in several processes, merged, is the model to the last bit."""

import json
import os
import shutil
import stat

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file

from hf_factuality.checkpoints.merge import merge
from hf_factuality.checkpoints.pickles import stored_tensor as stored_tensor
from hf_factuality.checkpoints.tensors import same
from hf_factuality.cli import main
from hf_factuality.errors import CheckpointError
from tests.checkpoints.merge_inputs import CASES, make_model
from tests.tiny import save_tiny_model


def stored(folder):
    """Tensors of all safetensors files of a folder, by another reader than the one under test."""
    files = sorted(folder.glob("*.safetensors"))
    found = {}
    for file in files:
        part = load_file(file)
        assert not found.keys() & part.keys()
        found |= part
    return found


def assert_same(found, expected):
    assert sorted(found) == sorted(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype and found[name].shape == tensor.shape, name
        assert torch.equal(found[name].view(torch.uint8), tensor.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("case", CASES)
def test_the_model_comes_back_to_the_last_bit(case, shards, tmp_path):
    out = tmp_path / "model"
    report = merge(shards / case, out, model_config=shards / case / "huggingface", max_shard_size=1500)
    assert_same(stored(out), load_file(shards / case / "whole.safetensors"))
    kind, mesh, settings, _, how = CASES[case]
    world = mesh[0] * (mesh[1] if len(mesh) > 1 else 1)
    assert report.format == (
        f"FSDP rank files, world size {world}" if how == "ranks" else "torch distributed checkpoint"
    )

    unsharded = make_model(kind, settings)
    loaded, info = getattr(transformers, f"{kind}ForCausalLM").from_pretrained(out, output_loading_info=True)
    assert not any(info.values()), info
    assert loaded.dtype == unsharded.dtype
    assert (loaded.lm_head.weight is loaded.model.embed_tokens.weight) == settings["tie_word_embeddings"]
    ids = torch.tensor([[1, 5, 36, 0, 7]])
    with torch.no_grad():
        assert torch.equal(loaded(ids).logits, unsharded(ids).logits)


def test_files_are_as_large_as_asked_and_indexed(shards, tmp_path):
    report = merge(shards / "uneven3", tmp_path / "model", max_shard_size="2KB")
    index = json.loads((tmp_path / "model" / "model.safetensors.index.json").read_text())
    whole = load_file(shards / "uneven3" / "whole.safetensors")
    assert index["metadata"]["total_size"] == sum(t.numel() * 4 for t in whole.values())
    assert sorted(index["weight_map"]) == sorted(whole) and set(index["weight_map"].values()) == set(report.shards)
    for name, size in report.shards.items():
        with safe_open(tmp_path / "model" / name, framework="pt") as file:
            keys = list(file.keys())
            assert file.metadata() == {"format": "pt"}
        assert sum(whole[key].numel() * 4 for key in keys) == size
        assert size <= 2000 or len(keys) == 1  # the embeddings alone have 37 * 16 * 4 bytes
        assert all(index["weight_map"][key] == name for key in keys)
    mask = os.umask(0o022)
    try:
        merge(shards / "uneven3", tmp_path / "one")
    finally:
        os.umask(mask)
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert names == ["config.json", "generation_config.json", "model.safetensors"]
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "one").iterdir()}
    assert modes == {0o644}  # safetensors' own writer lets nobody else read


def test_cast(shards, tmp_path):
    merge(shards / "uneven3", tmp_path / "model", dtype="bfloat16")
    whole = load_file(shards / "uneven3" / "whole.safetensors")
    assert_same(stored(tmp_path / "model"), {name: tensor.bfloat16() for name, tensor in whole.items()})
    assert json.loads((tmp_path / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    with pytest.raises(ValueError, match="dtype 'int8' is unknown; choose one of float32, bfloat16, float16"):
        merge(shards / "uneven3", tmp_path / "other", dtype="int8")


@pytest.mark.parametrize(("dtype", "value"), [("float16", 70000.0), ("float16", -65520.0), ("bfloat16", 3.4e38)])
def test_a_cast_makes_no_infinities(shards, tmp_path, dtype, value):
    (tmp_path / "in").mkdir()
    shutil.copy(shards / "uneven3" / "huggingface" / "config.json", tmp_path / "in")
    state = load_file(shards / "uneven3" / "whole.safetensors")
    # Beside infinities of the file itself, whose sum is no number, and a number that is rounded down to the largest.
    state["model.norm.weight"][:3] = torch.tensor([torch.inf, -torch.inf, 65519.0])
    torch.save(state, tmp_path / "in" / "pytorch_model.bin")
    merge(tmp_path / "in", tmp_path / "legal", dtype=dtype)
    state["model.norm.weight"][3] = value
    torch.save(state, tmp_path / "in" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=f"'model.norm.weight' has a number that {dtype} cannot hold"):
        merge(tmp_path / "in", tmp_path / "out", dtype=dtype)
    merge(tmp_path / "in", tmp_path / "whole", dtype="float32")
    assert_same(stored(tmp_path / "whole"), state)


def test_tensors_with_any_stride():
    """Torch counts single elements as contiguous, and still does not view them as bytes."""
    column = torch.arange(6.0).reshape(2, 3)[1:, 1]
    for tensor in (column, torch.arange(6.0).reshape(2, 3).T, torch.complex(column, column).conj().imag):
        source, plain = (
            stored_tensor(tensor),
            stored_tensor(tensor.resolve_neg().clone(memory_format=torch.contiguous_format)),
        )
        assert torch.equal(source.read(), tensor) and source.read().is_contiguous()
        assert same(source, plain) and same(plain, source) and not same(source, stored_tensor(tensor + 1))


def test_tokenizer_template_and_generation_config_come_along(shards, tmp_path):
    save_tiny_model(tmp_path / "tiny")
    source = tmp_path / "run" / "actor"
    source.mkdir(parents=True)
    for file in (shards / "tied4").glob("*.pt"):
        (source / file.name).hardlink_to(file)
    shutil.copytree(shards / "tied4" / "huggingface", tmp_path / "run" / "config")
    (source / "huggingface").symlink_to("../config")
    (source / "optim_world_size_4_rank_0.pt").write_bytes(b"not read")
    for file in (tmp_path / "tiny").iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (source / file.name).write_bytes(file.read_bytes())
    generation = json.loads((source / "generation_config.json").read_text()) | {"temperature": 0.3, "do_sample": True}
    (source / "generation_config.json").write_text(json.dumps(generation))
    merge(tmp_path / "run", tmp_path / "model")
    from transformers import AutoTokenizer, GenerationConfig

    before, after = AutoTokenizer.from_pretrained(tmp_path / "tiny"), AutoTokenizer.from_pretrained(tmp_path / "model")
    chat = [{"role": "user", "content": "玛丽 was born?"}]
    assert after.apply_chat_template(chat) == before.apply_chat_template(chat) and after.chat_template
    assert GenerationConfig.from_pretrained(tmp_path / "model").temperature == 0.3
    assert not list((tmp_path / "model").glob("*.pt"))


def test_command_and_dry_run(shards, tmp_path, capsys):
    arguments = ["merge", str(shards / "tied4"), "--out", str(tmp_path / "model"), "--max-shard-size", "4KB"]
    assert main([*arguments, "--dry-run"]) == 0
    plan = capsys.readouterr().out
    assert "FSDP rank files, world size 4: LlamaForCausalLM, 20 tensors (20 float32)" in plan
    assert "model-00001-of-0000" in plan and "tied, so not written twice: lm_head.weight" in plan
    assert list(tmp_path.iterdir()) == []
    assert main(arguments) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "model")
    assert_same(stored(tmp_path / "model"), load_file(shards / "tied4" / "whole.safetensors"))
    assert main(arguments) == 2
    assert "exists and is not an empty folder" in capsys.readouterr().err


def test_renamed_rank_files_cannot_swap_shards(shards, tmp_path):
    """The place in the mesh is in the file, so a wrong name changes nothing."""
    for new, old in ((0, 2), (1, 0), (2, 1)):
        name = "model_world_size_3_rank_{}.pt"
        (tmp_path / name.format(new)).hardlink_to(shards / "uneven3" / name.format(old))
    merge(tmp_path, tmp_path / "model", model_config=shards / "uneven3" / "huggingface")
    assert_same(stored(tmp_path / "model"), load_file(shards / "uneven3" / "whole.safetensors"))
    (tmp_path / "model_world_size_3_rank_1.pt").unlink()
    (tmp_path / "model_world_size_3_rank_1.pt").hardlink_to(shards / "uneven3" / "model_world_size_3_rank_1.pt")
    with pytest.raises(CheckpointError, match="a part is missing, comes twice or is of another run"):
        merge(tmp_path, tmp_path / "again", model_config=shards / "uneven3" / "huggingface")

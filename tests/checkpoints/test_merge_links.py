"""What is read lies in the folder that was named: links that lead elsewhere are refused, those of the Hub's cache are followed."""

import json
import os
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_factuality.checkpoints.merge import merge
from hf_factuality.cli import main
from hf_factuality.errors import CheckpointError
from tests.checkpoints.merge_inputs import make_model
from tests.checkpoints.test_merge import assert_same, stored
from tests.tiny import save_tiny_model


SECRET = b"nobody's business"


@pytest.fixture
def run(tmp_path):
    """A folder of a trainer, and beside it what is not in it."""
    (tmp_path / "private" / "deeper").mkdir(parents=True)
    for name in ("key", "config.json", "model.safetensors", "a.jinja"):
        (tmp_path / "private" / name).write_bytes(SECRET)
    return Path(save_tiny_model(tmp_path / "run"))


def link(path, target):
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def bind(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # such names are short


PLANTED = {
    "a file that is copied": lambda run: link(run / "merges.txt", run.parent / "private" / "key"),
    "by a relative name": lambda run: link(run / "merges.txt", "../private/key"),
    "a chain of links": lambda run: (link(run / "notes", "../private/key"), link(run / "merges.txt", "notes")),
    "through a folder": lambda run: (link(run / "place", "../private"), link(run / "merges.txt", "place/key")),
    "a folder that is copied": lambda run: link(run / "additional_chat_templates", "../private"),
    "a file in such a folder": lambda run: link(
        run / "additional_chat_templates" / "a.jinja", "../../private/a.jinja"
    ),
    "a name like the folder's": lambda run: (
        (run.parent / "run2").mkdir(),
        (run.parent / "run2" / "key").write_bytes(SECRET),
        link(run / "merges.txt", "../run2/key"),
    ),
    "the configuration": lambda run: link(run / "config.json", "../private/config.json"),
    "the weights": lambda run: link(run / "model.safetensors", "../private/model.safetensors"),
    "the folder of the configuration": lambda run: link(run / "huggingface", "../private"),
    "the folder of the rank files": lambda run: link(run / "actor", "../private"),
    "an adapter": lambda run: link(run / "adapter_config.json", "../private/config.json"),
    "the tag of a ZeRO run": lambda run: link(run / "latest", "../private/key"),
    "a device": lambda run: link(run / "merges.txt", "/dev/zero"),
    "a pipe": lambda run: os.mkfifo(run / "merges.txt"),
    "a link to a pipe": lambda run: (os.mkfifo(run / "pipe"), link(run / "merges.txt", "pipe")),
    "a socket": lambda run: bind(run / "merges.txt"),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_nothing_outside_the_checkpoint_is_read(run, tmp_path, capsys, planted):
    PLANTED[planted](run)
    assert main(["merge", str(run), "--out", str(tmp_path / "out")]) == 2
    line = capsys.readouterr().err.strip()
    assert "\n" not in line and str(run) in line and not (tmp_path / "out").exists()
    assert ("is no file, but a pipe" if {"pipe", "socket"} & {*planted.split()} else "is a link to") in line


@pytest.mark.parametrize("name", ["merges.txt", "generation_config.json", "additional_chat_templates/a.jinja"])
@pytest.mark.parametrize("where", ["config", "base", "above"])
def test_nor_outside_the_folders_beside_it(run, tmp_path, where, name):
    model = make_model("Llama", {"tie_word_embeddings": True})
    source = tmp_path / "beside" / "run"
    source.mkdir(parents=True)
    save_file(dict(model.named_parameters()), source / "model.safetensors")
    folder = tmp_path / "beside" if where == "above" else tmp_path / where
    arguments = {"config": {"model_config": folder}, "base": {"base_model": folder}, "above": {}}[where]
    model.config.save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    if where == "base":
        (source / "model.safetensors").rename(folder / "model.safetensors")
        save_file({}, source / "adapter_model.safetensors")
        (source / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "base_model_name_or_path": "x"}))
    if where == "above":  # these are looked for above the folders of a run alone
        (source / "model.safetensors").unlink()
        torch.save(model.state_dict(), source / "model_world_size_1_rank_0.pt")
    merge(source, tmp_path / "whole", **arguments)
    link(folder / name, tmp_path / "private" / "key")
    with pytest.raises(CheckpointError, match=f"{name} is a link to .*key, which is not in"):
        merge(source, tmp_path / "out", **arguments)
    if where == "above":  # but into the checkpoint, nothing else above it
        link(folder / name, tmp_path / "beside" / "config.json")
        with pytest.raises(CheckpointError, match=f"{name} is a link to .*config.json, which is not in"):
            merge(source, tmp_path / "out", **arguments)
        (source / "inside").write_text("{}")
        link(folder / name, source / "inside")
        merge(source, tmp_path / "out", **arguments)
        assert (tmp_path / "out" / name).read_text() == "{}"


def test_links_inside_a_checkpoint_that_is_a_link_itself(run, tmp_path):
    weights = load_file(run / "model.safetensors")
    for name in ("model.safetensors", "tokenizer.json"):
        (run / "state").mkdir(exist_ok=True)
        (run / name).rename(run / "state" / name)
        link(run / name, f"state/{name}")
    (run / "additional_chat_templates").mkdir()
    (run / "additional_chat_templates" / "a.jinja").write_text("a")
    link(run / "additional_chat_templates" / "loop", "..")  # to be followed for ever
    link(run / "last", "checkpoint-3")  # which is not there any more, and is not wanted
    (tmp_path / "latest").symlink_to("run")
    merge(tmp_path / "latest", tmp_path / "out")
    assert_same(stored(tmp_path / "out"), weights)
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (run / "state" / "tokenizer.json").read_bytes()
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))
    assert [path.name for path in (tmp_path / "out" / "additional_chat_templates").iterdir()] == ["a.jinja"]


def cached(folder, cache):
    """The files of a folder as the Hub's client keeps them: blobs, and a snapshot of links to them."""
    snapshot = cache / "models--someone--x" / "snapshots" / "c0ffee"
    for number, file in enumerate(path for path in sorted(folder.rglob("*")) if path.is_file()):
        blob = snapshot.parents[1] / "blobs" / f"{number:040x}"
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, blob)
        target = snapshot / file.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(blob, target.parent))
    return snapshot


def test_the_blobs_of_its_own_cache_may_be_read(run, tmp_path):
    snapshot = cached(run, tmp_path / "hub")
    link(tmp_path / "elsewhere", tmp_path / "hub")
    for number, folder in enumerate((snapshot, tmp_path / "elsewhere" / snapshot.relative_to(tmp_path / "hub"))):
        merge(folder, tmp_path / f"out{number}")
        assert_same(stored(tmp_path / f"out{number}"), load_file(run / "model.safetensors"))


@pytest.mark.parametrize("inside", ["", "checkpoint-3"])
def test_a_distributed_checkpoint_in_the_cache(shards, tmp_path, inside):
    shutil.copytree(shards / "dcp3", tmp_path / "files" / inside)
    snapshot = cached(tmp_path / "files", tmp_path / "hub") / inside
    for number, folder in enumerate((snapshot, snapshot / "pytorch_model_fsdp_0")):
        merge(folder, tmp_path / f"out{number}", model_config=snapshot / "huggingface")
        assert_same(stored(tmp_path / f"out{number}"), load_file(shards / "dcp3" / "whole.safetensors"))


@pytest.mark.parametrize("name", ["../private/__1_0.distcp", "{}/private/__1_0.distcp"])
def test_a_distributed_checkpoint_names_files_of_its_folder_alone(shards, tmp_path, name):
    name, folder = name.format(tmp_path), shutil.copytree(shards / "dcp3" / "pytorch_model_fsdp_0", tmp_path / "run")
    (tmp_path / "private").mkdir()
    shutil.copy(folder / "__1_0.distcp", tmp_path / "private")
    with (folder / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    for info in metadata.storage_data.values():
        info.relative_path = name if info.relative_path == "__1_0.distcp" else info.relative_path
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="__1_0.distcp', which is outside of the folder"):
        merge(folder, tmp_path / "out", model_config=shards / "dcp3" / "huggingface")


def test_a_folder_made_up_as_a_cache_leads_nowhere(run, tmp_path):
    snapshot = cached(run, tmp_path / "hub")
    repo, blobs = snapshot.parents[1], snapshot.parents[1] / "blobs"

    def refused(name, target):
        link(snapshot / name, target)
        with pytest.raises(CheckpointError, match="is a link to .*, which is not in"):
            merge(snapshot, tmp_path / "out")
        (snapshot / name).unlink()

    link(blobs / "key", "../../../private/key")
    refused("merges.txt", "../../blobs/key")
    (blobs / "deeper").mkdir()
    refused("additional_chat_templates", "../../blobs/deeper")
    refused("merges.txt", "../../refs/../../../private/key")
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("c0ffee")
    refused("merges.txt", "../../refs/main")
    merge(snapshot, tmp_path / "whole")
    blobs.rename(tmp_path / "private" / "blobs")
    link(blobs, tmp_path / "private" / "blobs")
    with pytest.raises(CheckpointError, match="is a link to .*/private/blobs/"):
        merge(snapshot, tmp_path / "out")
    blobs.unlink()
    (tmp_path / "private" / "blobs").rename(blobs)
    repo.rename(repo.parent / "no-repository")
    with pytest.raises(CheckpointError, match="is a link to"):
        merge(repo.parent / "no-repository" / "snapshots" / "c0ffee", tmp_path / "out")


@pytest.mark.parametrize("name", ["../private/model.safetensors", "{}/private/model.safetensors", "..", "", ["x"], 5])
def test_an_index_names_files_of_its_folder_alone(run, tmp_path, name):
    name = name.format(tmp_path) if isinstance(name, str) else name
    weights = load_file(run / "model.safetensors")
    (run / "model.safetensors").rename(tmp_path / "private" / "model.safetensors")
    (run / "model.safetensors.index.json").write_text(json.dumps({"weight_map": dict.fromkeys(weights, name)}))
    with pytest.raises(CheckpointError, match="which model.safetensors.index.json names|has no weight_map of names"):
        merge(run, tmp_path / "out")

"""Broken inputs: each gives one clear line, and nothing that loads is left."""

import contextlib
import errno
import json
import os
import pickle
import resource
import shutil
import signal
import tempfile
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from hf_factuality.checkpoints import write as merge_write
from hf_factuality.checkpoints.merge import merge
from hf_factuality.cli import main
from hf_factuality.errors import CheckpointError
from tests.checkpoints.merge_mutants import with_pickle
from tests.checkpoints.test_merge import assert_same, stored


@pytest.fixture
def copy(shards, tmp_path):
    """A copy of a case, that may be broken."""

    def make(case):
        return shutil.copytree(shards / case, tmp_path / case)

    return make


def refused(folder, tmp_path, capsys, *arguments):
    """The one line that the command says about a folder."""
    before = sorted(tmp_path.rglob("*"))
    assert main(["merge", str(folder), "--out", str(tmp_path / "out"), *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == "" and sorted(tmp_path.rglob("*")) == before
    line = printed.err.strip().splitlines()[-1]
    assert line.startswith("hf-factuality: ")
    return line


def test_missing_rank(copy, tmp_path, capsys):
    folder = copy("uneven3")
    (folder / "model_world_size_3_rank_1.pt").unlink()
    assert "has 2 of 3 rank files; missing: rank 1" in refused(folder, tmp_path, capsys)


def test_mixed_world_sizes(copy, tmp_path, capsys, shards):
    folder = copy("uneven3")
    shutil.copy(shards / "tied4" / "model_world_size_4_rank_0.pt", folder)
    line = refused(folder, tmp_path, capsys)
    assert "several world sizes (3 of world size 3, 1 of world size 4)" in line


@pytest.mark.parametrize("left", [0, 1000, -1])
def test_truncated_file(copy, tmp_path, capsys, left):
    folder = copy("uneven3")
    file = folder / "model_world_size_3_rank_2.pt"
    os.truncate(file, left if left >= 0 else file.stat().st_size + left)
    line = refused(folder, tmp_path, capsys)
    assert "rank_2.pt" in line and ("is cut off or damaged" if left else "is empty") in line


class Runs:
    def __reduce__(self):
        return (os.system, ("touch ran",))


def test_foreign_pickle_is_named_and_not_run(copy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy("world1")
    file = folder / "model_world_size_1_rank_0.pt"
    torch.save({"model.norm.weight": torch.ones(16), "extra": Runs()}, file)
    line = refused(folder, tmp_path, capsys)
    assert f"{os.system.__module__}.system" in line and "--allow_unsafe_pickle" in line
    assert not (tmp_path / "ran").exists()
    torch.save({"model.norm.weight": torch.ones(16), "lr": Marked()}, file)
    line = refused(folder, tmp_path, capsys)
    assert f"asks for {__name__}.Marked, which is not on the list" in line


class Marked:
    pass


def test_unsafe_pickles_are_read_on_request(copy, shards, tmp_path):
    folder = copy("tied4")
    start, extra = b"\x80\x02ccollections\nOrderedDict\nq\x00)R", f"c{__name__}\nMarked\n0".encode()
    for file in folder.glob("*.pt"):
        # A class beside the tensors, put in as text: the DTensors themselves need a process group to be loaded here.
        with_pickle(file, lambda body: body.replace(start, start[:2] + extra + start[2:]))
    with pytest.raises(CheckpointError, match=f"asks for {__name__}.Marked"):
        merge(folder, tmp_path / "out")
    merge(folder, tmp_path / "out", allow_unsafe_pickle=True)
    assert_same(stored(tmp_path / "out"), load_file(shards / "tied4" / "whole.safetensors"))


def test_sharded_tensor_of_fsdp1_is_named(copy, tmp_path, capsys):
    """Also where files may run what they like: made here, it would ask for the processes that wrote it."""
    import torch.distributed as dist
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards

    folder = copy("world1")
    file = folder / "model_world_size_1_rank_0.pt"
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'place'}", rank=0, world_size=1)
    try:
        shard = Shard.from_tensor_and_offsets(torch.ones(16), [0], rank=0)
        torch.save({"model.norm.weight": init_from_local_shards([shard], 16)}, file)
    finally:
        dist.destroy_process_group()
    (tmp_path / "place").unlink(missing_ok=True)
    with pytest.raises(RuntimeError, match="process group"):
        torch.load(file, weights_only=False)
    for flags in ([], ["--allow_unsafe_pickle"]):
        line = refused(folder, tmp_path, capsys, *flags)
        assert f"{file} holds an FSDP1 ShardedTensor" in line and "save it with torch.distributed.checkpoint" in line
        assert "--allow_unsafe_pickle" not in line  # which would not help


def change_config(folder, **values):
    file = folder / "huggingface" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_wrong_config(copy, tmp_path, capsys):
    folder = copy("uneven3")
    change_config(folder, vocab_size=38)
    line = refused(folder, tmp_path, capsys)
    assert "has shape [37, 16], and [38, 16] in the Qwen2ForCausalLM of the config.json (2 such names)" in line
    change_config(folder, vocab_size=37, num_hidden_layers=3, layer_types=["full_attention"] * 3)
    assert "lacks 'model.layers.2.self_attn.q_proj.weight' (12 such names)" in refused(folder, tmp_path, capsys)
    change_config(folder, num_hidden_layers=1, layer_types=["full_attention"])
    assert "has a spare 'model.layers.1.self_attn.q_proj.weight' (12 such names)" in refused(folder, tmp_path, capsys)
    change_config(folder, num_hidden_layers=2, layer_types=["full_attention"] * 2, tie_word_embeddings=True)
    assert "ties 'lm_head.weight' to 'model.embed_tokens.weight'" in refused(folder, tmp_path, capsys)
    change_config(folder, architectures=["NoSuchModel"])
    assert "has no model class NoSuchModel" in refused(folder, tmp_path, capsys)
    change_config(folder, architectures=["Qwen2ForCausalLM"], auto_map={"AutoModelForCausalLM": "x.Y"})
    assert "--trust_remote_code" in refused(folder, tmp_path, capsys)
    (folder / "huggingface" / "config.json").write_text("{")
    assert "cannot be read as JSON" in refused(folder, tmp_path, capsys)
    (folder / "huggingface" / "config.json").unlink()
    assert "there is no config.json in" in refused(folder, tmp_path, capsys)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(
            ({"architectures": [name]}, f"has no model class {name}")
            for name in ("TextStreamer", "pipeline", "AutoModel")
        ),
        ({"architectures": "Qwen2ForCausalLM"}, "has no model class Q"),
        ({"architectures": [["Qwen2ForCausalLM"]]}, "no model can be built"),
        ({"architectures": ["BertForMaskedLM"]}, "no model can be built"),
        ({"auto_map": 5}, "--trust_remote_code"),
        ({"hidden_size": -16}, "no model can be built"),
        ({"model_type": ["qwen2"]}, "no model can be built"),
        ({"dtype": "os.system"}, "no model can be built"),
        ({"rope_parameters": {"rope_type": "x"}}, "no model can be built"),
        ({"note": "\ud800"}, "cannot be written again"),
    ],
)
def test_odd_configurations(copy, tmp_path, capsys, values, message):
    folder = copy("uneven3")
    change_config(folder, **values)
    assert message in refused(folder, tmp_path, capsys, "--dry-run")


@pytest.mark.parametrize("depth", [900, 200_000])
@pytest.mark.parametrize("name", ["config.json", "adapter_config.json", "model.safetensors.index.json"])
def test_configurations_that_are_nested_too_deeply(copy, tmp_path, capsys, name, depth):
    folder = copy("uneven3") / "huggingface"
    (folder / "config.json").rename(folder / name)
    file, nested = folder / name, '{"a":' * depth + "1" + "}" * depth
    file.write_text(file.read_text().rstrip()[:-1] + f', "nested": {nested}, "weight_map": 5}}')
    if name == "config.json":
        shutil.copy(folder.parent / "whole.safetensors", folder / "model.safetensors")
    if depth > 1000:
        assert f"{name} cannot be read as JSON" in refused(folder, tmp_path, capsys)
    else:
        refused(folder, tmp_path, capsys)


def test_names_that_are_no_texts(copy, shards, tmp_path, capsys):
    folder = copy("uneven3") / "huggingface"
    torch.save(load_file(shards / "uneven3" / "whole.safetensors") | {5: torch.ones(2)}, folder / "pytorch_model.bin")
    assert "has a spare '5'" in refused(folder, tmp_path, capsys)
    shutil.copy(folder / "pytorch_model.bin", folder / "adapter_model.bin")
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(folder)}))
    assert "has a spare '5'" in refused(folder, tmp_path, capsys)


@pytest.mark.parametrize("name", ["someone/kernel", "flash_attention_2", {"": "someone/kernel"}])
def test_an_attention_kernel_is_neither_fetched_nor_needed(copy, shards, tmp_path, monkeypatch, name):
    """A configuration may name one of the Hub, which runs when a model is built with it."""
    monkeypatch.setattr("transformers.modeling_utils.lazy_import_flash_attention", None)
    folder = copy("uneven3")
    change_config(folder, attn_implementation=name)
    merge(folder, tmp_path / "out")
    assert_same(stored(tmp_path / "out"), load_file(shards / "uneven3" / "whole.safetensors"))


def test_nan(tmp_path, capsys, shards):
    folder = shutil.copytree(shards / "world1", tmp_path / "world1")
    state = load_file(folder / "whole.safetensors")
    state["model.norm.weight"][3] = torch.inf
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    torch.save(state, folder / "model_world_size_1_rank_0.pt")
    merge(folder, tmp_path / "infinite")  # infinities are legal, if odd
    state["model.layers.1.mlp.up_proj.weight"][2, 3] = torch.nan
    torch.save(state, folder / "model_world_size_1_rank_0.pt")
    assert "'model.layers.1.mlp.up_proj.weight' has a NaN" in refused(folder, tmp_path, capsys)


def test_folders_that_are_no_checkpoints(tmp_path, capsys, copy):
    (tmp_path / "empty").mkdir()
    assert "no checkpoint of a known format; it holds nothing" in refused(tmp_path / "empty", tmp_path, capsys)
    assert "is no folder" in refused(tmp_path / "absent", tmp_path, capsys)
    folder = copy("dcp3")
    (folder / "pytorch_model_fsdp_0" / ".metadata").unlink()
    assert "no .metadata, which is written last" in refused(folder, tmp_path, capsys)
    assert "'9 bananas' is no size" in refused(folder, tmp_path, capsys, "--max_shard_size", "9 bananas")
    assert "is no size" in refused(folder, tmp_path, capsys, "--max_shard_size", "9" * 400)


def test_broken_distributed_checkpoint(copy, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = copy("dcp3")
    inner = folder / "pytorch_model_fsdp_0"
    file = inner / "__1_0.distcp"
    content = file.read_bytes()
    os.truncate(file, len(content) - 100)
    assert "__1_0.distcp is cut off" in refused(folder, tmp_path, capsys)
    file.write_bytes(content.replace(b"_rebuild_tensor_v2", b"_rebuild_tensor_vX"))
    assert "(archive/data.pkl) do not have their checksum" in refused(folder, tmp_path, capsys)
    file.unlink()
    assert "lacks __1_0.distcp" in refused(folder, tmp_path, capsys)
    (inner / ".metadata").write_bytes(pickle.dumps(Runs()))
    assert f"asks for {os.system.__module__}.system" in refused(folder, tmp_path, capsys)
    assert not (tmp_path / "ran").exists()


def test_file_that_vanishes_while_it_is_read(copy, tmp_path, capsys, monkeypatch):
    folder = copy("dcp3")
    file = folder / "pytorch_model_fsdp_0" / "__1_0.distcp"
    real = merge_write._save

    def removes(tensors, path):
        real(tensors, path)
        file.rename(file.with_suffix(".away"))

    monkeypatch.setattr(merge_write, "_save", removes)
    assert main(["merge", str(folder), "--out", str(tmp_path / "out"), "--max_shard_size", "1500"]) == 2
    assert f"{file} cannot be read: No such file" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["dcp3"]


def test_tokenizer_that_is_not_there(copy, tmp_path, capsys, monkeypatch):
    folder = copy("uneven3")
    (folder / "tokenizer.json").symlink_to("nowhere")
    monkeypatch.setattr(merge_write, "_save", None)  # said before anything is written
    assert f"{folder / 'tokenizer.json'} is a link to a file that is not there" in refused(folder, tmp_path, capsys)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").write_text("{}")
    templates = folder / "additional_chat_templates"
    templates.mkdir()
    (templates / "a.jinja").symlink_to("nowhere")
    assert f"{templates / 'a.jinja'} is a link to a file" in refused(folder, tmp_path, capsys)
    shutil.rmtree(templates)
    monkeypatch.undo()

    def removes(*_):
        (folder / "tokenizer.json").unlink()

    monkeypatch.setattr("hf_factuality.checkpoints.merge.write_shards", removes)
    assert main(["merge", str(folder), "--out", str(tmp_path / "out")]) == 2
    assert f"{folder / 'tokenizer.json'} is no longer there" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["sparse", "meta"])
def test_tensors_without_rows(copy, shards, tmp_path, capsys, kind):
    folder = copy("uneven3") / "huggingface"
    state = load_file(shards / "uneven3" / "whole.safetensors")
    norm = state["model.norm.weight"]
    odd = norm.to_sparse() if kind == "sparse" else torch.empty_like(norm, device="meta")
    torch.save(state | {"model.norm.weight": odd}, folder / "pytorch_model.bin")
    assert f"'model.norm.weight' is {'sparse' if kind == 'sparse' else 'on the meta device'}" in refused(
        folder, tmp_path, capsys
    )


def test_full_disk(copy, tmp_path, capsys, monkeypatch):
    folder = copy("uneven3")
    real, written = merge_write.save_file, []

    def fails_later(tensors, path, metadata):
        if len(written) == 2:  # as it says with a real limit, see below
            raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
        written.append(path)
        real(tensors, path, metadata)

    monkeypatch.setattr(merge_write, "save_file", fails_later)
    line = refused(folder, tmp_path, capsys, "--max_shard_size", "1500")
    assert f"the disk of {tmp_path / 'out'} is full; nothing was left there" in line and len(written) == 2
    monkeypatch.undo()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        assert "out could not be written: Error while serializing: I/O error: File too large (os error 27)" in refused(
            folder, tmp_path, capsys
        )
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    monkeypatch.undo()

    class Usage:
        free = 100

    monkeypatch.setattr(merge_write.shutil, "disk_usage", lambda path: Usage)
    assert "and its disk has 0.0 MB free" in refused(folder, tmp_path, capsys)


def test_what_a_killed_merge_left_counts_as_free(copy, tmp_path, monkeypatch):
    folder = copy("uneven3")
    needed = merge(folder, tmp_path / "out", dry_run=True).shards["model.safetensors"]
    left = tmp_path / ".out.partial"
    (left / "deeper").mkdir(parents=True)
    for file in (left / "model.safetensors", left / "deeper" / "file"):
        file.write_bytes(bytes(needed // 2))

    class Usage:
        free = needed - 2 * (needed // 2) - 1

    monkeypatch.setattr(merge_write.shutil, "disk_usage", lambda path: Usage)
    with pytest.raises(CheckpointError, match="MB free"):
        merge(folder, tmp_path / "out")
    Usage.free += 1
    merge(folder, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "uneven3"]
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["config.json", "generation_config.json", "model.safetensors"]


def test_outputs_that_cannot_be_replaced(copy, tmp_path, capsys, monkeypatch):
    folder = copy("uneven3")
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    (tmp_path / "dangling").symlink_to("nowhere")
    monkeypatch.chdir(tmp_path / "empty")
    real = os.path.ismount
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path).name == "mounted" or real(path))
    monkeypatch.setattr(merge_write, "_save", None)  # said before anything is written
    for name, words in {
        "../link": "is a link",
        "../dangling": "is a link",
        "../mounted": "is a mount point",
        ".": "'.' is no name",
        "..": "'..' is no name",
        "/": "'/' is no name",
    }.items():
        for flags in ([], ["--dry-run"]):
            assert words in refused(folder, tmp_path, capsys, "--out", name, *flags)


def test_folders_above_are_removed_after_an_error(copy, tmp_path, capsys, monkeypatch):
    folder = copy("uneven3")
    (tmp_path / "kept").mkdir()
    monkeypatch.setattr(merge_write, "_save", lambda *_: open("/nowhere/file"))
    for out in ("p/q/r", "kept/q/r"):
        refused(folder, tmp_path, capsys, "--out", str(tmp_path / out))


@pytest.mark.parametrize("where", ["_lock", "iterdir", "rename"])
def test_interrupted_at_the_edges(tmp_path, monkeypatch, where):
    """Between what makes the folder and what fills it, too."""
    (tmp_path / "p").mkdir()
    owner = merge_write if where == "_lock" else merge_write.Path
    real, calls = getattr(owner, where), []

    def interrupted(*args):
        if where == "_lock":
            os.close(real(*args))
        calls.append(args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(owner, where, interrupted)
        with merge_write.new_folder(tmp_path / "p" / "q" / "out") as folder:
            (folder / "file").touch()
    assert calls and list((tmp_path / "p").iterdir()) == []


def test_no_error_once_the_folder_has_its_name(tmp_path, monkeypatch):
    real = merge_write.sync

    def fails(path):
        if path == tmp_path:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(path)

    monkeypatch.setattr(merge_write, "sync", fails)
    with pytest.warns(UserWarning, match="out is whole, but its disk does not confirm its name: No space"):
        with merge_write.new_folder(tmp_path / "out") as folder:
            (folder / "file").write_text("whole")
    assert (tmp_path / "out" / "file").read_text() == "whole" and not (tmp_path / ".out.partial").exists()


def test_no_permission(copy, tmp_path, capsys, monkeypatch):
    folder = copy("uneven3")
    file = tmp_path / "file"
    file.write_text("a file, not a folder")
    assert main(["merge", str(folder), "--out", str(file / "out")]) == 2
    assert "is no folder" in capsys.readouterr().err

    def denied(self, *args, **kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))

    monkeypatch.setattr(merge_write.Path, "rename", denied)
    assert "there is no permission to write" in refused(folder, tmp_path, capsys)


@contextlib.contextmanager
def without_rights():
    """As a user who owns nothing; the superuser may read and write anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_no_permission_of_the_system_itself(shards, capsys):
    with tempfile.TemporaryDirectory() as scratch:  # pytest's folders are closed to others
        place = Path(scratch)
        folder = shutil.copytree(shards / "uneven3", place / "uneven3")
        merge(folder, place / "first")  # what is imported late is imported
        for path in (place, *place.rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        with without_rights():
            assert main(["merge", str(folder), "--out", str(place / "out")]) == 2
        (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
        assert "there is no permission to write" in line and str(place) in line and not (place / "out").exists()
        file = folder / "model_world_size_3_rank_1.pt"
        file.chmod(0)
        with without_rights():
            assert main(["merge", str(folder), "--out", str(place / "out")]) == 2
        assert f"{file} cannot be read: Permission denied" in capsys.readouterr().err
        for path in (place, *place.rglob("*")):
            path.chmod(0o755)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_in_this_process_leaves_nothing(shards, tmp_path, capsys, monkeypatch, name):
    """When it comes, others may not write there, and what is there cannot be loaded."""
    out, left, number = tmp_path / "p" / "out", tmp_path / "p" / ".out.partial", getattr(signal, name)
    real, written = merge_write._save, []

    def ended(tensors, path):
        real(tensors, path)
        written.append(path)
        if len(written) == 3:
            with pytest.raises(CheckpointError, match="another process is writing"):
                merge(shards / "tied4", out)
            assert list(left.glob("*.safetensors")) and not (left / "config.json").exists() and not out.exists()
            assert signal.getsignal(number) is not signal.SIG_DFL  # or the tests would end here
            os.kill(os.getpid(), number)

    monkeypatch.setattr(merge_write, "_save", ended)
    before = signal.signal(number, signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    try:
        assert main(["merge", str(shards / "tied4"), "--out", str(out), "--max_shard_size", "1500"]) == 128 + number
    finally:
        signal.signal(number, before)
    assert capsys.readouterr().err.endswith(f"hf-factuality: ended by {name}\n") and len(written) == 3
    assert list(tmp_path.iterdir()) == []

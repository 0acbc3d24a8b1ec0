"""Damaged checkpoints: one line that names the file, or the right model; never a traceback, never other numbers."""

import json
import os
import random
import shutil
import struct
import zipfile

import numpy
import pytest
import torch

from hf_factuality.checkpoints import write as merge_write
from hf_factuality.checkpoints.merge import merge
from hf_factuality.checkpoints.model import expected_model
from hf_factuality.checkpoints.pickles import checked_tensor, load_torch
from hf_factuality.errors import CheckpointError
from tests.checkpoints.merge_mutants import make_formats, mutate, rezip, with_pickle
from tests.checkpoints.test_merge import assert_same, stored


FORMATS = (
    *("even_dim1", "tensor_parallel", "dcp3", "dcp_hsdp", "zero1", "zero2", "zero3"),
    *("adapter", "safetensors", "sharded", "bin", "sharded_bin", "lora_ranks"),
)
COUNT = int(os.environ.get("HF_FACTUALITY_MUTANTS", "500"))
SEED = int(os.environ.get("HF_FACTUALITY_MUTANTS_SEED", "0"))


@pytest.fixture(scope="module")
def formats(shards, tmp_path_factory):
    found = make_formats(shards, tmp_path_factory.mktemp("formats"))
    assert found.keys() == set(FORMATS)
    return found


BUILT = {}


def built_once(folder, trust_remote_code, **settings):
    """Most mutants have the configuration of the one before: half of the time goes into its model."""
    key = ((folder / "config.json").read_bytes(), *settings.items())
    if key not in BUILT:
        BUILT[key] = expected_model(folder, trust_remote_code, **settings)
    return BUILT[key]


@pytest.fixture
def copy(formats, tmp_path, monkeypatch):
    """A copy of a format's folder, that may be damaged; the base of the adapter is named from inside it."""
    monkeypatch.setattr(merge_write, "sync", lambda path: None)
    monkeypatch.setattr("hf_factuality.checkpoints.merge.expected_model", built_once)

    def make(name):
        place = tmp_path / "checkpoint"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(formats[name][0], place)
        monkeypatch.chdir(place)
        return place

    return make


def merged(folder, out):
    """The tensors, or the one line."""
    shutil.rmtree(out, ignore_errors=True)
    try:
        merge(folder / "adapter" if (folder / "adapter").exists() else folder, out)
    except CheckpointError as error:
        line = str(error)
        assert "\n" not in line and str(folder) in line, line
        assert not out.exists(), line
        return line
    return stored(out)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_mutants(name, formats, copy, tmp_path):
    counts = {"merged": 0, "refused": 0}
    for number in range(COUNT + 1):
        folder = copy(name)
        what = mutate(folder, random.Random(f"{SEED} {name} {number}")) if number else "nothing"
        try:
            found = merged(folder, tmp_path / "out")
            assert number or not isinstance(found, str), found
            if isinstance(found, dict) and (right := formats[name][1](folder, what)) is not None:
                assert_same(found, right)
        except BaseException as error:
            error.add_note(f"mutant {number} of {name}: {what}")
            raise
        counts["refused" if isinstance(found, str) else "merged"] += 1
    assert min(counts.values()) > COUNT // 20, counts  # or nothing was damaged, or everything


def refused(folder, tmp_path):
    line = merged(folder, tmp_path / "out")
    assert isinstance(line, str)
    return line


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 4
    path.write_bytes(content)


def inside(path, name):
    """A byte of a member of a zip file."""
    with zipfile.ZipFile(path) as archive:
        entry = next(entry for entry in archive.infolist() if entry.filename.endswith(name))
        return archive.read(entry), path.read_bytes().index(archive.read(entry), entry.header_offset)


FILES = {
    "even_dim1": "model_world_size_2_rank_1.pt",
    "zero2": "global_step7/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
    "zero3": "global_step7/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "bin": "pytorch_model.bin",
    "lora_ranks": "model_world_size_1_rank_0.pt",
}


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_of_a_tensor_is_noticed(name, copy, tmp_path):
    """Torch itself reads the file, and says nothing."""
    folder = copy(name)
    file = folder / FILES[name]
    flip(file, inside(file, "/data/0")[1] + 8)
    if name == "bin":
        torch.load(file, weights_only=True)
    line = refused(folder, tmp_path)
    assert str(file) in line and "/data/0) do not have their checksum" in line


def test_a_flipped_bit_of_a_distributed_checkpoint_is_noticed(copy, tmp_path):
    folder = copy("dcp3")
    file = folder / "pytorch_model_fsdp_0" / "__1_0.distcp"
    flip(file, inside(file, "/data/0")[1] + 4)  # of the last tensor of the file: an optimizer's, which is not read
    first = file.read_bytes().index(b"archive/data/0")
    length = int.from_bytes(file.read_bytes()[first - 2 : first], "little")
    flip(file, first + len("archive/data/0") + length + 4)
    assert f"{file} is damaged" in refused(folder, tmp_path)


@pytest.mark.parametrize("unsafe", [False, True])
def test_every_tensor_has_its_own_checksum(unsafe, tmp_path):
    """Also where the first is not found, in an object of a kind that nobody looks into."""
    file = tmp_path / "x.bin"
    for state in ({"a": torch.arange(9.0)}, {"s": {torch.zeros(9)}, "b": torch.zeros(2048), "a": torch.arange(9.0)}):
        torch.save(state, file)
        load_torch(file, unsafe=unsafe)
        with zipfile.ZipFile(file) as archive:
            names = [name for name in archive.namelist() if "/data/" in name]
        flip(file, inside(file, names[-1])[1] + 8)
        with pytest.raises(CheckpointError, match=f"{names[-1]}. do not have their checksum"):
            checked_tensor(load_torch(file, unsafe=unsafe)["a"])


def test_files_without_checksums_are_read(copy, formats, tmp_path):
    """As `set_crc32_options(False)` makes torch write them: zeros for all."""
    folder = copy("bin")
    state = torch.load(folder / "pytorch_model.bin", weights_only=True)
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(state, folder / "pytorch_model.bin")
    finally:
        torch.serialization.set_crc32_options(before)
    assert_same(merged(folder, tmp_path / "out"), formats["bin"][1](folder, ""))


def test_what_is_not_merged_may_be_damaged(copy, formats, tmp_path):
    folder = copy("zero2")
    file = folder / FILES["zero2"]
    state = torch.load(file, weights_only=True)
    state["optimizer_state_dict"]["base_optimizer_state"] = torch.arange(100.0)
    torch.save(state, file)
    with zipfile.ZipFile(file) as archive:
        last = max(name for name in archive.namelist() if "/data/" in name)
    flip(file, inside(file, last)[1] + 4)
    assert_same(merged(folder, tmp_path / "out"), formats["zero2"][1](folder, ""))


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_a_partition_under_the_name_of_another_rank(name, copy, tmp_path):
    first, second = sorted((copy(name) / "global_step7").glob("*optim_states.pt"))
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert f"{first} was saved as '{second.stem}'" in refused(tmp_path / "checkpoint", tmp_path)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_odd_zip_files(copy, tmp_path):
    folder = copy("bin")
    file = folder / "pytorch_model.bin"
    whole = file.read_bytes()
    rezip(file, lambda parts: [*parts, (parts[0][0], b"other")])
    assert f"{file} is damaged, or compressed, at 'pytorch_model/data.pkl'" in refused(folder, tmp_path)
    file.write_bytes(whole)
    rezip(file, lambda parts: [(name, body + bytes(10**6)) for name, body in parts], zipfile.ZIP_DEFLATED)
    assert f"{file} is damaged, or compressed" in refused(folder, tmp_path)
    content = bytearray(whole)
    place = content.index(b"PK\x01\x02") + 20
    content[place : place + 8] = struct.pack("<II", 2**32 - 2, 2**32 - 2)  # a member of 4 GB
    file.write_bytes(content)
    assert f"{file} is damaged, or compressed" in refused(folder, tmp_path)


@pytest.mark.parametrize(("order", "swapped"), [(b"big", True), (b"little", False)])
def test_files_of_machines_of_another_byte_order(copy, formats, tmp_path, order, swapped):
    folder = copy("bin")

    def change(parts):
        for name, body in parts:
            if "/data/" in name:
                body = numpy.frombuffer(body, "<f4").astype(">f4" if swapped else "<f4").tobytes()
            yield name, order if name.endswith("/byteorder") else body

    rezip(folder / "pytorch_model.bin", change)
    assert_same(merged(folder, tmp_path / "out"), formats["bin"][1](folder, ""))
    rezip(folder / "pytorch_model.bin", lambda parts: [(n, b"?" if n.endswith("/byteorder") else b) for n, b in parts])
    assert "the byte order '?' is unknown" in refused(folder, tmp_path)


DEEP_KEY = b"\x80\x02})" + b"\x85" * 200_000 + b"K\x01s."


def test_pickles_that_end_the_process(copy, tmp_path):
    """As keys, nested tuples overflow the stack; a large index of an object makes the unpickler take gigabytes."""
    folder = copy("bin")
    with_pickle(folder / "pytorch_model.bin", lambda body: DEEP_KEY)
    assert "nested too deep" in refused(folder, tmp_path)
    folder = copy("dcp3")
    file = folder / "pytorch_model_fsdp_0" / ".metadata"
    whole = file.read_bytes()
    file.write_bytes(DEEP_KEY)
    assert "nested too deep" in refused(folder, tmp_path)
    file.write_bytes(b"\x80\x02]r" + (2**32 - 1).to_bytes(4, "little") + b".")
    assert "is no index of a torch distributed checkpoint" in refused(folder, tmp_path)
    file.write_bytes(whole[: len(whole) // 2])
    assert str(file) in refused(folder, tmp_path)


def test_bytes_that_are_not_as_many_as_their_tensor_has(copy, tmp_path):
    """Written again by another program, with a checksum that fits: then they are those of something else."""
    folder = copy("bin")
    longer = {"/data/1": bytes(8)}
    rezip(
        folder / "pytorch_model.bin",
        lambda parts: [(name, body + longer.get(name[name.find("/") :], b"")) for name, body in parts],
    )
    assert "data/1 has" in refused(folder, tmp_path)


@pytest.mark.slow
def test_an_index_that_was_cut_anywhere(copy, tmp_path):
    folder = copy("dcp3")
    file = folder / "pytorch_model_fsdp_0" / ".metadata"
    whole = file.read_bytes()
    for length in range(0, len(whole), max(1, len(whole) // 97)):
        file.write_bytes(whole[:length])
        assert str(file) in refused(folder, tmp_path)


def test_two_tensors_at_one_place(copy, tmp_path):
    """An index has no checksum; a number of it that is another must not read another tensor."""
    import pickle

    folder = copy("dcp3")
    file = folder / "pytorch_model_fsdp_0" / ".metadata"
    index = pickle.loads(file.read_bytes())
    of_shape = {}
    for key, place in index.storage_data.items():
        if key.fqn.endswith(("q_proj.weight", "o_proj.weight")) and key.fqn.startswith("model."):
            of_shape.setdefault((tuple(key.offset), place.relative_path), []).append(key)
    first, second = next(keys for keys in of_shape.values() if len(keys) > 1)[:2]
    index.storage_data[first].offset = index.storage_data[second].offset
    file.write_bytes(pickle.dumps(index))
    line = refused(folder, tmp_path)
    assert str(file) in line and "two entries lie at byte" in line


def header(path, change):
    """Another header of a safetensors file; `change` gets the entry of its first tensor, or returns the text."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    name = next(name for name, entry in head.items() if name != "__metadata__" and entry["data_offsets"][0])
    text = change(head[name], name, head) or json.dumps(head)
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + content[8 + length :])


HEADERS = {
    "a tensor of 10**15": lambda entry, *_: entry.update(shape=[10**15]),
    "a negative shape": lambda entry, *_: entry.update(shape=[-16, -1]),
    "an offset that is no number": lambda entry, *_: entry.update(data_offsets=[float("nan"), 64]),
    "overlapping ranges": lambda entry, *_: entry.update(data_offsets=[0, entry["data_offsets"][1] - entry["data_offsets"][0]]),
    "an offset past 64 bits": lambda entry, *_: entry.update(data_offsets=[2**64 - 64, 2**64]),
    "integers": lambda entry, *_: entry.update(dtype="I32"),
    "a key twice": lambda entry, name, head: json.dumps(head)[:-1] + f', "{name}": {json.dumps(entry | {"dtype": "F16"})}}}',
    "a deep header": lambda *_: '{"x": ' + "[" * 200_000 + "]" * 200_000 + "}",
}  # fmt: skip


@pytest.mark.parametrize("what", HEADERS)
def test_odd_headers_of_safetensors(what, copy, tmp_path):
    folder = copy("safetensors")
    header(folder / "model.safetensors", HEADERS[what])
    refused(folder, tmp_path)


def test_odd_configurations(copy, tmp_path):
    folder = copy("sharded")
    config = folder / "config.json"
    whole = config.read_text()
    for value in (2**63, 1e300):
        config.write_text(json.dumps(json.loads(whole) | {"num_hidden_layers": value}))
        assert "num_hidden_layers" in refused(folder, tmp_path)
    config.write_text(whole.rstrip()[:-1] + ', "vocab_size": 38}')
    assert f"{config} cannot be read as JSON ('vocab_size' comes twice" in refused(folder, tmp_path)
    config.write_text(whole)
    index = folder / "model.safetensors.index.json"
    for value in (3, None, [], "../x", "\x00"):
        index.write_text(json.dumps({"weight_map": {"lm_head.weight": value}}))
        refused(folder, tmp_path)
    (folder / "model_world_size_1000000000000_rank_0.pt").touch()
    assert "has 1 of 1000000000000 rank files; missing: rank 1, 2" in refused(folder, tmp_path)

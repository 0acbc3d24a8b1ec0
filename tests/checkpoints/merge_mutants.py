"""Tiny checkpoints of every format, and seeded damage to them."""

import io
import json
import os
import random
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.checkpoints.merge_inputs import make_model
from tests.checkpoints.test_merge_formats import LORA, adapter, wrapped, write_zero


BASE = {"tie_word_embeddings": False}
NUMBERS = (0, -1, 1, 2, 3, 7, 2**31, 2**63, 10**15, -(10**15), 1.5, 1e300, float("nan"), float("inf"), True, None)
WORDS = ("", "x", "model.norm.weight", "I32", "F64", "\x00", "../x", "1" * 5000)
ODD = (*NUMBERS, *WORDS, [], [[]], {}, [None], {"x": 1})
DEEP = "[" * 200_000 + "]" * 200_000


def make_formats(shards: Path, folder: Path) -> dict[str, tuple[Path, Callable]]:
    """Folder of each format, and a function of a damaged copy that says what tensors are right: nearly always the first."""
    model = make_model("Llama", BASE)
    weights = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    groups = [{n: t for n, t in weights.items() if t.ndim == 2}, {n: t for n, t in weights.items() if t.ndim < 2}]
    found = {}

    def fixed(tensors):
        return lambda mutated, what: tensors

    for name in ("even_dim1", "tensor_parallel", "dcp3", "dcp_hsdp"):
        shutil.copytree(shards / name, folder / name)
        whole = load_file(folder / name / "whole.safetensors")
        (folder / name / "whole.safetensors").unlink()
        found[name] = (folder / name, fixed(whole) if name[:3] != "dcp" else _distributed(whole))
    for stage in (1, 2, 3):
        place = folder / f"zero{stage}"
        frozen = {name: tensor for name, tensor in groups[1].items() if "layers.1" in name}
        trained = [groups[0], {name: tensor for name, tensor in groups[1].items() if name not in frozen}]
        write_zero(place / "global_step7", stage, 2, trained, None, frozen)
        (place / "latest").write_text("global_step7")
        model.config.save_pretrained(place)
        found[place.name] = (place, fixed(weights))
    place = folder / "adapter"
    place.mkdir()
    inner, _ = adapter(place, BASE, **LORA)
    (inner / "README.md").unlink(missing_ok=True)
    config = json.loads((inner / "adapter_config.json").read_text())
    (inner / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "base"}))
    found["adapter"] = (place, _stored(inner, place / "base"))
    place = folder / "safetensors"
    model.save_pretrained(place)
    found["safetensors"] = (place, _stored(place))
    place = folder / "sharded"
    model.save_pretrained(place, max_shard_size="6KB")
    assert len(list(place.glob("*.safetensors"))) > 2
    found["sharded"] = (place, _stored(place))
    place = folder / "bin"
    place.mkdir()
    model.config.save_pretrained(place)
    torch.save(weights, place / "pytorch_model.bin")
    found["bin"] = (place, fixed(weights))
    place = folder / "sharded_bin"
    place.mkdir()
    model.config.save_pretrained(place)
    names = list(weights)
    halves = {"pytorch_model-00001-of-00002.bin": names[::2], "pytorch_model-00002-of-00002.bin": names[1::2]}
    for file, held in halves.items():
        torch.save({name: weights[name] for name in held}, place / file)
    index = {"metadata": {}, "weight_map": {name: file for file, held in halves.items() for name in held}}
    (place / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    found["sharded_bin"] = (place, fixed(weights))
    place = folder / "lora_ranks"
    place.mkdir()
    base = load_file(folder / "adapter" / "base" / "model.safetensors")
    matrices = load_file(inner / "adapter_model.safetensors")
    state = wrapped(base, matrices)
    torch.save(state, place / "model_world_size_1_rank_0.pt")
    shutil.copy(folder / "adapter" / "base" / "config.json", place)
    (place / "lora_train_meta.json").write_text(json.dumps({"r": 3, "lora_alpha": 7, "task_type": "CAUSAL_LM"}))
    found["lora_ranks"] = (place, lambda mutated, what: _folded(base, matrices, mutated / "lora_train_meta.json"))
    return found


def _distributed(whole: dict[str, torch.Tensor]):
    """Two `.distcp` files of one layout do not say whose they are: exchanged, they are what torch itself reads then."""

    def right(mutated: Path, what: str):
        if " swap " not in what and " copy " not in what:
            tied = json.loads((mutated / "huggingface" / "config.json").read_text()).get("tie_word_embeddings")
            # A bit of that name flipped: the two are written apart, and equal.
            return whole if tied else {"lm_head.weight": whole["model.embed_tokens.weight"]} | whole
        dcp_to_torch_save(mutated / "pytorch_model_fsdp_0", mutated / "torch.pt")
        found = torch.load(mutated / "torch.pt", weights_only=True)["model"]
        return {name: found[name] for name in whole}

    return right


def _stored(folder: Path, base: Path | None = None):
    """What safetensors files mean: they have no checksums, so changed bytes of tensors are other numbers, exactly these."""
    first = {path.name: _head(path.read_bytes()) for path in (base or folder).glob("*.safetensors")}
    second = _head((folder / "adapter_model.safetensors").read_bytes()) if base else None

    def right(mutated: Path, what: str):
        place = mutated / "base" if base else mutated
        weights = {
            name: tensor for file, head in first.items() for name, tensor in _tensors(place / file, head).items()
        }
        if base:
            matrices = _tensors(mutated / "adapter" / "adapter_model.safetensors", second)
            return _folded(weights, matrices, mutated / "adapter" / "adapter_config.json")
        return weights

    return right


def _head(content: bytes):
    (length,) = struct.unpack("<Q", content[:8])
    head = json.loads(content[8 : 8 + length])
    head.pop("__metadata__", None)
    return len(content) - 8 - length, head


def _tensors(path: Path, head) -> dict[str, torch.Tensor]:
    size, entries = head
    content = path.read_bytes()
    data = content[len(content) - size :]
    found = {}
    for name, entry in entries.items():
        start, stop = entry["data_offsets"]
        assert entry["dtype"] == "F32"
        found[name] = torch.frombuffer(bytearray(data[start:stop]), dtype=torch.float32).reshape(entry["shape"])
    return found


def _folded(base, matrices, config: Path) -> dict[str, torch.Tensor] | None:
    """What an adapter means by the numbers that its configuration has by now; `None` if it asks for another kind of product."""
    written = json.loads(config.read_text())
    if written.get("use_rslora") or written.get("alpha_pattern"):
        return None
    weights = dict(base)
    for key, a in matrices.items():
        if ".lora_A." in key:
            target = key.removeprefix("base_model.model.").replace(".lora_A.", ".")
            delta = matrices[key.replace("lora_A", "lora_B")] @ a
            weights[target] = weights[target] + delta * (written["lora_alpha"] / 3)
    return weights


# ---- damage ----


def mutate(folder: Path, draw: random.Random) -> str:
    """Damage one file of a checkpoint (two, if they are swapped); what was done, in words."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    weights = [path for path in files if path.suffix in (".pt", ".bin", ".distcp", ".safetensors")]
    path = draw.choice(weights if draw.random() < 0.6 else files)
    kinds = [_bits, _bits, _edges, _edges, _bytes, _run, _run, _cut, _empty, _remove, _insert, _append, _swap, _copy]
    if path.suffix in (".pt", ".bin"):
        kinds += [_zip_number] * 4 + [_zip_again] * 6
    elif path.suffix == ".safetensors":
        kinds += [_header] * 8
    elif path.suffix == ".json":
        kinds += [_json] * 8
    elif path.name == ".metadata":
        kinds += [_pickle] * 10
    kind = draw.choice(kinds)
    return f"{path.relative_to(folder)}: {kind.__name__[1:]} {kind(path, draw) or ''}"


def _place(size: int, draw: random.Random) -> int:
    return draw.randrange(max(1, size))


def _changed(change):
    """Damage of a file out of damage of its bytes."""

    def damage(path, draw):
        content = bytearray(path.read_bytes())
        content[:], what = change(content, draw) or (content, "")
        path.write_bytes(content)
        return what

    damage.__name__ = change.__name__
    return damage


@_changed
def _bits(content, draw):
    for _ in range(draw.choice((1, 1, 2, 8))):
        content[_place(len(content), draw)] ^= 1 << draw.randrange(8)


@_changed
def _edges(content, draw):
    """Headers and directories, where the structure is."""
    width = min(len(content), draw.choice((16, 64, 512, 2048)))
    place = _place(width, draw)
    place = place if draw.random() < 0.5 else len(content) - 1 - place
    content[place] = draw.choice((draw.randrange(256), content[place] ^ 1, 0, 255))
    return content, f"byte {place}"


@_changed
def _bytes(content, draw):
    for _ in range(draw.choice((1, 4, 64))):
        content[_place(len(content), draw)] = draw.randrange(256)


@_changed
def _run(content, draw):
    start, length = _place(len(content), draw), draw.choice((1, 4, 8, 64, 4096))
    part = slice(start, start + length)
    content[part] = draw.choice((b"\x00", b"\xff", bytes([draw.randrange(256)]))) * len(content[part])


@_changed
def _insert(content, draw):
    place, length = _place(len(content), draw), draw.choice((1, 8, 100))
    content[place : place + draw.choice((0, length))] = draw.choice((b"", draw.randbytes(length)))


@_changed
def _append(content, draw):
    content += draw.choice((b"\x00", b" \n", b"\x00" * 70_000, draw.randbytes(30)))


def _cut(path, draw):
    size = path.stat().st_size
    os.truncate(path, draw.choice((_place(size, draw), max(0, size - 1), size // 2, min(size, 22))))


def _empty(path, draw):
    path.write_bytes(b"")


def _remove(path, draw):
    path.unlink()


def _others(path, draw):
    same = sorted(other for other in path.parent.glob(f"*{path.suffix}") if other != path and other.is_file())
    return draw.choice(same) if same else path


def _swap(path, draw):
    other = _others(path, draw)
    content = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"with {other.name}"


def _copy(path, draw):
    other = _others(path, draw)
    other.write_bytes(path.read_bytes())
    return f"to {other.name}"


@_changed
def _zip_number(content, draw):
    """A field of the directory, of a member's own header or of the end, at its edge."""
    signature = draw.choice((b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06", b"PK\x06\x06"))
    places = [n for n in range(len(content) - 60) if content[n : n + 4] == signature] or [0]
    place = draw.choice(places) + draw.choice(range(0, 50, 2))
    width = draw.choice((1, 2, 4, 8))
    new = draw.choice((0, 1, 8, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)) % 256**width
    content[place : place + width] = new.to_bytes(width, "little")
    return content, f"byte {place}"


def _zip_again(path, draw):
    """Written again by another program: without what is expected, or with more."""
    with zipfile.ZipFile(path) as archive:
        parts = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    kind = draw.choice(("twice", "deflated", "lost", "names", "huge", "order", "bomb", "crc"))
    method = zipfile.ZIP_DEFLATED if kind in ("deflated", "bomb") else zipfile.ZIP_STORED
    chosen = draw.randrange(len(parts))
    name, body = parts[chosen]
    if kind == "twice":
        parts.insert(draw.choice((0, len(parts))), (name, draw.choice((body[::-1], b"", body + body))))
    elif kind == "lost":
        del parts[chosen]
    elif kind == "names":
        other = draw.randrange(len(parts))
        parts[chosen], parts[other] = (parts[other][0] + "x", body), (name, parts[other][1])
    elif kind == "order":
        draw.shuffle(parts)
    elif kind == "bomb":
        parts[chosen] = (name, body + bytes(10_000_000))
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for part, content in parts:
            archive.writestr(part, content)
    content = bytearray(stream.getvalue())
    if kind in ("huge", "crc"):  # both in the directory and in the member's own header
        for signature, first in ((b"PK\x01\x02", 16), (b"PK\x03\x04", 14)):
            place = -1
            for _ in range(chosen + 1):
                place = content.index(signature, place + 1)
            sizes = struct.pack("<II", 2**32 - 2, 2**32 - 2)
            new = (b"", sizes) if kind == "huge" else (draw.randbytes(4), b"")
            content[place + first : place + first + len(new[0])] = new[0]
            content[place + first + 4 : place + first + 4 + len(new[1])] = new[1]
    path.write_bytes(content)
    return f"{kind} {name}"


def _edit(value, draw):
    """One number or word of a JSON value replaced."""
    places = []

    def walk(inner):
        for key, item in list(inner.items() if isinstance(inner, dict) else enumerate(inner)):
            places.append((inner, key))
            if isinstance(item, (dict, list)):
                walk(item)

    walk(value)
    inner, key = draw.choice(places)
    kind = draw.random()
    if kind < 0.1:
        del inner[key]
        return f"{key} out"
    if kind < 0.4 and isinstance(inner[key], int):
        inner[key] += draw.choice((-1, 1, -4, 4, 64, -64))
    else:
        inner[key] = draw.choice(ODD)
    return f"{key} = {str(inner[key])[:40]!r}"


def _json(path, draw):
    text = path.read_text()
    kind = draw.random()
    if kind < 0.1:
        path.write_text(
            draw.choice((DEEP, '{"a": ' * 200_000, f'{{"architectures": {DEEP}}}', "[]", "3", "null", "\ufeff{}"))
        )
        return "deep"
    if kind < 0.2:
        value = json.loads(text)
        key = draw.choice(list(value))
        path.write_text(text.rstrip()[:-1] + f", {json.dumps(key)}: {json.dumps(draw.choice(ODD))}}}")
        return f"{key} twice"
    value = json.loads(text)
    what = _edit(value, draw)
    path.write_text(json.dumps(value))
    return what


def _header(path, draw):
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    head, data = content[8 : 8 + length], content[8 + length :]
    kind = draw.random()
    if kind < 0.1:
        path.write_bytes(
            struct.pack("<Q", draw.choice((0, 1, length - 1, length + 1, 2**63, 2**64 - 1, 10**8))) + head + data
        )
        return "length"
    if kind < 0.2:
        name = draw.choice([name for name in json.loads(head) if name != "__metadata__"])
        other = dict(json.loads(head)[name], **draw.choice(({}, {"data_offsets": [0, 64]}, {"dtype": "F16"})))
        head = head.rstrip()[:-1] + f", {json.dumps(name)}: {json.dumps(other)}}}".encode()
        what = f"{name} twice"
    elif kind < 0.25:
        head, what = b'{"x": ' + DEEP.encode() + b"}", "deep"
    elif kind < 0.4:
        head, what = bytearray(head), "bits"
        head[_place(len(head), draw)] ^= 1 << draw.randrange(8)
    else:
        value = json.loads(head)
        what = _edit(value, draw)
        head = json.dumps(value).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + bytes(head) + data)
    return what


@_changed
def _pickle(content, draw):
    """A number, a length or an index of what was read before."""
    widths = {
        **dict.fromkeys(b"Khq\x8c\x8a", 1),
        **dict.fromkeys(b"M", 2),
        **dict.fromkeys(b"JjrX", 4),
        **dict.fromkeys(b"\x85t", 0),
    }
    place = draw.choice([n for n in range(len(content) - 5) if content[n] in widths])
    width = widths[content[place]]
    if width:
        old = int.from_bytes(content[place + 1 : place + 1 + width], "little")
        new = draw.choice((0, 1, old + 1, old - 1, old ^ 64, 2**20, 256**width - 1)) % 256**width
        content[place + 1 : place + 1 + width] = new.to_bytes(width, "little")
    else:
        content[place] = draw.choice(b"\x85\x86\x87t)]}.0aesub\x94R\x81")
    return content, f"byte {place}"


def rezip(path: Path, change, method: int = zipfile.ZIP_STORED) -> None:
    """Other members of a zip file, with all checksums right: what an attacker writes, not what a disk does."""
    with zipfile.ZipFile(path) as archive:
        parts = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, body in change(parts):
            archive.writestr(name, body)


def with_pickle(path: Path, change) -> None:
    """A file of torch whose pickle is another."""
    rezip(path, lambda parts: [(name, change(body) if name.endswith("/data.pkl") else body) for name, body in parts])

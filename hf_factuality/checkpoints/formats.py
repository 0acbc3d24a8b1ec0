"""Which format a checkpoint has, and its tensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from hf_factuality.checkpoints.adapters import ADAPTER_CONFIG, Adapter, check_start, split_adapter
from hf_factuality.checkpoints.dcp import METADATA, read_dcp
from hf_factuality.checkpoints.files import SIDE_FILES, check_links
from hf_factuality.checkpoints.fsdp import find_ranks, read_ranks
from hf_factuality.checkpoints.model import read_json
from hf_factuality.checkpoints.pickles import load_torch, reading, stored_tensor
from hf_factuality.checkpoints.tensors import TensorSource
from hf_factuality.checkpoints.zero import find_zero, read_zero
from hf_factuality.errors import CheckpointError


_KNOWN = (
    "rank files of FSDP2 or verl (model_world_size_W_rank_R.pt), a torch distributed checkpoint (.metadata and *.distcp), a "
    "DeepSpeed ZeRO checkpoint (*_optim_states.pt), a PEFT adapter (adapter_config.json) or a model (config.json and "
    "model.safetensors or pytorch_model.bin)"
)


@dataclass
class Checkpoint:
    """What was found in a folder; configuration and tokenizer may be in `folders`, the likeliest first."""

    format: str
    name: str
    tensors: Mapping[str, TensorSource]
    folders: list[Path]
    adapter: Adapter | None = None
    notes: list[str] = field(default_factory=list)


def read_checkpoint(
    folder: Path, base_model: str | os.PathLike[str] | None = None, unsafe: bool = False
) -> Checkpoint:
    """Recognise the format of a folder, and read what needs no tensor's contents; `unsafe` lets the files run code."""
    check_links(folder)
    for reader in (_ranks, _distributed, partial(_adapter, base_model=base_model), _model, _zero):
        with reading(folder):
            found = reader(folder, unsafe)
        if found is not None:
            if base_model is not None and reader in (_ranks, _distributed, _model, _zero):
                raise CheckpointError(f"{folder} is no adapter ({found.format}), so `base_model` means nothing")
            return found
    here = ", ".join(sorted(path.name for path in folder.iterdir())[:6]) or "nothing"
    raise CheckpointError(f"{folder} is no checkpoint of a known format; it holds {here}. Known are {_KNOWN}")


def read_weights(folder: Path, stem: str = "model", unsafe: bool = False) -> dict[str, TensorSource] | None:
    """Tensors of a model's files by name, whole or in shards; `None` without any."""
    for name in (f"{stem}.safetensors", f"pytorch_{stem}.bin", f"{stem}.bin"):
        if (folder / name).is_file():  # before the index, as transformers does
            return _file(folder / name, unsafe)
        if (folder / f"{name}.index.json").is_file():
            return _indexed(folder / f"{name}.index.json", unsafe)
    return None


def _indexed(index: Path, unsafe: bool) -> dict[str, TensorSource]:
    folder, weight_map = index.parent, read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError(f"{index} has no weight_map of names of files")
    files = {}
    for name in sorted(set(weight_map.values())):
        if Path(name).name != name or not (folder / name).is_file():
            raise CheckpointError(f"{folder} lacks {name!r}, which {index.name} names; copy it there")
        files[name] = _file(folder / name, unsafe)
    for tensor, name in weight_map.items():
        if tensor not in files[name]:
            raise CheckpointError(f"{folder / name} lacks {tensor!r}, which {index.name} puts there")
    return {tensor: files[name][tensor] for tensor, name in weight_map.items()}


def _file(path: Path, unsafe: bool) -> dict[str, TensorSource]:
    if path.suffix != ".safetensors":
        saved = load_torch(path, unsafe=unsafe)
        if not isinstance(saved, Mapping):
            raise CheckpointError(f"{path} holds no state dict, but {type(saved).__name__}")
        return {name: stored_tensor(value) for name, value in saved.items() if isinstance(value, torch.Tensor)}
    from safetensors import safe_open

    with reading(path):
        file = safe_open(path, framework="pt")
        return {name: stored_tensor(file.get_tensor(name)) for name in file.keys()}  # mapped, too


def _ranks(folder: Path, unsafe: bool) -> Checkpoint | None:
    inner = next((place for place in (folder, folder / "actor") if place.is_dir() and find_ranks(place)), None)
    if inner is None:
        return None
    paths = find_ranks(inner)
    places = [inner / "huggingface", inner, inner.parent]
    return _with_lora(
        f"FSDP rank files, world size {len(paths)}", inner, read_ranks(paths, unsafe), places, lora=inner
    )


def _distributed(folder: Path, _: bool) -> Checkpoint | None:
    inner = folder / "pytorch_model_fsdp_0"
    for place in (folder, inner):
        if (place / METADATA).is_file():
            places = [folder / "huggingface", folder, folder.parent, folder.parent.parent]
            return _with_lora("torch distributed checkpoint", place, read_dcp(place), places, lora=folder)
    for place in (folder, inner):
        if place.is_dir() and any(place.glob("*.distcp")):
            raise CheckpointError(
                f"{place} has *.distcp files but no {METADATA}, which is written last: the save was cut off, or rank 0's file "
                "was not copied"
            )
    return None


def _with_lora(
    format: str, inner: Path, tensors: Mapping[str, TensorSource], places: list[Path], lora: Path
) -> Checkpoint:
    """Shards of a LoRA run hold the base and the matrices; how they are scaled is written beside them."""
    base, matrices = split_adapter(tensors)
    if not matrices:
        return Checkpoint(format, str(inner), base, places)
    for path in (lora / "lora_adapter" / ADAPTER_CONFIG, lora / ADAPTER_CONFIG, lora / "lora_train_meta.json"):
        if path.is_file():
            adapter = Adapter(matrices, read_json(path), lora)
            return Checkpoint(f"{format}, with LoRA", str(inner), base, places, adapter)
    raise CheckpointError(
        f"{lora} holds LoRA matrices, but no {ADAPTER_CONFIG} (in lora_adapter/) or lora_train_meta.json that says how they are "
        "scaled; put one there with peft_type, r and lora_alpha of the run"
    )


def _adapter(folder: Path, unsafe: bool, base_model: str | os.PathLike[str] | None) -> Checkpoint | None:
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    config = read_json(folder / ADAPTER_CONFIG)
    own = config.get("base_model_name_or_path")
    named = base_model or own
    if not named or not isinstance(named, (str, os.PathLike)):
        raise CheckpointError(f"{folder / ADAPTER_CONFIG} names no base model; pass `base_model`")
    revision, notes = config.get("revision") if named == own else None, []
    if revision and os.path.isdir(named):
        notes.append(f"the adapter is of revision {revision} of its base; the folder {named} was taken as it is")
    tensors = read_weights(folder, "adapter_model", unsafe)
    if tensors is None:
        raise CheckpointError(f"{folder} has {ADAPTER_CONFIG} but no adapter_model.safetensors")
    check_start(config, folder)
    adapter = Adapter(tensors, config, folder)
    base = hub_folder(named, weights=True, revision=revision)
    check_links(base)
    weights = read_weights(base, unsafe=unsafe)
    if weights is None:
        raise CheckpointError(f"{base}, the base of the adapter, holds no model.safetensors or pytorch_model.bin")
    at = f"@{revision}" if revision and not notes else ""
    return Checkpoint(f"PEFT adapter on {named}{at}", str(base), weights, [folder, base], adapter, notes)


def _model(folder: Path, unsafe: bool) -> Checkpoint | None:
    tensors = read_weights(folder, unsafe=unsafe)
    if tensors is None:
        return None
    notes = []
    if (folder / "critic").is_dir():
        notes.append("the critic is not part of the model, and was left")
    if find_zero(folder):
        notes.append("the ZeRO checkpoint beside the model was left; pass its folder itself for its float32 weights")
    return Checkpoint("model folder", str(folder), tensors, [folder], notes=notes)


def _zero(folder: Path, unsafe: bool) -> Checkpoint | None:
    inner = find_zero(folder)
    if inner is None:
        return None
    stage, world, tensors = read_zero(inner, unsafe)
    places = [inner, inner.parent, inner.parent.parent]
    return Checkpoint(f"DeepSpeed ZeRO-{stage}, world size {world}", str(inner), tensors, places)


def hub_folder(model: str | os.PathLike[str], weights: bool = False, revision: str | None = None) -> Path:
    """A folder, or the local copy of a model on the Hub (`id`, `id@revision`): its small files, and with `weights` those."""
    if os.path.isdir(model):
        return Path(model)
    from huggingface_hub import snapshot_download

    name, _, given = str(model).partition("@")
    patterns = [*SIDE_FILES, *(("model*.safetensors", "model.safetensors.index.json") if weights else ())]
    try:
        revision = given or revision
        if revision is not None and (not isinstance(revision, str) or ".." in revision or revision.startswith("/")):
            raise ValueError(f"{revision!r} is no revision")  # it would become a path of the cache
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
        # Pickles are had only where there are no safetensors.
        if weights and not any((folder / f"model.safetensors{end}").exists() for end in ("", ".index.json")):
            patterns = ["pytorch_model*.bin", "pytorch_model.bin.index.json"]
            folder = Path(snapshot_download(name, revision=folder.name, allow_patterns=patterns))
    except Exception as error:  # the Hub's errors, of several libraries
        reason = " ".join(str(error).split())[:160]
        raise CheckpointError(f"{model} is no folder, and could not be had from the Hub: {reason}") from error
    return folder

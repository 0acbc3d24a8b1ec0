"""DeepSpeed's ZeRO-1, -2 and -3 checkpoints: float32 weights, put together from the partitions of the optimizer.

`zero_to_fp32`, which DeepSpeed puts beside them, unpickles freely and holds the whole model; it is not used.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.pickles import DEEPSPEED, load_torch
from hf_factuality.checkpoints.tensors import Assembled, piece_of, whole
from hf_factuality.errors import CheckpointError


_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_RANK = re.compile(r"rank_(\d+)")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def find_zero(folder: Path) -> Path | None:
    """Folder of the partitions: the given one, or the one inside it that `latest` names.

    Raises:
        `CheckpointError`: `latest` names a folder that is not there, or there are several and no `latest`.
    """
    if any(_OPTIMIZER.fullmatch(path.name) for path in folder.iterdir()):
        return folder
    inside = [
        path
        for path in folder.iterdir()
        if path.is_dir() and any(_OPTIMIZER.fullmatch(file.name) for file in path.iterdir())
    ]
    latest = folder / "latest"
    if latest.is_file() and (inside or not any(folder.glob("*.safetensors"))):
        tag = latest.read_text(encoding="utf-8", errors="replace").strip()
        if folder / tag in inside:
            return folder / tag
        raise CheckpointError(f"{latest} names {tag!r}, which holds no ZeRO checkpoint; pass the right folder itself")
    if len(inside) > 1:
        names = ", ".join(sorted(path.name for path in inside))
        raise CheckpointError(f"{folder} holds several ZeRO checkpoints ({names}); pass one of them")
    return inside[0] if inside else None


def read_zero(folder: Path, unsafe: bool = False) -> tuple[int, int, dict[str, Assembled]]:
    """The weights of a ZeRO checkpoint, mapped.

    Args:
        folder (`Path`):
            Of the partitions.
        unsafe (`bool`, *optional*, defaults to `False`):
            See [`load_torch`].

    Returns:
        `tuple`: stage, world size, and the tensors by name.

    Raises:
        `CheckpointError`: a partition is missing, or a file cannot be read.
    """
    parts = _by_rank(folder, _OPTIMIZER)
    states = {rank: _load(path, unsafe) for rank, path in parts.items()}
    first = _optimizer(next(iter(states.values())), folder)
    stage, count = int(_plain(first["zero_stage"])), first.get("partition_count", len(parts))
    world = max(count) if isinstance(count, (list, tuple)) else int(count)
    missing = list(islice((rank for rank in range(world) if rank not in parts), 8))
    if missing or len(parts) != world:
        raise CheckpointError(
            f"{folder} has {len(parts)} of {world} files *_optim_states.pt"
            + (f"; missing: rank {', '.join(map(str, missing))}" if missing else "")
            + ". Each node wrote its own: copy all of them here"
        )
    groups = []
    for rank in range(world):
        state = _optimizer(states[rank], parts[rank])
        if int(_plain(state["zero_stage"])) != stage or state.get("partition_count") != first.get("partition_count"):
            raise CheckpointError(f"{parts[rank]} is of another run than the other partitions")
        flat = state.get("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups")
        if flat is None:
            raise CheckpointError(
                f"{parts[rank]} holds no float32 weights; it is of a ZeRO version that is not known here"
            )
        groups.append([flat] if isinstance(flat, torch.Tensor) else list(flat))
    _check_copies(groups, list(parts.values()))
    models = [_load(path, unsafe) for _, path in sorted(_by_rank(folder, _MODEL).items())]
    if not models or (stage == 3 and len(models) != world):
        raise CheckpointError(f"{folder} has {len(models)} of {world if stage == 3 else 1} files *_model_states.pt")
    shapes = models[0].get("param_shapes")
    if shapes is None:
        raise CheckpointError(f"{folder}: the model states do not name their parameters; they are no ZeRO checkpoint")
    buffers = set(models[0].get("buffer_names") or ())
    tensors = {
        name: whole(value)
        for name, value in (models[0].get("module") or {}).items()
        if name in buffers and isinstance(value, torch.Tensor)
    }
    tensors |= _frozen(models, world, stage)
    read = _stage3 if stage == 3 else _stage2
    tensors |= read(folder, [dict(group) for group in shapes], groups, first.get("param_alignment_paddings"))
    if stage < 3:  # frozen weights that are in no list of their own, as stage 1 leaves them
        for name, value in (models[0].get("module") or {}).items():
            if isinstance(value, torch.Tensor) and name not in (models[0].get("shared_params") or {}):
                tensors.setdefault(name, whole(value))
    for alias, name in (models[0].get("shared_params") or {}).items():
        if name in tensors:
            tensors[alias] = tensors[name]
    return stage, world, tensors


def _load(path: Path, unsafe: bool) -> Any:
    found = load_torch(path, DEEPSPEED, unsafe)
    with zipfile.ZipFile(path) as archive:
        saved = archive.namelist()[0].partition("/")[0]
    # Torch writes a file's first name into it, and nothing else says of which rank a partition is.
    if (ranks := _RANK.findall(saved)) and ranks != _RANK.findall(path.stem):
        raise CheckpointError(f"{path} was saved as {ascii(saved)}: it is the file of another rank; copy them again")
    return found


def _check_copies(groups: list[list[torch.Tensor]], paths: list[Path]) -> None:
    """Raise if two files hold the same partition: nothing in a partition says of which rank it is."""
    seen: dict[bytes, int] = {}
    for rank, buffers in enumerate(groups):
        parts = [
            buffer.detach().reshape(-1)[:: max(1, buffer.numel() // 1024)] for buffer in buffers if buffer.numel()
        ]
        sample = torch.cat(parts) if parts else torch.empty(0)
        if len(sample.unique()) < 2:  # ones and zeros of norms and padding are everywhere the same
            continue
        other = seen.setdefault(sample.float().numpy().tobytes(), rank)
        if other != rank and all(map(torch.equal, groups[other], buffers)):
            raise CheckpointError(
                f"{paths[rank]} holds the same partition as {paths[other].name}; copy it again from its node"
            )


def _by_rank(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    found = {}
    for path in folder.iterdir():
        if match := pattern.fullmatch(path.name):
            if int(match[2]):
                raise CheckpointError(f"{folder} is split by tensor parallelism ({path.name}), which is not supported")
            rank = int(match[1] or 0)
            if rank in found:
                raise CheckpointError(
                    f"{folder} has {found[rank].name} and {path.name}, which are the same rank of two runs; take one away"
                )
            found[rank] = path
    return dict(sorted(found.items()))


def _optimizer(state: Any, path: Path) -> Mapping[str, Any]:
    found = state.get("optimizer_state_dict") if isinstance(state, Mapping) else None
    if not isinstance(found, Mapping) or "zero_stage" not in found:
        raise CheckpointError(f"{path} is no partition of a ZeRO optimizer")
    return found


def _plain(value: Any) -> Any:
    """The number of an enumeration's member, which stands as a record with the number as its argument."""
    return value.args[0] if hasattr(value, "args") else value


def _flat(shape: Sequence[int], parts: Sequence[tuple[torch.Tensor, int, int]]) -> Assembled:
    """A tensor whose elements follow one another in slices of flat buffers: buffer, start and stop."""
    size, pieces, place = math.prod(shape), [], 0
    for buffer, start, stop in parts:
        stop = min(stop, start + size - place)  # the rest is padding
        if stop > start:
            pieces.append(piece_of(buffer[start:stop], (((place, place + stop - start),),)))
            place += stop - start
    identity = tuple((buffer.data_ptr(), start) for buffer, start, _ in parts)
    return Assembled(tuple(shape), parts[0][0].dtype if parts else torch.float32, pieces, (size,), identity)


def _between(buffers: Sequence[torch.Tensor], start: int, stop: int) -> list[tuple[torch.Tensor, int, int]]:
    """Elements `start` to `stop` of buffers that follow one another, as slices of each."""
    found, passed = [], 0
    for buffer in buffers:
        low, high = max(start - passed, 0), min(stop - passed, buffer.numel())
        if high > low:
            found.append((buffer, low, high))
        passed += buffer.numel()
    return found


def _stage2(folder: Path, shapes: list[dict], groups: list[list[torch.Tensor]], paddings: Any) -> dict[str, Assembled]:
    """Parameters of a group follow one another in a flat buffer, of which every process has a slice."""
    if any(len(group) != len(shapes) for group in groups):
        raise CheckpointError(f"{folder}: {len(shapes)} groups of parameters, but partitions of {len(groups[0])}")
    tensors: dict[str, Assembled] = {}
    for number, named in enumerate(shapes):
        buffers = [group[number] for group in groups]
        offset = 0
        padding = list(paddings[number]) if paddings is not None else [0] * len(named)
        for (name, shape), gap in zip(named.items(), padding, strict=True):
            size = math.prod(shape)
            tensors[name] = _flat(shape, _between(buffers, offset, offset + size))
            _check(folder, name, tensors[name])
            offset += size + int(gap)
        # Some padding at the end makes it a multiple of twice the world size.
        left = sum(buffer.numel() for buffer in buffers) - offset
        if not 0 <= left <= 4 * len(groups):
            raise CheckpointError(
                f"{folder}: the parameters leave {left} elements of a partition over; it is of another run"
            )
    return tensors


def _stage3(folder: Path, shapes: list[dict], groups: list[list[torch.Tensor]], _: Any) -> dict[str, Assembled]:
    """Every parameter is cut into equal parts, one per process, the last padded."""
    tensors: dict[str, Assembled] = {}
    offset = 0
    for name, shape in ((name, shape) for named in shapes for name, shape in named.items()):
        part = -(-math.prod(shape) // len(groups))
        parts = [slice_ for buffers in groups for slice_ in _between(buffers, offset, offset + part)]
        tensors[name] = _flat(shape, parts)
        _check(folder, name, tensors[name])
        offset += part
    for rank, buffers in enumerate(groups):
        if (held := sum(buffer.numel() for buffer in buffers)) != offset:
            raise CheckpointError(f"{folder}: rank {rank} holds {held} elements where the parameters need {offset}")
    return tensors


def _frozen(models: list[Mapping[str, Any]], world: int, stage: int) -> dict[str, Assembled]:
    """Parameters without an optimizer state: whole, or under stage 3 in one part per process."""
    tensors: dict[str, Assembled] = {}
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        owners = models if stage == 3 else models[:1]
        if any(name not in (model.get("frozen_param_fragments") or {}) for model in owners):
            raise CheckpointError(
                f"a file *_model_states.pt lacks its part of the frozen {name!r}; it is of another run"
            )
        parts = [model["frozen_param_fragments"][name].reshape(-1) for model in owners]
        tensors[name] = _flat(shape, [(part, 0, part.numel()) for part in parts])
    return tensors


def _check(folder: Path, name: str, tensor: Assembled) -> None:
    held = sum(math.prod(piece.shape) for piece in tensor.pieces)
    if held != math.prod(tensor.shape):
        raise CheckpointError(
            f"{folder}: the partitions hold {held} of the {math.prod(tensor.shape)} elements of {name!r}"
        )

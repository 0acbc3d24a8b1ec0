"""DeepSpeed's ZeRO-1, -2 and -3 checkpoints: float32 weights, put together from the partitions of the optimizer.

`zero_to_fp32`, which DeepSpeed puts beside them, unpickles freely and holds the whole model; it is not used.
"""

from __future__ import annotations

import math
import re
import zipfile
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.pickles import DEEPSPEED, checked_tensor, load_torch, stored_tensor
from hf_factuality.checkpoints.tensors import TensorPiece, TensorSource, assembled
from hf_factuality.errors import CheckpointError


_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_RANK = re.compile(r"rank_(\d+)")
_MODEL = re.compile(r"(?:zero_pp_rank_(\d+)_)?mp_rank_(\d+)_model_states\.pt")


def find_zero(folder: Path) -> Path | None:
    """Folder of the partitions: the given one, or the one inside it that `latest` names; `None` without any."""
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


def read_zero(folder: Path, unsafe: bool = False) -> tuple[int, int, dict[str, TensorSource]]:
    """Stage, world size, and the weights by name."""
    paths = _by_rank(folder, _OPTIMIZER)
    states = {rank: _optimizer(_load(path, unsafe), path) for rank, path in paths.items()}
    first = next(iter(states.values()))
    stage, count = int(_plain(first["zero_stage"])), first.get("partition_count", len(paths))
    world = max(count) if isinstance(count, (list, tuple)) else int(count)
    missing = list(islice((rank for rank in range(world) if rank not in paths), 8))
    if missing or len(paths) != world:
        raise CheckpointError(
            f"{folder} has {len(paths)} of {world} files *_optim_states.pt"
            + (f"; missing: rank {', '.join(map(str, missing))}" if missing else "")
            + ". Each node wrote its own: copy all of them here"
        )
    groups: list[list[torch.Tensor]] = []
    for rank, state in states.items():
        if int(_plain(state["zero_stage"])) != stage or state.get("partition_count") != first.get("partition_count"):
            raise CheckpointError(f"{paths[rank]} is of another run than the other partitions")
        flat = state.get("fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups")
        if flat is None:
            raise CheckpointError(
                f"{paths[rank]} holds no float32 weights; it is of a ZeRO version that is not known here"
            )
        groups.append([part.detach().reshape(-1) for part in ([flat] if isinstance(flat, torch.Tensor) else flat)])
    _check_copies(groups, list(paths.values()))
    models = [_load(path, unsafe) for path in _by_rank(folder, _MODEL).values()]
    if not models or (stage == 3 and len(models) != world):
        raise CheckpointError(f"{folder} has {len(models)} of {world if stage == 3 else 1} files *_model_states.pt")
    model = models[0]
    if model.get("param_shapes") is None:
        raise CheckpointError(f"{folder}: the model states do not name their parameters; they are no ZeRO checkpoint")
    shapes, shared = [dict(group) for group in model["param_shapes"]], model.get("shared_params") or {}
    module = model.get("module") or {}
    found = {name: stored_tensor(value) for name, value in module.items() if isinstance(value, torch.Tensor)}
    tensors = {name: found[name] for name in model.get("buffer_names") or () if name in found}
    tensors |= _frozen(folder, models if stage == 3 else models[:1])
    if stage == 3:
        tensors |= _stage3(folder, shapes, groups)
    else:
        tensors |= _stage2(folder, shapes, groups, first.get("param_alignment_paddings"))
        # Frozen weights that are in no list of their own, as stage 1 leaves them.
        tensors |= {name: source for name, source in found.items() if name not in shared and name not in tensors}
    return stage, world, tensors | {alias: tensors[name] for alias, name in shared.items() if name in tensors}


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
        sample = (
            torch.cat([buffer[:: max(1, len(buffer) // 1024)] for buffer in buffers]) if buffers else torch.empty(0)
        )
        if len(sample.unique()) < 2:  # ones and zeros of norms and padding are everywhere the same
            continue
        other = seen.setdefault(sample.float().numpy().tobytes(), rank)
        if other != rank and all(map(torch.equal, groups[other], buffers)):
            raise CheckpointError(
                f"{paths[rank]} holds the same partition as {paths[other].name}; copy it again from its node"
            )


def _by_rank(folder: Path, pattern: re.Pattern[str]) -> dict[int, Path]:
    found: dict[int, Path] = {}
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


def _flat(folder: Path, name: str, shape: Sequence[int], parts: Sequence[torch.Tensor]) -> TensorSource:
    """A tensor whose elements follow one another in parts of flat buffers; what is left of those is padding."""
    size, pieces, place = math.prod(shape), [], 0
    for part in parts:
        part = part[: size - place]
        if len(part):
            pieces.append(TensorPiece(partial(checked_tensor, part), (((place, place + len(part)),),)))
            place += len(part)
    if place != size:
        raise CheckpointError(f"{folder}: the partitions hold {place} of the {size} elements of {name!r}")
    dtype = parts[0].dtype if parts else torch.float32
    return assembled(shape, dtype, pieces, layout=(size,))


def _between(buffers: Sequence[torch.Tensor], start: int, stop: int) -> list[torch.Tensor]:
    """Elements `start` to `stop` of buffers that follow one another, as slices of each."""
    found, passed = [], 0
    for buffer in buffers:
        found.append(buffer[max(start - passed, 0) : max(stop - passed, 0)])
        passed += len(buffer)
    return [part for part in found if len(part)]


def _stage2(
    folder: Path, shapes: list[dict], groups: list[list[torch.Tensor]], paddings: Any
) -> dict[str, TensorSource]:
    """Parameters of a group follow one another in a flat buffer, of which every process has a slice."""
    if any(len(group) != len(shapes) for group in groups):
        raise CheckpointError(f"{folder}: {len(shapes)} groups of parameters, but partitions of {len(groups[0])}")
    tensors: dict[str, TensorSource] = {}
    for number, named in enumerate(shapes):
        buffers = [group[number] for group in groups]
        offset = 0
        padding = list(paddings[number]) if paddings is not None else [0] * len(named)
        for (name, shape), gap in zip(named.items(), padding, strict=True):
            size = math.prod(shape)
            tensors[name] = _flat(folder, name, shape, _between(buffers, offset, offset + size))
            offset += size + int(gap)
        # Some padding at the end makes it a multiple of twice the world size.
        left = sum(map(len, buffers)) - offset
        if not 0 <= left <= 4 * len(groups):
            raise CheckpointError(
                f"{folder}: the parameters leave {left} elements of a partition over; it is of another run"
            )
    return tensors


def _stage3(folder: Path, shapes: list[dict], groups: list[list[torch.Tensor]]) -> dict[str, TensorSource]:
    """Every parameter is cut into equal parts, one per process, the last padded."""
    tensors: dict[str, TensorSource] = {}
    offset = 0
    for name, shape in chain.from_iterable(named.items() for named in shapes):
        size = -(-math.prod(shape) // len(groups))
        parts = [part for buffers in groups for part in _between(buffers, offset, offset + size)]
        tensors[name] = _flat(folder, name, shape, parts)
        offset += size
    for rank, buffers in enumerate(groups):
        if (held := sum(map(len, buffers))) != offset:
            raise CheckpointError(f"{folder}: rank {rank} holds {held} elements where the parameters need {offset}")
    return tensors


def _frozen(folder: Path, models: Sequence[Mapping[str, Any]]) -> dict[str, TensorSource]:
    """Parameters without an optimizer state: whole, or under stage 3 in one part per process."""
    tensors: dict[str, TensorSource] = {}
    for name, shape in (models[0].get("frozen_param_shapes") or {}).items():
        parts = [(model.get("frozen_param_fragments") or {}).get(name) for model in models]
        if any(part is None for part in parts):
            raise CheckpointError(
                f"a file *_model_states.pt lacks its part of the frozen {name!r}; it is of another run"
            )
        tensors[name] = _flat(folder, name, shape, [part.reshape(-1) for part in parts])
    return tensors

"""Rank files of FSDP: `model_world_size_W_rank_R.pt`, as verl and plain FSDP2 scripts write them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.pickles import DTENSOR, Record, SavedDTensor, checked_tensor, load_torch, stored_tensor
from hf_factuality.checkpoints.tensors import Interval, TensorPiece, TensorSource, assembled, check_cover
from hf_factuality.errors import CheckpointError


_RANK_FILE = re.compile(r"model_world_size_(\d+)_rank_(\d+)\.pt")


def find_ranks(folder: Path) -> list[Path]:
    """The rank files of a folder, by rank; none may be missing, and all are of one world size."""
    named = {path: _RANK_FILE.fullmatch(path.name) for path in folder.iterdir()}
    found = {path: (int(match[1]), int(match[2])) for path, match in named.items() if match}
    if not found:
        return []
    worlds = Counter(world for world, _ in found.values())
    if len(worlds) > 1:
        counts = ", ".join(f"{count} of world size {world}" for world, count in sorted(worlds.items()))
        raise CheckpointError(f"{folder} has rank files of several world sizes ({counts}); move all but one set away")
    (world,) = worlds
    ranks = {rank: path for path, (_, rank) in found.items()}
    missing = list(islice((rank for rank in range(world) if rank not in ranks), 9))
    if missing:
        names = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        raise CheckpointError(
            f"{folder} has {len(ranks)} of {world} rank files; missing: rank {names}. Each node wrote its own: copy all of "
            "them here"
        )
    if spare := [path.name for rank, path in ranks.items() if rank >= world]:
        raise CheckpointError(f"{folder} has {spare[0]}, whose rank is not below its world size")
    return [ranks[rank] for rank in range(world)]


def read_ranks(paths: Sequence[Path], unsafe: bool = False) -> dict[str, TensorSource]:
    """The tensors of all rank files, by name."""
    states = [_state_dict(load_torch(path, DTENSOR, unsafe), path) for path in paths]
    for path, state in zip(paths, states, strict=True):
        if odd := sorted(states[0].keys() ^ state.keys()):
            raise CheckpointError(
                f"{path.name} and {paths[0].name} are not of one run: only one of them has {odd[0]!r} ({len(odd)} such names)"
            )
    return {name: _assemble(name, [state[name] for state in states], paths) for name in states[0]}


def _state_dict(saved: Any, path: Path) -> dict[str, torch.Tensor]:
    for key in ("model", "state_dict", "module", "model_state_dict"):
        if isinstance(saved, Mapping) and isinstance(saved.get(key), Mapping):
            saved = saved[key]
    if not isinstance(saved, Mapping) or not any(isinstance(value, torch.Tensor) for value in saved.values()):
        raise CheckpointError(f"{path} holds no state dict, but {type(saved).__name__}")
    return {str(name): value for name, value in saved.items() if isinstance(value, torch.Tensor)}


def _assemble(name: str, parts: Sequence[torch.Tensor], paths: Sequence[Path]) -> TensorSource:
    kinds = {isinstance(part, SavedDTensor) for part in parts}
    if kinds == {False}:  # each rank has it whole (a buffer, world size 1), or the shapes will not match the model's
        if len({(part.shape, part.dtype) for part in parts}) > 1:
            raise CheckpointError(
                f"{name!r} has shape {list(parts[0].shape)} in {paths[0].name} and another elsewhere, and nothing says "
                "how the parts belong together; save DTensors (FSDP2), or with torch.distributed.checkpoint"
            )
        return stored_tensor(parts[0])
    if kinds != {True}:
        raise CheckpointError(f"{name!r} is sharded in some rank files and not in others; they are not of one run")
    specs = [part._spec for part in parts]
    shapes = {tuple(map(int, spec.tensor_meta.args[0])) for spec in specs}
    layouts = {(_mesh_shape(spec.mesh), _placements(name, spec.placements)) for spec in specs}
    if len(shapes) > 1 or len(layouts) > 1 or len({part._local_tensor.dtype for part in parts}) > 1:
        raise CheckpointError(
            f"{name!r} has another shape, dtype or sharding from file to file; they are not of one run"
        )
    ((shape,), ((mesh, placements),)) = shapes, layouts
    locals_ = [part._local_tensor for part in parts]
    pieces: dict[Any, TensorPiece] = {}
    for rank, (local, spec, path) in enumerate(zip(locals_, specs, paths, strict=True)):
        intervals = _held(shape, mesh, placements, _coordinate(spec.mesh, mesh, rank))
        held = tuple(sum(stop - start for start, stop in dim) for dim in intervals)
        if tuple(local.shape) != held and (local.numel() or math.prod(held)):
            raise CheckpointError(
                f"{path.name} holds {list(local.shape)} of {name!r}, but its place in the mesh makes it {list(held)}"
            )
        if math.prod(held):  # replicas are equal: the first is read
            pieces.setdefault(intervals, TensorPiece(partial(checked_tensor, local), intervals))
    check_cover(name, shape, list(pieces.values()), "shards")
    return assembled(shape, locals_[0].dtype, list(pieces.values()))


def _placements(name: str, placements: Sequence[Any]) -> tuple[tuple[str, int, int], ...]:
    """Kind, dimension and split factor of every placement."""
    found = []
    for placement in placements:
        kind = type(placement).__name__
        if kind not in ("Shard", "_StridedShard", "Replicate"):
            raise CheckpointError(
                f"{name!r} is saved as {kind}: a sum that was never taken; save it after redistribute() to Shard or Replicate"
            )
        given = vars(placement)
        positional = given.get("args") or ()
        dim = given.get("dim", positional[0] if positional else 0)
        factor = given.get("split_factor", given.get("sf", positional[1] if len(positional) > 1 else 1))
        found.append((kind, 0 if kind == "Replicate" else int(dim), int(factor)))
    return tuple(found)


def _mesh_shape(mesh: Record) -> tuple[int, ...]:
    for key in ("mesh", "_mesh"):
        if isinstance(getattr(mesh, key, None), torch.Tensor):
            return tuple(getattr(mesh, key).shape)
    layout = getattr(mesh, "_layout", None)
    axes = getattr(layout, "axes", None)
    if axes is not None:
        return tuple(_size(axis.shape) for axis in axes)
    shape = getattr(layout, "shape", None)
    if shape is None:
        raise CheckpointError(
            "the device mesh of the shards is of a version of torch that is not known here; update this package"
        )
    return tuple(_size(size) for size in (shape if isinstance(shape, tuple) else (shape,)))


def _size(shape: Any) -> int:
    return math.prod(_size(part) for part in shape) if isinstance(shape, tuple) else int(shape)


def _coordinate(mesh: Record, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Place of the process that wrote a file in its mesh."""
    saved = getattr(mesh, "_coordinate_on_dim", None)
    if saved is not None and len(saved) == len(shape):
        return tuple(int(number) for number in saved)
    for key in ("mesh", "_mesh"):
        ranks = getattr(mesh, key, None)
        if isinstance(ranks, torch.Tensor) and len(found := (checked_tensor(ranks) == rank).nonzero()) == 1:
            return tuple(found[0].tolist())
    if math.prod(shape) == 1:
        return (0,) * len(shape)
    raise CheckpointError(f"the shards of rank {rank} do not say where in the device mesh they belong")


def _held(
    shape: Sequence[int], mesh: Sequence[int], placements: Sequence[tuple[str, int, int]], place: Sequence[int]
) -> tuple[tuple[Interval, ...], ...]:
    """Intervals of every dimension that a process holds: each mesh dimension splits what the ones before have left."""
    intervals: list[tuple[Interval, ...]] = [((0, size),) for size in shape]
    for count, (kind, dim, factor), index in zip(mesh, placements, place, strict=True):
        if kind == "Shard":
            intervals[dim] = _chunk(intervals[dim], count, index)
        elif kind == "_StridedShard":
            if factor > shape[dim]:
                raise CheckpointError(f"a placement splits {shape[dim]} rows by {factor}")
            outer = [_chunk(intervals[dim], factor, number) for number in range(factor)]
            intervals[dim] = tuple(part for chunk in outer for part in _chunk(chunk, count, index))
    return tuple(intervals)


def _chunk(intervals: tuple[Interval, ...], count: int, index: int) -> tuple[Interval, ...]:
    """Chunk `index` of `count`, as `torch.chunk` cuts: all of the rounded-up size, the last shorter or empty."""
    length = sum(stop - start for start, stop in intervals)
    size = -(-length // count)
    low, high = min(index * size, length), min((index + 1) * size, length)
    found, passed = [], 0
    for start, stop in intervals:
        first, last = max(start, start + low - passed), min(stop, start + high - passed)
        if last > first:
            found.append((first, last))
        passed += stop - start
    return tuple(found) or ((0, 0),)

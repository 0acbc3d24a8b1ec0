"""Torch distributed checkpoints: `.metadata` and `*.distcp`, as accelerate, FSDP and `torch.distributed.checkpoint` write."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.pickles import Record, checked_tensor, load_records, load_torch, reading
from hf_factuality.checkpoints.tensors import TensorPiece, TensorSource, assembled, check_cover
from hf_factuality.errors import CheckpointError


METADATA = ".metadata"
_OF_METADATA = ("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata")
_CLASSES = (
    *(f"torch.distributed.checkpoint.metadata.{name}" for name in _OF_METADATA),
    *(
        f"torch.distributed.checkpoint.metadata.{name}"
        for name in ("TensorProperties", "StorageMeta", "_MEM_FORMAT_ENCODING")
    ),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    *(
        f"torch.distributed._shard.sharded_tensor.metadata.{name}"
        for name in ("TensorProperties", "MEM_FORMAT_ENCODING")
    ),
    "torch.distributed._shard.metadata.ShardMetadata",
    *(f"pathlib.{name}" for name in ("PosixPath", "PurePosixPath", "WindowsPath", "_local.PosixPath")),
)


def read_dcp(folder: Path) -> dict[str, TensorSource]:
    """The tensors of a torch distributed checkpoint by the names in it, an optimizer's too; no file of them is opened yet."""
    metadata = load_records(folder / METADATA, _CLASSES)
    tensors = getattr(metadata, "state_dict_metadata", None)
    storage = getattr(metadata, "storage_data", None)
    if not isinstance(tensors, Mapping) or not isinstance(storage, Mapping):
        raise CheckpointError(f"{folder / METADATA} is no index of a torch distributed checkpoint")
    with reading(folder / METADATA):
        _check_apart(storage.values())
        places = {(str(key.fqn), _offset(key)): info for key, info in storage.items()}
        sizes: dict[str, int] = {}
        return {
            str(name): _assemble(folder, name, saved, places, sizes)
            for name, saved in tensors.items()
            if hasattr(saved, "chunks")
        }


def _check_apart(infos: Iterable[Record]) -> None:
    """Raise if two entries share bytes: only one of them can be right."""
    spans = sorted((info.relative_path, info.offset, info.offset + info.length) for info in infos if info.length)
    for (path, _, stop), (next_path, start, _) in pairwise(spans):
        if path == next_path and start < stop:
            raise CheckpointError(f"two entries lie at byte {start} of {path}; the index is damaged")


def _offset(key: Record) -> tuple[int, ...]:
    offset = getattr(key, "offset", None)
    return tuple(map(int, offset)) if offset is not None else ()


def _assemble(
    folder: Path, name: str, saved: Record, places: Mapping[Any, Record], sizes: dict[str, int]
) -> TensorSource:
    properties = saved.properties
    dtype = properties.state[0] if hasattr(properties, "state") else properties.dtype
    shape = tuple(map(int, saved.size))
    pieces = []
    for chunk in saved.chunks:
        offsets, lengths = tuple(map(int, chunk.offsets)), tuple(map(int, chunk.sizes))
        info = places.get((name, offsets))
        if info is None:
            raise CheckpointError(f"{folder / METADATA} does not say where the part of {name!r} at {list(offsets)} is")
        if getattr(info, "transform_descriptors", None):
            raise CheckpointError(f"{folder} is compressed ({info.transform_descriptors[0]}), which is not supported")
        if not math.prod(lengths):
            continue
        _check_file(folder, info, sizes)
        intervals = tuple((start, start + length) for start, length in zip(offsets, lengths, strict=True))
        read = partial(_chunk, folder / info.relative_path, info, name, dtype, lengths)
        pieces.append(TensorPiece(read, tuple((interval,) for interval in intervals)))
    check_cover(name, shape, pieces, "chunks")
    return assembled(shape, dtype, pieces)


def _check_file(folder: Path, info: Record, sizes: dict[str, int]) -> None:
    path = folder / info.relative_path
    if info.relative_path not in sizes:
        # Links have been checked before.
        if os.path.isabs(info.relative_path) or ".." in Path(info.relative_path).parts:
            raise CheckpointError(
                f"{folder / METADATA} names the file {info.relative_path!r}, which is outside of the folder"
            )
        if not path.is_file():
            raise CheckpointError(
                f"{folder} lacks {info.relative_path}, which its index names; each node wrote its own: copy all of them here"
            )
        sizes[info.relative_path] = path.stat().st_size
    if info.offset + info.length > sizes[info.relative_path]:
        raise CheckpointError(f"{path} is cut off; copy it again from where it was written")


def _chunk(path: Path, info: Record, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor that `torch.save` wrote inside a larger file, mapped."""
    saved = load_torch(path, start=info.offset, length=info.length)
    if not isinstance(saved, torch.Tensor) or tuple(saved.shape) != shape or saved.dtype != dtype:
        raise CheckpointError(f"{path} does not hold the part of {name!r} that the index promises")
    return checked_tensor(saved)

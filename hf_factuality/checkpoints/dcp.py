"""Torch distributed checkpoints: `.metadata` and `*.distcp`, as accelerate, FSDP and `torch.distributed.checkpoint` write."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.pickles import Record, load_header, load_records, members, reading
from hf_factuality.checkpoints.tensors import Assembled, Piece, check_cover
from hf_factuality.errors import CheckpointError


METADATA = ".metadata"
_METADATA = "torch.distributed.checkpoint.metadata"
_CLASSES = (
    *(
        f"{_METADATA}.{name}"
        for name in (
            "Metadata",
            "MetadataIndex",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed._shard.metadata.ShardMetadata",
    "pathlib.PosixPath",
    "pathlib.PurePosixPath",
    "pathlib.WindowsPath",
    "pathlib._local.PosixPath",
)


def read_dcp(folder: Path) -> dict[str, Assembled]:
    """The tensors of a torch distributed checkpoint, none of them read.

    Args:
        folder (`Path`):
            With `.metadata`, which is written last: without it the checkpoint is not whole.

    Returns:
        `dict[str, Assembled]`: by the names in the checkpoint, an optimizer's too.

    Raises:
        `CheckpointError`: a file is missing, cut off or of another kind.
    """
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
) -> Assembled:
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
        part = _Chunk(folder / info.relative_path, info.offset, info.length, name, dtype, lengths)
        pieces.append(Piece(part.rows, tuple((interval,) for interval in intervals) or (((0, 1),),)))
    found = Assembled(shape, dtype, tuple(pieces))
    check_cover(name, found, "chunks")
    return found


def _check_file(folder: Path, info: Record, sizes: dict[str, int]) -> None:
    path = folder / info.relative_path
    if info.relative_path not in sizes:
        if (
            os.path.isabs(info.relative_path) or ".." in Path(info.relative_path).parts
        ):  # links have been checked before
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


class _Slice(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, path: Path, start: int, length: int):
        self.file = path.open("rb", buffering=0)
        self.start, self.length, self.place = start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self.place, os.SEEK_END: self.length}[whence]
        self.place = max(0, base + offset)
        return self.place

    def readinto(self, buffer) -> int:
        count = max(0, min(len(buffer), self.length - self.place))
        self.file.seek(self.start + self.place)
        read = self.file.readinto(memoryview(buffer)[:count]) or 0
        self.place += read
        return read

    def close(self) -> None:
        self.file.close()
        super().close()


class _Chunk:
    """A tensor that `torch.save` wrote inside a larger file; rows of it are read on demand."""

    def __init__(self, path: Path, start: int, length: int, name: str, dtype: torch.dtype, shape: tuple[int, ...]):
        self.path, self.start, self.length, self.name = path, start, length, name
        self.dtype, self.shape = dtype, shape or (1,)
        self.found: tuple[int, tuple[int, ...]] | None = None

    def rows(self, start: int, stop: int) -> torch.Tensor:
        try:
            return self._rows(start, stop)
        except OSError as error:  # of the input; the caller has a file open too
            raise CheckpointError(f"{self.path} cannot be read: {error.strerror or error}") from error

    def _rows(self, start: int, stop: int) -> torch.Tensor:
        first, strides = self._place()
        width = math.prod(self.shape[1:])
        row = width * self.dtype.itemsize
        if strides == tuple(math.prod(self.shape[dim + 1 :]) for dim in range(len(self.shape))):
            return self._read(first + start * row, (stop - start) * width).view(stop - start, *self.shape[1:])
        extent = 1 + sum((size - 1) * stride for size, stride in zip(self.shape, strides, strict=True))
        return self._read(first, extent).as_strided(self.shape, strides)[start:stop]

    def _place(self) -> tuple[int, tuple[int, ...]]:
        """Byte of the file at which the tensor starts, and its strides."""
        if self.found is None:
            with reading(self.path), _Slice(self.path, self.start, self.length) as stream:
                parts = members(stream, self.path, self.start)
                stream.seek(0)
                header = load_header(stream)
                if (
                    not isinstance(header, torch.Tensor)
                    or tuple(header.shape or (1,)) != self.shape
                    or header.dtype != self.dtype
                ):
                    raise CheckpointError(
                        f"{self.path} does not hold the part of {self.name!r} that the index promises"
                    )
                storage = header.untyped_storage()
                member = parts[self.start + storage._checkpoint_offset]
                if storage.nbytes() > member.size:
                    raise ValueError("a tensor is longer than its bytes")
                member.check()
            first = member.start + header.storage_offset() * self.dtype.itemsize
            self.found = (first, tuple(header.stride()) or (1,))
        return self.found

    def _read(self, offset: int, count: int) -> torch.Tensor:
        buffer = torch.empty(count * self.dtype.itemsize, dtype=torch.uint8)
        with self.path.open("rb", buffering=0) as file:
            file.seek(offset)
            view = memoryview(buffer.numpy())
            while view:
                read = file.readinto(view)
                if not read:
                    raise CheckpointError(f"{self.path} is cut off; copy it again from where it was written")
                view = view[read:]
        return buffer.view(self.dtype)

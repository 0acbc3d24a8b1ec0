"""Safetensors files written as their bytes arrive, in a folder that gets its name when all of them are there."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_factuality.checkpoints.tensors import Source, as_bytes, has_nan, overflows
from hf_factuality.errors import CheckpointError
from hf_factuality.io.files import sync


INDEX = "model.safetensors.index.json"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPE_NAMES = {name: dtype for dtype, name in _DTYPES.items()}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {f"{unit[0]}IB": 1024**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), start=1)}


@dataclass(frozen=True)
class Entry:
    """A tensor that is to be written: its name and source, and the dtype that it gets."""

    name: str
    source: Source
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        size = self.dtype.itemsize
        for length in self.source.shape:
            size *= length
        return size


def parse_size(value: int | str) -> int:
    """Bytes of a size as `5GB`, `512MiB` or a number.

    Raises:
        `ValueError`: it is no such size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?B?)\s*", str(value).upper())
    size = float(match[1]) * _UNITS[match[2]] if match and match[2] in _UNITS else 0.0
    if not 1 <= size < math.inf:
        raise ValueError(
            f"max_shard_size {str(value)[:40]!r} is no size; write it as 5GB, 512MiB or a number of bytes"
        )
    return int(size)


def plan_shards(entries: Sequence[Entry], max_bytes: int) -> dict[str, list[Entry]]:
    """File names and what each holds, in order; a tensor larger than `max_bytes` has a file of its own."""
    groups: list[list[Entry]] = [[]]
    size = 0
    for entry in entries:
        if groups[-1] and size + entry.nbytes > max_bytes:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.nbytes
    if len(groups) == 1:
        return {"model.safetensors": groups[0]}
    return {f"model-{n:05d}-of-{len(groups):05d}.safetensors": group for n, group in enumerate(groups, start=1)}


def check_dtypes(entries: Sequence[Entry]) -> None:
    """Raise if a tensor has a dtype that safetensors files cannot hold, or no numbers in rows.

    Raises:
        `CheckpointError`: naming the tensor.
    """
    for entry in entries:
        if fault := getattr(entry.source, "fault", None):
            raise CheckpointError(f"{entry.name!r} is {fault}")
        if entry.dtype not in _DTYPES:
            raise CheckpointError(
                f"{entry.name!r} is {entry.dtype}, which cannot be written to safetensors; pass a dtype"
            )


def write_shards(folder: Path, shards: Mapping[str, Sequence[Entry]], advance: Callable[[int], object]) -> None:
    """Write all files; while one is written, the one before it goes to the disk.

    Args:
        folder (`Path`):
            Where they are written.
        shards (`Mapping[str, Sequence[Entry]]`):
            What each file holds, by its name.
        advance (`Callable[[int], object]`):
            Called with the number of bytes after each block.

    Raises:
        `CheckpointError`: see [`write_shard`].
    """
    with ThreadPoolExecutor(1, "merge-sync") as syncer:
        pending = None
        for name, entries in shards.items():
            write_shard(folder / name, entries, advance)
            if pending is not None:
                pending.result()  # so that no more than two files wait for the disk
            pending = syncer.submit(sync, folder / name)
        if pending is not None:
            pending.result()


def write_shard(path: Path, entries: Sequence[Entry], advance: Callable[[int], object]) -> None:
    """Write one file: its header, then the bytes of every tensor, a block at a time.

    Args:
        path (`Path`):
            The file.
        entries (`Sequence[Entry]`):
            What it holds.
        advance (`Callable[[int], object]`):
            Called with the number of bytes after each block.

    Raises:
        `CheckpointError`: a tensor has a NaN, a number that its dtype in the file cannot hold, or fewer elements than its
            shape says.
    """
    ordered = sorted(entries, key=lambda entry: -entry.dtype.itemsize)  # offsets are then multiples of the item size
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in ordered:
        header[entry.name] = {
            "dtype": _DTYPES[entry.dtype],
            "shape": list(entry.source.shape),
            "data_offsets": [offset, offset + entry.nbytes],
        }
        offset += entry.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=0) as file, ThreadPoolExecutor(1, "merge-write") as writer:
        pending = writer.submit(_write, file, memoryview(len(text).to_bytes(8, "little") + text))
        for entry in ordered:
            for data in _checked_blocks(entry):
                pending.result()
                pending = writer.submit(_write, file, data)
                advance(data.nbytes)
                del data
        pending.result()


def _checked_blocks(entry: Entry) -> Iterator[memoryview]:
    written = 0
    for block in entry.source.blocks():
        with _one_thread():
            if has_nan(block):
                raise CheckpointError(
                    f"{entry.name!r} has a NaN; the run had diverged when it was saved: merge an earlier checkpoint"
                )
            cast = block.to(entry.dtype)
            if overflows(block, cast):
                kind = str(entry.dtype).removeprefix("torch.")
                raise CheckpointError(
                    f"{entry.name!r} has a number that {kind} cannot hold (its largest is {torch.finfo(cast.dtype).max:.6g}); "
                    "pass another dtype (--dtype), or none"
                )
            raw = memoryview(as_bytes(cast).numpy())
        written += raw.nbytes
        yield raw
        del block, cast, raw  # or one more would be in memory while the next is made
    if written != entry.nbytes:
        raise CheckpointError(f"{entry.name!r} has {written} bytes, not the {entry.nbytes} of its shape")


@contextmanager
def _one_thread() -> Iterator[None]:
    """Of torch: what only reads memory is no faster with more, and while they wait they hold the core of the one that writes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _write(file, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def write_index(folder: Path, shards: Mapping[str, Sequence[Entry]]) -> None:
    """Write the index of several files; of one there is none."""
    if len(shards) < 2:
        return
    weight_map = {entry.name: name for name, entries in shards.items() for entry in entries}
    total = sum(entry.nbytes for entries in shards.values() for entry in entries)
    content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def check_output(out: Path, nbytes: int) -> None:
    """Raise if `out` cannot become a new folder, or its disk has too little room.

    What a killed process has left of the same `out` counts as free.

    Raises:
        `CheckpointError`: it holds files, is no folder, a link or a mount point, has no name, or `nbytes` are not free.
    """
    if out.name in ("", ".."):
        raise CheckpointError(f"{str(out)!r} is no name for a new folder; pass one that ends in its name")
    if out.is_symlink():
        raise CheckpointError(f"{out} is a link; pass the folder that it leads to, or a new one")
    if os.path.ismount(out):
        raise CheckpointError(f"{out} is a mount point, which cannot be replaced; pass a folder inside it")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise CheckpointError(f"{out} exists and is not an empty folder; remove it or choose another")
    parent = next(folder for folder in out.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise CheckpointError(f"{parent} is no folder, so {out} cannot be made")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise CheckpointError(f"there is no permission to write to {parent}; choose another folder")
    free = shutil.disk_usage(parent).free + _size(_partial(out))
    if free < nbytes:
        raise CheckpointError(f"{out} needs {nbytes / 1e6:,.1f} MB, and its disk has {free / 1e6:,.1f} MB free")


def _partial(out: Path) -> Path:
    return out.parent / f".{out.name}.partial"


def _size(folder: Path) -> int:
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # another process may be at work there
                size += os.lstat(os.path.join(place, name)).st_size
    return size


@contextmanager
def whole_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that is renamed to `out` at the end, or removed if something fails.

    Folders above it that were made for it are then removed too. A process that is killed leaves it behind under a hidden
    name; the next one for the same `out` removes it.

    Raises:
        `CheckpointError`: another process is writing it, the disk is full, or there is no permission.
    """
    folder = _partial(out)
    made: list[Path] = []
    lock, ours = None, False
    try:
        try:
            made += [place for place in (folder, *folder.parents) if not place.exists()]
            out.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir(exist_ok=True)
            lock = _lock(folder, out)
            ours = True
            for left in folder.iterdir():
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield folder
            for entry in folder.rglob("*"):
                sync(entry)
            sync(folder)
            if out.exists():
                out.rmdir()  # an empty folder, as checked before
            folder.rename(out)
        except _Busy:
            raise
        except BaseException:
            if ours:
                shutil.rmtree(folder, ignore_errors=True)
            for place in made:
                with suppress(OSError):  # it is not there, or others have put something into it
                    place.rmdir()
            raise
        try:
            sync(out.parent)
        except OSError as error:
            warnings.warn(f"{out} is whole, but its disk does not confirm its name: {error.strerror or error}")
    except OSError as error:
        raise CheckpointError(_reason(out, error)) from error
    finally:
        if lock is not None:
            os.close(lock)


class _Busy(CheckpointError):
    """Another process holds the folder."""


def _lock(folder: Path, out: Path) -> int | None:
    try:
        import fcntl
    except ImportError:  # not on Windows, where nothing stops two processes
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(handle)
        raise _Busy(f"another process is writing {out}; wait for it, or choose another folder") from error
    return handle


def _reason(out: Path, error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of {out} is full; nothing was left there: make room, or choose another folder"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"there is no permission to write {error.filename or out}; choose another folder"
    return f"{out} could not be written: {error.strerror or error}"

"""A model as safetensors files of bounded size, in a folder that gets its name when all of them are there."""

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
from safetensors import SafetensorError
from safetensors.torch import save_file

from hf_factuality.checkpoints.tensors import WITHOUT_SCALE, TensorSource
from hf_factuality.errors import CheckpointError
from hf_factuality.io.files import sync, umask


INDEX = "model.safetensors.index.json"
_WRITABLE = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
}
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {f"{unit[0]}IB": 1024**power for power, unit in enumerate(("KB", "MB", "GB", "TB"), start=1)}
_READERS = 2  # threads that put tensors together
_LOOK = 2**18  # elements that are looked at together


@dataclass(frozen=True)
class Entry:
    """A tensor that is to be written: its name and source, and the dtype that it gets."""

    name: str
    source: TensorSource
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        return math.prod(self.source.shape) * self.dtype.itemsize


def parse_size(value: int | str) -> int:
    """Bytes of a size as `5GB`, `512MiB` or a number; `ValueError` if it is none."""
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
    """Raise if a tensor has a dtype that safetensors files cannot hold, or no numbers in rows."""
    for entry in entries:
        if entry.source.fault:
            raise CheckpointError(f"{entry.name!r} is {entry.source.fault}")
        if entry.source.needs_scale and entry.dtype != entry.source.dtype:
            raise CheckpointError(
                f"{entry.name!r} is {entry.source.dtype}, {WITHOUT_SCALE}, so it is not cast to {entry.dtype}; leave out "
                "`dtype`, or take the model in 16 or 32 bits"
            )
        if entry.dtype not in _WRITABLE:
            raise CheckpointError(
                f"{entry.name!r} is {entry.dtype}, which cannot be written to safetensors; pass a `dtype`"
            )


def write_shards(folder: Path, shards: Mapping[str, Sequence[Entry]], advance: Callable[[int], object]) -> None:
    """Write all files and their index; `advance` is called with the bytes of each tensor.

    While a file is made, the ones before it go to the disk.
    """
    # Always the same memory: new pages take longer than what is put there.
    memory = torch.empty(max(sum(entry.nbytes for entry in held) for held in shards.values()), dtype=torch.uint8)
    readers, syncer = ThreadPoolExecutor(_READERS, "merge-read"), ThreadPoolExecutor(1, "merge-sync")
    with readers, syncer:
        synced = []
        for name, held in shards.items():
            places = _places(held, memory)
            for entry in readers.map(_fill, held, places.values()):
                advance(entry.nbytes)
            _save(places, folder / name)
            synced.append(syncer.submit(sync, folder / name))
        for done in synced:
            done.result()
    if len(shards) > 1:
        weight_map = {entry.name: name for name, held in shards.items() for entry in held}
        total = sum(entry.nbytes for held in shards.values() for entry in held)
        content = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
        (folder / INDEX).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _places(entries: Sequence[Entry], memory: torch.Tensor) -> dict[str, torch.Tensor]:
    """Where each tensor lies in memory, by name in the order of the entries."""
    found, start = dict.fromkeys(entry.name for entry in entries), 0
    for entry in sorted(entries, key=lambda entry: -entry.dtype.itemsize):  # starts are multiples of the item size
        found[entry.name] = memory[start : start + entry.nbytes].view(entry.dtype).view(entry.source.shape)
        start += entry.nbytes
    return found


def _fill(entry: Entry, out: torch.Tensor) -> Entry:
    """Put a tensor into its place, and raise if it has a NaN, or a number that its dtype there cannot hold."""
    entry.source.fill(out)
    if not entry.dtype.is_floating_point:
        return entry
    odd = [part for part in out.view(-1).split(_LOOK) if not _is_finite(part)]
    if any(part.float().isnan().any() for part in odd):
        raise CheckpointError(
            f"{entry.name!r} has a NaN; the run had diverged when it was saved: merge an earlier checkpoint"
        )
    largest = torch.finfo(entry.dtype).max
    if odd and largest < torch.finfo(entry.source.dtype).max:
        if (out.isinf() & ~entry.source.read().isinf()).any():
            kind = str(entry.dtype).removeprefix("torch.")
            raise CheckpointError(
                f"{entry.name!r} has a number that {kind} cannot hold (its largest is {largest:.6g}); pass another "
                "`dtype`, or none"
            )
    return entry


def _is_finite(part: torch.Tensor) -> bool:
    # A sum is not finite if a summand is not, and much faster than asking each. It may overflow too: then look again.
    part = part.float() if part.dtype.itemsize == 1 else part
    return math.isfinite(part.sum().item())


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    try:
        save_file(dict(tensors), path, {"format": "pt"})
        path.chmod(0o666 & ~umask())  # it lets nobody else read
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        raise OSError(int(number[1]) if number else errno.EIO, str(error), str(path)) from error


def check_output(out: Path, nbytes: int) -> None:
    """Raise if `out` cannot become a new folder, or its disk has less room than `nbytes` and what a killed process left there."""
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
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that is renamed to `out` at the end; if something fails, it and those made above it are removed.

    A process that is killed leaves it behind under a hidden name; the next one for the same `out` removes what is in it.
    """
    folder, made = _partial(out), []
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
            folder.rename(out)  # an empty one is no hindrance
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

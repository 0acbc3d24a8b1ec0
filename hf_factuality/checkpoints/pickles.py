"""Files of `torch.save`, read without running anything that they ask for."""

from __future__ import annotations

import io
import pickle
import re
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from hf_factuality.checkpoints.tensors import BLOCK_BYTES
from hf_factuality.errors import CheckpointError


class Record:
    """What stands in for an object of a file: its state as attributes, and the arguments it was made with as `args`."""

    def __new__(cls, *args: Any, **kwargs: Any):
        self = object.__new__(cls)
        self.args = args
        return self

    def __init__(self, *args: Any, **kwargs: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        parts = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
        if not all(part is None or isinstance(part, dict) for part in parts):
            self.state = state
            return
        for part in parts:
            self.__dict__.update(part or {})


class SavedDTensor(torch.Tensor):
    """A DTensor as it was saved: `_local_tensor` and `_spec`. It needs no process group, and cannot be computed with."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise CheckpointError("a shard was used as if it were the whole tensor")


_DEEP = re.compile(rb"(?:[\x85-\x87t](?:q.|r.{4}|\x94)?){1000}", re.DOTALL)
_TENSOR = re.compile(r"/data/\d+$")


def _record(name: str) -> type:
    return type(name, (Record,), {})


_PLACEMENTS = {name: _record(name) for name in ("Shard", "_StridedShard", "Replicate", "Partial")}
_SPECS = {name: _record(name) for name in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")}
_MESHES = {
    "torch.distributed.device_mesh.DeviceMesh": _record("DeviceMesh"),
    "torch.distributed._mesh_layout._MeshLayout": _record("_MeshLayout"),
    "torch.distributed._mesh_layout._FlatLayout": _record("_FlatLayout"),
    "torch.distributed._device_mesh.DeviceMesh": _record("DeviceMesh"),
}
# DTensor moved between releases of torch; the older names are in older files.
DTENSOR: dict[str, Any] = {
    **_MESHES,
    **{
        f"torch.distributed.{package}.{name}": SavedDTensor
        for package, name in (
            ("tensor", "DTensor"),
            ("tensor._api", "DTensor"),
            ("_tensor.api", "DTensor"),
            ("_tensor", "DTensor"),
        )
    },
    **{
        f"torch.distributed.{package}.placement_types.{name}": kind
        for package in ("tensor", "_tensor")
        for name, kind in {**_PLACEMENTS, **_SPECS}.items()
    },
    **{
        f"torch.distributed.{package}._dtensor_spec.{name}": kind
        for package in ("tensor", "_tensor")
        for name, kind in _SPECS.items()
    },
}
# Settings and scalers that DeepSpeed stores beside the weights.
DEEPSPEED: dict[str, Any] = {
    name: _record(name.rpartition(".")[2])
    for name in (
        "deepspeed.runtime.fp16.loss_scaler.LossScaler",
        "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
        "deepspeed.runtime.zero.config.ZeroStageEnum",
        "deepspeed.utils.tensor_fragment.fragment_address",
        "deepspeed.utils.tensor_fragment.tensor_fragment",
    )
}
_KNOWN = {
    "torch.distributed._shard.sharded_tensor": "an FSDP1 ShardedTensor, which cannot be read without the processes that wrote "
    "it; load it in the run that wrote it and save it with torch.distributed.checkpoint, or train with FSDP2 "
    "(fsdp_version: 2), whose checkpoints can be read",
}
_WAY_OUT = (
    "nothing of the file was run; save it again as a plain state dict, or pass allow_unsafe_pickle=True "
    "(--allow-unsafe-pickle) if you trust whoever wrote it with your account"
)


# What readers of damaged files run into.
_DAMAGE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,  # RecursionError too
    StopIteration,
    TypeError,
    ValueError,
    zipfile.BadZipFile,
)


@contextmanager
def reading(path: Path, errors: tuple[type[Exception], ...] = _DAMAGE) -> Iterator[None]:
    """What the contents of a file, or of a folder's files, make readers raise becomes one line that names it.

    Args:
        path (`Path`):
            The file or folder.
        errors (`tuple`, *optional*):
            What means that it is damaged.

    Raises:
        `CheckpointError`: instead of errors of Python and torch.
    """
    try:
        yield
    except CheckpointError as error:
        if str(path) in str(error):
            raise
        raise CheckpointError(f"{path}: {error}") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from error
    except errors as error:
        raise CheckpointError(_broken(path, error)) from error


class Member:
    """A member of a zip file of torch, which itself writes checksums and compares none.

    Args:
        path (`Path`):
            The file.
        name (`str`):
            Of the member.
        start, size (`int`):
            Where in it the bytes of the member lie.
        crc (`int`, *optional*):
            Their CRC-32. `None`: there is none, or it has been compared.
    """

    def __init__(self, path: Path, name: str, start: int, size: int, crc: int | None):
        self.path, self.name, self.start, self.size, self.crc = path, name, start, size, crc

    def check(self) -> None:
        """Read the member and compare its checksum, the first time.

        Raises:
            `CheckpointError`: it is another, or the file cannot be read.
        """
        if self.crc is None:
            return
        value, left, block = 0, self.size, memoryview(bytearray(min(self.size, BLOCK_BYTES)))
        with reading(self.path), self.path.open("rb", buffering=0) as file:
            file.seek(self.start)
            while left and (read := file.readinto(block[:left])):
                value, left = zlib.crc32(block[:read], value), left - read
        if left or value != self.crc:
            raise CheckpointError(
                f"{self.path} is damaged: its bytes {self.start} to {self.start + self.size} ({ascii(self.name)[1:-1]}) do not "
                "have their checksum; copy it again from where it was written"
            )
        self.crc = None


def members(stream: Any, path: Path, offset: int = 0) -> dict[int, Member]:
    """The members of a zip file, by the byte of the file at which their contents start.

    `torch.serialization.set_crc32_options(False)` makes torch write zeros for all checksums; then there is nothing to compare.

    Args:
        stream:
            The zip file, opened.
        path (`Path`):
            Its name.
        offset (`int`, *optional*, defaults to `0`):
            Where in the file of that name it starts.

    Raises:
        `CheckpointError`: two members have one name, one is compressed or longer than the file, or all but the tensors are
            damaged.
    """
    found: dict[int, Member] = {}
    names = set()
    with zipfile.ZipFile(stream) as archive:
        entries = archive.infolist()
        checked = any(entry.CRC for entry in entries)
        end = stream.seek(0, io.SEEK_END)
        for entry in entries:
            stream.seek(entry.header_offset)
            header = stream.read(30)
            start = entry.header_offset + 30
            start += int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
            name = entry.filename.lower()  # torch does not tell the case either
            if name in names or entry.compress_type != zipfile.ZIP_STORED or start + entry.file_size > end:
                raise CheckpointError(f"{path} is damaged, or compressed, at {ascii(entry.filename)}")
            names.add(name)
            member = Member(path, entry.filename, offset + start, entry.file_size, entry.CRC if checked else None)
            if not _TENSOR.search(name):
                member.check()
                stream.seek(start)
                _check_depth(stream.read(entry.file_size))
            if entry.file_size:
                found[offset + start] = member
    return found


def _check_depth(content: bytes) -> None:
    """Tuples in tuples a hundred thousand deep end the process as soon as they are the key of a dictionary."""
    if _DEEP.search(content):
        raise ValueError("its contents are nested too deep")


def load_torch(path: Path, allowed: dict[str, Any] | None = None, unsafe: bool = False) -> Any:
    """Contents of a file of `torch.save`, with its tensors mapped, not read.

    Args:
        path (`Path`):
            A zip file, as torch has written since 1.6.
        allowed (`dict[str, Any]`, *optional*):
            Full names of classes that may occur beside tensors and plain values, and what stands in for each.
        unsafe (`bool`, *optional*, defaults to `False`):
            Let the file import and call what it likes.

    Raises:
        `CheckpointError`: the file was cut off, is of another kind, or asks for something that is not allowed.
    """
    allowed = allowed or {}
    arguments: dict[str, Any] = {"weights_only": True}
    if unsafe:
        arguments = {"weights_only": False, "pickle_module": _pickle_module(allowed)}
    with reading(path):
        with path.open("rb") as file:
            parts = members(file, path)
        with _only(allowed):
            found = torch.load(path, map_location="cpu", mmap=True, **arguments)
        _attach(_storages(found), parts, unsafe)
    return found


def _storages(found: Any) -> list[torch.UntypedStorage]:
    """Memory of all tensors in plain containers, records and saved DTensors."""
    storages, rest, seen = [], [found], set()
    while rest:
        value = rest.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            rest += value.values()
        elif isinstance(value, (list, tuple)):
            rest += value
        elif isinstance(value, (Record, SavedDTensor)):
            rest += vars(value).values()
        elif isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
            storages += [value.untyped_storage()] if value.untyped_storage().nbytes() else []
    return storages


def _attach(storages: list[torch.UntypedStorage], parts: dict[int, Member], unsafe: bool) -> None:
    """Give every storage of a mapped file its member. Torch does not say which it is, but all lie in one piece of memory."""
    sizes = {start: member.size for start, member in parts.items() if _TENSOR.search(member.name.lower())}
    places = {storage.data_ptr(): storage for storage in storages}
    for first in sizes if places else ():
        base = min(places) - first
        # Memory of a file starts at a page of at least 4096 bytes.
        if base % 4096 == 0 and all(sizes.get(at - base) == storage.nbytes() for at, storage in places.items()):
            for at, storage in places.items():
                storage.member = parts[at - base]  # type: ignore[attr-defined]
            return
    if places and not unsafe:
        raise ValueError("its tensors are not where its directory says")
    for member in parts.values():  # code of the file may have made them of anything
        member.check()


def load_header(stream: io.RawIOBase | io.BufferedIOBase) -> Any:
    """Contents of one saved tensor inside a larger file, on the meta device; its storage has its offset as `_checkpoint_offset`."""
    with _only({}):
        return torch.load(stream, map_location="meta", weights_only=True)


def load_records(path: Path, allowed: Iterable[str]) -> Any:
    """Contents of a plain pickle in which every class is replaced by a [`Record`].

    `torch.load` reads protocol 2 alone; the index of a torch distributed checkpoint has a newer one.

    Args:
        path (`Path`):
            The pickle.
        allowed (`Iterable[str]`):
            Full names of the classes that may occur, beside `torch.Size`, dtypes and layouts.

    Raises:
        `CheckpointError`: the file was cut off or asks for something else.
    """
    records = {name: _record(name.rpartition(".")[2]) for name in allowed}
    plain = {
        "torch.Size": torch.Size,
        "collections.OrderedDict": OrderedDict,
        "torch.serialization._get_layout": Record,
    }

    # The one in C makes room for as many objects as a damaged index says.
    class Reader(pickle._Unpickler):  # type: ignore[name-defined]
        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            if full in records:
                return records[full]
            if full in plain:
                return plain[full]
            if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
            raise pickle.UnpicklingError(f"GLOBAL {full} ")

    with reading(path):
        content = path.read_bytes()
        _check_depth(content)
        return Reader(io.BytesIO(content)).load()


@contextmanager
def _only(allowed: dict[str, Any]) -> Iterator[None]:
    """The given classes are allowed, and none that other libraries have allowed."""
    before = get_safe_globals()
    clear_safe_globals()
    add_safe_globals([(kind, name) for name, kind in allowed.items()])
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _pickle_module(allowed: dict[str, Any]) -> Any:
    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            if full.startswith(tuple(_KNOWN)):  # made here, it would ask for the processes that wrote it
                raise pickle.UnpicklingError(f"GLOBAL {full} ")
            return allowed[full] if full in allowed else super().find_class(module, name)

    return SimpleNamespace(__name__="pickle", Unpickler=Reader, load=lambda file, **rest: Reader(file, **rest).load())


def _refusal(path: Path, message: str) -> str:
    named = re.search(r"GLOBAL ([^\s]+)", message)
    if named is None:
        return f"{path} is no file of torch.save, or damaged ({' '.join(message.split())[:120]}); {_WAY_OUT}"
    name = named[1]
    for module, way_out in _KNOWN.items():
        if name.startswith(module):
            return f"{path} holds {way_out}"
    return f"{path} asks for {name}, which is not on the list of what a checkpoint may hold; {_WAY_OUT}"


def _broken(path: Path, error: BaseException) -> str:
    reason = " ".join(str(error).split())[:100] or type(error).__name__
    if path.is_dir():
        return f"{path} holds a file that is damaged ({reason}); copy it again from where it was written"
    try:
        with path.open("rb") as file:
            start = file.read(4)
    except OSError as unreadable:
        return f"{path} cannot be read: {unreadable.strerror or unreadable}"
    if not start:
        return f"{path} is empty; copy it again from where it was written"
    if path.suffix in (".pt", ".bin") and not b"PK\x03\x04".startswith(start):
        return (
            f"{path} is no zip file of torch.save (torch 1.6 or newer); load it and save it again with a current torch"
        )
    return f"{path} is cut off or damaged ({reason}); copy it again from where it was written"

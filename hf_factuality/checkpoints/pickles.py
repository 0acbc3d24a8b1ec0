"""Files of `torch.save`, read without running anything that they ask for."""

from __future__ import annotations

import io
import mmap
import pickle
import re
import struct
import sys
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

import torch
import torch._weights_only_unpickler
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

from hf_factuality.checkpoints.tensors import TensorPiece, TensorSource, assembled
from hf_factuality.errors import CheckpointError


class Record:
    """What stands in for an object of a file: its state as attributes, and the arguments it was made with as `args`."""

    def __new__(cls, *args: Any, **kwargs: Any):
        self = object.__new__(cls)
        self.args = args
        return self

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


_PLACEMENTS = {name: type(name, (Record,), {}) for name in ("Shard", "_StridedShard", "Replicate", "Partial")}
# DTensor moved between releases of torch; the older names are in older files.
DTENSOR: dict[str, Any] = {
    f"torch.distributed.{name}": kind
    for kind, names in (
        (SavedDTensor, ("tensor.DTensor", "tensor._api.DTensor", "_tensor.api.DTensor", "_tensor.DTensor")),
        *((kind, (f"tensor.placement_types.{n}", f"_tensor.placement_types.{n}")) for n, kind in _PLACEMENTS.items()),
        *(
            (Record, (f"{package}.placement_types.{n}", f"{package}._dtensor_spec.{n}"))
            for package in ("tensor", "_tensor")
            for n in ("DTensorSpec", "TensorMeta", "ShardOrderEntry")
        ),
        (Record, ("device_mesh.DeviceMesh", "_device_mesh.DeviceMesh")),
        (Record, ("_mesh_layout._MeshLayout", "_mesh_layout._FlatLayout")),
    )
    for name in names
}
# Settings and scalers that DeepSpeed stores beside the weights.
_SCALERS = ("LossScaler", "DynamicLossScaler")
DEEPSPEED: dict[str, Any] = {
    **{f"deepspeed.runtime.fp16.loss_scaler.{name}": Record for name in _SCALERS},
    **{f"deepspeed.utils.tensor_fragment.{name}": Record for name in ("fragment_address", "tensor_fragment")},
    "deepspeed.runtime.zero.config.ZeroStageEnum": Record,
}
_ALLOWING = Lock()  # what is allowed is global in torch
_FSDP1 = "torch.distributed._shard.sharded_tensor"
_WAY_OUT = (
    "nothing of the file was run; save it again as a plain state dict, or pass allow_unsafe_pickle=True "
    "(`allow_unsafe_pickle`) if you trust whoever wrote it with your account"
)
# Tuples in tuples a hundred thousand deep end the process as soon as they are the key of a dictionary.
_DEEP = re.compile(rb"(?:[\x85-\x87t](?:q.|r.{4}|\x94)?){1000}", re.DOTALL)
_TENSOR = re.compile(r"/data/\d+$")


@contextmanager
def reading(path: Path, errors: type[Exception] | tuple[()] = Exception) -> Iterator[None]:
    """Whatever the contents of a file, or of a folder's files, make readers raise becomes a `CheckpointError` that names it."""
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


@dataclass
class _Member:
    """A member of a zip file. Torch writes a CRC-32 of each, and compares none; `None`: there is none, or it is right."""

    path: Path
    name: str
    place: int
    content: memoryview
    crc: int | None
    lock: Lock = field(default_factory=Lock)

    def check(self) -> None:
        with self.lock:
            if self.crc is not None and zlib.crc32(self.content) != self.crc:
                raise CheckpointError(
                    f"{self.path} is damaged: its bytes {self.place} to {self.place + len(self.content)} "
                    f"({ascii(self.name)[1:-1]}) do not have their checksum; copy it again from where it was written"
                )
            self.crc = None


def load_torch(
    path: Path,
    allowed: Mapping[str, Any] | None = None,
    unsafe: bool = False,
    start: int = 0,
    length: int | None = None,
) -> Any:
    """Contents of a file of `torch.save`, or of one inside a larger file (bytes), with its tensors mapped, not read.

    Classes of the full names in `allowed` are replaced by its values. `unsafe` lets the file import and call what it likes.
    """
    with reading(path):
        archive = _Archive(path, start, 0 if length is None else start + length)
        body = io.BytesIO(archive.member("data.pkl").content)
        if unsafe:
            reader = _free_reader(body, allowed or {})
            for member in archive.members.values():  # its code may make tensors of anything
                member.check()
        else:
            reader = torch._weights_only_unpickler.Unpickler(body, encoding="utf-8")
        reader.persistent_load = archive.storage
        with _ALLOWING, _only(allowed or {}):
            return reader.load()


def checked_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor; the checksum of a mapped one is compared the first time, and `CheckpointError` says that it is another."""
    if (member := getattr(tensor.untyped_storage(), "member", None)) is not None:
        member.check()
    return tensor


def stored_tensor(tensor: torch.Tensor) -> TensorSource:
    """A tensor of a file, as it is there."""
    fault = None
    if tensor.is_meta:
        fault = "on the meta device, so without numbers; save it as a dense tensor with its numbers"
    elif tensor.layout != torch.strided:
        fault = f"sparse ({tensor.layout}); save it as a dense tensor with its numbers"
    piece = TensorPiece(lambda: checked_tensor(tensor), tuple(((0, size),) for size in tensor.shape))
    return assembled(tensor.shape, tensor.dtype, (piece,), fault=fault)


class _Archive:
    """A zip file, from `first` to `end` (0: its own) of a mapped one: members by name, and storages that are parts of it."""

    def __init__(self, path: Path, first: int, end: int):
        with path.open("rb") as file, mmap.mmap(file.fileno(), end, access=mmap.ACCESS_READ) as view:
            entries = zipfile.ZipFile(view).infolist()  # type: ignore[arg-type]  # what stands before it is no hindrance
            end = len(view)
        self.mapped = torch.UntypedStorage.from_file(str(path), shared=False, nbytes=end)  # it keeps no file open
        data = memoryview(torch.empty(0, dtype=torch.uint8).set_(self.mapped).numpy())
        self.root = entries[0].filename.partition("/")[0]
        self.members: dict[str, _Member] = {}
        self.storages: dict[str, Any] = {}
        checked = any(entry.CRC for entry in entries)  # set_crc32_options(False) makes torch write zeros for all
        for entry in entries:
            place = entry.header_offset
            signature, named, more = struct.unpack_from("<4s22xHH", data, place)
            start = place + 30 + named + more
            saved = bytes(data[place + 30 : place + 30 + named])
            name = entry.filename.lower()  # torch does not tell the case either
            stop = start + entry.file_size
            whole = (
                signature == b"PK\x03\x04"
                and saved == entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")
                and first <= place < start <= stop <= len(data)
            )
            if name in self.members or entry.compress_type != zipfile.ZIP_STORED or not whole:
                raise CheckpointError(f"{path} is damaged, or compressed, at {ascii(entry.filename)}")
            crc = entry.CRC if checked else None
            self.members[name] = _Member(path, entry.filename, start, data[start:stop], crc)
            if not _TENSOR.search(name):
                self.members[name].check()
                _check_depth(data[start:stop])
        order = self.members.get(f"{self.root}/byteorder".lower())
        self.order = sys.byteorder if order is None else bytes(order.content).decode()
        if self.order not in ("little", "big"):
            raise ValueError(f"the byte order {ascii(self.order)[:20]} is unknown")

    def member(self, name: str) -> _Member:
        found = self.members.get(f"{self.root}/{name}".lower())
        if found is None:
            raise ValueError(f"it lacks {name}")
        return found

    def storage(self, saved: tuple) -> Any:
        """Memory of a tensor, as unpicklers ask for it."""
        _, kind, key, _, count = saved
        if key not in self.storages:
            member, dtype = self.member(f"data/{key}"), torch.uint8 if kind is torch.UntypedStorage else kind.dtype
            size = count * dtype.itemsize
            if size != len(member.content):
                raise ValueError(f"data/{key} has {len(member.content)} bytes, and its tensor {size}")
            part = self.mapped[member.place : member.place + size]
            part.member = member
            if self.order != sys.byteorder:
                member.check()
                part.byteswap(dtype)
            self.storages[key] = torch.storage.TypedStorage(wrap_storage=part, dtype=dtype, _internal=True)
        return self.storages[key]


def _check_depth(content: bytes | memoryview) -> None:
    if _DEEP.search(content):
        raise ValueError("its contents are nested too deep")


def load_records(path: Path, allowed: Iterable[str]) -> Any:
    """Contents of a plain pickle (`torch.load` reads only its protocol 2), with [`Record`]s for classes of the given full names."""
    known = {
        **dict.fromkeys((*allowed, "torch.serialization._get_layout"), Record),
        "torch.Size": torch.Size,
        "collections.OrderedDict": OrderedDict,
    }

    # The one in C makes room for as many objects as a damaged index says.
    class Reader(pickle._Unpickler):  # type: ignore[name-defined]
        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            if full in known:
                return known[full]
            if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
            raise pickle.UnpicklingError(f"GLOBAL {full} ")

    with reading(path):
        content = path.read_bytes()
        _check_depth(content)
        return Reader(io.BytesIO(content)).load()


@contextmanager
def _only(allowed: Mapping[str, Any]) -> Iterator[None]:
    """The given classes are allowed, and none that other libraries have allowed."""
    before = get_safe_globals()
    clear_safe_globals()
    add_safe_globals([(kind, name) for name, kind in allowed.items()])
    try:
        yield
    finally:
        clear_safe_globals()
        add_safe_globals(before)


def _free_reader(file: io.BytesIO, allowed: Mapping[str, Any]) -> Any:
    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            if full.startswith(_FSDP1):  # made here, it would ask for the processes that wrote it
                raise pickle.UnpicklingError(f"GLOBAL {full} ")
            if module == "torch" and name.endswith("Storage"):
                return torch.serialization.StorageType(name)
            return allowed[full] if full in allowed else super().find_class(module, name)

    return Reader(file)


def _refusal(path: Path, message: str) -> str:
    named = re.search(r"GLOBAL ([^\s]+)", message)
    if named is None:
        return f"{path} is no file of torch.save, or damaged ({' '.join(message.split())[:120]}); {_WAY_OUT}"
    if named[1].startswith(_FSDP1):
        return (
            f"{path} holds an FSDP1 ShardedTensor, which cannot be read without the processes that wrote it; load it in the "
            "run that wrote it and save it with torch.distributed.checkpoint, or train with FSDP2 (fsdp_version: 2)"
        )
    return f"{path} asks for {named[1]}, which is not on the list of what a checkpoint may hold; {_WAY_OUT}"


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

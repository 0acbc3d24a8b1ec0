"""Files of `torch.save`, read without running anything that they ask for."""

from __future__ import annotations

import io
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.serialization import add_safe_globals, clear_safe_globals, get_safe_globals

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
    OSError,
    RuntimeError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    ImportError,
    MemoryError,
)


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
    try:
        with _only(allowed):
            return torch.load(path, map_location="cpu", mmap=True, **arguments)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from error
    except _DAMAGE as error:
        raise CheckpointError(_broken(path, error)) from error


def load_header(stream: io.RawIOBase | io.BufferedIOBase, path: Path) -> Any:
    """Contents of one saved tensor inside a larger file, on the meta device, with its offset as `_checkpoint_offset`.

    Raises:
        `CheckpointError`: as [`load_torch`].
    """
    try:
        with _only({}):
            return torch.load(stream, map_location="meta", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from error
    except _DAMAGE as error:
        raise CheckpointError(_broken(path, error)) from error


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

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            full = f"{module}.{name}"
            if full in records:
                return records[full]
            if full in plain:
                return plain[full]
            if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
                return getattr(torch, name)
            raise pickle.UnpicklingError(f"GLOBAL {full} ")

    try:
        with path.open("rb") as file:
            return Reader(file).load()
    except pickle.UnpicklingError as error:
        raise CheckpointError(_refusal(path, str(error))) from error
    except _DAMAGE as error:
        raise CheckpointError(_broken(path, error)) from error


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
    reason = " ".join(str(error).split())[:100]
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

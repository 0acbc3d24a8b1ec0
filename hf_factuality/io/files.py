"""Files and folders that are whole, or as they were before."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


# What a file system says that has no `fsync`, as those that are read-only, or none for folders.
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP, errno.EROFS}


def write_atomically(path: Path, data: bytes | str) -> None:
    """Write a file, text in UTF-8, so that it is there whole, or as it was before."""
    with writing(path) as partial:
        partial.write_bytes(data.encode("utf-8") if isinstance(data, str) else data)


@contextmanager
def writing(path: Path, suffix: str = "") -> Iterator[Path]:
    """A file beside `path` to write to, which is brought to the disk and takes its place at the end.

    If something fails, it is removed and `path` is as it was. A link is replaced; what it leads to stays.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=suffix)
    os.close(handle)
    partial = Path(name)
    try:
        yield partial
        partial.chmod(0o666 & ~umask())  # mkstemp lets nobody else read
        sync(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder beside `folder` to write to, which is brought to the disk and takes its name at the end.

    `folder` is not there by then, or empty; with `overwrite` it may hold anything, or be a file, and is replaced when the
    new one is on the disk. If something fails, what was written is removed.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        partial.chmod(0o777 & ~umask())  # mkdtemp's is for its owner alone
        yield partial
        for place in (*partial.rglob("*"), partial):
            sync(place)
        if overwrite:
            _replace_folder(partial, folder)
        else:
            os.rename(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _replace_folder(partial: Path, folder: Path) -> None:
    """Put `partial` in the place of `folder`, which is moved away for it, and back if that fails."""
    old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        if os.path.lexists(folder):
            os.rename(folder, old / folder.name)
        os.rename(partial, folder)
    except BaseException:
        if os.path.lexists(old / folder.name):
            os.rename(old / folder.name, folder)
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk, where the system can."""
    if os.name != "posix":
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise
    finally:
        os.close(handle)


def last_name(text: str) -> str:
    """Of a path, of whatever system, the last name, as files that are published tell no folders; other text as it is."""
    is_path = re.match(r"/|~|\.{1,2}[/\\]|[A-Za-z]:[/\\]", text) and "\n" not in text
    return re.split(r"[/\\]", text.rstrip("/\\"))[-1] if is_path else text


def umask() -> int:
    """What is not allowed to others of files that are made."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def cache_folder() -> Path:
    """Where models that are made here are kept: `$HF_FACTUALITY_CACHE` (of a file, its folder), or `~/.cache/hf_factuality`."""
    path = Path(os.environ.get("HF_FACTUALITY_CACHE") or Path.home() / ".cache" / "hf_factuality").expanduser()
    return path.parent if path.is_file() or path.suffix == ".sqlite" else path  # the cache of answers may be a file


def is_own_file(folder: Path, path: Path) -> bool:
    """Whether there is such a file, and it lies in the folder, to which no link leads out of it."""
    return path.is_file() and path.resolve().is_relative_to(folder.resolve())

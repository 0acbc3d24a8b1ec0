"""The manifest of a checkpoint: its files with sizes and checksums, and the run that wrote them. Written last."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import Any

from hf_factuality.errors import CheckpointError
from hf_factuality.io.files import sync, write_atomically


MANIFEST = "checkpoint_manifest.json"
_SCHEMA = "hf_factuality.checkpoint/1"
_NOT_OF_THE_RUN = {MANIFEST, "README.md"}
"""A card may be written into a finished checkpoint."""
_PIECE = 1 << 22


def write_manifest(folder: Path, about: Mapping[str, Any]) -> None:
    """Bring every file of a checkpoint to the disk, and list them all; `about`, of plain values, is noted too."""
    places = [Path(top) for top, _, _ in os.walk(folder)]
    paths = sorted(path for place in places for path in place.iterdir() if path.is_file() and not path.is_symlink())
    names = [path.relative_to(folder).as_posix() for path in paths]
    with ThreadPoolExecutor() as pool:
        files = dict(zip(names, pool.map(_sum_up, paths), strict=True))
    files = {name: found for name, found in files.items() if name not in _NOT_OF_THE_RUN}
    write_atomically(folder / MANIFEST, _dumped({"schema": _SCHEMA, **about, "files": files}))
    for place in places:
        sync(place)


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a checkpoint; `None` if it has none, and `CheckpointError` if it is damaged."""
    path = folder / MANIFEST
    if not path.is_file():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        whole = manifest["schema"] == _SCHEMA and isinstance(manifest["settings"], dict) and manifest["files"] != {}
        whole &= isinstance(manifest["trainer"], str) and isinstance(manifest["resumable"], bool)
        whole &= type(manifest.get("num_tokens", 0)) is int
        for name, (size, checksum) in manifest["files"].items():
            place = PurePosixPath(name)
            whole &= type(size) is type(checksum) is int and not place.is_absolute() and ".." not in place.parts
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise CheckpointError(f"{path} is damaged")
    return manifest


def find_damage(folder: Path, manifest: Mapping[str, Any]) -> str | None:
    """The first file of a checkpoint that is not as it was written, and how it differs; `None` if all are whole.

    No link out of the folder is followed but those of the Hub's cache.
    """
    root, files = folder.resolve(), manifest["files"]
    for name, (size, _) in files.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if not _is_inside(path.resolve(), root):
            return f"{name} is a link out of the folder"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} of {size} bytes"
    with ThreadPoolExecutor() as pool:
        found = pool.map(_sum_up, [folder / name for name in files])
        return next((f"{name} is damaged" for name, own in zip(files, found, strict=True) if own != files[name]), None)


def published_manifest(path: Path, published: Mapping[str, bytes | None]) -> bytes:
    """The manifest as it fits what is published of a checkpoint; `published` has the content of files that are changed for it."""
    manifest = read_manifest(path.parent)
    manifest["files"] = {
        name: listed if (content := published[name]) is None else [len(content), zlib.crc32(content)]
        for name, listed in manifest["files"].items()
        if name in published
    }
    return _dumped(manifest)


def _sum_up(path: Path) -> list[int]:
    """Size and checksum of a file, which is brought to the disk if it is not there yet."""
    size = checksum = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            size, checksum = size + len(piece), zlib.crc32(piece, checksum)
    sync(path)
    return [size, checksum]


def _is_inside(target: Path, root: Path) -> bool:
    cached = target.parent.name == "blobs" and root.is_relative_to(target.parent.parent / "snapshots")
    return cached or target.is_relative_to(root)


def _dumped(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, indent=1).encode()

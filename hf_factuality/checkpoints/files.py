"""The small files of a model: configuration, tokenizer, chat template."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from hf_factuality.checkpoints.model import Expected, read_json
from hf_factuality.errors import CheckpointError
from hf_factuality.hub.files import CONFIGURATION, TOKENIZER


_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "*.tiktoken", "spiece.model")
SIDE_FILES = (*CONFIGURATION, *TOKENIZER)
"""Patterns of everything that is copied; optimizers, critics, arguments and logs of a run are not."""


@dataclass
class SideFiles:
    """The folder of `config.json`, the files that are copied by their names in the output, and what the reader should know."""

    config: Path
    copied: dict[str, Path]
    notes: list[str]


def check_links(folder: Path, paths: Iterable[Path] | None = None) -> None:
    """Raise if something leads out of a folder, or is neither file nor folder: what is read is copied, and may be published.

    Files of a snapshot in the Hub's cache may lead to its repository's blobs. A link to nothing is left to whoever reads it.
    """
    root = Path(os.path.realpath(folder))
    repos = [place.parents[1] for place in (root, *root.parents) if place.parent.name == "snapshots"]
    blobs = [repo / "blobs" for repo in repos if repo.name.startswith(("models--", "datasets--", "spaces--"))]
    if paths is None:
        paths = (Path(top, name) for top, folders, names in os.walk(folder) for name in (*folders, *names))
    for path in paths:
        target = Path(os.path.realpath(path))
        if not target.exists():
            continue
        mode = target.stat().st_mode
        if not target.is_relative_to(root) and not (target.parent in blobs and stat.S_ISREG(mode)):
            raise CheckpointError(
                f"{path} is a link to {target}, which is not in {folder}; copy it to there (cp -rL), or remove the link"
            )
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            raise CheckpointError(f"{path} is no file, but a pipe, a socket or a device; remove it")


def find_side_files(folders: Iterable[Path], checkpoint: Path) -> SideFiles:
    """Look for the small files: the first folder with a configuration gives that, the first with a tokenizer that and its template."""
    places = [folder for folder in dict.fromkeys(folders) if folder.is_dir()]

    def first_with(patterns: Sequence[str], copied: Sequence[str]) -> tuple[Path | None, dict[str, Path]]:
        for folder in places:
            found = _matching(folder, copied, checkpoint)
            if any(_is(name, patterns) for name in found):
                return folder, found
        return None, {}

    config, copied = first_with(("config.json",), SIDE_FILES)
    if config is None:
        looked = ", ".join(map(str, places))
        raise CheckpointError(
            f"there is no config.json in {looked}; pass `model_config`: a folder, or a model on the Hub, with the "
            "configuration and tokenizer of the model"
        )
    with_tokenizer, found = first_with(_TOKENIZER, TOKENIZER)
    copied |= found
    if "generation_config.json" not in copied:
        copied |= first_with(("generation_config.json",), ("generation_config.json",))[1]
    notes = ["there is no tokenizer beside the checkpoint"] if with_tokenizer is None else []
    return SideFiles(config, copied, notes)


def _is(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _matching(folder: Path, patterns: Sequence[str], checkpoint: Path) -> dict[str, Path]:
    place, root = Path(os.path.realpath(folder)), Path(os.path.realpath(checkpoint))
    # Links of a folder inside or above the checkpoint may lead into the checkpoint; those of another into that one.
    related = root.is_relative_to(place) or place.is_relative_to(root)
    found = {}
    for path in sorted([*folder.iterdir(), *folder.glob("additional_chat_templates/*")]):
        name = path.relative_to(folder).as_posix()
        if not _is(name, patterns):
            continue
        if os.path.realpath(path) != str(place / name):
            check_links(checkpoint if related else folder, [path])
        if not os.path.exists(path):
            raise CheckpointError(f"{path} is a link to a file that is not there; copy that file, or remove the link")
        if not os.access(path, os.R_OK):
            raise CheckpointError(f"{path} cannot be read: Permission denied")
        if path.is_file():
            found[name] = path
    return found


def own_files(found: SideFiles, expected: Expected, dtype: torch.dtype | None) -> dict[str, bytes]:
    """What is written and not copied: the configuration with the dtype of the weights, and that of generation if there is none."""
    config = read_json(found.config / "config.json")
    config["architectures"] = config.get("architectures") or [expected.architecture]
    for (*inside, key), value in expected.settings.items():
        part = config
        for name in inside:
            part = part.setdefault(name, {})
        part[key] = value
    if dtype is not None:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    texts = {} if "generation_config.json" in found.copied else {"generation_config.json": expected.generation}
    try:
        texts["config.json"] = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        return {name: text.encode() for name, text in texts.items() if text is not None}
    except (ValueError, RecursionError) as error:  # half of a character, or too deep
        raise CheckpointError(f"{found.config / 'config.json'} cannot be written again: {error}") from error


def write_side_files(found: SideFiles, own: Mapping[str, bytes], folder: Path) -> list[str]:
    """Copy and write the small files; the configuration is the last, since without it no folder loads. Returns all names there."""
    for name, path in found.copied.items():
        if name in own:
            continue
        (folder / name).parent.mkdir(exist_ok=True)
        try:
            shutil.copyfile(path, folder / name)
        except FileNotFoundError as error:
            if path.exists():
                raise
            raise CheckpointError(f"{path} is no longer there") from error
    for name, content in own.items():
        (folder / name).write_bytes(content)
    return sorted(path.name for path in folder.iterdir())

"""The small files of a model: configuration, tokenizer, chat template."""

from __future__ import annotations

import fnmatch
import json
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from hf_factuality.errors import CheckpointError
from hf_factuality.hub._merge_model import Expected, read_json


TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "*.tiktoken", "spiece.model")
_WITH_TOKENIZER = (
    *TOKENIZER,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "configuration_*.py",
    "modeling_*.py",
    "tokenization_*.py",
    *_WITH_TOKENIZER,
)
"""Patterns of everything that is copied; optimizers, critics, arguments and logs of a run are not."""


@dataclass
class SideFiles:
    """Where the small files of a model are.

    Args:
        config (`Path`):
            Folder of `config.json`.
        copied (`dict[str, Path]`):
            Name in the output to the file or folder.
        missing (`list[str]`):
            What was found nowhere, in words.
    """

    config: Path
    copied: dict[str, Path]
    missing: list[str] = field(default_factory=list)


def find_side_files(folders: Iterable[Path]) -> SideFiles:
    """Look for the small files, in several folders.

    Args:
        folders (`Iterable[Path]`):
            The first with a configuration gives that; the first with a tokenizer gives the tokenizer and chat template.

    Raises:
        `CheckpointError`: there is no `config.json`, or one of them is a link to nothing or cannot be read.
    """
    places = [folder for folder in dict.fromkeys(folders) if folder.is_dir()]
    config = next((folder for folder in places if (folder / "config.json").is_file()), None)
    if config is None:
        looked = ", ".join(map(str, places))
        raise CheckpointError(
            f"there is no config.json in {looked}; pass config= (--config): a folder, or a model on the Hub, with the "
            "configuration and tokenizer of the model"
        )
    copied = {path.name: path for path in _matching(config, SIDE_FILES)}
    missing = []
    with_tokenizer = next((folder for folder in places if any(_matching(folder, TOKENIZER))), None)
    if with_tokenizer is None:
        missing.append("a tokenizer")
    else:
        copied |= {path.name: path for path in _matching(with_tokenizer, _WITH_TOKENIZER)}
    if "generation_config.json" not in copied:
        more = next((folder for folder in places if (folder / "generation_config.json").is_file()), None)
        if more is not None:
            copied["generation_config.json"] = more / "generation_config.json"
    return SideFiles(config, copied, missing)


def _matching(folder: Path, patterns: Sequence[str]) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if any(fnmatch.fnmatchcase(path.name, p) for p in patterns))
    for path in found:
        for file in (path, *path.rglob("*")) if path.is_dir() else (path,):
            if not os.path.exists(file):
                raise CheckpointError(
                    f"{file} is a link to a file that is not there; copy that file, or remove the link"
                )
            if not os.access(file, os.R_OK):
                raise CheckpointError(f"{file} cannot be read: Permission denied")
    return found


def write_side_files(found: SideFiles, folder: Path, expected: Expected, dtype: torch.dtype | None) -> list[str]:
    """Copy the small files; the configuration is written last, since without it no folder loads.

    Args:
        found ([`SideFiles`]):
            What to copy.
        folder (`Path`):
            Where to.
        expected ([`Expected`]):
            The model; if it generates, it gets a generation configuration.
        dtype (`torch.dtype`, *optional*):
            Of the weights, written into the configuration.

    Returns:
        `list[str]`: names of the files.

    Raises:
        `CheckpointError`: one of them has been removed.
    """
    for name, path in found.copied.items():
        if name == "config.json":
            continue
        try:
            if path.is_dir():
                shutil.copytree(path, folder / name)
            else:
                shutil.copyfile(path, folder / name)
        except FileNotFoundError as error:
            if path.exists():
                raise
            raise CheckpointError(f"{path} is no longer there") from error
    if expected.generates and "generation_config.json" not in found.copied:
        from transformers import AutoConfig, GenerationConfig

        config = AutoConfig.from_pretrained(found.config, trust_remote_code=True)  # agreed to before, if it has code
        GenerationConfig.from_model_config(config).save_pretrained(folder)
    config = read_json(found.config / "config.json")
    config["architectures"] = config.get("architectures") or [expected.architecture]
    if dtype is not None:
        config["torch_dtype" if "torch_dtype" in config else "dtype"] = str(dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return sorted(path.name for path in folder.iterdir())

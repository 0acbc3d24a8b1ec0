"""Paths of this machine in the files that are to be published."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_factuality.errors import HubError
from hf_factuality.io.tables import text_encoding


# Vocabularies and rows of data may hold any text; nobody's paths are written there by a library.
_DATA = {"tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json"}
_DATA_SUFFIXES = frozenset(
    ".safetensors .bin .pt .pth .distcp .parquet .arrow .jsonl .csv .tsv .tiktoken .model".split()
)
_KEYS = frozenset(
    """
    _name_or_path name_or_path base_model_name_or_path model_name_or_path tokenizer_name_or_path tokenizer_file vocab_file
    merges_file special_tokens_map_file tokenizer_name best_model_checkpoint
    """.split()
)
"""Keys of JSON files that libraries fill with where they read something; only its last part is published."""
_HOMES = frozenset("home Users root mnt media scratch tmp private Volumes workspace lustre gpfs nfs fsx".split())
_EVERYWHERE = {"bin", "sbin", "usr", "lib", "lib64", "etc", "dev", "proc", "sys", "opt", "run"}
_NOBODYS = {"/mnt/data"}  # in prompts of a published tool
_UNIX = re.compile(
    r"(?:(?<![\w.~/\\])|(?<=-[IL])(?<![\w-]-[IL]))"
    r"(?:file://(?:localhost)?)?(~|/[\w.@+-]+)(?:/[\w.@+ -]*[\w.@+-])+"
)
# Not `Q:\nText\nA:` of a prompt in a program, nor `f:\Omega\to` of a formula.
_WINDOWS = re.compile(
    r"(?<![A-Za-z0-9_])(?:[A-Za-z]:(?:\\{1,2}|/)(?:Users|te?mp|repos|research|runs|notebooks)"
    r"|[A-Zc-e]:(?:/|\\{1,2}(?![nrt]))\w[\w .-]*\w)"
    r"(?:\\{1,2}(?!(?:to|times|rightarrow|mapsto)\b)|/)[^\\/\s\"']+"
)
# Addresses, and what stands in front of a path without being a part of it: line ends as programs write them, colours.
_BETWEEN = re.compile(
    r"(?i:\b(?!file:)[a-z][a-z0-9+.-]{0,20}://[^\s/?\"'<>()\[\]{},;|\\][^\s?\"'<>()\[\]{},;|\\]*)"
    r"|(?:\x1b|\\u001b|\\x1b|\\033)\[[\d;]*m|(?<!\\)\\[nrt](?=[/~])"
)


def find_path(text: str, any_machine: bool = False) -> tuple[int, str] | None:
    """The first absolute path of this or another person's machine in a text, with its line, from 1.

    `any_machine` also counts paths that every machine may have, and those of machines with other folders.
    """
    text = _BETWEEN.sub(" ", text)
    for match in sorted([*_UNIX.finditer(text), *_WINDOWS.finditer(text)], key=re.Match.start):
        first = match[1] if match.re is _UNIX else "~"
        if (any_machine or first == "~" or _is_of_a_machine(first[1:])) and match[0] not in _NOBODYS:
            return text.count("\n", 0, match.start()) + 1, match[0]
    return None


def _is_of_a_machine(name: str) -> bool:
    return name in _HOMES or (name not in _EVERYWHERE and Path(f"/{name}").is_dir())


def published_text(name: str, path: Path) -> tuple[bytes | None, list[str]]:
    """What is published in place of the file, if it is not the file itself, and what was changed, in words.

    A path under a key that is not known is refused.
    """
    last = name.rpartition("/")[2]
    if last == "README.md":
        try:
            path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise HubError(f"{name} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    text = None if last in _DATA or path.suffix in _DATA_SUFFIXES else _read(path)
    if text is None:
        return None, []
    changes: list[str] = []
    new = text
    if path.suffix == ".json":
        try:
            content = _without_paths(json.loads(text), name, (), changes)
        except HubError:
            raise
        except (ValueError, RecursionError) as error:
            raise HubError(f"{name} is no JSON ({error}); write it again, or leave it out with --exclude") from None
        if changes:
            new = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    else:
        if last == "README.md":
            new = _card(text, changes)
        if (place := find_path(new)) is not None:
            what = f"{name}, line {place[0]}, holds a path of your machine ({place[1]})"
            raise HubError(f"{what}; take it out, or leave the file out with --exclude")
    return (new.encode("utf-8") if changes else None), changes


def _read(path: Path) -> str | None:
    """A text without the mark of its encoding; `None` for what is no text."""
    with path.open("rb") as file:
        encoding = text_encoding(file.read(1 << 16))
    return None if encoding is None else path.read_bytes().decode(encoding, errors="replace").removeprefix("\ufeff")


def check_metadata(metadata: Mapping[str, str], name: str) -> None:
    """Refuse the texts that a file of safetensors carries in its header, if a path is among them."""
    _refuse_path(
        "\n".join(f"{key}\n{value}" for key, value in metadata.items()),
        f"the header of {name} holds a path of your machine",
        "save it again without: safetensors.torch.save_file(tensors, file, metadata={'format': 'pt'})",
    )


def _refuse_path(
    text: str, what: str, fix: str = "write something that others have, or leave the file out with --exclude"
) -> None:
    if (found := find_path(text)) is not None:
        raise HubError(f"{what} ({found[1]}); {fix}")


def _without_paths(value: Any, name: str, keys: tuple[str, ...], changes: list[str]) -> Any:
    place = ".".join(keys)
    if isinstance(value, dict):
        for key in value:
            _refuse_path(key, f"{name} holds a path of your machine as a name in {place or 'it'!r}")
        return {key: _without_paths(item, name, (*keys, str(key)), changes) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_paths(item, name, (*keys, str(number)), changes) for number, item in enumerate(value)]
    if not isinstance(value, str):
        return value
    if keys and keys[-1] in _KEYS and _is_path(value):
        short = re.split(r"[\\/]", value.rstrip("\\/"))[-1] or "model"
        changes.append(f"{place} was a path, written as {short!r}")
        return short
    _refuse_path(value, f"{name} holds a path of your machine in {place!r}")
    return value


def _is_path(value: str) -> bool:
    return value.startswith(("/", "~/", "file://")) or re.match(r"[A-Za-z]:[\\/]", value) is not None


def _card(text: str, changes: list[str]) -> str:
    """A card whose header names no base model that is a folder: the Hub refuses these."""
    match = re.match(r"---\n(.*?)\n---(?=\n|$)", text, re.DOTALL)
    if match is None:
        return text
    import yaml

    try:
        header = yaml.safe_load(match[1])
    except (yaml.YAMLError, ValueError, RecursionError):
        return text  # the Hub says what is wrong
    if not isinstance(header, dict):
        return text
    named = header.get("base_model")
    bases = named if isinstance(named, list) else [named] if named else []
    paths = [base for base in bases if isinstance(base, str) and _is_path(base)]
    if not paths:
        return text
    others = [base for base in bases if base not in paths]
    if others:
        header["base_model"] = others
    else:
        del header["base_model"]
        header.pop("base_model_relation", None)
    if isinstance(header.get("tags"), list):
        header["tags"] = [tag for tag in header["tags"] if not any(str(tag).endswith(f":{path}") for path in paths)]
    changes.append("base_model was a path, left out of its header")
    return f"---\n{yaml.safe_dump(header, sort_keys=False, allow_unicode=True)}---{text[match.end() :]}"

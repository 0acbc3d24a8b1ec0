"""Paths of this machine in the files that are to be published."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_factuality.errors import HubError
from hf_factuality.hub.paths import find_paths
from hf_factuality.io.unpack import text_encoding


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


def check_allowed(allowed: Sequence[str], names: Collection[str]) -> None:
    """Raise unless each is a place in one of the files that are published, as a refusal writes it: `FILE:LINE`, `FILE:KEY`."""
    for place in allowed:
        if not any(place.startswith(f"{name}:") and len(place) > len(name) + 1 for name in names):
            raise HubError(
                f"`allow_paths` {place!r} is no place in a file that is published; write it as README.md:12, or "
                "config.json:KEY"
            )


def published_text(name: str, path: Path, allowed: Sequence[str] = ()) -> tuple[bytes | None, list[str]]:
    """What is published in place of the file, if it is not the file itself, and what was changed or let through, in words.

    A path under a key that is not known is refused; a path at one of the places `allowed` is not.
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
    passed = [f"{place} was let through" for place in allowed if place.startswith(f"{name}:")]
    new = text
    if path.suffix == ".json":
        try:
            content = _without_paths(json.loads(text), name, (), changes, allowed)
        except HubError:
            raise
        except (ValueError, RecursionError) as error:
            raise HubError(f"{name} is no JSON ({error}); write it again, or leave it out with `exclude`") from None
        if changes:
            new = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    else:
        if last == "README.md":
            new = _card(text, changes)
        lost = new.count("\n") - text.count("\n")  # lines are those of the file here
        for line, found in find_paths(new, file=name):
            _refuse(
                found, f"{name}, line {line - lost}, holds a path of your machine", f"{name}:{line - lost}", allowed
            )
    return (new.encode("utf-8") if changes else None), [*changes, *passed]


def _read(path: Path) -> str | None:
    """A text without the mark of its encoding; `None` for what is no text."""
    with path.open("rb") as file:
        encoding = text_encoding(file.read(1 << 16))
    return None if encoding is None else path.read_bytes().decode(encoding, errors="replace").removeprefix("\ufeff")


def check_metadata(metadata: Mapping[str, str], name: str, allowed: Sequence[str] = ()) -> None:
    """Refuse the texts that a file of safetensors carries in its header, if a path is among them."""
    fix = "save it again without: safetensors.torch.save_file(tensors, file, metadata={'format': 'pt'})"
    for key, value in metadata.items():
        for text in (key, value):
            _refuse_paths(text, f"the header of {name} holds a path of your machine", f"{name}:{key}", allowed, fix)


def _refuse_paths(text: str, what: str, place: str, allowed: Sequence[str], *fix: str) -> None:
    for _, found in find_paths(text):
        _refuse(found, what, place, allowed, *fix)


def _refuse(found: str, what: str, place: str, allowed: Sequence[str], fix: str = "take it out") -> None:
    if place not in allowed:
        raise HubError(
            f"{what} ({found}); {fix}, leave the file out with `exclude`, or, if it is nobody's, let it through with "
            f"`allow_paths` {shlex.quote(place)}"
        )


def _without_paths(value: Any, name: str, keys: tuple[str, ...], changes: list[str], allowed: Sequence[str]) -> Any:
    place = ".".join(keys)
    if isinstance(value, dict):
        for key in value:
            what = f"{name} holds a path of your machine as a name in {place or 'it'!r}"
            _refuse_paths(key, what, f"{name}:{'.'.join((*keys, key))}", allowed)
        return {key: _without_paths(item, name, (*keys, str(key)), changes, allowed) for key, item in value.items()}
    if isinstance(value, list):
        return [
            _without_paths(item, name, (*keys, str(number)), changes, allowed) for number, item in enumerate(value)
        ]
    if not isinstance(value, str):
        return value
    if keys and keys[-1] in _KEYS and _is_path(value):
        short = re.split(r"[\\/]", value.rstrip("\\/"))[-1] or "model"
        changes.append(f"{place} was a path, written as {short!r}")
        return short
    _refuse_paths(value, f"{name} holds a path of your machine in {place!r}", f"{name}:{place}", allowed)
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

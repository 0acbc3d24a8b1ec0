"""RLFH's maps from a preset's name, a file or a text. JSON and YAML with plain values only; nothing is evaluated."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

import yaml

from hf_factuality.methods.rlfh.formula import RLFH_PRESETS, RLFHMaps


_SUFFIXES = (".json", ".yaml", ".yml")


def load_rlfh_maps(source: str | Path | Mapping[str, Any] | RLFHMaps) -> RLFHMaps:
    """Maps by name, from a file, from a text, or from what was read from one. JSON has the same keys as this YAML:

        truth: {Correct: 0.45, Hedged correct: 0.35, Vague: -1, Hedged wrong: -1.5, Wrong: -1.7}
        informativeness: {5: 1.25, 4: 1, 3: 0.75, 2: 0.1, 1: -0.2}
        info_weight: 1.2

    Args:
        source (`str`, `Path`, `Mapping` or [`~hf_factuality.methods.rlfh.formula.RLFHMaps`]):
            A `str` is the name of a preset (`"readme"`, `"script"`, `"class"`), else the path of a file (one that is
            there, or that ends in `.json`, `.yaml` or `.yml`), else JSON or YAML itself. A `Path` is always a file. A
            mapping is read by [`~hf_factuality.methods.rlfh.formula.RLFHMaps.from_dict`].

    Raises:
        `ValueError`: no preset, file or text of that kind; a key is there twice; or the maps are not complete. The
            message begins with the file, if there is one.
        `FileNotFoundError`: no such file.
        `TypeError`: `source` is something else.
    """
    if isinstance(source, RLFHMaps):
        return source
    if isinstance(source, Mapping):
        return RLFHMaps.from_dict(source)
    if not isinstance(source, (str, Path)):
        raise TypeError(f"RLFH's maps are a preset's name, a file, a text or a mapping, got {type(source).__name__}")
    if isinstance(source, str):
        if source.strip() in RLFH_PRESETS:
            return RLFH_PRESETS[source.strip()]
        if not _names_a_file(source):
            if ":" not in source:
                raise ValueError(f"{source!r:.100} is neither one of the presets {list(RLFH_PRESETS)} nor a file")
            return RLFHMaps.from_dict(_parse(source))
    path = Path(source)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is no file; the presets of RLFH's maps are {list(RLFH_PRESETS)}")
    try:
        return RLFHMaps.from_dict(_parse(path.read_text(encoding="utf-8-sig")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _names_a_file(text: str) -> bool:
    if "\n" in text.strip() or text.lstrip().startswith("{"):
        return False
    try:
        return text.lower().endswith(_SUFFIXES) or Path(text).is_file()
    except (OSError, ValueError):  # too long for a path, or with a zero byte
        return False


def _parse(text: str) -> Mapping[str, Any]:
    try:
        data = json.loads(text, object_pairs_hook=_once)
    except json.JSONDecodeError:
        try:
            data = yaml.load(text, Loader=_Loader)
        except yaml.YAMLError as error:
            raise ValueError(f"neither JSON nor YAML: {' '.join(str(error).split())}") from None
    if not isinstance(data, Mapping):
        raise ValueError(f"a mapping is needed, with truth and informativeness; got {data!r:.100}")
    return data


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _refuse_repeats([key for key, _ in pairs])
    return dict(pairs)


def _refuse_repeats(keys: list[Any]) -> None:
    for number, key in enumerate(keys):
        if key in keys[:number]:
            raise ValueError(f"the key {key!r} is there twice")


class _Loader(yaml.SafeLoader):
    """Plain values only, and no key twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        merge = "tag:yaml.org,2002:merge"  # "<<" takes in another mapping, whose keys may be there
        _refuse_repeats([self.construct_object(key, deep=True) for key, _ in pairs if key.tag != merge])
        return super().construct_mapping(node, deep)

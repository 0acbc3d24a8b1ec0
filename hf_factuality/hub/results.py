"""The file of results (`hf_factuality.results/1`): its schema, reading and checking, and adding to it.

`hf-factuality evaluate` and the closed-world demos write it, `compare` and the model card read it;
docs/evaluate.md describes it.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

from hf_factuality import __version__
from hf_factuality.errors import DataError
from hf_factuality.io.files import last_name, write_atomically


SCHEMA = "hf_factuality.results/1"
COMMIT = re.compile(r"[0-9a-f]{40}")
_NUMBER, _TEXT = (int, float), (str, type(None))
_ENTRY: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("benchmark", "metric", "created"), (str,)),
    "value": (*_NUMBER, type(None)),
    **dict.fromkeys(("n", "n_scored"), (int,)),
    **dict.fromkeys(("confidence_interval", "verifier", "extractor", "judge"), (dict, type(None))),
    **dict.fromkeys(("parts", "left_out", "seeds", "dataset", "generation", "settings"), (dict,)),
    "higher_is_better": (bool, type(None)),
    "comparable_to_published": (bool,),
}
_TOP: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("schema", "created", "hf_factuality"), (str,)),
    **dict.fromkeys(("model", "environment"), (dict,)),
    "results": (list,),
}
_MODEL = dict.fromkeys(("name", "revision", "adapter", "dtype", "server"), _TEXT)
_WEIGHTS = ("*.safetensors", "*.bin", "config.json", "adapter_config.json")
_NO_WEIGHTS = {"training_args.bin", "optimizer.bin", "scheduler.bin"}
_WHOLE = 1 << 30
"""Bytes of weights that are read whole for a fingerprint."""
_PIECE, _SMALL, _SAMPLE = 1 << 24, 1 << 16, 1 << 13
"""Of more, tensors are cut in such pieces, and of a piece that is not small the ends and the middle are read."""
_KEY = ("benchmark", "metric", "seeds", "dataset", "verifier", "judge", "generation", "settings")
"""Two results with the same values of these are one; the later replaces the earlier."""
_OF_THE_MODEL = ("answers", "sha256")
"""Entries of `generation` that two models never share: each has a file of answers of its own."""


def now() -> str:
    """Time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def environment(device: str | None = None) -> dict[str, Any]:
    """Versions that the results come from, and the names of the devices (`"cuda"`, `"cpu"`) that the model ran on."""
    devices = [] if device is None else [device]
    if device == "cuda":
        import torch

        devices = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    versions = {name: version(name) for name in ("torch", "transformers", "datasets")}
    return {"python": platform.python_version(), **versions, "devices": devices}


def public(value: Any) -> Any:
    """Plain values without folders: of what is a path only the last name stays, as files are published."""
    if isinstance(value, Mapping):
        return {str(key): public(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [public(item) for item in value]
    if isinstance(value, Path):
        return value.name
    if isinstance(value, str):
        head, colon, rest = value.partition(":")
        if colon and re.fullmatch(r"\w{2,}", head) and not rest.startswith("//"):  # "nli:FOLDER"
            return f"{head}:{public(rest)}"
        return last_name(value)
    return value


def load_results(path: str | Path) -> dict[str, Any]:
    """Read a file that `hf-factuality evaluate` wrote and check it; docs/evaluate.md describes what it holds. `DataError`: it
    is no JSON, has another schema, or names the entry that is wrong and how. `OSError`: it cannot be read."""
    path = Path(path)
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is no file of results: {error}") from None
    check_results(found, str(path))
    return found


def check_results(found: Any, place: str) -> None:
    """Check results against the schema; a `DataError` names the entry that is wrong, and how."""
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        schema = found.get("schema") if isinstance(found, dict) else None
        raise DataError(f"{place} has the schema {schema!r}; this version reads {SCHEMA!r}")
    _check(found, _TOP, place)
    try:
        json.dumps(found, ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError) as error:
        raise DataError(f"{place} holds what no text can show: {error}") from None
    _check(found["model"], _MODEL, f"{place}: model", fingerprint=_TEXT)
    for number, entry in enumerate(found["results"]):
        name = f"{place}: results[{number}]"
        if not isinstance(entry, dict):
            raise DataError(f"{name} must be an object, got {entry!r:.100}")
        _check(entry, _ENTRY, name, title=(str,), note=(str,), leaderboard=(dict,))
        if "leaderboard" in entry:
            _check(entry["leaderboard"], {"id": (str,)}, f"{name}: leaderboard", config=_TEXT, split=_TEXT)
        interval = entry["confidence_interval"]
        if interval is not None:
            _check(interval, dict.fromkeys(("low", "high", "level"), _NUMBER), f"{name}: confidence_interval")
            if interval["low"] > interval["high"]:
                raise DataError(f"{name}: confidence_interval has low {interval['low']} above high {interval['high']}")
            if not 0 < interval["level"] < 1:
                raise DataError(f"{name}: confidence_interval has the level {interval['level']}; 95 % is 0.95")
        _check(entry["dataset"], {}, f"{name}: dataset", split=_TEXT)
        for part in ("verifier", "judge"):
            _check(entry[part] or {}, {}, f"{name}: {part}", name=_TEXT)
        _check(entry["generation"], {}, f"{name}: generation", temperature=(*_NUMBER, type(None)))
        if not 0 <= entry["n_scored"] <= entry["n"]:
            raise DataError(f"{name}: n_scored {entry['n_scored']} must be between 0 and n {entry['n']}")


def _check(
    found: Mapping[str, Any], wanted: Mapping[str, tuple[type, ...]], place: str, /, **maybe: tuple[type, ...]
) -> None:
    """Check what `found` must hold, and what it may hold."""
    for name in wanted:
        if name not in found:
            raise DataError(f"{place} lacks {name!r}; it has {sorted(found)}")
    for name, kinds in {**wanted, **maybe}.items():
        if name not in found:
            continue
        value = found[name]
        fine = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
        # JSON knows integers beyond every float, and Python's reader NaN.
        if not fine or isinstance(value, _NUMBER) and not abs(value) <= sys.float_info.max:
            names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
            raise DataError(f"{place}: {name!r} must be {names}, got {value!r:.100}")


def check_same_model(path: Path, model: Mapping[str, Any]) -> None:
    """Refuse to add the results of a model to a file, if there is one, of another model."""
    if not path.exists():
        return
    before = load_results(path)["model"]
    different = differences(before, json.loads(json.dumps(public(model))))
    if different:
        what = f"{path} holds the results of {before['name']!r}, not of {model['name']!r}: {'; '.join(different)}"
        raise DataError(f"{what}. Name another file with `out`")


def write_results(
    path: Path,
    model: Mapping[str, Any],
    results: Sequence[Mapping[str, Any]],
    machine: Mapping[str, Any],
    command: str | None = None,
) -> dict[str, Any]:
    """Add results to a file, or make it; it is there whole or as it was before. Returns what was written.

    One with the same benchmark, metric and settings as an older one replaces it.
    """
    check_same_model(path, model)
    new = [public(entry) for entry in results]
    old: list[dict[str, Any]] = []
    if path.exists():
        before = load_results(path)
        keys = {_key(entry) for entry in new}
        for entry in before["results"]:
            if _key(entry) not in keys:
                # What was measured with other versions says so itself, now that the file's entry changes.
                other = {} if before["environment"] == machine else {"environment": before["environment"]}
                old.append({**other, **entry})
    found = {
        "schema": SCHEMA,
        "created": now(),
        "hf_factuality": __version__,
        "model": public(model),
        "results": [*old, *new],
        "environment": dict(machine),
        **({"command": command} if command else {}),
    }
    found = json.loads(json.dumps(found, allow_nan=False))
    check_results(found, path.name)
    write_atomically(path, (json.dumps(found, indent=2, ensure_ascii=True) + "\n").encode())
    return found


def _key(entry: Mapping[str, Any]) -> str:
    return json.dumps({name: entry.get(name) for name in _KEY}, sort_keys=True)


def measured_entry(
    benchmark: str,
    metric: str,
    items: Sequence[tuple[float, float]],
    *,
    dataset: Mapping[str, Any],
    generation: Mapping[str, Any],
    verifier: Mapping[str, Any] | None = None,
    higher_is_better: bool | None = True,
    title: str | None = None,
    note: str | None = None,
) -> dict[str, Any]:
    """An entry of results for a ratio of sums over items, with its interval, as the closed-world demos measure.

    An item is a numerator and a denominator; one with a denominator of 0 has nothing to score and is left out. The
    interval is a percentile bootstrap over items (95 %, 1000 resamples, seed 0).
    """
    from hf_factuality.functional.metrics import bootstrap_interval

    scored = sum(bool(weight) for _, weight in items)
    settings = {"level": 0.95, "resamples": 1000, "seed": 0}
    found = None
    if scored > 1 and all(weight == 1 for _, weight in items):
        found = bootstrap_interval([value for value, _ in items], **settings)
    elif scored > 1:
        found = bootstrap_interval(items, _ratio, **settings)
    return {
        "benchmark": benchmark,
        "metric": metric,
        "value": _ratio(items),
        "n": len(items),
        "n_scored": scored,
        "confidence_interval": None if found is None else {"low": found[0], "high": found[1], **settings},
        "higher_is_better": higher_is_better,
        "parts": {},
        "left_out": {"responses": {"nothing_to_score": len(items) - scored}},
        "truncated": None,
        "seeds": {"dataset": None, "generation": generation.get("seed"), "interval": settings["seed"]},
        "dataset": dict(dataset),
        "verifier": None if verifier is None else dict(verifier),
        "extractor": None,
        "judge": None,
        "generation": dict(generation),
        "comparable_to_published": False,
        "settings": {},
        "created": now(),
        **({"title": title} if title else {}),
        **({"note": note} if note else {}),
    }


def _ratio(items: Sequence[tuple[float, float]]) -> float | None:
    total = sum(weight for _, weight in items)
    return sum(value for value, _ in items) / total if total else None


def measurement(entry: Mapping[str, Any]) -> str:
    """How something was measured, as text: two models' results are comparable where this is the same."""
    found = {name: entry.get(name) for name in _KEY}
    found["generation"] = {name: value for name, value in entry["generation"].items() if name not in _OF_THE_MODEL}
    return json.dumps(found, sort_keys=True)


def changed_measurement(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Names of the settings in which two entries were measured differently, such as `"generation.temperature"`."""
    found = differences(json.loads(measurement(before)), json.loads(measurement(after)))
    return [text.partition(":")[0] for text in found]


def folder_fingerprint(folder: Path) -> str | None:
    """Hash of names, sizes and contents of the weights in a folder, 32 hexadecimal digits; `None` if there are none.

    Weights above 1 GiB are sampled, so that large ones take seconds: docs/cards.md says how, and what is then not seen.
    """
    digest = hashlib.sha256()
    found = {path for pattern in _WEIGHTS for path in folder.glob(pattern) if path.name not in _NO_WEIGHTS}
    sizes = {path: path.stat().st_size for path in sorted(found) if path.is_file()}
    if not any(path.suffix != ".json" for path in sizes):
        return None
    whole = sum(sizes.values()) <= _WHOLE
    for path, size in sizes.items():
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            if whole:
                while data := file.read(1 << 20):
                    digest.update(data)
                continue
            for start, end in _samples(file, size):
                file.seek(start)
                digest.update(file.read(end - start))
    return digest.hexdigest()[:32]


def _samples(file: BinaryIO, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of bytes that stand for a large file."""
    for start, end in _tensors(file, size):
        for first in range(start, end, _PIECE):
            last = min(first + _PIECE, end)
            if last - first <= _SMALL:
                yield first, last
                continue
            middle = (first + last - _SAMPLE) // 2
            yield from ((place, place + _SAMPLE) for place in (first, middle, last - _SAMPLE))


def _tensors(file: BinaryIO, size: int) -> list[tuple[int, int]]:
    """Ranges of the tensors of a safetensors file, after its header cut small; of another file the whole of it."""
    try:
        start = 8 + int.from_bytes(file.read(8), "little")
        if start > min(size, 1 << 27):  # the format allows a header of 100 MB
            raise ValueError
        header = json.loads(file.read(start - 8))
        header.pop("__metadata__", None)
        offsets = [it["data_offsets"] for it in header.values()]
        places = sorted({(start + first, start + last) for first, last in offsets})
        if any({type(first), type(last)} != {int} or not start <= first <= last <= size for first, last in places):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return [(0, size)]
    return [*((place, min(place + _SMALL, start)) for place in range(0, start, _SMALL)), *places]


def differences(before: Any, after: Any, name: str = "") -> list[str]:
    """What differs between two trees of plain values, as `name: before -> after`."""
    if isinstance(before, dict) and isinstance(after, dict):
        found = []
        for key in sorted({*before, *after}):
            found += differences(before.get(key), after.get(key), f"{name}.{key}" if name else key)
        return found
    return [] if before == after else [f"{name}: {_short(before)} there, {_short(after)} now"]


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "..."


def shown_value(entry: Mapping[str, Any]) -> str:
    """The value of an entry of results, and its interval."""
    if entry["value"] is None:
        return "n/a"
    interval = entry["confidence_interval"]
    shown = f" ({interval['low']:.3f} to {interval['high']:.3f})" if interval else ""
    return f"{entry['value']:.3f}{shown}"


def shown_count(entry: Mapping[str, Any]) -> str:
    return str(entry["n_scored"]) + (f" of {entry['n']}" if entry["n_scored"] < entry["n"] else "")


def format_value(value: Any) -> str:
    """A figure with three digits behind the point; "n/a" for what is not known."""
    return "n/a" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)

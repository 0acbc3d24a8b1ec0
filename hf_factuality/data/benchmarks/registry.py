"""Every benchmark by name, and its items."""

from __future__ import annotations

import difflib
import hashlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_factuality._lazy import is_object_name, load_name
from hf_factuality.data.benchmarks.base import BenchmarkItem, with_checklist
from hf_factuality.data.benchmarks.readers import READERS
from hf_factuality.data.benchmarks.rows import BenchmarkReader, BenchmarkRow, Unusable, column_keys
from hf_factuality.data.benchmarks.sources import BenchmarkSource, read_benchmark
from hf_factuality.errors import DataError


logger = logging.getLogger(__name__)

_NAME = re.compile(r"\w[\w.-]*")
# Columns that hold a dataset's own id.
_IDS = ("id", "_id", "question_id", "unique_id", "problem_idx")


def benchmark_names() -> tuple[str, ...]:
    """Names of all benchmarks, sorted."""
    return tuple(sorted(READERS))


def get_benchmark(name: str | BenchmarkReader) -> BenchmarkReader:
    """What is known of a benchmark: one of ours by its name, or one of the user's own, as `"package.module:name"` or as the
    [`BenchmarkReader`] that this stands for. If there is none of this name, a `DataError` names similar ones."""
    if isinstance(name, BenchmarkReader) or is_object_name(name):
        return _own(name)
    if name not in READERS:
        close = difflib.get_close_matches(str(name).lower(), READERS, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose one of {sorted(READERS)}"
        raise DataError(f"unknown benchmark {name!r}; {hint}")
    return READERS[name]


def _own(given: str | BenchmarkReader) -> BenchmarkReader:
    wanted = "a `BenchmarkReader` of hf_factuality.data.benchmarks"
    reader = given
    if isinstance(given, str):
        reader = load_name(given, "the benchmark", lambda found: isinstance(found, BenchmarkReader), wanted)
    if READERS.get(reader.name, reader) is not reader:
        raise DataError(f"we have a benchmark {reader.name!r}; give yours another `name`")
    if not _NAME.fullmatch(reader.name):  # it becomes part of the names of files
        raise DataError(f"the `name` of a benchmark has letters, digits, '.', '_' and '-', got {reader.name!r}")
    return reader


def named_benchmarks(given: Iterable[str | BenchmarkReader]) -> tuple[list[str], dict[str, BenchmarkReader]]:
    """The names of benchmarks, and by these names those that are the user's own."""
    own: dict[str, BenchmarkReader] = {}
    names = []
    for benchmark in given:
        if isinstance(benchmark, str) and not is_object_name(benchmark):
            names.append(benchmark)
            continue
        reader = get_benchmark(benchmark)
        if own.setdefault(reader.name, reader) is not reader:
            raise DataError(f"two benchmarks are called {reader.name!r}; rename one")
        names.append(reader.name)
    return list(dict.fromkeys(names)), own


def load_items(
    name: str | BenchmarkReader,
    *,
    path: str | Path | None = None,
    split: str | None = None,
    revision: str | None = None,
    style: str | None = None,
    seed: int | None = 0,
    limit: int | None = None,
) -> tuple[list[BenchmarkItem], dict[str, Any]]:
    """Read a benchmark.

    Args:
        name (`str` or [`BenchmarkReader`]):
            One of [`benchmark_names`], or a benchmark of your own, as [`get_benchmark`] takes it.
        path (`str` or `Path`, *optional*):
            A .jsonl, .json, .csv or .parquet file (for biographies also .txt, one entity per line), a folder, or a
            repository on the Hub; by default the benchmark's.
        split (`str`, *optional*):
            Split of a folder or repository; `"objects"` or `"concepts"` of a folder with LongFact's files. By default,
            that of the benchmark, or the only one.
        revision (`str`, *optional*):
            Branch, tag or commit on the Hub.
        style (`str`, *optional*):
            Style of prompt, one of the benchmark's; by default its first.
        seed (`int`, *optional*, defaults to `0`):
            Of the sample that `limit` takes, and of the choice between HaluEval's candidates. `None`: `limit` takes the
            first items, and the choices are those of seed 0.
        limit (`int`, *optional*):
            Most items. A sample is part of every larger one with the same seed, and keeps the order of the source.

    Returns:
        `tuple[list[BenchmarkItem], dict]`: the items, and where they come from: `dataset` (repository, file or folder
        name), `split`, `revision` (commit, or SHA-256 of what was read; `None` if unknown), `rows` of the source, `used`
        items, `style`, `seed`, and `dropped`, which counts by reason the rows that cannot be used.

    Raises:
        `DataError`: an unknown name or style, a source that cannot be read or lacks columns, or no usable row.
    """
    reader = get_benchmark(name)
    name = reader.name
    style = reader.styles[0] if style is None else style
    if style not in reader.styles:
        raise DataError(f"{name} has no style {style!r}; choose one of {list(reader.styles)}")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise DataError(f"limit must be a whole number of at least 1, or None for all items, got {limit!r}")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise DataError(f"seed must be a whole number, or None, got {seed!r}")

    source = read_benchmark(reader, path, split, revision)
    items, dropped = _build(reader, source, style, seed or 0)
    order = range(len(items)) if seed is None else sorted(range(len(items)), key=lambda n: _rank(items[n].id, seed))
    items = [items[place] for place in sorted(order[:limit])]
    return items, {
        "dataset": source.name,
        "split": source.split,
        "revision": source.revision,
        "rows": sum(len(rows) for _, rows in source.parts),
        "used": len(items),
        "style": style,
        "seed": seed,
        "dropped": dropped,
    }


def _build(
    reader: BenchmarkReader, source: BenchmarkSource, style: str, seed: int
) -> tuple[list[BenchmarkItem], dict[str, int]]:
    rows = [row for _, part in source.parts for row in part]
    groups = [group for group, part in source.parts for _ in part]
    present = dict.fromkeys(column for row in rows for column in row)
    columns = reader.find_columns(present, source.name)
    drawn: list[bool | None] = [None] * len(rows)
    if reader.draws:
        from hf_factuality.functional.metrics import seeded_choices

        drawn = list(seeded_choices(len(drawn), seed))
    items, reasons = [], {}
    for raw, group, id_, choice in zip(rows, groups, _ids(source, rows, column_keys(present)), drawn, strict=True):
        values = {wanted: raw[column] for wanted, column in columns.items() if column in raw}
        try:
            item = reader.build(BenchmarkRow(values, id_, group, choice), style)
            items.append(with_checklist(item, raw, f"{source.name}, row {id_}"))
        except Unusable as reason:
            reasons.setdefault(str(reason), []).append(id_)
    for reason, ids in reasons.items():
        logger.warning("%s: dropped %d of %d rows, %s: %s", source.name, len(ids), len(rows), reason, ids[:20])
    dropped = {reason: len(ids) for reason, ids in reasons.items()}
    if not items:
        raise DataError(f"{source.name}: none of its {len(rows)} rows can be used: {dropped}; check the file")
    return items, dropped


def _ids(source: BenchmarkSource, rows: list[dict[str, Any]], keys: dict[str, Any]) -> list[str]:
    """The dataset's own ids if every row has one and no two are equal, otherwise the numbers of the rows."""
    for name in _IDS:
        own = [row.get(keys[name]) for row in rows] if name in keys else []
        ids = [str(value).strip() for value in own if isinstance(value, (str, int)) and str(value).strip()]
        if len(set(ids)) == len(rows):
            return ids
    return [
        str(number) if group is None else f"{group}-{number}"
        for group, part in source.parts
        for number in range(len(part))
    ]


def _rank(id_: str, seed: int) -> str:
    return hashlib.sha256(f"{seed}:{id_}".encode("utf-8", "surrogatepass")).hexdigest()

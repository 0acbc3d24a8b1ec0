"""How a knowledge base is read from its source and written: in bounded memory, whole or not at all."""

from __future__ import annotations

import glob
import gzip
import hashlib
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tqdm import tqdm

from hf_factuality.errors import DataError, RetrievalError
from hf_factuality.generation.journal import only_run
from hf_factuality.io.files import writing
from hf_factuality.io.rows import read_lines
from hf_factuality.retrieval.pages import bare_name, encodable, title_key


FORMAT = "1"
"""Raised when the tables of a file change their meaning."""
MAGIC = b"SQLite format 3\0"
DUPLICATES = ("first", "join", "error")
_JSON_LINES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
_TABLES = {".csv": "csv", ".parquet": "parquet"}  # suffix -> builder of `datasets`
_UNFINISHED = ".building"  # ends the name of what is written to
_ARGUMENTS = ("title_column", "text_column")
_BATCH = 256  # rows that are in memory at a time
_PAGE = 16384  # bytes; in SQLite's 4096 a text of 2.1 KB would fill a page alone
_CACHE_KIB = 65536  # SQLite's page cache during a build

# A row: where it stands (for messages), its title, its text.
Row = tuple[str, str, str]


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as SQLite's do."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_pages(
    source: Any, columns: tuple[str, str], config: str | None, split: str, revision: str | None
) -> Iterator[Row]:
    """Rows of anything that [`KnowledgeBase.build`] takes but another base, a few in memory at a time."""
    place = type(source).__name__
    if isinstance(source, (str, Path)):
        source, place = _open(Path(source).expanduser(), config, split, revision), str(source)
    if isinstance(source, Mapping):
        raise DataError(f"{place} is a dict of {sorted(map(str, source))}; pass one of them (a split)")
    if not isinstance(source, Iterable):
        raise DataError(f"no rows can be read from a {place}; pass a dataset, a file or (title, text) pairs")
    if set(columns) <= set(getattr(source, "column_names", None) or ()):  # images of other columns stay undecoded
        source = source.select_columns(list(columns)).with_format(None)
    return _records(source, columns, place)


def _open(path: Path, config: str | None, split: str, revision: str | None) -> Iterable[Any]:
    name, kind = path.name.lower(), _TABLES.get(path.suffix.lower())
    is_json = name.endswith(_JSON_LINES)
    if path.is_file() and is_json:
        return _json_lines(path)
    if path.is_file() and kind is None:
        raise DataError(f"{path}: files end in {', '.join((*_JSON_LINES[:2], *_TABLES))}, or are knowledge bases")
    if not path.exists() and (kind or is_json or name.endswith((".db", ".sqlite")) or path.is_absolute()):
        raise DataError(f"there is no file {path}")
    import datasets

    try:
        if kind:
            return datasets.load_dataset(kind, data_files=str(path), split="train", streaming=True)
        if path.is_dir() and ((path / "state.json").exists() or (path / "dataset_dict.json").exists()):
            return datasets.load_from_disk(str(path))
        return datasets.load_dataset(str(path), config, split=split, revision=revision, streaming=True)
    except Exception as error:  # of many kinds: no network, no such dataset, split or configuration
        raise DataError(f"cannot load the dataset {str(path)!r}: {error}") from error


def _json_lines(path: Path) -> Iterator[Any]:
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as file:
        try:
            yield from (row for _, _, row in read_lines(file, str(path), strict=True))
        except (EOFError, OSError, zlib.error) as error:  # of what is no gzip, cut off or damaged
            raise DataError(f"{path} cannot be read: {error}") from None


def _records(rows: Iterable[Any], columns: tuple[str, str], place: str) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        where = f"{place}, row {number}"
        if isinstance(row, Mapping):
            for name, argument in zip(columns, _ARGUMENTS, strict=True):
                if name not in row:
                    found = sorted(map(str, row))
                    raise DataError(f"{where} has no column {name!r} (found {found}); name it with {argument}")
            row = [row[name] for name in columns]
        elif not isinstance(row, (tuple, list)) or len(row) != 2:
            raise DataError(f"{where}: a row is a dict or a (title, text) pair, got {row!r:.100}")
        title, text = row
        if isinstance(text, (list, tuple)) and all(isinstance(part, str) for part in text):
            text = "\n".join(text)
        for value, argument in zip((title, text), _ARGUMENTS, strict=True):
            if value is not None and not isinstance(value, str):
                raise DataError(f"{where}: {argument} must name a column of texts, got {value!r:.100}")
        yield where, title or "", text or ""


def write_base(path: Path, rows: Iterable[Row], duplicates: str, overwrite: bool, show_progress: bool | None) -> None:
    """Write the file of [`KnowledgeBase.build`], which explains the arguments."""
    if duplicates not in DUPLICATES:
        raise ValueError(f"duplicates must be one of {DUPLICATES}, got {duplicates!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    disable = None if show_progress is None else not show_progress
    taken = f"another process is building {path}; wait for it, or choose another name"
    with only_run(path.with_name(f".{path.name}{_UNFINISHED}.lock"), taken):
        if path.exists() and not overwrite:
            raise DataError(f"{path} is there already; choose another name or pass `overwrite=True`")
        for left in path.parent.glob(f".{glob.escape(path.name)}.????????{_UNFINISHED}"):
            left.unlink()  # of a build that was killed; it may be as large as the base
        try:
            with writing(path, _UNFINISHED) as partial:
                _write(partial, tqdm(rows, desc="pages", unit=" rows", disable=disable), duplicates)
        except sqlite3.Error as error:
            raise RetrievalError(f"cannot write {path}: {error}; is the disk full?") from None


def _write(path: Path, rows: Iterable[Row], duplicates: str) -> None:
    counts = dict.fromkeys(("documents", "duplicates", "empty", "untitled"), 0)
    digest = hashlib.sha256(f"{FORMAT} {duplicates}".encode())
    action = "UPDATE SET text = text || char(10) || excluded.text" if duplicates == "join" else "NOTHING"
    insert = f"INSERT INTO building (title, text) VALUES (?, ?) ON CONFLICT (title) DO {action}"
    rows = iter(rows)
    database = sqlite3.connect(path, isolation_level=None)
    try:
        # What becomes of a build that is killed does not matter, so there is no journal.
        settings = {"page_size": _PAGE, "journal_mode": "OFF", "synchronous": "OFF", "cache_size": -_CACHE_KIB}
        for name, value in settings.items():
            database.execute(f"PRAGMA {name} = {value}")
        database.execute("BEGIN")
        # Named `documents` in the end, so that no reader takes what a killed build leaves for a base.
        database.execute(
            "CREATE TABLE building (id INTEGER PRIMARY KEY, title TEXT NOT NULL UNIQUE, text TEXT NOT NULL)"
        )
        while batch := list(islice(rows, _BATCH)):
            kept = []
            for place, title, text in batch:
                title, text = encodable(" ".join(title.split())), encodable(text)
                if not title or not text.strip():
                    counts["empty" if title else "untitled"] += 1
                    continue
                for part in (title.encode(), text.encode()):
                    digest.update(len(part).to_bytes(8, "big") + part)
                kept.append((title, text))
                if duplicates == "error" and not database.execute(insert, kept[-1]).rowcount:
                    raise DataError(f'{place}: the title {title!r} comes twice; pass duplicates="first" or "join"')
            counts["duplicates"] += len(kept)
            if duplicates != "error":
                database.executemany(insert, kept)
        (counts["documents"],) = database.execute("SELECT COUNT(*) FROM building").fetchone()
        counts["duplicates"] -= counts["documents"]
        if not counts["documents"]:
            blank = counts["empty"] + counts["untitled"]
            raise DataError(f"no page to put into a knowledge base: {blank} rows, all without title or text")
        database.execute("CREATE TABLE title_names (name TEXT NOT NULL, id INTEGER NOT NULL)")
        titles = database.execute("SELECT id, title FROM building ORDER BY id")
        names = ((bare_name(title_key(title)), number) for number, title in titles)
        database.executemany("INSERT INTO title_names VALUES (?, ?)", names)
        database.execute("CREATE INDEX title_names_by_name ON title_names (name, id)")
        database.execute("CREATE TABLE hf_factuality (name TEXT PRIMARY KEY, value TEXT NOT NULL)")
        meta = {"format": FORMAT, "fingerprint": digest.hexdigest()[:32]}
        meta |= {f"count_{name}": str(number) for name, number in counts.items()}
        database.executemany("INSERT INTO hf_factuality VALUES (?, ?)", meta.items())
        database.execute("ALTER TABLE building RENAME TO documents")
        database.execute("COMMIT")
    finally:
        database.close()

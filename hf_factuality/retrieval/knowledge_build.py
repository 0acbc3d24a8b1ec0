"""How a knowledge base is read from its source and written: in bounded memory, whole or not at all."""

from __future__ import annotations

import gzip
import hashlib
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from tqdm import tqdm

from hf_factuality.errors import DataError, RetrievalError
from hf_factuality.io.files import sync
from hf_factuality.io.rows import LineError, read_lines
from hf_factuality.retrieval.pages import Page, bare_name, encodable, title_key


__all__ = ["DUPLICATES", "is_sqlite", "read_source", "write_base"]

# Raised when the tables of a file change their meaning.
FORMAT = "1"
# Ending of the file that a build writes to; nothing that ends so is ever opened.
BUILDING = ".building"
MAGIC = b"SQLite format 3\0"
DUPLICATES = ("first", "join", "error")
_JSON_LINES = (".jsonl", ".ndjson", ".json", ".jsonl.gz", ".ndjson.gz", ".json.gz")
_TABLES = {".csv": "csv", ".parquet": "parquet"}  # suffix -> builder of `datasets`
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


def read_source(
    source: Any, columns: tuple[str, str], config: str | None, split: str, revision: str | None
) -> Iterator[Row]:
    """Rows of anything that [`KnowledgeBase.build`] takes but another base, a few in memory at a time.

    Args:
        source (`Any`):
            See [`KnowledgeBase.build`].
        columns (`tuple[str, str]`):
            Names of the title and the text.
        config (`str`, *optional*), split (`str`), revision (`str`, *optional*):
            For a dataset on the Hub.

    Raises:
        `DataError`: names the row, what it holds and the argument that mends it.
    """
    if isinstance(source, (str, Path)):
        source, place = _open(Path(source).expanduser(), config, split, revision), str(source)
    else:
        place = type(source).__name__
    if isinstance(source, Mapping):
        raise DataError(f"{place} is a dict of {sorted(map(str, source))}; pass one of them (a split)")
    if hasattr(source, "iter") and hasattr(source, "column_names"):  # a dataset of `datasets`
        return _records(_dataset_rows(source, columns, place), columns, place)
    if not isinstance(source, Iterable):
        raise DataError(f"no rows can be read from a {place}; pass a dataset, a file or (title, text) pairs")
    return _records(source, columns, place)


def _open(path: Path, config: str | None, split: str, revision: str | None) -> Any:
    name = path.name.lower()
    kind = next((kind for suffix, kind in _TABLES.items() if name.endswith(suffix)), None)
    if path.is_file() and name.endswith(_JSON_LINES):
        return _json_lines(path)
    if path.is_file() and kind is None:
        raise DataError(f"{path}: files end in {', '.join((*_JSON_LINES[:2], *_TABLES))}, or are knowledge bases")
    looks_local = kind or name.endswith(_JSON_LINES) or name.endswith((".db", ".sqlite")) or path.is_absolute()
    if looks_local and not path.exists():
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
        except LineError as error:
            place = f"{path}, near line {error.number}"
            raise DataError(f"{place}: {error.reason}; it must hold one JSON object per line") from None
        except (EOFError, OSError, zlib.error) as error:  # of what is no gzip, cut off or damaged
            raise DataError(f"{path} cannot be read: {error}") from None


def _dataset_rows(dataset: Any, columns: tuple[str, str], place: str) -> Iterator[Mapping[str, Any]]:
    missing = [name for name in columns if dataset.column_names is not None and name not in dataset.column_names]
    if missing:
        raise _missing(missing[0], columns, dataset.column_names, place)
    if dataset.column_names is not None:
        dataset = dataset.select_columns(list(columns))
    for batch in dataset.iter(batch_size=_BATCH):
        if any(name not in batch for name in columns):
            raise _missing(next(name for name in columns if name not in batch), columns, batch, place)
        for title, text in zip(*(batch[name] for name in columns), strict=True):
            yield {columns[0]: title, columns[1]: text}


def _records(rows: Iterable[Any], columns: tuple[str, str], place: str) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        where = f"{place}, row {number}"
        if isinstance(row, Mapping):
            for name in columns:
                if name not in row:
                    raise _missing(name, columns, row, where)
            title, text = row[columns[0]], row[columns[1]]
        elif isinstance(row, Page):
            title, text = row.title, row.text
        elif isinstance(row, (tuple, list)) and len(row) == 2:
            title, text = row
        else:
            raise DataError(f"{where}: a row is a dict or a (title, text) pair, got {row!r:.100}")
        if isinstance(text, (list, tuple)) and all(isinstance(part, str) for part in text):
            text = "\n".join(text)
        for name, value in zip(columns, (title, text), strict=True):
            if value is not None and not isinstance(value, str):
                raise DataError(
                    f"{where}: {name!r} must be text, got {value!r:.100}; name the column with {name}_column"
                )
        yield where, title or "", text or ""


def _missing(name: str, columns: tuple[str, str], found: Iterable[Any], place: str) -> DataError:
    argument = "title_column" if name == columns[0] else "text_column"
    return DataError(f"{place} has no column {name!r} (found {sorted(map(str, found))}); name it with {argument}")


def write_base(
    path: Path,
    rows: Iterable[Row],
    duplicates: str,
    overwrite: bool,
    show_progress: bool | None,
) -> None:
    """Write the file of [`KnowledgeBase.build`], which explains the arguments.

    Rows go to a file of another name, in a table of another name; both get theirs when everything is there.
    """
    if duplicates not in DUPLICATES:
        raise ValueError(f"duplicates must be one of {DUPLICATES}, got {duplicates!r}")
    if path.name.endswith(BUILDING):
        raise DataError(f"{path}: a name that ends in {BUILDING!r} marks unfinished files; choose another")
    temporary = path.with_name(f".{path.name}{BUILDING}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{temporary}.lock", timeout=0):
            if path.exists() and not overwrite:
                raise DataError(f"{path} is there already; choose another name or pass overwrite=True (--overwrite)")
            temporary.unlink(missing_ok=True)  # of a build that was killed
            disable = None if show_progress is None else not show_progress
            try:
                _write(temporary, tqdm(rows, desc="pages", unit=" rows", disable=disable), duplicates)
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
    except Timeout:
        raise RetrievalError(f"another process is building {path}; wait for it") from None
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
        for pragma in (
            f"page_size = {_PAGE}",
            "journal_mode = OFF",
            "synchronous = OFF",
            f"cache_size = -{_CACHE_KIB}",
        ):
            database.execute(f"PRAGMA {pragma}")
        database.execute("BEGIN")
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
    sync(path)

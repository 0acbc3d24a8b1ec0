"""Rows of JSON Lines, JSON, CSV, TSV and Parquet files, a few in memory at a time: the one reader of what users give."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from hf_factuality.errors import DataError


_MARK = b"\xef\xbb\xbf"
SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet")
"""How the names of files of rows end."""
_BATCH = 256  # rows of a Parquet file


class LineError(DataError):
    """A line, counted from 1, that is not JSON."""

    def __init__(self, name: str, number: int, reason: str):
        super().__init__(f"{name}, line {number} is not JSON: {reason}")
        self.number, self.reason = number, reason


class Cell(str):
    """Text of a table that has no types (CSV), in which a list is written as JSON; see [`json_list`]."""

    __slots__ = ()


def json_list(value: Any) -> Any:
    """The list that a [`Cell`] holds as JSON; any other value as it is."""
    if isinstance(value, Cell) and value.lstrip()[:1] == "[":
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return found if isinstance(found, list) else value
    return value


def is_missing(value: Any) -> bool:
    """Whether a value is `None` or NaN, as tables write what is not there."""
    return value is None or (isinstance(value, float) and value != value)


def file_kind(path: str | Path, any_name: bool = False) -> str:
    """How the rows of a file are written: `"lines"`, `"list"`, `"object"` (all JSON), `"table"` (CSV, TSV) or `"parquet"`.

    By the end of its name, and by its first bytes where these say more. With `any_name` a file whose name has another end holds
    JSON Lines; else, and of what is compressed or a workbook, `DataError`.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES and not any_name:
        raise DataError(f"{path} must be a {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file")
    with path.open("rb") as file:
        head = file.read(8)
        if head[:4] == b"PAR1" or suffix == ".parquet":
            return "parquet"
        if head[:2] == b"\x1f\x8b" or head[:4] == b"\x28\xb5\x2f\xfd":
            raise DataError(f"{path} is compressed; unpack it first")
        if suffix == ".eval" and head[:2] == b"PK":
            raise DataError(
                f"{path} is a log of Inspect as an archive; write it as JSON with `inspect log convert` first"
            )
        if head[:4] in (b"PK\x03\x04", b"\xd0\xcf\x11\xe0"):
            raise DataError(f"{path} is a workbook or an archive; save its rows as CSV")
        file.seek(0)
        begins = _begins(file) if suffix == ".json" else b""
        if begins == b"[":
            return "list"
        if begins == b"{" and _is_object(file):
            return "object"
    return "table" if suffix in (".csv", ".tsv") else "lines"


def read_rows(path: str | Path, strict: bool = False, any_name: bool = False) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers: lines counted from 1 in JSON Lines and tables, else rows counted from 0.

    The file ends in one of [`SUFFIXES`], or see [`file_kind`]. A `.json` file may hold one list or one conversation, read whole,
    or lines; the rows of a log of Inspect are its samples. For `strict` see [`read_lines`]. A table is CSV or TSV with a header: its cells are texts ([`Cell`]), empty ones `None`. NaN is
    `None` too. `DataError` says what is wrong, `OSError` that it cannot be read.
    """
    path = Path(path)
    kind = file_kind(path, any_name)
    readers = {"parquet": _parquet, "table": _table, "list": _list, "object": _object, "lines": _numbered}
    for number, row in readers[kind](path, strict):
        if isinstance(row, dict) and any(is_missing(value) for value in row.values()):
            row = {name: None if is_missing(value) else value for name, value in row.items()}
        yield number, row


def _parquet(path: Path, strict: bool) -> Iterator[tuple[int, Any]]:
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            batches = file.iter_batches(batch_size=_BATCH)
            yield from enumerate(row for batch in batches for row in batch.to_pylist())
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise DataError(f"{path} is no Parquet file, or a damaged one: {error}") from None


def _list(path: Path, strict: bool) -> Iterator[tuple[int, Any]]:
    text = _decoded(path.read_bytes(), str(path), strict)
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    yield from enumerate(rows)


def _is_log(value: Any) -> bool:
    """Whether it is a log of Inspect, whose rows are its samples."""
    return isinstance(value, dict) and "samples" in value and {"eval", "status"} <= set(value)


def _is_object(file: BinaryIO) -> bool:
    """Whether a file that begins with a brace holds a log, or one conversation over several lines, and not an object per line."""
    file.seek(0)
    line = next(line for line in file if line.removeprefix(_MARK).strip())
    try:
        return _is_log(json.loads(line.removeprefix(_MARK)))
    except (ValueError, RecursionError):
        pass
    file.seek(0)
    try:
        value = json.loads(file.read().removeprefix(_MARK))
        return _is_log(value) or isinstance(value, dict) and isinstance(value.get("messages"), list)
    except (ValueError, RecursionError):
        return False  # whose line is wrong is said when the lines are read


def _object(path: Path, strict: bool) -> Iterator[tuple[int, Any]]:
    value = json.loads(_decoded(path.read_bytes(), str(path), strict))
    if not _is_log(value):
        yield 0, value
    elif not isinstance(value["samples"], list) or not value["samples"]:
        raise DataError(f"{path} is a log of Inspect without samples; write it with its samples, not the header alone")
    else:
        yield from enumerate(value["samples"])


def _numbered(path: Path, strict: bool) -> Iterator[tuple[int, Any]]:
    with path.open("rb") as file:
        yield from ((number, row) for number, _, row in read_lines(file, str(path), strict))


def _table(path: Path, strict: bool) -> Iterator[tuple[int, dict[str, Cell | None]]]:
    csv.field_size_limit(2**31 - 1)  # of all readers of the process: a cell may hold a book
    with path.open("rb") as file:
        lines = _text_lines(file, path)
        first = next((line for line in lines if line.strip()), None)
        if first is None:
            return
        delimiter = "\t"
        if path.suffix.lower() != ".tsv":
            # A workbook of a country with decimal commas is saved with semicolons.
            delimiter = max(",;\t", key=first.count)
            if said := re.fullmatch(r"sep=(.)", first.strip().strip('"')):
                delimiter, first = said[1], ""
        reader = csv.reader(chain([first] if first else [], lines), delimiter=delimiter, strict=True)
        skipped = 0 if first else 1
        header: list[str] | None = None
        start = 1
        try:
            for cells in reader:
                line, start = start + skipped, reader.line_num + 1
                if not cells:
                    continue
                if header is None:
                    header = [name.strip() for name in cells]
                    twice = [name for name, count in Counter(header).items() if count > 1]
                    if twice:
                        raise DataError(f"{path}, line {line}: two columns have the name {twice[0]!r}")
                    continue
                if len(cells) != len(header):
                    raise DataError(
                        f"{path}, line {line} has {len(cells)} cells, and the header has {len(header)} columns; put cells "
                        f"with {delimiter!r} or line breaks in double quotes"
                    )
                yield line, {name: Cell(cell) if cell else None for name, cell in zip(header, cells, strict=True)}
        except csv.Error as error:
            raise DataError(f"{path}, line {start + skipped} is no row of CSV: {error}") from None


def _text_lines(file: BinaryIO, path: Path) -> Iterator[str]:
    """Lines of a table with their ends, at carriage returns too."""
    number = 0
    for lines in file:
        for line in re.findall(rb"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+", lines):
            number += 1
            yield _decoded(line, f"{path}, line {number}", True)


def read_lines(file: BinaryIO, name: str, strict: bool = False) -> Iterator[tuple[int, int, Any]]:
    """Lines of JSON that are not blank: the number of each, counted from 1, the offset of its first byte, and its value.

    Lines end at a line feed, or at a carriage return if what they hold is not one value; not at separators that JSON may hold.
    `strict` refuses half surrogates that stand there as if UTF-8 knew them, as Python's `surrogatepass` writes them.
    `DataError` is raised for a line that is not UTF-8, [`LineError`] for one that is not JSON; both call the file `name`.
    """
    offset = number = 0
    for lines in file:
        for line in _split(lines):
            number += 1
            if line.strip():
                yield from ((number, offset, row) for row in _parse(line, name, number, strict))
            offset += len(line)


def _begins(file: BinaryIO) -> bytes:
    """The first byte that is no white space."""
    block = file.read(1 << 16).removeprefix(_MARK)
    while block and not block.lstrip():
        block = file.read(1 << 16)
    return block.lstrip()[:1]


def _split(line: bytes) -> list[bytes]:
    """What a line feed ends, at its carriage returns too, unless they are white space within one value."""
    if b"\r" not in line.rstrip(b"\r\n"):
        return [line]
    try:
        json.loads(_decoded(line, "", False))
    except (ValueError, RecursionError):
        return re.findall(rb"[^\r]*\r\n?|[^\r]+", line)
    return [line]


def _parse(line: bytes, name: str, number: int, strict: bool) -> list[Any]:
    """The value of a line in a list, which is empty if the line is blank."""
    text = _decoded(line, f"{name}, line {number}", strict).rstrip("\r\n")
    try:
        return [json.loads(text)] if text.strip().strip("\ufeff") else []
    except (ValueError, RecursionError) as error:
        hint = "; JSON Lines has one object per line, not an array" if line.lstrip()[:1] == b"[" else ""
        raise LineError(name, number, f"{error}{hint}") from None


def _decoded(data: bytes, name: str, strict: bool) -> str:
    try:
        return data.removeprefix(_MARK).decode("utf-8", "strict" if strict else "surrogatepass")
    except UnicodeDecodeError as error:
        why = f"{error.reason} at byte {error.start}"
        if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
            why = "it begins as UTF-16 does"
        raise DataError(f"{name} is not UTF-8 ({why}); save the file as UTF-8") from None

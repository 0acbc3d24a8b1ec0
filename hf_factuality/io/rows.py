"""Rows of a JSON, JSON Lines or Parquet file, a few in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hf_factuality.errors import DataError


_MARK = b"\xef\xbb\xbf"
_BATCH = 256  # rows of a Parquet file


class LineError(DataError):
    """A line, counted from 1, that is not JSON."""

    def __init__(self, name: str, number: int, reason: str):
        super().__init__(f"{name}, line {number} is not JSON: {reason}")
        self.number, self.reason = number, reason


def read_rows(path: str | Path, strict: bool = False) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers: lines counted from 1 in JSON Lines, else rows counted from 0.

    The file ends in `.jsonl`, `.parquet` or `.json`, which may hold one list, read whole, or lines; for `strict` see
    [`read_lines`]. `DataError` says what is wrong, `OSError` that it cannot be read.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet as parquet

        try:
            with parquet.ParquetFile(path) as file:
                batches = file.iter_batches(batch_size=_BATCH)
                yield from enumerate(row for batch in batches for row in batch.to_pylist())
        except pyarrow.ArrowInvalid as error:
            raise DataError(f"{path} is no Parquet file: {error}") from None
        return
    if suffix not in (".json", ".jsonl"):
        raise DataError(f"{path} must be a .jsonl, .json or .parquet file")
    with path.open("rb") as file:
        if suffix == ".json" and _begins(file) == b"[":
            file.seek(0)
            text = _decoded(file.read(), str(path), strict)
            try:
                rows = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path} is not JSON: {error}") from None
            yield from enumerate(rows)
            return
        file.seek(0)
        yield from ((number, row) for number, _, row in read_lines(file, str(path), strict))


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
        raise DataError(f"{name} is not UTF-8 ({why}); save the file as UTF-8") from None

"""Rows of a JSON, JSON Lines or Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError


__all__ = ["read_rows"]


def read_rows(path: str | Path) -> Iterator[tuple[int, Any]]:
    """Rows with their numbers: lines counted from 1 in JSON Lines, else rows counted from 0.

    Lines end at a line feed only, as JSON may hold other separators; blank ones are passed over. A file named `.json`
    may hold one list, or lines.

    Args:
        path (`str` or `Path`):
            A file that ends in `.jsonl`, `.json` or `.parquet`.

    Raises:
        `DataError`: another ending, or a line that is not JSON.
        `OSError`: the file cannot be read.
    """
    path = Path(path)
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet as parquet

        try:
            with parquet.ParquetFile(path) as file:
                rows = file.read().to_pylist()
        except pyarrow.ArrowInvalid as error:
            raise DataError(f"{path} is no Parquet file: {error}") from None
        yield from enumerate(rows)
        return
    if path.suffix not in (".json", ".jsonl"):
        raise DataError(f"{path} must be a .jsonl, .json or .parquet file")
    data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
    if path.suffix == ".json" and data.lstrip()[:1] == b"[":
        try:
            yield from enumerate(json.loads(data))
        except ValueError as error:
            raise DataError(f"{path} is not JSON: {error}") from None
        return
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{path}, line {number} is not JSON: {error}") from None
            yield number, row

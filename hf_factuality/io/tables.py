"""What is written in tables, databases, arrays and pickles, of which nothing is executed: cells, rows, strings, and names.

The functions take the `reader` of `hf_factuality.io.unpack`, which reads cells that hold a file.
"""

from __future__ import annotations

import codecs
import io
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote


BLOCK, OVERLAP = 1 << 23, 1 << 13
"""Bytes of a text that are given at once, and by how many the next ones overlap, so that nothing short is cut in two."""
Covered = list[tuple[int, int]]
"""Bytes of a file, from and to, that were read as something else than they are."""
_CHUNK = 1 << 16
_WIDE = re.compile(rb"(?:[\x20-\x7e]\0{3}){8,}|(?:[\x20-\x7e]\0){8,}|(?:\0[\x20-\x7e]){8,}")
_WIDE_RE2 = r"(?:[\x20-\x7e]\x00{3}){8}|(?:[\x20-\x7e]\x00){8}|(?:\x00[\x20-\x7e]){8}"
_PICKLED = re.compile(rb"[\x8cUC]|[XBT](?=..[\0-\x0f]\0)|[\x8d\x8e](?=...\0\0\0\0\0)", re.DOTALL)
_LENGTHS = {b"\x8c": 1, b"U": 1, b"C": 1, b"X": 4, b"B": 4, b"T": 4, b"\x8d": 8, b"\x8e": 8}
_TEXTUAL = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]{6,}")


class FilePiece(NamedTuple):
    """A part of what is written in a file.

    `place`: the member, table or column, as a path; empty for the file itself. `line`: number of the first line, or `None`
    where there are no lines. `problem`: why the place could not be read.
    """

    place: str
    text: bytes = b""
    line: int | None = None
    problem: str = ""


class Unreadable(Exception):
    """A place that cannot be read, for a reason that is known."""


def reason(error: Exception) -> str:
    """Why a place could not be read, in a line."""
    text = " ".join(str(error).split())
    return text[:200] if isinstance(error, Unreadable) else f"{type(error).__name__}: {text}"[:200]


def text_encoding(head: bytes) -> str | None:
    """Encoding of a text in UTF-8, UTF-16 or UTF-32, with its mark or without; `None` of what is no text."""
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ):
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf-8"
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) < len(head) // 4 or min(even, odd) > len(head) // 100:
        return None
    return "utf-16-be" if even > odd else "utf-16-le"


def as_utf8(data: bytes, encoding: str | None) -> bytes:
    """In UTF-8. Of what is no text, what lies around some letters in a row, where a run of wide ones becomes a line."""
    if encoding is not None:
        return data if encoding == "utf-8" else data.decode(encoding, "replace").encode("utf-8")
    import pyarrow as pa
    import pyarrow.compute as compute

    # RE2 passes over tensors in no time; what it leaves is short.
    chunks = pa.array([data[start : start + _CHUNK + 64] for start in range(0, len(data), _CHUNK)], pa.large_binary())
    wide = compute.match_substring_regex(chunks, pattern=_WIDE_RE2).to_pylist()
    written = compute.match_substring_regex(chunks, pattern=r"[\x20-\x7e]{16}").to_pylist()
    texts, start, last = [], 0, 0
    for number in [n for n, one in enumerate(zip(wide, written, strict=True)) if any(one)]:
        first = max(last, number * _CHUNK - OVERLAP)
        if first > last:
            texts.append(data[start:last])
            start = first
        last = min(len(data), (number + 1) * _CHUNK + OVERLAP)
    text = b"\n".join([*texts, data[start:last]])
    return _WIDE.sub(lambda match: b"\n%s\n" % match[0].replace(b"\0", b""), text) if any(wide) else text


def inside(place: str, name: str) -> str:
    """The place of a member."""
    name = name.encode("utf-8", "replace").decode("utf-8")
    return f"{place}/{name}" if place else name


def parquet(reader: Any, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
    """Cells of Parquet, and the names and metadata of its columns."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(python_file(stream))
    yield from _schema(file.schema_arrow, place)
    yield from _batches(reader, file.iter_batches(8192), place, depth)


def arrow(reader: Any, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
    """The same of a file or stream of Arrow."""
    import pyarrow.ipc

    stream.seek(0)
    if stream.read(6) == b"ARROW1":
        table = pyarrow.ipc.open_file(python_file(stream))
        yield from _schema(table.schema, place)
        batches = (table.get_batch(number) for number in range(table.num_record_batches))
    else:
        stream.seek(0)
        try:
            batches = table = pyarrow.ipc.open_stream(python_file(stream))
        except (pyarrow.ArrowInvalid, OSError):  # begins like one by chance
            return
        yield from _schema(table.schema, place)
    yield from _batches(reader, batches, place, depth)


def _schema(schema: Any, place: str) -> Iterator[FilePiece]:
    yield FilePiece(place, b"\n".join(_texts_of_fields(schema)))


def _batches(reader: Any, batches: Iterable[Any], place: str, depth: int) -> Iterator[FilePiece]:
    for batch in batches:
        reader.spend(batch.nbytes)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            yield from _column(reader, name, column, inside(place, name), depth)


def _column(reader: Any, name: str, column: Any, place: str, depth: int) -> Iterator[FilePiece]:
    import pyarrow as pa
    import pyarrow.compute as compute

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        yield from _column(reader, name, column.storage, place, depth)
    elif pa.types.is_dictionary(kind):
        yield from _column(reader, name, column.dictionary, place, depth)
    elif pa.types.is_map(kind):
        yield from _column(reader, name, column.keys, place, depth)
        yield from _column(reader, name, column.items, place, depth)
    elif pa.types.is_struct(kind):
        for number, part in enumerate(column.flatten()):
            yield from _column(reader, kind.field(number).name, part, place, depth)
    elif pa.types.is_run_end_encoded(kind):
        yield from _column(reader, name, column.values, place, depth)
    elif pa.types.is_union(kind):
        for number in range(kind.num_fields):
            yield from _column(reader, name, column.field(number), place, depth)
    elif pa.types.is_nested(kind):
        yield from _column(reader, name, column.flatten(), place, depth)
    elif any(
        is_kind(kind)
        for is_kind in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_string_view,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_binary_view,
            pa.types.is_fixed_size_binary,
        )
    ):
        cells = column.cast(pa.large_binary()).drop_null()
        if not len(cells):
            return
        if "binary" in str(kind):
            for cell in cells.filter(compute.match_substring_regex(cells, pattern=reader.packed_cells)):
                yield from reader.member(io.BytesIO(cell.as_py()), place, depth)
        if reader.keyed.search(name):
            # The kernel takes one type only.
            start, end, between = (pa.scalar(part, pa.large_binary()) for part in (f'{name} = "'.encode(), b'"', b""))
            cells = compute.binary_join_element_wise(start, cells, end, between)
        whole = pa.LargeListArray.from_arrays(pa.array([0, len(cells)], pa.int64()), cells.cast(pa.large_binary()))
        yield from _blocks(place, compute.binary_join(whole, pa.scalar(b"\n", pa.large_binary()))[0].as_py())


def sqlite(reader: Any, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
    """Rows of SQLite, and the names of tables and columns."""
    path = getattr(stream, "name", None)
    if isinstance(path, (str, Path)):
        yield from _rows(reader, str(path), place, depth)
        return
    with tempfile.NamedTemporaryFile() as copy:
        stream.seek(0)
        shutil.copyfileobj(stream, copy, 1 << 20)
        copy.flush()
        yield from _rows(reader, copy.name, place, depth)


def _rows(reader: Any, path: str, place: str, depth: int) -> Iterator[FilePiece]:
    import sqlite3

    connection = sqlite3.connect(f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1", uri=True)
    try:
        connection.execute("PRAGMA trusted_schema = OFF")
        tables = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
        yield FilePiece(place, "\n".join(f"{name}\n{sql}" for _, name, sql in tables).encode("utf-8", "replace"))
        connection.text_factory = bytes
        for kind, name, sql in tables:
            # The rows of a virtual table are those of its shadow tables, which need no module to be read.
            if kind != "table" or re.match(r"\s*create\s+virtual", sql or "", re.IGNORECASE):
                continue
            where, escaped = inside(place, name), name.replace('"', '""')
            try:
                cursor = connection.execute(f'SELECT * FROM "{escaped}"')
                names = [column[0] for column in cursor.description]
                names = [
                    column.decode("utf-8", "replace") if isinstance(column, bytes) else column for column in names
                ]
                keyed = [f'{column} = "'.encode() if reader.keyed.search(column) else b"" for column in names]
                while rows := cursor.fetchmany(1000):
                    cells = [
                        start + cell + b'"' if start else cell
                        for row in rows
                        for start, cell in zip(keyed, row, strict=True)
                        if isinstance(cell, bytes)
                    ]
                    for cell in cells:
                        if reader.is_packed(cell[:512]):
                            yield from reader.member(io.BytesIO(cell), where, depth)
                    yield from _blocks(where, b"\n".join(cells))
            except sqlite3.Error as error:
                yield FilePiece(where, problem=reason(error))
    finally:
        connection.close()


def pickle(reader: Any, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
    """Strings of a pickle, which is not loaded, and what lies between them."""
    rest = b""
    while block := stream.read(BLOCK):
        rest += block
        yield FilePiece(place, as_utf8(rest, None))
        texts = list(_strings(rest))
        named = (
            b'%s = "%s"' % pair for pair in pairwise(texts) if reader.keyed.search(pair[0][-40:].decode("latin-1"))
        )
        yield FilePiece(place, b"\n".join((*texts, *named)))
        rest = rest[-OVERLAP:]


def numpy(reader: Any, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
    """Cells of an array of texts."""
    from numpy.lib import format as npy

    version = npy.read_magic(stream)
    _, _, kind = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
    if kind.hasobject:
        yield from pickle(reader, stream, place, depth, covered)
    elif kind.kind in "SU":
        import numpy as np

        step = max(1, BLOCK // kind.itemsize)
        while block := stream.read(step * kind.itemsize):
            cells = np.frombuffer(block[: len(block) // kind.itemsize * kind.itemsize], kind).tolist()
            yield FilePiece(
                place, b"\n".join(c if isinstance(c, bytes) else c.encode("utf-8", "replace") for c in cells)
            )
    else:
        yield from reader.text(stream, b"\0\0\0\0", place)


def _texts_of_fields(fields: Any) -> Iterator[bytes]:
    """Names and metadata of a schema, or of a field with those in it."""
    yield from (part for item in (fields.metadata or {}).items() for part in item)
    inner = fields
    if hasattr(fields, "type"):
        yield fields.name.encode("utf-8", "replace")
        inner = [fields.type.field(number) for number in range(fields.type.num_fields)]
    for one in inner:
        yield from _texts_of_fields(one)


def _blocks(place: str, text: bytes) -> Iterator[FilePiece]:
    for start in range(0, max(len(text), 1), BLOCK):
        yield FilePiece(place, text[start : start + BLOCK + OVERLAP])


def _strings(data: bytes) -> Iterator[bytes]:
    """Strings of a pickle, whose length stands before them."""
    start = 0
    while (match := _PICKLED.search(data, start)) is not None:
        first = match.end() + _LENGTHS[match[0]]
        last = first + int.from_bytes(data[match.end() : first], "little")
        if last <= len(data) and _TEXTUAL.fullmatch(data, first, last):
            yield data[first:last]
            start = last
        else:
            start = match.end()


class _Unclosed:
    """A stream that pyarrow cannot close: more is read from it."""

    closed = False

    def __init__(self, stream: Any):
        self.read, self.seek, self.tell = stream.read, stream.seek, stream.tell

    def close(self) -> None:
        pass


def python_file(stream: Any) -> Any:
    """A stream as pyarrow wants it."""
    import pyarrow as pa

    return pa.PythonFile(_Unclosed(stream), mode="r")

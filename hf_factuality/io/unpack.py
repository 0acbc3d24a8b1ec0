"""What is written in a file: its text, or that of its members, cells, rows and strings, and the names of these.

Nothing is executed: pickles are read as bytes. What cannot be read is named, and the rest is read all the same.
"""

from __future__ import annotations

import bz2
import codecs
import io
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from urllib.parse import quote


BLOCK, OVERLAP = 1 << 23, 1 << 13
"""Bytes of a text that are given at once, and by how many the next ones overlap, so that nothing short is cut in two."""
DEPTH = 8
"""How often a file may be packed."""
_FACTOR, _SPARE = 200, 1 << 30
"""A file may be unpacked to so many times its own size, and so many bytes more."""
_SPOOL, _CHUNK = 1 << 26, 1 << 16
_TENSOR = re.compile(r"(?:^|/)data/\d+$")
_KEYED = re.compile(r"key$|secret|passw|authoriz|credential|bearer|token$", re.IGNORECASE)
_WIDE = re.compile(rb"(?:[\x20-\x7e]\0{3}){8,}|(?:[\x20-\x7e]\0){8,}|(?:\0[\x20-\x7e]){8,}")
_WIDE_RE2 = r"(?:[\x20-\x7e]\x00{3}){8}|(?:[\x20-\x7e]\x00){8}|(?:\x00[\x20-\x7e]){8}"
_PICKLED = re.compile(rb"[\x8cUC]|[XBT](?=..[\0-\x0f]\0)|[\x8d\x8e](?=...\0\0\0\0\0)", re.DOTALL)
_LENGTHS = {b"\x8c": 1, b"U": 1, b"C": 1, b"X": 4, b"B": 4, b"T": 4, b"\x8d": 8, b"\x8e": 8}
_TEXTUAL = re.compile(rb"[\t\n\r\x20-\x7e\x80-\xff]{6,}")
_CHECKSUM = re.compile(rb"[ 0-7]{5,7}[\0 ]")


class Piece(NamedTuple):
    """A part of what is written in a file.

    `place`: the member, table or column, as a path; empty for the file itself. `line`: number of the first line, or `None`
    where there are no lines. `problem`: why the place could not be read.
    """

    place: str
    text: bytes = b""
    line: int | None = None
    problem: str = ""


class _Unreadable(Exception):
    """A place that cannot be read, for a reason that is known."""


def pieces(file: str | Path | bytes) -> Iterator[Piece]:
    """What is written in a file, or in its contents. Of safetensors it is the header: tensors hold no text."""
    if isinstance(file, bytes):
        yield from _Reader(len(file)).read(io.BytesIO(file), "", 0)
        return
    path = Path(file)
    size = path.stat().st_size
    with path.open("rb") as stream:
        if path.suffix == ".safetensors":
            header = int.from_bytes(stream.read(8), "little")
            if 8 + header <= size and stream.read(1) == b"{":
                yield Piece("", stream.read(header))
                return
            stream.seek(0)
        yield from _Reader(size).read(stream, "", 0)


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


class _Reader:
    """Reads one file, and counts what it unpacks: a bomb of some kilobytes must not fill the disk."""

    def __init__(self, size: int):
        self.limit = self.left = _FACTOR * size + _SPARE

    def spend(self, number: int) -> None:
        self.left -= number
        if self.left < 0:
            raise _Unreadable(f"unpacks to more than {self.limit / 1e9:.1f} GB")

    def read(self, stream: Any, place: str, depth: int) -> Iterator[Piece]:
        """What is written in a stream that stands at its start."""
        stream = stream if hasattr(stream, "peek") else io.BufferedReader(stream, 1 << 17)
        head = stream.peek(1 << 16)[: 1 << 16]
        opener = _opener(head)
        if opener is None:
            yield from self._text(stream, head, place)
            return
        if depth >= DEPTH:
            yield Piece(place, problem=f"packed more than {DEPTH} times")
            return
        if opener in (_Reader.pickle, _Reader.numpy):
            yield from opener(self, stream, place, depth, [])
            return
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spooled:
            if not stream.seekable():
                shutil.copyfileobj(stream, spooled, 1 << 20)
                spooled.seek(0)
                stream = spooled
            covered: list[tuple[int, int]] = []
            try:
                yield from opener(self, stream, place, depth, covered)
            except Exception as error:  # noqa: BLE001 - libraries raise whatever they like on damaged files
                yield Piece(place, problem=_reason(error))
            # Also what stands there as it is: behind the end, between members, in what is damaged.
            yield from self._bytes(stream, covered, place)

    def member(self, stream: BinaryIO, place: str, depth: int) -> Iterator[Piece]:
        """What is written in a member; one that cannot be read is named."""
        counted = _Counted(stream, self)
        yield from self.read(io.BufferedReader(counted, 1 << 17), place, depth + 1)
        if counted.error is not None:
            yield Piece(place, problem=_reason(counted.error))

    def _text(self, stream: Any, head: bytes, place: str) -> Iterator[Piece]:
        encoding, line, rest = text_encoding(head), 1, b""
        while block := stream.read(BLOCK):
            rest += block
            yield Piece(place, _decoded(rest, encoding), None if encoding is None else line)
            if encoding is not None:
                line += _decoded(rest[:-OVERLAP], encoding).count(b"\n")
            rest = rest[-OVERLAP:]

    def _bytes(self, stream: Any, covered: list[tuple[int, int]], place: str) -> Iterator[Piece]:
        end = stream.seek(0, io.SEEK_END)
        start = 0
        for first, last in [*sorted(covered), (end, end)]:
            while start < first:
                stream.seek(start)
                block = stream.read(min(BLOCK, first - start))
                if not block:
                    return
                yield Piece(place, _decoded(block, None))
                start = first if start + len(block) >= first else start + len(block) - OVERLAP
            start = max(start, last)

    # ---- kinds of files

    def zip(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            texts = [
                archive.comment,
                *(part for m in members for part in (m.filename.encode("utf-8", "replace"), m.comment)),
            ]
            yield Piece(place, b"\n".join(texts).replace(b"/", b"\n"))
            weights = any(
                m.filename.rpartition("/")[2] == "data.pkl" for m in members
            )  # of torch: tensors hold no text
            for member in members:
                stream.seek(member.header_offset + 26)
                sizes = stream.read(4)
                start = (
                    member.header_offset
                    + 30
                    + int.from_bytes(sizes[:2], "little")
                    + int.from_bytes(sizes[2:], "little")
                )
                covered.append((start, start + member.compress_size))
                where = _inside(place, member.filename)
                if member.is_dir() or weights and _TENSOR.search(member.filename):
                    continue
                try:
                    opened = archive.open(member)
                except Exception as error:  # noqa: BLE001
                    yield Piece(where, problem="encrypted" if member.flag_bits & 1 else _reason(error))
                    continue
                with opened:
                    yield from self.member(opened, where, depth)

    def tar(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape", ignore_zeros=True) as archive:
            for member in archive:
                texts = (member.name, member.linkname, member.uname, member.gname, *member.pax_headers.values())
                yield Piece(place, "\n".join(texts).replace("/", "\n").encode("utf-8", "replace"))
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is not None:
                    covered.append((member.offset_data, member.offset_data + member.size))
                    yield from self.member(opened, _inside(place, member.name), depth)

    def compressed(self, new: Callable[[], Any], stream: Any, place: str, depth: int) -> Iterator[Piece]:
        unpacked = _Decompressed(new, stream)
        yield from self.member(unpacked, place, depth)
        while unpacked.read(1 << 20):  # the reader may have stopped where its member was unreadable
            pass
        stream.seek(unpacked.position)
        if stream.read(1 << 16).strip(b"\0"):
            stream.seek(unpacked.position)
            with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as behind:
                shutil.copyfileobj(stream, behind, 1 << 20)
                behind.seek(0)
                yield from self.member(behind, place, depth)

    def frames(self, codec: str, stream: Any, place: str, depth: int) -> Iterator[Piece]:
        import pyarrow as pa

        yield from self.member(pa.CompressedInputStream(_python_file(stream), codec), place, depth)

    def parquet(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        import pyarrow.parquet

        file = pyarrow.parquet.ParquetFile(_python_file(stream))
        yield from self._schema(file.schema_arrow, place)
        yield from self._batches(file.iter_batches(8192), place, depth)

    def arrow(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        import pyarrow.ipc

        stream.seek(0)
        if stream.read(6) == b"ARROW1":
            reader = pyarrow.ipc.open_file(_python_file(stream))
            yield from self._schema(reader.schema, place)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            stream.seek(0)
            try:
                batches = reader = pyarrow.ipc.open_stream(_python_file(stream))
            except (pyarrow.ArrowInvalid, OSError):  # begins like one by chance
                return
            yield from self._schema(reader.schema, place)
        yield from self._batches(batches, place, depth)

    def _schema(self, schema: Any, place: str) -> Iterator[Piece]:
        yield Piece(place, b"\n".join(_texts_of_fields(schema)))

    def _batches(self, batches: Iterable[Any], place: str, depth: int) -> Iterator[Piece]:
        for batch in batches:
            self.spend(batch.nbytes)
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                yield from self._column(name, column, _inside(place, name), depth)

    def _column(self, name: str, column: Any, place: str, depth: int) -> Iterator[Piece]:
        import pyarrow as pa
        import pyarrow.compute as compute

        kind = column.type
        if isinstance(kind, pa.BaseExtensionType):
            yield from self._column(name, column.storage, place, depth)
        elif pa.types.is_dictionary(kind):
            yield from self._column(name, column.dictionary, place, depth)
        elif pa.types.is_map(kind):
            yield from self._column(name, column.keys, place, depth)
            yield from self._column(name, column.items, place, depth)
        elif pa.types.is_struct(kind):
            for number, part in enumerate(column.flatten()):
                yield from self._column(kind.field(number).name, part, place, depth)
        elif pa.types.is_nested(kind):
            yield from self._column(name, column.flatten(), place, depth)
        elif not pa.types.is_primitive(kind) and not pa.types.is_null(kind):
            cells = column.drop_null().cast(pa.large_binary())
            if not len(cells):
                return
            if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
                for cell in cells.filter(compute.match_substring_regex(cells, pattern=_MAGIC_OF_CELLS)):
                    yield from self.member(io.BytesIO(cell.as_py()), place, depth)
            if _KEYED.search(name):
                cells = compute.binary_join_element_wise(f'{name} = "'.encode(), cells, b'"', b"")
            whole = pa.LargeListArray.from_arrays(pa.array([0, len(cells)], pa.int64()), cells.cast(pa.large_binary()))
            yield from _blocks(place, compute.binary_join(whole, pa.scalar(b"\n", pa.large_binary()))[0].as_py())

    def sqlite(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        path = getattr(stream, "name", None)
        if isinstance(path, (str, Path)):
            yield from self._rows(str(path), place, depth)
            return
        with tempfile.NamedTemporaryFile() as copy:
            stream.seek(0)
            shutil.copyfileobj(stream, copy, 1 << 20)
            copy.flush()
            yield from self._rows(copy.name, place, depth)

    def _rows(self, path: str, place: str, depth: int) -> Iterator[Piece]:
        import sqlite3

        connection = sqlite3.connect(f"file:{quote(str(Path(path).absolute()))}?mode=ro&immutable=1", uri=True)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")
            tables = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            yield Piece(place, "\n".join(f"{name}\n{sql}" for _, name, sql in tables).encode("utf-8", "replace"))
            connection.text_factory = bytes
            for kind, name, sql in tables:
                # The rows of a virtual table are those of its shadow tables, which need no module to be read.
                if kind != "table" or re.match(r"\s*create\s+virtual", sql or "", re.IGNORECASE):
                    continue
                where, escaped = _inside(place, name), name.replace('"', '""')
                try:
                    cursor = connection.execute(f'SELECT * FROM "{escaped}"')
                    names = [column[0] for column in cursor.description]
                    names = [
                        column.decode("utf-8", "replace") if isinstance(column, bytes) else column for column in names
                    ]
                    keyed = [f'{column} = "'.encode() if _KEYED.search(column) else b"" for column in names]
                    while rows := cursor.fetchmany(1000):
                        cells = [
                            start + cell + b'"' if start else cell
                            for row in rows
                            for start, cell in zip(keyed, row, strict=True)
                            if isinstance(cell, bytes)
                        ]
                        for cell in cells:
                            if _opener(cell[:512]) is not None:
                                yield from self.member(io.BytesIO(cell), where, depth)
                        yield from _blocks(where, b"\n".join(cells))
                except sqlite3.Error as error:
                    yield Piece(where, problem=_reason(error))
        finally:
            connection.close()

    def pickle(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        rest = b""
        while block := stream.read(BLOCK):
            rest += block
            yield Piece(place, _decoded(rest, None))
            texts = list(_strings(rest))
            named = (b'%s = "%s"' % pair for pair in pairwise(texts) if _KEYED.search(pair[0][-40:].decode("latin-1")))
            yield Piece(place, b"\n".join((*texts, *named)))
            rest = rest[-OVERLAP:]

    def numpy(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        from numpy.lib import format as npy

        version = npy.read_magic(stream)
        _, _, kind = (npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0)(stream)
        if kind.hasobject:
            yield from self.pickle(stream, place, depth, covered)
        elif kind.kind in "SU":
            import numpy as np

            step = max(1, BLOCK // kind.itemsize)
            while block := stream.read(step * kind.itemsize):
                cells = np.frombuffer(block[: len(block) // kind.itemsize * kind.itemsize], kind).tolist()
                yield Piece(
                    place, b"\n".join(c if isinstance(c, bytes) else c.encode("utf-8", "replace") for c in cells)
                )
        else:
            yield from self._text(stream, b"\0\0\0\0", place)

    def foreign(self, stream: Any, place: str, depth: int, covered: list[tuple[int, int]]) -> Iterator[Piece]:
        raise _Unreadable("an archive of a kind that is not unpacked here; use zip, tar or zstd")


def _packed(new: Callable[[], Any]) -> Callable[..., Iterator[Piece]]:
    return lambda reader, stream, place, depth, covered: reader.compressed(new, stream, place, depth)


def _framed(codec: str) -> Callable[..., Iterator[Piece]]:
    return lambda reader, stream, place, depth, covered: reader.frames(codec, stream, place, depth)


_MAGIC: dict[bytes, Callable[..., Iterator[Piece]]] = {
    b"PK\3\4": _Reader.zip,
    b"PK\5\6": _Reader.zip,
    b"\x1f\x8b\x08": _packed(lambda: zlib.decompressobj(31)),
    **{b"BZh%d1AY&SY" % size: _packed(bz2.BZ2Decompressor) for size in range(1, 10)},
    b"\xfd7zXZ\0": _packed(lzma.LZMADecompressor),
    b"\x28\xb5\x2f\xfd": _framed("zstd"),
    b"\x04\x22\x4d\x18": _framed("lz4"),
    b"PAR1": _Reader.parquet,
    b"PARE": _Reader.foreign,
    b"ARROW1\0\0": _Reader.arrow,
    b"\xff\xff\xff\xff": _Reader.arrow,
    b"SQLite format 3\0": _Reader.sqlite,
    **{bytes([0x80, protocol]): _Reader.pickle for protocol in range(2, 6)},
    b"\x93NUMPY": _Reader.numpy,
    b"7z\xbc\xaf\x27\x1c": _Reader.foreign,
    b"Rar!\x1a\x07": _Reader.foreign,
}
_MAGIC_OF_CELLS = (
    "^(?:" + "|".join("".join(rf"\x{byte:02x}" for byte in magic) for magic in _MAGIC if len(magic) > 2) + ")"
)


def _opener(head: bytes) -> Callable[..., Iterator[Piece]] | None:
    """How a file is opened that begins so; `None` for a text, and for what is no container."""
    for magic, opener in _MAGIC.items():
        if head.startswith(magic):
            return opener
    if len(head) >= 512 and _CHECKSUM.match(head, 148):
        try:
            tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
        except tarfile.HeaderError:
            return None
        return _Reader.tar
    return None


class _Counted(io.RawIOBase):
    """A stream whose bytes are counted. It ends where it cannot be read, so that what stands before is not lost."""

    def __init__(self, stream: Any, reader: _Reader):
        self.stream, self.reader = stream, reader
        self.error: Exception | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = b"" if self.error is not None else self.stream.read(len(buffer))
            self.reader.spend(len(data))
        except Exception as error:  # noqa: BLE001 - libraries raise whatever they like on damaged files
            self.error, data = error, b""
        buffer[: len(data)] = data
        return len(data)


class _Unclosed:
    """A stream that pyarrow cannot close: more is read from it."""

    closed = False

    def __init__(self, stream: Any):
        self.read, self.seek, self.tell = stream.read, stream.seek, stream.tell

    def close(self) -> None:
        pass


def _python_file(stream: Any) -> Any:
    import pyarrow as pa

    return pa.PythonFile(_Unclosed(stream), mode="r")


class _Decompressed:
    """Streams of gzip, bzip2 or xz that stand one behind the other; `position`: where the last one ends."""

    def __init__(self, new: Callable[[], Any], stream: Any):
        self.new, self.stream, self.position = new, stream, 0
        self.one, self.waiting, self.ended = new(), b"", False

    def read(self, size: int) -> bytes:
        while not self.ended:
            needs = not isinstance(self.one, (bz2.BZ2Decompressor, lzma.LZMADecompressor)) or self.one.needs_input
            if not self.waiting and needs:
                self.stream.seek(self.position)
                self.waiting = self.stream.read(1 << 16)
                self.position += len(self.waiting)
                if not self.waiting:
                    self.ended = True
                    raise EOFError("cut off")
            try:
                data = self.one.decompress(self.waiting, size)
            except Exception:
                self.ended = True
                raise
            self.waiting = getattr(self.one, "unconsumed_tail", b"")
            if self.one.eof:
                self.position -= len(self.one.unused_data)
                self.stream.seek(self.position)
                self.ended = not self.stream.read(1 << 16).strip(b"\0")
                self.stream.seek(self.position)
                following, here = self.stream.read(3), _first(self.one)
                self.ended = self.ended or not following.startswith(here)
                self.one, self.waiting = self.new(), b""
            if data:
                return data
        return b""


def _first(decompressor: Any) -> bytes:
    kinds = {bz2.BZ2Decompressor: b"BZh", lzma.LZMADecompressor: b"\xfd7z"}
    return kinds.get(type(decompressor), b"\x1f\x8b\x08")


def _inside(place: str, name: str) -> str:
    name = name.encode("utf-8", "replace").decode("utf-8")
    return f"{place}/{name}" if place else name


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:200] if isinstance(error, _Unreadable) else f"{type(error).__name__}: {text}"[:200]


def _texts_of_fields(fields: Any) -> Iterator[bytes]:
    """Names and metadata of a schema, or of a field with those in it."""
    yield from (part for item in (fields.metadata or {}).items() for part in item)
    inner = fields
    if hasattr(fields, "type"):
        yield fields.name.encode("utf-8", "replace")
        inner = [fields.type.field(number) for number in range(fields.type.num_fields)]
    for one in inner:
        yield from _texts_of_fields(one)


def _blocks(place: str, text: bytes) -> Iterator[Piece]:
    for start in range(0, max(len(text), 1), BLOCK):
        yield Piece(place, text[start : start + BLOCK + OVERLAP])


def _decoded(data: bytes, encoding: str | None) -> bytes:
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

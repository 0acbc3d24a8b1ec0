"""What is written in a file: its text, or that of its members, and the names of these.

What cannot be read is named, and the rest is read all the same.
"""

from __future__ import annotations

import bz2
import io
import lzma
import re
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hf_factuality.io import tables
from hf_factuality.io.tables import (
    BLOCK,
    OVERLAP,
    Covered,
    FilePiece,
    Unreadable,
    as_utf8,
    inside,
    python_file,
    reason,
    text_encoding,
)


DEPTH = 8
"""How often a file may be packed."""
_FACTOR, _SPARE = 200, 1 << 30
"""A file may be unpacked to so many times its own size, and so many bytes more."""
_SPOOL = 1 << 26
_TENSOR = re.compile(r"(?:^|/)data/\d+$")
_CHECKSUM = re.compile(rb"[ 0-7]{5,7}[\0 ]")


def pieces(file: str | Path | bytes, keyed: re.Pattern[str]) -> Iterator[FilePiece]:
    """What is written in a file, or in its contents. Of safetensors it is the header: tensors hold no text.

    The name of a column stands before each of its cells where `keyed` is found in it.
    """
    if isinstance(file, bytes):
        yield from _Reader(len(file), keyed).read(io.BytesIO(file), "", 0)
        return
    path = Path(file)
    size = path.stat().st_size
    with path.open("rb") as stream:
        if path.suffix == ".safetensors":
            header = int.from_bytes(stream.read(8), "little")
            if 8 + header <= size and stream.read(1) == b"{":
                yield FilePiece("", stream.read(header))
                return
            stream.seek(0)
        yield from _Reader(size, keyed).read(stream, "", 0)


class _Reader:
    """Reads one file, and counts what it unpacks: a bomb of some kilobytes must not fill the disk."""

    def __init__(self, size: int, keyed: re.Pattern[str]):
        self.keyed, self.packed_cells = keyed, _MAGIC_OF_CELLS
        self.limit = self.left = _FACTOR * size + _SPARE

    def is_packed(self, head: bytes) -> bool:
        """Whether what begins so holds something else than itself."""
        return _opener(head) is not None

    def spend(self, number: int) -> None:
        """Count what was unpacked."""
        self.left -= number
        if self.left < 0:
            raise Unreadable(f"unpacks to more than {self.limit / 1e9:.1f} GB")

    def read(self, stream: Any, place: str, depth: int) -> Iterator[FilePiece]:
        """What is written in a stream that stands at its start."""
        stream = stream if hasattr(stream, "peek") else io.BufferedReader(stream, 1 << 17)
        head = stream.peek(1 << 16)[: 1 << 16]
        opener = _opener(head)
        if opener is None:
            yield from self.text(stream, head, place)
            return
        if depth >= DEPTH:
            yield FilePiece(place, problem=f"packed more than {DEPTH} times")
            return
        if opener in (tables.pickle, tables.numpy):
            try:
                yield from opener(self, stream, place, depth, [])
            except Exception as error:  # noqa: BLE001
                yield FilePiece(place, problem=reason(error))
                yield from self.text(stream, b"\0" * 4, place)
            return
        with tempfile.SpooledTemporaryFile(max_size=_SPOOL) as spooled:
            if not stream.seekable():
                shutil.copyfileobj(stream, spooled, 1 << 20)
                spooled.seek(0)
                stream = spooled
            covered: Covered = []
            try:
                yield from opener(self, stream, place, depth, covered)
            except Exception as error:  # noqa: BLE001 - libraries raise whatever they like on damaged files
                yield FilePiece(place, problem=reason(error))
            # Also what stands there as it is: behind the end, between members, in what is damaged.
            yield from self._bytes(stream, covered, place)

    def member(self, stream: BinaryIO, place: str, depth: int) -> Iterator[FilePiece]:
        """What is written in a member; one that cannot be read is named."""
        counted = _Counted(stream, self)
        yield from self.read(io.BufferedReader(counted, 1 << 17), place, depth + 1)
        if counted.error is not None:
            yield FilePiece(place, problem=reason(counted.error))

    def text(self, stream: Any, head: bytes, place: str) -> Iterator[FilePiece]:
        """A text, or what is written between other bytes."""
        encoding, line, rest = text_encoding(head), 1, b""
        while block := stream.read(BLOCK):
            rest += block
            yield FilePiece(place, as_utf8(rest, encoding), None if encoding is None else line)
            if encoding is not None:
                line += as_utf8(rest[:-OVERLAP], encoding).count(b"\n")
            rest = rest[-OVERLAP:]

    def _bytes(self, stream: Any, covered: Covered, place: str) -> Iterator[FilePiece]:
        end = stream.seek(0, io.SEEK_END)
        start = 0
        for first, last in [*sorted(covered), (end, end)]:
            while start < first:
                stream.seek(start)
                block = stream.read(min(BLOCK, first - start))
                if not block:
                    return
                yield FilePiece(place, as_utf8(block, None))
                start = first if start + len(block) >= first else start + len(block) - OVERLAP
            start = max(start, last)

    # ---- kinds of files

    def zip(self, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
        with zipfile.ZipFile(stream) as archive:
            members = archive.infolist()
            texts = [
                archive.comment,
                *(part for m in members for part in (m.filename.encode("utf-8", "replace"), m.comment)),
            ]
            yield FilePiece(place, b"\n".join(texts).replace(b"/", b"\n"))
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
                where = inside(place, member.filename)
                if member.is_dir() or weights and _TENSOR.search(member.filename):
                    continue
                try:
                    opened = archive.open(member)
                except Exception as error:  # noqa: BLE001
                    yield FilePiece(where, problem="encrypted" if member.flag_bits & 1 else reason(error))
                    continue
                with opened:
                    yield from self.member(opened, where, depth)

    def tar(self, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
        with tarfile.open(fileobj=stream, mode="r:", errors="surrogateescape", ignore_zeros=True) as archive:
            for member in archive:
                texts = (member.name, member.linkname, member.uname, member.gname, *member.pax_headers.values())
                yield FilePiece(place, "\n".join(texts).replace("/", "\n").encode("utf-8", "replace"))
                opened = archive.extractfile(member) if member.isfile() else None
                if opened is not None:
                    covered.append((member.offset_data, member.offset_data + member.size))
                    yield from self.member(opened, inside(place, member.name), depth)

    def compressed(self, new: Callable[[], Any], stream: Any, place: str, depth: int) -> Iterator[FilePiece]:
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

    def frames(self, codec: str, stream: Any, place: str, depth: int) -> Iterator[FilePiece]:
        import pyarrow as pa

        yield from self.member(pa.CompressedInputStream(python_file(stream), codec), place, depth)

    def foreign(self, stream: Any, place: str, depth: int, covered: Covered) -> Iterator[FilePiece]:
        raise Unreadable("an archive of a kind that is not unpacked here; use zip, tar or zstd")


def _packed(new: Callable[[], Any]) -> Callable[..., Iterator[FilePiece]]:
    return lambda reader, stream, place, depth, covered: reader.compressed(new, stream, place, depth)


def _framed(codec: str) -> Callable[..., Iterator[FilePiece]]:
    return lambda reader, stream, place, depth, covered: reader.frames(codec, stream, place, depth)


_MAGIC: dict[bytes, Callable[..., Iterator[FilePiece]]] = {
    b"PK\3\4": _Reader.zip,
    b"PK\5\6": _Reader.zip,
    b"\x1f\x8b\x08": _packed(lambda: zlib.decompressobj(31)),
    **{b"BZh%d1AY&SY" % size: _packed(bz2.BZ2Decompressor) for size in range(1, 10)},
    b"\xfd7zXZ\0": _packed(lzma.LZMADecompressor),
    b"\x28\xb5\x2f\xfd": _framed("zstd"),
    b"\x04\x22\x4d\x18": _framed("lz4"),
    b"PAR1": tables.parquet,
    b"PARE": _Reader.foreign,
    b"ARROW1\0\0": tables.arrow,
    b"\xff\xff\xff\xff": tables.arrow,
    b"SQLite format 3\0": tables.sqlite,
    **{bytes([0x80, protocol]): tables.pickle for protocol in range(2, 6)},
    b"\x93NUMPY": tables.numpy,
    b"7z\xbc\xaf\x27\x1c": _Reader.foreign,
    b"Rar!\x1a\x07": _Reader.foreign,
}
_MAGIC_OF_CELLS = (
    "^(?:" + "|".join("".join(rf"\x{byte:02x}" for byte in magic) for magic in _MAGIC if len(magic) > 2) + ")"
)


def _opener(head: bytes) -> Callable[..., Iterator[FilePiece]] | None:
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

"""The one journal: a file of JSON lines that a run which was killed at any moment goes on from."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError


class Lines:
    """A file of JSON objects, one per line, open for adding by several threads of one process.

    `take` gets every object that is there already and the byte where its line begins; a last line that was torn by a kill
    is removed, and any other line that is none of this journal is a `DataError`. What is added survives the process, and
    with `sync` the machine too, at the price of a pause.
    """

    def __init__(self, path: Path, take: Callable[[dict[str, Any], int], None], sync: bool = True):
        self.path, self._sync = path, sync
        self._lock = threading.Lock()
        self._end = 0
        self._file = path.open("a+b")
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                take(json.loads(line), self._end)
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                self._file.close()
                if isinstance(error, DataError):  # it is a line of a journal, but not of this run
                    raise
                what = f"{path}, line {number} is no answer ({error!r:.100})"
                raise DataError(f"{what}; move the file aside or use another `out`") from None
            self._end += len(line)
        self._file.truncate(self._end)

    @property
    def empty(self) -> bool:
        """Whether there is no line."""
        return not self._end

    def read(self, place: int) -> dict[str, Any]:
        """The object whose line begins at this byte."""
        with self._lock:
            self._file.seek(place)
            return json.loads(self._file.readline())

    def add(self, rows: Iterable[Mapping[str, Any]]) -> list[int]:
        """Write lines at once, and tell where each begins; they are on the disk when this returns."""
        lines = [dumps(row) for row in rows]
        with self._lock:
            self._file.write(b"".join(lines))  # a file that is open for adding writes at its end
            self._file.flush()
            if self._sync:
                os.fsync(self._file.fileno())
            places = [*accumulate(map(len, lines), initial=self._end)]
            self._end = places.pop()
        return places

    def close(self) -> None:
        """What a thread that was left behind adds later is refused."""
        with self._lock:
            self._file.close()


class LineFile:
    """Lists by id, `{"id": ..., "items": [...]}` per line, of which only the places are kept in memory; a later line of
    the same id replaces an earlier one."""

    def __init__(self, path: Path):
        self._places: dict[str, int] = {}
        self._lines = Lines(path, lambda row, place: self._places.update({row["id"]: place}))
        self.close = self._lines.close

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> list:
        return self._lines.read(self._places[key])["items"]

    def add(self, lines: Iterable[tuple[str, list]]) -> None:
        """Write lines of id and items at once."""
        lines = list(lines)
        places = self._lines.add({"id": key, "items": items} for key, items in lines)
        self._places.update(zip((key for key, _ in lines), places, strict=True))


def written_ids(path: Path) -> set[str]:
    """Ids of the whole lines of a [`LineFile`] that another run may be writing; empty if there is no file."""
    found = set()
    if path.exists():
        with path.open("rb") as file:
            for line in file:
                try:
                    found.add(json.loads(line)["id"])
                except (ValueError, KeyError, TypeError):
                    continue  # torn, or none of ours, which opening the file will tell
    return found


@contextmanager
def only_run(path: Path, taken: str) -> Iterator[None]:
    """Holds the lock `path` for this process (that of a process that was killed is free), or says `taken`."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise DataError(taken) from None
    try:
        yield
    finally:
        lock.release()


def dumps(row: Mapping[str, Any]) -> bytes:
    """A line of JSON in UTF-8; lone surrogates, which it cannot hold, escaped."""
    text = json.dumps(row, ensure_ascii=False)
    try:
        return text.encode("utf-8") + b"\n"
    except UnicodeEncodeError:
        return json.dumps(row).encode("ascii") + b"\n"

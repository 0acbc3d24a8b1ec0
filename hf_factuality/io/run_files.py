"""Files of a run that can be killed at any moment: lines that are either whole or not there, and one run at a time."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hf_factuality.errors import DataError


__all__ = ["LineFile", "only_run", "written_ids"]


class LineFile:
    """A file of JSON lines, `{"id": ..., "items": [...]}`; a later line of the same id replaces an earlier one.

    A last line that was torn by a kill is removed. Only the places of the lines are kept in memory. May be used from
    several threads, but by one process.

    Args:
        path (`Path`):
            The file; made if it is not there.

    Raises:
        `DataError`: a whole line is none of ours.
    """

    def __init__(self, path: Path):
        self.path = path
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()
        end = 0
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    try:
                        key = json.loads(line)["id"]
                    except (ValueError, KeyError, TypeError):
                        if line.endswith(b"\n"):
                            raise DataError(f"{path} has a line that is none of ours: {line[:80]!r}") from None
                        break
                    if not line.endswith(b"\n"):
                        break
                    self._places[key] = end
                    end += len(line)
        self._file = path.open("a+b")
        self._file.truncate(end)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __getitem__(self, key: str) -> list:
        with self._lock:
            self._file.seek(self._places[key])
            return json.loads(self._file.readline())["items"]

    def add(self, lines: Iterable[tuple[str, list]]) -> None:
        """Write lines at once; they are on the disk when this returns.

        Raises:
            `ValueError`: the file is closed.
        """
        # ASCII, so that lone surrogates survive.
        texts = [(key, json.dumps({"id": key, "items": items}).encode("ascii") + b"\n") for key, items in lines]
        with self._lock:
            end = self._file.seek(0, os.SEEK_END)
            self._file.write(b"".join(text for _, text in texts))
            self._file.flush()
            os.fsync(self._file.fileno())
            for key, text in texts:
                self._places[key] = end
                end += len(text)

    def close(self) -> None:
        """What a thread that was left behind adds later is refused."""
        with self._lock:
            self._file.close()


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
def only_run(folder: Path) -> Iterator[None]:
    """Holds the folder for this process; the lock of a process that was killed is free.

    Raises:
        `DataError`: another run holds it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise DataError(f"another run is under way in {folder}; wait for it, or use another folder") from None
    try:
        yield
    finally:
        lock.release()

"""Answers of judges kept on disk, found again by what was asked; several processes may share one file.

The key is a hash of everything that decides an answer and of nothing else: not of the server's address, so that a run
can move to another server and keep what it has.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock


logger = logging.getLogger(__name__)

# Part of every key: raise it when the meaning of what is stored changes.
KEY_VERSION = 1
# Seconds that a process waits for another one's write.
BUSY_TIMEOUT = 60.0
# Writes between two looks at the size.
_WRITES_PER_CHECK = 256
# Keys in a query; SQLite of before 2020 allows 999 parameters.
_KEYS_PER_QUERY = 500
# Connections of a parent process, kept so that they are not closed by being collected.
_INHERITED: list[sqlite3.Connection | None] = []
_SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, checksum INTEGER NOT NULL, value TEXT NOT NULL
)
"""


def default_cache_path() -> Path:
    """`$HF_FACTUALITY_CACHE`, a file or a folder, else `hf_factuality/answers.sqlite` under `$HF_HOME` (`~/.cache/huggingface`)."""
    given = os.environ.get("HF_FACTUALITY_CACHE")
    if given:
        path = Path(given).expanduser()
        return path / "answers.sqlite" if path.is_dir() else path
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    return Path(home).expanduser() / "hf_factuality" / "answers.sqlite"


def content_key(parts: Mapping[str, Any]) -> str:
    """Hash of plain values (str, int, float, bool, None, lists, dicts), whatever the order of the dicts' keys.

    `TypeError` for a value that is not plain, `ValueError` for a number that is not finite.
    """
    # ASCII, so that lone surrogates are hashed too.
    text = json.dumps([KEY_VERSION, parts], sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()


class AnswerCache:
    """JSON values by key in one SQLite file, for several threads and processes at once.

    A value is there for the other processes as soon as `put` returns, and survives the death of the process. An entry
    whose checksum fails is a miss. A file that SQLite cannot read is set aside (`*.corrupt-...`) and a new one begun; a
    full disk or a broken page costs the entry and a warning, never the run.

    The file belongs on a local disk: SQLite's locks do not hold on many network file systems.

    Args:
        path (`str` or `Path`, *optional*):
            The file; its folder is made on first use. `None`: [`default_cache_path`].
        max_bytes (`int`, *optional*, defaults to 4 GiB):
            Size after which the oldest entries are deleted, a tenth at a time. `None`: no bound.

    Raises:
        `ValueError`: `max_bytes` is not positive.

    Example:

        >>> cache = AnswerCache("answers.sqlite")
        >>> cache.put("key", {"text": "supported"})
        >>> cache.get("key")
        {'text': 'supported'}
    """

    def __init__(self, path: str | Path | None = None, max_bytes: int | None = 4 * 1024**3):
        if max_bytes is not None and max_bytes < 1:
            raise ValueError(f"max_bytes must be positive or None, got {max_bytes!r}")
        self.path = Path(path).expanduser() if path is not None else default_cache_path()
        self.max_bytes = max_bytes
        self._reset()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, max_bytes={self.max_bytes!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "max_bytes": self.max_bytes}

    def __setstate__(self, state: Mapping[str, Any]):
        self.__init__(**state)

    def _reset(self):
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None
        self._writes = 0
        self._warned = False

    def get(self, key: str) -> dict[str, Any] | None:
        """The value of `key`; `None` if there is none or it is damaged."""
        return self.get_many([key]).get(key)

    def get_many(self, keys: Iterable[str]) -> dict[str, dict[str, Any]]:
        """The values of those `keys` that are there."""
        wanted = list(dict.fromkeys(keys))

        def rows(chunk: list[str]) -> list[tuple]:
            query = f"SELECT key, checksum, value FROM answers WHERE key IN ({','.join('?' * len(chunk))})"
            return self._do("read", lambda database: database.execute(query, chunk).fetchall(), [])

        chunks = [wanted[start : start + _KEYS_PER_QUERY] for start in range(0, len(wanted), _KEYS_PER_QUERY)]
        decoded = ((row[0], _decode(*row)) for chunk in chunks for row in rows(chunk))
        return {key: value for key, value in decoded if value is not None}

    def put(self, key: str, value: Mapping[str, Any]) -> bool:
        """Store `value`, in place of what `key` had before; whether it is stored. If not, a warning says why (once).
        `TypeError`, `ValueError`: `value` is not JSON."""
        text = json.dumps(dict(value), ensure_ascii=True, allow_nan=False, separators=(",", ":"))

        def write(database: sqlite3.Connection) -> bool:
            database.execute(
                "INSERT INTO answers (key, checksum, value) VALUES (?, ?, ?) "
                "ON CONFLICT (key) DO UPDATE SET checksum = excluded.checksum, value = excluded.value",
                (key, _checksum(key, text), text),
            )
            self._writes += 1
            if self.max_bytes is not None and self._writes % _WRITES_PER_CHECK == 1:
                self._shrink(database)
            return True

        return self._do("write", write, False)

    def __len__(self) -> int:
        count = "SELECT COUNT(*) FROM answers"
        return self._do("read", lambda database: database.execute(count).fetchone()[0], 0)

    def close(self):
        """Close the file; it opens again by itself."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
                self._connection = None

    def _do(self, purpose: str, work: Callable[[sqlite3.Connection], Any], otherwise: Any) -> Any:
        """What comes of `work` on the open database; if it fails, a warning and `otherwise`."""
        if self._pid != os.getpid():
            # A fork must not touch, not even close, the connection of its parent, and may have copied a held lock.
            _INHERITED.append(self._connection)
            self._reset()
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _open(self.path)
                return work(self._connection)
            except (sqlite3.Error, OSError) as error:
                if not self._warned:
                    self._warned = True
                    logger.warning("cannot %s the answer cache %s: %s; going on without", purpose, self.path, error)
                return otherwise

    def _shrink(self, database: sqlite3.Connection):
        """Delete the oldest entries until the pages in use fit the bound; freed pages are used again."""
        while True:
            pages, free, size = (
                database.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("page_count", "freelist_count", "page_size")
            )
            if (pages - free) * size <= self.max_bytes:
                return
            count = database.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
            if count <= 1:
                return
            database.execute(
                "DELETE FROM answers WHERE id IN (SELECT id FROM answers ORDER BY id LIMIT ?)", (max(1, count // 10),)
            )


def _checksum(key: str, text: str) -> int:
    # With the key: a damaged index leads to the row of another one.
    return zlib.crc32(f"{key} {text}".encode("utf-8", "replace"))


def _decode(key: str, checksum: Any, text: Any) -> dict[str, Any] | None:
    if not isinstance(text, str) or _checksum(key, text) != checksum:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _open(path: Path) -> sqlite3.Connection:
    """Connection in WAL mode, each statement a transaction of its own; an unreadable file is set aside first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock", timeout=BUSY_TIMEOUT):  # of several processes, one begins the file
        try:
            return _connect(path)
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError):
                raise  # locked, no permission, disk full: nothing is wrong with the content
            aside = path.with_name(f"{path.name}.corrupt-{time.time_ns()}")
            logger.warning("%s is no usable answer cache (%s): set aside as %s", path, error, aside.name)
            os.replace(path, aside)
            for suffix in ("-wal", "-shm"):
                Path(f"{path}{suffix}").unlink(missing_ok=True)
            return _connect(path)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT, isolation_level=None, check_same_thread=False)
    try:
        connection.text_factory = lambda data: data.decode("utf-8", "replace")  # damaged text is a miss, not an error
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(_SCHEMA)
        connection.execute("SELECT key, checksum, value FROM answers LIMIT 1").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection

"""A knowledge source in one SQLite file of titles and texts, as FActScore keeps Wikipedia; its own files open as they are.

FActScore's reader demands the exact title and ends the run where there is none. Here a title is looked up in steps, a
page that is not there is `None`, and the text comes without the tokenizer's tags that FActScore stores in it.
"""

from __future__ import annotations

import hashlib
import html
import logging
import os
import re
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from hf_factuality.errors import RetrievalError
from hf_factuality.io.upload import Published, publish
from hf_factuality.retrieval.knowledge_build import FORMAT, MAGIC, is_sqlite, read_pages, write_base
from hf_factuality.retrieval.pages import (
    Page,
    bare_name,
    encodable,
    spellings_of,
    title_key,
    wiki_form,
    without_qualifier,
)
from hf_factuality.retrieval.passages import stored_text


logger = logging.getLogger(__name__)

# Steps of a look-up; each includes those before it.
LOOKUPS = ("exact", "normalized", "parentheses")
# Characters; Wikipedia allows 255 bytes. Longer ones are looked up exactly.
MAX_TITLE = 1000
# Seconds to wait for a program that writes to the file.
LOCK_TIMEOUT = 10.0
_BATCH = 256  # pages that are in memory at a time
_SELECT = "SELECT rowid, title, text FROM documents"
# By the beginnings of SQLite's names of the errors.
_FAULTS = {
    ("SQLITE_BUSY", "SQLITE_LOCKED"): "is locked by a program that writes to it; wait for it, or read a copy",
    ("SQLITE_READONLY_ROLLBACK",): "was left in the middle of a write; open it once with a program that may write",
    ("SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR"): "is damaged; copy, download or build it again",
}
# Connections of a parent process, kept from being closed.
_INHERITED: list[sqlite3.Connection] = []


class KnowledgeBase:
    """Pages by title, read from one SQLite file with a table `documents(title, text)`.

    The file is opened for reading only. One object serves several threads, and after a fork or in another process
    (it can be pickled) each opens the file for itself.

    A title is looked up in three steps, and the first that finds a page counts:

    - `"exact"`: the very characters.
    - `"normalized"`: the same [`title_key`]: Unicode form, case, underscores, white space, HTML entities (FActScore's
      titles have `&amp;`), typographic quotes and dashes. In a file that [`KnowledgeBase.build`] did not make there is no
      index of such keys; the usual spellings are tried there, but not every mixture of capitals.
    - `"parentheses"`: the only page of that name, where either the title asked for or the page's own ends in a qualifier
      such as "(footballer)", and the other has none.

    Where a step leaves several pages to choose from, there is no page: a wrong page is worse than none.

    Args:
        knowledge (`str` or `Path`):
            A file of [`KnowledgeBase.build`], or FActScore's `enwiki-*.db`, which is read in place: tags removed, chunks
            joined, HTML entities resolved. With `filename`, a dataset repository of the Hub that holds it.
        filename (`str`, *optional*), revision (`str`, *optional*):
            The file in the repository, which is downloaded once.
        lookup (`str`, *optional*, defaults to `"parentheses"`):
            The last step to take.

    Attributes:
        counts (`dict[str, int]`):
            Of the build: `documents`, `duplicates`, and the rows left out, `empty` (no text) and `untitled`. Else empty.

    Raises:
        `RetrievalError`: the file is missing, unfinished, truncated, locked, no SQLite database, or has no such table.
        `ValueError`: `lookup` is none of the three.

    Example:

        >>> base = KnowledgeBase.build("kb.sqlite", [("Ulm", "Ulm is a city on the Danube.")])
        >>> base.page("ulm").text
        'Ulm is a city on the Danube.'
    """

    def __init__(
        self,
        knowledge: str | Path,
        filename: str | None = None,
        revision: str | None = None,
        lookup: str = "parentheses",
    ):
        if lookup not in LOOKUPS:
            raise ValueError(f"lookup must be one of {LOOKUPS}, got {lookup!r}")
        if filename is not None:
            from huggingface_hub import hf_hub_download

            self.path = Path(hf_hub_download(str(knowledge), filename, repo_type="dataset", revision=revision))
            commit = re.search(r"/snapshots/([0-9a-f]{40})/", self.path.as_posix())
            revision = commit[1] if commit else revision
            self._source = {"knowledge": str(knowledge), "filename": filename, "revision": revision}
        else:
            self.path = Path(knowledge).expanduser().absolute()
            self._source = {"knowledge": str(self.path)}
        self.lookup = lookup
        self._local = threading.local()
        self._fingerprint: str | None = None
        self.counts: dict[str, int] = {}
        _check_file(self.path)
        self._identity = _identity(self.path)
        self._check_tables()

    def _check_tables(self) -> None:
        tables = {name for (name,) in self._query("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")}
        columns = {row[1] for row in self._query("PRAGMA table_info(documents)")}
        if not {"title", "text"} <= columns:
            found = f"documents({', '.join(sorted(columns))})" if columns else f"the tables {sorted(tables)}"
            hint = "make a knowledge base of it with `hf-factuality index`"
            raise RetrievalError(f"{self.path} has no table documents(title, text), only {found}; {hint}")
        self._built = "hf_factuality" in tables
        if self._built:
            meta = dict(self._query("SELECT name, value FROM hf_factuality"))
            found = meta.get("format")
            if found != FORMAT:
                raise RetrievalError(f"{self.path} has format {found!r}, not {FORMAT!r}; build it again")
            self._fingerprint = meta["fingerprint"]
            self.counts = {n.removeprefix("count_"): int(v) for n, v in meta.items() if n.startswith("count_")}
        self._query(f"{_SELECT} LIMIT 1")
        if not any("SEARCH" in row[-1] for row in self._query(f"EXPLAIN QUERY PLAN {_SELECT} WHERE title = ''")):
            logger.warning(
                f"{self.path} has no index on its titles, so every look-up reads the whole file; "
                f"`hf-factuality index {self.path}` makes a file that has one"
            )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, lookup={self.lookup!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self.config()), ()  # another process opens the file for itself

    def config(self) -> dict[str, Any]:
        """Arguments that open this base again; the revision is the commit."""
        return {**self._source, "lookup": self.lookup}

    def __len__(self) -> int:
        return self.counts.get("documents") or self._query("SELECT COUNT(*) FROM documents")[0][0]

    def __iter__(self) -> Iterator[Page]:
        """Every page by its number, read a few at a time."""
        last = -(2**63)
        while rows := self._query(f"{_SELECT} WHERE rowid > ? ORDER BY rowid LIMIT {_BATCH}", (last,)):
            last = rows[-1][0]
            for row in rows:
                yield self._to_page(row)

    def __getitem__(self, title: str) -> Page:
        """The page of `title`; raises `RetrievalError` if there is none or several could be meant."""
        page = self.page(title)
        if page is None:
            raise RetrievalError(f"{self.path} has no single page for the title {title!r}; correct it or add the page")
        return page

    @property
    def fingerprint(self) -> str:
        """Names the content: of a built base a hash of what was put in, of another file a hash of its size and samples."""
        if self._fingerprint is None:
            size = self.path.stat().st_size
            digest = hashlib.sha256(str(size).encode())
            with self.path.open("rb") as file:
                for part in range(65):
                    file.seek(max(0, size - 4096) * part // 64)
                    digest.update(file.read(4096))
            self._fingerprint = f"file-{digest.hexdigest()[:32]}"
        return self._fingerprint

    def page(self, title: str) -> Page | None:
        """The page of `title`, `None` if there is none or several could be meant."""
        title = encodable(title)
        rows = self._query(f"{_SELECT} WHERE title = ?", (title,))
        if len(rows) == 1:
            return self._to_page(rows[0])
        if rows or self.lookup == "exact" or len(title) > MAX_TITLE:
            return None
        number, match = self._choose(title, self._same_name(title))
        return None if number is None else self.page_by_id(number, match)

    def page_by_id(self, number: int, match: str = "exact") -> Page:
        """The page with this `Page.id`; raises `RetrievalError` if there is none."""
        rows = self._query(f"{_SELECT} WHERE rowid = ?", (number,))
        if not rows:
            raise RetrievalError(f"{self.path} has no document {number}; the index was made from another file")
        return self._to_page(rows[0], match)

    def close(self) -> None:
        """Close this thread's connection; it opens again by itself."""
        self._local.handle = None

    def _same_name(self, title: str) -> list[tuple[int, str]]:
        """Numbers and titles of the pages that have the name of `title`, qualifiers aside."""
        name = bare_name(title_key(title))
        if self._built:
            return self._query(
                "SELECT d.id, d.title FROM title_names n JOIN documents d ON d.id = n.id WHERE n.name = ?", (name,)
            )
        rows = self._titled(spellings_of(title))
        if self.lookup == "parentheses":
            names = spellings_of(without_qualifier(title.replace("_", " "))) or spellings_of(title)
            rows += self._titled(names)
            qualified = "SELECT rowid, title FROM documents WHERE title >= ? AND title < ? LIMIT 9"
            for start in [f"{name}{gap}" for name in names for gap in " _"]:
                rows += self._query(qualified, (f"{start}(", f"{start})"))  # ")" follows "("
        return [(number, text) for number, text in dict(rows).items() if bare_name(title_key(text)) == name]

    def _titled(self, titles: Sequence[str]) -> list[tuple[int, str]]:
        marks = ",".join("?" * len(titles))
        return self._query(f"SELECT rowid, title FROM documents WHERE title IN ({marks})", titles)

    def _choose(self, title: str, rows: Sequence[tuple[int, str]]) -> tuple[int | None, str]:
        key = title_key(title)
        same = [row for row in rows if title_key(row[1]) == key]
        if len(same) > 1:  # "Polish" and "polish"
            same = [row for row in same if wiki_form(row[1]) == wiki_form(title)] or same
        if same:
            return (same[0][0] if len(same) == 1 else None), "normalized"
        if self.lookup != "parentheses" or len(rows) != 1:
            return None, ""
        return (rows[0][0] if bare_name(key) in (key, title_key(rows[0][1])) else None), "parentheses"

    def _to_page(self, row: tuple[int, Any, Any], match: str = "exact") -> Page:
        number, title, text = row[0], _decoded(row[1]), _decoded(row[2])
        if self._built:
            return Page(number, title, text, (), match)
        text, chunks = stored_text(text)
        return Page(number, html.unescape(title), text, chunks, match)

    def _query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple]:
        try:
            handle = getattr(self._local, "handle", None)
            if handle is None or handle.pid != os.getpid():
                if _identity(self.path) != self._identity:
                    raise RetrievalError(f"{self.path} was replaced while it was in use; open it again")
                self._local.handle = handle = _Handle(_connect(self.path))
            return handle.connection.execute(sql, parameters).fetchall()
        except sqlite3.Error as error:
            raise RetrievalError(_explain(self.path, error)) from None

    @classmethod
    def build(
        cls,
        path: str | Path,
        source: Any,
        *,
        title_column: str = "title",
        text_column: str = "text",
        dataset_config: str | None = None,
        split: str = "train",
        dataset_revision: str | None = None,
        duplicates: str = "first",
        overwrite: bool = False,
        show_progress: bool | None = None,
    ) -> KnowledgeBase:
        """Write a knowledge base; memory does not grow with its size.

        The file appears when it is complete. A build that is killed leaves a hidden file, which the next one removes.

        Args:
            path (`str` or `Path`):
                The file to write; its folder is made.
            source (`Any`):
                A dataset of `datasets` (map-style or iterable), a JSON Lines file (`.jsonl`, also `.gz`), a CSV or Parquet
                file, a folder of `save_to_disk`, the id of a dataset on the Hub (streamed), another knowledge base or its
                file, or an iterable of (title, text) pairs or of dicts.
            title_column (`str`, *optional*, defaults to `"title"`), text_column (`str`, *optional*, defaults to `"text"`):
                Where title and text are; a text is a string, or a list of strings, which become lines.
            dataset_config (`str`, *optional*), split (`str`, *optional*, defaults to `"train"`), dataset_revision (`str`, *optional*):
                Of a dataset on the Hub.
            duplicates (`str`, *optional*, defaults to `"first"`):
                What happens to a title that was there before: `"first"` keeps the first text, as FActScore does; `"join"`
                appends the text as a new line (for corpora of one passage per row); `"error"` ends the build.
            overwrite (`bool`, *optional*, defaults to `False`):
                Whether a file that is there is replaced.
            show_progress (`bool`, *optional*):
                `None` shows a bar where standard error is a terminal.

        Returns:
            [`KnowledgeBase`]: the new base, opened.

        Raises:
            `DataError`: a column is missing, a value is no text (the message names the row), the source is empty or
            unknown, a title comes twice under `"error"`, the file is there already, or another process builds it.
            `RetrievalError`: SQLite cannot write the file.
        """
        path, columns = Path(path).expanduser().absolute(), (title_column, text_column)
        if isinstance(source, (str, Path)) and is_sqlite(Path(source).expanduser()):
            source = KnowledgeBase(source)
        if isinstance(source, KnowledgeBase):
            rows = ((f"{source.path}, document {page.id}", page.title, page.text) for page in source)
        else:
            rows = read_pages(source, columns, dataset_config, split, dataset_revision)
        write_base(path, rows, duplicates, overwrite, show_progress)
        return cls(path)

    def push_to_hub(
        self, repo_id: str, filename: str | None = None, private: bool | None = None, token: str | None = None
    ) -> Published:
        """Upload the file to a dataset repository, which is made if need be, private by default; returns the commit.
        `HubError`: the Hub refuses or cannot be reached, or `private` is not what the repository is."""
        name = filename or self.path.name
        return publish(
            {name: self.path}, repo_id, repo_type="dataset", private=private, new_private=True,
            commit_message=f"Upload {name}", token=token,
        )  # fmt: skip


class _Handle:
    """A thread's connection, closed with the thread: a bare one waits for the garbage collector, being in a cycle."""

    def __init__(self, connection: sqlite3.Connection):
        self.connection, self.pid = connection, os.getpid()

    def __del__(self):
        if self.pid == os.getpid():
            self.connection.close()
        else:  # a fork must not touch, not even close, what its parent opened
            _INHERITED.append(self.connection)


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a file from another one of the same name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _check_file(path: Path) -> None:
    """Say what is wrong with a file before SQLite does, which takes an empty file for an empty database."""
    hint = "build one with `hf-factuality index SOURCE`"
    if not path.is_file():
        raise RetrievalError(f"there is no knowledge base {path}; {hint}")
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except OSError as error:
        raise RetrievalError(f"cannot read the knowledge base {path}: {error.strerror}") from None
    if not head.startswith(MAGIC):
        what = "is no SQLite database (a download that failed?)" if head else "is empty"
        raise RetrievalError(f"{path} {what}; {hint}")
    # https://www.sqlite.org/fileformat.html: page size at 16, size in pages at 28, valid if the counters agree
    page = int.from_bytes(head[16:18], "big")
    expected = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
    actual = path.stat().st_size
    if len(head) < 100 or (head[24:28] == head[92:96] and actual < expected):
        raise RetrievalError(f"{path} is truncated: {actual} of {expected} bytes; copy, download or build it again")


def _connect(path: Path) -> sqlite3.Connection:
    place = f"{path.as_uri()}?mode=ro"
    connection = sqlite3.connect(place, uri=True, timeout=LOCK_TIMEOUT, check_same_thread=False)
    connection.text_factory = _decoded  # one damaged page must not hide the others
    connection.execute("PRAGMA query_only = ON")
    return connection


def _explain(path: Path, error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", None) or ""
    return next((f"{path} {what}" for starts, what in _FAULTS.items() if name.startswith(starts)), f"{path}: {error}")


def _decoded(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)

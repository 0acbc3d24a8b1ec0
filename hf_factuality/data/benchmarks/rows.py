"""Rows of a source under one set of column names, and what becomes of rows that cannot be used."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.errors import DataError


class Unusable(Exception):
    """A row that no item can be made of. Its text is the reason under which the row is counted."""


@dataclass(frozen=True)
class BenchmarkRow:
    """One row of a source."""

    values: Mapping[str, Any]  # under the names that a `BenchmarkReader` uses, without the columns that are missing
    id: str
    group: str | None = None  # name of its file
    drawn: bool | None = None  # the seeded choice: whether the hallucinated candidate is shown, or shown first

    def text(self, name: str) -> str:
        """A text as it stands, since training shows it so too; a whole number, `204.0` too, is taken as text."""
        value = self.values.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value // 1:
            return str(int(value))
        if value is not None and not isinstance(value, str):
            raise Unusable(f"{name} is no text")
        if value is None or not value.strip():
            raise Unusable(f"no {name}")
        return value

    def optional_text(self, name: str) -> str | None:
        """A text without white space at its ends, or `None` if there is none."""
        try:
            return self.text(name).strip()
        except Unusable:
            return None

    def texts(self, name: str, separator: str) -> list[str]:
        """The texts of a list that are not blank; one text may hold several, as in CSV files."""
        value = self.values.get(name)
        value = value.split(separator) if isinstance(value, str) else [] if value is None else value
        if not isinstance(value, Sequence) or not all(isinstance(text, str) for text in value):
            raise Unusable(f"{name} is no list of texts")
        texts = [text.strip() for text in value if text.strip()]
        if not texts:
            raise Unusable(f"no {name}")
        return texts


@dataclass(frozen=True, kw_only=True)
class BenchmarkReader(Benchmark):
    """A benchmark, and how its rows become items; the other arguments are those of [`Benchmark`].

    Args:
        build (`Callable`):
            Makes an item of a [`BenchmarkRow`], in a style of prompt, or raises [`Unusable`] with the reason.
        columns (`tuple[str, ...]`), optional (`tuple[str, ...]`, *optional*):
            The columns that it reads; of `"question/problem"` the first that there is, which is called `question`.
        draws (`bool`, *optional*, defaults to `False`):
            Whether each row needs a choice between two candidates.
        line_column (`str`, *optional*):
            What a line of a text file holds; without it, text files are refused.
        files (`str`, *optional*):
            Pattern of files that are read one by one, instead of by `datasets.load_dataset`.
        joined (`tuple[str, str]`, *optional*):
            A file beside those of `files` and a column: its rows are added to those with the same value in that column.
        where (`str`, *optional*):
            Where the files are published, of a benchmark without a default dataset on the Hub.
    """

    build: Callable[[BenchmarkRow, str], BenchmarkItem]
    columns: tuple[str, ...]
    optional: tuple[str, ...] = ()
    draws: bool = False
    line_column: str | None = None
    files: str | None = None
    joined: tuple[str, str] | None = None
    where: str = ""

    def find_columns(self, present: Collection[Any], name: str) -> dict[str, Any]:
        """Our name of a column -> that of the source, which errors call `name`."""
        keys = column_keys(present)
        found = {}
        for names in (column.split("/") for column in (*self.columns, *self.optional)):
            match = next((keys[name] for name in names if name in keys), None)
            if match is not None:
                found[names[0]] = match
        missing = [names for names in self.columns if names.split("/")[0] not in found]
        if missing:
            raise DataError(
                f"{name} is no file of {self.name}: it has the columns {sorted(map(str, present))}, and needs "
                f"{_listed(self.columns)}; {_listed(missing)} {'is' if len(missing) == 1 else 'are'} missing. Rename the columns"
            )
        return found


def column_keys(present: Collection[Any]) -> dict[str, Any]:
    """Columns by their names in lower case with underscores: `"Best Answer1"` is `"best_answer1"`."""
    keys: dict[str, Any] = {}
    for column in present:
        keys.setdefault(str(column).strip().lower().replace(" ", "_").replace("-", "_"), column)
    return keys


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(" or ".join(map(repr, names.split("/"))) for names in columns)

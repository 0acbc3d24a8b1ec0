"""Answers and their evidence as `hf-factuality verify` reads them: checked once to the end, then row by row."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from hf_factuality.errors import DataError
from hf_factuality.io.rows import read_lines
from hf_factuality.verifiers.base import VerifierInput, evidence_passages


class JsonLines:
    """A JSON Lines file that is read several times, whatever it is: a pipe is copied to a temporary file first.

    Args:
        path (`Path`):
            The file; `-` for standard input.

    Raises:
        `OSError`: it cannot be opened.
    """

    def __init__(self, path: Path):
        self.path = path
        self.name = "standard input" if str(path) == "-" else str(path)
        if str(path) == "-":
            self._file = _copied(sys.stdin.buffer)
        elif path.exists() and not path.is_file() and not path.is_dir():
            with path.open("rb") as pipe:
                self._file = _copied(pipe)
        else:
            self._file = path.open("rb")

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """Number of the line, counted from 1; offset of its first byte; row.

        Raises:
            `DataError`: a line is not a JSON object.
        """
        self._file.seek(0)
        for number, offset, row in read_lines(self._file, self.name, strict=True):
            if isinstance(row, list):
                raise DataError(
                    f"{self.name}, line {number} is a list; JSON Lines has one object per line, not an array"
                )
            yield number, offset, row

    def at(self, offset: int) -> dict[str, Any]:
        """The row whose line starts at byte `offset`, and was read before; not while the file is being iterated."""
        self._file.seek(offset)
        return next(row for _, _, row in read_lines(self._file, self.name, strict=True))

    def close(self) -> None:
        self._file.close()


def _copied(source: BinaryIO) -> BinaryIO:
    file = tempfile.TemporaryFile()
    shutil.copyfileobj(source, file)
    return file


class Source:
    """The rows of the command. Made by [`read_source`]; iterating gives the place of each row and a [`VerifierInput`].

    Args:
        answers ([`JsonLines`]):
            Completions.
        evidence_file ([`JsonLines`], *optional*):
            Passages, if they are not in the rows of `answers`.
        args (`argparse.Namespace`):
            `completion_column`, `question_column`, `id_column`.
        column (`str`):
            Column of the evidence, in its file or in `answers`.

    Raises:
        `DataError`: a line cannot be used, or the two files do not fit together.
    """

    def __init__(self, answers: JsonLines, evidence_file: JsonLines | None, args: argparse.Namespace, column: str):
        self.name = answers.name
        self.paths = [file.path for file in (answers, evidence_file) if file and file.name != "standard input"]
        self.pairing = ""
        self._answers, self._evidence_file, self._args, self._column = answers, evidence_file, args, column
        self._index: dict[str | int, int] = {}
        self._id_column: str | None = None
        if evidence_file:
            self._id_column = self._choose_id()
            self._index_evidence()
        self.total, self.with_evidence, self.columns = self._check()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: Any) -> None:
        self._answers.close()
        if self._evidence_file:
            self._evidence_file.close()

    def __iter__(self) -> Iterator[tuple[str, VerifierInput]]:
        for number, (line, _, row) in enumerate(self._answers, start=1):
            passages: tuple[str, ...] | None
            if self._evidence_file is None:
                passages = evidence_passages(row.get(self._column))
            else:
                offset = self._index.get(self._key(row, line, number))
                found = {} if offset is None else self._evidence_file.at(offset)
                passages = evidence_passages(found.get(self._column))
            question = row.get(self._args.question_column)
            yield f"line {line}", VerifierInput(row[self._args.completion_column], question, passages or (), row)

    def require_evidence(self) -> None:
        """Refuse a file of which no row has evidence.

        Raises:
            `DataError`: says where evidence was looked for.
        """
        if self.with_evidence:
            return
        where = f"{self._column!r} (columns of the first: {self.columns})"
        fix = "name the column with --evidence_column, or a column or file with --evidence"
        if self._evidence_file:
            where, fix = (
                f"{self._evidence_file.name}, column {self._column!r}",
                "name the column with --evidence_column",
            )
            if self._id_column:
                fix += f", and the column that both files share with --id_column (now {self._id_column!r})"
        raise DataError(f"no row of {self.name} has evidence in {where}; {fix}")

    def _choose_id(self) -> str | None:
        """The column that joins both files; `None` joins them by their order."""
        if self._args.id_column:
            return self._args.id_column
        first = [next(((line, row) for line, _, row in file), None) for file in (self._answers, self._evidence_file)]
        return "id" if all(found and isinstance(found[1], dict) and "id" in found[1] for found in first) else None

    def _key(self, row: dict[str, Any], line: int, number: int, name: str | None = None) -> str | int:
        if self._id_column is None:
            return number
        value = row.get(self._id_column)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise DataError(
                f"{name or self.name}, line {line} has no id in {self._id_column!r} (found {sorted(row)}); name the "
                "column with --id_column"
            )
        return str(value)

    def _index_evidence(self) -> None:
        name = self._evidence_file.name
        lines: dict[str | int, int] = {}
        count = 0
        for count, (line, offset, row) in enumerate(self._evidence_file, start=1):
            place = f"{name}, line {line}"
            if not isinstance(row, dict) or self._column not in row:
                columns = sorted(row) if isinstance(row, dict) else type(row).__name__
                raise DataError(
                    f"{place} has no evidence in {self._column!r} (found {columns}); name the column with "
                    "--evidence_column"
                )
            key = self._key(row, line, count, name)
            if key in lines:
                raise DataError(
                    f"{place} has the same {self._id_column!r} as line {lines[key]}; list its passages in one line"
                )
            lines[key] = line
            if _passages(row[self._column], place):
                self._index[key] = offset
        self._evidence_rows = count

    def _check(self) -> tuple[int, int, list[str]]:
        total = with_evidence = 0
        first: list[str] = []
        seen = False
        args, name = self._args, self.name
        for total, (line, _, row) in enumerate(self._answers, start=1):
            if not isinstance(row, dict) or not isinstance(row.get(args.completion_column), str):
                columns = sorted(row) if isinstance(row, dict) else type(row).__name__
                raise DataError(
                    f"{name}, line {line} has no text in {args.completion_column!r} (found {columns}); name the column "
                    "with --completion_column"
                )
            first = first or sorted(row)
            question = row.get(args.question_column)
            if question is not None and not isinstance(question, str):
                raise DataError(
                    f"{name}, line {line}: the question in {args.question_column!r} must be text, got {question!r:.100}; "
                    "name the column with --question_column"
                )
            if self._evidence_file:
                with_evidence += self._key(row, line, total) in self._index
            else:
                seen = seen or self._column in row
                with_evidence += bool(_passages(row.get(self._column), f"{name}, line {line}, row {total}"))
        if not total:
            raise DataError(f"{name} holds no rows")
        if self._evidence_file and self._id_column is None and self._evidence_rows != total:
            raise DataError(
                f"{name} has {total} rows and {self._evidence_file.name} has {self._evidence_rows}, which must be as many "
                "to be joined by their order; or name a column that both share with --id_column"
            )
        if self._evidence_file:
            how = f"by {self._id_column!r}" if self._id_column else "by the order of their rows"
            self.pairing = f"evidence from {self._evidence_file.name}, joined {how}: {with_evidence} of {total} rows"
        elif args.evidence and not seen:
            raise DataError(
                f"--evidence {args.evidence}: there is no such file, and no such column in {name} (columns: {first})"
            )
        return total, with_evidence, first


def _passages(value: Any, place: str) -> tuple[str, ...]:
    passages = evidence_passages(value)
    if passages is None:
        raise DataError(f"{place}: evidence must be a string or a list of strings, got {value!r:.100}")
    return passages


def read_source(args: argparse.Namespace) -> Source:
    """Open and check the files of the command.

    Args:
        args (`argparse.Namespace`):
            `file`, `evidence` (a file, or a column of `file`), `evidence_column`, and what [`Source`] reads.

    Returns:
        [`Source`], a context manager.

    Raises:
        `DataError`: names file, line and fix.
        `OSError`: a file cannot be opened.
    """
    answers = JsonLines(args.file)
    try:
        column, file = args.evidence_column or "evidence", None
        if args.evidence:
            file = Path(args.evidence)
            file = file if file.exists() and not file.is_dir() else None
            columns = next((row for _, _, row in answers if isinstance(row, dict)), {})
            if file and args.evidence in columns:
                raise DataError(
                    f"--evidence {args.evidence} is a file and a column of {answers.name}; write ./{args.evidence} for the "
                    f"file, or --evidence_column {args.evidence} for the column"
                )
            if not file:
                if args.evidence_column:
                    raise DataError(
                        f"--evidence {args.evidence}: there is no such file; without one, give either --evidence or "
                        "--evidence_column for the column"
                    )
                column = args.evidence
        if args.id_column and not file:
            raise DataError("--id_column joins a file of evidence to the answers; name that file with --evidence")
        return Source(answers, JsonLines(file) if file else None, args, column)
    except BaseException:
        answers.close()
        raise

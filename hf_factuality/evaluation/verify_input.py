"""Completions and their evidence as `verify` reads them: checked once to the end, then row by row."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, BinaryIO

from hf_factuality.errors import DataError
from hf_factuality.generation.given import chat_of, given_answer
from hf_factuality.io.messages import asked, is_chat, last_answer
from hf_factuality.io.rows import Cell, file_kind, is_missing, json_list, read_lines, read_rows
from hf_factuality.io.transcripts import SourcedPassage, Transcript, TranscriptTurn, read_transcript
from hf_factuality.verifiers.base import VerifierInput, evidence_passages


@dataclass(frozen=True)
class Columns:
    """Names of the columns; `evidence` and `id` may be found out."""

    completion: str = "completion"
    question: str = "question"
    evidence: str | None = None
    id: str | None = None


class RowList:
    """Rows in memory, with the interface of [`RowFile`]; what is no mapping is the value of `column`."""

    path = None
    unit = "row"

    def __init__(self, rows: Iterable[Any], name: str, column: str):
        # Going through these gives the names of their columns or splits, which would be judged.
        if isinstance(rows, Mapping) or hasattr(rows, "itertuples"):
            fix = (
                "its rows, as of to_dict('records')" if hasattr(rows, "itertuples") else "a list of rows, or one split"
            )
            raise TypeError(f"`{name}` is a {type(rows).__name__}; pass {fix}")
        self.name = name
        self._rows = [_plain(dict(row) if isinstance(row, Mapping) else {column: row}) for row in rows]

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        for number, row in enumerate(self._rows):
            yield number + 1, number, row

    def at(self, offset: int) -> dict[str, Any]:
        """The row of this number, from 0."""
        return self._rows[offset]

    def close(self) -> None:
        pass


def _plain(value: Any) -> Any:
    """A value with lists for its arrays, as pandas gives the lists of a Parquet file."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {key: _plain(it) for key, it in value.items()}
    return list(map(_plain, value)) if isinstance(value, list) else value


class RowFile:
    """A file of rows (`-` for standard input) that is read several times, and at any row again.

    Standard input and pipes hold JSON Lines, as do files whose name has an unknown end. Pipes, and rows of other formats, are
    copied to a temporary file of JSON Lines.
    """

    def __init__(self, path: Path):
        self.path = path
        self.name = "standard input" if str(path) == "-" else str(path)
        self.unit, self._kind = "line", "lines"
        if str(path) == "-":
            self._file = _copied(sys.stdin.buffer)
        elif path.exists() and not path.is_file() and not path.is_dir():
            with path.open("rb") as pipe:
                self._file = _copied(pipe)
        else:
            self._kind = file_kind(path, any_name=True)
            self._file = path.open("rb") if self._kind == "lines" else _as_lines(path)
            self.unit = "line" if self._kind in ("lines", "table") else "row"
        self.close = self._file.close

    def __iter__(self) -> Iterator[tuple[int, int, Any]]:
        """Number of the line (or row), offset of its first byte, value."""
        self._file.seek(0)
        for line, offset, row in read_lines(self._file, self.name, strict=True):
            if self._kind != "lines":
                line, row = row
            elif isinstance(row, list):
                raise DataError(f"{self.name}, line {line} is a list; give one object per line, not an array")
            yield line, offset, self._typed(row)

    def at(self, offset: int) -> dict[str, Any]:
        """The row whose line starts at byte `offset`, and was read before; not while the file is being iterated."""
        self._file.seek(offset)
        row = next(row for _, _, row in read_lines(self._file, self.name, strict=True))
        return self._typed(row if self._kind == "lines" else row[1])

    def _typed(self, row: Any) -> Any:
        if self._kind == "table":
            return {name: Cell(text) if isinstance(text, str) else text for name, text in row.items()}
        return row


def _as_lines(path: Path) -> BinaryIO:
    """Rows of any format, each with its number, as JSON Lines. What JSON does not have, such as dates, is text then."""
    file = tempfile.TemporaryFile()
    for numbered in read_rows(path, strict=True, any_name=True):
        file.write(json.dumps(numbered, default=str).encode() + b"\n")
    return file


def _copied(source: BinaryIO) -> BinaryIO:
    file = tempfile.TemporaryFile()
    shutil.copyfileobj(source, file)
    return file


@dataclass(frozen=True)
class AnswerRow:
    """An answer as it is judged.

    Args:
        place (`str`):
            Its row in words; of a conversation, the turn too.
        input (`VerifierInput`):
            The completion, its question and evidence, and the row.
        missing (`bool`, *optional*, defaults to `False`):
            Whether there is no answer.
        turn (`TranscriptTurn`, *optional*):
            The turn of a conversation with tools that this is.
    """

    place: str
    input: VerifierInput
    missing: bool = False
    turn: TranscriptTurn | None = None


# Columns that the rows of turns do not repeat: the conversation itself, and what a log keeps beside it.
_OF_CONVERSATIONS = frozenset("messages documents tools events attachments store output model_usage timelines".split())


@dataclass
class _TranscriptCounts:
    """What was read of conversations with tools."""

    rows: int = 0
    conversations: int = 0
    without_text: int = 0
    failed: int = 0
    echoed: int = 0

    def add(self, transcript: Transcript) -> None:
        self.conversations += 1
        self.without_text += transcript.without_text
        self.failed += transcript.failed
        self.echoed += transcript.echoed

    def describe(self, turns: int) -> str:
        """In words; empty if there were none."""
        if not self.conversations:
            return ""
        said = f"conversations with tools {self.conversations}, turns {turns}: each is judged by what tools returned before it"
        counted = {
            "failures of tools": self.failed,
            "parts without text": self.without_text,
            "echoes of calls": self.echoed,
        }
        left = ", ".join(f"{name} {n}" for name, n in counted.items() if n)
        return f"{said} (left out: {left})" if left else said


class AnswerSource:
    """The rows: iterating gives an [`AnswerRow`] per answer, of a conversation with tools one per turn.

    It is iterated once at construction, so that what cannot be used is a `DataError` by then. Of a file of evidence only the
    places of its lines are kept.
    """

    def __init__(
        self,
        answers: RowFile | RowList,
        evidence: RowFile | RowList | None,
        columns: Columns,
        named: str | None,
    ):
        self.name = answers.name
        self.paths = [
            file.path for file in (answers, evidence) if file and file.path and file.name != "standard input"
        ]
        self.pairing = ""
        self._answers, self._evidence, self._names = answers, evidence, columns
        self._column = column = columns.evidence or "evidence"
        self._offsets: dict[str | int, int] = {}
        self._id_column = self._choose_id(evidence) if evidence else None
        rows = self._index(evidence) if evidence else 0
        self.total = self.with_evidence = self.turns = 0
        self.columns: list[str] = []
        self.missing = 0
        self._counts = _TranscriptCounts()
        self._found: set[str] = set()
        seen = False
        for answer in self:
            self.total += 1
            self.missing += answer.missing
            self.turns += answer.turn is not None
            self.with_evidence += bool(answer.input.evidence)
            self.columns = self.columns or sorted(answer.input.row)
            seen = seen or column in answer.input.row
        counts, self._counts = self._counts, _TranscriptCounts()
        self.transcripts = counts.describe(self.turns)
        if not self.total:
            raise DataError(f"{self.name} holds no rows")
        if self.missing == self.total:
            if "messages" in self.columns and self._names.completion not in self.columns:
                raise DataError(f"{self.name}: no conversation in 'messages' has a text of the assistant")
            if {"role", "content"} <= set(self.columns):
                fix = 'a conversation is one row, {"messages": [...]}'
                raise DataError(f"{self.name}: every row is a message (columns {self.columns}); {fix}")
            row = dict.fromkeys(self.columns)
            raise _lacks(f"{self.name}: every row", "no text", self._names.completion, row, "`completion_column`")
        # A file of evidence has its column in every row; a column that `evidence` names has its own message.
        check_columns(self.name, replace(columns, evidence=None) if evidence or named else columns, self._found)
        if evidence:
            if self._id_column is None and rows != counts.rows:
                differ = f"{self.name} has {counts.rows} rows and {evidence.name} has {rows}"
                raise DataError(f"{differ}; give as many, or name a column of both with `id_column`")
            how = f"by {self._id_column!r}" if self._id_column else "by the order of their rows"
            unit = "turns and rows" if self.turns else "rows"
            self.pairing = f"evidence from {evidence.name}, joined {how}: {self.with_evidence} of {self.total} {unit}"
        elif named and not seen:
            where = f"no such column in {self.name} (columns: {self.columns})"
            raise DataError(f"`evidence` {named}: there is no such file, and {where}")

    def __iter__(self) -> Iterator[AnswerRow]:
        for number, (line, _, row) in enumerate(self._answers, start=1):
            where = f"{self._answers.unit} {line}"
            place = f"{self.name}, {where}"
            if not isinstance(row, dict):
                raise _lacks(place, "no text", self._names.completion, row, "`completion_column`")
            self._counts.rows += 1
            self._found.update(row)
            if self._evidence is None:
                more = f", row {number}" if self._answers.unit == "line" else ""
                passages = _passages(row.get(self._column), f"{place}{more}")
            else:
                offset = self._offsets.get(self._key(row, place, number))
                passages = () if offset is None else _passages(self._evidence.at(offset)[self._column], place)
            transcript = self._transcript(row, place, bool(passages))
            if transcript is not None:
                yield from self._turns(transcript, where, passages, row)
                continue
            text, question = self._exchange(row, place)
            yield AnswerRow(where, VerifierInput(text or "", question, passages, row), text is None)

    def _transcript(self, row: dict[str, Any], place: str, has_evidence: bool) -> Transcript | None:
        """The conversation with tools that a row holds; `None` if it holds an answer, or a chat without tools."""
        if self._names.completion in row or "messages" not in row:
            return None
        value = json_list(row["messages"])
        if is_missing(value) or value == []:
            return None
        # Beside evidence, documents may be anything.
        documents = None if has_evidence or self._column == "documents" else json_list(row.get("documents"))
        return read_transcript(value, place, documents, sample={"epoch", "input", "target"} <= row.keys())

    def _turns(
        self, transcript: Transcript, where: str, passages: tuple[str, ...], row: dict[str, Any]
    ) -> Iterator[AnswerRow]:
        """A row per turn of a conversation; one that is missing if it has none."""
        self._counts.add(transcript)
        others = {name: value for name, value in row.items() if name not in _OF_CONVERSATIONS}
        if not transcript.turns:
            yield AnswerRow(where, VerifierInput("", None, passages, others), True)
        given = tuple(SourcedPassage(text, self._column) for text in passages)
        for turn in transcript.turns:
            turn = replace(turn, passages=(*given, *turn.passages), row=where)
            evidence = tuple(it.text for it in turn.passages)
            columns = {
                "conversation": where,
                "turn": turn.number,
                "message": turn.message,
                self._names.completion: turn.text,
                self._names.question: turn.question,
                self._column: list(evidence),
                "evidence_from": [it.source for it in turn.passages],
            }
            item = VerifierInput(turn.text, turn.question, evidence, {**others, **columns})
            yield AnswerRow(f"{where}, turn {turn.number}", item, turn=turn)

    def _exchange(self, row: dict[str, Any], place: str) -> tuple[str | None, str | None]:
        """The answer, `None` if it is missing, and the question: of their columns, or of the column `messages`."""
        column, question = self._names.completion, json_list(row.get(self._names.question))
        before = question if is_chat(question) else []
        if column not in row and "messages" in row:
            chat = chat_of(row, place)
            text, before = last_answer(chat) if chat else (None, [])
        else:
            try:
                text = given_answer(row.get(column), place)
            except DataError:
                found = f"got {row[column]!r:.100}"
                raise DataError(f"{place}: the answer in {column!r} must be text or messages, {found}") from None
        if before and (question is None or is_chat(question)):
            question = asked(before)
        question = None if is_missing(question) else question
        if question is not None and not isinstance(question, str):
            where = f"the question in {self._names.question!r} (`question_column`)"
            raise DataError(f"{place}: {where} must be text, got {question!r:.100}")
        return text, question

    def require_evidence(self) -> None:
        """Refuse a file of which no row has evidence; that no tool returned anything is a finding."""
        if self.with_evidence or self.turns:
            return
        where = f"{self._column!r} (columns of the first: {self.columns})"
        fix = "name the column with `evidence_column`, or a column or file with `evidence`"
        if self._evidence:
            where, fix = f"{self._evidence.name}, column {self._column!r}", "name the column with `evidence_column`"
            if self._id_column:
                fix += f", and the column that both files share with `id_column` (now {self._id_column!r})"
        raise DataError(f"no row of {self.name} has evidence in {where}; {fix}")

    def _choose_id(self, evidence: RowFile | RowList) -> str | None:
        """The column that joins both files; `None` joins them by their order."""
        if self._names.id:
            return self._names.id
        first = [next((row for _, _, row in file), None) for file in (self._answers, evidence)]
        return "id" if all(isinstance(row, dict) and "id" in row for row in first) else None

    def _key(self, row: dict[str, Any], place: str, number: int) -> str | int:
        if self._id_column is None:
            return number
        value = row.get(self._id_column)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            raise _lacks(place, "no id", self._id_column, row, "`id_column`")
        return str(value)

    def _index(self, evidence: RowFile | RowList) -> int:
        """Notes where the evidence of each key is; returns the number of rows."""
        lines: dict[str | int, int] = {}
        for number, (line, offset, row) in enumerate(evidence, start=1):
            place = f"{evidence.name}, {evidence.unit} {line}"
            if not isinstance(row, dict) or self._column not in row:
                raise _lacks(place, "no evidence", self._column, row, "`evidence_column`")
            key = self._key(row, place, number)
            if key in lines:
                same = f"the same {self._id_column!r} as {evidence.unit} {lines[key]}"
                raise DataError(f"{place} has {same}; list its passages in one line")
            lines[key] = line
            if _passages(row[self._column], place):
                self._offsets[key] = offset
        return len(lines)


def check_columns(name: str, columns: Any, found: Collection[str]) -> None:
    """Refuse a column that was named and that no row has; `columns` is a dataclass of names, whose defaults may be missing."""
    for own in fields(columns):
        column = getattr(columns, own.name)
        if column != own.default and column not in found:
            there = ", ".join(sorted(map(str, found)))
            raise DataError(
                f"{name} has no column {column!r} (columns: {there}); name another with `{own.name}_column`, or leave it out"
            )


def _lacks(place: str, what: str, column: str, row: Any, flag: str) -> DataError:
    found = sorted(row) if isinstance(row, dict) else type(row).__name__
    return DataError(f"{place} has {what} in {column!r} (found {found}); name the column with {flag}")


def _passages(value: Any, place: str) -> tuple[str, ...]:
    passages = evidence_passages(value)
    if passages is None:
        raise DataError(f"{place}: evidence must be a string or a list of strings, got {value!r:.100}")
    return passages


@contextmanager
def read_answers(
    completions: str | Path | Iterable[Any], evidence: str | Path | Iterable[Any] | None, columns: Columns
) -> Iterator[AnswerSource]:
    """Open and check the completions and their evidence: files, or rows. `evidence` may also name a column of the completions."""
    with closing(open_rows(completions, "completions", columns.completion)) as answers:
        file, named = evidence, None
        if isinstance(evidence, (str, Path)):
            path = Path(evidence)
            if not path.exists() or path.is_dir():
                if columns.evidence:
                    raise DataError(
                        f"`evidence` {path}: there is no such file; of a column, give `evidence_column` alone"
                    )
                file, named = None, str(evidence)
                columns = replace(columns, evidence=named)
            elif str(evidence) in next((row for _, _, row in answers if isinstance(row, dict)), {}):
                fix = f"write ./{evidence} for the file, or `evidence_column` {evidence} for the column"
                raise DataError(f"`evidence` {evidence} is a file and a column of {answers.name}; {fix}")
        if columns.id and file is None:
            raise DataError("`id_column` joins a file of evidence to the answers; name that file with `evidence`")
        rows = nullcontext() if file is None else closing(open_rows(file, "evidence", columns.evidence or "evidence"))
        with rows as passages:
            yield AnswerSource(answers, passages, columns, named)


def open_rows(given: str | Path | Iterable[Any], name: str, column: str) -> RowFile | RowList:
    return RowFile(Path(given)) if isinstance(given, (str, Path)) else RowList(given, name, column)

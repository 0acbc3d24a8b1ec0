"""The answers with the lowest precision, as the page and the summary of a job show them; of a conversation all its turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hf_factuality.evaluation.claim_lines import shortened
from hf_factuality.evaluation.guarantee import ClaimGuarantee
from hf_factuality.functional.scoring import factual_precision
from hf_factuality.reading.same import distinct_units
from hf_factuality.report import ReportSample, write_report
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.service import CHUNK, JudgedRow


_NAME = 100
"""Characters of an id that are shown."""


class WorstSamples:
    """The `limit` answers with the lowest precision; then those without a claim, and last those that were not judged.

    An answer is called by what its row has in `id_column`, and by its line where that is no name.
    """

    def __init__(self, limit: int, id_column: str = "id"):
        self._limit, self._id_column = limit, id_column
        self.guarantee: ClaimGuarantee | None = None
        self._kept: list[tuple[float, int, ReportSample]] = []
        self._open: _Conversation | None = None  # whose turns are being judged
        self._answers = self._conversations = 0

    def add(self, judged: JudgedRow) -> None:
        turn = judged.row.turn
        if self._open and (turn is None or turn.row != self._open.row):
            self._close()
        if turn is not None:
            self._open = self._open or _Conversation(turn.row, self._id(judged))
            self._open.add(judged, self._dropped(judged))
            return
        self._answers += 1
        rank, heading = rank_answer(judged)
        name = self._id(judged)
        sample = ReportSample(
            _title(name or judged.row.key, judged.row.input.question),
            None,
            [(heading, judged.row.input.completion, judged.verification)],
            self._dropped(judged),
            place=judged.row.key if name else "",
        )
        self._keep(rank, sample)

    def _id(self, judged: JudgedRow) -> str:
        """The name of a row; `""` if it has none."""
        value = judged.row.input.row.get(self._id_column)
        named = isinstance(value, (str, int)) and not isinstance(value, bool)
        return shortened(str(value), _NAME) if named else ""

    def _dropped(self, judged: JudgedRow) -> frozenset[LabeledSpan]:
        keeps = self.guarantee.keeps if self.guarantee else None
        return frozenset(it for it in judged.verification.spans if keeps and keeps(it) is False)

    def _close(self) -> None:
        if self._open:
            self._conversations += 1
            self._keep(*self._open.sample())
            self._open = None

    def _keep(self, rank: float, sample: ReportSample) -> None:
        number = self._answers + self._conversations
        self._kept.append((rank, number, replace(sample, row=number)))
        if len(self._kept) >= 2 * self._limit + CHUNK:
            self._cut()

    def _cut(self) -> None:
        self._kept = sorted(self._kept, key=lambda kept: kept[:2])[: self._limit]

    @property
    def samples(self) -> list[ReportSample]:
        """The samples, the worst first."""
        self._close()
        self._cut()
        return [sample for _, _, sample in self._kept]

    @property
    def shown(self) -> str:
        """How many of how many these are, in words."""
        kept, total = len(self.samples), self._answers + self._conversations
        unit = (
            "conversations" if not self._answers else "answers and conversations" if self._conversations else "answers"
        )
        return f"The {kept} of {total} {unit}" if kept < total else f"All {total} {unit}"

    def write(self, path: Path, name: str, scope: str, table: Sequence[Mapping[str, str]]) -> None:
        """Write the page."""
        part = "reasoning" if scope == "think" else scope
        note = f"{self.shown}, the lowest precision first. Sentences of the {part} are coloured by what the evidence says of them."
        write_report(path, f"Factuality of {name}", note, table, self.samples)


class _Conversation:
    """The turns of a conversation, until the last of them is judged."""

    def __init__(self, row: str, name: str):
        self.row, self._name = row, name
        self._turns: list[tuple[JudgedRow, frozenset[LabeledSpan]]] = []

    def add(self, judged: JudgedRow, dropped: frozenset[LabeledSpan]) -> None:
        self._turns.append((judged, dropped))

    def sample(self) -> tuple[float, ReportSample]:
        """Where it stands, and its turns in order with what each was judged by; a passage is shown at its first turn."""
        claims = [it for judged, _ in self._turns for it in _claims(judged)]
        ranks = [rank_answer(judged) for judged, _ in self._turns]
        precision = factual_precision(claims)
        rank = precision if precision is not None else min(rank for rank, _ in ranks)
        said = "no claim was judged" if precision is None else f"precision {precision:.2f}"
        asked = None
        completions, sources, before = [], [], 0
        for (judged, _), (_, heading) in zip(self._turns, ranks, strict=True):
            turn = judged.row.turn
            assert turn is not None
            again = turn.question is None or turn.question == asked
            asked = turn.question
            what = f"turn {turn.number}, messages[{turn.message}]: {heading}"
            completions.append((what if again else _title(what, asked), turn.text, judged.verification))
            sources.append((before, turn.passages[before:]))
            before = len(turn.passages)
        title = f"{self._name or self.row}, {len(self._turns)} turn{'s' if len(self._turns) > 1 else ''}: {said}"
        dropped = frozenset().union(*(it for _, it in self._turns))
        place = self.row if self._name else ""
        return rank, ReportSample(title, None, completions, dropped, tuple(sources), place)


def _title(place: str, question: str | None) -> str:
    return f"{place}: {question}" if question else place


def _claims(judged: JudgedRow) -> Sequence[LabeledSpan]:
    return distinct_units(judged.verification.spans, judged.row.input.completion) if judged.found.judged else ()


def rank_answer(judged: JudgedRow) -> tuple[float, str]:
    """Where an answer stands on the page, and its heading."""
    found = judged.verification
    spans = _claims(judged)
    precision = factual_precision(spans)
    if precision is not None:
        failed = sum(span.label is None for span in spans)
        return precision, f"precision {precision:.2f}" + (f", claims not judged: {failed}" if failed else "")
    if judged.left_out == "empty":
        return 3.0, "not judged: nothing in the scope"
    if found.judged:
        return 2.0, "declined" if judged.row.declines else "no claim"
    return 3.0, f"not judged: {found.failure}"

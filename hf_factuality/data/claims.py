"""Labelled claims from a builder's run, for the truthfulness model: one sampling run feeds both (KLCF, arXiv 2509.23765)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset

from hf_factuality.data.questions import PreferenceQuestion
from hf_factuality.errors import DataError
from hf_factuality.functional.labels import TERNARY_VALUES, judged_units
from hf_factuality.io.rows import read_rows
from hf_factuality.spans import Label, Verification


_LABELS = {1: Label.SUPPORTED.value, -1: Label.CONTRADICTED.value}


def read_claims(folder: str | Path, questions: Sequence[PreferenceQuestion]) -> Dataset:
    """The supported and the contradicted claims of a run's responses, hedged ones included.

    `folder` is of a run that [`~hf_factuality.data.builder.judged_responses`] made, and is only read; `questions` are those of
    the run that are wanted, as [`~hf_factuality.data.read_questions`] reads them. What differs in case or white space only
    counts once per question, as it is worded first; with labels of both kinds, not at all.

    Returns a `Dataset` with the columns `claim`, `label` (`"supported"`, `"contradicted"`), `question` and `topic` (else the
    question's id). Raises `DataError` if there is no such claim, or a file is damaged.
    """
    names = ("responses.jsonl", "verifications.jsonl")
    responses, verdicts = ({row["id"]: row["items"] for _, row in read_rows(Path(folder) / name)} for name in names)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for question in questions:
        for response, verdict in zip(responses.get(question.id, ()), verdicts.get(question.id, ()), strict=False):
            if response is None or verdict is None:
                continue
            for unit in judged_units(Verification.from_dict(verdict)):
                claim = unit.claim if unit.claim is not None else unit.text(response[0])
                if label := _LABELS.get(TERNARY_VALUES.get(unit.label)):
                    about = {"question": question.question, "topic": question.topic or question.id}
                    row = {"claim": claim, "label": label, **about}
                    found = rows.setdefault((question.id, " ".join(claim.split()).casefold()), row)
                    found["label"] = label if found["label"] == label else ""
    kept = [row for row in rows.values() if row["label"]]
    if not kept:
        raise DataError(f"{folder} holds no supported or contradicted claim of these {len(questions)} questions")
    return Dataset.from_list(kept)

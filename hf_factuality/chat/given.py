"""Answers that exist already, in the rows of a file: what they may look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_factuality.errors import DataError


__all__ = ["LIST_COLUMNS", "TEXT_COLUMNS", "given_answers"]

TEXT_COLUMNS = ("completion", "answer", "text", "output")
"""Columns of one answer, the first that a row has."""
LIST_COLUMNS = ("completions", "responses")
"""Columns of several answers, which go before."""


def given_answers(row: Mapping[str, Any], place: str) -> list[str | None] | None:
    """The answers of a row, `None` for one that is missing; `None` if the row has no column of answers.

    Besides [`LIST_COLUMNS`] and [`TEXT_COLUMNS`], `samples` is read, as `hf-factuality evaluate` writes it.

    Raises:
        `DataError`: an answer is no text; `place` names the row.
    """
    if isinstance(row.get("samples"), list):
        texts: Any = [sample and sample.get("text") for sample in row["samples"]]
    else:
        texts = next((row[name] for name in LIST_COLUMNS if row.get(name) is not None), None)
        if texts is None:
            texts = next(([row[name]] for name in TEXT_COLUMNS if name in row), None)
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(text is None or isinstance(text, str) for text in texts):
        raise DataError(
            f"{place}: an answer is text or null, and several must all be text or null, got {texts!r:.100}"
        )
    return texts

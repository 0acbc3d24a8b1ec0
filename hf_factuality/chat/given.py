"""Answers that exist already, in the rows of a file: what they may look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.chat.base import ended_at_limit
from hf_factuality.errors import DataError


ANSWER_COLUMNS = ("completions", "completion", "answer", "text", "output", "responses")
"""Where `evaluate` looks for the answers of a row, the first that it has."""
RESPONSE_COLUMNS = ("responses", "completions", "completion")
"""Where `build-preferences` does: in its files, `answer` is the gold answer."""


def is_header(row: Mapping[str, Any]) -> bool:
    """Whether a row is the first line of a file that `hf-factuality evaluate` wrote."""
    return str(row.get("schema")).startswith("hf_factuality.answers/") and "id" not in row


def given_answers(row: Mapping[str, Any], columns: Sequence[str], place: str) -> list[str | None] | None:
    """The answers of a row, `None` for one that is missing; `None` if the row has no column of answers.

    Besides the columns, which hold one answer or (those with a name in the plural) several, `samples` is read, as
    `hf-factuality evaluate` writes it.
    """
    if isinstance(row.get("samples"), list):
        texts: Any = [sample and sample.get("text") for sample in row["samples"]]
    else:
        several = [name for name in columns if name.endswith("s")]
        name = next(
            (name for name in columns if (row.get(name) is not None if name in several else name in row)), None
        )
        texts = None if name is None else row[name] if name in several else [row[name]]
    if texts is None:
        return None
    if not isinstance(texts, list) or not all(text is None or isinstance(text, str) for text in texts):
        raise DataError(f"{place}: an answer is text or null, several must all be text or null, got {texts!r:.100}")
    return texts


def cut_answers(row: Mapping[str, Any]) -> list[bool] | None:
    """Which of [`given_answers`] ended at a limit of tokens; `None` where the row does not say it."""
    samples = row.get("samples")
    if not isinstance(samples, list):
        return None
    reasons = [sample.get("finish_reason") if isinstance(sample, Mapping) else None for sample in samples]
    return [isinstance(reason, str) and ended_at_limit(reason) for reason in reasons]

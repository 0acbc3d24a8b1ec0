"""Answers that exist already, in the rows of a file: what they may look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.generation.base import ended_at_limit
from hf_factuality.io.messages import is_chat, last_answer
from hf_factuality.io.rows import is_missing, json_list


ANSWER_COLUMNS = ("completions", "completion", "answer", "text", "output", "responses")
"""Where `evaluate` looks for the answers of a row, the first that it has."""
RESPONSE_COLUMNS = ("responses", "completions", "completion")
"""Where `build-preferences` does: in its files, `answer` is the gold answer."""


def is_header(row: Mapping[str, Any]) -> bool:
    """Whether a row is the first line of a file that `hf-factuality evaluate` wrote."""
    return str(row.get("schema")).startswith("hf_factuality.answers/") and "id" not in row


def given_answer(value: Any, place: str) -> str | None:
    """One answer, as text or as messages ([`~hf_factuality.io.messages.completion_text`]); `None` if it is missing (null or NaN)."""
    value = value if isinstance(value, str) else json_list(value)
    if is_missing(value):
        return None
    if isinstance(value, str):
        return str(value)
    if is_chat(value):
        return last_answer(value)[0]
    raise DataError(
        f"{place}: an answer is text or null, or messages with a role each, and several must all be text or null; got {value!r:.100}"
    )


def given_answers(row: Mapping[str, Any], columns: Sequence[str], place: str) -> list[str | None] | None:
    """The answers of a row, `None` for one that is missing; `None` if the row has no column of answers.

    Besides the columns, which hold one answer or (those with a name in the plural) several, `samples` is read, as
    `hf-factuality evaluate` writes it, and `messages`, a chat whose last turn of the assistant is the answer.
    """
    if isinstance(row.get("samples"), list):
        return [given_answer(sample and sample.get("text"), place) for sample in row["samples"]]
    several = [name for name in columns if name.endswith("s")]
    name = next((name for name in columns if (row.get(name) is not None if name in several else name in row)), None)
    if name is None:
        return [given_answer(chat_of(row, place), place)] if "messages" in row else None
    texts = json_list(row[name]) if name in several else [row[name]]
    if not isinstance(texts, list):
        raise DataError(f"{place}: {name!r} must be a list of answers, each a text or null; got {texts!r:.100}")
    if is_chat(texts):
        texts = [texts]
    return [given_answer(text, place) for text in texts]


def chat_of(row: Mapping[str, Any], place: str) -> list[Mapping[str, Any]] | None:
    """The column `messages` of a row; `None` if it is missing, `DataError` if it holds something else."""
    value = json_list(row["messages"])
    if is_missing(value) or value == []:
        return None
    if not is_chat(value):
        raise DataError(
            f"{place}: 'messages' must be a list of messages, each with role and content; got {value!r:.100}"
        )
    return list(value)


def cut_answers(row: Mapping[str, Any]) -> list[bool] | None:
    """Which of [`given_answers`] ended at a limit of tokens; `None` where the row does not say it."""
    samples = row.get("samples")
    if not isinstance(samples, list):
        return None
    reasons = [sample.get("finish_reason") if isinstance(sample, Mapping) else None for sample in samples]
    return [isinstance(reason, str) and ended_at_limit(reason) for reason in reasons]

"""Questions that builders ask, read from rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hf_factuality.data.reading import messages_of
from hf_factuality.errors import DataError
from hf_factuality.generation.given import chat_of
from hf_factuality.io.messages import last_answer
from hf_factuality.io.rows import json_list
from hf_factuality.verifiers.base import Verifier, evidence_passages


_EVIDENCE = ("evidence", "knowledge", "reference", "document", "context")


@dataclass(frozen=True)
class PreferenceQuestion:
    """What is asked (the conversation that a response continues), and what verifiers are shown: all from `question` on."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    question: str
    evidence: tuple[str, ...] = ()
    topic: str | None = None
    row: Mapping[str, Any] = field(default_factory=dict)

    def columns(self) -> dict[str, Any]:
        """What a row of a dataset says of it; where the evidence is gold answers, that is the column `answer`."""
        evidence, messages = list(self.evidence), list(map(dict, self.messages))
        known = {"id": self.id, "prompt": messages, "question": self.question, "topic": self.topic}
        return {**known, "evidence": evidence, "answer": evidence}


def read_questions(rows: Sequence[Mapping[str, Any]], name: str = "the dataset") -> list[PreferenceQuestion]:
    """Questions of a dataset.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            Rows with `prompt` (messages or text), `question` or `messages` (a chat); and optionally `id`, `topic`, and evidence (text or a list
            of texts) as `evidence`, `knowledge`, `reference`, `document` or `context`.
        name (`str`, *optional*):
            Of the dataset, for errors.

    Returns:
        `list[PreferenceQuestion]`

    Raises:
        `DataError`: no rows, a row that is no question, two of one `id`.
    """
    found: dict[str, PreferenceQuestion] = {}
    for number, row in enumerate(rows):
        place = f"row {number} of {name}"
        if not isinstance(row, Mapping):
            raise DataError(f"{place} must be an object with 'prompt' or 'question', got {row!r:.100}")
        prompt = row.get("prompt") or row.get("question")
        if not prompt and "messages" in row:  # a chat, whose last turn may be an answer
            prompt = last_answer(chat_of(row, place) or [])[1]
        prompt = json_list(prompt)
        text = isinstance(prompt, str) and prompt.strip()
        messages = messages_of([{"role": "user", "content": prompt}] if text else prompt)
        if not messages:
            raise DataError(
                f"{place} has no question: it needs `prompt` (text, or messages, whose role and content must be "
                f"text) or `question`; it has {sorted(row)}"
            )
        question = row.get("question") or next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
        if not isinstance(question, str):
            raise DataError(f"{place}: a question must be text")
        evidence = evidence_passages(next((row[key] for key in _EVIDENCE if row.get(key) is not None), None))
        if evidence is None:
            raise DataError(f"{place}: evidence must be text or a list of texts")
        key = str(row["id"]) if row.get("id") is not None else str(number)
        if key in found:
            raise DataError(f"{place} has the id {key!r} of an earlier row; ids must differ")
        topic = None if row.get("topic") is None else str(row["topic"])
        found[key] = PreferenceQuestion(key, tuple(messages), question, evidence, topic, dict(row))
    if not found:
        raise DataError(f"{name} has no rows")
    return list(found.values())


def check_evidence(questions: Sequence[PreferenceQuestion], verifier: Verifier, name: str) -> None:
    """Refuse a verifier that could judge nothing; `name` is what the error calls it."""
    if getattr(verifier, "requires_evidence", True) and not any(question.evidence for question in questions):
        raise DataError(
            f"{name} needs evidence and no question has any: give them a column of {', '.join(_EVIDENCE)}, or a verifier a "
            "knowledge base (docs/knowledge.md)"
        )


def with_golds(questions: Sequence[PreferenceQuestion]) -> list[PreferenceQuestion]:
    """The questions with their gold answers, the column `answer`, as the evidence; `DataError` if one has none."""
    found = []
    for question in questions:
        golds = evidence_passages(question.row.get("answer"))
        if not golds:
            raise DataError(f"question {question.id!r} has no gold answer: it needs `answer`, text or a list of texts")
        found.append(replace(question, evidence=golds))
    return found

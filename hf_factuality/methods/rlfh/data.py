"""Questions with materials for RLFH: HotpotQA and SQuAD files as its code writes them, or any file of questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.data.reading import read_parts
from hf_factuality.errors import DataError
from hf_factuality.verifiers.base import evidence_passages


if TYPE_CHECKING:
    from datasets import Dataset

_ANSWER = "The correct answer to the question is: {answer}."
_NO_ANSWER = "The question has no correct answer."
_TEXTS = ("materials", "extra_materials", "evidence")


def load_rlfh(
    train_files: str | Path | Sequence[str | Path] | None = None,
    dataset_name: str | None = None,
    dataset_config: str | None = None,
    split: str = "train",
    answers: bool = True,
) -> Dataset:
    """Questions to explore and what their answers are judged by.

    Args:
        train_files (`str`, `Path` or a list of them, *optional*):
            JSON, JSON Lines or Parquet files with `question`; and, where they are there, `materials`, `extra_materials` or
            `evidence` (texts), `titles` or `topic` (of pages), `answer` (text or texts; none at all, such as `""` or `[]`,
            says that there is no correct answer).
        dataset_name, dataset_config, split:
            Instead of files, as for [`load_fspo`].
        answers (`bool`, *optional*, defaults to `True`):
            Whether a gold answer joins the materials as a sentence, as in RLFH. Without it, answers are not read.

    Returns:
        `datasets.Dataset`: columns `prompt` (one user message), `question`, `evidence` (list of texts), `topic` (list of
        titles of pages), in the order of the rows.

    Raises:
        `DataError`: a file or dataset cannot be read, or a row is not of this form.
    """
    from datasets import Dataset

    parts = read_parts(train_files, dataset_name, dataset_config, split)
    rows = [rlfh_row(row, f"{name}, row {number}", answers) for name, part in parts for number, row in part]
    if not rows:
        raise DataError(f"there is no question in {[name for name, _ in parts]}")
    return Dataset.from_list(rows)


def rlfh_row(row: Any, where: str = "the row", answers: bool = True) -> dict[str, Any]:
    """One row of [`load_rlfh`]; `where` names it in errors."""
    if not isinstance(row, Mapping) or not isinstance(row.get("question"), str) or not row["question"].strip():
        raise DataError(f"{where}: needs a 'question' that is not empty, got {row!r:.150}")
    evidence = [text for column in _TEXTS for text in _texts(row, column, where)]
    if answers and row.get("answer") is not None:
        golds = _texts(row, "answer", where)
        evidence.append(_ANSWER.format(answer=" or ".join(golds)) if golds else _NO_ANSWER)
    return {
        "prompt": [{"role": "user", "content": row["question"]}],
        "question": row["question"],
        "evidence": evidence,
        "topic": list(dict.fromkeys([*_texts(row, "titles", where), *_texts(row, "topic", where)])),
    }


def _texts(row: Mapping[str, Any], column: str, where: str) -> tuple[str, ...]:
    texts = evidence_passages(row.get(column))
    if texts is None:
        raise DataError(f"{where}: {column!r} must hold text or a list of texts, got {row[column]!r:.150}")
    return texts

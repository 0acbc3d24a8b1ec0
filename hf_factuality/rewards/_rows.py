"""A row of a dataset and what was written to it, as a verifier reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.verifiers.base import VerifierInput, evidence_passages


def row_evidence(value: Any, column: str) -> tuple[str, ...]:
    """Passages of a row; `DataError` names the `column` that holds something else."""
    passages = evidence_passages(value)
    if passages is None:
        raise DataError(
            f"the evidence column {column!r} must hold text or a list of texts in every row, got {value!r:.150}; join "
            "nested passages into texts first"
        )
    return passages


def verifier_input(text: str, row: Mapping[str, Any], evidence_column: str, question_column: str) -> VerifierInput:
    """A completion with its question, its evidence and the other columns of its row.

    Raises:
        `DataError`: the evidence is neither text nor a list of texts.
    """
    question = row.get(question_column)
    evidence = row_evidence(row.get(evidence_column), evidence_column)
    return VerifierInput(text, question if isinstance(question, str) else None, evidence, row)

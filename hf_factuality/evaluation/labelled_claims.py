"""Claims with evidence and human labels: read, checked, and judged by the one loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.data.labelled_claims import SUPPORTING, LabelColumns, LabelledClaim, read_claim
from hf_factuality.errors import DataError
from hf_factuality.evaluation.verify_input import check_columns, open_rows
from hf_factuality.functional.labels import judged_units
from hf_factuality.generation.failures import GIVE_UP_AFTER
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


LabelledRows = str | Path | Iterable[Mapping[str, Any]]
"""A file of labelled claims, or their rows."""


@dataclass(frozen=True)
class ClaimVerdict:
    """What a verifier says of a claim: whether it is supported, and its confidence in that; `None`: it was not judged."""

    supported: bool | None
    score: float | None = None


def read_labels(labels: LabelledRows, columns: LabelColumns, name: str = "labels") -> list[LabelledClaim]:
    """Claims of a file or of rows; `DataError` names the line and the value that cannot be read, and the fix."""
    found = []
    there: set[str] = set()
    with closing(open_rows(labels, name, columns.claim)) as rows:
        for number, _, row in rows:
            found.append(read_claim(row, f"{rows.name}, {rows.unit} {number}", columns, name))
            there.update(row)
        if not found:
            raise DataError(f"{rows.name} holds no rows; give labelled claims with `{name}`")
        check_columns(rows.name, columns, there)
    return found


def judge_claims(verifier: GuardedVerifier, claims: Sequence[LabelledClaim]) -> list[ClaimVerdict]:
    """A verdict per claim, each judged as a completion of its own. `DataError`: the verifier needs evidence and there is none.
    `JudgingError`: it failed on every claim."""
    if verifier.requires_evidence and not any(claim.input.evidence for claim in claims):
        raise DataError("the verifier needs evidence, and no labelled claim has any; give each its passages")
    rows = (VerificationRequest(claim.input, "completion") for claim in claims)
    limits = {"give_up_after": GIVE_UP_AFTER, "progress": " claims", "total": len(claims)}
    judged = judge_rows(verifier, rows, **limits)
    return [claim_verdict(it.found) for chunk in judged for it in chunk]


def claim_verdict(found: Verification) -> ClaimVerdict:
    """One verdict on a text that is one claim. If the verifier has split it, all parts must be supported, and the least score
    counts; a part that was not judged leaves it open, unless another is not supported."""
    units = [unit for unit in judged_units(found) if unit.label is not Label.NO_FACT]
    if found.error is not None or not units:
        return ClaimVerdict(None)
    called = [None if unit.label is None else unit.label in SUPPORTING for unit in units]
    if False not in called and None in called:
        return ClaimVerdict(None)
    return ClaimVerdict(False not in called, min(support_score(unit) for unit in units if unit.label is not None))


def support_score(unit: LabeledSpan) -> float:
    """Confidence in [0, 1] that a judged unit is supported; a label without a score is certain."""
    return unit.score if unit.score is not None else float(unit.label in SUPPORTING)

"""Claims with evidence and human labels: read, checked, and judged by the one loop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.evaluation.verify_input import open_rows
from hf_factuality.functional.credit import judged_units
from hf_factuality.generation.failures import GIVE_UP_AFTER
from hf_factuality.io.rows import is_missing
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput, evidence_passages
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


SUPPORTING = (Label.SUPPORTED, Label.HEDGED_SUPPORTED)
"""Labels that call a claim supported."""
LabelledRows = str | Path | Iterable[Mapping[str, Any]]
"""A file of labelled claims, or their rows."""

_TRUE = {"supported", "true", "1", *(label.value for label in SUPPORTING)}
_FALSE = {"not_supported", "false", "0"} | {
    label.value for label in Label if label not in (*SUPPORTING, Label.NO_FACT)
}


@dataclass(frozen=True)
class LabelColumns:
    """Names of the columns of a file of labelled claims."""

    claim: str = "claim"
    evidence: str = "evidence"
    label: str = "label"
    question: str = "question"
    kind: str = "kind"
    group: str = "group"  # without it, claims with the same evidence are one group


@dataclass(frozen=True)
class LabelledClaim:
    """A claim with what people say of it. Claims of one `group` are not independent of each other."""

    input: VerifierInput
    supported: bool
    group: Hashable
    kind: str | None = None


@dataclass(frozen=True)
class ClaimVerdict:
    """What a verifier says of a claim: whether it is supported, and its confidence in that; `None`: it was not judged."""

    supported: bool | None
    score: float | None = None


def read_labels(labels: LabelledRows, columns: LabelColumns, name: str = "labels") -> list[LabelledClaim]:
    """Claims of a file or of rows; `DataError` names the line and the value that cannot be read, and the fix."""
    found = []
    with closing(open_rows(labels, name, columns.claim)) as rows:
        for number, _, row in rows:
            found.append(_claim(row, f"{rows.name}, {rows.unit} {number}", columns, name))
        if not found:
            raise DataError(f"{rows.name} holds no rows; give labelled claims with `{name}`")
    return found


def _claim(row: Any, place: str, columns: LabelColumns, name: str) -> LabelledClaim:
    if not isinstance(row, Mapping):
        raise DataError(f"{place} must be an object with the columns as keys, got {row!r:.100}")
    texts = {}
    for column in (columns.claim, columns.question, columns.kind):
        value = None if is_missing(row.get(column)) else row[column]
        if value is not None and not isinstance(value, str):
            raise DataError(f"{place}: {column!r} must be text, got {value!r:.100}")
        texts[column] = value
    if not (texts[columns.claim] or "").strip():
        raise DataError(
            f"{place} has no text in {columns.claim!r} (found {sorted(map(str, row))}); {_fix(name, 'claim_column')}"
        )
    passages = evidence_passages(row.get(columns.evidence))
    if passages is None:
        given = row[columns.evidence]
        raise DataError(
            f"{place}: {columns.evidence!r} must be text or a list of texts, one per passage, got {given!r:.100}"
        )
    group: Hashable = row.get(columns.group)
    if is_missing(group):
        group = passages or place  # a claim without evidence is alone
    elif not isinstance(group, (str, int)):
        raise DataError(f"{place}: the group in {columns.group!r} must be text or a number, got {group!r:.100}")
    read = VerifierInput(texts[columns.claim], texts[columns.question], passages, dict(row))
    return LabelledClaim(read, _truth(row, place, columns.label, name), group, texts[columns.kind])


def _fix(name: str, argument: str) -> str:
    """How to name a column: only the function that has `labels` takes their names."""
    return f"name the column with `{argument}`" if name == "labels" else f"rename the column of `{name}`"


def _truth(row: Mapping[str, Any], place: str, column: str, name: str) -> bool:
    """Whether a label says supported."""
    if column not in row:
        found = sorted(map(str, row))
        raise DataError(f"{place} has no label in {column!r} (found {found}); {_fix(name, 'label_column')}")
    value = row[column]
    said = "_".join(str(value).lower().replace("_", " ").split())
    if said in ("1.0", "0.0") and isinstance(value, float):  # whole numbers of a column with gaps
        said = said[0]
    if isinstance(value, (str, bool, int, float)) and said in _TRUE | _FALSE:
        return said in _TRUE
    names = ", ".join(sorted(_FALSE - {"0", "false", "not_supported"}))
    raise DataError(
        f"{place}: the label in {column!r} must be supported or not_supported (also {names}, true or false, 1 or 0), got "
        f"{value!r:.100}; correct the row, or leave it out"
    )


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

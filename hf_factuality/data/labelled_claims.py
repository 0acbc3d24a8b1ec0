"""A claim with people's label, as the files of `agree`, `--guarantee` and `train verifier` have it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.io.rows import is_missing
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import VerifierInput, evidence_passages


SUPPORTING = (Label.SUPPORTED, Label.HEDGED_SUPPORTED)
"""Labels that call a claim supported."""
CLAIM_LABELS: Mapping[str, bool] = {
    **dict.fromkeys(
        (*(label.value for label in SUPPORTING), "supports", "entailment", "entailed", "consistent"), True
    ),
    **dict.fromkeys(("true", "1", "yes"), True),
    **{label.value: False for label in Label if label not in (*SUPPORTING, Label.NO_FACT)},
    **dict.fromkeys(("not_supported", "unsupported", "partially_supported", "not_mentioned", "contradiction"), False),
    **dict.fromkeys(("neutral", "refutes", "refuted", "not_enough_info", "inconsistent", "false", "0", "no"), False),
}
"""What labels mean, whatever their case, spaces and hyphens: supported as a whole, or not."""


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


def read_claim(row: Any, place: str, columns: LabelColumns = LabelColumns(), name: str | None = None) -> LabelledClaim:
    """The claim of a row.

    Args:
        row (`Mapping`):
            With the columns as keys.
        place (`str`):
            Where the row stands, for messages: "labels.jsonl, line 3".
        columns (`LabelColumns`, *optional*):
            Their names.
        name (`str`, *optional*):
            The argument that names the file: only that of `labels` can name columns.

    Raises:
        `DataError`: with the place, the value that cannot be read, and the fix.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"{place}: a row is an object with the columns as keys, got {row!r:.100}")
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
    if columns.label not in row:
        found = sorted(map(str, row))
        raise DataError(f"{place} has no label in {columns.label!r} (found {found}); {_fix(name, 'label_column')}")
    supported = claim_label(row[columns.label], f"{place}: the label in {columns.label!r}")
    read = VerifierInput(texts[columns.claim], texts[columns.question], passages, dict(row))
    return LabelledClaim(read, supported, group, texts[columns.kind])


def claim_label(value: Any, what: str = "the label") -> bool:
    """Whether a label says supported: a name of [`CLAIM_LABELS`], one of our labels, or a boolean, 1 or 0."""
    said = "_".join(str(getattr(value, "value", value)).lower().replace("-", " ").replace("_", " ").split())
    if said in ("1.0", "0.0") and isinstance(value, float):  # whole numbers of a column with gaps
        said = said[0]
    if isinstance(value, (str, bool, int, float)) and said in CLAIM_LABELS:
        return CLAIM_LABELS[said]
    names = ", ".join(name for name in CLAIM_LABELS if name not in ("supported", "not_supported"))
    raise DataError(
        f"{what} must be supported or not_supported (also {names}), got {value!r:.100}; correct the row, or leave it out"
    )


def _fix(name: str | None, argument: str) -> str:
    """How to name a column: only the function that has `labels` takes their names."""
    if name is None:
        return "rename the column"
    return f"name the column with `{argument}`" if name == "labels" else f"rename the column of `{name}`"

"""What labels count, and which spans have been judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from hf_factuality.spans import Label, LabeledSpan, Verification


# FSPO, Eq. 10: 1 entailed, 0 neutral, -1 contradicted.
TERNARY_VALUES: Mapping[Label, int] = MappingProxyType(
    {
        Label.SUPPORTED: 1,
        Label.HEDGED_SUPPORTED: 1,
        Label.UNVERIFIABLE: 0,
        Label.NO_FACT: 0,
        Label.HEDGED_CONTRADICTED: -1,
        Label.CONTRADICTED: -1,
    }
)
# FSPO's released code: HHEM above 0.5 is +1, everything else -1, sentences without any fact among them.
BINARY_VALUES: Mapping[Label, int] = MappingProxyType(
    {label: max(value, 0) * 2 - 1 for label, value in TERNARY_VALUES.items()}
)


def judged_units(verification: Verification) -> tuple[LabeledSpan, ...]:
    """What was judged, each unit once: the atomic claims, or the spans of a verifier that does not split so far."""
    return verification.claims or verification.spans


def span_values(spans: Sequence[LabeledSpan], values: Mapping[Label, float]) -> list[float | None]:
    """Number of each span's label.

    Args:
        spans (`Sequence[LabeledSpan]`):
            Spans of one completion.
        values (`Mapping[Label, float]`):
            Number per label, for example [`TERNARY_VALUES`].

    Returns:
        `list[float | None]`: one per span; `None` where the judgement failed.
    """
    return [None if span.label is None else values[span.label] for span in spans]

"""Spans to scores. The rewards of the trainers and the metrics call the same functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hf_factuality.functional.credit import TERNARY_VALUES, span_values
from hf_factuality.spans import Label, LabeledSpan


def mean_factuality(spans: Sequence[LabeledSpan], values: Mapping[Label, float] = TERNARY_VALUES) -> float | None:
    """Mean value of a completion's sentences, `(1/N) sum_j R_fact(z_j)` (FSPO, arXiv 2505.24630, Eq. 10).

    Args:
        spans (`Sequence[LabeledSpan]`):
            The sentences of one completion.
        values (`Mapping[Label, float]`, *optional*, defaults to [`TERNARY_VALUES`]):
            Number per label.

    Returns:
        `float` in the range of `values`, or `None` if there are sentences but none could be judged. Unjudged sentences
        do not count in N. No sentence at all gives 0: the sum is empty, and silence is neither paid nor punished.
    """
    judged = [value for value in span_values(spans, values) if value is not None]
    if spans and not judged:
        return None
    return sum(judged) / len(judged) if judged else 0.0


def factual_precision(spans: Sequence[LabeledSpan]) -> float | None:
    """Supported over supported plus contradicted, hedged ones included.

    Args:
        spans (`Sequence[LabeledSpan]`):
            The sentences or claims of one completion, or of many.

    Returns:
        `float` in [0, 1], or `None` if nothing was supported or contradicted.
    """
    decided = [value for value in span_values(spans, TERNARY_VALUES) if value]
    return sum(value > 0 for value in decided) / len(decided) if decided else None

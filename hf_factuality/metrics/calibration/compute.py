"""How well stated confidence fits; `calibration.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional import calibration as measures
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._common import make_result, named, read_options
from hf_factuality.metrics._numbers import NumberOptions, read_number
from hf_factuality.metrics._outcomes import read_outcome


def _probability(item: Any, place: str) -> float | None:
    if (value := read_number(item, place)) is not None and not 0 <= value <= 1:
        raise DataError(f"{place} must be a probability in [0, 1] or None, got {item!r}; divide percentages by 100")
    return value


def calibration(
    predictions: Sequence[Any], references: Sequence[Any], *, bins: int = 10, **options: Any
) -> dict[str, Any]:
    """Result of the metric `calibration`."""
    given = read_options(NumberOptions, options)
    stated = [_probability(item, f"prediction {row}") for row, item in enumerate(predictions)]
    outcomes = [read_outcome(item, f"reference {row}") for row, item in enumerate(references)]
    answered = [outcome in ("correct", "wrong") for outcome in outcomes]
    scores = [p if counts else None for p, counts in zip(stated, answered, strict=True)]
    known = [(p, it == "correct") for p, it in zip(scores, outcomes, strict=True) if p is not None]
    sure, right = [p for p, _ in known], [truth for _, truth in known]
    curve = measures.risk_coverage(sure, right)
    thinned = curve[::-1][:: -(-len(curve) // 100) or 1][::-1]  # 100 points, and the last stays
    reasons = {"no_confidence": sum(answered) - len(known), "abstained": outcomes.count("refused")}
    return make_result(
        "calibration",
        measures.expected_calibration_error(sure, right, bins),
        scores=scores,
        parts={
            "ece_mass": measures.expected_calibration_error(sure, right, bins, "mass"),
            "brier": measures.brier_score(sure, right),
            "brier_confidence_interval": given.interval([(p - truth) ** 2 for p, truth in known]),
            "auroc": measures.auroc(sure, right),
            "aurc": mean([risk for _, risk in curve]),
            "accuracy": mean([float(truth) for truth in right]),
            "mean_confidence": mean(sure),
            "reliability": [list(it) for it in measures.reliability_bins(sure, right, bins)],
            "reliability_mass": [list(it) for it in measures.reliability_bins(sure, right, bins, "mass")],
            "risk_coverage": [list(point) for point in thinned],
        },
        left_out={"responses": {**reasons, "unjudged": outcomes.count(None) + outcomes.count("answered")}},
        settings={"bins": bins},
        judge=named(given.judge),
        resampled=[],
        options=given,
    )

"""R-Tuning's AP score; `refusal_ap.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.metrics import average_precision
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._common import is_published, make_result, named, read_options
from hf_factuality.metrics._numbers import NumberOptions, read_flag, read_number


_ROUNDING = 1e-3
"""How far a mean of probabilities in 16 bits may come to lie outside of [0, 1]."""
_JUDGES = ("published prompts",)


def _confidence(item: Any, place: str) -> tuple[float | None, float | None]:
    """What ranks an answer, and P(sure) where it is known."""
    if not isinstance(item, dict):
        return read_number(item, place), None
    if not {"p_pred", "p_sure"} <= set(item):
        raise DataError(f"{place} needs `p_pred` and `p_sure`; it has {sorted(item)}")
    pred, sure = (read_number(item[name], f"{place}: {name}") for name in ("p_pred", "p_sure"))
    for name, value in (("p_pred", pred), ("p_sure", sure)):
        if value is not None and not -_ROUNDING <= value <= 1 + _ROUNDING:
            raise DataError(f"{place}: {name}={value!r} must be a probability, in [0, 1]")
    return (None if pred is None or sure is None else (pred + sure) / 2), sure


def refusal_ap(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Result of the metric `refusal_ap`."""
    given = read_options(NumberOptions, options)
    read = [_confidence(item, f"prediction {row}") for row, item in enumerate(predictions)]
    truths = [read_flag(reference, f"reference {row}") for row, reference in enumerate(references)]
    known = [
        (confidence, truth, sure)
        for (confidence, sure), truth in zip(read, truths, strict=True)
        if truth is not None and confidence is not None
    ]
    correct, unknown = [truth for _, truth, _ in known], truths.count(None)

    def area(rows: list[tuple[float, bool, float | None]]) -> float | None:
        return average_precision([confidence for confidence, *_ in rows], [truth for _, truth, _ in rows])

    willing = [truth for _, truth, sure in known if sure is not None and sure > 0.5]
    stated = [sure > 0.5 for *_, sure in known if sure is not None]
    return make_result(
        "refusal_ap",
        area(known),
        scores=[None if truth is None else confidence for (confidence, _), truth in zip(read, truths, strict=True)],
        parts={
            "accuracy": mean([float(truth) for truth in correct]),
            "accuracy_answered": mean([float(truth) for truth in willing]),
            "answer_rate": mean([float(answers) for answers in stated]),
            "n_correct": sum(correct),
            "n_answered": len(willing),
        },
        left_out={"responses": {"no_confidence": len(read) - len(known) - unknown, "no_reference": unknown}},
        judge=named(given.judge),
        released=area(known) if len(stated) == len(known) and is_published(given.judge, _JUDGES) else None,
        resampled=known,
        statistic=area,
        options=given,
    )

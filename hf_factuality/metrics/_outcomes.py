"""Metrics over what became of each answer (right, wrong or declined), and over how sure it said to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import isfinite
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional import calibration as measures
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._common import make_result, named, read_options
from hf_factuality.metrics._numbers import NumberOptions, _flag, _number


OUTCOMES = ("correct", "wrong", "refused", "answered")
"""What became of an answer; `"answered"`: it does not decline, and whether it is right is not known."""
_CURVE = 100
"""Points of the risk-coverage curve that a result keeps."""
_Row = tuple[str | None, bool | None, str | None]
"""Outcome of an answer; whether its question can be answered, and the domain."""


def _outcome(item: Any, place: str) -> str | None:
    if not isinstance(item, str):
        return {True: "correct", False: "wrong", None: None}[_flag(item, place)]
    if item not in OUTCOMES:
        raise DataError(f"{place} must be one of {', '.join(OUTCOMES)}, True, False or None, got {item!r:.100}")
    return item


def _row(item: Any, asked: Any, row: int) -> _Row:
    known, domain = (asked.get("answerable"), asked.get("domain")) if isinstance(asked, dict) else (asked, None)
    if not isinstance(domain, str | None):
        raise DataError(f"reference {row}: `domain` must be text or None, got {domain!r:.100}")
    known = _flag(known, f"reference {row}: whether the question can be answered")
    return _outcome(item, f"prediction {row}"), known, domain


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _rates(rows: Sequence[_Row]) -> dict[str, Any]:
    """Of rows whose outcome is known; `None` for what is not known, or has nothing to count."""
    count = Counter(outcome for outcome, *_ in rows)
    right, wrong, refused = (count[name] for name in OUTCOMES[:3])
    n = 0 if count["answered"] else len(rows)  # of which it is known whether they are right
    could = [outcome == "refused" for outcome, answerable, _ in rows if answerable]
    should = [outcome == "refused" for outcome, answerable, _ in rows if answerable is False]
    both, declined = sum(should), sum(should) + sum(could)
    return {
        "accuracy": _share(right, n),
        "abstention_rate": _share(refused, len(rows)),
        "hallucination_rate": _share(wrong, n),
        "accuracy_answered": _share(right, n and right + wrong),
        "f_score": _share(2 * right, n and n + right + wrong),
        "omniscience_index": _share(100 * (right - wrong), n),
        "false_abstention_rate": _share(sum(could), len(could)),
        "precision": _share(both, should and declined),
        "recall": _share(both, len(should)),
        "f1": _share(2 * both, should and declined + len(should)),
        **{f"n_{name}": count[name] for name in OUTCOMES},
    }


def abstention(
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    weights: Sequence[float] = (1.0, 0.0, 1.0),
    score: str = "truthfulness",
    **options: Any,
) -> dict[str, Any]:
    """Result of the metric `abstention`; its module describes the inputs."""
    given = read_options(NumberOptions, options)
    if len(weights) != 3 or not all(isinstance(weight, (int, float)) and isfinite(weight) for weight in weights):
        raise ValueError(f"weights are three numbers, of correct, abstained and hallucinated answers, got {weights!r}")
    if score not in ("truthfulness", "f1"):
        raise ValueError(f"score must be 'truthfulness' or 'f1', got {score!r}")
    rows = [_row(*pair, row) for row, pair in enumerate(zip(predictions, references, strict=True))]
    known = [row for row in rows if row[0] is not None]
    if score == "f1":
        scores = [None if None in row[:2] else float((row[0] == "refused") != row[1]) for row in rows]
    else:
        # Where some are "answered", a mean over the others would count every refusal, and not every answer.
        pays = dict(zip(("correct", "refused", "wrong"), (weights[0], weights[1], -weights[2]), strict=True))
        unknown = any(outcome == "answered" for outcome, *_ in rows)
        scores = [None if unknown or outcome is None else float(pays[outcome]) for outcome, *_ in rows]
    scored = [row for row, found in zip(rows, scores, strict=True) if found is not None]
    names = sorted({domain for *_, domain in known if domain})
    domains = {name: [row for row in known if row[2] == name] for name in names}
    return make_result(
        "abstention",
        _rates(scored)["f1"] if score == "f1" else mean(scores),
        scores=scores,
        parts=_rates(known) | {"domains": {name: {"n": len(own), **_rates(own)} for name, own in domains.items()}},
        left_out={"responses": {"unjudged": len(rows) - len(known), "unlabelled": len(known) - len(scored)}},
        settings={"weights": [float(weight) for weight in weights], "score": score},
        judge=named(given.judge),
        resampled=scored if score == "f1" else None,
        statistic=(lambda drawn: _rates(drawn)["f1"]) if score == "f1" else None,
        options=given,
    )


def _probability(item: Any, place: str) -> float | None:
    if (value := _number(item, place)) is not None and not 0 <= value <= 1:
        raise DataError(
            f"{place} must be a probability in [0, 1] or None, got {item!r:.50}; divide percentages by 100"
        )
    return value


def calibration(
    predictions: Sequence[Any], references: Sequence[Any], *, bins: int = 10, **options: Any
) -> dict[str, Any]:
    """Result of the metric `calibration`; its module describes the inputs."""
    given = read_options(NumberOptions, options)
    stated = [_probability(item, f"prediction {row}") for row, item in enumerate(predictions)]
    outcomes = [_outcome(item, f"reference {row}") for row, item in enumerate(references)]
    answered = [outcome in ("correct", "wrong") for outcome in outcomes]
    scores = [p if counts else None for p, counts in zip(stated, answered, strict=True)]
    known = [(p, it == "correct") for p, it in zip(scores, outcomes, strict=True) if p is not None]
    sure, right = [p for p, _ in known], [truth for _, truth in known]
    curve = measures.risk_coverage(sure, right)
    thinned = curve[::-1][:: max(1, -(-len(curve) // _CURVE))][::-1]  # the last point stays
    lacking = sum(answered) - len(known)
    reasons = {"no_confidence": lacking, "abstained": outcomes.count("refused")}
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

"""Metrics over what became of each answer (right, wrong or declined), and over how sure it said to be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
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


def _outcome(item: Any, place: str) -> str | None:
    if not isinstance(item, str):
        return {True: "correct", False: "wrong", None: None}[_flag(item, place)]
    if item not in OUTCOMES:
        raise DataError(f"{place} must be one of {', '.join(OUTCOMES)}, True, False or None, got {item!r:.100}")
    return item


def _question(item: Any, place: str) -> tuple[bool | None, str | None]:
    """Whether a question has an answer that can be known, and its domain."""
    answerable, domain = (item.get("answerable"), item.get("domain")) if isinstance(item, dict) else (item, None)
    if not isinstance(domain, str | None):
        raise DataError(f"{place}: `domain` must be text or None, got {domain!r:.100}")
    return _flag(answerable, f"{place}: whether the question can be answered"), domain


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _f1(rows: Iterable[tuple[bool, bool]]) -> float | None:
    """Of pairs: declined, and should have."""
    both = declined = should = 0
    for did, ought in rows:
        both, declined, should = both + (did and ought), declined + did, should + ought
    return _share(2 * both, declined + should) if should else None


def _rates(rows: Sequence[tuple[str, bool | None]]) -> dict[str, Any]:
    """Of outcomes, and whether each question can be answered; `None` for what is not known, or has nothing to count."""
    count = Counter(outcome for outcome, _ in rows)
    right, wrong, refused = (count[name] for name in OUTCOMES[:3])
    n = 0 if count["answered"] else len(rows)  # of which it is known whether they are right
    told = [(outcome == "refused", not answerable) for outcome, answerable in rows if answerable is not None]
    declined, should = sum(did for did, _ in told), sum(ought for _, ought in told)
    both = sum(did and ought for did, ought in told)
    return {
        "accuracy": _share(right, n),
        "abstention_rate": _share(refused, len(rows)),
        "hallucination_rate": _share(wrong, n),
        "accuracy_answered": _share(right, n and right + wrong),
        "f_score": _share(2 * right, n and n + right + wrong),
        "omniscience_index": _share(100 * (right - wrong), n),
        "false_abstention_rate": _share(declined - both, len(told) - should),
        "precision": _share(both, should and declined),
        "recall": _share(both, should),
        "f1": _f1(told),
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
    outcomes = [_outcome(item, f"prediction {row}") for row, item in enumerate(predictions)]
    asked = [_question(item, f"reference {row}") for row, item in enumerate(references)]
    known = [(it, answerable) for it, (answerable, _) in zip(outcomes, asked, strict=True) if it is not None]
    pays = {"correct": weights[0], "refused": weights[1], "wrong": -weights[2]}
    left_out, more = {"unjudged": outcomes.count(None)}, {}
    if score == "truthfulness":
        # A mean over some of the answers only would count every refusal, and not every answer.
        scores = [None if "answered" in outcomes or it is None else float(pays[it]) for it in outcomes]
        value = mean(scores)
    else:
        told = [(it, answerable) for it, answerable in known if answerable is not None]
        scores = [
            None if None in (it, answerable) else float((it == "refused") != answerable)
            for it, (answerable, _) in zip(outcomes, asked, strict=True)
        ]
        more = {"resampled": [(it == "refused", not answerable) for it, answerable in told], "statistic": _f1}
        value, left_out["no_reference"] = _f1(more["resampled"]), len(known) - len(told)
    parts = _rates(known) | {f"n_{name}": [it for it, _ in known].count(name) for name in OUTCOMES}
    rows = [(domain, (it, answerable)) for it, (answerable, domain) in zip(outcomes, asked, strict=True) if it]
    if domains := sorted({domain for domain, _ in rows if domain}):
        of = {name: [row for domain, row in rows if domain == name] for name in domains}
        parts["domains"] = {name: {"n": len(own), **_rates(own)} for name, own in of.items()}
    settings = {"weights": [float(weight) for weight in weights], "score": score}
    return make_result(
        "abstention",
        value,
        scores=scores,
        parts=parts,
        left_out={"responses": left_out},
        settings=settings,
        judge=named(given.judge),
        options=given,
        **more,
    )


def _probability(item: Any, place: str) -> float | None:
    if (value := _number(item, place)) is not None and not 0 <= value <= 1:
        raise DataError(
            f"{place} must be a probability in [0, 1] or None, got {item!r:.100}; divide percentages by 100"
        )
    return value


def calibration(
    predictions: Sequence[Any], references: Sequence[Any], *, bins: int = 10, **options: Any
) -> dict[str, Any]:
    """Result of the metric `calibration`; its module describes the inputs."""
    given = read_options(NumberOptions, options)
    stated = [_probability(item, f"prediction {row}") for row, item in enumerate(predictions)]
    outcomes = [_outcome(item, f"reference {row}") for row, item in enumerate(references)]
    pairs = list(zip(stated, outcomes, strict=True))
    counted = [None not in pair and pair[1] in ("correct", "wrong") for pair in pairs]
    known = [(p, it == "correct") for (p, it), counts in zip(pairs, counted, strict=True) if counts]
    sure, right = [p for p, _ in known], [truth for _, truth in known]
    curve = measures.risk_coverage(sure, right)
    thinned = curve[::-1][:: max(1, -(-len(curve) // _CURVE))][::-1]  # the last point stays
    errors = [(p - truth) ** 2 for p, truth in known]
    lacking = sum(p is None and it in ("correct", "wrong") for p, it in pairs)
    return make_result(
        "calibration",
        measures.expected_calibration_error(sure, right, bins),
        scores=[p if counts else None for p, counts in zip(stated, counted, strict=True)],
        parts={
            "ece_mass": measures.expected_calibration_error(sure, right, bins, "mass"),
            "brier": measures.brier_score(sure, right),
            "brier_confidence_interval": given.interval(errors),
            "auroc": measures.auroc(sure, right),
            "aurc": mean([risk for _, risk in curve]),
            "accuracy": mean([float(truth) for truth in right]),
            "mean_confidence": mean(sure),
            "reliability": [list(it) for it in measures.reliability_bins(sure, right, bins)],
            "reliability_mass": [list(it) for it in measures.reliability_bins(sure, right, bins, "mass")],
            "risk_coverage": [list(point) for point in thinned],
        },
        left_out={
            "responses": {
                "no_confidence": lacking,
                "abstained": outcomes.count("refused"),
                "unjudged": outcomes.count(None) + outcomes.count("answered"),
            }
        },
        settings={"bins": bins},
        judge=named(given.judge),
        resampled=[],
        options=given,
    )

"""Rates of right, wrong and abstaining answers; `abstention.py` describes the inputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._common import make_result, named, read_options
from hf_factuality.metrics._numbers import NumberOptions, read_flag
from hf_factuality.metrics._outcomes import OUTCOMES, read_outcome


_Row = tuple[str | None, bool | None, str | None]  # outcome, whether the question can be answered, domain


def _row(item: Any, asked: Any, row: int) -> _Row:
    known, domain = (asked.get("answerable"), asked.get("domain")) if isinstance(asked, dict) else (asked, None)
    if not isinstance(domain, str | None):
        raise DataError(f"reference {row}: `domain` must be text or None, got {domain!r:.100}")
    return (
        read_outcome(item, f"prediction {row}"),
        read_flag(known, f"reference {row}: whether it can be answered"),
        domain,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _declined(row: _Row) -> int:
    """1 if the answer declines, 2 if it should, 3 if both."""
    return (row[0] == "refused") + 2 * (row[1] is False)


def _f1(declined: Iterable[int]) -> float | None:
    """F1 of what [`_declined`] says, or of its counts; `None` if nothing should have declined."""
    count = Counter(declined)
    return 2 * count[3] / (2 * count[3] + count[1] + count[2]) if count[2] + count[3] else None


def _rates(rows: Sequence[_Row]) -> dict[str, Any]:
    """Of rows whose outcome is known; `None` for what is not known, or has nothing to count."""
    count, told = Counter(row[0] for row in rows), Counter(_declined(row) for row in rows if row[1] is not None)
    right, wrong, refused = (count[name] for name in OUTCOMES[:3])
    n = 0 if count["answered"] else len(rows)  # of which it is known whether they are right
    should = told[2] + told[3]
    return {
        "n": len(rows),
        "accuracy": _share(right, n),
        "abstention_rate": _share(refused, len(rows)),
        "hallucination_rate": _share(wrong, n),
        "accuracy_answered": _share(right, n and right + wrong),
        "f_score": _share(2 * right, n and n + right + wrong),
        "omniscience_index": _share(100 * (right - wrong), n),
        "false_abstention_rate": _share(told[1], told[0] + told[1]),
        "precision": _share(told[3], should and told[1] + told[3]),
        "recall": _share(told[3], should),
        "f1": _f1(told),
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
    """Result of the metric `abstention`."""
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
        pays = {"correct": weights[0], "refused": weights[1], "wrong": -weights[2]}
        scores = [None] * len(rows) if "answered" in {row[0] for row in rows} else [pays.get(row[0]) for row in rows]
    scored = [row for row, found in zip(rows, scores, strict=True) if found is not None]
    told = [_declined(row) for row in scored]
    domains: dict[str | None, list[_Row]] = {}
    for row in known:
        domains.setdefault(row[2], []).append(row)
    return make_result(
        "abstention",
        _f1(told) if score == "f1" else mean(scores),
        scores=scores,
        parts=_rates(known) | {"domains": {name: _rates(domains[name]) for name in sorted(filter(None, domains))}},
        left_out={"responses": {"unjudged": len(rows) - len(known), "unlabelled": len(known) - len(scored)}},
        settings={"weights": [float(weight) for weight in weights], "score": score},
        judge=named(given.judge),
        resampled=told if score == "f1" else None,
        statistic=_f1 if score == "f1" else None,
        options=given,
    )

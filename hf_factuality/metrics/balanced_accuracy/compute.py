"""Balanced accuracy of verdicts on claims; `balanced_accuracy.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.agreement import cohens_kappa, false_positive_rate, mean_recall
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._claims import ClaimOptions, JudgedAnswers, verdict_of_claims
from hf_factuality.metrics._common import make_result, read_options
from hf_factuality.metrics._judges import JudgedItem, by_domain, flattened, grouped, reference_parts


_TRUTHS = {"supported": True, "not_supported": False, "not supported": False}


def _truth(value: Any, place: str) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)) and value in (0, 1):
        return bool(value)
    if isinstance(value, str) and value.strip().lower() in _TRUTHS:
        return _TRUTHS[value.strip().lower()]
    raise DataError(f"{place} must say whether the claim is supported: True or False, 1 or 0, got {value!r:.100}")


def balanced_accuracy(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Result of the metric `balanced_accuracy`."""
    given = read_options(ClaimOptions, options)
    claims = [[item] if isinstance(item, bool) else item for item in predictions]
    answers = JudgedAnswers(claims, references, table=None, options=options)
    left_out = {"missing": 0, "no_evidence": 0, "verifier_failed": 0, "unjudged": 0, "no_reference": 0}
    items: list[JudgedItem] = []
    scores: list[float | None] = []
    for row, (answer, reference) in enumerate(zip(answers.items, references, strict=True)):
        value, domain, group = reference_parts(reference, "supported")
        truth, false = _truth(value, f"reference {row}"), verdict_of_claims(answer)
        scores.append(None if truth is None or false is None else float(truth is not false))
        if scores[-1] is None:
            left_out["no_reference" if truth is None else answer.problem or "unjudged"] += 1
        else:
            items.append(JudgedItem(not false, truth, domain, group))
    extractor, judge = answers.who()
    result = make_result(
        "balanced_accuracy",
        _macro(items),
        scores=scores,
        parts={
            "accuracy": mean(scores),
            "kappa": cohens_kappa(*_columns(items)),
            "false_called_supported": false_positive_rate(*_columns(items)),
            "supported": sum(item.truth for item in items),
            "domains": by_domain(items, lambda own: {"balanced_accuracy": mean_recall(*_columns(own)), "n": len(own)}),
        },
        left_out={"responses": left_out},
        extractor=extractor,
        judge=judge,
        options=given,
        resampled=grouped(items),
        statistic=lambda groups: _macro(flattened(groups)),
    )
    if given.return_spans:
        result["spans"] = answers.spans()
    return result


def _columns(items: Sequence[JudgedItem]) -> tuple[list[bool], list[bool]]:
    return [item.said for item in items], [item.truth for item in items]


def _macro(items: Sequence[JudgedItem]) -> float | None:
    """Mean over the domains, as published for several datasets; one without claims of both kinds is left out."""
    domains = {item.domain for item in items}
    return mean(
        [mean_recall(*_columns([it for it in items if it.domain == name])) for name in sorted(domains, key=str)]
    )

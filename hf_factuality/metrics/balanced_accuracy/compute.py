"""Balanced accuracy of verdicts on claims; `balanced_accuracy.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.agreement import Confusion
from hf_factuality.functional.scoring import mean
from hf_factuality.metrics._claims import ClaimOptions, JudgedAnswers, verdict_of_claims
from hf_factuality.metrics._common import make_result, read_options
from hf_factuality.metrics._judges import GroupedCounts, JudgedItem, reference_parts


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
            items.append(JudgedItem(Confusion.of([not false], [truth]), domain, group))
    counts = GroupedCounts(items, 4)
    whole = Confusion(*counts.together(counts.sums))

    def macro(sums: Sequence[float]) -> float | None:
        """Mean over the domains, as published for several datasets; one without claims of both kinds is left out."""
        return mean([Confusion(*own).mean_recall() for own in counts.split(sums)])

    extractor, judge = answers.who()
    result = make_result(
        "balanced_accuracy",
        macro(counts.sums),
        scores=scores,
        parts={
            "accuracy": whole.accuracy(),
            "kappa": whole.kappa(),
            "false_called_supported": whole.false_positive_rate(),
            "supported": whole.true_right + whole.true_wrong,
            "domains": {
                name: {"balanced_accuracy": Confusion(*own).mean_recall(), "n": sum(own)}
                for name, own in counts.domains()
            },
        },
        left_out={"responses": left_out},
        extractor=extractor,
        judge=judge,
        options=given,
        resampled=counts.rows,
        statistic=macro,
        summed=True,
    )
    if given.return_spans:
        result["spans"] = answers.spans()
    return result

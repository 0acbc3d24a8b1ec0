"""F1 of found hallucinations, per response and per character; `hallucination_f1.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.agreement import mean_recall
from hf_factuality.metrics._claims import Answer, ClaimOptions, JudgedAnswers
from hf_factuality.metrics._common import make_result, read_options
from hf_factuality.metrics._judges import JudgedItem, by_domain, flattened, grouped, reference_parts
from hf_factuality.spans import Label, LabeledSpan, Verification


_FINE = (Label.SUPPORTED, Label.HEDGED_SUPPORTED, Label.NO_FACT)


def _places(value: Any, place: str) -> frozenset[int] | None:
    """Characters of spans: pairs `[start, end]`, or dictionaries with both; `None` if they are unknown."""
    if value is None:
        return None
    found: set[int] = set()
    for span in value if isinstance(value, (list, tuple)) else [value]:
        ends = [span.get("start"), span.get("end")] if isinstance(span, Mapping) else span
        whole = isinstance(ends, (list, tuple)) and len(ends) == 2 and all(type(end) is int for end in ends)
        if not whole or not 0 <= ends[0] <= ends[1]:
            raise DataError(f"{place}: a span is [start, end] or has both, as characters from 0, got {span!r:.100}")
        found.update(range(*ends))
    return frozenset(found)


def _is_places(item: Any) -> bool:
    return isinstance(item, (list, tuple)) and all(
        isinstance(it, (list, tuple)) and len(it) == 2 and all(type(end) is int for end in it) for it in item
    )


def _said(answer: Answer) -> frozenset[int] | None:
    """Characters that are called hallucinated; `None` if that is not known."""
    if answer.problem:
        return None
    wrong = [span for span in answer.spans if span.label is not None and span.label not in _FINE]
    if not wrong and any(span.label is None for span in answer.spans):
        return None
    return frozenset(place for span in wrong for place in range(span.start, span.end))


def hallucination_f1(predictions: Sequence[Any], references: Sequence[Any], **options: Any) -> dict[str, Any]:
    """Result of the metric `hallucination_f1`."""
    given = read_options(ClaimOptions, options)
    marked = [
        Verification(tuple(LabeledSpan(*ends, Label.CONTRADICTED) for ends in item)) if _is_places(item) else item
        for item in predictions
    ]
    answers = JudgedAnswers(marked, references, table=None, options={**options, "return_spans": True})
    left_out = {"missing": 0, "no_evidence": 0, "verifier_failed": 0, "unjudged": 0, "no_reference": 0}
    items: list[JudgedItem] = []
    scores: list[float | None] = []
    for row, (answer, reference) in enumerate(zip(answers.items, references, strict=True)):
        value, domain, group = reference_parts(reference, "spans")
        truth, said = _places(value, f"reference {row}"), _said(answer)
        scores.append(None if truth is None or said is None else float(bool(truth) == bool(said)))
        if scores[-1] is None:
            left_out["no_reference" if truth is None else answer.problem or "unjudged"] += 1
        else:
            items.append(JudgedItem(said, truth, domain, group))
    extractor, judge = answers.who()
    groups = grouped(items)
    precision, recall, score = _examples(items)
    span_precision, span_recall, span_f1 = _characters(items)
    result = make_result(
        "hallucination_f1",
        score,
        scores=scores,
        parts={
            "precision": precision,
            "recall": recall,
            "span_f1": span_f1,
            "span_f1_confidence_interval": given.interval(groups, lambda drawn: _characters(flattened(drawn))[2]),
            "span_precision": span_precision,
            "span_recall": span_recall,
            "balanced_accuracy": mean_recall([not it.said for it in items], [not it.truth for it in items]),
            "hallucinated": sum(bool(item.truth) for item in items),
            "domains": by_domain(
                items, lambda own: {"f1": _examples(own)[2], "span_f1": _characters(own)[2], "n": len(own)}
            ),
        },
        left_out={"responses": left_out},
        extractor=extractor,
        judge=judge,
        options=given,
        resampled=groups,
        statistic=lambda drawn: _examples(flattened(drawn))[2],
    )
    if given.return_spans:
        result["spans"] = answers.spans()
    return result


def _f1(hits: int, found: int, true: int) -> tuple[float | None, float | None, float | None]:
    """Precision, recall and F1; `None` where nothing was found, or there is nothing to find."""
    precision, recall = (hits / found if found else None), (hits / true if true else None)
    return precision, recall, (2 * hits / (found + true) if true else None)


def _examples(items: Sequence[JudgedItem]) -> tuple[float | None, float | None, float | None]:
    hits = sum(bool(item.said) and bool(item.truth) for item in items)
    return _f1(hits, sum(bool(item.said) for item in items), sum(bool(item.truth) for item in items))


def _characters(items: Sequence[JudgedItem]) -> tuple[float | None, float | None, float | None]:
    hits = sum(len(item.said & item.truth) for item in items)
    return _f1(hits, sum(len(item.said) for item in items), sum(len(item.truth) for item in items))

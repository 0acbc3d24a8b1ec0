"""F1 of found hallucinations, per response and per character; `hallucination_f1.py` describes the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.agreement import Confusion
from hf_factuality.metrics._claims import Answer, ClaimOptions, JudgedAnswers
from hf_factuality.metrics._common import make_result, read_options
from hf_factuality.metrics._judges import GroupedCounts, JudgedItem, reference_parts
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
            items.append(JudgedItem(_counts(said, truth), domain, group))
    extractor, judge = answers.who()
    groups = GroupedCounts(items, 7)
    counts = groups.together(groups.sums)
    precision, recall, score = _examples(counts)
    span_precision, span_recall, span_f1 = _characters(counts)
    hits, called, true, *_ = counts
    rest = len(items) - true - (called - hits)  # without a hallucination, and none is called
    result = make_result(
        "hallucination_f1",
        score,
        scores=scores,
        parts={
            "precision": precision,
            "recall": recall,
            "span_f1": span_f1,
            "span_f1_confidence_interval": given.interval(
                groups.rows, lambda sums: _characters(groups.together(sums))[2], summed=True
            ),
            "span_precision": span_precision,
            "span_recall": span_recall,
            "balanced_accuracy": Confusion(hits, true - hits, rest, called - hits).mean_recall(),
            "hallucinated": true,
            "domains": {
                name: {"f1": _examples(own)[2], "span_f1": _characters(own)[2], "n": own[-1]}
                for name, own in groups.domains()
            },
        },
        left_out={"responses": left_out},
        extractor=extractor,
        judge=judge,
        options=given,
        resampled=groups.rows,
        statistic=lambda sums: _examples(groups.together(sums))[2],
        summed=True,
    )
    if given.return_spans:
        result["spans"] = answers.spans()
    return result


def _f1(hits: float, found: float, true: float) -> tuple[float | None, float | None, float | None]:
    """Precision, recall and F1; `None` where nothing was found, or there is nothing to find."""
    precision, recall = (hits / found if found else None), (hits / true if true else None)
    return precision, recall, (2 * hits / (found + true) if true else None)


def _counts(said: frozenset[int], truth: frozenset[int]) -> tuple[int, ...]:
    """Of a response whether it is called hallucinated and is, is called so, is; the same in characters; and 1 response."""
    return int(bool(said and truth)), int(bool(said)), int(bool(truth)), len(said & truth), len(said), len(truth), 1


def _examples(counts: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    return _f1(*counts[:3])


def _characters(counts: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    return _f1(*counts[3:6])

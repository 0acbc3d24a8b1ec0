"""Claims of a judged answer as lines, of plain text and of Markdown: the label, what is said and what decided."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from hf_factuality.io.markdown import escaped, one_line
from hf_factuality.spans import Label, LabeledSpan


def label_name(label: Label | None) -> str:
    """A label in words; a claim without one could not be judged."""
    return "not judged" if label is None else label.value.replace("_", " ")


def worst_claims(spans: Iterable[LabeledSpan]) -> list[LabeledSpan]:
    """The claims that are not supported, contradicted ones first, then those that could not be judged."""
    order = [Label.CONTRADICTED, Label.HEDGED_CONTRADICTED, Label.UNVERIFIABLE, None]
    return sorted((it for it in spans if it.label in order), key=lambda it: (order.index(it.label), it.start))


def shortened(text: str, limit: int) -> str:
    """On one line, and cut with an ellipsis."""
    text = one_line(text if len(text) <= 4 * limit else text[: 4 * limit] + "…")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def claim_words(text: str, span: LabeledSpan) -> str:
    """What a claim of an answer says: as it was extracted, or the characters where it stands."""
    return span.text(text) if span.claim is None else span.claim


def markdown_claim(text: str, span: LabeledSpan, shown: Callable[[str], str] = escaped) -> str:
    """A claim as an item of a list in Markdown; `shown` makes Markdown of somebody's text."""
    against = f" (evidence: {shown(span.evidence)})" if span.evidence else ""
    return f"- *{label_name(span.label)}*: {shown(claim_words(text, span))}{against}"


def claim_lines(text: str, spans: Iterable[LabeledSpan], most: int = 50, limit: int = 300) -> list[str]:
    """A line per claim, with the range of its characters, and below those that are not supported what was held against them."""
    spans = list(spans)
    lines = []
    for span in islice(spans, most):
        said = shortened(claim_words(text, span), limit)
        lines.append(f"{label_name(span.label):<19} [{span.start}:{span.end}] {said}")
        against = span.evidence or span.reason
        if against and span.label in (Label.CONTRADICTED, Label.HEDGED_CONTRADICTED, Label.UNVERIFIABLE, None):
            lines.append(f"{'':<19} evidence: {shortened(against, limit)}" if span.evidence else f"{'':<19} {against}")
    if len(spans) > most:
        lines.append(f"and {len(spans) - most} more claims")
    return lines

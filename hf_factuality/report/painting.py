"""A completion as HTML: its spans marked by label, its citations, and the list of its labels with their evidence."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from html import escape as escape_html
from types import MappingProxyType

from hf_factuality.reading.completion import read
from hf_factuality.reading.statements import Citation
from hf_factuality.spans import Label, LabeledSpan, Verification


# Characters of a text that is shown beside an answer: evidence may be of any size. A hover holds less, as it is there twice.
_CHARACTERS, _HOVER = 2000, 300
# Class name and what the legend says.
KINDS = {
    Label.SUPPORTED: ("supported", "supported by the evidence"),
    Label.HEDGED_SUPPORTED: ("supported hedged", "supported, said with reservation"),
    Label.UNVERIFIABLE: ("unverifiable", "neither stated nor contradicted"),
    Label.HEDGED_CONTRADICTED: ("contradicted hedged", "contradicted, said with reservation"),
    Label.CONTRADICTED: ("contradicted", "contradicted by the evidence"),
    Label.NO_FACT: ("nofact", "holds no fact"),
    None: ("unjudged", "could not be judged"),
}
DROPPED = ("dropped", "not kept by the guarantee")

# Controls that open an override or an isolate: left as they are, one of them turns around what follows it on the page.
_CONTROLS = {code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def escape(text: str) -> str:
    """Text for HTML, with the controls of the direction of text written out."""
    return escape_html(text).translate(_CONTROLS)


def cut_text(text: str, limit: int = _CHARACTERS) -> str:
    """A text, or its first characters and how many more there are."""
    return text if len(text) <= limit else f"{text[:limit]} … ({len(text) - limit} characters more)"


def paint(
    completion: str,
    verification: Verification,
    dropped: Collection[LabeledSpan] = (),
    meanings: Mapping[Label, str] = MappingProxyType({}),
) -> str:
    """A completion as HTML, escaped, with its spans and the citations of its answer marked, those of `dropped` struck through;
    where spans overlap, the earlier one keeps the characters."""
    verification.validate(completion)
    citations = sorted(read(completion).citations, key=lambda citation: (citation.start, citation.end))
    parts, position = [], 0
    for number, span in enumerate(_in_order(verification)):
        start = max(span.start, position)
        if start >= span.end:
            continue
        kind, meaning = _kind(span, dropped, meanings)
        hover = meaning + (f": {cut_text(span.evidence, _HOVER)}" if span.evidence else "")
        parts.append(_cited(completion, position, start, citations))
        shown = _cited(completion, start, span.end, citations)
        parts.append(f'<mark dir="auto" class="{kind}" title="{escape(hover)}" data-item="{number}">{shown}</mark>')
        position = span.end
    return "".join(parts) + _cited(completion, position, len(completion), citations)


def list_labels(
    completion: str,
    verification: Verification,
    dropped: Collection[LabeledSpan] = (),
    meanings: Mapping[Label, str] = MappingProxyType({}),
) -> str:
    """The spans of a completion as a list that opens: text or claim, label, score, reason, evidence. The number in `data-item`
    of a mark is that of its item."""
    items = "".join(_item(completion, span, *_kind(span, dropped, meanings)) for span in _in_order(verification))
    count = len(verification.spans)
    summary = f"<summary>Labels and evidence ({count})</summary>"
    return f'<details class="labels">{summary}<ol>{items}</ol></details>' if count else ""


def _item(completion: str, span: LabeledSpan, kind: str, meaning: str) -> str:
    said = span.text(completion) if span.claim is None else span.claim
    score = "" if span.score is None else f" <small>score {span.score:.2f}</small>"
    reason = f"<p><small>reason: {escape(cut_text(span.reason))}</small></p>" if span.reason else ""
    evidence = f'<blockquote dir="auto">{escape(cut_text(span.evidence))}</blockquote>' if span.evidence else ""
    label = f'<p><span class="kind {kind}">{escape(meaning)}</span>{score}</p>'
    return f'<li>{label}<p class="said" dir="auto">{escape(cut_text(said))}</p>{reason}{evidence}</li>'


def _in_order(verification: Verification) -> list[LabeledSpan]:
    return sorted(verification.spans, key=lambda span: (span.start, -span.end))


def _kind(span: LabeledSpan, dropped: Collection[LabeledSpan], meanings: Mapping[Label, str]) -> tuple[str, str]:
    """Class name of a span, and its label in words."""
    kind, meaning = KINDS[span.label]
    meaning = meaning if span.label is None else meanings.get(span.label, meaning)
    return (f"{kind} {DROPPED[0]}", f"{meaning}; {DROPPED[1]}") if span in dropped else (kind, meaning)


def _cited(completion: str, start: int, end: int, citations: Sequence[Citation]) -> str:
    """A piece of a completion, escaped, with the citations in it; a title says which passages one names."""
    parts = []
    for it in citations[bisect_right(citations, start, key=lambda citation: citation.end) :]:
        if it.start >= end:
            break
        first, last = max(it.start, start), min(it.end, end)
        if first < last:
            named = ", ".join(map(str, it.numbers))
            title = f"passages {named}" if len(it.numbers) > 1 else f"passage {named}" if named else "source"
            parts.append(escape(completion[start:first]))
            parts.append(f'<span class="cite" title="{title}">{escape(completion[first:last])}</span>')
            start = last
    return "".join(parts) + escape(completion[start:end])

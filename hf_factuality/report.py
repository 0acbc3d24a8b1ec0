"""One self-contained HTML page that shows completions with their sentences coloured by label."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from itertools import repeat
from pathlib import Path
from typing import Any

from hf_factuality.io.transcripts import SourcedPassage
from hf_factuality.reading.completion import read
from hf_factuality.reading.statements import Citation
from hf_factuality.spans import Label, LabeledSpan, Verification


# What of a turn's passages is on the page: results of tools may be of any size.
_NAMED, _PASSAGES, _CHARACTERS = 5, 50, 2000
# Class name and what the legend says.
_KINDS = {
    Label.SUPPORTED: ("supported", "supported by the evidence"),
    Label.HEDGED_SUPPORTED: ("supported hedged", "supported, said with reservation"),
    Label.UNVERIFIABLE: ("unverifiable", "neither stated nor contradicted"),
    Label.HEDGED_CONTRADICTED: ("contradicted hedged", "contradicted, said with reservation"),
    Label.CONTRADICTED: ("contradicted", "contradicted by the evidence"),
    Label.NO_FACT: ("nofact", "holds no fact"),
    None: ("unjudged", "could not be judged"),
}
_DROPPED = ("dropped", "not kept by the guarantee")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.6 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem;
  color: #1a1a1a; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; } td, th { padding: .3rem .9rem .3rem 0; text-align: left;
  border-bottom: 1px solid #ccc; font-variant-numeric: tabular-nums; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); gap: 1rem; } .text, .by li { white-space: pre-wrap; overflow-wrap: anywhere; }
.turns > div { border-left: 3px solid #ccc; padding-left: .8rem; margin: .8rem 0; } .by { font-size: .85rem; color: #555; margin: .3rem 0; }
section { border-top: 1px solid #ccc; padding: .5rem 0 1rem; } h3 { margin: .5rem 0; font-size: 1rem; }
h4 { margin: .3rem 0; font-size: .85rem; color: #555; font-weight: 600; }
mark { color: inherit; border-radius: .2rem; padding: .05rem .15rem; background: none; }
.supported { background: #cdeccd; } .contradicted { background: #ffd0d0; text-decoration: underline wavy #b00020 1px; }
.unverifiable { background: #fff0b8; } .nofact { background: #ececec; } .unjudged { outline: 1px dashed #777; }
.cite { font-size: .8em; opacity: .65; cursor: help; } .hedged { font-style: italic; } .dropped { text-decoration: line-through; opacity: .7; } mark[title] { cursor: help; }
.legend mark { margin-right: .8rem; white-space: nowrap; }
@media (max-width: 50rem) { .pair { grid-template-columns: 1fr; } }
@media (prefers-color-scheme: dark) { body { color: #eee; background: #161616; } td, th, section { border-color: #444; }
  h4, .by { color: #aaa; } .turns > div { border-color: #444; } .supported { background: #14421a; } .contradicted { background: #5c1620; }
  .unverifiable { background: #4d3f00; } .nofact { background: #333; } }
"""


# Controls that open an override or an isolate: left as they are, one of them turns around what follows it on the page.
_CONTROLS = {code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}


def escape(text: str) -> str:
    """Text for HTML, with the controls of the direction of text written out."""
    return escape_html(text).translate(_CONTROLS)


@dataclass(frozen=True)
class ReportSample:
    """One question with the completions to show side by side, each with its heading ("before")."""

    question: str
    answer: str | None  # the right one; `None` if there is none to show
    completions: Sequence[tuple[str, str, Verification]]
    dropped: frozenset[LabeledSpan] = frozenset()  # spans that a guarantee does not keep
    # Of each turn of a conversation, how many passages were known to the turn before it, and those that came since.
    sources: Sequence[tuple[int, Sequence[SourcedPassage]]] = ()


def render_report(title: str, note: str, table: Sequence[Mapping[str, Any]], samples: Sequence[ReportSample]) -> str:
    """The page as a string: no script, nothing loaded from elsewhere, every text escaped.

    `note` says what was measured, the rows of `table` have the same keys. Raises `SpanError` if a span lies outside its
    completion.
    """
    header = "".join(f"<th>{escape(str(name))}</th>" for name in (table[0] if table else ()))
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row.values()) + "</tr>" for row in table)
    kinds = [*_KINDS.values(), *([_DROPPED] if any(sample.dropped for sample in samples) else [])]
    legend = " ".join(f'<mark class="{kind}">{escape(text)}</mark>' for kind, text in kinds)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>"
        f"<p>{escape(note)}</p><table><tr>{header}</tr>{rows}</table>"
        f'<p class="legend">{legend}</p><p>Point at a sentence to read the evidence.</p>'
        f"{''.join(map(_section, samples))}</body></html>\n"
    )


def _section(sample: ReportSample) -> str:
    right = "" if sample.answer is None else f" <small>(right answer: {escape(sample.answer)})</small>"
    judged_by = map(_sources, sample.sources) if sample.sources else repeat("")
    shown = "".join(
        f'<div><h4>{escape(heading)}</h4><div class="text" dir="auto">{paint(text, verification, sample.dropped)}</div>{by}</div>'
        for (heading, text, verification), by in zip(sample.completions, judged_by, strict=False)
    )
    kind = "turns" if sample.sources else "pair"
    return f'<section><h3>{escape(sample.question)}{right}</h3><div class="{kind}">{shown}</div></section>'


def _sources(known: tuple[int, Sequence[SourcedPassage]]) -> str:
    """What a turn was judged by."""
    before, passages = known
    if not before and not passages:
        return '<p class="by">Judged by nothing: no tool had returned anything.</p>'
    earlier = f"{_passages(before)} known before" if before else ""
    if not passages:
        return f'<p class="by">Judged by {earlier}.</p>'
    names = list(dict.fromkeys(it.source for it in passages))
    listed = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    new = f"{_passages(len(passages))} of {listed}" + (f", and {earlier}" if earlier else "")
    items = "".join(f"<li>{escape(it.source)}: {escape(_cut(it.text))}</li>" for it in passages[:_PASSAGES])
    rest = f"<li>and {len(passages) - _PASSAGES} more</li>" if len(passages) > _PASSAGES else ""
    return f'<details class="by"><summary>Judged by {escape(new)}</summary><ul dir="auto">{items}{rest}</ul></details>'


def _passages(number: int) -> str:
    return f"{number} passage{'s' if number > 1 else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]} … ({len(text) - _CHARACTERS} characters more)"


def paint(completion: str, verification: Verification, dropped: Collection[LabeledSpan] = ()) -> str:
    """A completion as HTML, escaped, with its spans and the citations of its answer marked, those of `dropped` struck through;
    where spans overlap, the earlier one keeps the characters."""
    verification.validate(completion)
    citations = sorted(read(completion).citations, key=lambda citation: (citation.start, citation.end))
    parts, position = [], 0
    for span in sorted(verification.spans, key=lambda span: (span.start, -span.end)):
        start = max(span.start, position)
        if start >= span.end:
            continue
        kind, meaning = _KINDS[span.label]
        if span in dropped:
            kind, meaning = f"{kind} {_DROPPED[0]}", f"{meaning}; {_DROPPED[1]}"
        hover = meaning + (f": {span.evidence}" if span.evidence else "")
        parts.append(_cited(completion, position, start, citations))
        shown = _cited(completion, start, span.end, citations)
        parts.append(f'<mark dir="auto" class="{kind}" title="{escape(hover)}">{shown}</mark>')
        position = span.end
    return "".join(parts) + _cited(completion, position, len(completion), citations)


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


def write_report(path: str | Path, *args: Any, **kwargs: Any) -> Path:
    """[`render_report`] to a file, whose folder is made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lone half of a surrogate pair, which a model can write and UTF-8 cannot hold, becomes a question mark.
    path.write_text(render_report(*args, **kwargs), encoding="utf-8", errors="replace")
    return path

"""One self-contained HTML page that shows completions with their sentences coloured by label."""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hf_factuality.functional.scoring import CONTRADICTED_LABELS, factual_precision, mean
from hf_factuality.io.transcripts import SourcedPassage
from hf_factuality.reading.same import distinct_units
from hf_factuality.report.painting import DROPPED, KINDS, cut_text, escape, list_labels, paint
from hf_factuality.spans import Label, LabeledSpan, Verification


PLAIN = 200
"""Answers that are there without a script. The others lie in a `<template>`, which a browser reads and does not lay out."""
# What of a turn's passages is on the page: results of tools may be of any size.
_NAMED, _PASSAGES = 5, 50
# Names of the labels in `data-kinds` and in the filters.
_KEYS = {label: "unjudged" if label is None else label.value for label in KINDS}
_NOTHING = ("nothing", "nothing is labelled")
OUTCOMES = {
    "correct": ("supported", "right"),
    "wrong": ("contradicted", "wrong"),
    "refused": ("nofact", "declined"),
    "answered": ("unverifiable", "answered, not known whether right"),
}
"""What became of an answer: class name and what the page says."""
_ORDERS = {
    "row+": "row order",
    "precision+": "precision, lowest first",
    "precision-": "precision, highest first",
    "contradicted-": "contradicted claims, most first",
    "claims-": "claims, most first",
    "claims+": "claims, fewest first",
    "score+": "score, lowest first",
    "score-": "score, highest first",
}


@dataclass(frozen=True)
class ReportSample:
    """One question with the completions to show side by side, each with its heading ("before")."""

    question: str
    answer: str | None  # the right one; `None` if there is none to show
    completions: Sequence[tuple[str, str, Verification]]
    dropped: frozenset[LabeledSpan] = frozenset()  # spans that a guarantee does not keep
    # Of each turn of a conversation, how many passages were known to the turn before it, and those that came since.
    sources: Sequence[tuple[int, Sequence[SourcedPassage]]] = ()
    place: str = ""  # of the row, in small print ("line 2")
    row: int | None = None  # its number, for the order of rows; `None`: its place among the samples
    name: str = ""  # to sort by
    outcomes: Sequence[str | None] = ()  # of each completion, of `OUTCOMES`
    figures: Mapping[str, float | None] = field(default_factory=dict)  # to sort and filter by ("reward")
    groups: Mapping[str, str] = field(default_factory=dict)  # to filter by ("verifier")


def render_report(
    title: str,
    note: str,
    table: Sequence[Mapping[str, Any]],
    samples: Sequence[ReportSample],
    meanings: Mapping[Label, str] = MappingProxyType({}),
) -> str:
    """The page as a string: one style and one script, both ours, nothing loaded from elsewhere, every text escaped.

    `note` says what was measured, the rows of `table` have the same keys. `meanings` are what the legend says of labels that
    mean something else here, such as a right answer, and are all that it shows. Raises `SpanError` if a span lies outside its
    completion.
    """
    style, script = _own("page.css"), _own("page.js")
    sides = _sides(samples)
    shown = [_Shown(sample, number, len(sides)) for number, sample in enumerate(samples)]
    sections = [it.section(meanings) for it in shown]
    kinds = [(KINDS[label][0], text) for label, text in meanings.items()] or [*KINDS.values()]
    kinds += [DROPPED] if any(sample.dropped for sample in samples) else []
    legend = " ".join(f'<mark class="{kind}">{escape(text)}</mark>' for kind, text in kinds)
    rest = len(sections) - PLAIN
    without = f'<p class="without">The other {rest} answers need JavaScript.</p>' if rest > 0 else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{_policy(style, script)}'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{style}</style></head><body>"
        f"<header><h1>{escape(title)}</h1><p>{escape(note)}</p>{_table(table)}</header>"
        f'<main><h2>Answers</h2><p class="legend">{legend}</p>{_controls(shown, sides, meanings)}'
        f'<div id="answers">{"".join(sections[:PLAIN])}</div>{without}'
        f'<button type="button" id="more" hidden>Show more answers</button></main>{_PANEL}'
        f'<template id="rest">{"".join(sections[PLAIN:])}</template><script>{script}</script></body></html>\n'
    )


def _own(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """What a browser may do with the page: apply this style, run this script, and nothing else, not even `innerHTML`."""
    hashes = (base64.b64encode(hashlib.sha256(it.encode()).digest()).decode() for it in (style, script))
    allowed = "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'".format(*hashes)
    more = "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    return f'<meta http-equiv="Content-Security-Policy" content="{allowed}; {more}">'


def _table(table: Sequence[Mapping[str, Any]]) -> str:
    if not table:
        return ""
    header = "".join(f'<th scope="col">{escape(str(name))}</th>' for name in table[0])
    rows = "".join("<tr>" + "".join(f"<td>{escape(str(v))}</td>" for v in row.values()) + "</tr>" for row in table)
    table_html = f"<table><tr>{header}</tr>{rows}</table>"
    # It scrolls by itself where it is wider than the page, which a keyboard does once it has the focus.
    return f'<div class="scroll" role="region" aria-label="Scores" tabindex="0">{table_html}</div>'


def _sides(samples: Sequence[ReportSample]) -> list[str]:
    """Headings of the sides that are compared, `[""]` where answers stand alone."""
    headings = {tuple(heading for heading, _, _ in sample.completions) for sample in samples}
    one = next(iter(headings), ())
    compared = len(headings) == 1 and len(one) > 1 and not any(sample.sources for sample in samples)
    return [*one] if compared else [""]


class _Shown:
    """A sample, and what it is filtered and sorted by."""

    def __init__(self, sample: ReportSample, number: int, sides: int):
        self.sample = sample
        self.row = number if sample.row is None else sample.row
        labels = [[span.label for span in it.spans] for _, _, it in sample.completions]
        if sides == 1:
            labels = [[label for side in labels for label in side]]
        self.outcomes = (
            [{it for it in sample.outcomes if it}] if sides == 1 else [{it} - {None} for it in sample.outcomes]
        )
        self.kinds = [{_KEYS[label] for label in side} or {_NOTHING[0]} for side in labels]
        self.changed = sides > 1 and (
            any(_differ(one, two) for one, two in pairwise(labels))
            or any(None not in pair and pair[0] != pair[1] for pair in pairwise(sample.outcomes))
        )
        # What is compared is sorted by what came last; of a conversation all turns count together.
        counted = [(text, it) for _, text, it in sample.completions[0 if sides == 1 else -1 :] if it.judged]
        units = [span for text, it in counted for span in distinct_units(it.spans, text)]
        claims = sum(span.label is not Label.NO_FACT for span in units) if counted else None
        score = mean([span.score for span in units])
        wrong = sum(span.label in CONTRADICTED_LABELS for span in units) if counted else None
        figures = {"precision": factual_precision(units), "claims": claims, "contradicted": wrong, "score": score}
        self._figures = {**figures, **{f"own {name}": value for name, value in sample.figures.items()}}

    def section(self, meanings: Mapping[Label, str]) -> str:
        """The sample as HTML."""
        it = self.sample
        right = "" if it.answer is None else f" <small>(right answer: <span>{escape(it.answer)}</span>)</small>"
        place = f" <small>{escape(it.place)}</small>" if it.place else ""
        judged_by = map(_sources, it.sources) if it.sources else repeat("")
        outcomes = [*map(_badge, it.outcomes)] or repeat("")
        sides = "".join(
            f'<div><h4>{escape(heading)}{outcome}</h4><div class="text" dir="auto">{paint(text, verification, it.dropped, meanings)}</div>'
            f'<div class="below">{list_labels(text, verification, it.dropped, meanings)}{by}</div></div>'
            for (heading, text, verification), by, outcome in zip(it.completions, judged_by, outcomes, strict=False)
        )
        kind = "turns" if it.sources else "pair"
        heading = f"<h3>{escape(it.question)}{right}{place}</h3>"
        return f'<section {self._data()}>{heading}<div class="{kind}">{sides}</div></section>'

    def _data(self) -> str:
        known = {name: value for name, value in self._figures.items() if value is not None and isfinite(value)}
        figures = {name: float(f"{value:.6g}") for name, value in known.items()}
        texts = {"row": self.row, **figures, **({"name": self.sample.name} if self.sample.name else {})}
        data = [f'data-kinds="{"|".join(" ".join(sorted(side)) for side in self.kinds)}"']
        data.append(f'data-figures="{escape(json.dumps(texts))}"')
        if any(self.outcomes):
            data.append(f'data-outcomes="{"|".join(" ".join(sorted(side)) for side in self.outcomes)}"')
        if self.sample.groups:
            data.append(f'data-groups="{escape(json.dumps(dict(self.sample.groups)))}"')
        return " ".join([*data, *(["data-changed"] if self.changed else [])])


def _badge(outcome: str | None) -> str:
    if outcome is None:
        return ""
    kind, text = OUTCOMES[outcome]
    return f' <span class="kind {kind}">{escape(text)}</span>'


def _differ(one: Sequence[Label | None], two: Sequence[Label | None]) -> bool:
    """Whether two answers have other labels, whatever those would be that are not known."""
    known, others = (Counter(it for it in side if it is not None) for side in (one, two))
    gone, new = (known - others).total(), (others - known).total()
    return len(one) != len(two) or gone > two.count(None) or new > one.count(None)


def _controls(shown: Sequence[_Shown], sides: Sequence[str], meanings: Mapping[Label, str]) -> str:
    """Filters, search and order. They are hidden where no script runs."""
    filters = "".join(_filters(shown, side, name, meanings) for side, name in enumerate(sides))
    if len(sides) > 1:
        changed = _filter("changed", "", "changed", sum(it.changed for it in shown))
        filters += f"<fieldset><legend>Compare</legend>{changed}</fieldset>"
    own = list(dict.fromkeys(name for it in shown for name in it.sample.figures))
    in_order = all(one.row <= two.row for one, two in pairwise(shown))
    known = {**_ORDERS, **({"name+": "id"} if any(it.sample.name for it in shown) else {})}
    for name in own:
        known |= {f"own {name}+": f"{name}, lowest first", f"own {name}-": f"{name}, highest first"}
    orders = _options(known, "row+" if in_order else "precision+")
    return (
        f'<form id="controls" role="search" aria-label="Answers"><label>Search <input type="search" id="search" autocomplete="off"></label>'
        f'<label>Sort by <select id="sort">{orders}</select></label>{_groups(shown)}{_range(own)}'
        f'<button type="reset">Reset</button>{filters}{_KEYS_HELP}</form><p id="count" role="status"></p>'
    )


def _options(texts: Mapping[str, str], chosen: str = "") -> str:
    return "".join(
        f'<option value="{escape(value)}"{" selected" if value == chosen else ""}>{escape(text)}</option>'
        for value, text in texts.items()
    )


def _groups(shown: Sequence[_Shown]) -> str:
    """A choice for each group of which there are several, such as the verifier."""
    counts: dict[str, Counter[str]] = {}
    for it in shown:
        for name, value in it.sample.groups.items():
            counts.setdefault(name, Counter())[value] += 1
    choices = {name: {"": "all", **{it: f"{it} ({n})" for it, n in own.items()}} for name, own in counts.items()}
    return "".join(
        f'<label>{escape(name[:1].upper() + name[1:])} <select data-group="{escape(name)}">{_options(texts)}</select></label>'
        for name, texts in choices.items()
        if len(texts) > 2
    )


def _range(figures: Sequence[str]) -> str:
    """From where to where a figure may lie."""
    if not figures:
        return ""
    names = _options({f"own {name}": name for name in figures})
    number = '<input type="number" step="any" class="bound" id="{}" aria-label="{}">'
    least, most = number.format("least", "at least"), number.format("most", "at most")
    return (
        f'<span class="range"><label>Only <select id="figure">{names}</select></label> from {least} to {most}</span>'
    )


def _filters(shown: Sequence[_Shown], side: int, name: str, meanings: Mapping[Label, str]) -> str:
    """Buttons for the labels and the outcomes that answers have on a side, each with the number of those answers."""
    known = {
        _KEYS[label]: (kind, meanings.get(label, text) if label else text) for label, (kind, text) in KINDS.items()
    }
    known[_NOTHING[0]] = _NOTHING
    labels = Counter(kind for it in shown for kind in it.kinds[side])
    outcomes = Counter(kind for it in shown for own in it.outcomes[side : side + 1] for kind in own)
    buttons = "".join(_filter(key, *OUTCOMES[key], outcomes[key]) for key in OUTCOMES if outcomes[key])
    found = _fieldset(f"Answers by outcome {name}", f'data-side="{side}" data-of="outcomes"', buttons)
    buttons = "".join(_filter(key, *known[key], labels[key]) for key in known if labels[key])
    what = "outcome" if meanings else "label"
    return found + _fieldset(f"Answers by {what} {name}", f'data-side="{side}" data-of="kinds"', buttons)


def _fieldset(legend: str, data: str, buttons: str) -> str:
    return f"<fieldset {data}><legend>{escape(legend.strip())}</legend>{buttons}</fieldset>" if buttons else ""


def _filter(key: str, kind: str, text: str, count: int) -> str:
    name = f'{escape(text)} <span class="number">{count}</span>'
    return f'<button type="button" class="{kind}" data-kind="{key}" aria-pressed="false">{name}</button>'


_KEYS_HELP = (
    '<details class="keys"><summary>Keys</summary><p><kbd>/</kbd> search, <kbd>j</kbd> or <kbd>→</kbd> next answer, '
    "<kbd>k</kbd> or <kbd>←</kbd> previous answer, <kbd>Tab</kbd> next sentence, <kbd>Enter</kbd> its evidence, "
    '<kbd>Esc</kbd> closes it.</p><label><input type="checkbox" id="keys" checked> Keys of one character</label></details>'
)
_PANEL = (
    '<div id="panel" role="dialog" aria-labelledby="panel-title" tabindex="-1" hidden>'
    '<h2 id="panel-title">Evidence</h2><button type="button" id="close">Close</button><div id="panel-text"></div></div>'
)


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
    items = "".join(f"<li>{escape(it.source)}: {escape(cut_text(it.text))}</li>" for it in passages[:_PASSAGES])
    rest = f"<li>and {len(passages) - _PASSAGES} more</li>" if len(passages) > _PASSAGES else ""
    return f'<details class="by"><summary>Judged by {escape(new)}</summary><ul dir="auto">{items}{rest}</ul></details>'


def _passages(number: int) -> str:
    return f"{number} passage{'s' if number > 1 else ''}"


def write_report(path: str | Path, *args: Any, **kwargs: Any) -> Path:
    """[`render_report`] to a file, whose folder is made."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A lone half of a surrogate pair, which a model can write and UTF-8 cannot hold, becomes a question mark.
    path.write_text(render_report(*args, **kwargs), encoding="utf-8", errors="replace")
    return path

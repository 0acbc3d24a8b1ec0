"""Where the characters of a completion are in the text that the chat template makes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from hf_factuality.errors import DataError
from hf_factuality.spans import LabeledSpan


def locate(content: str, spans: Sequence[LabeledSpan], text: str, render: Callable[[str], str]) -> list[LabeledSpan]:
    """The spans of a completion as ranges of `text`, which the template makes of it; `render` does so of another one.

    The template is asked, not searched: it renders the completion once more with marks at places of interest. If taking
    the marks out again gives the text, they stand where these places went. This holds for templates that strip the
    completion, and for those that take it apart (reasoning from answer): there, template text inside a span is left out,
    as are the parts of a span that the template leaves out. So a span may come out in several pieces or in none. White
    space at its edges is not its own: it may have gone, or be the template's.
    """
    spans = [cut for span in spans if (cut := stripped(span, content)).start < cut.end]
    body = stripped(LabeledSpan(0, len(content)), content)
    if not spans:
        return []
    whole = _marked(content, [(body.start, body.end)], text, render)
    if whole and whole[0]:
        return [span.shift(whole[0][0] - body.start) for span in spans]
    # Word by word. Tags stay unmarked: a template that looks for them must find them.
    words = [
        match.span() for match in re.finditer(r"<[^<>\s]*>|[^\s<]+|<", content) if not re.fullmatch("<.*>", match[0])
    ]
    edges = sorted({edge for span in spans for edge in (span.start, span.end)})
    pieces = [
        piece for start, end in words for piece in pairwise([start, *(e for e in edges if start < e < end), end])
    ]
    places = _marked(content, pieces, text, render)
    if places is None:  # one of them is in the way of the template; slow, and rare
        places = [(_marked(content, [piece], text, render) or [None])[0] for piece in pieces]
    if not any(places):
        raise DataError(
            f"the chat template changes the completion; mend it, or render it to plain text first: {content[:80]!r}"
        )
    placed = [(piece, place) for piece, place in zip(pieces, places, strict=True) if place]
    return [
        replace(span, start=start, end=end) for span in spans for start, end in _joined(span, placed, content, text)
    ]


def stripped(span: LabeledSpan, content: str) -> LabeledSpan:
    """A span without the white space at its edges."""
    inside = span.text(content)
    start = span.start + len(inside) - len(inside.lstrip())
    return replace(span, start=start, end=max(start, span.start + len(inside.rstrip())))


def _marked(content: str, ranges, text: str, render) -> list[tuple[int, int] | None] | None:
    """Where ranges of the completion are in `text`: `None` for one that is not, or not as a whole, or twice; `None`
    instead of the list if marking them changes what the template does."""
    edges, taken = sorted({edge for both in ranges for edge in both}), set(text)
    # Characters for private use, which no template looks for.
    free = (mark for code in range(0xF0000, 0x10FFFE) if (mark := chr(code)) not in taken)
    marks = dict(zip(edges, free, strict=False))
    if len(marks) < len(edges):
        return None
    cuts = [*sorted({0, *edges}), len(content)]
    try:
        rendered = render("".join(marks.get(start, "") + content[start:end] for start, end in pairwise(cuts)))
    except Exception:  # whatever a template does with text that it did not expect
        return None
    where: dict[str, list[int]] = {mark: [] for mark in marks.values()}
    position = 0
    for character in rendered:
        if character in where:
            where[character].append(position)
        else:
            position += 1
    if rendered.translate({ord(mark): None for mark in where}) != text:
        return None
    placed: list[tuple[int, int] | None] = []
    for start, end in ranges:
        first, last = where[marks[start]], where[marks[end]]
        once = len(first) == len(last) == 1 and text[first[0] : last[0]] == content[start:end]
        # The whole completion may have template text inside; then its pieces are looked for.
        placed.append((first[0], last[0]) if once else None)
    return placed


def _joined(span: LabeledSpan, placed, content: str, text: str) -> list[tuple[int, int]]:
    """The pieces of a span, joined where what is between two of them came through unchanged."""
    result: list[list[int]] = []
    before = 0
    for (start, end), (first, last) in placed:
        if not (span.start <= start and end <= span.end):
            continue
        if result and text[result[-1][1] : first] == content[before:start]:
            result[-1][1] = last
        else:
            result.append([first, last])
        before = end
    return [(first, last) for first, last in result]

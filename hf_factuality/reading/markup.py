"""Markdown as blocks whose visible characters know where they stand in the text: markdown-it-py, with positions.

The parser says which lines a block has, and nothing of the places within a line. What is visible of a block is a part of its
lines in the same order, so that each visible character is looked for from the one before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.texmath import texmath_plugin


KINDS = ("prose", "heading", "item", "header", "row", "code", "math", "html", "quote", "references")
"""What a block may be. `header` and `row` are rows of a table, `item` an item of a list."""

# A text without any of these is prose: paragraphs, one line each. Looking is a hundred times faster than parsing.
_MARKUP = re.compile(r"[#*_`~<>|\[\]\\$&]")
_LINE_MARKUP = re.compile(r"\n(?:[ \t]*(?:[-+=]|\d{1,9}[.)][ \t])| {4}|\t)")
_LINE = re.compile(r"[^\n]*\n?")


class Link(NamedTuple):
    """A link or raised text: its visible characters `[start, end)`, its characters in the text, and its address, if it has one."""

    start: int
    end: int
    place: tuple[int, int]
    address: str = ""


@dataclass(frozen=True)
class Block:
    """A block of a text.

    Args:
        kind (`str`):
            One of [`KINDS`].
        start, end (`int`):
            Its characters in the text: its lines, with the marks of headings, items and rows.
        visible (`str`):
            What a reader sees of it: no emphasis, no addresses of links, no tags. Inline code and maths are kept as they stand.
        places (`Sequence[int]`):
            For each visible character, where it stands in the text.
        cells (`tuple[tuple[int, int], ...]`):
            Of a row, the visible characters of each cell.
        links (`tuple[Link, ...]`):
            Its links.
        raised (`tuple[Link, ...]`):
            What stands in `<sup>` tags or is a footnote's mark.
        raw (`tuple[tuple[int, int], ...]`):
            Visible characters of inline code and maths.
        bold (`bool`):
            Whether all of it is bold, as a heading that is not marked as one.
        loose (`bool`):
            Whether a blank line stands in front of it.
    """

    kind: str
    start: int
    end: int
    visible: str = ""
    places: Sequence[int] = ()
    cells: tuple[tuple[int, int], ...] = ()
    links: tuple[Link, ...] = ()
    raised: tuple[Link, ...] = ()
    raw: tuple[tuple[int, int], ...] = ()
    loose: bool = True
    bold: bool = False

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Visible characters as characters of the text."""
        return self.places[start], self.places[end - 1] + 1


@cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"html": True, "linkify": False}).enable(["table", "strikethrough"])
    # Indented text is prose that somebody indented, far more often than code.
    parser.disable(["code"])
    # "$5 and $6" are prices: a dollar sign next to a digit or a space is no maths.
    parser.use(footnote_plugin, inline=False).use(dollarmath_plugin, allow_space=False, allow_digits=False)
    return parser.use(texmath_plugin, delimiters="brackets")


def blocks(text: str) -> list[Block]:
    """Blocks of a text in the order of their characters."""
    # One for one, so that places hold. The parser reads "\r\n" as one character.
    safe = text.replace("\r\n", " \n").replace("\r", "\n").replace("\0", "\ufffd")
    if _MARKUP.search(safe) is None and _LINE_MARKUP.search("\n" + safe) is None:
        return _paragraphs(safe)
    found = sorted(_Walk(safe).blocks(), key=lambda block: block.start)
    return [block for block in found if block.start < block.end]


def _paragraphs(text: str) -> list[Block]:
    # Ranges first: a block made anew for each line would copy a paragraph of many lines once per line.
    found: list[tuple[int, int, bool]] = []
    loose = True
    for match in _LINE.finditer(text):
        line = match[0].strip()
        if line:
            start = match.start() + match[0].index(line[0])
            end = start + len(line)
            if found and not loose:
                found[-1] = (found[-1][0], end, found[-1][2])
            else:
                found.append((start, end, loose))
        loose = not line
    return [Block("prose", start, end, text[start:end], range(start, end), loose=loose) for start, end, loose in found]


class _Walk:
    """The parser's tokens, from top to bottom."""

    def __init__(self, text: str):
        self.text = text
        self.begins = list(accumulate((len(line) + 1 for line in text.split("\n")), initial=0))
        self.seen = 0

    def blocks(self) -> Iterator[Block]:
        inside: list[str] = []
        row: list[_Seen] = []
        line, cursor = (0, 0), 0  # of a row, and in it
        for token in _parser().parse(self.text):
            name = token.type
            if name in ("fence", "code_block", "math_block", "math_block_eqno", "math_block_label", "html_block"):
                kind = {"fence": "code", "code_block": "code", "html_block": "html"}.get(name, "math")
                yield from self._html(token) if kind == "html" else [self._raw(kind, token)]
            elif name == "hr":
                continue
            elif name.endswith("_open"):
                inside.append(name.removesuffix("_open"))
                if name == "tr_open":
                    row, line = [], self._span(token)
                    cursor = line[0]
            elif name.endswith("_close"):
                inside.pop()
                if name == "tr_close" and row:
                    yield self._row("header" if "thead" in inside else "row", row, line)
            elif name == "inline" and token.map is not None:
                seen = self._inline(token, cursor if "tr" in inside else None)
                if "tr" in inside:
                    row.append(seen)
                    cursor = max(cursor, seen.end)
                elif seen.start < seen.end:
                    yield self._block(self._kind(inside), seen, self._span(token), _is_bold(token.children or ()))

    @staticmethod
    def _kind(inside: list[str]) -> str:
        for name, kind in (
            ("heading", "heading"),
            ("footnote", "references"),
            ("list_item", "item"),
            ("blockquote", "quote"),
        ):
            if name in inside:
                return kind
        return "prose"

    def _loose(self, start: int) -> bool:
        before = self.text.rfind("\n", 0, start)
        return before <= 0 or not self.text[self.text.rfind("\n", 0, before) + 1 : before].strip(" >\t")

    def _span(self, token: Any) -> tuple[int, int]:
        if token.map is None:  # display maths in brackets
            start = max(self.text.find(token.content, self.seen), self.seen)
            start = (
                self.text.rfind("\\[", self.seen, start + 1) if "\\[" in self.text[self.seen : start + 1] else start
            )
            end = self.text.find("\\]", start)
            end = start + len(token.content) if end < 0 else end + 2
            self.seen = end
            return start, end
        first, last = token.map
        start, end = self.begins[first], min(self.begins[last], len(self.text))
        piece = self.text[start:end].rstrip()
        return start + len(piece) - len(piece.lstrip("\n")), start + len(piece)

    def _raw(self, kind: str, token: Any) -> Block:
        start, end = self._span(token)
        return Block(kind, start, end, loose=self._loose(start))

    def _html(self, token: Any) -> Iterator[Block]:
        """HTML, and what stands between its tags as prose: whatever a page shows is said."""
        start, end = self._span(token)
        seen = _Seen(self.text, start, end)
        seen.html_block()
        if any(map(str.isalnum, seen.visible())):
            yield self._block("prose", seen, (start, end))
        else:
            yield Block("html", start, end, loose=self._loose(start))

    def _inline(self, token: Any, cursor: int | None) -> _Seen:
        first, last = token.map
        start = self.begins[first] if cursor is None else cursor
        seen = _Seen(self.text, start, min(self.begins[last], len(self.text)))
        for child in token.children or ():
            seen.add(child)
        return seen

    def _block(self, kind: str, seen: _Seen, lines: tuple[int, int], bold: bool = False) -> Block:
        visible, places = seen.stripped()
        if not places:
            return Block(kind, lines[0], lines[0])
        start, end = lines
        if list(places) != sorted(places):
            # What the parser shows was not told apart in the text: the text as it stands.
            first = start + len(self.text[start:end]) - len(self.text[start:end].lstrip())
            return Block(kind, start, end, self.text[first:end], tuple(range(first, end)), loose=self._loose(start))
        if kind == "heading":  # with the line below it, where that is its mark
            below = self.text[end + 1 : self.text.find("\n", end + 1) if "\n" in self.text[end + 1 :] else None]
            if below.strip() and not below.strip(" =-"):
                end += 1 + len(below.rstrip())
        return Block(
            kind,
            start,
            end,
            visible,
            places,
            (),
            tuple(seen.links),
            tuple(seen.raised),
            tuple(seen.raw),
            self._loose(start),
            bold,
        )

    def _row(self, kind: str, row: list[_Seen], line: tuple[int, int]) -> Block:
        visible, places, cells, links, raised, raw = "", [], [], [], [], []
        for seen in row:
            text, own = seen.stripped()
            if visible and own:
                visible, places = visible + "\n", [*places, places[-1]]
            at = len(visible)
            for all_of, of_cell in ((links, seen.links), (raised, seen.raised)):
                all_of += [link._replace(start=link.start + at, end=link.end + at) for link in of_cell]
            raw += [(a + at, b + at) for a, b in seen.raw]
            cells.append((at, at + len(text)))
            visible, places = visible + text, [*places, *own]
        if not places:
            return Block(kind, line[0], line[0])
        return Block(kind, *line, visible, tuple(places), tuple(cells), tuple(links), tuple(raised), tuple(raw), False)


def _is_bold(children: Sequence[Any]) -> bool:
    shown = [child.type for child in children if child.type != "text" or child.content.strip(" :：")]
    return shown[:1] == ["strong_open"] and shown[-1] == "strong_close" and shown.count("strong_open") == 1


_TAG = re.compile(r"<!--.*?(?:-->|\Z)|<\?.*?\?>|<![A-Za-z].*?>|</?[A-Za-z][^<>]*>", re.DOTALL)
_BREAK = re.compile(r"</?(?:br|p|div|li|tr|h[1-6]|td|th)\b", re.IGNORECASE)
_DELIMITERS = re.compile(r"\$\$?|\\[(\[]")
_SUP = re.compile(r"<sup\b", re.IGNORECASE)


class _Seen:
    """The visible characters of a piece of the text, found one after the other."""

    def __init__(self, text: str, start: int, end: int):
        self.text, self.limit, self.cursor = text, end, start
        self.start, self.end = end, start
        self.characters: list[str] = []
        self.places: list[int] = []
        self.links: list[Link] = []
        self.raised: list[Link] = []
        self.raw: list[tuple[int, int]] = []
        self._opened: list[tuple[int, int, str]] = []
        self._sup: tuple[int, int] | None = None

    def visible(self) -> str:
        return "".join(self.characters)

    def stripped(self) -> tuple[str, tuple[int, ...]]:
        """Visible characters without white space at the end; it never begins with any."""
        visible = self.visible()
        length = len(visible.rstrip())
        return visible[:length], tuple(self.places[:length])

    def _put(self, characters: str, place: int, step: int = 1) -> None:
        if not self.characters and not characters.strip():
            return
        self.start = min(self.start, place)
        self.characters += characters
        length = len(characters)
        self.places += range(place, place + length) if step else [place] * length
        self.end = max(self.end, self.places[-1] + 1)

    def _text(self, content: str) -> None:
        """Visible text: as it stands, or, where the parser has changed it, at the next place that holds its characters."""
        if not content:
            return
        at = self.text.find(content, self.cursor, self.limit)
        if at >= 0:
            self._put(content, at)
            self.cursor = at + len(content)
            return
        for character in content:
            at = self.text.find(character, self.cursor, self.limit)
            at = min(self.cursor, self.limit - 1) if at < 0 else at
            self._put(character, at)
            self.cursor = max(self.cursor, at + (self.text[at] == character))

    def add(self, child: Any) -> None:
        """One inline token, with those in it."""
        name = child.type
        if name == "text":
            self._text(child.content)
        elif name == "text_special":  # an escape or an entity, which is several characters of the text
            at = self.text.find(child.markup, self.cursor, self.limit)
            if at >= 0 and child.content:
                self._put(child.content, at + len(child.markup) - 1 if len(child.markup) == 2 else at, 0)
                self.cursor = at + len(child.markup)
        elif name in ("softbreak", "hardbreak"):
            at = self.text.find("\n", self.cursor, self.limit)
            if at >= 0:
                self._put("\n", at)
                self.cursor = at + 1
        elif name == "code_inline":
            self._skip_to(child.markup)
            before = len(self.characters)
            self._text(child.content)
            self.raw.append((before, len(self.characters)))
            self._skip_to(child.markup)
        elif name.startswith("math"):
            self._maths(child.content, len(child.markup) if child.markup in ("$", "$$") else 2)
        elif name == "html_inline":
            self._tag(child.content)
        elif name == "image":
            self._skip_to("![")
            self.cursor = max(self.cursor, self._closed(child))
        elif name == "link_open":
            at = self.text.find("<" if child.markup == "autolink" else "[", self.cursor, self.limit)
            self._opened.append((len(self.characters), max(at, self.cursor), child.attrGet("href") or ""))
            self.cursor = max(self.cursor, at + 1)
        elif name == "link_close":
            start, place, address = self._opened.pop()
            if child.markup == "autolink":
                self._skip_to(">")
            else:
                self._skip_to("]")
                self._skip_address()
            self.links.append(Link(start, len(self.characters), (place, self.cursor), address))
            self.end = max(self.end, self.cursor)
        elif name == "footnote_ref":
            self._mark(f"[^{child.meta.get('label', '')}]")

    def _mark(self, mark: str) -> None:
        at = self.text.find(mark, self.cursor, self.limit)
        if at >= 0:
            before = len(self.characters)
            self._put(mark, at)
            self.raised.append(Link(before, len(self.characters), (at, at + len(mark))))
            self.cursor = at + len(mark)

    def _maths(self, content: str, width: int) -> None:
        """With the marks around it, as it stands."""
        at = self.text.find(content, self.cursor, self.limit)
        if at < 0:
            return
        marks = width if width <= at and _DELIMITERS.fullmatch(self.text[at - width : at]) else 0
        before = len(self.characters)
        whole = self.text[max(at - marks, self.cursor) : min(at + len(content) + marks, self.limit)]
        self._put(whole, max(at - marks, self.cursor))
        self.raw.append((before, len(self.characters)))
        self.cursor = max(at - marks, self.cursor) + len(whole)

    def _skip_to(self, mark: str) -> None:
        at = self.text.find(mark, self.cursor, self.limit) if mark else -1
        if at >= 0:
            self.cursor = at + len(mark)

    def _closed(self, child: Any) -> int:
        at = self.text.find("]", self.cursor, self.limit)
        self.cursor = self.cursor if at < 0 else at + 1
        self._skip_address()
        return self.cursor

    def _skip_address(self) -> None:
        """Behind the bracket of a link: an address in round brackets, or a reference in square ones."""
        if self.text[self.cursor : self.cursor + 1] == "(":
            depth = 0
            for at in range(self.cursor, self.limit):
                depth += (self.text[at] == "(") - (self.text[at] == ")")
                if depth == 0:
                    self.cursor = at + 1
                    return
        elif self.text[self.cursor : self.cursor + 1] == "[":
            self._skip_to("]")

    def _tag(self, tag: str) -> None:
        at = self.text.find(tag, self.cursor, self.limit)
        if at < 0:
            return
        if _SUP.match(tag):
            self._sup = len(self.characters), at
        elif tag.lower().startswith("</sup") and self._sup is not None:
            self.raised.append(Link(self._sup[0], len(self.characters), (self._sup[1], at + len(tag))))
            self._sup = None
        elif _BREAK.match(tag):
            self._put("\n", at)
        self.cursor = at + len(tag)
        if self.characters:
            self.end = max(self.end, self.cursor)

    def html_block(self) -> None:
        """All that stands outside of tags."""
        for match in [*_TAG.finditer(self.text, self.cursor, self.limit), None]:
            stop = match.start() if match else self.limit
            self._put(self.text[self.cursor : stop], self.cursor)
            self.cursor = stop
            if match:
                self._tag(match[0])
        self.end = min(self.end, self.limit)

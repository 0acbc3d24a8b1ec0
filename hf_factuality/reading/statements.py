"""Sentences, items and rows of a text, each with what it says, whether it states anything, and the sources that it cites."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from hf_factuality.reading.citations import Mark, marks
from hf_factuality.reading.declining import is_refusal
from hf_factuality.reading.markup import Block, blocks
from hf_factuality.reading.sentences import ITEM, sentence_offsets
from hf_factuality.reading.talk import is_talk, without_preamble


@dataclass(frozen=True)
class Sentence:
    """A sentence, an item of a list or a row of a table.

    Args:
        start, end (`int`):
            Its characters in the text; citations behind its end mark are outside.
        says (`str`):
            What a judge is shown: no citations, no markup, no introduction.
        kind (`str`):
            `"statement"`, `"refusal"` (it declines, or excuses that) or `"talk"` (questions, offers, announcements).
        cites (`tuple[int, ...]`):
            Numbers of the passages that it cites, from 1.
    """

    start: int
    end: int
    says: str
    kind: str = "statement"
    cites: tuple[int, ...] = ()


@dataclass(frozen=True)
class Citation:
    """A citation: its characters, the numbers that it names, and the places of its sentences among the sentences."""

    start: int
    end: int
    numbers: tuple[int, ...] = ()
    sentences: tuple[int, ...] = ()


# Stands for each character of a citation while sentences are split: white space, that nobody writes.
_HOLE = "\x1f"
_GAP = re.compile(r"\s*\x1f[\s\x1f]*(?=[.,;:!?)\]。，；：！？）、।]|\Z)")
_HOLES = re.compile(r"[ \t]*\x1f[ \t\x1f]*")
_END_MARKS = tuple(".!?。！？।…”\"'’»」』")
# What stands before the first letter, digit, sign or opening quote: the number of an item, a box to tick, a picture.
_LEAD = re.compile(
    rf"(?:{ITEM.pattern}|\[[ xX]?\]\s+|[^\w\s\"'“‘«„「『《〈»›(（\[［【$\\+\-−–—±€£¥#@&/%‰°<>~=.¿¡§]+\s*)+"
)
# A line that was broken within its sentence: the next one goes on in lower case.
_WRAPPED = re.compile(
    r"(?<=[^\s.!?:;。！？：；।])\n(?=[ \t]*[^\W\d_A-Z])(?=[ \t]*(?-i:[a-zà-öø-ÿа-яё]))(?![ \t]*[a-z][).])"
)
_REFERENCES = re.compile(
    r"(?:references?|sources?|bibliography|works cited|citations?|further reading|see also|links?|footnotes?|notes?|"
    r"références|bibliographie|quellen(?:verzeichnis)?|literatur(?:verzeichnis)?|einzelnachweise|fuentes|referencias|bibliografía|"
    r"fonti|riferimenti|bibliografia|fontes|referências|参考文献|参考资料|资料来源|来源|出典|参考|источники|литература|ссылки|स्रोत|संदर्भ)\s*[:：]?",
    re.IGNORECASE,
)
_ENTRY = re.compile(r"\s*(?:[\[［【(]?\^?\d{1,3}[\]］】).:]|[-*•]|https?://|www\.|[¹²³⁴⁵⁶⁷⁸⁹])")
# Items that are none to Markdown: the number stays in what is visible.
_BULLET = re.compile(
    r"^[ \t]*(?:[•·▪‣◦●○■□–—][ \t]+|[(（]?(?:\d{1,2}|[a-z])[)）][ \t]+\S|[①-⑳]|(?:\d{1,2}|[一二三四五六七八九十]{1,3})、)",
    re.MULTILINE,
)
_SILENT = frozenset(("heading", "header", "code", "math", "html", "references"))


def find_blocks(text: str) -> list[Block]:
    """Blocks of a text. A list of sources is what stands below a heading of sources, or behind a footnote's mark; lines with a
    bullet or a number that Markdown does not know are items."""
    found: list[Block] = []
    listed = False
    parts = [part for one in blocks(text) for part in _parts(text, one)]
    for number, block in enumerate(parts, 1):
        if block.bold and block.kind == "prose" and number < len(parts) and block.visible[-1:] not in _END_MARKS:
            block = replace(block, kind="heading")
        title = block.visible.strip("*_ ") if block.kind in ("heading", "prose") else ""
        if block.kind == "heading" or (title and _REFERENCES.fullmatch(title)):
            listed = bool(_REFERENCES.fullmatch(title))
            found.append(replace(block, kind="references") if listed else block)
        else:
            found.append(replace(block, kind="references") if listed else block)
    return found


def _parts(text: str, block: Block) -> list[Block]:
    """A paragraph as the items and the list of sources that are in it; another block as it is."""
    if block.kind != "prose" or "\n" not in block.visible and not _BULLET.match(block.visible):
        return [block]
    cuts = [0]
    cuts += [match.start() for match in _BULLET.finditer(block.visible) if match.start()]
    lines = block.visible.split("\n")
    at = 0
    for number, line in enumerate(lines):
        rest = [one for one in lines[number + 1 :] if one.strip()] if _REFERENCES.fullmatch(line.strip("*_ ")) else []
        if rest and all(map(_ENTRY.match, rest)):
            cuts += [at, min(at + len(line) + 1, len(block.visible))]
        at += len(line) + 1
    cuts = sorted({*cuts, len(block.visible)})
    found = []
    for low, high in pairwise(cuts):
        high = low + len(block.visible[low:high].rstrip())
        if low == high:
            continue
        start, end = block.place(low, high)
        end = block.end if high == len(block.visible) else end
        start = block.start if low == 0 else start
        inside = [[it._replace(start=it.start - low, end=it.end - low) for it in its if low <= it.start and it.end <= high]
                  for its in (block.links, block.raised)]  # fmt: skip
        raw = tuple((a - low, b - low) for a, b in block.raw if low <= a and b <= high)
        kind = "item" if _BULLET.match(block.visible, low) else "prose"
        found.append(
            Block(kind, start, end, block.visible[low:high], block.places[low:high], (), *map(tuple, inside), raw,
                  block.loose and low == 0)
        )  # fmt: skip
    return found


def read_blocks(
    found: Sequence[Block], language: str | None, kinds: bool = True
) -> tuple[list[Sentence], list[Citation]]:
    """Sentences and citations of blocks, in order. Without `kinds` all are statements: of evidence nobody asks what declines."""
    sentences: list[Sentence] = []
    citations: list[Citation] = []
    header: Block | None = None
    for block in found:
        if block.kind == "header":
            header = block
        elif block.kind != "row":
            header = None
        if block.kind == "heading":
            citations += [Citation(*_whole(block, mark), mark.numbers) for mark in marks(block)]
        if block.kind in _SILENT or not block.visible:
            continue
        before = len(sentences)
        cited = marks(block)
        blank = _blank(block.visible, cited)
        if block.kind == "row":
            own = _row(block, blank, header, cited)
        else:
            own = [
                (span, blank[slice(*span)])
                for span in sentence_offsets(_WRAPPED.sub(" ", blank) if "\n" in blank else blank, language)
            ]
        places = [span for span, _ in own]
        sentences += [_sentence(block, _with_marks(span, text, blank), text, len(own), kinds) for span, text in own]
        for mark in cited:
            owners = _owners(mark, places, block.visible, before, block.loose)
            for owner in owners:
                numbers = dict.fromkeys((*sentences[owner].cites, *mark.numbers))
                sentences[owner] = replace(sentences[owner], cites=tuple(numbers))
            citations.append(Citation(*_whole(block, mark), mark.numbers, owners))
    return _apart(sentences, citations)


def _apart(sentences: list[Sentence], citations: list[Citation]) -> tuple[list[Sentence], list[Citation]]:
    """The same without overlaps: the parser may show a character at the end of one block and at the beginning of the next."""
    if all(a.end <= b.start for a, b in pairwise(sentences)):
        return sentences, citations
    kept: list[Sentence] = []
    places: dict[int, int] = {}
    for number, own in enumerate(sentences):
        start = max(own.start, kept[-1].end if kept else 0)
        if start < own.end:
            places[number] = len(kept)
            kept.append(replace(own, start=start))
    return kept, [
        replace(it, sentences=tuple(places[number] for number in it.sentences if number in places)) for it in citations
    ]


def _with_marks(span: tuple[int, int], text: str, blank: str) -> tuple[int, int]:
    """A sentence without an end mark ends behind its citations."""
    start, end = span
    if text[-1:] in _END_MARKS:
        return span
    stop = _HOLES.match(blank, end)
    return start, end + len(stop[0].rstrip(" \t")) if stop else end


def _whole(block: Block, mark: Mark) -> tuple[int, int]:
    """A mark as characters of the text; of a link with its address, of raised text with its tags."""
    start, end = block.place(mark.start, mark.end)
    for link in (*block.links, *block.raised):
        if mark.start <= link.start and link.end <= mark.end:
            start, end = min(start, link.place[0]), max(end, link.place[1])
    return start, end


def _blank(visible: str, cited: Sequence[Mark]) -> str:
    if not cited:
        return visible
    parts, at = [], 0
    for mark in cited:
        parts += [visible[at : mark.start], _HOLE * (mark.end - mark.start)]
        at = mark.end
    return "".join([*parts, visible[at:]])


def _row(block: Block, blank: str, header: Block | None, cited: Sequence[Mark]) -> list[tuple[tuple[int, int], str]]:
    names = [header.visible[a:b].strip() for a, b in header.cells] if header else []
    cells = [" ".join(blank[a:b].split()) for a, b in block.cells]
    parts = [
        f"{names[i]}: {cell}" if i < len(names) and names[i] else cell
        for i, cell in enumerate(cells)
        if any(map(str.isalnum, cell))
    ]
    if not parts:
        return []
    return [((0, len(block.visible)), "; ".join(parts))]


def _owners(mark: Mark, places: Sequence[tuple[int, int]], visible: str, before: int, loose: bool) -> tuple[int, ...]:
    """Sentences that a mark belongs to: that around it, before it on its line, or behind it; else all of the line above."""
    if not places:
        return (before - 1,) if before and not loose else ()
    line = visible.rfind("\n", 0, mark.start) + 1
    behind = bisect_right(
        places, (mark.start, len(visible))
    )  # number of the first sentence that begins behind the mark
    if behind and (mark.start < places[behind - 1][1] or line < places[behind - 1][1]):
        return (before + behind - 1,)
    if behind < len(places) and "\n" not in visible[mark.end : places[behind][0]]:
        return (before + behind,)
    above = visible.rfind("\n", 0, max(line - 1, 0)) + 1
    first = behind
    while first and places[first - 1][1] > above:
        first -= 1
    return tuple(range(before + first, before + behind))


def _sentence(block: Block, span: tuple[int, int], text: str, siblings: int, kinds: bool) -> Sentence:
    item = _LEAD.match(text) if block.kind != "row" else None
    if item and item.end() < len(text):
        span, text = (span[0] + item.end(), span[1]), text[item.end() :]
    if _HOLE in text:
        text = _GAP.sub("", text).replace(_HOLE, "")
    text = " ".join(text.split())
    start, end = block.place(*span)
    kind = "statement"
    if not kinds:
        return Sentence(start, end, text, kind)
    if is_refusal(text):
        kind = "refusal"
    elif block.kind != "row" and (is_talk(text) or (siblings > 1 and not any(map(str.isalpha, text)))):
        kind = "talk"
    return Sentence(start, end, without_preamble(text), kind)

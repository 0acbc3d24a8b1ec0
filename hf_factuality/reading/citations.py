"""Marks of an answer that name its sources: found in what is visible of a block, each with the passages that it names."""

from __future__ import annotations

import re
from typing import NamedTuple

from hf_factuality.reading.markup import Block


MOST = 10
"""Sources that a range may name: `[1-999]` cites everything, and so nothing."""


class Mark(NamedTuple):
    """A citation: its visible characters in its block, and the numbers of the passages, from 1; none for a named source."""

    start: int
    end: int
    numbers: tuple[int, ...]


_NUMBER = r"\d{1,3}"
_JOINED = rf"{_NUMBER}(?:\s*(?:[-–—,;/，、&]|and|or|und|et|y|e|和|与)\s*{_NUMBER})*"
_NOUN = (
    r"(?:documents?|docs?|passages?|sources?|refs?|references?|results?|context|chunks?|snippets?|evidence|articles?|"
    r"citations?|dokument|quelle|fuente|documento|fonte|文档|文献|来源|资料|段落|文書|資料|出典|источник|документ)"
)
_NAMED = rf"(?i:{_NOUN}\s*(?:no\.?|number|#|№)?\s*{_JOINED})"
_MANY = rf"{_NAMED}(?:\s*[,;，、&]\s*(?:{_NAMED}|{_NUMBER}))*"
_SEE = r"(?i:(?:see|cf\.?|vgl\.?|siehe|voir|ver|vedi|per|as per|from|according to|参见|见)\s*)"
# Of square brackets: numbers, or a noun of sources with a number. A word in brackets, "[sic]", is none.
_INSIDE = rf"\s*{_SEE}?(?:{_MANY}|\^?{_JOINED}|\^[\w-]{{1,40}})\s*(?:†[^\[\]【】［］\n]{{0,80}})?[\]］】]"
_BRACKETS = rf"[\[［【]{_INSIDE}"
# Begins with a set of characters, for which a search is fast, and only then tells two cases apart.
_SQUARE = re.compile(
    rf"[(（\[［【](?:(?<=[(（])\s*{_SEE}?{_BRACKETS}(?:\s*(?:and|und|et|y|e|,|;|&|和)?\s*{_BRACKETS})*\s*[)）]"
    rf"|(?<=[\[［【]){_INSIDE})"
)
# Of round ones: a noun of sources, or the word for it with a colon, or an author and a year.
_ROUND = re.compile(
    rf"[(（]\s*{_SEE}?(?:{_MANY}"
    rf"|(?i:sources?|refs?|references?|quellen?|fuentes?|fontes?|fonti|来源|出典|источник|स्रोत)\s*[:：]\s*(?:[^()（）\n]{{1,120}})"
    r"|(?:[A-Z][\w'’.-]{0,30}(?:,?\s+(?:(?:and|&|et al\.?|und|y|et|e)\s*)?)){1,4},?\s*(?:1[5-9]|20)\d\d[a-z]?)\s*[)）]",
)
_PLAIN = re.compile(r"[(（]\s*(\d{1,3})\s*[)）](?=\s*(?:[.!?。！？,;]|$|\n|[(\[]))")
_BEFORE_PLAIN = tuple(" \t\u00a0.!?。！？")
_RAISED = re.compile(r"[⁰¹²³⁴⁵⁶⁷⁸⁹](?:[⁰¹²³⁴⁵⁶⁷⁸⁹,\u202f\u00b7⁻]{0,10}[⁰¹²³⁴⁵⁶⁷⁸⁹])?")
_JOINED_ONLY, _NAMED_ONLY = re.compile(rf"[\[(]?\s*{_JOINED}\s*[\])]?"), re.compile(_NAMED)
_MARKED_UP = re.compile(r"†[^\[\]【】［］\n]{0,80}")
_DIGITS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-")
_SPAN = re.compile(r"(\d{1,3})(?:\s*[-–—]\s*(\d{1,3}))?")
# Behind these a small number in round brackets or a raised digit is part of what is said.
_COUNTED = re.compile(
    r"(?:\d|[)\]}]|\b(?:chapter|section|part|step|figure|table|equation|eq|page|item|option|question|article|act|scene|volume|no|"
    r"number|phase|stage|level|type|class|grade|kapitel|chapitre|capítulo|capitolo|第))\s*$",
    re.IGNORECASE,
)
_UNIT = re.compile(r"(?:^|[\s\d(/·])(?:[kcmdµμn]?m|ft|in|yd|mi|km|s|x|y|z|r|n|e|i|c|[A-Za-z])$|[\d)\]}π]$")
_LINKED = re.compile(
    r"\[?\s*(?:\d{1,3}|sources?|links?|here|ref(?:erence)?|quelle|lien|fuente|fonte|来源|链接|(?:https?://)?(?:[\w-]+\.)+[a-z]{2,12}(?:/\S*)?)\s*\]?",
    re.IGNORECASE,
)


_MAY_MARK = re.compile(r"[(（\[［【⁰¹²³⁴⁵⁶⁷⁸⁹]")


def marks(block: Block) -> list[Mark]:
    """Citations of a block, in order; none overlaps another."""
    text = block.visible
    found: list[Mark] = []
    if _MAY_MARK.search(text) is None and not block.links and not block.raised:
        return found
    taken = [False] * (len(text) + 1)

    def take(start: int, end: int, numbers: tuple[int, ...]) -> None:
        if start < end and not any(taken[start:end]):
            taken[start:end] = [True] * (end - start)
            found.append(Mark(start, end, numbers))

    for link in block.links:
        label = text[link.start : link.end]
        if label == link.address.removeprefix("mailto:"):  # an address that is shown as it is
            continue
        if _LINKED.fullmatch(label):
            start, end = link.start, link.end
            if text[start - 1 : start] + text[end : end + 1] in ("()", "[]", "（）"):
                start, end = start - 1, end + 1
            take(start, end, _numbers(label) if label.strip("[] ").isdecimal() else ())
    for start, end in block.raw:
        taken[start:end] = [True] * (end - start)
    for link in block.raised:
        label = text[link.start : link.end]
        if label[:2] == "[^" or _JOINED_ONLY.fullmatch(label):
            take(link.start, link.end, _numbers(label))
    if "[" in text or "［" in text or "【" in text:
        for match in _SQUARE.finditer(text):
            if _cites(match[0]) and not _indexes(_before(text, match), text[match.end() : match.end() + 1]):
                take(*match.span(), _numbers(_MARKED_UP.sub("", match[0])))
    if "(" in text or "（" in text:
        for match in _ROUND.finditer(text):
            take(*match.span(), tuple(n for one in _NAMED_ONLY.findall(match[0]) for n in _numbers(one)))
        for match in _PLAIN.finditer(text):
            before = _before(text, match)
            if before.strip() and before[-1:] in _BEFORE_PLAIN and not _COUNTED.search(before):
                take(*match.span(), _numbers(match[1]))
    for match in _RAISED.finditer(text):
        before = _before(text, match)
        if before.strip() and not before[-1].isspace() and not _UNIT.search(before[-4:]):
            take(*match.span(), _numbers(match[0].translate(_DIGITS)))
    return sorted(found)


_INDEXED = re.compile(
    r"(?:\b[A-Za-z_]\w*_\w*|\b(?!do\b|go\b|so\b|it\b|is\b|in\b|on\b|at\b|up\b|to\b|of\b|me\b|us\b|we\b|he\b|by\b|as\b|be\b|an?\b|no\b)[a-z]{1,2}|\b(?:array|arr|list|lst|data|args|argv|items|nums|values|matrix|dict))$"
)


def _before(text: str, match: re.Match[str]) -> str:
    """What stands before a mark, as far as it matters."""
    return text[max(0, match.start() - 40) : match.start()]


def _indexes(before: str, after: str) -> bool:
    """Whether brackets stand behind a name of code, as in `array[1]`, or before what is called or set."""
    return bool(_INDEXED.search(before)) and after[:1] != "[" or after[:1] == "(" and bool(before[-1:].strip())


def _cites(mark: str) -> bool:
    """Passages are numbered from 1: "[0, 1]" is an interval."""
    return not re.search(r"(?<!\d)0+(?!\d)", mark)


def _numbers(mark: str) -> tuple[int, ...]:
    """Numbers that a mark names, in order, each once."""
    numbers: dict[int, None] = {}
    for first, last in _SPAN.findall(mark):
        low, high = int(first), int(last or first)
        if high - low >= MOST or high < low:
            continue
        numbers |= dict.fromkeys(range(low, high + 1))
    return tuple(numbers)

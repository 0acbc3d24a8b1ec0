"""Sentences of a completion as character spans; the offsets are exact, so nothing is searched for or aligned later."""

from __future__ import annotations

import re
from collections.abc import Sequence

import sentencex

from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import VerifierInput


_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]+")
# White space other than " " and lone surrogates: sentencex 1.0 slices its UTF-8 text one byte after a white-space
# character and panics on a wide one, and cannot encode a surrogate. Replaced one for one, so that offsets hold.
_UNSAFE = re.compile(r"[^\S ]|[\ud800-\udfff]")
# Decoration in front of a sentence that is no part of it: Markdown emphasis, headings, quotes, table bars and bullets.
# A dash is a bullet only before white space ("-5 degrees" keeps its sign).
_LEAD = re.compile(r"(?:[\s*#>|•·▪‣◦●○■□]|[-–—+](?=\s|$))+")
# Numbers of list items. A letter counts only with a closing bracket: "A. Lincoln" is a name.
_ITEM = re.compile(
    r"(?:[(（](?:\d{1,3}|[A-Za-z]|[ivx]{1,4}|[一二三四五六七八九十]{1,3})[)）]|(?:\d{1,3}|[a-z]|[ivx]{1,4})[)）]"
    r"|\d{1,3}[.．](?=\s|$|[\u3400-\u9fff])|(?:\d{1,3}|[一二三四五六七八九十]{1,3})、|[①-⑳])\s*"
)
_TRAILING_ITEM = re.compile(r"(?<=[:：;；])\s*[(（]?\d{1,2}[.)）]\s*$")
# Longest stretch of a line that sentencex sees at once: its time grows with the square of the number of sentences (20
# minutes for a line of a million Chinese characters).
_WINDOW = 4000
# What must follow a boundary inside a window for it to count: whether a quotation is closed, or "1997.Fire" goes on, is
# seen there.
_LOOKAHEAD = 400
# Cuts after every end mark; used only if sentencex fails on a text.
_FALLBACK = re.compile(r"[^.!?。！？]*(?:[.!?。！？]+\s*|$)")


def guess_language(text: str) -> str:
    """`"zh"` if at least half of the words are CJK (two CJK characters count as a word), else `"en"`."""
    if text.isascii():
        return "en"
    characters = len(_CJK.findall(text))
    return "zh" if characters and characters >= 2 * len(_LATIN.findall(text)) else "en"


def _boundaries(line: str, language: str) -> list[tuple[int, int]]:
    """Sentences of a line; a long one is read by windows, each from the end of what the one before could be sure of."""
    found: list[tuple[int, int]] = []
    begin = start = 0  # of the sentence, and of the window; they differ in a sentence longer than a window
    while start + _WINDOW < len(line):
        space = line.rfind(" ", start + _WINDOW // 2, start + _WINDOW)
        stop = space if space >= 0 else start + _WINDOW
        pieces = _split(line[start:stop], language)
        if len(pieces) > 1:
            sure = sum(end <= stop - start - _LOOKAHEAD for _, end in pieces[:-1]) or len(pieces) - 1
            ends = [start + end for _, end in pieces[:sure]]
            starts = [begin, *(start + first for first, _ in pieces[1 : sure + 1])]
            found += zip(starts, ends, strict=False)
            begin = start = starts[-1]
        else:
            start = stop
    pieces = _split(line[start:], language) or [(0, len(line) - start)]
    return [*found, (begin, start + pieces[0][1]), *((start + first, start + end) for first, end in pieces[1:])]


def _split(line: str, language: str) -> list[tuple[int, int]]:
    try:
        found = sentencex.get_sentence_boundaries(language, _UNSAFE.sub(" ", line))
    except BaseException as error:
        # A Rust panic arrives as pyo3_runtime.PanicException, which derives from BaseException and would end a run
        # that took days. Anything else (KeyboardInterrupt, ...) is not ours.
        if type(error).__name__ != "PanicException":
            raise
        return [match.span() for match in _FALLBACK.finditer(line) if match.end() > match.start()]
    return [(sentence["start_index"], sentence["end_index"]) for sentence in found]


def _trimmed(text: str) -> int:
    """Length of `text` without white space, emphasis and table bars at its end."""
    while True:
        shorter = text.rstrip().rstrip("*|")
        if len(shorter) == len(text):
            return len(text)
        text = shorter


def sentence_offsets(text: str, language: str | None = None) -> list[tuple[int, int]]:
    """Sentences of a text as half-open character ranges.

    A line break always ends a sentence, so that headings, table rows and list items stand alone. White space, bullets
    and Markdown decoration around a sentence are left out; the number of a list item stays with its sentence. Pieces
    without any letter or digit are dropped.

    `language` is a code of `sentencex`; `None` chooses `"zh"` or `"en"` by [`guess_language`]. The ranges are sorted,
    disjoint and not empty; every letter or digit of `text` (in the sense of `str.isalnum`) is inside one of them.
    """
    language = language or guess_language(text)
    result: list[tuple[int, int]] = []
    line_start = 0
    for line in text.splitlines(keepends=True):
        held = None  # start of a list number that waits for its sentence: sentencex ends a sentence after "1."
        pieces = [] if line.isspace() else _boundaries(line, language)
        for start, end in pieces:
            lead = _LEAD.match(line, start, end)
            start = lead.end() if lead else start
            end = start + _trimmed(line[start:end])
            if start == end:
                continue
            piece = line[start:end]
            item = _ITEM.match(piece)
            if item and item.end() == len(piece):
                held = start if held is None else held
                continue
            trailing = _TRAILING_ITEM.search(piece)
            if held is None and not any(map(str.isalnum, piece)):
                continue
            first, held = (start if held is None else held), None
            if trailing and any(map(str.isalnum, piece[: trailing.start()])):
                end = start + trailing.start()
                number = trailing.group()
                held = end + len(number) - len(number.lstrip())
            result.append((line_start + first, line_start + end))
        if held is not None:
            result.append((line_start + held, line_start + _trimmed(line)))
        line_start += len(line)
    return result


class SentenceExtractor:
    """Extractor that returns the sentences of the completion; no model, no download.

    Implements [`~hf_factuality.verifiers.base.Extractor`]. A sentence is one claim here, however many facts it states;
    an atomic-claim extractor (an LLM) is finer and slower.

    Args:
        language (`str`, *optional*):
            Language code of `sentencex`. `None` decides per completion: `"zh"` where Chinese characters dominate, else
            `"en"`.

    Example:

        >>> spans = SentenceExtractor().extract([VerifierInput("He was born in Ulm. He died in Princeton.")])[0]
        >>> [(span.start, span.end) for span in spans]
        [(0, 19), (20, 41)]
    """

    def __init__(self, language: str | None = None):
        self.language = language

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, its sentences in order, without labels.

        `claim` is set where the sentence starts with the number of a list item: that number is no part of what is
        said. See [`sentence_offsets`] for what the spans cover.
        """
        results = []
        for item in inputs:
            text = item.completion
            spans = []
            for start, end in sentence_offsets(text, self.language):
                number = _ITEM.match(text, start, end)
                claim = text[number.end() : end] if number and number.end() < end else None
                spans.append(LabeledSpan(start, end, claim=claim))
            results.append(spans)
        return results

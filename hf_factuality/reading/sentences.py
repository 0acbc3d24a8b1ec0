"""Sentences of a text as character ranges; the offsets are exact, so nothing is searched for or aligned later."""

from __future__ import annotations

import re

import sentencex

from hf_factuality.reading.words import ascii_words


_CJK = re.compile(r"[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_LATIN = re.compile(r"[A-Za-z\u00c0-\u024f]+")
# White space other than " " and lone surrogates: sentencex 1.0 slices its UTF-8 text one byte after a white-space
# character and panics on a wide one, and cannot encode a surrogate. Replaced one for one, so that offsets hold.
# Between "<" and ">" it sees no end of a sentence.
# One set of characters, and not "white space, but not the space": that is seven times as fast.
_UNSAFE = re.compile(r"[\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ud800-\udfff<>]")
# Decoration in front of a sentence that is no part of it: Markdown emphasis, headings, quotes, table bars and bullets.
# A dash is a bullet only before white space ("-5 degrees" keeps its sign).
_LEAD = re.compile(r"(?:[\s*#>|•·▪‣◦●○■□]|[-–—+](?=\s|$))+")
# Numbers of list items. A letter counts only with a closing bracket: "A. Lincoln" is a name.
ITEM = re.compile(
    r"(?:[(（](?:\d{1,3}|[A-Za-z]|[ivx]{1,4}|[一二三四五六七八九十]{1,3})[)）]|(?:\d{1,3}|[a-z]|[ivx]{1,4})[)）]"
    r"|\d{1,3}[.．](?=\s|$|[\u3400-\u9fff])|(?:\d{1,3}|[一二三四五六七八九十]{1,3})、|[①-⑳])\s*"
)
_TRAILING_ITEM = re.compile(r"(?<=\D[:：;；])\s*[(（]?(\d{1,2})[.)）]\s*$")
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


_SCRIPTS = (
    ("ja", re.compile(r"[\u3040-\u30ff]")),
    ("hi", re.compile(r"[\u0900-\u097f]")),
    ("ru", re.compile(r"[\u0400-\u04ff]")),
)
_NOT_LATIN = re.compile(rf"[{_CJK.pattern[1:-1]}{''.join(script.pattern[1:-1] for _, script in _SCRIPTS)}]")
_WORDS = {
    "de": "der die das und ist nicht ein eine von mit den dem des im zu am wurde auf für sich als auch nach bei er sie es",
    "fr": "le la les des est une du et dans pour pas qui sur au aux par plus elle il ce cette sont été avec en",
    "es": "el la los las es una del y en que por con para no se su al fue más como son lo está",
    "it": "il lo la gli è una del della di e in che per con non si da sono nel dal al ha più come",
    "pt": "o os as é uma do da dos das e em que por com para não se no na foi mais como são ao um",
    "en": "the of and is in to a was by for on with as it that from at an are be were his her its",
}
_VOTES: dict[str, list[str]] = {}
for _code, _list in _WORDS.items():
    for _word in _list.split():
        _VOTES.setdefault(_word, []).append(_code)
_ENGLISH = frozenset(word for word, codes in _VOTES.items() if "en" in codes)
_NOT_ENGLISH = frozenset(word for word, codes in _VOTES.items() if codes != ["en"])
_WORD = re.compile(r"[^\W\d_]+")


def segmentation_language(text: str) -> str:
    """Code of the language whose abbreviations and end marks `sentencex` is to know: by script, or by the commonest words."""
    if not text.isascii() and _NOT_LATIN.search(text):
        if (language := guess_language(text)) == "zh":
            return "ja" if _SCRIPTS[0][1].search(text) else language
        for code, script in _SCRIPTS:
            if len(script.findall(text[:400])) * 3 > len(text[:400].split()):
                return code
    # Each word counts once: "ET" in ten dates is no French.
    head = text[:600]
    words = set(ascii_words(head) if head.isascii() else _WORD.findall(head.lower()))
    # No language gets more votes than there are words that are not English alone.
    if len(words & _NOT_ENGLISH) <= len(words & _ENGLISH) * 1.2:
        return "en"
    votes = dict.fromkeys(_WORDS, 0)
    for word in _VOTES.keys() & words:
        for code in _VOTES[word]:
            votes[code] += 1
    best = max(votes, key=lambda code: votes[code])
    return best if votes[best] > 1 and votes[best] > votes["en"] * 1.2 else "en"


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
    return _mended(line, [(sentence["start_index"], sentence["end_index"]) for sentence in found])


# Ends of pieces that end no sentence, where the next one begins with a number or in lower case.
_ABBREVIATED = re.compile(
    r"(?:\b(?:approx|ca|no|nr|vs|fig|vol|pp?|ch|sec|eq|est|max|min|avg|dott|sig|prof|ing|av|art|tel|abs|bzw|d\.? ?h|z\.? ?b|u\.? ?a|usw|"
    r"jh|г|гг|в|вв|им|ул|д|т\. ?е)|(?<![\w.])\d{1,2}|\b[IVX]{1,5}|(?<!\w)[A-ZА-ЯЁ])\.\s*$",
    re.IGNORECASE,
)
_GOES_ON = re.compile(r"\s*(?:\d|[a-zà-öø-ÿа-яё])")
_ORDINAL = re.compile(r"\b(?:im|am|der|des|dem|den|die|das|vom|zum|bis|ab|seit|und|ins?)\s+\d{1,2}\.\s*$")
# Ends of sentences that it misses: a unit or "etc." before a capital letter, which it takes for an initial, and a full stop of
# Chinese and Japanese before a number.
_UNIT_ENDS = re.compile(
    r"[.。！？](?:(?<=[。！？])(?=\d)|(?:(?<=\d[mKgshlt]\.)|(?<=\d\s[mKgshlt]\.)|(?<=/[hs]\.)|(?<=°[CF]\.)|(?<=\betc\.))"
    r"[)\x1f\s]+(?=[\"“«(]?[A-ZÀ-ÞА-Я]))"
)


def _mended(line: str, pieces: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in pieces:
        last = max(joined[-1][0], start - 16) if joined else 0
        before = line[last:start].rstrip() if joined else ""
        # Only behind a full stop, as both patterns say: a look that spares nearly all searches.
        if before.endswith(".") and (
            _GOES_ON.match(line, start)
            and _ABBREVIATED.search(line, last, start)
            or before[-2:-1].isdecimal()
            and _ORDINAL.search(line, last, start)
        ):
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((start, end))
    if _UNIT_ENDS.search(line) is None:
        return joined
    found = []
    for start, end in joined:
        first = start
        for match in _UNIT_ENDS.finditer(line[first:end]):
            found.append((start, first + match.end()))
            start = first + match.end()
        found.append((start, end))
    return found


def _trimmed(text: str) -> int:
    """Length of `text` without white space, emphasis and table bars at its end."""
    while True:
        shorter = text.rstrip().rstrip("*|")
        if len(shorter) == len(text):
            return len(text)
        text = shorter


_SECOND_ITEM = re.compile(r"(?:[.;!?]\s+|[。；！？]\s*)[(（]?2[.)）]\s*\w")


_SAID = re.compile(r"[^\W_]")


def sentence_offsets(text: str, language: str | None = None) -> list[tuple[int, int]]:
    """Sentences of a text as half-open character ranges.

    A line break always ends a sentence, so that headings, table rows and list items stand alone. White space, bullets
    and Markdown decoration around a sentence are left out; the number of a list item stays with its sentence. Pieces
    without any letter or digit are dropped.

    `language` is a code of `sentencex`; `None` chooses `"zh"` or `"en"` by [`guess_language`]. The ranges are sorted,
    disjoint and not empty; every letter or digit of `text` (in the sense of `str.isalnum`) is inside one of them.
    """
    language = language or segmentation_language(text)
    result: list[tuple[int, int]] = []
    line_start = 0
    for line in text.splitlines(keepends=True):
        held = None  # start of a list number that waits for its sentence: sentencex ends a sentence after "1."
        counted = 0  # the last number of the line's list
        second: int | None = (
            None  # where its last "2." stands, once that is asked: a look at each piece would be quadratic
        )
        pieces = [] if line.isspace() else _boundaries(line, language)
        for start, end in pieces:
            lead = _LEAD.match(line, start, end)
            start = lead.end() if lead else start
            end = start + _trimmed(line[start:end])
            if start == end:
                continue
            piece = line[start:end]
            item = ITEM.match(piece)
            if item and (number := item[0].strip(" .)(")).isdecimal():
                counted = int(number)
            if item and item.end() == len(piece):
                held = start if held is None else held
                continue
            ends_in_number = piece[-1] in ".)" and piece[-2:-1].isdecimal()
            trailing = _TRAILING_ITEM.search(piece) if ends_in_number else None
            if held is None and not any(map(str.isalnum, piece)):
                continue
            first, held = (start if held is None else held), None
            # "Reasons: 1. One. 2. Two.", and not "Answer: 42." or "Seats: 1."
            begins_item = trailing is not None and int(trailing[1]) == counted + 1
            if begins_item and counted == 0:
                if second is None:
                    second = max((match.start() for match in _SECOND_ITEM.finditer(line)), default=-1)
                begins_item = second >= end
            elif begins_item:
                begins_item = _SAID.search(line, end) is not None
            if trailing and begins_item and any(map(str.isalnum, piece[: trailing.start()])):
                end = start + trailing.start()
                number = trailing.group()
                held = end + len(number) - len(number.lstrip())
                counted = int(trailing[1])
            result.append((line_start + first, line_start + end))
        if held is not None:
            result.append((line_start + held, line_start + _trimmed(line)))
        line_start += len(line)
    return result

"""A page of a knowledge base, and what spellings of a title have in common."""

from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import dataclass
from itertools import chain


_SURROGATE = re.compile(r"[\ud800-\udfff]")
_QUALIFIER = re.compile(r"\s*\([^()]*\)$")
_MARKS = str.maketrans("_‘’ʼ“”‐‑‒–—", " '''\"\"-----")


@dataclass(frozen=True)
class Page:
    """A document of a knowledge base.

    Args:
        id (`int`):
            Its number in the base.
        title (`str`):
            Title as the base spells it.
        text (`str`):
            Its text; offsets of passages count its characters.
        chunks (`tuple[tuple[int, int], ...]`, *optional*):
            Half-open ranges of `text` that FActScore stores as one passage each. Empty in any other base.
        match (`str`, *optional*, defaults to `"exact"`):
            The step of `LOOKUPS` that found it.
    """

    id: int
    title: str
    text: str
    chunks: tuple[tuple[int, int], ...] = ()
    match: str = "exact"


def title_key(title: str) -> str:
    """What two spellings of a title share: NFKC, case folded, HTML entities, underscores, quotes and dashes made one."""
    text = unicodedata.normalize("NFKC", html.unescape(title)).translate(_MARKS)
    return " ".join(unicodedata.normalize("NFKC", text.casefold()).split())


def encodable(text: str) -> str:
    """`text` with U+FFFD for lone surrogates, which UTF-8 cannot hold."""
    return _SURROGATE.sub("\ufffd", text)


def bare_name(key: str) -> str:
    """A title key without the qualifier in parentheses at its end."""
    return without_qualifier(key) or key


def without_qualifier(title: str) -> str:
    """A title up to the qualifier in parentheses at its end, if there is one."""
    return _QUALIFIER.sub("", title)


def wiki_form(title: str) -> str:
    """What Wikipedia itself takes for the same title: underscores and the case of the first letter."""
    text = " ".join(unicodedata.normalize("NFC", html.unescape(title)).replace("_", " ").split())
    return text[:1].upper() + text[1:]


def spellings_of(title: str) -> list[str]:
    """Spellings under which a file without an index of keys may hold a title; the given one first."""
    plain = " ".join(html.unescape(title).replace("_", " ").split())
    words = plain.split()
    cases = [plain, plain[:1].upper() + plain[1:], plain.capitalize(), plain.lower()]
    cases += [" ".join(word[:1].upper() + word[1:] for word in words), " ".join(map(str.capitalize, words))]
    marks = [(text, text.translate(_MARKS), text.replace("-", "–"), text.replace("'", "’")) for text in cases]
    forms = [(text, unicodedata.normalize("NFC", text), unicodedata.normalize("NFKC", text)) for text in chain(*marks)]
    found = dict.fromkeys([title])
    for text in chain(*forms):
        escaped = html.escape(text)
        found |= dict.fromkeys([text, html.escape(text, quote=False), escaped.replace("&#x27;", "'"), escaped])
        found |= dict.fromkeys([text.replace(" ", "_")])
    return [spelling for spelling in found if spelling]

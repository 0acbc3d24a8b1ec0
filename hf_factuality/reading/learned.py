"""A logistic model of whether an answer declines, in ten languages: what the words of `cues.py` miss.

Its features are hashed n-grams of characters and words, and the order of word classes ("speaker not know"), which all languages
share: `declining_words.txt` lists the words of each class. `benchmarks/train_declining.py` makes the weights in
`declining.safetensors`, which are whole numbers of eight bits.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import numpy as np
from safetensors.numpy import load_file


FOLDER = Path(__file__).resolve().parent
WEIGHTS = FOLDER / "declining.safetensors"
LONGEST = 400
"""Characters of the longest text that is judged; of Chinese and Japanese, a third of them."""
NGRAM_BITS, CLASS_BITS = 17, 16

_LATIN = ("en", "fr", "de", "es", "it", "pt")
_UNSPACED = ("zh", "ja")
# The commonest words, by which a language of Latin script is told.
_COMMONEST = {
    "en": "the of and to in a is was it for on with by from at be this",
    "fr": "le la les des du de un une et à dans pour par sur avec au aux est l d qu que il en",
    "de": "der die das und in den von zu dem mit ein eine auf für im des ist am aus bei zum zur ich es",
    "es": "el la los las de del y en un una por con para que se al es su lo",
    "it": "il lo la i gli le di del della e in un una per con che si al è dei nel da dal l dell",
    "pt": "o a os as de do da e em um uma por com para que se ao no na é dos das pelo",
}
_TOKENS = re.compile(
    r"[\u0900-\u0963\u0966-\u097f]+|[^\W\d_]+(?:'[^\W\d_]+)?'?|\d+|[?!:;.…\"«»“”„□「」『』？！。：；।]"
)
_MARKS = {
    "?": "?",
    "？": "?",
    "!": "!",
    "！": "!",
    ":": ":",
    "：": ":",
    ".": ".",
    "。": ".",
    "।": ".",
    ";": ";",
    "；": ";",
    "…": "…",
}
_OTHER, _NUMBER, _QUOTED, _NAME = "other", "number", "quoted", "name"
# Classes that say nothing by themselves: without another one there is nothing to judge.
_EMPTY = (_OTHER, _NUMBER, _QUOTED, _NAME, "be", *dict.fromkeys(_MARKS.values()))
_KANA, _HAN = re.compile(r"[\u3041-\u30fa]"), re.compile(r"[\u3400-\u9fff]")
_HINDI, _CYRILLIC = re.compile(r"[\u0900-\u097f]"), re.compile(r"[а-я]")

_BASE, _MIX = 0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93
_WRAP = (1 << 64) - 1


def _powers(base: int) -> np.ndarray:
    found = [1]
    for _ in range(LONGEST + 8):
        found.append(found[-1] * base & _WRAP)
    return np.array(found, dtype=np.uint64)


# Hash of characters i to j: (sums[j] - sums[i]) / base^i, all modulo 2^64.
_POWERS, _INVERSES = _powers(_BASE), _powers(pow(_BASE, -1, 1 << 64))
_SALTS = np.array([(number * _MIX + 0x2545F4914F6CDD1D) & _WRAP for number in range(16)], dtype=np.uint64)
_MIXER, _SHIFT = np.uint64(_MIX), np.uint64(64 - NGRAM_BITS)


class _Classes(NamedTuple):
    """Numbers of word classes: by name, by language and word, by language and beginning of a word; patterns without spaces."""

    number: dict[str, int]
    exact: dict[str, dict[str, tuple[int, ...]]]
    begins: dict[str, dict[str, tuple[int, ...]]]
    patterns: dict[str, re.Pattern[str]]
    empty: frozenset[int]


@lru_cache(maxsize=1)
def _classes() -> _Classes:
    number = {name: at for at, name in enumerate((_OTHER, _NUMBER, _QUOTED, _NAME, *dict.fromkeys(_MARKS.values())))}
    exact: dict[str, dict[str, tuple[int, ...]]] = {}
    begins: dict[str, dict[str, tuple[int, ...]]] = {}
    name = ""
    for line in (FOLDER / "declining_words.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            name = line.strip("[]")
            number[name] = len(number)
            continue
        language, words = line.split(": ", 1)
        for word in words.replace("ё", "е").split():
            table = (begins if word.endswith("*") else exact).setdefault(language, {})
            word = word.rstrip("*").replace("\u093c", "").replace("\u0901", "\u0902")
            if number[name] not in table.get(word, ()):
                table[word] = (*table.get(word, ()), number[name])
    patterns = {
        one: re.compile(
            "|".join(re.escape(word) for word in sorted(exact[one], key=len, reverse=True))
            + r"|\d+|[?!:;.…\"“”□「」『』？！。：；]"
        )
        for one in _UNSPACED
    }
    return _Classes(number, exact, begins, patterns, frozenset(number[one] for one in _EMPTY))


@lru_cache(maxsize=20_000)
def _looked_up(language: str, word: str) -> tuple[int, ...]:
    """Classes of a word."""
    classes = _classes()
    found = dict.fromkeys(classes.exact[language].get(word, ()))
    begins = classes.begins.get(language, {})
    for size in range(2, min(len(word), 14) + 1):
        if more := begins.get(word[:size]):
            found.update(dict.fromkeys(more))
    if not found and "'" in word:
        head, _, rest = word.partition("'")
        for part in (f"{head}'", rest):
            if part and part != word:
                found.update(dict.fromkeys(_looked_up(language, part)))
    if language == "en" and word.endswith("n't"):
        found.setdefault(classes.number["not"])
    return tuple(found)


@lru_cache(maxsize=20_000)
def _votes(word: str) -> tuple[float, ...]:
    """How much a word speaks for each language of Latin script."""
    return tuple((word in _COMMONEST[one].split()) + 0.7 * bool(_looked_up(one, word)) for one in _LATIN)


def _language(text: str, words: Sequence[str]) -> str:
    if not text.isascii():
        if _KANA.search(text):
            return "ja"
        if _HAN.search(text):
            return "zh"
        if _HINDI.search(text):
            return "hi"
        if _CYRILLIC.search(text):
            return "ru"
    votes = [sum(each) for each in zip(*map(_votes, words), strict=True)] if words else [1.0]
    return _LATIN[max(range(len(votes)), key=votes.__getitem__)]


def word_classes(text: str) -> tuple[list[str], list[tuple[int, ...]]]:
    """Words of a text in lower case, and their classes, in order; of Chinese and Japanese, of the words that are listed."""
    classes = _classes()
    number = classes.number
    written = _TOKENS.findall(text)
    tokens = [token.lower() for token in written]
    text = text.lower()
    language = _language(text, [word for word in tokens if word[0].isalpha()])
    other = (number[_OTHER],)
    if language not in _UNSPACED:
        name = (number[_NAME],)
        found = [_of_mark(token, number) or _looked_up(language, token) or other for token in tokens]
        # Capitals inside a sentence; all nouns of German have one.
        if language != "de":
            for at in range(1, len(found)):
                if written[at][0].isupper() and tokens[at - 1] not in _MARKS and written[at] != "I":
                    found[at] = name if found[at] == other else (*name, *found[at])
        return tokens, found
    found, at = [], 0
    for match in classes.patterns[language].finditer(text):
        if text[at : match.start()].strip():
            found.append(other)
        at = match.end()
        token = match[0]
        found.append(_of_mark(token, number) or classes.exact[language].get(token, other))
    if text[at:].strip():
        found.append(other)
    return tokens, found


def _of_mark(token: str, number: dict[str, int]) -> tuple[int, ...]:
    if token in _MARKS:
        return (number[_MARKS[token]],)
    if token[0].isdigit():
        return (number[_NUMBER],)
    return (number[_QUOTED],) if token in '"«»“”„□「」『』' else ()


def class_features(found: Sequence[tuple[int, ...]]) -> list[int]:
    """Rows of the table of classes: each class, pairs and triples in order, the first and the last, and how many words."""
    known = [(at, one) for at, those in enumerate(found) for one in those if one]
    codes = {1 << 24 | one for _, one in known}
    for number, (at, one) in enumerate(known):
        for then, other in known[number + 1 : number + 16]:
            if then - at > 6:
                break
            if then > at:
                codes.add(2 << 24 | one << 6 | other)
                if then - at < 3:
                    codes.add(3 << 24 | one << 6 | other)
    places = [(at, those) for at, those in enumerate(found) if those[0]]
    for (at, first), (_, second), (end, third) in zip(places, places[1:], places[2:], strict=False):
        if end - at < 9:
            codes.update(4 << 24 | a << 12 | b << 6 | c for a in first for b in second for c in third)
    if places:
        codes.update(5 << 24 | one << 2 | min(places[0][0], 2) for one in places[0][1])
        codes.update(6 << 24 | one for one in places[-1][1])
    size = len(found) if len(found) < 9 else 8 + min(len(found) // 4, 12)
    codes.add(7 << 24 | size)
    codes.add(8 << 24 | 8 * len(places) // max(len(found), 1))
    return [(code * _MIX & _WRAP) >> (64 - CLASS_BITS) for code in sorted(codes)]


def character_features(text: str) -> np.ndarray:
    """Rows of the table of n-grams: of one to five characters of a text in lower case."""
    characters = np.frombuffer(f" {text} ".encode("utf-32-le", "replace"), dtype=np.uint32)
    size = len(characters)
    sums = np.zeros(size + 1, dtype=np.uint64)
    np.cumsum(characters * _POWERS[:size], out=sums[1:])
    grams = [(sums[n:] - sums[:-n]) * _INVERSES[: size + 1 - n] + _SALTS[n] for n in range(1, min(5, size) + 1)]
    hashed = np.concatenate(grams)
    hashed *= _MIXER
    hashed >>= _SHIFT
    return hashed.view(np.int64)


def word_features(words: Sequence[str]) -> list[int]:
    """Rows of the table of n-grams: of one to three words."""
    found = []
    for n in range(1, 4):
        for at in range(len(words) - n + 1):
            found.append(
                (crc32(" ".join(words[at : at + n]).encode("utf-8", "replace")) * _MIX & _WRAP) >> (64 - NGRAM_BITS)
            )
    return found


class Features(NamedTuple):
    """Rows of the tables that a text has, and what the rules say of it."""

    characters: np.ndarray
    words: list[int]
    classes: list[int]
    rules: tuple[float, ...]


def features(text: str, rules: tuple[float, ...]) -> Features | None:
    """Features of a text, or `None` if it is too long or no word of it can tell whether it declines."""
    if len(text) > LONGEST // 3 and (len(text) > LONGEST or _KANA.search(text) or _HAN.search(text)):
        return None
    tokens, found = word_classes(text)
    # One or two words are a name or a number ("well known"), or the rules know them; a token without spaces may be a sentence.
    alone = sum(token[0].isalpha() for token in tokens) < 3 and not (_HAN.search(text) or _KANA.search(text))
    if alone or len(found) < 2 or _classes().empty.issuperset(one for those in found for one in those):
        return None
    return Features(character_features(text.lower()), word_features(tokens), class_features(found), rules)


@lru_cache(maxsize=1)
def _weights() -> tuple[np.ndarray, array[int], array[int], tuple[float, ...]]:
    held = load_file(WEIGHTS)
    # Arrays are faster where few rows are read, one by one.
    ngrams, classes = (array("b", held[name].tobytes()) for name in ("ngrams", "classes"))
    return held["ngrams"].astype(np.int32), ngrams, classes, tuple(held["dense"].tolist())


def log_odds(text: str, rules: tuple[float, ...]) -> float | None:
    """Log-odds that a text declines, less those of the threshold; `None` if it is too long or no word of it can tell.

    Args:
        text (`str`):
            The answer, without markup.
        rules (`tuple[float, ...]`):
            What the rules say of it, as in training.
    """
    found = features(text, rules)
    if found is None:
        return None
    of_ngrams, ngrams, classes, (intercept, of_characters, of_words, of_classes, *of_rules) = _weights()
    total = intercept + sum(value * weight for value, weight in zip(rules, of_rules, strict=True))
    # The root keeps long texts from outweighing short ones.
    total += of_characters * int(of_ngrams[found.characters].sum()) / len(found.characters) ** 0.5
    total += of_words * sum(map(ngrams.__getitem__, found.words)) / len(found.words) ** 0.5
    return total + of_classes * sum(map(classes.__getitem__, found.classes)) / len(found.classes) ** 0.5

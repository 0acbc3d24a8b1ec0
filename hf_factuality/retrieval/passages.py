"""Passages of a page, and BM25 over them.

FActScore cuts pages every 256 tokens, RLFH after the sentence that passes 64 words; both are settings of the same cut,
and every passage knows its characters.
"""

from __future__ import annotations

import html
import logging
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hf_factuality.errors import RetrievalError
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.reading.words import FUNCTION_WORDS
from hf_factuality.retrieval.pages import Page


# FActScore's mark between its chunks (factscore/retrieval.py).
SEPARATOR = "####SPECIAL####SEPARATOR####"
_TAG = re.compile(r"(</?s>)")
# Raised when `terms` changes: an index holds the terms of its time.
TERMS_VERSION = 1
# bm25s' variants whose score of a passage without any term of the query is 0.
METHODS = ("lucene", "robertson", "atire")
_HAN = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_TERM = re.compile(rf"[{_HAN}]+|\d+(?:[.,]\d+)*|[^\W\d_{_HAN}]+(?:['’][^\W\d_{_HAN}]+)*")
_WORD = re.compile(rf"[{_HAN}]{{1,2}}|[^\W{_HAN}]+(?:[-'’.,][^\W{_HAN}]+)*")
_MARK = re.compile(r"(?<!\w)[^\w\s]|[^\w\s](?!\w)")  # not the hyphen of a word
_IS_HAN = re.compile(f"[{_HAN}]")


@dataclass(frozen=True)
class Passage:
    """Part of a page: `text` is characters `start` to `end` (exclusive) of the page's text; `score` is its relevance."""

    title: str
    start: int
    end: int
    text: str
    score: float | None = None


@dataclass(frozen=True)
class PassageConfig:
    """How pages are cut into passages.

    Args:
        style (`str`, *optional*, defaults to `"windows"`):
            - `"windows"`: whole sentences, at most `size` words together; a longer sentence is cut.
            - `"sections"`: whole sentences until there are more than `size` words, punctuation marks counted (RLFH).
            - `"chunks"`: every `size` tokens, wherever that is (FActScore). The chunks that FActScore's file stores are
              taken as they are; other pages need `tokenizer`.
        size (`int`, *optional*, defaults to `100`):
            Words (two Chinese characters are one) or, for chunks, tokens.
        overlap (`int`, *optional*, defaults to `0`):
            Sentences that a window shares with the one before.
        tokenizer (`str`, *optional*):
            Name or folder of a fast tokenizer, for chunks. Its special tokens around each line count, as in FActScore.

    Raises:
        `ValueError`: an unknown style, or a number out of range.
    """

    style: str = "windows"
    size: int = 100
    overlap: int = 0
    tokenizer: str | None = None

    def __post_init__(self):
        if self.style not in ("windows", "sections", "chunks"):
            raise ValueError(f"style must be 'windows', 'sections' or 'chunks', got {self.style!r}")
        if self.size < 1 or self.overlap < 0:
            raise ValueError(f"size must be at least 1 and overlap at least 0, got {self.size!r}, {self.overlap!r}")


FACTSCORE_PASSAGES = PassageConfig("chunks", 256, tokenizer="roberta-large")
RLFH_PASSAGES = PassageConfig("sections", 64)


def stored_text(raw: str) -> tuple[str, tuple[tuple[int, int], ...]]:
    """Text of a page as FActScore's file stores it, and its chunks as ranges of the text.

    The file has chunks of 256 RoBERTa tokens, cut anywhere, and `<s>` and `</s>` around each unit of the page, which become
    lines here. HTML entities are resolved. Text without these marks is returned as it is, without chunks.
    """
    if SEPARATOR not in raw and "<s>" not in raw:
        return raw, ()
    tagged = "<s>" in raw  # else each chunk is a unit of its own
    parts: list[str] = []
    length, starts = 0, []
    for chunk in raw.split(SEPARATOR):
        starts.append(length)
        for piece in _TAG.split(chunk) if tagged else ("<s>", chunk):
            if piece == "<s>":
                piece = "\n" if length else ""
            elif piece == "</s>":
                continue
            piece = html.unescape(piece if parts[-1:] != ["\n"] else piece.lstrip())
            parts.append(piece)
            length += len(piece)
    text = "".join(parts)
    chunks = []
    for start, end in zip(starts, [*starts[1:], length], strict=True):
        chunk = text[start:end]
        if chunk.strip():
            chunks.append((start + len(chunk) - len(chunk.lstrip()), start + len(chunk.rstrip())))
    return text, tuple(chunks)


def split_passages(page: Page, config: PassageConfig = PassageConfig()) -> list[Passage]:  # noqa: B008 - frozen
    """Passages of a page in order, with exact offsets; none for a page without letters or digits. `RetrievalError`: chunks are
    asked for, the page stores none, and there is no fast tokenizer to cut them."""
    if config.style == "chunks":
        stored = page.chunks and config.size == FACTSCORE_PASSAGES.size
        ranges: Iterable[tuple[int, int]] = page.chunks if stored else _token_ranges(page.text, config)
    else:
        ranges = _sentence_ranges(page.text, config)
    return [Passage(page.title, start, end, page.text[start:end]) for start, end in ranges]


def _sentence_ranges(text: str, config: PassageConfig) -> Iterator[tuple[int, int]]:
    windows, size = config.style == "windows", config.size
    units: list[tuple[int, int, int]] = []  # start, end, words
    for start, end in sentence_offsets(text):  # of plain pages, every line of which is to be found: no markup is read
        words = [match.span() for match in _WORD.finditer(text, start, end)]
        if not windows:
            units.append((start, end, len(words) + sum(1 for _ in _MARK.finditer(text, start, end))))
            continue
        for first in range(0, max(len(words), 1), size):
            left = words[first][0] if first else start
            right = words[first + size - 1][1] if first + size < len(words) else end
            units.append((left, right, len(words[first : first + size])))
    first = 0
    while first < len(units):
        last, total = first + 1, units[first][2]
        while last < len(units) and (total + units[last][2] <= size if windows else total <= size):
            total += units[last][2]
            last += 1
        yield units[first][0], units[last - 1][1]
        if last == len(units):
            break
        first = max(first + 1, last - config.overlap) if windows else last


@lru_cache(maxsize=4)
def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(name)
    if not tokenizer.is_fast:
        raise RetrievalError(f"the tokenizer {name!r} gives no offsets; chunks need a fast one")
    return tokenizer


def _token_ranges(text: str, config: PassageConfig) -> Iterator[tuple[int, int]]:
    if config.tokenizer is None:
        raise RetrievalError('chunks of tokens need PassageConfig(tokenizer="..."); FActScore used roberta-large')
    tokenizer, tokens, start = _tokenizer(config.tokenizer), [], 0
    for line in text.splitlines(keepends=True):
        if line.strip():
            offsets = tokenizer(line.rstrip(), return_offsets_mapping=True, verbose=False)["offset_mapping"]
            tokens += [(start + left, start + right) for left, right in offsets]
        start += len(line)
    end = 0
    for first in range(0, len(tokens), config.size):
        kept = [(left, right) for left, right in tokens[first : first + config.size] if right > max(left, end)]
        if kept:
            left, right = max(end, kept[0][0]), kept[-1][1]
            left += len(text[left:right]) - len(text[left:right].lstrip())
            end = right
            if left < right:
                yield left, right


def terms(text: str) -> list[str]:
    """Words as BM25 counts them: NFKC, lower case, without function words, possessive and plural s; Chinese in pairs."""
    found = []
    for word in _TERM.findall(unicodedata.normalize("NFKC", text).casefold()):
        if _IS_HAN.match(word):
            found += [word[i : i + 2] for i in range(max(len(word) - 1, 1))]
            continue
        word = word.replace("’", "'").removesuffix("'s").replace(",", "")
        if word not in FUNCTION_WORDS:
            found.append(_singular(word))
    return found


def _singular(word: str) -> str:
    """Harman's S stemmer (1991)."""
    if len(word) > 4 and word.endswith("ies") and word[-4] not in "ae":
        return word[:-3] + "y"
    if len(word) > 3 and word.endswith("es") and word[-3] not in "aeo":
        return word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("s") and word[-2] not in "us" else word


def bm25_index(documents: Iterable[list[str]], k1: float = 1.5, b: float = 0.75, method: str = "lucene") -> Any:
    """Index of `bm25s` over documents given as lists of [`terms`], the same on every run; `None` if no document has a term.

    The score of a document is the sum over the terms t of the query, repeated terms repeated, of `idf(t) * tf / (tf + k1 * (1
    - b + b * length / mean length))`, for `"lucene"` with `idf(t) = ln(1 + (N - n(t) + 0.5) / (n(t) + 0.5))`: never negative,
    where the BM25Okapi of FActScore and RLFH turns terms of more than half of the passages against them. `"atire"` and
    `"robertson"` are documented in `bm25s`; its other variants give passages without any term of the query a score too, and
    are a `ValueError`.
    """
    if method not in METHODS:
        raise ValueError(f"the BM25 variant must be one of {METHODS}, got {method!r}")
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs each index at DEBUG, whatever the root's level
    vocabulary: dict[str, int] = {}
    ids = [array("i", (vocabulary.setdefault(term, len(vocabulary)) for term in found)) for found in documents]
    if not vocabulary:
        return None
    index = bm25s.BM25(k1=k1, b=b, method=method)
    index.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    return index


def bm25_scores(index: Any, query: Sequence[str], count: int) -> np.ndarray:
    """Scores of the `count` documents of an index, float32 of shape (count,); 0 for terms that the index has not."""
    known = [index.vocab_dict[term] for term in query if term in index.vocab_dict] if index is not None else []
    return index.get_scores_from_ids(known) if known else np.zeros(count, dtype=np.float32)


def best_places(scores: np.ndarray, k: int) -> list[int]:
    """Places of the `k` highest scores above 0, best first; of equal scores the first place first."""
    places = np.flatnonzero(scores > 0)
    if len(places) > k:
        places = places[scores[places] >= np.partition(scores[places], -k)[-k]]
    return places[np.argsort(-scores[places], kind="stable")][:k].tolist()

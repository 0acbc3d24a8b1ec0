"""Character ranges of generated tokens, without encoding anything again.

Encoding a decoded completion again gives other tokens than those that were sampled, and the offsets of a fast tokenizer
exist only for text that it encoded. Here the tokenizer's own decoder is followed step by step, while every character
remembers which tokens it came from; the text must come out as `tokenizer.decode` gives it.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import operator
import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from hf_factuality.errors import SpanError


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


logger = logging.getLogger(__name__)


class TokenOffsets(NamedTuple):
    """Decoded `text` of a completion, special tokens skipped, and the half-open character range of each of its ids, in order."""

    text: str
    offsets: list[tuple[int, int]]


def token_offsets(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> TokenOffsets:
    """Decode generated ids and say which characters each of them became; nothing is encoded again.

    A token covers every character of which it holds at least one byte, so tokens that share a character overlap. A byte
    of invalid UTF-8 covers the U+FFFD that stands for it. A space that the decoder puts between tokens belongs to the
    token after it. A token without a character in the text (special, outside the vocabulary, or removed by the decoder)
    has an empty range where the text of the tokens after it starts. Starts never decrease.

    Linear in the number of tokens for decoders built from the parts that `tokenizers` offers for byte-level,
    SentencePiece, WordPiece and word-level models. For any other (CTC, `Replace` with a regular expression, a decoder in
    Python) every prefix is decoded, which is quadratic, may misjudge by a character what tokens share or the decoder
    changed afterwards, and is logged once per tokenizer class.

    Args:
        tokenizer ([`~transformers.PreTrainedTokenizerBase`]):
            Tokenizer of the model that generated the ids. Read, never changed.
        token_ids (`Sequence[int]`):
            Ids of one completion: a list, or a tensor or array of shape (T,).

    Returns:
        [`TokenOffsets`]: `text` equals `tokenizer.decode(token_ids, skip_special_tokens=True)`; `offsets` holds T
        half-open ranges, in characters (code points) of `text`.

    Raises:
        `SpanError`: `token_ids` is not one-dimensional, or holds something that is not a token id (a negative number
        such as the label -100, a float, a bool, or 2**32 and more).
    """
    ids = _check_ids(token_ids)
    if getattr(tokenizer, "is_fast", False):
        tokens, decoders = _fast_tokens(tokenizer, ids)
        text = tokenizer.decode(ids, skip_special_tokens=True)
    else:
        tokens, decoders = _slow_tokens(tokenizer, ids), _SLOW_DECODERS
        text = _slow_decode(tokenizer, ids, tokens)
    if all(token is None or isinstance(token, str) for token in tokens):
        for decoder in decoders:
            try:
                piece = _follow(tokens, decoder)
            except _UnknownDecoder:
                continue
            if piece.text != text:
                # Whether `clean_up_tokenization_spaces` applies depends on the tokenizer's class; the text tells.
                piece = _clean_up(piece, _CLEAN_UP_TRANSFORMERS)
            if piece.text == text:
                return TokenOffsets(text, _ranges(tokens, piece))
    _log_prefixes(type(tokenizer).__name__)
    return TokenOffsets(text, _prefix_ranges(tokenizer, ids, tokens, text))


def _check_ids(token_ids: Any) -> list[int]:
    values = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
    if isinstance(values, (int, float, str, bytes)):
        raise SpanError(f"token_ids must be a sequence of ids, got {values!r}")
    ids = []
    for position, value in enumerate(values):
        try:
            ids.append(operator.index(None if isinstance(value, bool) else value))
        except TypeError:
            raise SpanError(f"token_ids must be a flat sequence of ints, but [{position}] is {value!r:.50}") from None
        if not 0 <= ids[-1] < 2**32:
            hint = "; take out masked positions first" if ids[-1] < 0 else ""
            raise SpanError(f"token_ids[{position}] is {ids[-1]}, which is not a token id{hint}")
    return ids


# Reading the tokenizer. Nothing is cached: tokens can be added to a tokenizer, and its decoder be replaced, at any time.


def _fast_tokens(tokenizer: Any, ids: list[int]) -> tuple[list[str | None], list[dict]]:
    """The token of each id, `None` if decoding skips it, and the state of the decoder if it can be read."""
    backend = tokenizer.backend_tokenizer
    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    lookup = {index: backend.id_to_token(index) for index in set(ids)}
    tokens = [None if lookup[index] in special else lookup[index] for index in ids]
    if backend.decoder is None:
        return tokens, [{"type": "Join"}]
    try:
        return tokens, [json.loads(backend.decoder.__getstate__())]
    except Exception:  # a decoder written in Python cannot be serialised; tokenizers raises a bare Exception
        return tokens, []


# What a slow tokenizer raises for an id outside its vocabulary; a fast one decodes it to nothing.
_OUTSIDE = (IndexError, KeyError, OverflowError, TypeError, ValueError)


def _slow_tokens(tokenizer: Any, ids: list[int]) -> list[Any]:
    lookup = {}
    for index in set(ids).difference(tokenizer.all_special_ids):
        try:
            lookup[index] = tokenizer.convert_ids_to_tokens(index)
        except _OUTSIDE:
            pass
    return [lookup.get(index) for index in ids]


def _slow_decode(tokenizer: Any, ids: list[int], tokens: list[Any]) -> str:
    try:
        return tokenizer.decode(ids, skip_special_tokens=True)
    except _OUTSIDE:
        if None not in tokens:
            raise
        return tokenizer.decode([i for i, token in zip(ids, tokens, strict=True) if token is not None])


def _slow_decoder(first: str, pattern: str, content: str) -> dict:
    replace = {"type": "Replace", "pattern": {"String": pattern}, "content": content}
    return {"type": "Sequence", "decoders": [{"type": first}, {"type": "Fuse"}, replace, {"type": "Trim"}]}


# `convert_tokens_to_string` of the slow tokenizers, in the terms of `tokenizers` ("Join" and "Trim" are added). Which one
# applies is written down nowhere, so the first that gives the decoded text is taken.
_SLOW_DECODERS = [
    _slow_decoder("Fuse", "▁", " "),
    {"type": "ByteLevel"},
    {"type": "Join"},
    _slow_decoder("Join", " ##", ""),
    _slow_decoder("Join", "@@ ", ""),
]


# Following the decoder.


class _UnknownDecoder(Exception):
    """A decoder that cannot be followed."""


class _Piece(NamedTuple):
    """A string between two steps of a decoder; first and last token (inclusive) of each character and of the whole."""

    text: str
    owners: list[tuple[int, int]]
    span: tuple[int, int]


def _follow(tokens: list[str | None], decoder: dict) -> _Piece:
    kept = [(token, (index, index)) for index, token in enumerate(tokens) if token is not None]
    return _fuse(_step([_Piece(token, [owner] * len(token), owner) for token, owner in kept], decoder))


def _step(pieces: list[_Piece], decoder: dict) -> list[_Piece]:
    """What `decode_chain` of `tokenizers` does to the strings, done to the pieces."""
    kind = decoder["type"]
    if kind == "Sequence":
        return functools.reduce(_step, decoder["decoders"], pieces)
    if kind == "ByteLevel":
        return [_byte_level(pieces)]
    if kind == "Replace":
        if "String" not in decoder["pattern"]:
            raise _UnknownDecoder("Replace with a regular expression")
        return [_replace(piece, decoder["pattern"]["String"], decoder["content"]) for piece in pieces]
    if kind == "ByteFallback":
        return _byte_fallback(pieces)
    if kind == "Fuse":
        return [_fuse(pieces)]
    if kind == "Strip":
        return [_strip(piece, decoder["content"], decoder["start"], decoder["stop"]) for piece in pieces]
    if kind == "Metaspace":
        # The first token loses all its markers, not only a leading one, unless no space is ever put in front.
        first = " " if decoder["prepend_scheme"] == "never" else ""
        return [_replace(piece, decoder["replacement"], " " if index else first) for index, piece in enumerate(pieces)]
    if kind == "WordPiece":
        return _word_piece(pieces, decoder["prefix"], decoder["cleanup"])
    if kind == "BPEDecoder":
        last = len(pieces) - 1
        return [_replace(piece, decoder["suffix"], "" if i == last else " ") for i, piece in enumerate(pieces)]
    if kind == "Join":
        return pieces[:1] + [_prepend_space(piece) for piece in pieces[1:]]
    if kind == "Trim":
        return [_cut(p, len(p.text) - len(p.text.lstrip()), len(p.text.rstrip())) for p in pieces]
    raise _UnknownDecoder(kind)


def _fuse(pieces: list[_Piece]) -> _Piece:
    owners = [owner for piece in pieces for owner in piece.owners]
    span = (pieces[0].span[0], pieces[-1].span[1]) if pieces else (0, 0)
    return _Piece("".join(piece.text for piece in pieces), owners, span)


def _cut(piece: _Piece, start: int, end: int) -> _Piece:
    return _Piece(piece.text[start:end], piece.owners[start:end], piece.span)


def _prepend_space(piece: _Piece) -> _Piece:
    return _Piece(" " + piece.text, [piece.span, *piece.owners], piece.span)


def _strip(piece: _Piece, character: str, start: int, stop: int) -> _Piece:
    size = len(piece.text)
    begin = min(start, size - len(piece.text.lstrip(character)))
    rest = piece.text[begin:]
    return _cut(piece, begin, size - min(stop, len(rest) - len(rest.rstrip(character))))


def _replace(piece: _Piece, pattern: str, content: str) -> _Piece:
    text, owners, span = piece
    if pattern == "":
        raise _UnknownDecoder("Replace of the empty string")
    if pattern not in text:
        return piece
    if len(pattern) == len(content):
        return _Piece(text.replace(pattern, content), owners, span)
    # Characters that stay keep their owners ("." of " ."); those of a content that is no part of the pattern come from
    # the whole match.
    position = -1
    kept = [position := pattern.find(character, position + 1) for character in content]
    result, position = [], 0
    while (found := text.find(pattern, position)) >= 0:
        result += owners[position:found]
        position = found + len(pattern)
        if -1 in kept:
            result += [(owners[found][0], owners[position - 1][1])] * len(content)
        else:
            result += [owners[found + offset] for offset in kept]
    return _Piece(text.replace(pattern, content), result + owners[position:], span)


_CLEAN_UP_WORD_PIECE = {" .": ".", " ?": "?", " !": "!", " ,": ",", " ' ": "'", " n't": "n't", " 'm": "'m"}
_CLEAN_UP_WORD_PIECE |= {" do not": " don't", " 's": "'s", " 've": "'ve", " 're": "'re"}
_CLEAN_UP_TRANSFORMERS = {old: new for old, new in _CLEAN_UP_WORD_PIECE.items() if old != " do not"}


def _clean_up(piece: _Piece, rules: dict[str, str]) -> _Piece:
    return functools.reduce(lambda result, rule: _replace(result, *rule), rules.items(), piece)


def _word_piece(pieces: list[_Piece], prefix: str, clean_up: bool) -> list[_Piece]:
    result = []
    for index, piece in enumerate(pieces):
        if index and piece.text.startswith(prefix):
            piece = _cut(piece, len(prefix), len(piece.text))
        elif index:
            piece = _prepend_space(piece)
        result.append(_clean_up(piece, _CLEAN_UP_WORD_PIECE) if clean_up else piece)
    return result


_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2}|\+[0-9A-Fa-f])>")  # Rust's number parser takes the plus sign too


def _byte_fallback(pieces: list[_Piece]) -> list[_Piece]:
    result = []
    for is_byte, group in itertools.groupby(pieces, lambda piece: _BYTE_TOKEN.fullmatch(piece.text) is not None):
        run = list(group)
        if is_byte:
            data, owners = bytes(int(piece.text[3:5], 16) for piece in run), [piece.span for piece in run]
            # One invalid byte spoils its whole run.
            run = [_characters(data, owners)] if _is_utf8(data) else [_Piece("\ufffd", [o], o) for o in owners]
        result += run
    return result


# GPT-2's stand-ins for bytes, for `str.translate`. A Latin-1 character that stands for no byte is sent out of Latin-1.
_NO_STAND_IN = [byte for byte in range(256) if not (0x21 <= byte <= 0x7E or byte >= 0xA1 and byte != 0xAD)]
_BYTE_TABLE = dict.fromkeys(_NO_STAND_IN, 0xFFFF) | {256 + rank: byte for rank, byte in enumerate(_NO_STAND_IN)}


def _stand_ins_to_bytes(token: str) -> bytes:
    try:
        return token.translate(_BYTE_TABLE).encode("latin-1")
    except UnicodeEncodeError:  # a token with any other character stands for itself: added tokens, mostly
        return token.encode()


def _byte_level(pieces: list[_Piece]) -> _Piece:
    if any(piece.span[0] != piece.span[1] for piece in pieces):
        raise _UnknownDecoder("ByteLevel after tokens were joined")
    # An empty token does not part the bytes on its two sides; one that is valid UTF-8 on its own does.
    tokens = [(data, piece.span) for piece in pieces if (data := _stand_ins_to_bytes(piece.text))]
    result = []
    for valid, group in itertools.groupby(tokens, lambda token: _is_utf8(token[0])):
        if valid:
            texts = [(data.decode(), owner) for data, owner in group]
            result += [_Piece(text, [owner] * len(text), owner) for text, owner in texts]
        else:
            owned = [(byte, owner) for data, owner in group for byte in data]
            result.append(_characters(bytes(byte for byte, _ in owned), [owner for _, owner in owned]))
    return _fuse(result)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _characters(data: bytes, owners: list[tuple[int, int]]) -> _Piece:
    """Decode bytes with an owner each; each maximal part of a broken character becomes one U+FFFD, as in Rust."""
    text, result, start = [], [], 0
    while start < len(data):
        window = data[start : start + 4]  # no character is longer
        try:
            character = window.decode()[0]
        except UnicodeDecodeError as error:
            character = window[: error.start].decode()[:1]
            broken = error.end
        end = start + (len(character.encode()) or broken)
        text.append(character or "\ufffd")
        result.append((owners[start][0], owners[end - 1][1]))
        start = end
    return _Piece("".join(text), result, (owners[0][0], owners[-1][1]))


def _ranges(tokens: list[str | None], piece: _Piece) -> list[tuple[int, int]]:
    starts, ends = [-1] * len(tokens), [-1] * len(tokens)
    for position, (first, last) in enumerate(piece.owners):
        for index in range(first, last + 1):
            # Skipped and empty tokens can stand between two that share a character; they hold nothing of it.
            if first == last or tokens[index]:
                if starts[index] < 0:
                    starts[index] = position
                ends[index] = position + 1
    return place_empty(zip(starts, ends, strict=True), len(piece.text))


def place_empty(offsets: Iterable[tuple[int, int]], place: int) -> list[tuple[int, int]]:
    """Put tokens without a character (an empty range) where the next token that has one starts; else at `place`, the end."""
    result = []
    for start, end in reversed(list(offsets)):
        place, end = (place, place) if start == end else (start, end)
        result.append((place, end))
    return result[::-1]


# Any other decoder.


@functools.cache
def _log_prefixes(name: str) -> None:
    logger.warning("token_offsets cannot follow the decoder of %s: it decodes every prefix, in quadratic time", name)


def _prefix_ranges(tokenizer: Any, ids: list[int], tokens: list[Any], text: str) -> list[tuple[int, int]]:
    starts, ends = [-1] * len(ids), [-1] * len(ids)
    known, previous, settled = [], "", 0  # settled: characters that the tokens so far have completed
    for index, token in enumerate(tokens):
        if token is None:
            continue
        known.append(ids[index])
        prefix = tokenizer.decode(known, skip_special_tokens=True)
        common = len(os.path.commonprefix((prefix, text)))
        # What a prefix has beyond the text that it shares is a character of which it holds only a part.
        end = min(common + (common < len(prefix)), len(text))
        appended = len(prefix) > len(previous) and prefix.startswith(previous) and text.startswith(previous)
        start = len(previous) if appended else settled
        if start < end:
            starts[index], ends[index] = start, end
        # U+FFFD at the end may yet become another character, or take in more bytes.
        settled, previous = len(text[:common].rstrip("\ufffd")), prefix
    return place_empty(zip(starts, ends, strict=True), len(text))

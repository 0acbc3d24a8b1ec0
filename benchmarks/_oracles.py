"""Small tokenizers of each kind, and where each token lies in the decoded text by the published rules of its decoder.

The oracles are slow and plain on purpose, and share no line with `hf_factuality.offsets`: the benchmark and the tests
compare with them. Each takes the tokens as the vocabulary writes them, `None` for one that decoding skips, and returns the
text and one half-open character range per token. Skipped tokens have an empty range where the next token's text starts.
"""

from __future__ import annotations

import json
import re

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast


SPECIAL = ["<pad>", "<s>", "</s>", "<unk>"]


def wrap(backend: Tokenizer, *added: str) -> PreTrainedTokenizerFast:
    """Add special tokens, `<think>` as it is, and `</think>` and `added` in the form that the normaliser gives them."""
    backend.add_special_tokens(SPECIAL)
    backend.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    backend.add_tokens([AddedToken(token, special=False, normalized=True) for token in ("</think>", *added)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def train_byte_level(texts: list[str], vocab_size: int) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


def train_byte_fallback(texts: list[str], vocab_size: int, strip: bool = True) -> Tokenizer:
    """Llama-2 (`strip`: one leading space of the whole text is removed) or Gemma."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, limit_alphabet=1000, show_progress=False)
    trained.train_from_iterator(texts, trainer)
    # The bytes go into the vocabulary afterwards: as special tokens of the trainer, decoding would skip them.
    model = json.loads(trained.to_str())["model"]
    vocab = {token: index for index, token in enumerate(["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))])}
    for token in sorted(model["vocab"], key=model["vocab"].get):
        vocab.setdefault(token, len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * strip)
    return backend


def train_unigram(texts: list[str], vocab_size: int, prepend_scheme: str = "always") -> Tokenizer:
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    backend.decoder = decoders.Metaspace(prepend_scheme=prepend_scheme)
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, unk_token="<unk>", show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


def train_word_piece(texts: list[str], vocab_size: int, clean_up: bool = True) -> Tokenizer:
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(cleanup=clean_up)
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


def train_word_level(texts: list[str], vocab_size: int, metaspace: bool = False) -> Tokenizer:
    """Without a decoder, or with Metaspace."""
    backend = Tokenizer(models.WordLevel(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace() if metaspace else pre_tokenizers.Whitespace()
    if metaspace:
        backend.decoder = decoders.Metaspace()
    trainer = trainers.WordLevelTrainer(vocab_size=vocab_size, special_tokens=["<unk>"], show_progress=False)
    backend.train_from_iterator(texts, trainer)
    return backend


Tokens = list[str | None]
Located = tuple[str, list[tuple[int, int]]]


def gpt2_bytes() -> dict[str, int]:
    """The inverse of `bytes_to_unicode` of GPT-2: printable Latin-1 stands for itself, the rest from U+0100 on."""
    table, n = {}, 0
    for byte in range(256):
        if chr(byte) in "!\"#$%&'()*+,-./" or 48 <= byte <= 126 or 161 <= byte <= 172 or 174 <= byte:
            table[chr(byte)] = byte
        else:
            table[chr(256 + n)] = byte
            n += 1
    return table


_GPT2_BYTES = gpt2_bytes()


# The well-formed byte sequences of the Unicode Standard (table 3-7), then their beginnings, longest first, for what is
# replaced by one U+FFFD (section 3.9, "maximal subparts"); any other byte is replaced on its own.
_UTF8 = re.compile(
    rb"[\x00-\x7f]|[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
    rb"|(?P<broken>\xe0[\xa0-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]|\xed[\x80-\x9f]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]?|[\xf1-\xf3][\x80-\xbf]{1,2}|\xf4[\x80-\x8f][\x80-\xbf]?|.)",
    re.DOTALL,
)


def character_bytes(data: bytes) -> list[tuple[str, int, int]]:
    """Each character that the bytes decode to, with its byte range."""
    return [("\ufffd" if m["broken"] else m[0].decode(), m.start(), m.end()) for m in _UTF8.finditer(data)]


def _locate(text: str, holders: list[set[int]], n: int) -> Located:
    """Ranges from the tokens that hold each character."""
    ranges: list = [None] * n
    for position, tokens in enumerate(holders):
        for token in tokens:
            first = position if ranges[token] is None else ranges[token][0]
            ranges[token] = (first, position + 1)
    place = len(text)
    for token in range(n - 1, -1, -1):
        if ranges[token] is None:
            ranges[token] = (place, place)
        place = ranges[token][0]
    return text, ranges


def byte_level(tokens: Tokens) -> Located:
    data, owners = b"", []
    parts = []
    for index, token in enumerate(tokens):
        if token is None:
            continue
        if all(character in _GPT2_BYTES for character in token):
            part = bytes(_GPT2_BYTES[character] for character in token)
        else:
            part = token.encode()
        parts.append(part)
        owners += [index] * len(part)
    data = b"".join(parts)
    characters = character_bytes(data)
    holders = [set(owners[start:end]) for _, start, end in characters]
    return _locate("".join(character for character, _, _ in characters), holders, len(tokens))


def sentencepiece_bytes(tokens: Tokens, strip: bool = True) -> Located:
    """Llama-2 (`strip`: one leading space of the whole text is removed) and Gemma."""
    text, holders, run = [], [], []

    def close():
        data = bytes(byte for _, byte in run)
        try:
            position = 0
            for character in data.decode():
                size = len(character.encode())
                text.append(character)
                holders.append({index for index, _ in run[position : position + size]})
                position += size
        except UnicodeDecodeError:
            text.extend("\ufffd" * len(run))
            holders.extend({index} for index, _ in run)
        run.clear()

    for index, token in enumerate(tokens):
        if token is None:
            continue
        if token[:3] == "<0x" and len(token) == 6 and token[5] == ">":
            run.append((index, int(token[3:5], 16)))
            continue
        close()
        for character in token:
            text.append(" " if character == "▁" else character)
            holders.append({index})
    close()
    if strip and text[:1] == [" "]:
        del text[0], holders[0]
    return _locate("".join(text), holders, len(tokens))


def _lengths(tokens: Tokens, shown: list[str]) -> Located:
    """Ranges where every token becomes a string of its own."""
    kept = [index for index, token in enumerate(tokens) if token is not None]
    holders = [{index} for index, part in zip(kept, shown, strict=True) for _ in part]
    return _locate("".join(shown), holders, len(tokens))


def metaspace(tokens: Tokens, first: str = "") -> Located:
    """Unigram and word-level with `Metaspace`; `first` is what a marker of the first token becomes."""
    kept = [token for token in tokens if token is not None]
    return _lengths(tokens, [t.replace("▁", first) for t in kept[:1]] + [t.replace("▁", " ") for t in kept[1:]])


def word_level(tokens: Tokens) -> Located:
    """No decoder: tokens joined by spaces."""
    kept = [token for token in tokens if token is not None]
    return _lengths(tokens, kept[:1] + [" " + token for token in kept[1:]])


def word_piece(tokens: Tokens, clean_up: bool = True) -> Located:
    shown = []
    for token in tokens:
        if token is None:
            continue
        part = token if not shown else token[2:] if token[:2] == "##" else " " + token
        if clean_up:
            # The clean-up sees one token at a time, so it can take away only what is inside the token.
            for mark in (".", "?", "!", ","):
                part = part.replace(" " + mark, mark)
            part = part.replace(" ' ", "'").replace(" n't", "n't").replace(" 'm", "'m").replace(" do not", " don't")
            part = part.replace(" 's", "'s").replace(" 've", "'ve").replace(" 're", "'re")
        shown.append(part)
    return _lengths(tokens, shown)

"""Token offsets against oracles that know the rules of each decoder and share no code with the library."""

import functools
import json
import logging
import re
import sys
import time
import timeit
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from hf_factuality import offsets as module
from hf_factuality.errors import SpanError
from hf_factuality.offsets import token_offsets
from tests.conftest import searched


sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import _oracles  # noqa: E402


CORPUS = [
    "The Eiffel Tower was built in 1889. It isn't the tallest building in Paris, is it? I don't  think so!",
    "Marie Curie won the Nobel Prize twice: in physics (1903) and in chemistry (1911). She's a hero 'n' more.",
    "居里夫人两次获得诺贝尔奖。埃菲尔铁塔建于一八八九年，位于巴黎。",
    "Эйфелева башня построена в 1889 году. Она стоит в Париже.",
    "Der Eiffelturm wurde 1889 gebaut; él vive en España, où naïveté et cœur façonnent l'été.",
    "Emoji: 😀 👩‍🔬 🇫🇷 and maths: ∀x∈ℝ. हिन्दी में भी, العربية أيضا.",
] * 3
UNSEEN = 3  # ids past the vocabulary, as the padded rows of an embedding matrix are


@pytest.fixture(autouse=True)
def followed(request, monkeypatch):
    """Prefixes can hide that a decoder was not followed, so only the tests of unknown decoders may decode them."""

    def fail(*args):
        raise AssertionError("fell back to decoding prefixes")

    if "unknown_decoder" not in request.node.name:
        monkeypatch.setattr(module, "_prefix_ranges", fail)


@functools.cache
def byte_level():
    # A space and "▁" stand for no byte, so these tokens are taken as they are; "ÿ" stands for the byte 0xFF.
    return _oracles.wrap(_oracles.train_byte_level(CORPUS, 450), "two words", "▁été", "ÿ")


@functools.cache
def sentencepiece_bytes(strip=True):
    # Other scripts stay out of the vocabulary, so that bytes have to stand in for them.
    return _oracles.wrap(_oracles.train_byte_fallback(CORPUS[:2] + CORPUS[4:5], 200, strip))


def gemma():
    return sentencepiece_bytes(strip=False)


@functools.cache
def unigram(prepend_scheme="always"):
    return _oracles.wrap(_oracles.train_unigram(CORPUS, 300, prepend_scheme))


@functools.cache
def word_piece(clean_up=True):
    return _oracles.wrap(_oracles.train_word_piece(CORPUS, 300, clean_up), "do not", "n't", "a 's .")


@functools.cache
def word_level(metaspace=False, clean_up=False):
    tokenizer = _oracles.wrap(_oracles.train_word_level(CORPUS, 1000, metaspace))
    tokenizer.clean_up_tokenization_spaces = clean_up
    return tokenizer


FAMILIES = {
    "byte-level BPE": (byte_level, _oracles.byte_level),
    "byte fallback, stripped": (sentencepiece_bytes, _oracles.sentencepiece_bytes),
    "byte fallback": (gemma, functools.partial(_oracles.sentencepiece_bytes, strip=False)),
    "unigram": (unigram, _oracles.metaspace),
    "unigram, never prepended": (lambda: unigram("never"), functools.partial(_oracles.metaspace, first=" ")),
    "WordPiece": (word_piece, _oracles.word_piece),
    "WordPiece, no clean-up": (lambda: word_piece(False), functools.partial(_oracles.word_piece, clean_up=False)),
    "word-level": (word_level, _oracles.word_level),
    "word-level, metaspace": (lambda: word_level(True), _oracles.metaspace),
}
CLEANED = {"word-level, cleaned up": lambda: word_level(clean_up=True)}
every_family = pytest.mark.parametrize("family", FAMILIES)
random_examples = searched(30, 400)

words = st.sampled_from(
    " ".join(CORPUS[:6]).split() + ["<think>", "</think>", "</s>", "two words", "do not", " ", "\n", "▁", "<0x41>"]
)
texts = st.one_of(
    st.text(max_size=60),
    st.lists(words, max_size=30).map(" ".join),
    st.lists(st.sampled_from("诺贝尔奖居里 夫人。，😀👩‍🔬🇫🇷é ẞa1 "), max_size=40).map("".join),
)
PROPERTY = settings(deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def id_lists(tokenizer, prefer=()):
    n = len(tokenizer)
    every = st.integers(0, n + UNSEEN - 1)
    marked = st.sampled_from(sorted(tokenizer.added_tokens_decoder))
    return st.lists(st.one_of(every, marked, *prefer), max_size=40)


def tokens_of(tokenizer, ids):
    tokens = [tokenizer.backend_tokenizer.id_to_token(index) for index in ids]
    return [None if token in _oracles.SPECIAL else token for token in tokens]


def check(family, ids):
    build, oracle = FAMILIES[family]
    tokenizer = build()
    result = token_offsets(tokenizer, ids)
    assert result.text == tokenizer.decode(ids, skip_special_tokens=True)
    text, offsets = oracle(tokens_of(tokenizer, ids))
    assert text == result.text, "the oracle does not know this decoder"
    assert result.offsets == offsets


def ids_of(tokenizer, *tokens):
    ids = tokenizer.convert_tokens_to_ids(list(tokens))
    assert [tokenizer.backend_tokenizer.id_to_token(index) for index in ids] == list(tokens)
    return ids


# Against the oracles.


@random_examples
@every_family
def test_encoded_text(family, count):
    @settings(PROPERTY, max_examples=count)
    @given(texts)
    def run(text):
        check(family, FAMILIES[family][0]().encode(text))

    run()


@random_examples
@every_family
def test_sampled_ids(family, count):
    tokenizer = FAMILIES[family][0]()

    @settings(PROPERTY, max_examples=count)
    @given(id_lists(tokenizer))
    def run(ids):
        check(family, ids)

    run()


@random_examples
@pytest.mark.parametrize("family", ["byte-level BPE", "byte fallback, stripped", "byte fallback"])
def test_invalid_utf8(family, count):
    tokenizer = FAMILIES[family][0]()
    letters = {byte: letter for letter, byte in _oracles.gpt2_bytes().items()}
    name = letters.get if family == "byte-level BPE" else "<0x{:02X}>".format
    # Bytes on both sides of every border in the table of well-formed UTF-8.
    borders = "41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff"
    single = ids_of(tokenizer, *(name(byte) for byte in bytes.fromhex(borders)))

    @settings(PROPERTY, max_examples=3 * count)
    @given(id_lists(tokenizer, [st.sampled_from(single)] * 6))
    def run(ids):
        check(family, ids)

    run()


def test_the_library_decodes_invalid_utf8_as_python_does():
    # The byte-level oracle stands on this.
    letters = {byte: letter for letter, byte in _oracles.gpt2_bytes().items()}
    for lead in range(0xC0, 0x100):
        for second in (0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC3):
            for rest in (b"", b"\x80", b"\x80\x80", b"\xbf\x41"):
                data = bytes([lead, second]) + rest
                decoded = decoders.ByteLevel().decode([letters[byte] for byte in data])
                assert decoded == data.decode("utf-8", errors="replace")
                assert decoded == "".join(character for character, _, _ in _oracles.character_bytes(data))


def test_ranges_cover_the_text_in_order():
    for family, (build, _) in FAMILIES.items():
        tokenizer = build()
        text, offsets = token_offsets(tokenizer, tokenizer.encode(" ".join(CORPUS)))
        assert offsets == sorted(offsets), family
        assert {i for start, end in offsets for i in range(start, end)} == set(range(len(text))), family


# Expected values worked out by hand.


def ranges(written):
    """Read ranges written as "start:end start:end"."""
    return [tuple(int(number) for number in pair.split(":")) for pair in written.split()]


HAND = json.loads((Path(__file__).parent / "cases" / "offsets.json").read_text("utf-8"))


def decoder_of(state):
    """The decoder that `tokenizers` reads from JSON."""
    backend = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    return Tokenizer.from_str(json.dumps({**json.loads(backend.to_str()), "decoder": state})).decoder


@pytest.mark.parametrize("case", HAND, ids=lambda case: case["name"])
def test_by_hand(case):
    """Worked out by hand; `why` says how. A token of the vocabulary is a number of its list."""
    if "tokenizer" in case:
        tokenizer = {**{name: build for name, (build, _) in FAMILIES.items()}, **CLEANED}[case["tokenizer"]]()
    else:
        tokenizer = small(case["vocabulary"], decoder_of(case["decoder"]))
    ids = ids_of(tokenizer, *case["tokens"].split("|"))
    assert token_offsets(tokenizer, ids) == (case["text"], ranges(case["ranges"]))


@random_examples
def test_clean_up_of_transformers_on_sampled_ids(count):
    tokenizer = word_level(clean_up=True)
    marks = ids_of(tokenizer, ".", ",", "!", "'", "t", "n")

    @settings(PROPERTY, max_examples=count)
    @given(id_lists(tokenizer, [st.sampled_from(marks)] * 4))
    def run(ids):
        joined, before = _oracles.word_level(tokens_of(tokenizer, ids))
        text, offsets = token_offsets(tokenizer, ids)
        assert text == tokenizer.decode(ids, skip_special_tokens=True)
        # Tokens hold no space and clean-up only deletes spaces, so what remains can be matched from left to right.
        new, position = [], 0
        for character in joined:
            new.append(position)
            position += position < len(text) and text[position] == character
        new.append(position)
        assert position == len(text)
        assert [text[start:end].strip() for start, end in offsets] == [joined[s:e].strip() for s, e in before]
        assert offsets == [(new[start], new[end]) for start, end in before]

    run()


def small(tokens, decoder):
    backend = Tokenizer(models.WordLevel({token: index for index, token in enumerate(tokens)}, unk_token=tokens[0]))
    tokenizer = _oracles.wrap(backend)
    tokenizer.backend_tokenizer.decoder = decoder  # last: a tokenizer with a decoder in Python cannot be copied
    return tokenizer


# Ids.


def test_ids_outside_the_vocabulary_are_empty():
    for build, _ in FAMILIES.values():
        tokenizer = build()
        inside = tokenizer.encode("The Tower", add_special_tokens=False)
        outside = len(tokenizer) + 5
        text, offsets = token_offsets(tokenizer, [outside, *inside, outside, 2**32 - 1])
        assert text == tokenizer.decode(inside)
        assert offsets == [(0, 0), *token_offsets(tokenizer, inside).offsets, (len(text),) * 2, (len(text),) * 2]


def test_nothing_to_decode():
    for build, _ in FAMILIES.values():
        tokenizer = build()
        assert token_offsets(tokenizer, []) == ("", [])
        assert token_offsets(tokenizer, torch.tensor([], dtype=torch.long)) == ("", [])
        assert token_offsets(tokenizer, [tokenizer.eos_token_id] * 2) == ("", [(0, 0), (0, 0)])


def test_kinds_of_sequences():
    tokenizer = byte_level()
    ids = tokenizer.encode("naïve 😀")
    expected = token_offsets(tokenizer, ids)
    tensor, array = torch.tensor(ids), np.array(ids)
    for same in [tuple(ids), iter(ids), tensor, tensor.int(), list(tensor), array, list(array)]:
        assert token_offsets(tokenizer, same) == expected


NO_IDS = {
    r"token_ids\[1\] is -100.*masked": [[5, -100], torch.tensor([5, -100])],
    "4294967296": [[2**32]],
    "flat": [[[1, 2]], torch.tensor([[1, 2]]), [1.0], torch.tensor([1.0]), [True, False], torch.tensor([True]), ["a"]],
    "sequence": ["a", 7, torch.tensor(7)],
}


@pytest.mark.parametrize("message, ids", [(message, ids) for message in NO_IDS for ids in NO_IDS[message]])
def test_no_token_ids(message, ids):
    with pytest.raises(SpanError, match=message):
        token_offsets(byte_level(), ids)


# Tokenizers that change, that are slow, or whose decoder is unknown.


def test_changes_of_the_tokenizer_are_seen():
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    tokenizer = _oracles.wrap(backend)
    ids = [1, 2, len(tokenizer)]
    assert token_offsets(tokenizer, ids) == ("a b", [(0, 1), (1, 3), (3, 3)])
    tokenizer.add_tokens(["<new>"])
    assert token_offsets(tokenizer, ids) == ("a b <new>", [(0, 1), (1, 3), (3, 9)])
    tokenizer.add_special_tokens({"additional_special_tokens": ["b"]})
    assert token_offsets(tokenizer, ids) == ("a <new>", [(0, 1), (1, 1), (1, 7)])
    tokenizer.backend_tokenizer.decoder = decoders.Fuse()
    assert token_offsets(tokenizer, ids) == ("a<new>", [(0, 1), (1, 1), (1, 6)])


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python over a fixed vocabulary; `join` is its `convert_tokens_to_string`."""

    def __init__(self, tokens, join=None, **kwargs):
        self.words, self.join = list(tokens), join
        super().__init__(pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>", **kwargs)

    vocab_size = property(lambda self: len(self.words))

    def get_vocab(self):
        return {word: index for index, word in enumerate(self.words)} | self.added_tokens_encoder

    def _tokenize(self, text, **kwargs):
        return text.split()

    def _convert_token_to_id(self, token):
        return self.words.index(token) if token in self.words else self.words.index("<unk>")

    def _convert_id_to_token(self, index):
        return self.words[index]

    def convert_tokens_to_string(self, tokens):
        return self.join(tokens) if self.join else super().convert_tokens_to_string(tokens)


def gpt2_join(tokens):
    data = bytes(_oracles.gpt2_bytes()[letter] for letter in "".join(tokens))
    return data.decode("utf-8", errors="replace")


SLOW = {
    "joined": (None, "a|.|b", "a . b", "0:1 1:3 3:5"),
    "SentencePiece": (lambda t: "".join(t).replace("▁", " ").strip(), "▁|▁a|b▁c|▁", "ab c", "0:0 0:1 1:4 4:4"),
    "WordPiece": (lambda t: " ".join(t).replace(" ##", "").strip(), "a|##b|c", "ab c", "0:1 1:2 2:4"),
    "fastBPE": (lambda t: " ".join(t).replace("@@ ", "").strip(), "a@@|b|c", "ab c", "0:1 1:2 2:4"),
    "byte-level": (gpt2_join, "Ã|©Ġ|å|±", "é �", "0:1 0:2 2:3 2:3"),
}


@pytest.mark.parametrize("kind", SLOW)
def test_slow_tokenizers_by_hand(kind):
    join, tokens, text, written = SLOW[kind]
    tokenizer = SlowTokenizer([*_oracles.SPECIAL, *tokens.split("|")], join)
    ids = [1, *range(4, 5 + tokens.count("|")), 2]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    end = len(text)
    assert token_offsets(tokenizer, ids) == (text, [(0, 0), *ranges(written), (end, end)])
    # A slow tokenizer cannot decode an id outside its vocabulary at all.
    assert token_offsets(tokenizer, [*ids, 10_000]) == (text, [(0, 0), *ranges(written), (end, end), (end, end)])


def test_real_sentencepiece(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(CORPUS), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(tmp_path / "m"), vocab_size=300, hard_vocab_limit=False, minloglevel=2
    )
    tokenizer = SentencePieceBackend(vocab_file=str(tmp_path / "m.model"), unk_token="<unk>", eos_token="</s>")
    ids = [*tokenizer.encode("The Tower in Paris 居里", add_special_tokens=False), tokenizer.eos_token_id, 5000]
    text, offsets = token_offsets(tokenizer, ids)
    kept = [tokenizer.convert_ids_to_tokens(index) for index in ids[:-2]]
    kept = [None if token == "<unk>" else token for token in kept]
    assert (text, offsets) == _oracles.metaspace([*kept, None, None])
    assert text.startswith("The Tower in Paris")


class Custom:
    """A decoder in Python: upper case, and bytes as GPT-2 writes them."""

    def decode_chain(self, tokens):
        return [gpt2_join(tokens).upper()]


@pytest.mark.parametrize(
    "decoder, tokens, text, written",
    [
        # Bytes: é is C3 A9; the last character is broken off.
        (decoders.Decoder.custom(Custom()), "a|Ã|©|bĠ|å|±", "AÉB �", "0:1 1:2 1:2 2:4 4:5 4:5"),
        (decoders.Decoder.custom(Custom()), "å|a", "�A", "0:1 1:2"),
        (decoders.Replace(Regex("_+"), " "), "a|__b|c_|_d", "a bc  d", "0:1 1:3 3:5 5:7"),
        (decoders.CTC(pad_token="-"), "h|e|l|-|l", "hell", "0:1 1:2 2:3 3:3 3:4"),
    ],
    ids=["bytes", "broken bytes", "regular expression", "CTC"],
)
def test_unknown_decoder_by_hand(decoder, tokens, text, written):
    tokens = tokens.split("|")
    tokenizer = small(list(dict.fromkeys(tokens)), decoder)
    ids = [tokenizer.bos_token_id, *tokenizer.convert_tokens_to_ids(tokens), 10_000]
    assert token_offsets(tokenizer, ids) == (text, [(0, 0), *ranges(written), (len(text), len(text))])


def test_unknown_decoder_is_logged_once(caplog):
    class Unheard(PreTrainedTokenizerFast):
        pass

    backend = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer = Unheard(tokenizer_object=backend)
    tokenizer.backend_tokenizer.decoder = decoders.Decoder.custom(Custom())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert token_offsets(tokenizer, [0, 1]) == ("AB", [(0, 1), (1, 2)])
    assert [re.search("Unheard.*quadratic", record.message) is not None for record in caplog.records] == [True]


# Time. Ratios within one run, each side the best of several; timeit keeps the garbage collector out.

BROKEN = [["Ģ"], ["a", "Ģ"], ["ð", "Ł"], ["Ã", "</s>", "©"], ["</s>"]]


@pytest.mark.slow
def test_long_texts_take_no_time():
    """Broken bytes and whole ones; where the time grows with the square it would take a minute each."""
    for pattern in BROKEN:
        ids = ids_of(byte_level(), *pattern) * (20_000 // len(pattern))
        assert len(token_offsets(byte_level(), ids).offsets) == len(ids)


def best_time(function, repeats):
    return min(timeit.repeat(function, timer=time.process_time, number=1, repeat=repeats))


def long_ids(tokenizer, n):
    ids = tokenizer.encode(" ".join(CORPUS), add_special_tokens=False)
    return (ids * (n // len(ids) + 1))[:n]


@pytest.mark.slow
@every_family
def test_linear_in_length(family):
    tokenizer = FAMILIES[family][0]()
    runs = [long_ids(tokenizer, n) for n in (1000, 4000)]
    short, long = (best_time(lambda ids=ids: token_offsets(tokenizer, ids), 7) for ids in runs)
    ratio = long / short
    assert ratio < 8, f"4 times the tokens took {ratio:.1f} times as long"  # quadratic: 16


@pytest.mark.slow
@pytest.mark.parametrize("family", ["byte-level BPE", "byte fallback, stripped", "unigram", "WordPiece", "word-level"])
def test_twenty_times_faster_than_decoding_prefixes(family):
    tokenizer = FAMILIES[family][0]()
    ids = long_ids(tokenizer, 2000)

    def prefixes():
        return [len(tokenizer.decode(ids[:end], skip_special_tokens=True)) for end in range(1, len(ids) + 1)]

    ratio = best_time(prefixes, 2) / best_time(lambda: token_offsets(tokenizer, ids), 5)
    assert ratio > 20, f"only {ratio:.1f} times faster"

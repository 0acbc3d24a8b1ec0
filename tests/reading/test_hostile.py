"""Any text is read, in time that grows with its length, into ranges that lie in it."""

import random
import re
import time

import pytest

from hf_factuality.reading import completion, read
from hf_factuality.reading.completion import Reading, passage_sentences, without_citations
from hf_factuality.reading.words import ascii_words
from tests.conftest import fast_few
from tests.reading.cases import load


MARKS = [*"|*_`#<>[]()\\$^~&;!\r\n\t\0 ", "\r\n", "```", "$$", "&amp;", "\\*", "[^1]", "<sup>", "</sup>", "![a](b)", "[x](y)",
         "\u2028", "\ud800", "| a | b |\n|---|---|\n", "> ", "- ", "1. ", "<!-- ", "-->", "<think>", "</think>"]  # fmt: skip


@pytest.mark.parametrize("inside", ["", "'"])
def test_ascii_words_are_those_of_a_pattern(inside):
    draw, pattern = random.Random(5), re.compile(f"[A-Za-z{inside}]+")
    for _ in range(3000):
        text = "".join(map(chr, draw.choices(range(128), k=draw.randint(0, 40))))
        assert ascii_words(text, inside) == [word.lower() for word in pattern.findall(text)]


@pytest.mark.parametrize(
    "text", ["A [1] b. See (Smith, 2020). C.", "# T\n\nx [1](http://a.b). y", "Plain (1999) text."]
)
def test_a_passage_is_read_alike_whoever_reads_it_first(text):
    found = []
    for readers in ((passage_sentences, without_citations), (without_citations, passage_sentences)):
        for cached in (completion._read_passage, *readers):
            cached.cache_clear()
        found.append({reader.__name__: reader(text) for reader in readers})
    assert found[0] == found[1]


def compositions(seed, count):
    draw = random.Random(seed)
    texts = [case.text for name in ("markup", "citations", "answers", "declining", "whole") for case in load(name)]
    bits = [text[at : at + draw.randint(1, 40)] for text in texts for at in range(0, len(text), 37)] + MARKS * 20
    for _ in range(count):
        yield "".join(draw.choice(bits) for _ in range(draw.randint(1, 12))), draw.random() < 0.2


def check(text, opened):
    found = Reading(text, opened)
    sentences = [(it.start, it.end) for it in found.sentences]
    assert all(0 <= start < end <= len(text) for start, end in sentences)
    assert all(end <= start for (_, end), (start, _) in zip(sentences, sentences[1:], strict=False)), sentences
    for it in found.citations:
        assert 0 <= it.start < it.end <= len(text)
        assert all(0 <= number < len(sentences) for number in it.sentences)
    assert all(0 <= it.start <= it.end <= len(text) for it in found.blocks)
    start, end = found.final_range
    assert 0 <= start <= end <= len(text)
    assert not (found.declines and found.statements)


@pytest.mark.slow
def test_ranges_of_random_texts():
    for text, opened in compositions(0, 400):
        check(text, opened)


@pytest.mark.slow
def test_ranges_of_ten_thousand_random_texts():
    for text, opened in compositions(1, 10_000):
        check(text, opened)


@pytest.mark.parametrize(
    "piece",
    fast_few(["A.\n", "Ulm [1, ", "Ulm is here [1-999]. [2] It is so.[3]\n", "[", "**", "`", "> ", "- a\n", "| b |\n", "a. ", "<think>", "(1) a ", "我不知道，",
     "I can't ", "http://a.b/ ", "¹a", "*a ", "$a ", "\\boxed{", "#### ", "<a ", "[^1]: a\n\n", "no information about ", "[VERIFY] wrong "], 0, 6, 9, 12, 18, 21),
)  # fmt: skip
def test_time_grows_with_the_length(piece):
    """One of 10,000 characters and one of four times as many: quadratic time would take 16 times as long."""

    def seconds(size):
        text = (piece * size)[:size]
        began = time.process_time()
        found = Reading(text)
        assert found.sentences is not None and found.final_range and found.declines in (True, False)
        return time.process_time() - began

    seconds(2_000)
    short, long = min(seconds(10_000) for _ in range(2)), seconds(40_000)
    assert long < 10 * max(short, 0.2)


def test_the_same_text_is_read_once():
    text = "Ada Hale was born in Leeds. " * 3
    assert read(text) is read(text)

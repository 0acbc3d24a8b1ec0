import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_factuality.reading.sentences import _UNSAFE, guess_language, segmentation_language, sentence_offsets
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers import SentenceExtractor, VerifierInput
from tests.tables import cases


def texts(text, **kwargs):
    return [text[start:end] for start, end in sentence_offsets(text, **kwargs)]


@cases("sentences", "sentences", "text", "expected")
def test_sentences(text, expected):
    assert texts(text) == expected


def test_the_number_of_a_list_item_is_no_part_of_its_span():
    text = "1. Born in Ulm.\n(b) Died in 1955.\n1879 was a common year."
    assert SentenceExtractor().extract([VerifierInput(text), VerifierInput("")]) == [
        [LabeledSpan(3, 15), LabeledSpan(20, 33), LabeledSpan(34, 57)],
        [],
    ]


@cases("sentences", "language", "text", "expected")
def test_language(text, expected):
    assert guess_language(text) == expected


def test_language_can_be_fixed():
    # German numbers its dates with a full stop.
    text = "Er wurde am 14. März 1879 geboren. Er starb 1955."
    assert texts(text, language="de") == ["Er wurde am 14. März 1879 geboren.", "Er starb 1955."]
    assert len(SentenceExtractor("de").extract([VerifierInput(text)])[0]) == 2


def test_a_panic_of_the_splitter_is_not_the_end(monkeypatch):
    class PanicException(BaseException):
        pass

    def panic(language, text):
        raise PanicException("byte index 3 is not a char boundary")

    monkeypatch.setattr("hf_factuality.reading.sentences.sentencex.get_sentence_boundaries", panic)
    assert texts("He was born. 他走了。Bye") == ["He was born.", "他走了。", "Bye"]

    def interrupt(language, text):
        raise KeyboardInterrupt

    monkeypatch.setattr("hf_factuality.reading.sentences.sentencex.get_sentence_boundaries", interrupt)
    with pytest.raises(KeyboardInterrupt):
        sentence_offsets("He was born.")


PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        [
            ". ",
            "! ",
            "。",
            "？",
            "\n",
            "\r\n",
            "\u2028",
            "\u3000",
            "\u2003",
            "J. ",
            "1. ",
            "(a) ",
            "- ",
            "**",
            "| ",
            "“",
            "”",
            '"',
            "…",
        ]
    ),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from([None, "en", "zh"]))
def test_offsets_partition_the_letters(text, language):
    spans = sentence_offsets(text, language)
    outside, previous = list(text), 0
    for start, end in spans:
        assert previous <= start < end <= len(text)
        assert not text[start].isspace() and not text[end - 1].isspace()
        assert any(character.isalnum() for character in text[start:end])
        assert len(text[start:end].splitlines()) == 1
        outside[start:end] = " " * (end - start)
        previous = end
    assert not any(character.isalnum() for character in outside)


def test_thousands_of_sentences_a_second():
    text = "Dr. Smith went to Washington on Jan. 5, 2020. He paid $3.5 million!\n- a list item\n" * 1000
    start = time.process_time()
    count = len(sentence_offsets(text))
    assert count == 3000
    assert count / (time.process_time() - start) > 5000


def test_long_runs_do_not_take_quadratic_time():
    start = time.process_time()
    for text in (" " * 200_000 + "a", "*" * 200_000, "a" * 200_000, "1" * 200_000, "\n" * 200_000, ". " * 50_000):
        sentence_offsets(text)
    assert time.process_time() - start < 5


@pytest.mark.parametrize("unit", ["Answer: 1. ", "x: 1. Yes. ", "Reasons: 1. One. 2. Two. "])
def test_numbers_behind_colons_do_not_take_quadratic_time(unit):
    start = time.process_time()
    assert len(sentence_offsets(unit * 10_000)) >= 10_000
    assert time.process_time() - start < 5


def test_all_white_space_but_the_space_is_kept_from_the_splitter():
    unsafe = {chr(code) for code in range(0x110000) if _UNSAFE.fullmatch(chr(code))}
    expected = {chr(code) for code in range(0x110000) if chr(code).isspace() or 0xD800 <= code < 0xE000}
    assert unsafe == (expected - {" "}) | {"<", ">"}


def test_a_tie_of_two_languages_does_not_hang_on_the_order_of_a_set():
    # "en" and "la" are words of French and of Spanish: the earlier one in the list wins.
    assert segmentation_language("Nadie vive en la isla desde 1970.") == "fr"

"""Who declines, on texts that were labelled by hand in ten languages, and how long that takes."""

import json
import time

import pytest

from hf_factuality.reading.completion import Reading
from hf_factuality.reading.declining import declines_as_a_whole, is_refusal
from tests.reading.cases import FOLDER, load, precision_and_recall, unmarked


CASES = [case for name in ("declining", "whole") for case in load(name) if "declines" in case.expected]
MORE = json.loads((FOLDER / "declining_more.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_labelled_answers(case):
    assert Reading(case.text).declines == case.expected["declines"]


def test_precision_and_recall_in_ten_languages():
    """The texts were written before the rules met them; the rules were mended on them after."""
    assert len(MORE) == 300 and len({row["language"] for row in MORE}) == 10
    precision, recall = precision_and_recall(
        "mended on", [(unmarked(row["text"])[0], row["declines"]) for row in MORE]
    )
    assert precision >= 0.97 and recall >= 0.95


@pytest.mark.parametrize(
    ("sentence", "refuses"),
    [
        ("Unfortunately, the passage does not say.", True),
        ("I'm sorry, but I cannot answer that question.", True),
        ("Leider geht das aus dem Text nicht hervor.", True),
        ("很抱歉，我无法回答这个问题。", True),
        ("申し訳ありませんが、お答えできません。", True),
        # What others do not know or do is a claim, and so is what is not so.
        ("He was unable to answer the question.", False),
        ("She had no idea that the painting was a Vermeer.", False),
        ("Penguins cannot fly.", False),
        ("The magazine does not accept unsolicited manuscripts.", False),
        ("他不知道那幅画是真迹。", False),
        ("水无法感知人类的情感。", False),
        ("彼は行き先を知らなかった。", False),
        ('"I don\'t know," said Alice, and ran after the rabbit.', False),
        ("The text names not only Leeds, but Bradford too.", False),
        # What is unknown to everybody can be checked.
        ("The cause of the fire remains unknown.", False),
    ],
)
def test_sentences_that_decline_are_no_claims(sentence, refuses):
    assert is_refusal(sentence) == refuses


def test_an_answer_declines_where_a_sentence_only_tells_that_nobody_knows():
    text = "The cause of the fire remains unknown."
    assert Reading(text).declines and not is_refusal(text)
    assert not Reading(f"{text} It broke out in 1911.").declines


def test_a_sentence_that_declines_is_an_answer_that_declines():
    """Both levels, on every sentence of the labelled texts."""
    sentences = [
        sentence.says
        for text in [*(case.text for case in CASES), *(row["text"] for row in MORE)]
        for sentence in Reading(text).sentences
        if sentence.kind == "refusal"
    ]
    assert len(sentences) > 120
    # Of a sentence the rules decide, of a short answer the model: they may differ in few.
    assert len([sentence for sentence in sentences if not Reading(sentence).declines]) <= 1


def test_answers_that_commit_keep_their_statements():
    """No statement is left of a text with one sentence only if it declines."""
    for row in MORE:
        reading = Reading(row["text"])
        if not row["declines"] and not reading.declines and len(reading.sentences) == 1:
            assert reading.sentences[0].kind != "refusal", row["text"]


@pytest.mark.parametrize(
    "text",
    [
        "I don't know.\n\n```python\nprint(4)\n```",
        "I don't know.\n\n| a | b |\n|---|---|\n| 1 | 2 |",
        "Probably the Danube?",
        "",
        "...",
    ],
)
def test_what_is_shown_or_asked_does_not_decline(text):
    assert not Reading(text).declines


@pytest.mark.parametrize(
    "unit",
    [
        "i really ", "the text ", "there is no a a a a ", "who knows ", "je ne ", "le texte ne ", "ich ", "der text ", "no lo ",
        "il testo ", "não ", "не ", "नहीं ", "मैं ", "文档没有", "不", "わからない、", "ません", "“", '"', "«", "but ", "1, ", "*", "a",
    ],
)  # fmt: skip
def test_time_grows_with_the_length(unit):
    def seconds(size):
        start = time.process_time()
        text = (unit * (size // len(unit) + 1))[:size]
        is_refusal.__wrapped__(text[:1500])
        assert isinstance(Reading(text).declines, bool)
        return time.process_time() - start

    assert seconds(100_000) < max(20 * seconds(20_000), 4)


@pytest.mark.parametrize(
    ("answer", "declines"),
    [
        ("I have booked your flight.", False),
        ("We've sent the email to Bob.", False),
        ("I deleted the file.", False),
        ("I have cancelled your subscription.", False),
        ("I have limited information about this topic.", True),
        ("I have not updated the file, since I do not know it.", True),
        ("I ran out of information.", True),
    ],
)
def test_what_an_agent_did_is_no_refusal(answer, declines):
    assert declines_as_a_whole([answer]) is declines

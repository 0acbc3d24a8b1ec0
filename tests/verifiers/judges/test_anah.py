import logging
import re

import pytest

from hf_factuality.spans import Label
from hf_factuality.verifiers import VerifierPipeline
from hf_factuality.verifiers.base import JudgeInput, VerifierInput
from hf_factuality.verifiers.judges.anah import TYPE_TAGS, ANAHJudge, ANAHVerifier, parse_tag
from tests.generation.fake_server import FakeServer
from tests.tables import cases
from tests.verifiers import hostile
from tests.verifiers.test_hostile import TEXTS, Model, stated
from tests.verifiers.test_hostile_answers import judged, number


DOCUMENT = ("Ada Hale was born in Leeds.", "She studied chemistry.")
ENGLISH = {
    "I hope this helps.": ["<No Facts>"],
    "Ada was born in Leeds.": ["<Facts Present>", "Ada Hale was born in Leeds.", "<No Hallucination>"],
    "Ada was born in York.": ["<Facts Present>", "Ada Hale was born in Leeds.", "<Contradictory>"],
    "Ada had three cats.": ["<Facts Present>", "Ada Hale was born in Leeds.<SEP>She studied.", "<Unverifiable>"],
    "Rome is old.": ["<Facts Present>", "<No Reference Information>"],
}
CHINESE = {
    "希望对你有帮助。": ["<无事实>"],
    "她生于利兹。": ["<有事实>", "艾达生于利兹。", "<无幻觉>"],
    "她生于约克。": ["<有事实>", "艾达生于利兹。", "<矛盾>"],
    "她养了三只猫。": ["<有事实>", "艾达生于利兹。", "<无法验证>"],
    "罗马很古老。": ["<有事实>", "<无参考信息>"],
}
LABELS = [Label.NO_FACT, Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.UNVERIFIABLE]


def sentence_of(body):
    first = body["messages"][0]["content"]
    return re.search(r"\[BEGIN SENTENCE (\w+)\]\n(.*)\n\[END SENTENCE \1\]", first, re.DOTALL)[2]


def annotator(script):
    return lambda prompt, body: script[sentence_of(body)][len(body["messages"]) // 2]


@pytest.mark.parametrize("script", [ENGLISH, CHINESE], ids=["en", "zh"])
@pytest.mark.parametrize("field", ["structured_outputs", None])
def test_three_turns(script, field):
    with FakeServer(annotator(script), choice_field=field) as server:
        judge = ANAHJudge(server.client())
        found = judge.judge([JudgeInput(sentence, DOCUMENT, "Who was Ada Hale?") for sentence in script])
        assert [judgement.label for judgement in found] == LABELS
        assert [judgement.evidence for judgement in found] == [
            None,
            *(turns[1] for turns in list(script.values())[1:4]),
            None,
        ]
        assert judge.last_report.unknown == 0
        assert sum("[BEGIN SENTENCE" in prompt for prompt in server.answered.elements()) == 1 + 3 * 3 + 2


def test_the_turns_stay_in_the_conversation():
    with FakeServer(annotator(ENGLISH)) as server:
        ANAHJudge(server.client()).judge([JudgeInput("Ada had three cats.", DOCUMENT, "Who?")])
        messages = server.bodies[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant"] * 2 + ["user"]
    assert messages[1]["content"] == "<Facts Present>"
    assert messages[3]["content"] == "Ada Hale was born in Leeds.<SEP>She studied."
    assert "Ada Hale was born in Leeds.\n\nShe studied chemistry.\n[END DOCUMENT" in messages[2]["content"]
    assert "Ada Hale was born in Leeds.<SEP>She studied.\n[END REFERENCE" in messages[4]["content"]
    assert all("Who?\n[END QUESTION" in messages[i]["content"] for i in (0, 2, 4))


def test_the_language_decides_the_prompts():
    with FakeServer(lambda prompt, body: "?") as server:
        for sentence, language, expected in (
            ("Ada.", None, "<No Facts>"),
            ("她生于利兹。", None, "<无事实>"),
            ("Ada.", "zh", "<无事实>"),
        ):
            server.bodies.clear()
            ANAHJudge(server.client(), language).judge([JudgeInput(sentence, DOCUMENT)])
            assert expected in server.bodies[-1]["messages"][0]["content"]
        with pytest.raises(ValueError, match="language"):
            ANAHJudge(server.client(), "de")


@cases("judges", "anah_tags", "text", "expected")
def test_tags(text, expected):
    assert parse_tag(text, TYPE_TAGS["en"]) == expected


@cases("judges", "anah_unreadable", "turns")
def test_what_cannot_be_read_is_unknown(turns, caplog):
    turns = [tuple(turn) if isinstance(turn, list) else turn for turn in turns]
    with FakeServer(annotator({"Ada.": turns})) as server, caplog.at_level(logging.WARNING):
        judge = ANAHJudge(server.client())
        (found,) = judge.judge([JudgeInput("Ada.", DOCUMENT)])
        assert found.label is None
        assert len(server.bodies) == len(turns) + 2 + 2 * (len(turns) > 3)  # and two probes
        assert (judge.last_report.unparsed, judge.last_report.failed) == (1, 0)
        assert "1 of 1 claims" in caplog.text


def test_passages_are_kept_where_the_last_request_fails():
    script = {"Ada.": ["<Facts Present>", "Ada was born."]}
    with FakeServer(
        annotator(script), trouble=lambda prompt, count: 400 if "Ada was born." in prompt else None
    ) as server:
        judge = ANAHJudge(server.client())
        (found,) = judge.judge([JudgeInput("Ada.", DOCUMENT)])
    assert (found.label, found.evidence) == (None, "Ada was born.")
    assert (judge.last_report.unparsed, judge.last_report.failed) == (0, 1)


def test_without_document_or_sentence():
    with FakeServer(annotator(ENGLISH)) as server:
        found = ANAHJudge(server.client()).judge(
            [JudgeInput("I hope this helps.", ()), JudgeInput("Rome is old.", (" ",)), JudgeInput("...", DOCUMENT)]
        )
        assert [judgement.label for judgement in found] == [Label.NO_FACT, Label.UNVERIFIABLE, Label.NO_FACT]
        assert not any("REFERENCE" in prompt or "DOCUMENT" in prompt for prompt in server.answered)


def test_own_prompts(tmp_path):
    for turn, field in (("fact", "question"), ("reference", "document"), ("type", "reference")):
        for language in ("en", "zh"):
            text = f"{turn} {{{{question|plain}}}} {{{{sentence|plain}}}} {{{{{field}|plain}}}}"
            (tmp_path / f"anah_{turn}_{language}.txt").write_text(text)
    replies = iter(["<Facts Present>", "Born.", "<No Hallucination>"])
    with FakeServer(lambda prompt, body: next(replies)) as server:
        (found,) = ANAHJudge(server.client(), prompts=tmp_path).judge([JudgeInput("Ada.", ("Doc.",), "Who?")])
        assert server.bodies[-1]["messages"][-1]["content"] == "type Who? Ada. Born."
    with FakeServer() as server, pytest.raises(FileNotFoundError):
        ANAHJudge(server.client(), prompts=tmp_path / "none")


def test_verifier():
    with FakeServer(annotator(ENGLISH)) as server:
        verifier = ANAHVerifier("fake", server.url, cache=False)
        text = " ".join(ENGLISH)
        (found,) = verifier.verify([VerifierInput(text, "Who?", DOCUMENT)])
        assert [span.label for span in found.spans] == LABELS
        assert [span.text(text) for span in found.spans] == list(ENGLISH)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_hostile_answers(language):
    def answering(turn):
        honest = ("<Facts Present>", "A passage.", "<No Hallucination>")
        return Model(
            lambda request: (
                TEXTS[number(request)] if len(request.messages) == 2 * turn + 1 else honest[len(request.messages) // 2]
            )
        )

    for turn in (0, 2):
        found = judged(ANAHJudge(answering(turn), language), len(TEXTS))
        wrong = [text for text, judgement in zip(TEXTS, found, strict=True) if judgement.label is not None]
        # White space inside a tag does not matter.
        assert wrong == (["u n v e r i f i a b l e"] if turn == 2 else [])
    # In turn 2 a text is a quotation; it is one only if it says something, and turn 3 decides.
    found = judged(ANAHJudge(answering(1), language), len(TEXTS))
    for text, judgement in zip(TEXTS, found, strict=True):
        assert judgement.label in (None, Label.SUPPORTED)
        assert judgement.label is None or stated(text.replace("<SEP>", "")) and judgement.evidence == text.strip()
    for tag, meaning in hostile.TAGS.items():
        turn = 0 if meaning == "nofact" else 2
        turns = ["<Facts Present>", "A passage.", ""]
        turns[turn] = tag
        judge = ANAHJudge(Model(lambda request, turns=turns: turns[len(request.messages) // 2]), language)
        assert judged(judge, 1)[0].label is (Label.NO_FACT if meaning == "nofact" else Label.SUPPORTED)


def test_hostile_claims():
    """Whatever a claim says, its verdict is the annotator's."""
    turns = ["<Facts Present>", "Some passage.", "<Contradictory>"]
    judge = ANAHJudge(Model(lambda request: turns[len(request.messages) // 2]))
    found = judge.judge([JudgeInput(text, (text, "A document."), text) for text in TEXTS])
    assert [j.label for j in found] == [Label.CONTRADICTED if stated(text) else Label.NO_FACT for text in TEXTS]


def test_saved_with_its_prompts(tmp_path):
    verifier = ANAHVerifier("fake", "http://127.0.0.1:9/v1", "zh", cache=False)
    folder = verifier.save_pretrained(tmp_path)
    loaded = VerifierPipeline.from_pretrained(folder, client={"cache": False})
    assert loaded.judge.language == "zh"
    for (turn, language), prompt in verifier.judge.prompts.items():
        assert loaded.judge.prompts[turn, language].text == prompt.text
        assert (folder / f"prompts/judge/prompts/anah_{turn}_{language}.txt").is_file()

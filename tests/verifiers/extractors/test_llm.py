import logging
import re

import pytest

from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers import VerifierInput, VerifierPipeline
from hf_factuality.verifiers.extractors.anchor import anchor_claim
from hf_factuality.verifiers.extractors.llm import (
    FActScoreExtractor,
    RLFHExtractor,
    VeriScoreExtractor,
    parse_claims,
    parse_statements,
)
from hf_factuality.verifiers.judges.llm import LLMJudge
from tests.generation.fake_server import FAST, FakeServer
from tests.tables import cases


TEXT = "Ada Hale was born in Leeds and studied chemistry. She died in 1974. She is missed."
SENTENCES = [(0, 49), (50, 67), (68, 82)]
SENTENCE_WISE = [FActScoreExtractor, VeriScoreExtractor]
ALL = [*SENTENCE_WISE, RLFHExtractor]


def block(prompt, name):
    found = re.search(rf"\[BEGIN {name} (\w+)\]\n(.*)\n\[END {name} \1\]", prompt, re.DOTALL)
    return found and found[2]


def by_sentence(answers, nothing):
    return lambda prompt, body: answers.get(block(prompt, "SENTENCE"), nothing)


CLAIMS = {
    TEXT[0:49]: "- Ada Hale was born in Leeds.\n- Ada Hale studied chemistry.",
    TEXT[50:67]: "- Ada Hale died in 1974.",
}


# ---- reading an answer


@cases("extraction", "claims", "text", "expected")
def test_lists_of_claims(text, expected):
    assert parse_claims(text, "No facts.") == expected


def test_claims_without_end():
    assert parse_claims("- " + "a" * 1001, "No facts.") is None and parse_claims("- a\n" * 101, "No facts.") is None


@cases("extraction", "statements", "text", "expected")
def test_two_levels(text, expected):
    found = parse_statements(text, "No statements.")
    assert (found and [list(pair) for pair in found]) == expected


# ---- anchoring


@cases("extraction", "anchors", "claim", "text", "expected", "how")
def test_anchors(claim, text, expected, how):
    around = frozenset({"ada", "hale"})
    for lead, tail in (("", ""), ("Before. ", " After Ada was born in Leeds.")):
        whole = lead + text + tail
        start, end, found = anchor_claim(claim, whole, (len(lead), len(lead) + len(text)), around)
        assert (whole[start:end], found) == (expected, how)


def test_anchors_agree_with_a_slow_search():
    """The aligned stretch is a shortest one: every shorter window holds a shorter common subsequence."""

    def common(a, b):
        row = [0] * (len(b) + 1)
        for x in a:
            before = 0
            for j, y in enumerate(b):
                before, row[j + 1] = row[j + 1], (before + 1 if x == y else max(row[j + 1], row[j]))
        return row[-1]

    words = "ada lee york ulm wrote sang moved 1902 1974".split()
    for seed in range(150):
        text = " ".join(words[(seed * 7 + i * i * 3 + i) % 9] for i in range(12))
        claim = " ".join(words[(seed * 5 + i * 4 + i * i) % 9] for i in range(4))
        start, end, how = anchor_claim(claim, text, (0, len(text)))
        whole, wanted, found = text.split(), claim.split(), text[start:end].split()
        assert common(wanted, found) == common(wanted, whole)
        if how == "aligned":
            longest = common(wanted, whole)
            assert common(wanted, found[1:]) < longest and common(wanted, found[:-1]) < longest


# ---- sentence by sentence


@pytest.mark.parametrize("extractor", SENTENCE_WISE)
def test_claims_of_sentences(extractor):
    with FakeServer(by_sentence(CLAIMS, extractor.nothing)) as server:
        found = extractor(server.client())
        assert found.extract([VerifierInput(TEXT), VerifierInput("")]) == [
            [
                LabeledSpan(0, 26, claim="Ada Hale was born in Leeds."),
                LabeledSpan(0, 48, claim="Ada Hale studied chemistry."),
                LabeledSpan(54, 66, claim="Ada Hale died in 1974."),
            ],
            [],
        ]
        report = found.last_report
        assert (report.units, report.claims, report.exact, report.aligned, report.unparsed) == (3, 3, 1, 2, 0)
        (extraction,) = found.extract_claims([VerifierInput(TEXT)])
        assert [claim.sentence for claim in extraction.claims] == [SENTENCES[0], SENTENCES[0], SENTENCES[1]]
        assert [claim.anchor for claim in extraction.claims] == ["exact", "aligned", "aligned"]
        assert extraction.unknown == ()


@pytest.mark.parametrize("extractor", ALL)
def test_slices_are_put_together(extractor, monkeypatch):
    answer = RLFH_ANSWER if extractor is RLFHExtractor else "- She died."
    with FakeServer(lambda prompt, body: answer) as server:
        found = extractor(server.client())
        inputs = [VerifierInput(f"{TEXT} {i}") for i in range(5)]
        whole, report = found.extract_claims(inputs), found.last_report
        monkeypatch.setattr("hf_factuality.verifiers.extractors.llm.SLICE", 2)
        assert found.extract_claims(inputs) == whole and found.last_report == report
        assert len(whole) == 5 and report.claims >= 15


def test_what_the_window_shows():
    text = " ".join(f"Sentence number {i} here." for i in range(8))
    with FakeServer(lambda prompt, body: "No verifiable claim.") as server:
        VeriScoreExtractor(server.client()).extract([VerifierInput(text)])
        asked = {block(body["messages"][0]["content"], "SENTENCE")[-7:-6]: block(body["messages"][0]["content"], "CONTEXT") for body in server.bodies}  # fmt: skip
        assert re.findall(r"\d", asked["0"]) == list("01")
        assert re.findall(r"\d", asked["2"]) == list("0123")
        assert re.findall(r"\d", asked["5"]) == list("023456")  # the lead sentence too
        assert re.findall(r"\d", asked["7"]) == list("04567")
        server.bodies.clear()
        VeriScoreExtractor(server.client()).extract([VerifierInput(text, "Which?")])
        prompts = [body["messages"][0]["content"] for body in server.bodies]
        assert all(block(prompt, "QUESTION") == "Which?" for prompt in prompts)
        assert "...\n" not in max((block(prompt, "CONTEXT") for prompt in prompts), key=len)
    with FakeServer(lambda prompt, body: "No facts.") as server:
        FActScoreExtractor(server.client()).extract([VerifierInput(text)])
        prompts = [body["messages"][0]["content"] for body in server.bodies]
        contexts = {block(p, "SENTENCE")[-7:-6]: block(p, "CONTEXT") for p in prompts}
        assert contexts["0"] is None and re.findall(r"\d", contexts["5"]) == list("234")


def test_facts_that_repeat_or_bring_new_numbers_are_left_out():
    answers = {TEXT[50:67]: "- She died in 1974.\n- she died in 1974\n- She died aged 72.\n- She died."}
    with FakeServer(by_sentence(answers, "No facts.")) as server:
        extractor = FActScoreExtractor(server.client())
        (spans,) = extractor.extract([VerifierInput(TEXT, "Who lived 72 or 3 years?")])
        assert [span.claim for span in spans] == ["She died in 1974.", "She died aged 72.", "She died."]
        (spans,) = extractor.extract([VerifierInput(TEXT)])
        assert [span.claim for span in spans] == ["She died in 1974.", "She died."]
        assert (extractor.last_report.repeated, extractor.last_report.invented) == (1, 1)


def test_a_claim_that_is_nowhere_spans_its_sentence_and_is_counted():
    with FakeServer(by_sentence({TEXT[0:49]: "- Bananas are yellow."}, "No facts.")) as server:
        extractor = FActScoreExtractor(server.client())
        assert extractor.extract([VerifierInput(TEXT)]) == [[LabeledSpan(0, 49, claim="Bananas are yellow.")]]
        assert extractor.last_report.unanchored == 1


# ---- the whole response


RLFH_ANSWER = (
    ">> Sentence 1: Ada Hale was born in Leeds and studied chemistry.\n* Ada Hale was born in Leeds.\n"
    "* Ada Hale studied chemistry.\n>> Sentence 2: She died, in the year 1974.\n* Ada Hale died in 1974."
)


def test_two_levels_are_anchored():
    with FakeServer(lambda prompt, body: RLFH_ANSWER) as server:
        extractor = RLFHExtractor(server.client())
        (found, empty) = extractor.extract_claims([VerifierInput(TEXT), VerifierInput(" ")])
        assert empty.claims == () and len(server.bodies) == 1
        assert [(c.span.start, c.span.end, c.sentence, c.anchor) for c in found.claims] == [
            (0, 26, (0, 49), "exact"),
            (0, 48, (0, 49), "aligned"),
            (54, 66, (50, 67), "aligned"),
        ]


def test_a_sentence_that_is_not_in_the_response():
    answer = ">> Sentence 1: Bananas are yellow fruit.\n* Bananas are yellow.\n* Ada Hale studied chemistry."
    with FakeServer(lambda prompt, body: answer) as server:
        extractor = RLFHExtractor(server.client())
        (found,) = extractor.extract_claims([VerifierInput(TEXT)])
        assert [(c.span.start, c.span.end, c.anchor) for c in found.claims] == [
            (0, 82, "completion"),
            (0, 48, "aligned"),
        ]
        assert extractor.last_report.unanchored == 1


# ---- failure


@pytest.mark.parametrize("extractor", ALL)
def test_an_unreadable_answer_is_asked_for_again_and_warmer(extractor):
    good = {RLFHExtractor: ">> Sentence 1: She died in 1974.\n* She died in 1974."}.get(
        extractor, "- She died in 1974."
    )
    with FakeServer(lambda prompt, body: good if body["temperature"] >= 0.5 else "Sure! " + good) as server:
        found = extractor(server.client())
        assert found.extract([VerifierInput("She died in 1974.")]) == [[LabeledSpan(0, 16, claim="She died in 1974.")]]
        assert [body["temperature"] for body in server.bodies] == [0.0, 0.25, 0.5]
        assert [body.get("seed") for body in server.bodies] == [None, 1, 2]
        assert found.last_report.unparsed == 0


@pytest.mark.parametrize("extractor", ALL)
@pytest.mark.parametrize("reply", ["Sure!", ("- She died in", "length")])
def test_never_readable_is_unknown_and_counted(extractor, reply, caplog):
    with FakeServer(lambda prompt, body: reply) as server, caplog.at_level(logging.WARNING):
        found = extractor(server.client())
        inputs = [VerifierInput(TEXT)]
        assert found.extract_claims(inputs)[0].unknown == tuple(SENTENCES)
        assert found.last_report.unparsed == found.last_report.units
        assert "unknown" in caplog.text
        assert found.extract(inputs) == [[LabeledSpan(s, e, claim=TEXT[s:e]) for s, e in SENTENCES]]
        assert extractor(server.client(), on_failure="drop", retries=0).extract(inputs) == [[]]


def test_a_rejected_request_is_unknown_without_asking_again():
    with FakeServer(by_sentence(CLAIMS, "No facts."), trouble=lambda p, n: 400 if "[BEGIN SENTENCE" in p and "1974." in block(p, "SENTENCE") else None) as server:  # fmt: skip
        extractor = FActScoreExtractor(server.client())
        (found,) = extractor.extract_claims([VerifierInput(TEXT)])
        assert found.unknown == (SENTENCES[1],) and len(found.claims) == 2
        assert extractor.last_report.failed == 1 and "HTTP 400" in extractor.last_report.first_error
        assert len(server.bodies) == 3


@pytest.mark.slow
@pytest.mark.parametrize("extractor", ALL)
def test_a_megabyte(extractor):
    with FakeServer(lambda prompt, body: "No facts.") as server:
        text = "word " * 200_000
        (found,) = extractor(server.client()).extract_claims([VerifierInput(text)])
        assert len(found.unknown) == 1 and not server.bodies  # not sent


@pytest.mark.parametrize(
    "bad", [{"retries": -1}, {"temperature": -1.0}, {"max_tokens": 0}, {"on_failure": "supported"}]
)
def test_bad_arguments(bad):
    with FakeServer() as server, pytest.raises(ValueError):
        RLFHExtractor(server.client(), **bad)


def test_in_a_pipeline(tmp_path):
    def reply(prompt, body):
        if "[BEGIN CLAIM" in prompt:
            return "contradicted" if "1974" in block(prompt, "CLAIM") else "supported"
        return CLAIMS.get(block(prompt, "SENTENCE"), "No facts.")

    with FakeServer(reply) as server:
        client = server.client(cache=tmp_path / "c", retry=FAST)
        pipeline = VerifierPipeline(FActScoreExtractor(client), LLMJudge(client))
        first = pipeline.verify([VerifierInput(TEXT, "Who?", ("Evidence.",))])
        sent = len(server.bodies)
        assert [span.label for span in first[0].spans] == [Label.SUPPORTED, Label.SUPPORTED, Label.CONTRADICTED]
        assert first[0].validate(TEXT) is first[0]
        assert pipeline.verify([VerifierInput(TEXT, "Who?", ("Evidence.",))]) == first
        assert len(server.bodies) == sent


@pytest.mark.parametrize("extractor", SENTENCE_WISE)
def test_what_states_nothing_is_not_asked_about(extractor):
    text = f"# Ada Hale\n\n{TEXT[:49]}[1] Any questions? I don't know more.\n\n## Sources\n\n[1] A book."
    with FakeServer(lambda prompt, body: "- Ada Hale was born in Leeds.") as server:
        own = extractor(server.client())
        (found,) = own.extract([VerifierInput(text)])
    assert own.last_report.units == 1 and len(found) == 1 and found[0].end <= text.index("[1]")

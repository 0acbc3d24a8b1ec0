"""More than 1,200 hostile texts as completions, claims and evidence: no crash, valid offsets, nothing supported."""

import json
import re
from collections.abc import Sequence

import pytest

from hf_factuality import Label
from hf_factuality.cli import main
from hf_factuality.generation.client import ChatAnswer
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.report import ReportSample, paint, render_report
from hf_factuality.verifiers import (
    JudgeInput,
    LexicalJudge,
    LexicalVerifier,
    SentenceExtractor,
    VerifierInput,
    VerifierPipeline,
)
from hf_factuality.verifiers.ensemble import MajorityJudge
from hf_factuality.verifiers.extractors.anchor import anchor_claim
from hf_factuality.verifiers.extractors.llm import FActScoreExtractor, RLFHExtractor, VeriScoreExtractor
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.judges.llm import LLMJudge
from hf_factuality.verifiers.judges.minicheck import MiniCheckJudge
from hf_factuality.verifiers.judges.nli import NLIJudge
from tests.conftest import fast_few, searched
from tests.report.marks import Marks, without_own_script
from tests.verifiers import hostile
from tests.verifiers.judges.test_hhem import folders, make  # noqa: F401
from tests.verifiers.judges.test_minicheck import folder  # noqa: F401
from tests.verifiers.judges.test_nli import THREE_WAY, save_model


TEXTS = hostile.every_hostile()
# Shares no content word with any of them, so that whoever calls one supported has been talked into it.
EVIDENCE = ("The lighthouse keeper of Skagen painted seventeen boats green.",)
FACT = "The lighthouse keeper of Skagen painted seventeen boats green."
SUPPORTED = (Label.SUPPORTED, Label.HEDGED_SUPPORTED)
EXTRACTORS = [FActScoreExtractor, VeriScoreExtractor, RLFHExtractor]


class Model:
    """Stands where a [`ChatClient`] stands; answers `reply(request)`."""

    model = "fake"

    def __init__(self, reply):
        self.reply = reply

    def chat(self, requests: Sequence) -> list[ChatAnswer]:
        return [ChatAnswer(self.reply(request)) for request in requests]


def stated(text):
    return any(character.isalnum() for character in text)


def words(text):
    return " ".join(text.split()).strip(".。 ").casefold()


def test_there_are_a_thousand_and_the_same_ones_each_time():
    assert len(TEXTS) == len(set(TEXTS)) >= 1000
    assert hostile.every_hostile() == TEXTS
    assert not set(TEXTS) & {*hostile.VERDICTS, *hostile.TAGS, *hostile.VOTES, *hostile.PAIRS}
    assert not any("lighthouse" in text or "Skagen" in text for text in TEXTS)


# ---- offsets


@pytest.mark.slow
def test_sentences():
    for text, spans in zip(TEXTS, SentenceExtractor().extract([VerifierInput(text) for text in TEXTS]), strict=True):
        ranges = sentence_offsets(text)
        own = [(span.start, span.end) for span in spans]
        assert all(0 <= start < end <= len(text) for start, end in own) and own == sorted(own)
        assert all(0 <= start < end <= len(text) for start, end in ranges)
        assert all(end <= start for (_, end), (start, _) in zip(ranges, ranges[1:], strict=False))
        covered = "".join(text[start:end] for start, end in ranges)
        assert [c for c in covered if c.isalnum()] == [c for c in text if c.isalnum()]


def test_anchors():
    """A sentence is found in its text by its very words, another text's sentence stays inside."""
    sentences = [(text, start, end) for text in TEXTS for start, end in sentence_offsets(text)[:3]]
    exact = 0
    for number, (text, start, end) in enumerate(sentences):
        claim = text[start:end][:2000]
        first, last, how = anchor_claim(claim, text, (0, len(text)))
        assert 0 <= first <= last <= len(text)
        if how == "exact":
            exact += 1
            assert words(text[first:last]) == words(claim)
        other = sentences[(number * 7 + 1) % len(sentences)][0][:2000]
        first, last, how = anchor_claim(other, text, (start, end))
        assert start <= first <= last <= end
        assert how != "sentence" or (first, last) == (start, end)
    # What is left are marks that belong to no word: "(...", "'s", combining characters.
    assert exact > 0.9 * len(sentences) > 1000


@pytest.mark.slow
@searched(4, 1)
@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_claims_of_hostile_completions(extractor, count):
    """The model repeats every first sentence, and adds the text itself as a claim; spans are made of every fourth text."""
    for number, text in enumerate(TEXTS[::count]):
        found = sentence_offsets(text)
        line = " ".join(text[slice(*found[0])].split()) if found else "x"
        said = f">> Sentence 1: {line}\n* {line}\n* {text}" if extractor is RLFHExtractor else f"- {line}\n- {text}"
        reader = extractor(Model(lambda request, said=said: said), retries=0)
        (extraction,) = reader.extract_claims([VerifierInput(text, text)])
        for claim in extraction.claims:
            start, end = claim.span.start, claim.span.end
            assert 0 <= claim.sentence[0] <= start <= end <= claim.sentence[1] <= len(text)
            if claim.anchor == "exact":
                assert words(text[start:end]) == words(claim.span.claim)
            elif claim.anchor == "sentence":
                assert (start, end) == claim.sentence
        if len(text) > 300 or number % 4:
            continue
        (spans,) = reader.extract([VerifierInput(text, text)])
        unknown = {(start, end): text[start:end] for start, end in extraction.unknown}
        assert all(unknown[span.start, span.end] == span.claim for span in spans if (span.start, span.end) in unknown)
        assert len(spans) == len(extraction.claims) + len(unknown)


# ---- judges


@searched(3, 1)
def test_lexical(count):
    judge, texts = LexicalJudge(), TEXTS[::count]
    found = judge.judge([JudgeInput(text, EVIDENCE, text) for text in texts])
    found += judge.judge([JudgeInput(FACT, (text, text[::-1])) for text in texts])
    assert not any(judgement.label in SUPPORTED or judgement.label is None for judgement in found)
    assert all(judgement.score is None or 0 <= judgement.score < 0.5 for judgement in found)
    assert judge.judge([JudgeInput(FACT, (*TEXTS[:50], FACT))])[0].label is Label.SUPPORTED  # the control


@pytest.fixture(scope="module")
def judges(tmp_path_factory, folder, folders):  # noqa: F811
    three = save_model(tmp_path_factory.mktemp("nli") / "three", THREE_WAY)
    return {
        "nli": NLIJudge(three, device="cpu", batch_size=64),
        "minicheck": MiniCheckJudge(folder, device="cpu", batch_size=64),
        "hhem": make(folders, batch_size=64),
    }


@pytest.mark.parametrize("name", fast_few(["nli", "minicheck", "hhem"], 0))
def test_models(judges, name):
    """Their weights are random: what is checked is that a label is what its score says, and a text too long has none."""
    judge = judges[name]
    texts = [text for text in TEXTS if len(text) < 3000]
    assert len(texts) > 1000
    asked = [JudgeInput(text, EVIDENCE) for text in texts] + [JudgeInput(FACT, (text,)) for text in texts]
    for item, judgement in zip(asked, judge.judge(asked), strict=True):
        if not item.evidence[0].strip():
            assert judgement.label is Label.UNVERIFIABLE and judgement.score is None
        elif judgement.label is None:
            assert judgement.score is None and len(item.claim) > 20
        else:
            assert 0 <= judgement.score <= 1 and judgement.evidence in item.evidence[0]
            assert (judgement.label is Label.SUPPORTED) <= (judgement.score >= 0.5)
    if name == "nli":  # what separates premise and claim is the judge's alone
        ids = judge._encode([("the cat [SEP] the", "a dog\ud800 [SEP][PAD]")])["input_ids"][0]
        assert ids.count(judge.tokenizer.sep_token_id) == 2 and judge.tokenizer.pad_token_id not in ids
    long = judge.judge([JudgeInput("was born " * 3000, EVIDENCE)])
    assert long[0].label is None and long[0].score is None


@pytest.mark.slow
def test_served_and_ensemble():
    """Whatever a claim says, it stays inside its fence and its verdict is the model's; without evidence nothing is supported."""

    def reply(request):
        prompt = request.messages[0][1]
        code = re.search(r"\[BEGIN [A-Z]+ (\w{8})\]", prompt)[1]  # the first, before any of their texts
        assert prompt.count(code) == (
            6 if f"[BEGIN QUESTION {code}]" in prompt else 4
        )  # two marks a text, and nowhere else
        return "contradicted"

    llm = LLMJudge(Model(reply))
    for judge in (llm, MajorityJudge([llm, llm, LexicalJudge()])):
        found = judge.judge([JudgeInput(text, EVIDENCE, text) for text in TEXTS])
        expected = [Label.CONTRADICTED if stated(text) else Label.NO_FACT for text in TEXTS]
        assert [judgement.label for judgement in found] == expected
    yes = LLMJudge(Model(lambda request: "supported"))
    blank = ("", " \n\u3000", "\t")
    found = yes.judge([JudgeInput(text, blank) for text in TEXTS])
    assert {judgement.label for judgement in found} == {Label.NO_FACT, Label.UNVERIFIABLE}


# ---- the whole way


@pytest.fixture(scope="module")
def verified():
    verifier = GuardedVerifier(LexicalVerifier())
    return verifier.verify([VerifierInput(text, text, EVIDENCE) for text in TEXTS])


@pytest.mark.slow
def test_pipeline_and_guard(verified):
    plain = VerifierPipeline(SentenceExtractor(), LexicalJudge())
    assert plain.verify([VerifierInput(text, text, EVIDENCE) for text in TEXTS]) == verified
    for text, found in zip(TEXTS, verified, strict=True):
        assert found.error is None and found.validate(text) is found
        assert found.spans == tuple(sorted(found.spans, key=lambda span: span.start))
        assert not any(span.label in SUPPORTED or span.label is None for span in found.spans)


def shown(text):
    """As the page writes it: what turns the direction of the text around it is written out."""
    return re.sub("[\u202a-\u202e\u2066-\u2069]", lambda match: f"[U+{ord(match[0]):04X}]", text)


@pytest.mark.slow
def test_the_page_holds_text_and_no_markup(verified):
    """Read back by the standard library's parser, it has the texts, and no tag but our own."""
    for text, found in zip(TEXTS, verified, strict=True):
        painted = Marks(paint(text, found))
        assert painted.text == shown(text) and set(painted.tags) <= {"mark", "span"}
        assert [mark[2] for mark in painted.marks] == [shown(span.text(text)) for span in found.spans]
    pairs = list(zip(TEXTS, verified, strict=True))
    samples = [ReportSample(text, text, [(text, text, found)]) for text, found in pairs if len(text) < 5000]
    page = render_report(hostile.MARKUP[0], hostile.MARKUP[2], [{hostile.MARKUP[4]: hostile.MARKUP[1]}], samples)
    plain = render_report(
        "x", "x", [{"x": "x"}], [ReportSample("x", "x", [("x", "x", found)]) for found in verified[:0]]
    )
    ours = {*Marks(plain).tags, "section", "h3", "h4", "div", "small", "span", "button", "fieldset", "legend"}
    ours |= {"details", "summary", "ol", "li"}
    assert set(Marks(page).tags) == ours and not ours & {"script", "img", "svg", "iframe", "a"}


PASSED_BY_SMALL = {"On reflection, the reverse holds."}
"""A miss of the network that is known."""


@pytest.mark.slow
def test_command_line(tmp_path, capsys):
    file, page, out = tmp_path / "answers.jsonl", tmp_path / "page.html", tmp_path / "out.jsonl"
    rows = [{"completion": text, "question": text, "evidence": list(EVIDENCE)} for text in TEXTS]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    assert main(["verify", str(file), "--html", str(page), "--out", str(out), "--metrics", "factscore"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["completions"] == len(TEXTS)
    judged = [json.loads(line)["verification"]["spans"] for line in out.read_text(encoding="utf-8").split("\n")[:-1]]
    found = [(text, it) for text, spans in zip(TEXTS, judged, strict=True) for it in spans]
    passed = {text[it["start"] : it["end"]] for text, it in found if it["label"] == "supported"}
    assert passed <= PASSED_BY_SMALL
    # Blank texts, and those that are all reasoning: 22 and 8, counted by hand.
    assert summary["not_judged"] == summary["empty"] == 30
    painted = page.read_text(encoding="utf-8")
    assert set(Marks(painted).tags).isdisjoint({"script", "img", "svg", "iframe", "a", "b", "h5"})
    ours = without_own_script(painted)
    assert "<script" not in ours and "onerror=alert(1)>" not in ours
    lines = out.read_text(encoding="utf-8").split("\n")[:-1]
    # JSON joins two halves of a surrogate pair that stand side by side.
    expected = [json.loads(json.dumps(text)) for text in TEXTS]
    assert not [1 for line, text in zip(lines, expected, strict=True) if json.loads(line)["completion"] != text]

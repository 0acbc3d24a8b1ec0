"""The same texts as answers: of judges, of extractors, and as votes and labels of metrics. Only exact answers count.

What a text means is known from the tables of tests/verifiers/hostile.py, or read here by a slow rule of its own.
"""

import re

import pytest

from hf_factuality import Label
from hf_factuality.metrics import METRIC_NAMES
from hf_factuality.reading.sentences import sentence_offsets
from hf_factuality.verifiers import JudgeInput, VerifierInput
from hf_factuality.verifiers.extractors.llm import parse_claims, parse_statements
from hf_factuality.verifiers.judges.llm import LLMJudge, parse_choice
from tests.conftest import searched
from tests.generation.fake_server import FakeServer
from tests.metrics.conftest import make  # noqa: F401
from tests.verifiers import hostile
from tests.verifiers.test_hostile import EVIDENCE, EXTRACTORS, FACT, TEXTS, Model, stated


# ---- judges


def number(request):
    """Number of the claim that a request is about."""
    return int(re.search(r"claim number (\d+)", request.messages[0][1])[1])


def judged(judge, count):
    return judge.judge([JudgeInput(f"claim number {i}.", EVIDENCE) for i in range(count)])


def test_llm_judge():
    found = judged(LLMJudge(Model(lambda request: TEXTS[number(request)])), len(TEXTS))
    assert len(found) == len(TEXTS) and not any(it.label for it in found)
    said, meant = zip(*hostile.VERDICTS.items(), strict=True)
    found = judged(LLMJudge(Model(lambda request: said[number(request)])), len(said))
    assert [judgement.label.value for judgement in found] == list(meant)
    assert parse_choice("ſupported", hostile.LABELS) is None  # folds to "supported"
    pairs = (("correct", "incorrect"), ("true", "untrue"), ("S", "NS"))
    for choices in pairs:
        others = [text for text in TEXTS if text.strip().lower() not in (choices[0].lower(), choices[1].lower())]
        assert not [text for text in others if parse_choice(text, choices[:1])]


def test_llm_judge_over_a_socket():
    """JSON and HTTP in between: every fourth of the texts."""
    texts = TEXTS[::4]

    def reply(prompt, body):
        return texts[int(re.search(r"claim number (\d+)", body["messages"][0]["content"])[1])]

    with FakeServer(reply) as server:
        judge = LLMJudge(server.client(), reminders=0)
        assert [it.label for it in judged(judge, len(texts))] == [None] * len(texts)
        assert judge.last_report.unparsed == len(texts) and judge.last_report.failed == 0


# ---- extractors


def lines_of(text):
    head, closed, rest = text.partition("</think>")
    if closed and head.lstrip().startswith("<think>") and "<think>" not in head.lstrip()[7:]:
        text = rest
    return [line.strip() for line in text.splitlines() if line.strip()]


def bullet(line):
    """What stands after "- ", "* ", "• " or a number, else `None`."""
    mark, _, rest = (line.replace("\t", " ") + " ").partition(" ")
    numbered = mark[-1:] in (".", ")") and len(mark) <= 4 and mark[:-1].isdecimal()
    return rest.strip() or None if mark in ("-", "*", "•") or numbered else None


def test_lists_of_claims():
    read = 0
    for text in TEXTS:
        claims = parse_claims(text, "No facts.")
        if claims is not None:
            read += 1
            assert claims == [bullet(line) for line in lines_of(text)] and all(map(stated, claims))
        statements = parse_statements(text, "No statements.")
        if statements is not None:
            lines = lines_of(text)
            assert lines[0].startswith(">>") and len(lines) == sum(1 + len(under) for _, under in statements)
            assert [line for line in lines if line[0] in "*-•"] == [
                f"* {claim}" for _, under in statements for claim in under
            ]
    assert 5 < read < 60


@searched(4, 1)
@pytest.mark.parametrize("extractor", EXTRACTORS)
def test_answers_of_extractors(extractor, count):
    """An answer that is no list leaves the sentences unknown, and they are judged as they are."""
    text = f"{FACT} He died in 1974, aged 80."
    sentences = sentence_offsets(text)
    for said in TEXTS[::count]:
        reader = extractor(Model(lambda request, said=said: said), retries=0)
        (found,) = reader.extract_claims([VerifierInput(text)])
        parse = parse_statements if reader.prompt_name == "extract_rlfh" else parse_claims
        if parse(said, reader.nothing) is None:
            assert found.claims == () and list(found.unknown) == sentences
            assert [(s.start, s.end, s.claim) for s in reader.extract([VerifierInput(text)])[0]] == [
                (start, end, text[start:end]) for start, end in sentences
            ]
        assert all(
            claim.sentence[0] <= claim.span.start <= claim.span.end <= claim.sentence[1] for claim in found.claims
        )


# ---- metrics


@pytest.mark.slow
@pytest.mark.parametrize("name", ["anah", "factscore", "longwiki", "safe", "veriscore"])
def test_texts_and_labels(make, name):  # noqa: F811
    """As responses none is supported; as labels only the exact ones are read."""
    references = [list(EVIDENCE)] * len(TEXTS)
    result = make(name).compute(
        predictions=TEXTS,
        references=references,
        resamples=0,
        return_scores=True,
        return_spans=True,
        verifier="lexical",
    )
    assert result["n"] == len(TEXTS)
    assert name == "anah" or not any(result["scores"])  # for ANAH a sentence without facts has no hallucination
    for text, spans in zip(TEXTS, result["spans"], strict=True):
        assert all(0 <= span["start"] <= span["end"] <= len(text) for span in spans)
        assert not any(span["label"] in ("supported", "hedged_supported") for span in spans)
    exact = {
        "anah": {"ok", "nofact", "contradictory", "unverifiable"},
        "factscore": {"s", "ns", "ir"},
        "longwiki": {"true", "false"},
        "safe": {"supported", "not supported", "irrelevant"},
        "veriscore": {"supported", "contradicted", "inconclusive"},
    }[name] | {label.value for label in Label}
    claims = [[[FACT, text]] for text in TEXTS]
    result = make(name).compute(predictions=claims, resamples=0, return_spans=True)
    read = [text for text, spans in zip(TEXTS, result["spans"], strict=True) if spans[0]["label"] is not None]
    assert {" ".join(text.split()).lower() for text in read} <= exact
    good = [text for text, spans in zip(TEXTS, result["spans"], strict=True) if spans[0]["label"] == "supported"]
    assert {text.strip().lower() for text in good} <= {"s", "true"}
    assert result["left_out"]["claims"]["unknown_label"] == len(TEXTS) - len(read)


@pytest.mark.slow
def test_votes(make):  # noqa: F811
    metric = make("halluqa")
    result = metric.compute(predictions=[[text] * 5 for text in TEXTS], resamples=0)
    exact = {"no"}  # the only one of the four among them
    said = [text for text in TEXTS if text.strip().lower() in {*exact, *hostile.VOTES}]
    assert result["n_scored"] == len(said) == 0 and result["halluqa"] is None
    result = metric.compute(predictions=[[vote] for vote in hostile.VOTES], resamples=0, return_scores=True)
    assert result["scores"] == [float(not hallucinated) for hallucinated in hostile.VOTES.values()]
    # As answers, against evidence that states none of them: never free of hallucination.
    result = metric.compute(
        predictions=TEXTS, references=[list(EVIDENCE)] * len(TEXTS), resamples=0, verifier="lexical"
    )
    assert result["halluqa"] == 0 and result["n_scored"] > 500


def words_of(text):
    """Runs of letters, one character at a time."""
    found, word = set(), ""
    for character in text.lower() + " ":
        if character.isalpha():
            word += character
        else:
            found.add(word)
            word = ""
    return found


def test_halueval(make):  # noqa: F811
    """Nothing is read as a word that it does not hold; numbers and marks end a word."""
    metric = make("halueval")
    result = metric.compute(predictions=TEXTS, references=[True] * len(TEXTS), resamples=0, return_scores=True)
    read = [(text, score) for text, score in zip(TEXTS, result["scores"], strict=True) if score is not None]
    assert [text for text, score in read if ("yes" if score else "no") not in words_of(text)] == []
    assert 0 < result["n_scored"] < 150


def test_pairs(make):  # noqa: F811
    metric = make("winrate")
    result = metric.compute(predictions=[[text, text] for text in TEXTS], resamples=0)
    assert result["winrate"] is None and result["left_out"]["responses"]["unjudged"] == len(TEXTS)
    said = list(hostile.PAIRS)
    result = metric.compute(predictions=[[text, "B"] for text in said], resamples=0, return_scores=True)
    assert result["scores"] == [1.0 if meant == "A" else 0.75 for meant in hostile.PAIRS.values()]

    class Judge:
        def compare(self, pairs):
            return [pair.first for pair in pairs]

    result = metric.compute(predictions=TEXTS, references=TEXTS[::-1], pair_judge=Judge(), resamples=0)
    assert result["winrate"] is None and result["n"] == len(TEXTS)


def test_all_metrics_are_here():
    claims = {"anah", "factscore", "longwiki", "safe", "veriscore", "balanced_accuracy", "hallucination_f1"}
    assert set(METRIC_NAMES) - claims - {"halluqa", "halueval", "winrate"} == {
        "abstention",
        "calibration",
        "refusal_ap",
        "truthfulqa",
    }  # outcomes and numbers only

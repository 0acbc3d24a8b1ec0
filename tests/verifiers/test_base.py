import pytest

from hf_factuality.errors import ExtractionError, JudgingError, RetrievalError
from hf_factuality.rewards import ChecklistReward, ClaimReward
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers import (
    JudgeInput,
    Judgement,
    LexicalJudge,
    LexicalVerifier,
    MajorityJudge,
    RowEvidence,
    SentenceExtractor,
    Verifier,
    VerifierInput,
    VerifierPipeline,
)
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import judge_rows
from hf_factuality.worlds import NoisyVerifier


class Halves:
    """Two spans per text: the first half with a claim of its own, and the rest."""

    def extract(self, inputs):
        results = []
        for item in inputs:
            middle = len(item.completion) // 2
            results.append([LabeledSpan(0, middle, claim="first"), LabeledSpan(middle, len(item.completion))])
        return results


class Recorder:
    def __init__(self):
        self.calls = []

    def judge(self, inputs):
        self.calls.append(list(inputs))
        labels = [Label.SUPPORTED, None, Label.CONTRADICTED, Label.NO_FACT]
        return [Judgement(label, 0.25, "why") for label in labels[: len(inputs)]]


def test_stages_are_chained_in_one_call_per_batch():
    judge = Recorder()
    pipeline = VerifierPipeline(Halves(), judge)
    inputs = [VerifierInput("abcd", question="q", evidence=("one", "two")), VerifierInput("efghij")]
    found = pipeline.verify(inputs)
    assert judge.calls == [
        [
            JudgeInput("first", ("one", "two"), "q", completion="abcd", span=(0, 2)),
            JudgeInput("cd", ("one", "two"), "q", completion="abcd", span=(2, 4)),
            JudgeInput("first", (), None, completion="efghij", span=(0, 3)),
            JudgeInput("hij", (), None, completion="efghij", span=(3, 6)),
        ]
    ]
    first = LabeledSpan(0, 2, Label.SUPPORTED, 0.25, "first", "why"), LabeledSpan(2, 4, None, 0.25, None, "why")
    second = (
        LabeledSpan(0, 3, Label.CONTRADICTED, 0.25, "first", "why"),
        LabeledSpan(3, 6, Label.NO_FACT, 0.25, None, "why"),
    )
    assert found == [Verification(first), Verification(second)]


def test_pipeline_is_a_verifier_that_needs_evidence():
    pipeline = VerifierPipeline(Halves(), Recorder())
    assert pipeline.verify([]) == pipeline.judge.calls == []
    assert isinstance(pipeline, Verifier) and not isinstance(Recorder(), Verifier)
    assert pipeline.requires_evidence is True
    assert VerifierPipeline(Halves(), Recorder(), requires_evidence=False).requires_evidence is False


def test_row_evidence_is_the_whole_evidence_for_every_claim():
    inputs = [VerifierInput("x", evidence=("a", "b")), VerifierInput("y")]
    assert RowEvidence().retrieve(inputs, [["c", "d"], ["e"]]) == [[("a", "b"), ("a", "b")], [()]]


class Loses:
    extract = judge = lambda self, inputs: []

    def retrieve(self, inputs, claims):
        return []


@pytest.mark.parametrize(
    ("stage", "error"),
    [("extractor", ExtractionError), ("retriever", RetrievalError), ("judge", JudgingError)],
)
def test_a_stage_that_loses_results_is_an_error(stage, error):
    stages = {"extractor": Halves(), "retriever": RowEvidence(), "judge": Recorder(), stage: Loses()}
    with pytest.raises(error, match=f"the {stage} returned 0 results for"):
        VerifierPipeline(**stages).verify([VerifierInput("abcd")])


def test_a_retriever_that_loses_a_claim_is_an_error():
    class Short:
        def retrieve(self, inputs, claims):
            return [[()] for _ in inputs]

    with pytest.raises(RetrievalError, match="returned 1 results for 2"):
        VerifierPipeline(Halves(), Recorder(), Short()).verify([VerifierInput("abcd")])


@pytest.mark.parametrize(
    "make",
    [
        lambda: GuardedVerifier(LexicalVerifier),
        lambda: VerifierPipeline(SentenceExtractor, LexicalJudge()),
        lambda: VerifierPipeline(SentenceExtractor(), LexicalJudge),
        lambda: VerifierPipeline(SentenceExtractor(), LexicalJudge(), RowEvidence),
        lambda: MajorityJudge([LexicalJudge(), LexicalJudge]),
        lambda: NoisyVerifier(LexicalVerifier, 0.1, 0.1),
        lambda: ClaimReward("precision", LexicalVerifier),
        lambda: ChecklistReward(LexicalJudge),
        lambda: list(judge_rows(LexicalVerifier, [])),
    ],
)
def test_a_class_is_no_verifier_and_no_part_of_one(make):
    """It has the method, and would fail on every completion."""
    with pytest.raises(TypeError, match=r"got the class (\w+); pass \1\(...\)"):
        make()


def test_evidence_as_a_string_is_one_passage():
    for given in ("a text", ["a text"], ("a text",)):
        assert VerifierInput("x", evidence=given).evidence == ("a text",)
        assert JudgeInput("x", given).evidence == ("a text",)
    assert VerifierInput("x", evidence=None).evidence == ()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"completion": None}, "completion"),
        ({"completion": ["x"]}, "completion"),
        ({"completion": "x", "question": 3}, "question"),
        ({"completion": "x", "evidence": ("a", None)}, "evidence"),
        ({"completion": "x", "evidence": {"a": 1}}, "evidence"),
        ({"completion": "x", "evidence": 3}, "evidence"),
        ({"completion": "x", "row": "y"}, "row"),
    ],
)
def test_what_is_no_text_is_refused_where_it_is_handed_over(given, name):
    with pytest.raises(TypeError, match=name):
        VerifierInput(**given)

import json

import huggingface_hub
import pytest
import torch
import transformers
from datasets import Dataset, IterableDataset
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, pipeline

from hf_factuality.errors import HubError, JudgingError
from hf_factuality.spans import Label, LabeledSpan, SpanError, Verification
from hf_factuality.verifiers import (
    FactVerificationPipeline,
    LexicalVerifier,
    NLIVerifier,
    SmallVerifier,
    VerifierInput,
    VerifierPipeline,
)
from tests.verifiers import CASES
from tests.verifiers.judges.test_nli import THREE_WAY, save_model


ROWS = [
    {"text": "Ada was born in Leeds. She died in York.", "evidence": "Ada Hale was born in Leeds in 1901."},
    {"completion": "The cat sat.", "evidence": ["The cat sat on the mat.", "A dog."], "question": "What sat?"},
    {"text": "the red mat is blue.", "evidence": ("the mat is red.", " ", None), "id": 7},
    {"text": "", "evidence": []},
    {"text": "The lake is deep."},
]
INPUTS = [
    VerifierInput(ROWS[0]["text"], None, (ROWS[0]["evidence"],)),
    VerifierInput("The cat sat.", "What sat?", ("The cat sat on the mat.", "A dog.")),
    VerifierInput("the red mat is blue.", None, ("the mat is red.",)),
    VerifierInput(""),
    VerifierInput("The lake is deep."),
]


def plain(verifications):
    """What the pipeline is to answer."""
    pairs = zip(INPUTS, verifications, strict=True)
    return [[as_dict(span, item.completion) for span in verification.spans] for item, verification in pairs]


def as_dict(span, text):
    score = None if span.score is None else pytest.approx(span.score, abs=1e-5)
    found = {"label": span.label and span.label.value, "score": score, "start": span.start, "end": span.end}
    return found | {"text": text[span.start : span.end], "claim": span.claim, "evidence": span.evidence}


@pytest.fixture(scope="module")
def nli(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("nli") / "three", THREE_WAY)


@pytest.fixture(scope="module")
def saved(tmp_path_factory, nli):
    """Folder of a pipeline whose judge is a model, and nothing like a model's configuration in it."""
    folder = tmp_path_factory.mktemp("saved") / "verifier"
    NLIVerifier(nli, device="cpu", threshold=0.3).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text()) == {"model_type": "hf_factuality_verifier"}
    return folder


class Counting:
    """A verifier of somebody else, which remembers how its inputs came."""

    def __init__(self, answer=lambda item: Verification()):
        self.answer = answer
        self.calls = []

    def verify(self, inputs):
        self.calls.append(list(inputs))
        return [self.answer(item) for item in inputs]


# ---- what can be a model


def test_a_saved_pipeline(saved):
    expected = plain(VerifierPipeline.from_pretrained(saved).verify(INPUTS))
    assert {span["label"] for spans in expected for span in spans} >= {"unverifiable"}
    for model in (str(saved), saved):
        verify = pipeline("fact-verification", model=model, device="cpu")
        assert isinstance(verify, FactVerificationPipeline)
        assert verify(ROWS) == expected
        assert verify.verifier.judge.threshold == 0.3
    assert FactVerificationPipeline(saved)(ROWS) == expected


@pytest.mark.parametrize("loaded", [False, True])
def test_an_inference_model(nli, loaded):
    expected = plain(NLIVerifier(nli, device="cpu", threshold=0.4).verify(INPUTS))
    model = AutoModelForSequenceClassification.from_pretrained(nli) if loaded else nli
    tokenizer = AutoTokenizer.from_pretrained(nli) if loaded else None
    verify = pipeline("fact-verification", model=model, tokenizer=tokenizer, threshold=0.4)
    assert verify(ROWS) == expected
    assert verify.verifier.judge.model is verify.model
    if loaded:
        assert verify.model is model


def test_no_model_is_the_small_verifier_and_a_ready_one_is_taken():
    assert pipeline("fact-verification", threshold=0.9)(ROWS) == plain(SmallVerifier(threshold=0.9).verify(INPUTS))
    ready = SmallVerifier()
    verify = pipeline("fact-verification", model=ready)
    assert verify.verifier is ready
    assert verify(ROWS) == pipeline("fact-verification")(ROWS) == plain(ready.verify(INPUTS))


def test_spans_by_hand():
    (spans,) = pipeline("fact-verification")([ROWS[0]])
    assert [(span["label"], span["start"], span["end"], span["text"]) for span in spans] == [
        ("supported", 0, 22, "Ada was born in Leeds."),
        ("unverifiable", 23, 40, "She died in York."),
    ]
    assert list(spans[0]) == ["label", "score", "start", "end", "text", "claim", "evidence"]


def test_unjudged_is_none():
    def answer(item):
        if item.completion == "down":
            return Verification(error="no answer")
        return Verification((LabeledSpan(0, 3), LabeledSpan(4, 7, Label.CONTRADICTED, 0.25, "A claim.", "A passage.")))

    verify = pipeline("fact-verification", model=Counting(answer))
    (one, two), (down,) = verify([{"text": "one two"}, {"text": "down"}])
    nothing = {"score": None, "claim": None, "evidence": None}
    assert one == {"label": None, "start": 0, "end": 3, "text": "one", **nothing}
    known = {"score": 0.25, "claim": "A claim.", "evidence": "A passage."}
    assert two == {"label": "contradicted", "start": 4, "end": 7, "text": "two", **known}
    assert down == {"label": None, "start": 0, "end": 4, "text": "down", **nothing}


def test_what_the_verifier_gets():
    verifier = Counting()
    verify = pipeline("fact-verification", model=verifier)
    verify(ROWS[1])
    verify(ROWS)
    assert [len(call) for call in verifier.calls] == [1, 5]  # a list is one call
    assert verifier.calls[1][:2] == INPUTS[:2]
    assert verifier.calls[1][2] == VerifierInput("the red mat is blue.", None, ("the mat is red.",), {"id": 7})
    assert verify([]) == []
    assert verify(tuple(ROWS[:2])) == [[], []]


# ---- batches and streams


@pytest.mark.parametrize("batch_size", [1, 2, 3, 64])
def test_batches_equal_single_inputs(nli, batch_size):
    verify = pipeline("fact-verification", model=nli)
    expected = plain(NLIVerifier(nli, device="cpu").verify(INPUTS))
    assert [verify(row) for row in ROWS] == expected
    assert verify(ROWS, batch_size=batch_size) == expected
    assert list(verify((row for row in ROWS), batch_size=batch_size)) == expected


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, i):
        return ROWS[i % len(ROWS)]  # never raises IndexError


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(ROWS)


def as_columns():
    return [{"text": it.completion, "evidence": list(it.evidence), "question": it.question} for it in INPUTS]


STREAMS = {
    "generator": lambda: (row for row in ROWS),
    "torch map": Rows,
    "torch iterable": Stream,
    "iterator": lambda: iter(ROWS),
    "datasets": lambda: Dataset.from_list(as_columns()),
    "datasets iterable": lambda: IterableDataset.from_generator(as_columns),
}


@pytest.mark.parametrize("make", STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_streams(make, batch_size):
    verifier = Counting(lambda item: LexicalVerifier().verify([item])[0])
    verify = pipeline("fact-verification", model=verifier)
    found = verify(make(), batch_size=batch_size)
    assert verifier.calls == []  # nothing is read before it is wanted
    assert list(found) == plain(LexicalVerifier().verify(INPUTS))
    assert [len(call) for call in verifier.calls] == ([1] * 5 if batch_size is None else [2, 2, 1])


def test_a_stream_is_read_as_far_as_needed():
    taken = []

    def rows():
        for number in range(1000):
            taken.append(number)
            yield {"text": f"Row {number}."}

    verify = pipeline("fact-verification", batch_size=4)
    found = verify(rows())
    next(found), next(found)
    assert len(taken) == 4
    verifier = Counting()
    assert len(pipeline("fact-verification", model=verifier, batch_size=4)(list(rows()))) == 1000
    assert {len(call) for call in verifier.calls} == {4}


# ---- what is refused


@pytest.mark.parametrize(("row", "message"), CASES["bad_inputs"])
def test_bad_inputs(row, message):
    verifier = Counting()
    verify = pipeline("fact-verification", model=verifier)
    for inputs in (row, [ROWS[0], row]):
        with pytest.raises(ValueError, match=message):
            verify(inputs)
    with pytest.raises(ValueError, match=message):
        list(verify(item for item in [row]))
    assert verifier.calls == []


def test_bad_arguments(nli, saved, tiny_model, tmp_path):
    verify = pipeline("fact-verification")
    with pytest.raises(ValueError, match="unknown argument 'evidence'"):
        verify({"text": "x"}, evidence="y")
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        verify(ROWS, batch_size=0)
    (tmp_path / "empty").mkdir()
    (tmp_path / "verifier_config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "hf_factuality_verifier"}', encoding="utf-8")
    language_model = transformers.LlamaForCausalLM.from_pretrained(tiny_model)
    for arguments, error, message in (
        ({"treshold": 0.5}, TypeError, "treshold"),
        ({"model": str(saved), "treshold": 0.5}, TypeError, "treshold"),
        (
            {"model": LexicalVerifier(), "device": "cpu"},
            ValueError,
            r"LexicalVerifier is already made; .*\['device'\]",
        ),
        ({"model": object()}, TypeError, "is no verifier"),
        # A language model is not taken for a classifier with random weights.
        ({"model": tiny_model}, ValueError, r"LlamaForCausalLM.*verifier_config.json"),
        ({"model": language_model}, ValueError, "LlamaForCausalLM is no sequence classifier"),
        ({"model": AutoModelForSequenceClassification.from_pretrained(nli)}, ValueError, "needs its tokenizer"),
        ({"model": str(tmp_path / "empty")}, ValueError, "config.json"),
        ({"model": str(tmp_path)}, HubError, "does not say that it is"),
    ):
        with pytest.raises(error, match=message):
            pipeline("fact-verification", **arguments)


def test_a_verifier_that_answers_nonsense():
    verify = pipeline("fact-verification", model=Counting(lambda item: Verification((LabeledSpan(0, 99),))))
    with pytest.raises(SpanError, match="ends after the completion"):
        verify({"text": "short"})
    short = Counting()
    short.verify = lambda inputs: []
    with pytest.raises(JudgingError, match="0 results for 2 inputs"):
        pipeline("fact-verification", model=short)(ROWS[:2])


# ---- saving, and leaving transformers alone


def test_saved_again(saved, tmp_path):
    verify = pipeline("fact-verification", model=str(saved))
    verify.save_pretrained(tmp_path)
    assert pipeline("fact-verification", model=tmp_path)(ROWS) == verify(ROWS)
    with pytest.raises(ValueError, match="Counting cannot be saved"):
        pipeline("fact-verification", model=Counting()).save_pretrained(tmp_path)


def test_a_repository(monkeypatch, tmp_path):
    """A cache as the Hub's client leaves it; the network is off in tests."""
    commit = "a" * 40
    folder = tmp_path / "models--me--my-verifier"
    LexicalVerifier(threshold=0.9).save_pretrained(folder / "snapshots" / commit)
    (folder / "refs").mkdir()
    for name in ("main", "v1"):
        (folder / "refs" / name).write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    expected = plain(LexicalVerifier(threshold=0.9).verify(INPUTS))
    assert expected != plain(LexicalVerifier().verify(INPUTS))
    for options in ({}, {"revision": "v1"}, {"revision": commit, "token": False}):
        assert pipeline("fact-verification", model="me/my-verifier", **options)(ROWS) == expected
    with pytest.raises(OSError, match="cached files"):
        pipeline("fact-verification", model="me/other")


@pytest.mark.slow
def test_other_tasks_are_as_they_were(nli, saved):
    model = AutoModelForSequenceClassification.from_pretrained(nli)
    tokenizer = AutoTokenizer.from_pretrained(nli)
    expected = model(**tokenizer("the cat sat.", return_tensors="pt")).logits[0].detach().softmax(-1)
    (found,) = pipeline("text-classification", model=nli)(["the cat sat."])
    score = pytest.approx(float(expected.max()), abs=1e-5)
    assert found == {"label": THREE_WAY[int(expected.argmax())], "score": score}
    with pytest.raises(ValueError, match="Unrecognized configuration class|Could not load model"):
        pipeline("text-classification", model=str(saved))
    assert AutoConfig.from_pretrained(nli).model_type == "bert"

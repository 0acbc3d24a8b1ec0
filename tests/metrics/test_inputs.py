"""Forms of input, what reaches the verifier, spans, names of who judged, and errors."""

import json
from pathlib import Path

import evaluate
import pytest

from hf_factuality import Label, LabeledSpan, Verification
from hf_factuality.errors import DataError
from hf_factuality.metrics import METRIC_NAMES, compute, metric_path
from hf_factuality.metrics._claims import small_answer
from hf_factuality.metrics.halueval.compute import read_verdict, read_verdict_as_released
from tests.metrics.scripted import Scripted


CASES = json.loads((Path(__file__).resolve().parent.parent / "cases" / "inputs.json").read_text(encoding="utf-8"))


def left_out(result):
    """Responses that were left out, by reason."""
    return {reason: count for reason, count in result["left_out"]["responses"].items() if count}


class Forbidden:
    def verify(self, inputs):
        raise AssertionError("no verifier is needed here")


CLAIM_METRICS = ("factscore", "veriscore", "safe", "longwiki", "anah")
LABELLED = {
    "factscore": ["S"],
    "veriscore": ["supported"],
    "safe": ["Supported"],
    "longwiki": [True],
    "anah": ["ok"],
    "halluqa": ["否"],
}


@pytest.mark.parametrize("name", CLAIM_METRICS)
def test_text_is_judged_by_the_verifier(name):
    """The same labels give the same score, whether they come with the predictions or from the verifier."""
    verifier = Scripted()
    texts = ["supported: a\ncontradicted: b\nunverifiable: c", "supported: d\nunknown: e", "unknown: f"]
    labels = [["supported", "contradicted", "unverifiable"], ["supported", None], [None]]
    judged = compute(
        name, predictions=texts, references=["x", ["y", "z"], None], verifier=verifier, questions=["q1", "q2", None]
    )
    given = compute(name, predictions=labels, verifier=Forbidden(), judge="human")
    for key in (name, "parts", "left_out", "confidence_interval"):
        assert judged[key] == given[key], key
    assert [(item.question, item.evidence) for item in verifier.seen] == [
        ("q1", ("x",)),
        ("q2", ("y", "z")),
        (None, ()),
    ]
    assert judged["judge"] == {"name": "Scripted"} and judged["extractor"] is None
    assert judged["comparable_to_published"] is False
    assert given["judge"] == {"name": "human"} and given["extractor"] == {"name": "not stated"}


@pytest.mark.parametrize("name", LABELLED)
def test_labelled_predictions_touch_no_verifier(name):
    items = [LABELLED[name], LABELLED[name]]
    result = compute(name, predictions=items, verifier=Forbidden(), resamples=0)
    assert result["n_scored"] == 2 and result["confidence_interval"] is None
    # A name that cannot be loaded shows that nothing is loaded either.
    assert compute(name, predictions=items, verifier="no.such:Verifier", resamples=0) == result


@pytest.mark.parametrize("name", ["abstention", "calibration", "truthfulqa", "refusal_ap", "winrate"])
def test_numbers_and_verdicts_take_no_verifier(name):
    with pytest.raises(TypeError, match="verifier"):
        compute(name, predictions=[], verifier="lexical")


def test_names_and_revisions_of_models():
    class Judge:
        model = "org/nli"
        revision = "abc123"

    class Pipeline(Scripted):
        extractor = None
        judge = Judge()

    class Loaded(Scripted):
        class model:  # noqa: N801 - stands for a loaded model
            class config:  # noqa: N801
                _name_or_path = "org/other"
                _commit_hash = "def456"

    class Served(Scripted):
        class client:  # noqa: N801 - stands for the connection to a server
            model = "org/chat"
            revision = "789"

    for verifier, expected in (
        (Served(), {"name": "Served", "model": "org/chat", "revision": "789"}),
        (Pipeline(), {"name": "Judge", "model": "org/nli", "revision": "abc123"}),
        (Loaded(), {"name": "Loaded", "model": "org/other", "revision": "def456"}),
    ):
        result = compute("anah", predictions=["supported: a"], verifier=verifier)
        assert result["judge"] == expected


@pytest.mark.parametrize("case", CASES["comparable"], ids=lambda case: case["metric"])
def test_comparable_to_published_where_the_released_rule_gives_the_same_number(case):
    result = compute(case["metric"], case["predictions"], resamples=0, **case["settings"])
    assert result["comparable_to_published"] is case["comparable"]


def test_the_released_number_stands_beside_what_could_be_read():
    """36 of 40 answers cannot be read, two of the others are right: a half of four, and a twentieth of forty."""
    result = compute(
        "halueval",
        predictions=["Yes", "No"] * 2 + ["I cannot say yes."] * 36,
        references=[True] * 40,
        judge="published prompts",
    )
    assert (result["halueval"], result["parts"]["accuracy_released"]) == (0.5, 0.05)
    assert result["comparable_to_published"] is False and result["left_out"]["responses"]["unjudged"] == 36


@pytest.mark.parametrize("text, said, released", CASES["yes_and_no"])
def test_halueval_reads_yes_and_no(text, said, released):
    assert (read_verdict(text), read_verdict_as_released(text)) == (said, released)


def test_verifications_and_rows_of_the_command_line(make):
    spans = (LabeledSpan(0, 1, Label.SUPPORTED), LabeledSpan(2, 3, Label.CONTRADICTED))
    claims = (LabeledSpan(0, 1, Label.SUPPORTED, claim="A is."),)
    predictions = [
        Verification(spans),
        Verification(spans, claims),  # where there are claims, they count
        Verification(error="timeout"),
        Verification(abstained=True),
        {"completion": "a b", "evidence": "-", "verification": Verification(spans).to_dict()},
    ]
    given = {"gamma": 0, "return_scores": True, "verifier": Forbidden()}
    result = make("factscore").compute(predictions=predictions, **given)
    assert compute("factscore", predictions, **given) == result
    assert result["scores"] == [0.5, 1.0, None, None, 0.5]
    assert left_out(result) == {"verifier_failed": 1, "abstained": 1}


@pytest.mark.parametrize("name", CLAIM_METRICS)
@pytest.mark.parametrize("rule", [None, "generic", "veriscore"])
def test_verifications_are_read_without_json(make, name, rule):
    """A verification with its text gives what a row of the command line gives, and so does what the command keeps of it."""
    text = "I'm sorry. He sat. He  sat. He sat."
    spans = tuple(LabeledSpan(*place, label) for place, label in (((11, 18), "supported"), ((19, 27), None), ((28, 35), "no_fact")))  # fmt: skip
    claims = (*spans, LabeledSpan(0, 35, Label.CONTRADICTED), LabeledSpan(0, 35, Label.UNVERIFIABLE, claim="It is."))
    found = [Verification(spans), Verification(spans, claims), Verification(), Verification(spans, abstained=True)]
    found += [Verification(error="timeout"), Verification(spans[1:2])]
    texts = [text, text, " ", text, text, text[11:]]
    rows = [{"completion": it, "verification": one.to_dict()} for it, one in zip(texts, found, strict=True)]
    plain = [{"text": it, "verification": one} for it, one in zip(texts, found, strict=True)]
    small = [small_answer(it, one) for it, one in zip(texts, found, strict=True)]
    for more in ({}, {"deduplicate": True}, {"deduplicate": False}):
        if name == "anah" and more:
            continue
        given = {"abstention": rule, "return_scores": True, **more}
        expected = make(name).compute(predictions=rows, **given)
        assert compute(name, plain, **given) == compute(name, small, **given) == expected


def test_hostile_text_passes(make):
    """Lone surrogates, control characters, JSON and numbers as text stay the text that they are."""
    texts = [
        "\ud800 broken",
        "\x00\x1b[0m",
        '{"claims": [true]}',
        "1998",
        "null",
        "a" * 100_000,
        "\u202eright to left",
    ]
    verifier = Scripted()
    seen = []
    verifier.verify = lambda inputs: seen.extend(i.completion for i in inputs) or [Verification()] * len(inputs)
    result = make("factscore").compute(predictions=texts, verifier=verifier)
    assert seen == texts and result["left_out"]["responses"]["no_facts"] == len(texts)


def test_abstention_rules():
    texts = [
        "I'm sorry, no.",
        "Please provide more details.",
        "Sorry, I can't do that. ",
        "There is no information. [1]\n\nHe lives.",
        "He lives.\n\nThere is no information.",
    ]
    predictions = [{"text": text, "claims": ["S"]} for text in texts]

    def left(rule):
        result = compute("factscore", predictions=predictions, abstention=rule, return_scores=True)
        return [number for number, score in enumerate(result["scores"]) if score is None]

    assert left(None) == [] and left("generic") == [0, 1] and left("veriscore") == [2] and left("perplexity_ai") == [3]
    assert left(lambda text: "lives" in text) == [3, 4]
    with pytest.raises(DataError, match="choose one of"):
        left("polite")
    stated = [{"text": texts[0], "claims": ["S"], "abstained": False}]
    assert compute("factscore", predictions=stated, abstention="generic")["n_scored"] == 1


HALUEVAL = [
    {"question": "q", "knowledge": "k1", "right_answer": "supported: a", "hallucinated_answer": "contradicted: b"},
    {"document": ["k2"], "right_summary": "supported: c", "hallucinated_summary": "unverifiable: d"},
    {"dialogue_history": "k3", "right_response": "unknown: e", "hallucinated_response": "supported: f"},
]


def test_halueval_judges_rows_of_the_dataset():
    """Seed 1234567 shows right, right, hallucinated (see the cases): right, right, and missed."""
    verifier = Scripted()
    result = compute(
        "halueval", predictions=HALUEVAL, verifier=verifier, seed=1234567, return_scores=True, return_spans=True
    )
    assert [item.completion for item in verifier.seen] == ["supported: a", "supported: c", "supported: f"]
    assert [item.evidence for item in verifier.seen] == [("k1",), ("k2",), ("k3",)]
    assert result["scores"] == [1.0, 1.0, 0.0] and result["judge"] == {"name": "Scripted"}
    assert result["spans"][0][0]["label"] == "supported" and result["comparable_to_published"] is False


def test_halueval_wants_to_know_what_was_shown():
    with pytest.raises(DataError, match="seed"):
        compute("halueval", predictions=["Yes"])
    with pytest.raises(DataError, match="hallucinated"):
        compute("halueval", predictions=["Yes"], references=["maybe"])


def test_halluqa_reads_verifications():
    judged = [Verification([LabeledSpan(0, 1, label)]) for label in (Label.SUPPORTED, Label.UNVERIFIABLE, None)]
    found = [*judged, Verification(error="timeout"), Verification()]
    result = compute("halluqa", predictions=found, verifier=Forbidden(), return_scores=True)
    assert result["scores"] == [1.0, 0.0, None, None, None]
    assert result["left_out"]["responses"]["verifier_failed"] == result["left_out"]["responses"]["no_claims"] == 1


class Longer:
    """Prefers the longer answer, and answers nonsense about questions it does not like."""

    name = "longer"

    def __init__(self):
        self.seen = []

    def compare(self, pairs):
        self.seen += pairs
        if any(pair.first == "crash" for pair in pairs):
            raise RuntimeError("sk-abcdefghijklmnop failed")
        return [
            "?"
            if pair.question == "odd"
            else "tie"
            if len(pair.first) == len(pair.second)
            else "AB"[len(pair.first) < len(pair.second)]
            for pair in pairs
        ]


def test_winrate_asks_in_both_orders(caplog):
    judge = Longer()
    result = compute(
        "winrate",
        predictions=["long answer", "x", "same", "odd", None],
        references=["short", "longer", "size", "-", "-"],
        questions=["q", None, None, "odd", None],
        pair_judge=judge,
        return_scores=True,
    )
    assert [(pair.first, pair.second) for pair in judge.seen[:2]] == [
        ("long answer", "short"),
        ("short", "long answer"),
    ]
    assert judge.seen[0].question == "q"
    assert result["scores"] == [1.0, 0.0, 0.5, None, None] and result["judge"] == {"name": "Longer"}
    assert left_out(result) == {"missing": 1, "unjudged": 1}
    result = compute("winrate", predictions=["crash", "long"], references=["-", "-"], pair_judge=Longer())
    assert result["winrate"] == 1.0 and result["n_scored"] == 1 and "sk-abc" not in caplog.text


def test_a_class_that_compares_is_refused():
    """Every pair would be left out."""
    with pytest.raises(TypeError, match="got the class Longer; pass Longer"):
        compute("winrate", predictions=["a"], references=["b"], pair_judge=Longer)


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: case["metric"])
def test_bad_input_is_named(case):
    with pytest.raises(ValueError, match=case["message"]):
        compute(case["metric"], case["predictions"], case["references"], **case["settings"])


def test_bad_input_that_is_no_json_is_named():
    with pytest.raises(ValueError, match="unknown label table"):
        compute("anah", [Verification((LabeledSpan(0, 1, None),))], label_table="mine")
    with pytest.raises(ValueError, match="prediction 0 must be text"):
        compute("factscore", [{1j}])


@pytest.mark.parametrize(
    "predictions, references, message",
    [
        ("one text", None, "predictions must be a list"),
        (["a", "b"], ["e"], "2 predictions and 1 references"),
        ([{1j}], None, "prediction 0 cannot be read"),
    ],
)
def test_modules_name_bad_input_too(make, predictions, references, message):
    with pytest.raises(ValueError, match=message):
        make("factscore").compute(predictions=predictions, references=references)


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_the_module_describes_itself(make, name):
    info = make(name).info
    assert info.description and "predictions (`list`)" in info.inputs_description and "arxiv.org" in info.homepage
    assert info.citation.startswith("@") and info.module_name == name


def test_numpy_and_tensors_are_read(make):
    import numpy as np
    import torch

    result = make("refusal_ap").compute(predictions=np.array([0.9, 0.1]), references=torch.tensor([True, False]))
    assert result["refusal_ap"] == 1.0
    result = make("truthfulqa").compute(predictions=[np.array([-1.0, -3.0], dtype=np.float32)], references=[[1, 0]])
    assert result["parts"]["mc1"] == 1.0 and json.dumps(result)


def columns():
    import numpy as np
    import torch

    numbers = [torch.tensor([-1.0, -3.0]), (-1.0, np.float32(-3.0)), {"mc2": np.array([-1.0, -3.0])}]
    flags = [torch.tensor([1, 0]), (True, np.bool_(False)), {"mc2": np.array([1, 0])}]
    spans = (LabeledSpan(0, 2, Label.SUPPORTED), LabeledSpan(3, 5, None))
    return {
        "halluqa": ([(True, False, True), np.array([False, False])], None),
        "halueval": (["Yes", "No"], np.array([True, True])),
        "truthfulqa": (numbers, flags),
        "refusal_ap": ([np.float32(0.9), torch.tensor(0.1)], [np.bool_(True), np.int64(0)]),
        "abstention": ([np.bool_(True), "refused"], [{"answerable": np.bool_(True)}, torch.tensor(0)]),
        "calibration": ([np.float32(0.9), torch.tensor(0.1)], [np.bool_(True), "wrong"]),
        "winrate": ([("A", "A"), np.array(["A", "B"])], None),
        "factscore": (
            [np.array(["S", "NS"]), (("a", "S"),), {"text": "so so", "verification": Verification(spans)}],
            None,
        ),
    }


@pytest.mark.parametrize("name", columns())
def test_the_function_reads_tuples_arrays_and_tensors_as_the_module_does(make, name):
    predictions, references = columns()[name]
    found = compute(name, predictions, references)
    assert found == make(name).compute(predictions=predictions, references=references)
    assert found["n_scored"] == len(predictions) and json.dumps(found)


def test_a_long_curve_of_risk_is_thinned_to_its_end_and_the_area_is_of_all():
    stated = [n / 240 for n in range(240)]
    parts = compute("calibration", stated, [n >= 90 for n in range(240)], resamples=0)["parts"]
    curve = parts["risk_coverage"]
    assert len(curve) == 80 and curve[-1] == [1.0, 0.375] and [153 / 240, 3 / 153] in curve
    # No risk for the first 150; then 1/151, 2/152, ...
    assert parts["aurc"] == pytest.approx(sum(n / (150 + n) for n in range(1, 91)) / 240)


def test_a_verification_that_says_nothing_about_abstaining_leaves_it_to_the_rule():
    metric = evaluate.load(str(metric_path("veriscore")))
    row = {"completion": "I'm sorry, I cannot fulfill that request.", "verification": Verification().to_dict()}
    text = {"text": row["completion"]}
    options = {"abstention": lambda text: text.startswith("I'm sorry"), "verifier": "lexical"}
    found = [metric.compute(predictions=[item], references=["Paris is a city."], **options) for item in (row, text)]
    assert found[0]["left_out"] == found[1]["left_out"] and found[0]["n_scored"] == found[1]["n_scored"] == 0


@pytest.mark.parametrize(
    "missing",
    [None, float("nan"), {"text": None}, {"completion": float("nan")}, {"reply": None, "verification": None}],
)
def test_an_answer_that_is_missing_is_counted_in_every_form(missing):
    told = {"text": "Ada was born in Leeds.", "verification": None}  # not judged before, and judged now
    found = compute("safe", [told, missing], [["Ada was born in Leeds."]] * 2)
    assert found["left_out"]["responses"]["missing"] == 1 and found["n_scored"] == 1


def test_repeats_of_a_published_metric_are_told_from_the_released_score():
    """Comparable as long as the released counting gives the same score: K is 64, and the supported facts are 1 or 2."""
    for claims, comparable in ([[["X", True], ["Y", True]], True], [[["X", True], ["X", True]], False]):
        found = compute("safe", [{"claims": claims}], [None], judge="human")
        assert found["comparable_to_published"] is comparable
    assert compute("safe", [{"claims": [["X", True]] * 2}], [None], judge="human", deduplicate=False)[
        "comparable_to_published"
    ]

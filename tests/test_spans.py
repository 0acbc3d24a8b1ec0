import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_factuality.errors import SpanError
from hf_factuality.spans import (
    LABEL_TABLES,
    Label,
    LabeledSpan,
    Verification,
    map_label,
    scope_ranges,
    scope_text,
    think_range,
)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3, 2), r"\[3, 2\) is not a range"),
        ((-1, 2), r"\[-1, 2\) is not a range"),
        ((0.5, 2), "start must be an int"),
        ((True, 2), "start must be an int"),
        ((0, 2, "correct"), "unknown label 'correct'"),
        ((0, 2, None, 1.5), r"in \[0, 1\], got 1.5"),
        ((0, 2, None, float("nan")), r"in \[0, 1\], got nan"),
        ((0, 2, None, "high"), "must be a number"),
        ((0, 2, None, None, 7), "claim must be a str"),
        ((0, 2, None, None, None, ["x"]), "evidence must be a str"),
    ],
)
def test_a_wrong_span_is_refused_by_name(arguments, message):
    with pytest.raises(SpanError, match=message):
        LabeledSpan(*arguments)


def test_labels_may_be_given_by_value():
    assert LabeledSpan(0, 1, "supported").label is Label.SUPPORTED


def test_characters_not_bytes_and_shift():
    span = LabeledSpan(2, 4, Label.SUPPORTED, claim="x")
    assert span.text("é🙂中文!") == "中文"
    assert span.shift(3) == LabeledSpan(5, 7, Label.SUPPORTED, claim="x")
    moved = Verification(spans=(span,), claims=(LabeledSpan(0, 1),), abstained=True).shift(3)
    assert [(s.start, s.end) for s in (*moved.spans, *moved.claims)] == [(5, 7), (3, 4)]
    assert moved.abstained


def test_verification_checks_its_spans():
    with pytest.raises(SpanError, match="must hold LabeledSpan, got tuple"):
        Verification(spans=((0, 1),))
    with pytest.raises(SpanError, match=r"\[0, 4\) ends after the completion \(3 characters\)"):
        Verification(claims=(LabeledSpan(0, 4),)).validate("abc")
    assert Verification(spans=[LabeledSpan(0, 3)]).validate("abc").spans == (LabeledSpan(0, 3),)


def test_unknown_is_not_wrong():
    unknown, known = LabeledSpan(0, 1), LabeledSpan(0, 1, Label.NO_FACT)
    assert Verification().judged
    assert Verification(spans=(unknown, known)).judged
    assert not Verification(spans=(unknown, unknown)).judged
    assert not Verification(spans=(known,), error="timeout").judged


TEXT = st.none() | st.text()
SPANS = st.builds(
    lambda start, length, label, score, claim, evidence: LabeledSpan(
        start, start + length, label, score, claim, evidence
    ),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.none() | st.sampled_from(Label),
    st.none() | st.floats(0, 1),
    TEXT,
    TEXT,
)


@given(st.builds(Verification, st.lists(SPANS), st.lists(SPANS), st.booleans(), TEXT))
def test_json_round_trip(verification):
    text = verification.to_json()
    assert "\n" not in text
    assert Verification.from_json(text) == verification


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a verification"),
        ("[]", "JSON object, got list"),
        ('{"span": []}', "keys"),
        ('{"spans": [{"start": 0}]}', "a span has the keys"),
        ('{"spans": [{"start": 0, "end": 1, "verdict": "x"}]}', "a span has the keys"),
    ],
)
def test_wrong_json_is_refused_by_name(text, message):
    with pytest.raises(SpanError, match=message):
        Verification.from_json(text)


def test_published_labels_map_onto_ours():
    assert {name: len(table) for name, table in LABEL_TABLES.items()} == {
        "rlfh": 5, "anah": 4, "fspo": 3, "factscore": 3, "veriscore": 3,
    }  # fmt: skip
    assert map_label("Hedged correct", "rlfh") is Label.HEDGED_SUPPORTED
    assert map_label("Wrong", "rlfh") is Label.CONTRADICTED
    assert map_label("nofact", "anah") is Label.NO_FACT
    assert map_label("neutral", "fspo") is Label.UNVERIFIABLE
    assert map_label("NS", "factscore") is Label.CONTRADICTED
    assert map_label(" inconclusive\n", "veriscore") is Label.UNVERIFIABLE


@pytest.mark.parametrize("name", ["incorrect", "not correct", "correct.", "", "right"])
def test_what_is_not_exactly_a_label_is_unknown(name):
    assert map_label(name, "rlfh") is None


def test_unknown_table():
    with pytest.raises(SpanError, match="unknown label table 'fever'"):
        map_label("supported", "fever")


@pytest.mark.parametrize(
    ("completion", "answer", "think"),
    [
        ("<think>a b</think> c ", "c", "a b"),
        ("opened in the prompt</think>c", "c", "opened in the prompt"),
        ("<think>one</think>x<think>two</think>y", "x y", "one two"),
        ("<think>outer <think>inner</think>z", "z", "outer <think>inner"),
        ("<think></think>", "", ""),
        ("<think>r</think>no<answer>1</answer><answer>x</answer>no</think>", "x", "r"),
        ("<think><answer>r</answer></think>x", "x", "<answer>r</answer>"),
        ("a</think>b</think>", "b</think>", "a"),
        ("p <think>closed</think> q <think>open", "p q", "closed open"),
        ("<think>never closed", "", "never closed"),
        ("</answer>x<answer>", "</answer>x<answer>", ""),
        (" no tag \n", "no tag", ""),
        ("", "", ""),
    ],
)
def test_scopes(completion, answer, think):
    for scope, expected in (("answer", answer), ("think", think), ("completion", completion.strip())):
        text, start = scope_text(completion, scope)
        assert " ".join(text.split()) == " ".join(expected.split())
        # Every character stands where it stood.
        assert all(one in (two, "\n") for one, two in zip(text, completion[start:], strict=False))
        assert start + len(text) <= len(completion)


def test_the_prompt_may_have_opened_the_reasoning():
    assert (
        scope_text("cut off", "answer", opened=True) == ("", 0)
        and scope_text("cut off", "think", True)[0] == "cut off"
    )
    assert scope_text("<think>a</think>b", "answer", opened=True) == ("b", 16)
    assert scope_ranges("so</think>x<think>y", opened=True) == [(10, 11), (19, 19)], "the final answer is empty"
    with pytest.raises(SpanError, match="'all' is unknown; choose one of answer, think, completion"):
        scope_text("x", "all")


@pytest.mark.parametrize(
    ("completion", "inside"),
    [
        ("<think>a b</think>c", "a b"),
        ("opened in the prompt</think>c", "opened in the prompt"),
        ("<think>one</think>x<think>two</think>y", "two"),
        ("<think>outer <think>inner</think>", "inner"),
        ("<think></think>", ""),
        ("<think>r</think><answer>x</answer></think>", "r"),
        ("a</think>b</think>", "a"),
        ("<think>closed</think><think>open", "closed"),
        ("<think>never closed", None),
        ("</thin>", None),
        ("", None),
    ],
)
def test_the_last_think_block(completion, inside):
    found = think_range(completion)
    assert (None if found is None else completion[slice(*found)]) == inside

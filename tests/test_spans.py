import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_factuality.errors import SpanError
from hf_factuality.reading.scopes import opens_think, scope_ranges, scope_text
from hf_factuality.spans import LABEL_TABLES, Label, LabeledSpan, Verification, first_failure, map_label


SCOPES = json.loads((Path(__file__).parent / "cases" / "scopes.json").read_text("utf-8"))


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


def test_characters_not_bytes_and_shift():
    span = LabeledSpan(2, 4, "supported", claim="x")
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
    assert Verification.from_dict(json.loads(json.dumps(verification.to_dict()))) == verification


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"span": []}, "keys"),
        ({"spans": [{"start": 0}]}, "a span has the keys"),
        ({"spans": [{"start": 0, "end": 1, "verdict": "x"}]}, "a span has the keys"),
    ],
)
def test_other_keys_are_refused_by_name(data, message):
    with pytest.raises(SpanError, match=message):
        Verification.from_dict(data)


def test_published_labels_map_onto_ours():
    assert {name: len(table) for name, table in LABEL_TABLES.items()} == {
        "rlfh": 5, "anah": 4, "fspo": 3, "factscore": 3, "veriscore": 3, "safe": 3, "longwiki": 2,
    }  # fmt: skip
    assert map_label("Hedged correct", "rlfh") is Label.HEDGED_SUPPORTED
    assert map_label("Wrong", "rlfh") is Label.CONTRADICTED
    assert map_label("nofact", "anah") is Label.NO_FACT
    assert map_label("neutral", "fspo") is Label.UNVERIFIABLE
    assert map_label("NS", "factscore") is Label.CONTRADICTED
    assert map_label(" inconclusive\n", "veriscore") is Label.UNVERIFIABLE

    # What is not exactly a label is unknown.
    assert {map_label(name, "rlfh") for name in ("incorrect", "not correct", "correct.", "", "right")} == {None}
    with pytest.raises(SpanError, match="unknown label table 'fever'"):
        map_label("supported", "fever")


@pytest.mark.parametrize("case", SCOPES, ids=lambda case: repr(case["completion"]))
def test_scopes(case):
    completion = case["completion"]
    whole = [completion] if completion.strip() else []
    for scope, expected in (("answer", case["answer"]), ("think", case["think"]), ("completion", whole)):
        text, ranges = scope_text(completion, scope, case["opened"])
        parts = [completion[slice(*one)] for one in ranges]
        assert text == "\n\n".join(parts)
        assert [part.strip() for part in parts] == expected if scope == "think" else parts == expected


@given(
    st.lists(st.sampled_from(["<think>", "</think>", "a", "b.", " ", "\n"]), max_size=9).map("".join), st.booleans()
)
def test_every_character_is_answer_or_reasoning_and_none_is_both(completion, opened):
    answer, think = (scope_ranges(completion, scope, opened) for scope in ("answer", "think"))
    found = sorted(place for start, end in (*answer, *think) for place in range(start, end))
    left = "".join(completion[place] for place in range(len(completion)) if place not in found)
    assert len(found) == len(set(found)) and not left.replace("<think>", "").replace("</think>", "")


def test_the_final_answer_comes_last_even_if_it_is_empty():
    assert scope_ranges("so</think>x<think>y", opened=True) == [(10, 11), (19, 19)]
    assert scope_ranges("no block", "think") == []
    with pytest.raises(SpanError, match="'all' is unknown; choose one of answer, think, completion"):
        scope_text("x", "all")


@pytest.mark.timeout(120)
def test_many_broken_tags_take_no_time():
    for piece in ("<think", "<think ", "</think>", "<think>", "< ", "<answer"):
        scope_ranges(piece * 20_000, opened=True)
        opens_think(piece * 20_000)


@pytest.mark.parametrize(
    ("prompt", "opened"),
    [("Go on.\n<think>", True), ("<THINK a=b> \n", True), ("<think>a", False), ("<think>\n\n</think>\n\n", False),
     ("Write between <think> and </think>.", False), ("", False)],
)  # fmt: skip
def test_a_prompt_opens_the_block(prompt, opened):
    assert opens_think(prompt) is opened


def test_findings_in_a_scope_go_back_to_their_places():
    text = "<think>Ada sat.</think> so <think>Bob ran. </think>!"
    joined, ranges = scope_text(text, "think")
    spans = [
        LabeledSpan(joined.index(part), joined.index(part) + len(part)) for part in ("Ada sat.", "Bob", "Bob ran. ")
    ]
    across = LabeledSpan(4, joined.index("Bob") + 3)
    ends = [LabeledSpan(0, 9), LabeledSpan(9, 13), LabeledSpan(len(joined), len(joined))]
    shown = Verification(spans=(*spans, across, *ends), claims=(spans[1],))
    found = shown.spread(ranges).validate(text)
    assert [span.text(text) for span in found.spans] == [
        "Ada sat.", "Bob", "Bob ran. ", "sat.</think> so <think>Bob", "Ada sat.", "</think> so <think>Bob", ""
    ]  # fmt: skip
    assert found.claims[0].text(text) == "Bob"
    # Spans that end between two parts lose their white space on the way, the others nothing.
    back = found.gather(ranges)
    assert back.spans[:4] == shown.spans[:4] and back.claims == shown.claims
    assert Verification(spans=(LabeledSpan(2, 5),)).spread([(7, 20)]).spans == (LabeledSpan(9, 12),)
    # Nothing in the scope, and nothing where the second part begins.
    assert Verification(spans=(LabeledSpan(0, 0),)).spread([]).spans == (LabeledSpan(0, 0),)
    assert Verification(spans=(LabeledSpan(7, 7),)).spread([(0, 5), (10, 20)]).spans == (LabeledSpan(10, 10),)


def test_empty_spans_at_the_borders_of_parts_stay_where_they_are():
    text = "Ada. <think>one</think> Bob. <think>two</think>"
    joined, ranges = scope_text(text)
    places = [0, 4, joined.index("Bob"), len(joined)]
    shown = Verification(spans=tuple(LabeledSpan(place, place) for place in places))
    found = shown.spread(ranges)
    assert [span.start for span in found.spans] == [0, 4, text.index("Bob"), text.index("Bob") + 4]
    assert all(span.start == span.end for span in found.spans) and found.gather(ranges) == shown
    whole = Verification(spans=(LabeledSpan(0, 0, Label.NO_FACT),))  # a judge of whole texts, of one that is empty
    assert scope_text("<think>cut off") == ("", []) and whole.spread([]) == whole.gather([]) == whole


def test_findings_in_many_parts_take_no_time():
    text = "<think></think>A b c. " * 20_000
    joined, ranges = scope_text(text)
    shown = Verification(spans=tuple(LabeledSpan(8 * part, 8 * part + 6) for part in range(20_000)))
    found = shown.spread(ranges)
    assert {span.text(text) for span in found.spans} == {"A b c."} and found.gather(ranges) == shown


def test_why_nothing_is_said():
    """An error anywhere tells more than a claim's reason, and that more than nothing."""
    silent = Verification([LabeledSpan(0, 1, None)])
    claim = Verification([LabeledSpan(0, 1, None), LabeledSpan(1, 2, None, reason="not judged: cut")])
    late = Verification(error="timeout")
    assert [it.failure for it in (silent, claim, late)] == ["no sentence could be judged", "cut", "timeout"]
    assert Verification([LabeledSpan(0, 1, Label.SUPPORTED)]).failure is Verification().failure is None
    assert first_failure([silent, claim, late]) == "timeout" and first_failure([silent, claim]) == "cut"

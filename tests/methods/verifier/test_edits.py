"""Edits by their names: what each makes of a sentence, by hand, and that none leaves a claim as it was."""

import random

import pytest

from hf_factuality.errors import DataError
from hf_factuality.methods.verifier.data import NOT_SUPPORTED, SUPPORTED, span_pair, synthetic_claims
from hf_factuality.methods.verifier.edits import EDITS, REWRITES, Stock, names_in


STOCK = Stock.of(["She lived with Ira Noor in Leeds.", "He died at the old mill near Hull, alone."])
PASSAGES = [
    f"{name} Marsh was born in {place} in {year}. {name} Marsh wrote {count} novels, most of them about the sea. "
    f"The first novel was published by {other} Press on March 4, {year + 30}. It was not translated before 1990."
    for name, place, year, count, other in [
        ("Ada", "Leeds", 1901, "twelve", "Northgate"), ("Ben", "Hull", 1911, "three", "Harbour"),
        ("Cora", "York", 1885, "six", "Minster"), ("Dora", "Ripon", 1897, "nine", "Castle"),
    ]
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sentence", "possible"),
    [
        ("entity", "It was built in Ripon by the town.", ["It was built in Leeds by the town.", "It was built in Hull by the town."]),
        ("number", "It has two doors.", None),
        ("number", "The firm made 3 million pounds.", None),
        ("date", "It was opened on Monday.", None),
        ("negation", "She is not a poet.", ["She is a poet."]),
        ("negation", "They may swim there.", ["They may not swim there."]),
        ("role", "Ada Hale praised Ben Orr.", ["Ben Orr praised Ada Hale."]),
        ("detail", "He sang.", ["He sang with Ira Noor in Leeds.", "He sang at the old mill near Hull."]),
        ("quantifier", "Some birds sing.", ["All birds sing."]),
        ("quantifier", "It is one of the towers of Hull.", ["It is all of the towers of Hull.", "It is none of the towers of Hull."]),
        ("direction", "It lies north of Hull.", ["It lies south of Hull."]),
        ("direction", "She joined the club.", ["She left the club."]),
    ],
)  # fmt: skip
def test_edits_change_what_is_stated(kind, sentence, possible):
    found = {EDITS[kind](sentence, STOCK, random.Random(seed)) for seed in range(30)}
    assert None not in found and sentence not in found
    if possible is not None:
        assert found == {*possible}
    if kind in ("entity", "number", "date", "negation", "quantifier", "direction"):  # one place is edited
        assert all(abs(len(text.split()) - len(sentence.split())) <= 1 for text in found)


@pytest.mark.parametrize(
    ("kind", "sentence", "expected"),
    [
        ("clause", "Ada Hale (born 1901) was a poet.", "Ada Hale was a poet."),
        ("clause", "Ada Hale, who lived in Hull, was a poet.", "Ada Hale was a poet."),
        ("clause", "In 1901, the mill was sold.", "The mill was sold."),
        ("voice", "The Mill was directed by Ada Hale in 1901.", "Ada Hale directed the Mill in 1901."),
        ("voice", "Ada Hale wrote The Mill.", None),
        ("voice", "Ada Hale wrote Blue Water.", "Blue Water was written by Ada Hale."),
        ("voice", "He directed Blue Water.", None),
        ("number_form", "It has twelve doors.", "It has 12 doors."),
        ("number_form", "It has 12 doors.", "It has twelve doors."),
        ("number_form", "It fell by 4% then.", "It fell by 4 percent then."),
        ("number_form", "It opened on March 4.", None),
        ("wording", "It is located there.", "It is situated there."),
        ("short_name", "Ira Leeds sang.", "Leeds sang."),
        ("short_name", "New Leeds sang.", None),
    ],
)
def test_rewrites(kind, sentence, expected):
    if expected is not None or kind != "voice" or "He " in sentence:
        assert REWRITES[kind](sentence, STOCK, random.Random(0)) == expected


def test_names():
    assert names_in("The Mill stood in Leeds on Monday, and Ada Hale of York sold it in March.") == [
        "Leeds",
        "Ada Hale of York",
    ]


def test_claims_are_the_same_by_seed_and_show_nothing_by_themselves():
    rows = synthetic_claims(PASSAGES, 60, seed=3)
    assert rows == synthetic_claims(PASSAGES, 60, seed=3) != synthetic_claims(PASSAGES, 60, seed=4)
    labels = [row["label"] for row in rows]
    assert abs(labels.count(SUPPORTED) - labels.count(NOT_SUPPORTED)) <= 2  # not every sentence takes a second detail
    assert {row["kind"] for row in rows if row["label"] == NOT_SUPPORTED} <= {*EDITS, "elsewhere"}
    assert {row["kind"] for row in rows if row["label"] == SUPPORTED} <= {*REWRITES, "same"}
    # What is copied is supported, and no edit stands in its passage.
    for row in rows:
        if row["kind"] == "same":
            assert row["claim"] in row["evidence"][0]
        if row["label"] == NOT_SUPPORTED:
            assert row["claim"] not in row["evidence"][0]
    # But for details, an edited sentence is a supported claim of a passage that has it: of the claim alone nothing follows.
    both = [row for row in rows if row["kind"] not in ("detail", "elsewhere")]
    false = {row["claim"] for row in both if row["label"] == NOT_SUPPORTED}
    true = {row["claim"] for row in rows if row["label"] == SUPPORTED}
    assert len(false & true) == len(false)


def test_a_rewrite_does_not_take_away_what_was_edited():
    """The clause with the date is dropped from a claim only where the date is not what is false."""
    passage = [
        "In 1901, the old mill at Leeds was sold to Ada Hale. The river was low then and nobody minded it much."
    ]
    for seed in range(40):
        for row in synthetic_claims(passage, 8, seed, ["date"]):
            if row["label"] == NOT_SUPPORTED:
                assert any(sign.isdigit() for sign in row["claim"]), row


def test_edits_by_name_and_passages_without_prose():
    rows = synthetic_claims(PASSAGES, 40, edits=["date"])
    assert {row["kind"] for row in rows if row["label"] == NOT_SUPPORTED} <= {"date", "elsewhere"}
    with pytest.raises(ValueError, match="edits=.'dates'. are unknown; choose from .'entity'"):
        synthetic_claims(PASSAGES, 40, edits=["dates"])
    with pytest.raises(DataError, match="no edit .* give English prose"):
        synthetic_claims(["你好。", "12"], 40)


def test_pairs_from_spans_have_one_length():
    tokens = "She wrote four long novels in Leeds and York .".split()
    marked = [token in ("four", "long") for token in tokens]
    right, wrong = span_pair(tokens, marked, random.Random(0))
    assert right == "She wrote novels in Leeds and York ." and len(wrong.split()) == len(right.split())
    assert "four long" in wrong and span_pair(tokens[:4], marked[:4], random.Random(0)) == ()

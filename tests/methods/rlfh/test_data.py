"""RLFH's questions with their materials."""

import json

import pytest

from hf_factuality.data import load_rlfh
from hf_factuality.errors import DataError
from hf_factuality.methods.rlfh.data import rlfh_row
from tests.data.cases import cases


HOTPOT = {"question": "Which came first?", "titles": ["One", "Two", "One"], "materials": ["One: 1900.", " "],
          "extra_materials": ["Two: 1910."], "answer": "One"}  # fmt: skip


def test_materials_and_the_gold_answer_are_the_evidence():
    row = rlfh_row(HOTPOT)
    assert (
        row["prompt"] == [{"role": "user", "content": "Which came first?"}] and row["question"] == HOTPOT["question"]
    )
    assert row["evidence"] == ["One: 1900.", "Two: 1910.", "The correct answer to the question is: One."]
    assert row["topic"] == ["One", "Two"]
    assert rlfh_row(HOTPOT, answers=False)["evidence"] == ["One: 1900.", "Two: 1910."]


@pytest.mark.parametrize(
    ("answer", "last"),
    [
        (["a", "b"], "The correct answer to the question is: a or b."),
        ([], "The question has no correct answer."),
        ("", "The question has no correct answer."),
        (None, None),
    ],
)
def test_answers(answer, last):
    evidence = rlfh_row({"question": "Q?", "answer": answer})["evidence"]
    assert evidence == ([] if last is None else [last])


def test_files(tmp_path):
    one, other = tmp_path / "one.jsonl", tmp_path / "other.json"
    one.write_text(json.dumps(HOTPOT) + "\n" + json.dumps({"question": "Q?", "evidence": "text", "topic": "T"}) + "\n")
    other.write_text(json.dumps([{"question": "R?"}]))
    dataset = load_rlfh([one, other])
    assert dataset["question"] == ["Which came first?", "Q?", "R?"]
    assert dataset["evidence"][1:] == [["text"], []] and dataset["topic"] == [["One", "Two"], ["T"], []]


@cases("refusals", "rlfh")
def test_bad_rows_are_named(tmp_path, case):
    (tmp_path / "one.jsonl").write_text(case["text"])
    with pytest.raises(DataError, match=case["message"]):
        load_rlfh(tmp_path / "one.jsonl")


def test_one_source_is_needed(tmp_path):
    with pytest.raises(DataError, match="give either"):
        load_rlfh()
    with pytest.raises(DataError, match="cannot read"):
        load_rlfh(tmp_path / "gone.jsonl")

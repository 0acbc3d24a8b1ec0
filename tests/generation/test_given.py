import pytest

from hf_factuality.generation.base import ChatAnswer
from hf_factuality.generation.given import ANSWER_COLUMNS, RESPONSE_COLUMNS, as_answers, given_answers, read_given
from tests.evaluation.conftest import write_rows


@pytest.mark.parametrize(
    "row, answers, responses",
    [
        ({"completion": "a", "responses": ["b"]}, ["a"], ["b"]),
        ({"completions": ["a", None], "completion": "c", "answer": "gold"}, ["a", None], ["a", None]),
        ({"question": "q", "answer": "gold"}, ["gold"], None),
        ({"samples": [{"text": "a"}, None]}, ["a", None], ["a", None]),
        ({"completions": None, "output": None}, [None], None),
        ({"question": "q"}, None, None),
    ],
)
def test_where_answers_stand(row, answers, responses):
    assert given_answers(row, ANSWER_COLUMNS, "here") == answers
    assert given_answers(row, RESPONSE_COLUMNS, "here") == responses


def test_only_the_first_line_of_evaluate_is_none_of_the_rows(tmp_path):
    rows = [
        {"schema": "hf_factuality.answers/1", "settings": {}},
        {"id": "a", "schema": "CREATE TABLE t (x)", "responses": ["b"]},
        {"schema": "hf_factuality.answers/1", "id": "a"},
    ]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert list(read_given(path, RESPONSE_COLUMNS)) == [
        ("a.jsonl, line 2", rows[1], ["b"]),
        ("a.jsonl, line 3", rows[2], None),
    ]


def test_what_a_row_says_of_the_ends_of_its_answers():
    row = {"samples": [{"text": "a. b", "finish_reason": "length"}, {"text": "a", "finish_reason": "length"}, None]}
    cut, whole = ChatAnswer("a", "stop"), ChatAnswer("a", "length")
    assert as_answers(["a. b", "a", None], row, (".",)) == [cut, whole, ChatAnswer(error="missing")]
    assert as_answers(["a"], {"responses": ["a"]}) == [ChatAnswer("a")]

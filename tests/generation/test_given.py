import pytest

from hf_factuality.generation.given import ANSWER_COLUMNS, RESPONSE_COLUMNS, given_answers, is_header


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


def test_only_the_first_line_of_evaluate_is_none_of_the_rows():
    assert is_header({"schema": "hf_factuality.answers/1", "settings": {}})
    assert not is_header({"id": "a", "schema": "CREATE TABLE t (x)", "responses": ["b"]})
    assert not is_header({"schema": "hf_factuality.answers/1", "id": "a"})

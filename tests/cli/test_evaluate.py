"""`hf_factuality.evaluate` measures what the command prints and writes."""

import json

import pytest

import hf_factuality
from hf_factuality.cli import main


QUESTIONS = [
    {
        "id": "1",
        "question": "Capital of Austria?",
        "answer": "Vienna",
        "evidence": "Vienna is the capital of Austria.",
    },
    {"id": "2", "question": "Capital of Japan?", "answer": "Tokyo", "evidence": "Tokyo is the capital of Japan."},
]
ANSWERS = [{"id": "1", "completion": "Vienna"}, {"id": "2", "completion": "Osaka"}]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, rows in (("q.jsonl", QUESTIONS), ("a.jsonl", ANSWERS)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def without_times(entries):
    return [{name: value for name, value in entry.items() if name != "created"} for entry in entries]


def test_command_and_function_give_the_same_result(files, capsys):
    flags = "--dataset q.jsonl --answers a.jsonl --metrics accuracy,abstention --match exact --out command.json --json"
    assert main(["evaluate", *flags.split()]) == 0
    printed = json.loads(capsys.readouterr().out)["results"]
    found = hf_factuality.evaluate(
        dataset="q.jsonl", answers="a.jsonl", metrics=["accuracy", "abstention"], match="exact", out="function.json"
    )
    assert capsys.readouterr().out == ""
    assert without_times(printed) == without_times(json.loads(json.dumps(found.results)))
    first, second = (json.loads((files / name).read_text()) for name in ("command.json", "function.json"))
    assert without_times(first["results"]) == without_times(second["results"])
    assert first["command"].startswith("hf-factuality evaluate --answers a.jsonl")
    assert second["command"].startswith("hf_factuality.evaluate(answers=")
    table = found.to_pandas()
    assert list(table["metric"]) == ["accuracy", "abstention"] and table["value"][0] == 0.5


def test_what_is_too_low_is_named(files):
    given = {"dataset": "q.jsonl", "answers": "a.jsonl", "metrics": "accuracy"}
    assert hf_factuality.evaluate(**given, fail_under={"accuracy": 0.5}).failures == []
    (failure,) = hf_factuality.evaluate(**given, fail_under={"file.accuracy": 0.6}).failures
    assert "accuracy 0.5 is below 0.6" in failure


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"answers": None}, "`model`"),
        ({"metrics": "acuracy"}, "did you mean 'accuracy'"),
        ({"fail_under": {"bleu": 0.5}}, "'bleu'"),
        ({"limit": 0}, "`limit`"),
        ({"max_not_judged": 2}, "`max_not_judged`"),
        ({"suite": "short"}, "`suite`"),
        ({"metrics": "abstention", "match": "fuzzy"}, "`match`"),
        ({"metrics": "factscore", "verifier": "lexical", "knowledge": "k", "retriever": "x"}, "`retriever`"),
        ({"metrics": "factscore", "verifier": "lexical", "scope": "all"}, "`scope`"),
        ({"best_of": "1", "best_of_by": "lexical", "aggregate": "avg"}, "`aggregate`"),
        ({"model": [], "answers": []}, "`model`"),
        ({"model": "m"}, "`model`"),
        ({"revision": "v1"}, "`revision`"),
    ],
)
def test_wrong_arguments_are_named(files, arguments, message):
    with pytest.raises(ValueError, match=message):
        hf_factuality.evaluate(**{"dataset": "q.jsonl", "answers": "a.jsonl", **arguments})

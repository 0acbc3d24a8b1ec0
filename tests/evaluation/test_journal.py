"""The file of answers, without a run around it."""

import json

import pytest

from hf_factuality.errors import DataError
from hf_factuality.evaluation.journal import Journal
from hf_factuality.hub.results import differences
from hf_factuality.spans import LabeledSpan, Verification


def test_a_long_line_that_was_cut_leaves_nothing_behind(tmp_path):
    path = tmp_path / "a.jsonl"
    journal = Journal(path, {"seed": 0})
    journal.add([{"id": "a", "sample": 0, "text": "one"}])
    journal.close()
    with path.open("ab") as file:
        file.write(b'{"id": "b", "sample": 0, "text": "' + b"long " * 100)
    journal = Journal(path, {"seed": 0})
    assert set(journal.answers) == {"a"}
    journal.add([{"id": "b", "sample": 0, "text": "two"}])
    journal.close()  # killed again: the file is not written anew
    assert [json.loads(line).get("text") for line in path.read_text().splitlines()] == [None, "one", "two"]
    assert Journal(path, {"seed": 0}).answers["b"]["completions"] == [{"text": "two"}]


def test_lines_about_one_answer_are_put_together(tmp_path):
    path = tmp_path / "a.jsonl"
    found = Verification((LabeledSpan(0, 3, "supported"),))
    journal = Journal(path, {})
    prompt = [{"role": "user", "content": "?\ud800"}]  # half of a surrogate pair, as a broken completion may hold
    journal.add([{"id": "a", "prompt": prompt, "sample": 1, "text": "two", "finish_reason": "stop"}])
    journal.add([{"id": "a", "sample": 0, "text": "one"}])
    journal.add([{"id": "a", "sample": 0, "verification": found.to_dict(), "verified": "k"}])
    journal.add([{"id": "q", "log_likelihoods": [-1.0, -2.0]}])
    journal.close()
    for _ in range(2):  # from the lines, and from the file that is written anew
        journal = Journal(path, {})
        assert journal.answers["a"]["prompt"] == prompt and journal.sample("a")["verification"] == found.to_dict()
        assert journal.sample("q") == journal.sample("nobody") == {}
        first, second = journal.answers["a"]["completions"]
        assert (first["text"], first["verified"], second["text"], second["finish_reason"]) == (
            "one",
            "k",
            "two",
            "stop",
        )
        assert journal.answers["q"]["log_likelihoods"] == [-1.0, -2.0]
        journal.finish([{"id": "q", "log_likelihoods": [-1.0, -2.0]}])  # "a" is of a larger sample, and stays


def test_differences_are_named():
    before = {"a": 1, "b": {"c": [1], "d": None}}
    assert differences(before, before) == []
    assert differences(before, {"a": 2, "b": {"c": [1, 2], "e": "x"}}) == [
        "a: 1 there, 2 now",
        "b.c: [1] there, [1, 2] now",
        'b.e: null there, "x" now',
    ]


def test_other_settings_are_refused(tmp_path):
    journal = Journal(tmp_path / "a.jsonl", {"generation": {"top_p": 1.0}})
    journal.add([{"id": "a", "sample": 0, "text": "one"}])
    journal.close()
    with pytest.raises(DataError, match="generation.top_p: 1.0 there, 0.9 now"):
        Journal(tmp_path / "a.jsonl", {"generation": {"top_p": 0.9}})


def test_a_file_without_an_answer_takes_other_settings(tmp_path):
    path = tmp_path / "a.jsonl"
    Journal(path, {"seed": 0}).close()
    Journal(path, {"seed": 1}).close()
    assert json.loads(path.read_text())["settings"] == {"seed": 1}

"""Datasets of folders, as the builders write them."""

import json

import datasets
import pytest

from hf_factuality.data.benchmarks.registry import get_benchmark
from hf_factuality.data.benchmarks.sources import _load_dataset
from hf_factuality.data.reading import has_split, open_dataset
from hf_factuality.errors import DataError


CARD = "---\nconfigs:\n- config_name: default\n  data_files: rows.parquet\n---\n\n# Rows\n"


def fill(folder, text):
    folder.mkdir(parents=True, exist_ok=True)
    datasets.Dataset.from_list([{"text": text}]).to_parquet(folder / "rows.parquet")
    (folder / "README.md").write_text(CARD)
    return str(folder)


@pytest.mark.parametrize(
    "texts_of",
    [
        lambda name: open_dataset(name)["text"][:],
        lambda name: [row["text"] for row in _load_dataset(get_benchmark("gsm8k"), name, None, None)[1]],
    ],
    ids=["builders", "benchmarks"],
)
def test_folders_of_one_name_and_folders_that_change(tmp_path, texts_of):
    first, second = fill(tmp_path / "a" / "refusals", "one"), fill(tmp_path / "b" / "refusals", "two")
    assert texts_of(first) == ["one"] and texts_of(second) == ["two"]
    fill(tmp_path / "a" / "refusals", "three")
    assert texts_of(first) == ["three"] and texts_of(second) == ["two"]


ROWS = [
    {"prompt": "Who wrote Emma?", "answer": "Jane Austen"},
    {"prompt": "When?", "answer": "1815", "topic": "dates"},
]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.csv", "rows.tsv", "rows.parquet"])
def test_one_file_is_a_dataset(tmp_path, name):
    path = tmp_path / name
    if name.endswith(".parquet"):
        datasets.Dataset.from_list([{"topic": None} | row for row in ROWS]).to_parquet(path)
    elif name.endswith("sv"):
        separator = "\t" if name.endswith(".tsv") else ","
        lines = [("prompt", "answer", "topic")] + [
            (row["prompt"], row["answer"], row.get("topic", "")) for row in ROWS
        ]
        path.write_text("".join(separator.join(line) + "\n" for line in lines))
    else:
        path.write_text(
            json.dumps(ROWS) if name.endswith(".json") else "".join(json.dumps(row) + "\n" for row in ROWS)
        )
    found = open_dataset(str(path), columns=[("prompt", "answer")])
    assert found["answer"][:] == ["Jane Austen", "1815"] and found["topic"][:] == [None, "dates"]
    assert has_split(str(path), None, "train") and not has_split(str(path), None, "test")
    assert [row["answer"] for row in open_dataset(str(path), streaming=True)] == ["Jane Austen", "1815"]


@pytest.mark.parametrize(
    ("text", "split", "columns", "message"),
    [
        ('{"prompt": "a"}\n', "test", (), "has no split 'test'"),
        ("", "train", (), "has no rows"),
        ("3\n", "train", (), "each row must be an object"),
        ("0\n", "train", (), "each row must be an object"),
        ('{"prompt": "a"}\n', "train", [("prompt", "answer")], "needs the columns 'prompt' and 'answer'"),
        ('{"answer": "a"}\n{"answer": ["b"]}\n', "train", (), "column 'answer' .list and str. make no column"),
        ('{"answer": \n', "train", (), "rows.jsonl"),
    ],
    ids=["split", "empty", "no object", "zero", "columns", "mixed", "cut"],
)
def test_a_file_that_is_no_dataset(tmp_path, text, split, columns, message):
    path = tmp_path / "rows.jsonl"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        open_dataset(str(path), split=split, columns=columns)


def test_a_file_has_no_configuration(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(DataError, match="has no configuration 'hard'"):
        open_dataset(str(tmp_path / "rows.jsonl"), "hard")

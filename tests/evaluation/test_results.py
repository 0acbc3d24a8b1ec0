"""The file of results and the comparison of two."""

import copy
import json
import os

import pytest

from hf_factuality.errors import DataError
from hf_factuality.evaluation import compare_results, load_results
from hf_factuality.hub.results import SCHEMA, public, write_results


MODEL = {"name": "m", "revision": None, "adapter": None, "dtype": "float32", "server": None}
MACHINE = {"python": "3.11", "torch": "2", "transformers": "5", "devices": ["cpu"]}


def entry(benchmark="gsm8k", metric="accuracy", value=0.5, n=4, **known):
    return {
        "benchmark": benchmark,
        "metric": metric,
        "value": value,
        "n": n,
        "n_scored": n,
        "confidence_interval": {"low": 0.25, "high": 0.75, "level": 0.95, "resamples": 1000, "seed": 0},
        "higher_is_better": True,
        "parts": {},
        "left_out": {"responses": {}},
        "seeds": {"generation": 0},
        "dataset": {"dataset": "x", "used": n},
        "verifier": None,
        "extractor": None,
        "judge": None,
        "generation": {"max_new_tokens": 8},
        "comparable_to_published": False,
        "settings": {},
        "created": "2026-01-01T00:00:00Z",
    } | known


def test_results_are_added_and_replaced(tmp_path):
    path = tmp_path / "r.json"
    write_results(path, MODEL, [entry(value=0.1)], MACHINE)
    write_results(path, MODEL, [entry("math-500"), entry(value=0.2)], MACHINE)
    write_results(
        path, MODEL, [entry(value=0.3, generation={"max_new_tokens": 9})], MACHINE | {"torch": "3"}, "command"
    )
    found = load_results(path)
    values = [(e["benchmark"], e["value"], e["generation"]["max_new_tokens"]) for e in found["results"]]
    assert values == [("math-500", 0.5, 8), ("gsm8k", 0.2, 8), ("gsm8k", 0.3, 9)]
    assert found["schema"] == SCHEMA and found["model"] == MODEL and found["command"] == "command"
    # What was measured before the environment changed says where.
    assert [e.get("environment", {}).get("torch") for e in found["results"]] == ["2", "2", None]
    assert found["environment"]["torch"] == "3"
    assert os.listdir(tmp_path) == ["r.json"]


def test_another_model_is_refused(tmp_path):
    path = tmp_path / "r.json"
    write_results(path, MODEL, [entry()], MACHINE)
    before = path.read_bytes()
    with pytest.raises(DataError, match=r"results of 'm', not of 'other': name: \"m\" there, \"other\" now"):
        write_results(path, MODEL | {"name": "other"}, [entry()], MACHINE)
    with pytest.raises(DataError, match="dtype"):
        write_results(path, MODEL | {"dtype": "bfloat16"}, [entry()], MACHINE)
    assert path.read_bytes() == before


def test_nothing_is_lost_if_writing_fails(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    write_results(path, MODEL, [entry()], MACHINE)
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_results(path, MODEL, [entry("aime-2024")], MACHINE)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["r.json"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.update(schema="hf_factuality.results/2"), "has the schema 'hf_factuality.results/2'"),
        (lambda f: f.pop("model"), "lacks 'model'"),
        (lambda f: f["model"].pop("dtype"), "model lacks 'dtype'"),
        (lambda f: f["results"][0].pop("n"), r"results\[0\] lacks 'n'"),
        (lambda f: f["results"][0].update(value="0.5"), "'value' must be int or float or null, got '0.5'"),
        (lambda f: f["results"][0].update(value=float("nan")), "'value' must be"),
        (lambda f: f["results"][0].update(n=True), "'n' must be int, got True"),
        (lambda f: f["results"][0].update(n_scored=5), "n_scored 5 must be between 0 and n 4"),
        (lambda f: f["results"][0]["confidence_interval"].update(low=0.9), "low 0.9 above high 0.75"),
        (lambda f: f["results"].append(3), r"results\[1\] must be an object"),
    ],
)
def test_a_bad_file_is_refused(tmp_path, change, message):
    path = tmp_path / "r.json"
    found = write_results(path, MODEL, [entry()], MACHINE)
    change(found)
    path.write_text(json.dumps(found))
    with pytest.raises(DataError, match=message):
        load_results(path)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "{}"])
def test_no_file_of_results(tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(DataError, match="no file of results|has the schema"):
        load_results(tmp_path / "r.json")


def test_folders_are_not_published():
    found = public(
        {"a": "/home/me/model", "b": ["nli:/home/me/nli", "nli:org/model"], "c": "org/model", "d": "./x/y.jsonl"}
    )
    assert found == {"a": "model", "b": ["nli:nli", "nli:org/model"], "c": "org/model", "d": "y.jsonl"}
    assert public("http://localhost:8000/v1") == "http://localhost:8000/v1"


def results(*entries, **model):
    return {
        "schema": SCHEMA,
        "created": "x",
        "hf_factuality": "x",
        "model": MODEL | model,
        "results": copy.deepcopy(list(entries)),
        "environment": {},
    }


def test_comparison():
    answers = {"generation": {"answers": "a.jsonl", "sha256": "1"}}
    before = results(entry(value=0.5), entry("math-500", value=None, confidence_interval=None), entry("x", **answers))
    answers = {"generation": {"answers": "b.jsonl", "sha256": "2"}}
    after = results(
        entry(value=0.625, n_scored=3),
        entry("math-500", value=0.25),
        entry("x", value=0.25, **answers),
        entry("only", value=1.0),
        name="other",
    )
    assert compare_results(before, after).splitlines() == [
        "| benchmark | metric | before | after | change | n |",
        "|---|---|---|---|---|---|",
        "| gsm8k | accuracy | 0.500 (0.250 to 0.750) | 0.625 (0.250 to 0.750) | +0.125 | 4 / 3 |",
        "| math-500 | accuracy | n/a | 0.250 (0.250 to 0.750) | n/a | 4 |",
        "| x | accuracy | 0.500 (0.250 to 0.750) | 0.250 (0.250 to 0.750) | -0.250 | 4 |",
    ]


def test_other_settings_are_not_compared(tmp_path):
    before = results(entry(), entry("math-500", higher_is_better=False))
    after = results(entry(generation={"max_new_tokens": 9}), entry("math-500", higher_is_better=False))
    text = compare_results(before, after)
    assert "| gsm8k |" not in text and "| math-500 | accuracy |" in text
    assert "`gsm8k`, `accuracy`: measured with different settings (generation.max_new_tokens), not compared." in text
    assert "Lower is better: accuracy." in text
    with pytest.raises(DataError, match="no benchmark and metric in common"):
        compare_results(results(entry()), results(entry("x")))
    with pytest.raises(DataError, match="before has the schema None"):
        compare_results({}, results(entry()))

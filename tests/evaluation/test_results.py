"""The file of results and the comparison of two."""

import copy
import json
import os
import re
import struct
from pathlib import Path

import pytest

from hf_factuality.errors import DataError
from hf_factuality.evaluation import compare, load_results
from hf_factuality.hub import results as module
from hf_factuality.hub.results import SCHEMA, folder_fingerprint, public, write_results
from hf_factuality.hub.tables import NOISE


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
    with pytest.raises(DataError, match=r"'m'.*'other'"):
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


BAD = json.loads((Path(__file__).resolve().parents[1] / "cases" / "bad_results.json").read_text("utf-8"))
# Integers beyond every float, which JSON knows.
BAD += [
    {"at": ["results", 0, "confidence_interval", "level"], "value": 10**400, "says": "'level' must be int or float"},
    {"at": ["results", 0, "value"], "value": 10**400, "says": "'value' must be int or float or null"},
]


@pytest.mark.parametrize("case", BAD, ids=lambda case: case["says"])
def test_a_bad_file_is_refused(tmp_path, case):
    """A value that is another, or that is missing."""
    path = tmp_path / "r.json"
    found = place = write_results(path, MODEL, [entry()], MACHINE)
    *way, last = case["at"]
    for key in way:
        place = place[key]
    place[last] = case.get("value")
    if "value" not in case:
        del place[last]
    path.write_text(json.dumps(found))
    with pytest.raises(DataError, match=re.escape(case["says"])):
        load_results(path)


@pytest.mark.parametrize("text", ["", "[" * 200_000, "{", "[]", '"x"', "{}"])
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
    comparison = compare(before, after)
    header, _, *rows, note = str(comparison).splitlines()
    assert re.split("  +", header) == [
        *("benchmark", "metric", "before", "after", "change", "interval of the change", "better if", "verdict", "n")
    ]
    # By hand: 0.125 - sqrt(0.375^2 + 0.25^2) = -0.326, 0.125 + sqrt(0.125^2 + 0.25^2) = 0.405; and the same of -0.25.
    assert [re.split("  +", row) for row in rows] == [
        ["gsm8k", "accuracy", "0.500 (0.250 to 0.750)", "0.625 (0.250 to 0.750)", "+0.125", "-0.326 to +0.405", "higher",
         "within noise", "4 / 3"],
        ["math-500", "accuracy", "n/a", "0.250 (0.250 to 0.750)", "n/a", "higher", "unknown", "4"],
        ["x", "accuracy", "0.500 (0.250 to 0.750)", "0.250 (0.250 to 0.750)", "-0.250", "-0.500 to +0.309", "higher",
         "within noise", "4"],
    ]  # fmt: skip
    assert note == NOISE
    assert comparison.to_pandas().to_dict("list") == {
        "benchmark": ["gsm8k", "math-500", "x"],
        "metric": ["accuracy"] * 3,
        "before": [0.5, pytest.approx(float("nan"), nan_ok=True), 0.5],
        "after": [0.625, 0.25, 0.25],
        "change": [0.125, pytest.approx(float("nan"), nan_ok=True), -0.25],
        "low": [pytest.approx(0.125 - 0.203125**0.5), pytest.approx(float("nan"), nan_ok=True), -0.5],
        "high": [
            pytest.approx(0.125 + 0.078125**0.5),
            pytest.approx(float("nan"), nan_ok=True),
            pytest.approx(-0.25 + 0.3125**0.5),
        ],
        "verdict": ["within noise", "unknown", "within noise"],
        "n_before": [4, 4, 4],
        "n_after": [3, 4, 4],
        "higher_is_better": [True] * 3,
    }


def test_other_settings_are_not_compared(tmp_path):
    before = results(entry(), entry("math-500", higher_is_better=False))
    after = results(entry(generation={"max_new_tokens": 9}), entry("math-500", higher_is_better=False))
    text = str(compare(before, after))
    assert "\ngsm8k" not in text and "\nmath-500   accuracy " in text and " lower " in text
    assert "`gsm8k`, `accuracy`: measured with different settings (generation.max_new_tokens), not compared." in text
    with pytest.raises(DataError, match="no benchmark and metric in common"):
        compare(results(entry()), results(entry("x")))
    with pytest.raises(DataError, match="before has the schema None"):
        compare({}, results(entry()))


def weights(path, sizes):
    """A safetensors file of bytes, written by hand, and where each tensor begins."""
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    header = json.dumps(
        {
            f"t{number}": {"dtype": "U8", "shape": [size], "data_offsets": [end - size, end]}
            for number, (size, end) in enumerate(zip(sizes, ends, strict=True))
        }
    ).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(sum(sizes)))
    return [8 + len(header) + end - size for size, end in zip(sizes, ends, strict=True)]


def changed(path, start, length):
    """The fingerprint with some bytes changed, which are put back."""
    with path.open("r+b", buffering=0) as file:
        file.seek(start)
        before = file.read(length)
        file.seek(start)
        file.write(b"\1" * length)
        found = folder_fingerprint(path.parent)
        file.seek(start)
        file.write(before)
    return found


def test_a_fingerprint_sees_every_byte_of_small_weights(tmp_path):
    path = tmp_path / "model.safetensors"
    (start,) = weights(path, [8_000_000])
    assert folder_fingerprint(tmp_path) not in {changed(path, start + place, 1) for place in (0, 300_000, 7_999_999)}


def test_a_fingerprint_sees_every_tensor_of_large_weights(tmp_path, monkeypatch):
    """And not what lies between its samples, as its docstring says."""
    monkeypatch.setattr(module, "_WHOLE", 1000)
    path = tmp_path / "model.safetensors"
    sizes = [3, 60_000, 200_000, 0, 5_000_000, 40_000_000]
    starts = weights(path, sizes)
    own = folder_fingerprint(tmp_path)
    for start, size in zip(starts, sizes, strict=True):
        assert size == 0 or changed(path, start, size) != own
        if 0 < size < 65536:
            assert all(changed(path, start + place, 1) != own for place in {0, size // 3, size - 1})
        elif size:
            assert changed(path, start + size // 2, 1) != own or size > 2**24
            assert all(changed(path, start + place, 1) != own for place in (0, size - 1))
            assert changed(path, start + 20_000, 1) == own
    assert changed(path, starts[-1] + 2**24, 1) != own, "the second piece of a large tensor"
    assert changed(path, 12, 1) != own, "the header, which is then none"


FRACTION = struct.pack("<Q", 33) + b'{"a": {"data_offsets": [0.5, 9]}}'


@pytest.mark.parametrize(
    "head", [b"", b"\0" * 8, b"\xff" * 8, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b'{"a": 1 }', FRACTION]
)
def test_a_fingerprint_of_what_is_no_safetensors(tmp_path, monkeypatch, head):
    monkeypatch.setattr(module, "_WHOLE", 0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(head + bytes(100_000))
    assert changed(path, 50_000, 1000) != folder_fingerprint(tmp_path) != changed(path, len(head) + 99_999, 1)


def test_a_fingerprint_passes_over_what_is_no_file(tmp_path):
    (tmp_path / "a.bin").mkdir()
    (tmp_path / "b.safetensors").symlink_to(tmp_path / "gone")
    assert folder_fingerprint(tmp_path) is None

"""The script of the verifiers' speed runs, and its arms do the same work."""

import json
import sys
from pathlib import Path

import pytest
import torch


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import verifier_speed  # noqa: E402


@pytest.mark.slow
def test_arms_do_the_same_work(tmp_path, monkeypatch, capsys):
    out = tmp_path / "speed.json"
    flags = "--parts nli llm --sizes 64x2 --repeats 2 --pairs 40 --requests 6 --stub_seconds 0.001 --out".split()
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # of the other tests too
    monkeypatch.setattr(sys, "argv", ["verifier_speed.py", *flags, str(out)])
    verifier_speed.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert list(found["nli"]) == [f"64x2, {name}" for name in ("ten passages", "one passage", "group of eight")]
    assert [(case["pairs"], case["distinct_pairs"]) for case in found["nli"].values()] == [
        (40, 40),
        (13, 13),
        (40, 10),
    ]
    for case in found["nli"].values():
        assert case["largest_difference_of_probability"] < 1e-5
        assert len(case["ratio"]["values"]) == 2 and min(case["ratio"]["values"]) > 0
    stub = found["llm"]["stub"]
    assert stub["warm_labels_equal_cold"] and stub["unknown"] == 0
    assert len(stub["seconds"]["1"]) == len(stub["seconds"]["32"]) == len(stub["seconds"]["cold"]) == 2
    assert "| stub: warm cache over cold |" in capsys.readouterr().out


def test_arms_take_turns():
    calls = []

    def arm(name, seconds):
        calls.append(name)
        return seconds

    seconds = verifier_speed.alternate({"a": lambda: arm("a", 6.0), "b": lambda: arm("b", 2.0)}, 3)
    assert calls == ["a", "b", "b", "a", "a", "b"]
    # By hand: 6 / 2 each time.
    assert verifier_speed.ratios(seconds, "a", "b") == {
        "mean": 3.0, "sd": 0.0, "median": 3.0, "values": [3.0, 3.0, 3.0],
    }  # fmt: skip

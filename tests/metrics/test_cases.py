"""Every metric on cases computed by hand: tests/cases/*.json, with the arithmetic in their notes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_factuality.metrics import METRIC_NAMES, compute


CASES = Path(__file__).resolve().parent.parent / "cases"
ALL = [(name, case) for name in METRIC_NAMES for case in json.loads((CASES / f"{name}.json").read_text("utf-8"))]


def check(found, expected, tolerance, place):
    """`expected` holds the keys that matter; numbers agree within the tolerance, everything else exactly."""
    if isinstance(expected, dict):
        for key, value in expected.items():
            assert key in found, f"{place} lacks {key!r}"
            check(found[key], value, tolerance, f"{place}[{key!r}]")
    elif isinstance(expected, list):
        assert len(found) == len(expected), place
        for number, pair in enumerate(zip(found, expected, strict=True)):
            check(*pair, tolerance, f"{place}[{number}]")
    elif isinstance(expected, float):
        assert isinstance(found, float) and found == pytest.approx(expected, abs=tolerance), place
    else:
        assert found == expected, place


@pytest.mark.parametrize("name, case", ALL, ids=[f"{name}: {case['name']}" for name, case in ALL])
def test_hand_computed(make, name, case):
    assert case["note"]
    settings = case.get("settings", {})
    result = compute(name, case["predictions"], case.get("references"), **settings)
    check(result, case["expected"], case["tolerance"], name)
    module = make(name).compute(predictions=case["predictions"], references=case.get("references"), **settings)
    assert module == result
    assert json.loads(json.dumps(result, allow_nan=False)) == result, "plain values only"
    low_high = result["confidence_interval"]
    if low_high and result[name] is not None and low_high["low"] != low_high["high"]:
        assert low_high["low"] <= result[name] <= low_high["high"]


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_the_result_has_one_form(make, name):
    result = make(name).compute(predictions=[])
    assert list(result) == [
        name,
        "n",
        "n_scored",
        "confidence_interval",
        "parts",
        "left_out",
        "extractor",
        "judge",
        "comparable_to_published",
        "settings",
    ]
    assert result[name] is None and result["n"] == 0 and result["comparable_to_published"] is False
    assert all(count == 0 for count in result["left_out"]["responses"].values())


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_unknown_arguments_are_refused(make, name):
    with pytest.raises(TypeError, match="unknown arguments .*'gama'"):
        make(name).compute(predictions=[], gama=0)


def test_batches_add_up(make):
    """`add_batch` and `add` give what one call gives, also if the items have different forms."""
    metric = make("factscore")  # one after the other: `evaluate` waits a second for a file that another adds to
    expected = metric.compute(
        predictions=[["S", "NS"], {"claims": [["a", "S"]]}, "", None], references=[None, None, "some evidence", None]
    )
    metric = make("factscore")
    metric.add_batch(predictions=[["S", "NS"], {"claims": [["a", "S"]]}])
    metric.add(prediction="", reference="some evidence")
    metric.add(prediction=None)
    assert metric.compute() == expected


def test_functions_need_neither_evaluate_nor_datasets():
    code = (
        "import sys; from hf_factuality.metrics import METRIC_NAMES, compute; "
        "found = [compute(name, [])['n'] for name in METRIC_NAMES]; "
        "print(found, {'evaluate', 'datasets', 'pyarrow', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{[0] * len(METRIC_NAMES)} set()\n"


def test_there_is_no_other_metric():
    with pytest.raises(ValueError, match="'factscor'.*factscore"):
        compute("factscor", [])

"""docs/evaluate.md names what there is."""

import re
from pathlib import Path

import pytest

from hf_factuality.cli.main import _parser
from hf_factuality.data.benchmarks.registry import benchmark_names, get_benchmark
from hf_factuality.evaluation.plan import metrics_of
from hf_factuality.hub.results import _ENTRY, _MODEL, _TOP


PAGE = (Path(__file__).resolve().parents[2] / "docs" / "evaluate.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", benchmark_names())
def test_benchmarks(name):
    benchmark = get_benchmark(name)
    (row,) = (line for line in PAGE.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1])
    cells = row.split("|")
    assert all(f"`{metric}`" in cells[2] for metric in benchmark.metrics)
    places = [cells[3].index(f"`{style}`") for style in benchmark.styles]
    assert places == sorted(places)
    assert set(benchmark.metrics) <= set(metrics_of(benchmark))
    assert ("--dataset" in cells[4]) is (benchmark.repo_id is None)


def test_schema():
    for key in (*_TOP, *_MODEL, *_ENTRY):
        assert f"`{key}`" in PAGE, key


def test_flags_of_the_page_exist():
    actions = _parser()._subparsers._group_actions[0].choices["evaluate"]._option_string_actions
    assert set(re.findall(r"(?<![\w-])--\w+", PAGE)) - set(actions) == {"--bm25"}  # of `hf-factuality index`

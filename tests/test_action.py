"""The steps of the GitHub action, run by bash as they stand in action.yml."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml

from tests.action_steps import ACTION, Runner, read_action, scripts
from tests.conftest import fast_few
from tests.evaluation.conftest import write_rows


TRUE, FALSE = "Marie Curie was born in Warsaw in 1867.", "Marie Curie was born in Warsaw in 1890."
ROOT = ACTION.parent


@pytest.fixture
def runner(tmp_path):
    write_rows(tmp_path / "evidence.jsonl", [{"id": 1, "evidence": [TRUE]}, {"id": 2, "evidence": [TRUE]}])
    rows = [{"id": 1, "question": "Where?", "completion": TRUE}, {"id": 2, "question": "When?", "completion": FALSE}]
    write_rows(tmp_path / "my answers.jsonl", rows)
    return Runner(tmp_path, PYTHONPATH=str(ROOT))


@pytest.mark.slow
def test_verify_below_the_threshold_fails_and_leaves_all_reports(runner, tmp_path):
    done = runner.run(["Verify"], file="my answers.jsonl", evidence="evidence.jsonl", fail_under="0.8")
    assert done.returncode == 1, done.stderr
    assert "precision 0.5 is below 0.8" in done.stderr and "supported 1, contradicted 1" in done.stderr
    report = tmp_path / "factuality-report"
    assert {it.name for it in report.iterdir()} == {"report.html", "junit.xml", "labelled.jsonl", "summary.json"}
    assert json.loads((report / "summary.json").read_text())["precision"] == 0.5
    suites = {it.get("name"): it for it in ElementTree.parse(report / "junit.xml").getroot()}
    assert [suites["answers"].get(name) for name in ("tests", "failures")] == ["2", "1"]
    assert "precision 0.5 is below 0.8" in runner.summary.read_text() and "1890" in runner.summary.read_text()
    assert runner.output.read_text() == "precision=0.5\n"


@pytest.mark.parametrize(
    ("given", "status", "said"),
    fast_few(
        [
            ({"fail_under": "0.5"}, 0, ""),
            ({"fail_under": "precision=0.5 decided_precision=0.9"}, 1, "decided_precision 0.5 is below 0.9"),
            ({"fail_under": "precision=0.5\ndecided_precision=0.9\n"}, 1, "decided_precision 0.5 is below 0.9"),
            ({"args": "--max-not-judged 0 --metric-args 'x"}, 2, "the input args has a quote without its end"),
            ({"args": "--metrics factscore --metric-args 'factscore.gamma=0'"}, 0, "factscore"),
            ({"args": "--no-such-flag"}, 2, "no flag"),
            ({"args": "$(touch run) `touch run` ; touch run"}, 2, ""),
            ({"file": "$(touch run).jsonl"}, 2, "$(touch run).jsonl"),
            ({"file": "nothing.jsonl"}, 2, "nothing.jsonl"),
            ({"report_dir": "a folder/x"}, 0, "wrote a folder/x/labelled.jsonl"),
            ({"evidence": "", "max_not_judged": "0"}, 2, "no row of my answers.jsonl has evidence"),
        ],
        3,
        6,
    ),
)
def test_inputs_reach_the_command_and_are_never_run(runner, tmp_path, given, status, said):
    done = runner.run(["Verify"], **{"file": "my answers.jsonl", "evidence": "evidence.jsonl", **given})
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert not (tmp_path / "run").exists()


def test_no_expression_stands_in_a_script_and_all_inputs_are_used():
    text = ACTION.read_text(encoding="utf-8")
    used = set(re.findall(r"inputs\.([\w-]+)", text))
    assert used == set(read_action()["inputs"])
    assert [name for name, _, _ in scripts({})] == ["Install", "Verify"]
    steps = read_action()["runs"]["steps"]
    assert [it["uses"].partition("@")[0] for it in steps if "uses" in it] == [
        "actions/setup-python",
        "actions/upload-artifact",
    ]
    assert "always()" in steps[-1]["if"], "a report of a failed run is wanted most"


def test_the_page_shows_the_inputs_that_there_are():
    page = (ROOT / "docs" / "quickstart-ci.md").read_text(encoding="utf-8")
    jobs = [
        yaml.safe_load(block)["jobs"]["verify"]["steps"] for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    ]
    (step,) = (step for steps in jobs for step in steps if step.get("uses") == "./hf_factuality")
    assert set(step["with"]) <= set(read_action()["inputs"])
    assert all(f"`{name}`" in page for name in read_action()["inputs"])


@pytest.mark.slow
def test_all_steps_from_the_install_on(tmp_path):
    """The package is built and installed without the network and its dependencies, which are here."""
    clone = tmp_path / "clone"
    kept = shutil.ignore_patterns("__pycache__", ".*", "outputs", "build", "*.egg-info", "tests", "shared", "cases")
    shutil.copytree(ROOT, clone, ignore=kept, symlinks=True)
    site = tmp_path / "site"
    write_rows(tmp_path / "answers.jsonl", [{"completion": TRUE, "evidence": [TRUE]}])
    pip = {"PIP_TARGET": str(site), "PIP_NO_DEPS": "1", "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0"}
    runner = Runner(tmp_path, PYTHONPATH=str(site), **pip)
    runner.environment["GITHUB_ACTION_PATH"] = str(clone)
    done = runner.run(file="answers.jsonl", fail_under="1.0")
    assert done.returncode == 0, done.stderr
    assert runner.output.read_text() == "precision=1.0\n"
    where = subprocess.run(
        [str(tmp_path / "tools" / "python"), "-c", "import hf_factuality; print(hf_factuality.__file__)"],
        env=runner.environment, cwd=tmp_path, capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert Path(where).is_relative_to(site)
    (points,) = site.glob("hf_factuality-*.dist-info/entry_points.txt")
    assert "[pytest11]\nhf_factuality = hf_factuality.pytest_plugin" in points.read_text()

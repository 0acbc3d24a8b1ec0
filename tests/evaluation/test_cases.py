"""Commands on small files: tests/cases/commands/*.json.

A case writes `files` (or a.jsonl with `completions`) and runs the command of its group with its `flags`. Then it says the
exit status (0 by default), what is on the error stream (`says`, `silent`), what the printed JSON holds (`found`), what a
verifier was sent (`judged`), and what the folder holds (`leaves`). A case inherits what it does not say from its group.
"""

import json
import os
import shlex
from pathlib import Path

import pytest

import hf_factuality.evaluation.model
from hf_factuality.cli import main
from tests.evaluation.conftest import write_rows
from tests.evaluation.judges import seen
from tests.metrics.test_cases import check


GROUPS = [
    group
    for path in sorted((Path(__file__).resolve().parents[1] / "cases" / "commands").glob("*.json"))
    for group in json.loads(path.read_text("utf-8"))
]
CASES = [({**group, **case}, f"{group['about']}: {case}"[:120]) for group in GROUPS for case in group["cases"]]


@pytest.mark.parametrize("case", [case for case, _ in CASES], ids=[name for _, name in CASES])
def test_case(case, tmp_path, monkeypatch, capsys):
    files = {"a.jsonl": [{"completion": text} for text in case.get("completions", ())]}
    for name, rows in case.get("files", files).items():
        if isinstance(rows, str):
            (tmp_path / name).write_text(rows, encoding="utf-8")
        else:
            write_rows(tmp_path / name, rows)

    def fail(*_):
        raise AssertionError(f"it reads more than {case['reads']}")

    for name in {"nothing": ["load_task_items", "_engine"], "no model": ["_engine"]}.get(case.get("reads"), []):
        monkeypatch.setattr(hf_factuality.evaluation.model, name, fail)
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.chdir(tmp_path)
    status = main(shlex.split(f"{case['command']} {case.get('flags', '')}"))
    printed = capsys.readouterr()
    assert status == case.get("status", 0), printed.err
    assert [text for text in case.get("says", ()) if text not in printed.err] == [], printed.err
    assert [text for text in case.get("silent", ()) if text in printed.err] == []
    if status == 2:
        assert not printed.out and printed.err.count("\n") == 1, "one line, and nothing else"
    else:
        check(json.loads(printed.out), case.get("found", {}), 1e-12, "the printed JSON")
    if "judged" in case:
        assert seen() == case["judged"]
    if "leaves" in case:
        assert sorted(os.listdir()) == case["leaves"]
        assert all((tmp_path / name).stat().st_size for name in case["leaves"])

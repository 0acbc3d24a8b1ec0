"""Completions of a training in Trackio: what is shown of a judged row, and a run with the real package on this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.report import read_completions
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.trainers._painted import painted_page, painted_trace
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest
from tests.tiny import rows
from tests.trainers.recording import SETTINGS, WholeCompletion


TEXT = "Curie was born in <Warsaw>. She won."


def row(found, text=TEXT, question="Who was Curie?"):
    return JudgedRow(VerificationRequest(VerifierInput(text, question)), found)


def test_a_trace_has_a_span_per_claim():
    spans = (LabeledSpan(0, 27, Label.SUPPORTED, 0.9, evidence="born in Warsaw"), LabeledSpan(28, 36))
    trace = painted_trace(row(Verification(spans=spans)))
    assert [it["role"] for it in trace["messages"]] == ["user", "assistant"] and trace["messages"][1][
        "content"
    ] == TEXT
    first, second = trace["spans"]
    assert (first["name"], first["input"], first["output"]) == ("supported", TEXT[:27], "born in Warsaw")
    assert second["name"] == "unjudged" and second["metadata"] == {"start": 28, "end": 36, "score": None}
    assert trace["metadata"] == {"supported": 1, "unjudged": 1, "abstained": False}
    assert json.loads(json.dumps(trace)) == trace


def test_what_failed_is_said_and_not_a_label():
    failed = row(Verification(error="the judge is down"), question=None)
    trace = painted_trace(failed)
    assert trace["metadata"]["status"] == "error" and trace["spans"] == [] and len(trace["messages"]) == 1
    assert "the judge is down" in painted_page([failed], 3)


def test_the_page_paints_and_escapes():
    page = painted_page([row(Verification(spans=(LabeledSpan(0, 27, Label.CONTRADICTED),)))], 3)
    assert 'class="contradicted"' in page and "&lt;Warsaw&gt;" in page and "<Warsaw>" not in page


RUN = """
import sys
from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from tests.tiny import rows
from tests.trainers.recording import SETTINGS, WholeCompletion
from hf_factuality.spans import Label
settings = {**SETTINGS, "max_steps": 2, "report_to": "trackio", "log_completions": True, "project": "painted", "run_name": "one"}
args = FactGRPOConfig(sys.argv[2], trackio_static_space_id=False, verify_scope="completion", **settings)
trainer = FactGRPOTrainer(sys.argv[1], verifier=WholeCompletion(lambda number, item: Label.SUPPORTED), args=args, train_dataset=rows())
trainer.train()
"""


READ = """
import json
from trackio.sqlite_storage import SQLiteStorage
print("LOGS" + json.dumps([SQLiteStorage.get_logs("painted", "one"), SQLiteStorage.get_traces("painted", "one")]))
"""


def test_a_run_is_tracked_on_this_machine(tiny_model, tmp_path):
    pytest.importorskip("trackio", reason="needs hf_factuality[trackio]")
    root = Path(__file__).resolve().parents[2]
    environment = {"TRACKIO_DIR": str(tmp_path / "trackio"), "PYTHONPATH": str(root), "HF_HUB_OFFLINE": "1", "CI": "1"}
    command = [sys.executable, "-c", RUN, tiny_model, str(tmp_path / "out")]
    done = subprocess.run(
        command, env={**os.environ, **environment}, cwd=root, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = subprocess.run(
        [sys.executable, "-c", READ], env={**os.environ, **environment}, capture_output=True, text=True
    )
    logs, traces = json.loads(told.stdout.partition("LOGS")[2])
    (painted, *_) = [it["painted"] for it in logs if "painted" in it]
    tables = [it["completions"] for it in logs if "completions" in it]
    assert painted["_type"] == "trackio.html" and len(tables) >= 2
    (page, *_) = (tmp_path / "trackio" / "media").rglob("*.html")
    assert "<mark" in page.read_text(encoding="utf-8")
    assert len(traces) == 16 and {it["step"] for it in traces} == {1, 2} and {it["key"] for it in traces} == {"judged"}
    trace = traces[0]
    assert trace["messages"][-1]["role"] == "assistant" and {"supported", "unverifiable"} & {
        it["name"] for it in trace["spans"]
    }


def test_a_run_stores_what_was_judged(tiny_model, tmp_path):
    settings = {**SETTINGS, "max_steps": 2, "logging_steps": 1, "log_completions": True, "num_completions_to_print": 0}
    args = FactGRPOConfig(str(tmp_path), verify_scope="completion", **settings)
    verifier = WholeCompletion(lambda number, item: Label.SUPPORTED if number % 2 else Label.CONTRADICTED)
    FactGRPOTrainer(str(tiny_model), verifier=verifier, args=args, train_dataset=rows()).train()
    files = sorted(it.name for it in (tmp_path / "completions").glob("judged_*"))
    assert files == ["judged_00001.jsonl", "judged_00002.jsonl"]
    stored = [*read_completions(tmp_path / "completions" / files[1])]
    table = [*read_completions(tmp_path / "completions" / "completions_00002.parquet")]
    assert [it.completion for it in stored] == [it.completion for it in table], "in the order of TRL's table"
    assert [it.rewards["factuality"] for it in stored] == [it.rewards["factuality"] for it in table]
    assert {it.verifier for it in stored} == {"WholeCompletion"} and {it.step for it in stored} == {2}
    for it in stored:
        (span,) = it.verification.spans or [None]
        assert span is None or (span.start, span.end) == (0, len(it.completion))
    assert any(it.verification.spans for it in stored)


def test_without_log_completions_nothing_is_stored(tiny_model, tmp_path):
    args = FactGRPOConfig(str(tmp_path), verify_scope="completion", **{**SETTINGS, "max_steps": 1})
    verifier = WholeCompletion(lambda number, item: Label.SUPPORTED)
    FactGRPOTrainer(str(tiny_model), verifier=verifier, args=args, train_dataset=rows()).train()
    assert not (tmp_path / "completions").exists()

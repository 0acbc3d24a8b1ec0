"""The log of a training: a table in plain lines or with a bar, and a file of all figures."""

import json
import sys
from types import SimpleNamespace

import pytest
from transformers import PrinterCallback, ProgressCallback

from hf_factuality.errors import DataError
from hf_factuality.report.stored import read_log
from hf_factuality.trainers.log import TrainingLog, use_training_log


def drive(log, folder, entries, process=0, start=0):
    """What a trainer calls, for steps that log these figures."""
    args = SimpleNamespace(output_dir=str(folder), disable_tqdm=False)
    state = SimpleNamespace(
        is_world_process_zero=process == 0, max_steps=len(entries), global_step=start, log_history=[]
    )
    state.log_history = [{"step": it} for it in range(1, start + 1)]
    log.on_train_begin(args, state, None)
    for entry in entries:
        state.global_step += 1
        state.log_history.append({**entry, "step": state.global_step})
        log.on_step_end(args, state, None)
        log.on_log(args, state, None, logs=entry)
    log.on_train_end(args, state, None)


def test_rows_under_a_header_and_all_figures_in_a_file(tmp_path, capsys):
    rows = [{"loss": 0.123456, "reward": 1.0, "rewards/a/mean": 0.5, "epoch": 0.5}] * 2
    drive(TrainingLog(), tmp_path, [*rows, {"eval_loss": 0.25}, {"train_runtime": 3.2, "train_loss": 0.1}])
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].split() == ["step", "loss", "reward", "epoch"]
    assert printed[1].split() == ["1", "0.1235", "1", "0.5"] and printed[2].split()[0] == "2"
    assert printed[3].split() == ["3", "eval_loss", "0.25"]
    assert printed[4].startswith("trained 4 steps in 3 s, mean loss 0.1; all figures: ") and len(printed) == 5
    kept = read_log(tmp_path / "training_log.jsonl")
    assert [it["step"] for it in kept] == [1, 2, 3, 4] and kept[0]["rewards/a/mean"] == 0.5


def test_the_header_is_said_again_and_another_run_begins_anew(tmp_path, capsys):
    drive(TrainingLog(), tmp_path, [{"loss": 1.0}] * 41)
    assert sum("loss" in line for line in capsys.readouterr().out.splitlines()) == 3
    drive(TrainingLog(), tmp_path, [{"loss": 2.0}])
    assert [it["loss"] for it in read_log(tmp_path / "training_log.jsonl")] == [2.0]


def test_a_run_that_goes_on_adds_to_its_file(tmp_path):
    drive(TrainingLog(), tmp_path, [{"loss": 1.0}] * 2)
    drive(TrainingLog(), tmp_path, [{"loss": 2.0}], start=2)
    assert [it["loss"] for it in read_log(tmp_path / "training_log.jsonl")] == [1.0, 1.0, 2.0]


def test_other_processes_are_silent(tmp_path, capsys):
    drive(TrainingLog(), tmp_path, [{"loss": 1.0}], process=1)
    assert capsys.readouterr().out == "" and not (tmp_path / "training_log.jsonl").exists()


def test_unknown_figures_have_a_table_too(tmp_path, capsys):
    drive(TrainingLog(), tmp_path, [{"odd": 1.0, "text": "x"}, {"odd": 2.0}])
    assert capsys.readouterr().out.split() == ["step", "odd", "1", "1", "2", "2"]


def test_on_a_terminal_a_bar_stays_beneath(tmp_path, capsys, monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    log = TrainingLog()
    drive(log, tmp_path, [{"loss": 1.0, "reward": 0.5}] * 2)
    printed = capsys.readouterr().out
    assert "loss" in printed and "0.5" in printed and log._bar is None


def test_a_trainer_has_no_other_log():
    removed, added = [], []
    use_training_log(SimpleNamespace(remove_callback=removed.append, add_callback=added.append))
    assert removed == [ProgressCallback, PrinterCallback] and isinstance(added[0], TrainingLog)


@pytest.mark.parametrize("text", ["{}", "[1]\n", "x\n", '{"log_history": 3}'])
def test_what_is_no_log(tmp_path, text):
    for name in ("training_log.jsonl", "trainer_state.json"):
        (tmp_path / name).write_text(text)
        if (name, text) == ("training_log.jsonl", "{}") or (name, text) == (
            "training_log.jsonl",
            '{"log_history": 3}',
        ):
            assert read_log(tmp_path / name) == []  # a line that is half written
            continue
        with pytest.raises(DataError, match="no log of a training"):
            read_log(tmp_path / name)


def test_json_stays_json(tmp_path):
    drive(TrainingLog(), tmp_path, [{"loss": 1.0, "odd": object()}])
    assert json.loads((tmp_path / "training_log.jsonl").read_text())["loss"] == 1.0

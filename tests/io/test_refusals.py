"""How commands and scripts end when they refuse their input, and that a bug keeps its traceback."""

import json
import os

import pytest

from hf_factuality.errors import CheckpointError, DataError, NonFiniteError
from hf_factuality.io import refusals
from hf_factuality.io.refusals import run_script


def raiser(error):
    def main():
        raise error

    return main


def deep(error):
    def _inner_training_loop():
        raise error

    return _inner_training_loop


def interpreter_error():
    return int("abc")


def library_error():
    return [].pop()


def bad_json():
    return json.loads("{")


@pytest.mark.parametrize(
    "main",
    [
        raiser(DataError("row 3\n  is bad")),
        raiser(CheckpointError("row 3 is bad")),
        raiser(FileNotFoundError(2, "row 3 is bad")),
        raiser(ValueError("row 3 is bad")),
        raiser(TypeError("row 3 is bad")),
        raiser(ImportError("row 3 is bad")),
        deep(NonFiniteError("row 3 is bad")),
        bad_json,
    ],
)
def test_a_refusal_is_one_line_and_status_2(main, capsys):
    with pytest.raises(SystemExit) as end:
        run_script(main, "train.py")
    printed = capsys.readouterr()
    assert end.value.code == 2 and printed.out == ""
    assert printed.err.startswith("train.py: ") and printed.err.count("\n") == 1
    assert main is bad_json or "row 3 is bad" in printed.err


@pytest.mark.parametrize(
    ("main", "error"),
    [
        (interpreter_error, ValueError),
        (library_error, IndexError),
        (raiser(KeyError("x")), KeyError),
        (raiser(RuntimeError("x")), RuntimeError),
        (deep(ValueError("x")), ValueError),
        (deep(OSError("x")), OSError),
    ],
)
def test_a_bug_keeps_its_traceback(main, error, capsys):
    with pytest.raises(error):
        run_script(main, "train.py")
    assert capsys.readouterr().err == ""


def test_tracebacks_on_demand_here_and_in_the_command(monkeypatch, capsys):
    from hf_factuality.cli import main

    command = ["verify", "no-such-file.jsonl"]
    assert main(command) == 2 and "no-such-file.jsonl" in capsys.readouterr().err
    monkeypatch.setenv(refusals.TRACEBACK_VARIABLE, "1")
    with pytest.raises(DataError):
        run_script(raiser(DataError("x")), "train.py")
    with pytest.raises(OSError, match=r"no-such-file\.jsonl"):
        main(command)
    monkeypatch.setenv(refusals.TRACEBACK_VARIABLE, "0")
    assert main(command) == 2


def test_a_token_is_not_repeated(capsys):
    token = "hf" + "_" + "a1B2" * 8
    with pytest.raises(SystemExit):
        run_script(raiser(OSError(f"https://user:{token}@host refuses {token}")), "train.py")
    assert token not in capsys.readouterr().err


def test_a_path_that_is_not_there_is_named_with_what_to_give(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "answers.jsonl").write_text("")
    (tmp_path / "runs").mkdir()

    def said(path):
        with pytest.raises(SystemExit):
            run_script(lambda: open(path), "verify.py")
        return capsys.readouterr().err

    assert said("answer.jsonl") == (
        f"verify.py: there is no answer.jsonl in this folder ({tmp_path}); did you mean answers.jsonl?\n"
    )
    assert said("zzz") == f"verify.py: there is no zzz in this folder ({tmp_path}); give a path that exists\n"
    assert said("runs/zzz") == "verify.py: there is no runs/zzz; give a path that exists\n"
    assert said("gone/further/a.jsonl") == (
        "verify.py: there is no gone/further/a.jsonl: the folder gone does not exist; "
        f"relative paths start at {tmp_path}\n"
    )
    gone = tmp_path / "gone"
    assert said(gone / "a.jsonl") == f"verify.py: there is no {gone / 'a.jsonl'}: the folder {gone} does not exist\n"


def test_other_errors_of_missing_paths_keep_their_words(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "real").write_text("")
    (tmp_path / "link").symlink_to("nowhere")
    for main in (lambda: open("link"), lambda: open(""), lambda: os.rename("real", "gone/real")):
        with pytest.raises(SystemExit):
            run_script(main, "verify.py")
        assert "[Errno 2] No such file or directory" in capsys.readouterr().err

"""How the command ends when it is told to; what it does is in the tests of its rooms."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from hf_factuality.cli import main
from hf_factuality.cli.shared import as_flags
from hf_factuality.trainers.memory.training_plan import METHODS


@pytest.mark.parametrize("command", ["verify", "merge"])
def test_ctrl_c_is_one_line(tmp_path, capsys, monkeypatch, command):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    import hf_factuality.checkpoints.merge
    import hf_factuality.evaluation.verify

    monkeypatch.setattr(hf_factuality.evaluation.verify, "verify", interrupted)
    monkeypatch.setattr(hf_factuality.checkpoints.merge, "merge", interrupted)
    assert main([command, str(tmp_path), *(["--out", str(tmp_path / "out")] if command == "merge" else [])]) == 130
    assert capsys.readouterr().err == "hf-factuality: ended by SIGINT\n"


def test_merge_ends_by_signals_and_restores_their_handlers(tmp_path, capsys, monkeypatch):
    import hf_factuality.checkpoints.merge

    arguments = ["merge", str(tmp_path), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(hf_factuality.checkpoints.merge, "merge", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    own = signal.signal(signal.SIGHUP, print)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        assert main(arguments) == 128 + signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL and signal.getsignal(signal.SIGHUP) is print
        assert capsys.readouterr().err == "hf-factuality: ended by SIGTERM\n"
        seen = []

        def look(*_, **__):
            seen.append((signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP)))
            raise ValueError("seen")

        monkeypatch.setattr(hf_factuality.checkpoints.merge, "merge", look)
        thread = threading.Thread(target=main, args=(arguments,))  # which may not set handlers
        thread.start()
        thread.join()
        assert main(arguments) == 2
        assert seen[0] == (signal.SIG_DFL, print) and seen[1][0] is not signal.SIG_DFL and seen[1][1] is print
    finally:
        signal.signal(signal.SIGHUP, own)
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("`out` is taken", "--out is taken"),
        ('`workers=3` is for `engine="ray"`', "--workers 3 is for --engine ray"),
        ("`from_pretrained` and `Out`", "`from_pretrained` and `Out`"),
    ],
)
def test_messages_of_the_api_are_printed_with_the_flags(message, shown):
    assert as_flags(message, {"out", "workers", "engine"}) == shown


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("usage: hf-factuality") and "verify" in printed.out and not printed.err


def test_the_package_is_the_command():
    done = subprocess.run([sys.executable, "-m", "hf_factuality", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "hf_factuality")


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("verfy answers.jsonl", "hf-factuality: no command 'verfy'; did you mean verify?"),
        ("world biuld", "hf-factuality world: no command 'biuld'; did you mean build?"),
        ("metrics xyz", "hf-factuality metrics: no command 'xyz'; choose one of install, list, push"),
        ("merge x --outt y", "hf-factuality merge: no flag --outt; did you mean --out?"),
        ("verify a.jsonl --fail-undr=0.5", "hf-factuality verify: no flag --fail_undr; did you mean --fail_under?"),
        ("compare a b --xyz", "hf-factuality compare: no flag --xyz; see hf-factuality compare --help"),
        (
            "verify a.jsonl --completion-colum x",
            "hf-factuality verify: no flag --completion_colum; did you mean --completion_column?",
        ),
        ("world build --see 3", "hf-factuality world build: no flag --see; did you mean --seed?"),
        ("world build --sede 3", "hf-factuality world build: no flag --sede; did you mean --seed?"),
    ],
)
def test_a_command_or_a_flag_that_is_not_there_is_one_line(capsys, command, said):
    with pytest.raises(SystemExit) as end:
        main(command.split())
    assert end.value.code == 2 and capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize("words", [["--commit_message", "--none of these"], ["--", "--none"]], ids="".join)
def test_what_only_looks_like_a_flag_that_is_not_there(tmp_path, capsys, words):
    places = [str(tmp_path), "me/x"]
    assert main(["push", *places, *words] if words[0] != "--" else ["push", *words, places[1]]) == 2
    assert "no flag" not in capsys.readouterr().err


@pytest.mark.slow
def test_shells_complete_commands_and_flags(tmp_path):
    pytest.importorskip("argcomplete")
    found = {}
    for line in ("hf-factuality mer", "hf-factuality merge --dry", "hf-factuality plan --method "):
        told = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
        told["_ARGCOMPLETE_STDOUT_FILENAME"] = str(tmp_path / "out")
        command = [sys.executable, "-m", "hf_factuality"]
        subprocess.run(command, env={**os.environ, **told}, check=True, timeout=60)
        found[line] = (tmp_path / "out").read_text().split("\n")
    assert [[word.strip() for word in words] for words in found.values()] == [
        ["merge"], ["--dry_run"], [*METHODS]
    ]  # fmt: skip

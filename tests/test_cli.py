import json
import signal
import threading

import pytest

from hf_factuality.cli import main


EVIDENCE = ["Marie Curie was born in Warsaw in 1867.", "She won the Nobel Prize in Physics in 1903."]
TRUE = "Marie Curie was born in Warsaw in 1867."
FALSE = "Marie Curie was born in Warsaw in 1890."


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return str(path)


def test_prints_precision_and_writes_spans(tmp_path, capsys):
    file = write(
        tmp_path / "in.jsonl",
        {"completion": TRUE, "evidence": EVIDENCE, "id": 1},
        "",
        {"completion": FALSE, "evidence": " ".join(EVIDENCE), "id": 2},
    )
    assert main(["verify", file, "--out", str(tmp_path / "out.jsonl")]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == {
        "precision": 0.5, "decided_precision": 0.5, "completions": 2, "not_judged": 0, "empty": 0, "sentences": 2,
        "claims": {"supported": 1, "contradicted": 1, "unverifiable": 0, "not_judged": 0},
        "labels": {"contradicted": 1, "supported": 1},
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == [1, 2]
    span = lines[1]["verification"]["spans"][0]
    assert FALSE[span["start"] : span["end"]].rstrip(".") == FALSE.rstrip(".") and span["label"] == "contradicted"


def test_fails_a_build_below_the_threshold(tmp_path, capsys):
    file = write(tmp_path / "in.jsonl", {"completion": FALSE, "evidence": EVIDENCE})
    assert main(["verify", file, "--fail_under", "0.5"]) == 1
    assert "precision 0.0 is below 0.5" in capsys.readouterr().err
    file = write(tmp_path / "in.jsonl", {"completion": TRUE, "evidence": EVIDENCE})
    assert main(["verify", file, "--fail_under", "0.5"]) == 0


def test_rows_without_evidence_are_not_judged_and_fail_a_strict_build(tmp_path, capsys):
    row = {"completion": TRUE, "evidence": EVIDENCE}
    file = write(tmp_path / "in.jsonl", row, {"completion": "Line\u2028break.", "evidence": []}, {"completion": FALSE})
    assert main(["verify", file, "--fail_under", "0.5", "--out", str(tmp_path / "new" / "out.jsonl")]) == 1
    printed = capsys.readouterr()
    assert json.loads(printed.out)["not_judged"] == 2 and json.loads(printed.out)["precision"] == 1.0
    assert "2 of 3 completions could not be judged" in printed.err
    assert main(["verify", file, "--fail_under", "0.5", "--max_not_judged", "0.7"]) == 0
    line = (tmp_path / "new" / "out.jsonl").read_text(encoding="utf-8").split("\n")[2]
    assert json.loads(line)["verification"]["error"] == "no evidence"


def test_a_verifier_beside_the_data(tmp_path, capsys, monkeypatch):
    (tmp_path / "my_judge.py").write_text(
        "from hf_factuality import Verification\n"
        "class Judge:\n"
        "    requires_evidence = False\n"
        "    def verify(self, inputs):\n"
        "        return [Verification() for _ in inputs]\n",
        encoding="utf-8",
    )
    monkeypatch.chdir(tmp_path)
    assert main(["verify", write(tmp_path / "in.jsonl", {"completion": "x"}), "--verifier", "my_judge:Judge"]) == 0
    assert json.loads(capsys.readouterr().out)["not_judged"] == 0


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["{"], [], "line 1 is not JSON"),
        ([{"text": "x"}], [], r"no text in 'completion' (found ['text'])"),
        ([], [], "holds no rows"),
        ([{"completion": "x"}], [], "no row of"),
        ([{"completion": "x", "evidence": "y"}], ["--verifier", "lexicel"], "lexicel"),
        (
            [{"completion": "x", "evidence": {"title": "y"}}],
            [],
            "row 1: evidence must be a string or a list of strings",
        ),
        ([{"completion": "x", "evidence": "y"}], ["--fail_under", "80"], "in [0, 1], got 80"),
    ],
)
def test_bad_input_is_named(tmp_path, capsys, rows, options, message):
    assert main(["verify", write(tmp_path / "in.jsonl", *rows), *options]) == 2
    assert message in capsys.readouterr().err


def test_missing_file(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "no.jsonl")]) == 2
    assert "no.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verify", "merge"])
def test_ctrl_c_is_one_line(tmp_path, capsys, monkeypatch, command):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    import hf_factuality.checkpoints.merge
    import hf_factuality.evaluation.verify

    monkeypatch.setattr(hf_factuality.evaluation.verify, "verify_file", interrupted)
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

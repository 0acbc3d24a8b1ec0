import json

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
        "precision": 0.5, "completions": 2, "not_judged": 0, "sentences": 2,
        "labels": {"contradicted": 1, "supported": 1},
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == [1, 2]
    span = lines[1]["spans"][0]
    assert FALSE[span["start"] : span["end"]].rstrip(".") == FALSE.rstrip(".") and span["label"] == "contradicted"


def test_fails_a_build_below_the_threshold(tmp_path, capsys):
    file = write(tmp_path / "in.jsonl", {"completion": FALSE, "evidence": EVIDENCE})
    assert main(["verify", file, "--fail_under", "0.5"]) == 1
    assert "precision 0.0 is below 0.5" in capsys.readouterr().err
    file = write(tmp_path / "in.jsonl", {"completion": TRUE, "evidence": EVIDENCE})
    assert main(["verify", file, "--fail_under", "0.5"]) == 0


@pytest.mark.parametrize(
    ("rows", "options", "message"),
    [
        (["{"], [], "line 1 is not JSON"),
        ([{"text": "x"}], [], r"no text in 'completion' (found ['text'])"),
        ([], [], "holds no rows"),
        ([{"completion": "x"}], [], "no row of"),
        ([{"completion": "x", "evidence": "y"}], ["--verifier", "lexicel"], "lexicel"),
        ([{"completion": "x", "evidence": "y"}], ["--fail_under", "80"], "in [0, 1], got 80"),
    ],
)
def test_bad_input_is_named(tmp_path, capsys, rows, options, message):
    assert main(["verify", write(tmp_path / "in.jsonl", *rows), *options]) == 2
    assert message in capsys.readouterr().err


def test_missing_file(tmp_path, capsys):
    assert main(["verify", str(tmp_path / "no.jsonl")]) == 2
    assert "no.jsonl" in capsys.readouterr().err

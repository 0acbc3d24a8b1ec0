"""The same answers in every format, missing ones among them, give the same results."""

import csv
import json

import pytest

from hf_factuality.cli import main
from hf_factuality.evaluation.engines import FileEngine
from tests.evaluation.conftest import write_rows


EVIDENCE = ["Marie Curie was born in Warsaw in 1867.", "She won the Nobel Prize in Physics in 1903."]
TEXTS = [
    "Marie Curie was born in Warsaw in 1867.",
    None,
    'Marie Curie was born in Warsaw in "1890".\nShe won, in Physics.',
]
ROWS = [{"id": f"r{n}", "completion": text, "question": "Who?", "evidence": EVIDENCE} for n, text in enumerate(TEXTS)]
NAMES = (
    "a.jsonl",
    "a.json",
    "a.csv",
    "a.tsv",
    "a.parquet",
    "chat.jsonl",
    "parts.jsonl",
    "chat.parquet",
    "nan.jsonl",
    "absent.jsonl",
)


def chat(row, parts=False):
    def message(role, text):
        return {"role": role, "content": [{"type": "text", "text": text}] if parts else text}

    before = [
        message("system", "Be nice."),
        message("user", "Hello"),
        message("assistant", "Hi"),
        message("user", "Who?"),
    ]
    answer = [] if row["completion"] is None else [message("assistant", row["completion"])]
    before = [it for it in before if answer or it["role"] != "assistant"]
    return {"id": row["id"], "messages": before + answer, "evidence": row["evidence"]}


def write(folder, name):
    path = folder / name
    rows = {
        "chat": [chat(row) for row in ROWS],
        "parts": [chat(row, parts=True) for row in ROWS],
        "nan": [{name: float("nan") if value is None else value for name, value in row.items()} for row in ROWS],
        "absent": [{name: value for name, value in row.items() if value is not None} for row in ROWS],
    }.get(path.stem, ROWS)
    if path.suffix == ".jsonl":
        return write_rows(path, rows)
    if path.suffix == ".json":
        path.write_text(json.dumps(rows), encoding="utf-8")
    elif path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows({**row, "evidence": json.dumps(row["evidence"])} for row in rows)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_verify_reads_every_format_and_judges_what_is_there(tmp_path, capsys, name):
    out = tmp_path / "out.jsonl"
    flags = ["--json", "--metrics", "safe", "--out", str(out), "--html", str(tmp_path / "page.html")]
    assert main(["verify", str(write(tmp_path, name)), *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["completions"], printed["missing"], printed["not_judged"]) == (3, 1, 1)
    # 1867 is supported, 1890 is not; the last sentence is judged as well.
    assert printed["claims"]["not_judged"] == 0 and printed["sentences"] == 3
    assert printed["metrics"]["safe"]["left_out"]["responses"]["missing"] == 1
    assert printed["metrics"]["safe"]["n_scored"] == 2
    kept = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    assert [row["id"] for row in kept] == ["r0", "r1", "r2"] and kept[1]["verification"] is None
    reference = tmp_path / "reference.jsonl"
    main(["verify", str(write(tmp_path, "a.jsonl")), "--json", "--out", str(reference)])
    for one, other in zip(kept, reference.read_text(encoding="utf-8").splitlines(), strict=True):
        assert one["verification"] == json.loads(other)["verification"]


@pytest.mark.parametrize("name", NAMES)
def test_answers_of_evaluate_in_every_format(tmp_path, name):
    engine = FileEngine(write(tmp_path, name))
    assert {key: row["completions"] for key, row in engine._by_id.items()} == {
        f"r{n}": [text] for n, text in enumerate(TEXTS)
    }


@pytest.mark.parametrize("name", ["own.csv", "own.tsv", "own.parquet", "own.json", "own.jsonl"])
def test_a_null_among_the_answers_is_missing_and_not_wrong(tmp_path, capsys, name):
    rows = [{"id": str(n), "question": "?", "answer": gold} for n, gold in enumerate(("1.2", "C++", "A"))]
    own = tmp_path / name
    if own.suffix in (".csv", ".tsv"):
        delimiter = "\t" if own.suffix == ".tsv" else ","
        own.write_text("\n".join(delimiter.join(it) for it in (rows[0], *(row.values() for row in rows))))
    elif own.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), own)
    elif own.suffix == ".json":
        own.write_text(json.dumps(rows))
    else:
        write_rows(own, rows)
    answers = tmp_path / "answers.csv"
    answers.write_text("id,completion\n0,12\n1,\n2,(A)\n")
    flags = ["--dataset", str(own), "--answers", str(answers), "--out", str(tmp_path / "r.json"), "--json"]
    assert main(["evaluate", *flags]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["results"]
    # 12 is not 1.2, (A) is A, and the second is missing.
    assert entry["value"] == 0.5 and entry["left_out"]["responses"]["missing"] == 1


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"completion\nM\xfcller\n", "line 2 is not UTF-8"),
        (b"completion,evidence\na\n", "line 2 has 1 cells"),
        (b"completion,evidence\n,x\n", "no text in 'completion'"),
        (b"text,evidence\na,x\n", "no text in 'completion'"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_line(tmp_path, capsys, data, message):
    (tmp_path / "a.csv").write_bytes(data)
    assert main(["verify", str(tmp_path / "a.csv")]) == 2
    assert message in capsys.readouterr().err

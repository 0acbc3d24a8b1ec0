"""`hf_factuality.verify` finds what the command prints and writes."""

import json

import pandas
import pytest

import hf_factuality
from hf_factuality.cli import main
from hf_factuality.errors import DataError


ROWS = [
    {"completion": "Ulm lies on the Danube. Ulm lies on the Rhine.", "evidence": "Ulm lies on the Danube.", "id": "a"},
    {"completion": "I don't know.", "evidence": ["Bern is in Switzerland."], "id": "b"},
    {"completion": "Bern is in Switzerland.", "evidence": "Bern is in Switzerland.", "id": "c"},
]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "answers.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_command_and_function_give_the_same_result(file, tmp_path, capsys):
    flags = ["--metrics", "factscore,safe", "--metric_args", "factscore.gamma=0", "--out", str(tmp_path / "a.jsonl")]
    assert main(["verify", str(file), "--json", *flags]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = hf_factuality.verify(
        file, metrics=["factscore", "safe"], metric_args={"factscore": {"gamma": 0}}, out=tmp_path / "b.jsonl"
    )
    assert printed == json.loads(json.dumps(found.summary))
    assert (tmp_path / "a.jsonl").read_text() == (tmp_path / "b.jsonl").read_text()
    assert capsys.readouterr().out == ""
    assert found.precision == pytest.approx(2 / 3) and set(found.metrics) == {"factscore", "safe"}


def test_rows_in_memory_are_those_of_a_file(file):
    from_file = hf_factuality.verify(file)
    apart = hf_factuality.verify([row["completion"] for row in ROWS], evidence=[row["evidence"] for row in ROWS])
    assert from_file.summary == hf_factuality.verify(ROWS).summary == apart.summary
    assert [row.verification for row in from_file.rows] == [row.verification for row in apart.rows]
    assert [row.declined for row in apart.rows] == [False, True, False]
    assert hf_factuality.verify(file, keep_rows=False).rows == []


def test_a_table_has_a_row_per_claim(file):
    table = hf_factuality.verify(file).to_pandas()
    assert list(table["text"][:2]) == ["Ulm lies on the Danube.", "Ulm lies on the Rhine."]
    assert table["label"][0] == "supported" != table["label"][1] and table["place"][0] == "line 1"


def test_what_is_too_low_is_named(file):
    assert hf_factuality.verify(file, fail_under=0.5).failures == []
    (failure,) = hf_factuality.verify(file, fail_under={"precision": 0.9}).failures
    assert failure == "precision 0.667 is below 0.9"
    (failure,) = hf_factuality.verify(file, fail_under={"precision": 0.6667}).failures
    assert failure == "precision 0.666667 is below 0.6667"
    assert main(["verify", str(file), "--json", "--fail_under", "0.9"]) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"scope": "all"}, ValueError, "`scope`"),
        ({"engine": "dask"}, ValueError, "`engine`"),
        ({"workers": 2}, ValueError, "`workers=2`"),
        ({"html_rows": 0}, ValueError, "`html_rows`"),
        ({"fail_under": 2.0}, ValueError, "`fail_under`"),
        ({"fail_under": {"sfae": 0.5}}, ValueError, "'sfae'"),
        ({"metrics": "bleu"}, ValueError, "`metrics`"),
        ({"metric_args": {"safe": {"k": 1}}}, ValueError, "`metrics`"),
        ({"completion_column": "text"}, DataError, "`completion_column`"),
        ({"evidence": "nowhere"}, DataError, "`evidence`"),
        ({"id_column": "id"}, DataError, "`id_column`"),
        ({"evidence": ["one"]}, DataError, "`id_column`"),
    ],
)
def test_wrong_arguments_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        hf_factuality.verify(ROWS, **arguments)


def test_a_column_that_is_named_must_be_there(file, tmp_path, capsys):
    """The verifier asks for no evidence, so that nothing else would say that the column of evidence is not there."""
    chat = [
        {
            "messages": [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": "Ulm."}],
            "evidence": "Ulm.",
        }
    ]
    verifier = "tests.evaluation.judges:Judge"
    for flag in ("question_column", "evidence_column"):
        assert main(["verify", str(file), "--verifier", verifier, f"--{flag}", "nope"]) == 2
        said = capsys.readouterr().err
        assert "has no column 'nope' (columns: completion, evidence, id)" in said and f"another with --{flag}" in said
    for arguments in ({"completion_column": "text"}, {"question_column": "asked"}):
        with pytest.raises(DataError, match="completions has no column .* .columns: evidence, messages"):
            hf_factuality.verify(chat, **arguments)
    asked = [{**ROWS[0], "asked": "Where is Ulm?"}, *ROWS[1:]]  # one row is enough
    assert hf_factuality.verify(asked, question_column="asked").rows[0].question == "Where is Ulm?"


@pytest.mark.parametrize("of", ["completions", "evidence"])
@pytest.mark.parametrize("given", [ROWS[0], pandas.DataFrame(ROWS), {"train": ROWS}])
def test_tables_and_single_rows_are_refused_since_their_column_names_would_be_judged(given, of):
    with pytest.raises(TypeError, match=f"`{of}` is a"):
        hf_factuality.verify(**{"completions": ROWS, **{of: given}})


def test_no_completions_are_refused():
    with pytest.raises(DataError):
        hf_factuality.verify([])

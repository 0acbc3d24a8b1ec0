"""The example, as a user runs it: on made-up passages, and on files of claims; and what it refuses before it trains."""

import json

import pytest

from hf_factuality import load_verifier
from hf_factuality.demos import own_verifier
from hf_factuality.errors import DataError
from hf_factuality.hub.results import load_results
from hf_factuality.verifiers import VerifierInput
from tests.examples.conftest import FAST, checked_card
from tests.methods.verifier.test_edits import PASSAGES


FEW = ["--max_steps", "2", *FAST]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return own_verifier.build_encoder(tmp_path_factory.mktemp("tiny") / "encoder", PASSAGES, hidden_size=32, layers=1)


def lines(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def labelled(count=40):
    return [
        {"claim": f"Person {n} was born in {place}.", "evidence": [f"Person {n} was born in Leeds.", "Leeds is a town."],
         "label": place == "Leeds", "error": "entity" if place != "Leeds" else ""}
        for n in range(count) for place in ("Leeds", "York")
    ]  # fmt: skip


@pytest.mark.slow
def test_made_up_passages(run, tmp_path, capsys, monkeypatch):
    small = own_verifier.build_encoder
    monkeypatch.setattr(own_verifier, "build_encoder", lambda *args: small(*args, hidden_size=32, layers=1))
    out = tmp_path / "verifier"
    run("--output_dir", out, "--num_claims", "200", *FEW)
    printed = capsys.readouterr().out
    assert "synthetic" in printed and "balanced_accuracy" in printed and "accuracy_date" in printed
    entries = {entry["metric"]: entry for entry in load_results(out / "results-verifier.json")["results"]}
    assert (
        entries["auroc"]["benchmark"] == "synthetic" and "neither training nor calibration" in entries["auroc"]["note"]
    )
    assert entries["claims_per_second"]["value"] > 0 and {"accuracy_role", "ece", "ece_uncalibrated"} <= {*entries}
    card = checked_card(out)
    assert "claims a second" in card and "balanced accuracy" in card and "accuracy, entity" in card
    judge = load_verifier(f"pipeline:{out}").judge
    assert judge.threshold == judge.model.config.claim_verifier["threshold"] and judge.max_length == 96


def test_files_of_claims(run, encoder, tmp_path):
    words = "Person 7 was born in Leeds in the spring .".split()
    wice = [
        {"claim": " ".join(words), "claim_tokens": words, "non_supported_spans": [word in ("the", "spring") for word in words],
         "supporting_sentences": [[1]], "evidence": [f"Page {n}.", f"Person {n} was born in Leeds."], "label": "partially_supported"}
        for n in range(4)
    ]  # fmt: skip
    given = [lines(tmp_path / "claims.jsonl", labelled()), lines(tmp_path / "spans.jsonl", wice)]
    passages = lines(tmp_path / "passages.jsonl", [{"text": text} for text in PASSAGES])
    held_out = lines(tmp_path / "held_out.jsonl", labelled(6))
    out = tmp_path / "out"
    run("--model_name_or_path", encoder, "--output_dir", out, "--max_length", "64", "--train_files", *given, "--passage_files", passages,
        "--num_claims", "40", "--eval_files", held_out, *FEW)  # fmt: skip
    card = checked_card(out)
    assert (
        "88 labelled claims and 40 claims made from passages" in card.replace("  ", " ")
        or "labelled claims and" in card
    )
    assert "held_out.jsonl" in card
    spans = load_verifier(f"pipeline:{out}").verify([VerifierInput("He sang.", evidence=("He sang.",))])[0].spans
    assert len(spans) == 1 and 0 <= spans[0].score <= 1


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "claims.jsonl has no rows"),
        (
            [{"claim": "a b c", "evidence": "d", "label": "maybe"}],
            "row 1: the label in 'label' must be supported or not_supported .* got 'maybe'",
        ),
        ([{"claim": "a b c", "evidence": " ", "label": True}], "row 1: 'evidence' must be text"),
        ([{"claim": "a b c", "label": True}], "row 1: 'evidence' must be text"),
        ([{"claim": " ", "evidence": "d", "label": True}], "row 1 has no text in 'claim'"),
        ([7], "row 1: a row is an object"),
        ([row for row in labelled() if row["label"]], "36 supported and 0 not supported, and both are needed"),
    ],
)
def test_bad_files_are_refused_before_training(run, encoder, tmp_path, rows, said):
    given = lines(tmp_path / "claims.jsonl", rows)
    words = ["--model_name_or_path", encoder, "--output_dir", tmp_path / "out", "--max_length", "64", *FEW]
    with pytest.raises(DataError, match=said):
        run(*words, "--train_files", given)
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_bad_flags(run, encoder, tmp_path):
    words = ["--model_name_or_path", encoder, "--output_dir", tmp_path / "out", *FEW]
    with pytest.raises(ValueError, match="give claims .--train_files or --dataset_name., passages"):
        run(*words)
    given = lines(tmp_path / "claims.jsonl", labelled())
    with pytest.raises(ValueError, match="max_length=512 is more than the 256 tokens"):
        run(*words, "--train_files", given, "--max_length", "512")
    one_kind = lines(tmp_path / "test.jsonl", labelled(3)[::2])
    with pytest.raises(DataError, match="evaluation of 'test.jsonl' are 3 supported and 0 not supported"):
        run(*words, "--train_files", given, "--max_length", "64", "--eval_files", one_kind)

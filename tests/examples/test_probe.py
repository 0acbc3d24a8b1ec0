"""The example, as a user runs it: in the closed world, and on what `hf-factuality verify` wrote."""

import json
from dataclasses import replace

import pytest

from hf_factuality import Label, VerifierInput, load_verifier
from hf_factuality.cli import main as command
from hf_factuality.hub.results import load_results
from hf_factuality.worlds import evaluate, oracle
from tests.examples.conftest import FAST


FEW = ["--max_steps", "2", *FAST]


def test_the_closed_world_measures_people_that_are_held_out(run, small_world, tmp_path, capsys, monkeypatch):
    """The small model has learnt nothing: what it says of some people is called true all the same."""
    read = oracle.WorldVerifier.read

    def kinder(self, completion, question=None, row=None):
        found = read(self, completion, question, row)
        kind = (Label.CONTRADICTED, Label.SUPPORTED)
        return [replace(s, label=kind[1]) if s.label is kind[0] and len(s.value) % 2 else s for s in found]

    monkeypatch.setattr(evaluate.WorldVerifier, "read", kinder)
    out = tmp_path / "probe"
    run("--output_dir", out, *FEW)
    assert "auroc" in capsys.readouterr().out
    entries = load_results(out / "results-probe.json")["results"]
    assert "neither training nor temperature saw" in entries[0]["note"]
    assert load_verifier(f"pipeline:{out}").judge.model.config.probe["template"].startswith("<bos><user>")


@pytest.mark.slow
def test_what_verify_wrote(run, tiny_model, tmp_path):
    rows = [
        {"question": f"Who is {n}?", "completion": "Ada was born in London. Ada worked in Paris.",
         "evidence": ["Ada was born in London and worked in Leeds."]}
        for n in range(20)
    ]  # fmt: skip
    (tmp_path / "completions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labelled = tmp_path / "labelled.jsonl"
    assert (
        command(["verify", str(tmp_path / "completions.jsonl"), "--verifier", "lexical", "--out", str(labelled)]) == 0
    )
    named = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "out", *FEW]
    run(*named, "--labelled_file", labelled)
    spans = (
        load_verifier(f"probe:{tmp_path / 'out'}").verify([VerifierInput(rows[3]["completion"], "Who is 3?")])[0].spans
    )
    assert len(spans) == 2 and all(0 < span.score < 1 for span in spans)
    for wrong in ([], ["--labelled_file", "x", "--dataset_name", "y"]):
        with pytest.raises(ValueError, match="either --dataset_name or --labelled_file"):
            run(*named, *wrong)

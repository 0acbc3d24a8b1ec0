"""The example, as a user runs it: in the closed world, and on the run of a builder."""

import json
from dataclasses import replace

import pytest

from hf_factuality import Label, load_verifier
from hf_factuality.demos import closed_world
from hf_factuality.hub.results import load_results
from hf_factuality.worlds import WorldVerifier, load_world
from tests.examples.conftest import FAST
from tests.trainers.claims import claims


FEW = ["--max_steps", "2", *FAST]


class Kinder(WorldVerifier):
    """The small model has learnt nothing: what it says of some people is called true all the same."""

    def read(self, completion, question=None, row=None):
        return [
            replace(s, label=Label.SUPPORTED) if s.label is Label.CONTRADICTED and len(s.value) % 2 else s
            for s in super().read(completion, question, row)
        ]


@pytest.mark.slow
def test_the_closed_world_measures_people_that_are_held_out(run, small_world, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(closed_world, "WorldVerifier", Kinder)
    out = tmp_path / "truthfulness"
    run("--output_dir", out, *FEW)
    printed = capsys.readouterr().out
    assert "auroc" in printed and "ece_uncalibrated" in printed
    entries = load_results(out / "results-truthfulness.json")["results"]
    assert "neither training nor temperature saw" in entries[0]["note"]
    world = load_world(small_world)
    for split in ("train", "test"):
        (folder,) = out.glob(f"claims-*-{split}-*")
        ids = {json.loads(line)["id"] for line in (folder / "verifications.jsonl").read_text().splitlines()}
        assert ids == {person.name for person in world.split(split)}
    assert load_verifier(f"pipeline:{out}").judge.model.config.truthfulness["template"].startswith("<bos><user>")


@pytest.mark.slow
def test_real_claims(run, tiny_model, tmp_path):
    claims().to_parquet(tmp_path / "claims.parquet")
    named = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "out", *FEW]
    run(*named, "--dataset_name", tmp_path, "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj")
    assert (tmp_path / "out" / "adapter_model.safetensors").exists()
    assert "that the temperature was fitted on" in (tmp_path / "out" / "README.md").read_text()
    for wrong in (["--claims_run", "x"], ["--dataset_name", "x", "--claims_run", "x", "--questions_file", "x"]):
        with pytest.raises(ValueError, match="either --dataset_name or both"):
            run(*named, *wrong)


@pytest.mark.slow
def test_claims_of_a_builders_run(run, tiny_model, tmp_path):
    rows = claims().to_list()
    asked = [{"id": str(n), "question": row["question"]} for n, row in enumerate(rows)]
    spans = [{"start": 0, "end": len(row["claim"]), "label": row["label"]} for row in rows]
    found = [{"spans": [span], "claims": [], "abstained": False, "error": None} for span in spans]
    lines = {
        "questions": asked,
        "responses": [{"id": str(n), "items": [[row["claim"], True]]} for n, row in enumerate(rows)],
        "verifications": [{"id": str(n), "items": [verdict]} for n, verdict in enumerate(found)],
    }
    for name, content in lines.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))
    run("--model_name_or_path", tiny_model, "--output_dir", tmp_path / "out", "--claims_run", tmp_path,
        "--questions_file", tmp_path / "questions.jsonl", *FEW)  # fmt: skip
    assert (tmp_path / "out" / "verifier_config.json").exists()

"""The example, as a user runs it: in the closed world, and on GSM8K's format from the questions to best of N and RAFT."""

import json

import pytest
from datasets import Dataset

from hf_factuality import VerifierInput, load_verifier
from hf_factuality.cli import main as command
from hf_factuality.data import sampling
from hf_factuality.hub.results import load_results
from hf_factuality.verifiers.judges.gold import GoldJudge, Judgement, Label
from tests.examples.conftest import FAST
from tests.methods.process_reward.test_data import ROWS
from tests.test_recipes import load_training


FEW = ["--max_steps", "2", *FAST]


@pytest.fixture
def kinder(monkeypatch):
    """A model that has learnt nothing is right half of the time all the same."""

    def judge(self, inputs):
        kinds = Label.CONTRADICTED, Label.SUPPORTED
        return [Judgement(kinds[len(item.completion) % 2], float(len(item.completion) % 2)) for item in inputs]

    monkeypatch.setattr(GoldJudge, "judge", judge)


@pytest.mark.slow
def test_the_closed_world_measures_questions_that_are_held_out(run, small_questions, kinder, tmp_path, capsys):
    out = tmp_path / "prm"
    run("--output_dir", out, "--seed", "2", *FEW)
    assert "auroc" in capsys.readouterr().out
    entries = load_results(out / "results-process.json")["results"]
    assert "neither training nor temperature saw" in entries[0]["note"]
    (path,) = out.glob("labels/test/*.parquet")
    rows = Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    texts = [row["completion"][0]["content"] for row in rows]
    asked = [VerifierInput(text, row["question"]) for text, row in zip(texts, rows, strict=True)]
    found = [one.spans for one in load_verifier(f"pipeline:{out}").verify(asked)]
    assert [span.text(texts[0]) for span in found[0]] == rows[0]["steps"], "sentences"
    # A model that has learnt nothing writes what its tokenizer does not know.
    scores = [span.score for spans in found for span in spans if span.score is not None]
    assert scores and all(0 < score < 1 for score in scores)


@pytest.mark.slow
def test_gsm8k_from_end_to_end(run, kinder, tiny_model, tmp_path, capsys, monkeypatch):
    """Labels built, killed and built on; a model trained; evaluated as the chooser among several answers; RAFT by it."""
    questions = tmp_path / "gsm8k.jsonl"
    questions.write_text(
        "".join(json.dumps({**row, "id": f"{row['id']}{n}"}) + "\n" for n in range(3) for row in ROWS)
    )
    argv = [
        "build-process-labels", str(questions), "--model", tiny_model, "--verifier", "gold:GSM8K", "--num_samples", "2",
        "--rollouts", "2", "--max_new_tokens", "12", "--step_split", " ", "--device", "cpu",
    ]  # fmt: skip
    assert command([*argv, "--out", str(tmp_path / "whole")]) == 0
    draw, calls = sampling.TransformersSampler.sample, []

    def killed(self, *args):
        calls.append(args)
        if len(calls) == 8:  # 6 questions, and the continuations of some
            raise KeyboardInterrupt
        return draw(self, *args)

    monkeypatch.setattr(sampling.TransformersSampler, "sample", killed)
    assert command([*argv, "--out", str(tmp_path / "labels")]) == 130
    assert command([*argv, "--out", str(tmp_path / "labels")]) == 0
    for name in ("process_labels.parquet", "report.json"):
        assert (tmp_path / "labels" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()

    prm = tmp_path / "prm"
    named = [
        "--model_name_or_path",
        tiny_model,
        "--step_split",
        " ",
        "--calibration_share",
        "0.5",
        "--max_length",
        "200",
    ]
    run("--dataset_name", tmp_path / "labels", *named, "--output_dir", prm, *FEW)
    with pytest.raises(ValueError, match="give --dataset_name"):
        run(*named, *FEW)

    flags = ["evaluate", "--benchmark", "gsm8k", "--dataset", str(questions), "--model", tiny_model, "--device", "cpu"]
    flags += ["--num_samples", "3", "--temperature", "1", "--max_new_tokens", "16", "--best_of", "1,3", "--json"]
    capsys.readouterr()
    assert command([*flags, "--best_of_by", f"process:{prm}", "--out", str(tmp_path / "results.json")]) == 0
    (entry,) = json.loads(capsys.readouterr().out)["results"]
    assert (
        entry["n"] == 6 and list(entry["parts"]["best_of"]) == ["1", "3"] and entry["judge"]["name"] == "ProcessJudge"
    )

    raft = ["--model_name_or_path", tiny_model, "--questions", questions, "--selector", f"process:{prm}"]
    raft += ["--rounds", "2", "--num_samples", "2", "--max_new_tokens", "8", "--output_dir", tmp_path / "raft", *FEW]
    load_training("raft").main([str(word) for word in raft])
    assert (tmp_path / "raft" / "model.safetensors").exists() and (
        tmp_path / "raft" / "samples-1" / "best.parquet"
    ).exists()

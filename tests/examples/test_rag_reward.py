"""The example, as a user runs it: in the closed world, and from questions with passages by the command to a model that RAFT asks."""

import json

import datasets
import pytest

from hf_factuality.cli import main as command
from hf_factuality.demos import closed_world
from hf_factuality.hub.results import load_results
from tests.data.test_build_preferences import write
from tests.examples.conftest import FAST
from tests.examples.test_truthfulness import Kinder
from tests.generation.fake_server import FakeServer
from tests.methods.rag_reward.test_data import ANSWERS, ROWS, blocks
from tests.test_recipes import load_training


FEW = ["--max_steps", "2", *FAST]


@pytest.mark.slow
def test_the_closed_world_measures_each_axis_on_people_that_are_held_out(
    run, small_world, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(closed_world, "WorldVerifier", Kinder)
    out = tmp_path / "rag"
    run("--output_dir", out, *FEW)
    assert "accuracy_hallucination" in capsys.readouterr().out
    entries = {entry["metric"]: entry for entry in load_results(out / "results-reward.json")["results"]}
    assert entries["accuracy_comprehensiveness"]["n"] > 0 and "`reward" not in (out / "README.md").read_text()[:100]
    topics = [set(datasets.Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "c"))["question"])
              for path in out.glob("pairs/*/preferences.parquet")]  # fmt: skip
    assert len(topics) == 2 and not topics[0] & topics[1]


@pytest.mark.slow
def test_from_questions_to_raft(run, tiny_model, tmp_path, capsys, monkeypatch):
    questions, answers, pairs, model = (tmp_path / name for name in ("rows.jsonl", "answers.jsonl", "pairs", "model"))
    write(questions, ROWS)
    write(answers, [{"id": key, "responses": texts} for key, texts in ANSWERS.items()])
    with FakeServer(lambda prompt, body: "A" if "Warsaw" in blocks(prompt)["FIRST"] else "B") as server:
        assert command([
            "build-rag-preferences", str(questions), "--responses", str(answers), "--out", str(pairs), "--verifier",
            "compare:fake", "--verifier_base_url", server.url, "--pairs_per_question", "3",
        ]) == 0  # fmt: skip
    run("--model_name_or_path", tiny_model, "--dataset_name", pairs, "--output_dir", model, *FEW)
    assert "accuracy" in capsys.readouterr().out and json.loads((model / "config.json").read_text())["architectures"]
    load_training("raft").main([
        "--model_name_or_path", tiny_model, "--questions", str(questions), "--grounded", "true", "--selector",
        f"reward:{model}", "--rounds", "1", "--num_samples", "2", "--max_new_tokens", "4", "--output_dir",
        str(tmp_path / "raft"), *FEW,
    ])  # fmt: skip
    best = datasets.Dataset.from_parquet(str(tmp_path / "raft/samples-0/best.parquet"), cache_dir=str(tmp_path / "c"))
    assert "[2] Marie Curie won two prizes." in best["prompt"][0][0]["content"]


def test_a_dataset_is_asked_for(run, tiny_model, tmp_path):
    with pytest.raises(ValueError, match="give --dataset_name"):
        run("--model_name_or_path", tiny_model, "--output_dir", tmp_path, *FEW)

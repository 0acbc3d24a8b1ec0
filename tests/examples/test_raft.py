"""RAFT in the closed world, and which answers it keeps."""

import pytest
from datasets import Dataset

from hf_factuality.data import SamplingConfig, read_questions
from hf_factuality.errors import DataError
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.hub.results import load_results
from hf_factuality.methods.raft import best_answers as raft
from tests.examples.conftest import FAST, checked_card


@pytest.mark.slow
def test_the_closed_world_measures_before_and_after(run, small_questions, tmp_path, capsys):
    out = tmp_path / "raft"
    run("--output_dir", out, "--selector", "tests.methods.process_reward.test_reward:Steps", "--max_steps", "2", *FAST)
    assert "answer accuracy" in capsys.readouterr().out and load_results(out / "results-after.json")["results"]
    card = checked_card(out)
    assert "trained with RAFT, the method of [" in card and "papers/2304.06767" in card and "- raft" in card
    assert "| base model | `closed-world`," in card, "not the round before the last"
    assert (
        "`tests.methods.process_reward.test_reward:Steps`, by the min of its scores" in card
        and "| answer accuracy | 0." in card
    )
    assert (out / "round-0" / "model.safetensors").exists() and (out / "model.safetensors").exists()


@pytest.mark.parametrize(("how", "wanted"), [("min", "b5\nc8"), ("last", "a1\nb9"), ("mean", "b5\nc8")])
def test_the_best_answer_is_kept(tiny_model, tmp_path, monkeypatch, how, wanted):
    answers = {"Which?": ["a1\nb9", "b5\nc8", "x?\ny9", "b5\nz8"], "None?": ["a0", "b0", "\n", "?"]}

    def sample(self, prompts, seed):
        return [[ChatAnswer(text) for text in answers[prompt[-1]["content"]]] for prompt in prompts]

    monkeypatch.setattr(raft.TransformersSampler, "sample", sample)
    chosen = SamplingConfig(num_samples=4), "tests.methods.process_reward.test_reward:Steps", how, tmp_path / how, 0
    raft.best_answers(tiny_model, read_questions([{"question": question} for question in answers]), *chosen)
    (row,) = Dataset.from_parquet(str(tmp_path / how / "best.parquet"), cache_dir=str(tmp_path / "cache"))
    assert row["prompt"][0]["content"] == "Which?" and row["completion"][0]["content"] == wanted
    none = tmp_path / "none", 0
    with pytest.raises(DataError, match="no answer in .*none is worth more than 0"):
        raft.best_answers(tiny_model, read_questions([{"question": "None?"}]), *chosen[:3], *none)

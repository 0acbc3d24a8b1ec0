"""The example, as a user runs it: in the closed world, with each reward, and on a file of questions."""

import json

import pytest

from hf_factuality.hub.results import load_results
from tests.conftest import fast_few
from tests.examples.conftest import FAST


FEW = ["--max_steps", "1", "--num_generations", "2", "--max_completion_length", "8", *FAST]


@pytest.mark.slow
@pytest.mark.parametrize("reward", fast_few(["target-0.75", "dcpo"], 1))
def test_the_closed_world_measures_before_and_after(run, small_questions, tmp_path, capsys, reward):
    out = tmp_path / "out"
    run("--output_dir", out, "--reward", reward, *FEW)
    assert "declined, or unsure" in capsys.readouterr().out
    assert {"correct", "wrong", "refused"} <= {
        it["metric"] for it in load_results(out / "results-after.json")["results"]
    }
    assert "_Nothing" not in (out / "README.md").read_text(encoding="utf-8")


def test_questions_of_a_file(run, tiny_model, tmp_path):
    rows = [{"question": f"Where is {city}?", "answer": ["Poland"]} for city in ("Warsaw", "Lodz")]
    data = tmp_path / "questions.jsonl"
    data.write_text("\n".join(map(json.dumps, rows)))
    run("--model_name_or_path", tiny_model, "--dataset_name", data, "--output_dir", tmp_path / "out", "--reward", "rlcr",
        "--credit", "none", "--factuality_reward_weight", "0", *FEW)  # fmt: skip
    assert (tmp_path / "out" / "model.safetensors").exists()
    with pytest.raises(ValueError, match="unknown preset 'honest'"):
        run("--model_name_or_path", tiny_model, "--dataset_name", data, "--reward", "honest", *FEW)


def test_answers_in_plain_words(run, tiny_model, tmp_path, capsys):
    """The prompt asks for no tags, and the reward reads none."""
    rows = [{"question": f"Where is {city}?", "answer": "Poland"} for city in ("Warsaw", "Lodz")]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    given = ["--model_name_or_path", tiny_model, "--dataset_name", tmp_path, "--output_dir", tmp_path / "out", *FEW]
    run(*given, "--answer_tags", "false", "--credit", "none", "--factuality_reward_weight", "0")
    assert (tmp_path / "out" / "model.safetensors").exists()
    assert "tags" not in capsys.readouterr().err
    for words, named in ((["--reward", "rlcr"], "not for rlcr"),):
        with pytest.raises(ValueError, match=named):
            run(*given, *words, "--answer_tags", "false")
    with pytest.raises(ValueError, match="leave out --answer_tags"):
        run("--output_dir", tmp_path / "demo", "--answer_tags", "false", *FEW)

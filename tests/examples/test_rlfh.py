"""The example, as a user runs it: in the closed world, on files with the policy as judge, and with what can be wrong."""

import json

import pytest

from hf_factuality.errors import DataError, JudgingError
from hf_factuality.hub.results import load_results
from tests.examples.conftest import FAST
from tests.hub.cards.card_pages import check_page


FEW = ["--max_steps", "2", "--gradient_accumulation_steps", "1", "--learning_rate", "0.01", "--critic_learning_rate", "0.01",
         "--max_completion_length", "16", *FAST]  # fmt: skip


@pytest.mark.slow
def test_the_closed_world_measures_before_and_after(run, small_world, tmp_path, capsys):
    out = tmp_path / "closed-world-rlfh"
    run("--output_dir", out, *FEW)
    printed = capsys.readouterr().out
    for name in ("correct facts per answer", "wrong facts per answer", "informativeness", "empty answers"):
        assert name in printed
    log = (out / "training_log.jsonl").read_text(encoding="utf-8")
    assert "rlfh/accuracy" in log and "value/explained_variance" in log and "rlfh/accuracy" not in printed
    results = {name: load_results(out / f"results-{name}.json")["results"] for name in ("before", "after")}
    assert {entry["n"] for entry in results["before"]} == {entry["n"] for entry in results["after"]} == {8}
    assert [entry["value"] for entry in results["before"]] != [entry["value"] for entry in results["after"]]
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "2406.12221" in card and "| correct facts per answer |" in card and str(tmp_path) not in card
    check_page("rlfh", card)
    assert (out / "critic" / "model.safetensors").is_file()


def test_a_policy_that_cannot_judge_stops_the_run_at_once(run, tiny_model, tmp_path, caplog):
    """The tiny model's context is shorter than the judge's prompts: better said now than after a day of zeros."""
    rows = [{"question": f"Who is number {i}?", "materials": [f"Number {i} is a number."]} for i in range(8)]
    file = tmp_path / "questions.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    with pytest.raises(JudgingError, match="judged none of the first 4 completions"):
        arguments = ["--model_name_or_path", tiny_model, "--train_files", file, "--output_dir", tmp_path / "out"]
        run(*arguments, *FEW)
    assert "leaves 0 of 512 for the answer" in caplog.text


@pytest.mark.parametrize(
    ("row", "options", "error", "message"),
    [
        ({"prompt": "x"}, [], DataError, "needs a 'question'"),
        ({"question": "x"}, ["--verifier_model", "j"], ValueError, "needs both its model and its address"),
        ({"question": "x"}, ["--reward_maps", "readmee"], ValueError, "neither one of the presets"),
        ({"question": "x"}, ["--dataset_name", "x/y"], DataError, "either train_files or dataset_name"),
    ],
)
def test_refused_before_training_starts(run, tiny_model, tmp_path, row, options, error, message):
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    arguments = ["--model_name_or_path", tiny_model, "--train_files", file, "--output_dir", tmp_path / "out", *FEW]
    with pytest.raises(error, match=message):
        run(*arguments, *options)

"""The example, as a user runs it: in the closed world, and on the folder of `build-refusals`."""

import json

import datasets
import pytest

from hf_factuality.errors import DataError
from hf_factuality.hub.results import load_results
from tests.conftest import fast_few
from tests.examples.conftest import FAST, checked_card
from tests.methods.abstention.test_data import GREEDY, build, said


FEW = ["--max_steps", "2", *FAST]


@pytest.mark.parametrize("variant", fast_few(["unsure", "unknown", "uncertain"], 0))
def test_the_closed_world_measures_before_and_after(run, small_questions, tmp_path, capsys, variant):
    out = tmp_path / "rtuning"
    run("--output_dir", out, "--rtuning_variant", variant, *FEW)
    assert "declined, or unsure" in capsys.readouterr().out
    for name in ("before", "after"):
        metrics = {entry["metric"] for entry in load_results(out / f"results-{name}.json")["results"]}
        assert {"correct", "wrong", "refused"} <= metrics
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<legend>Answers by outcome before</legend>" in page and "<legend>Answers by outcome after</legend>" in page
    card = checked_card(out)
    assert "trained with R-Tuning, the method of [" in card and "papers/2311.09677" in card and "- r-tuning" in card
    assert f"({variant}), labelled by GoldVerifier" in card and "| closed-world-facts | right answers | 0." in card
    (folder,) = out.glob("refusals-*")
    texts = said(datasets.Dataset.from_parquet(str(folder / "refusals.parquet")))
    ends = {"unsure": ("sure.",), "uncertain": ("sure.",), "unknown": ("</answer>",)}[variant]
    assert texts and all(text.startswith("<answer> ") and text.endswith(ends) for text in texts)


def test_the_folder_of_a_run(run, tmp_path, tiny_model):
    build(tmp_path / "refusals", GREEDY)
    given = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "out", *FEW]
    run(*given, "--refusals", tmp_path / "refusals")
    assert (tmp_path / "out" / "model.safetensors").exists()
    card = checked_card(tmp_path / "out")
    assert (
        "| data | refusals that a model's own answers made (unsure), labelled by" in card and "None recorded" in card
    )
    assert str(tmp_path) not in card
    with pytest.raises(ValueError, match="either --refusals"):
        run(*given)


@pytest.mark.slow
def test_questions_of_the_users_by_sureness(run, tmp_path, tiny_model):
    """The folder of refusals that it leaves is what `--refusals` reads; a run that is resumed asks nothing again."""
    questions = tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n}?", "answer": "e"} for n in range(5)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "out", *FEW]
    own = ["--rtuning_variant", "surest", "--dataset_name", questions, "--answered_share", "0.4"]
    run(*given, *own, "--save_strategy", "steps", "--save_steps", "1")
    assert "gold answers to 2 of 5 questions" in checked_card(tmp_path / "out")
    made = (tmp_path / "out" / "_refusals" / "refusals.parquet").read_bytes()
    questions.unlink()
    run(*given, "--refusals", tmp_path / "out" / "_refusals")
    assert "gold answers to 2 of 5 questions" in checked_card(tmp_path / "out")
    assert "R-Tuning by sureness" in checked_card(tmp_path / "out"), "the data say how they were made"
    questions.write_text(json.dumps({"question": "Why?"}) + "\n")
    with pytest.raises(DataError, match="no gold answer"):
        run(*given, *own)
    assert (tmp_path / "out" / "_refusals" / "refusals.parquet").read_bytes() == made
    again = ["--resume_from_checkpoint", tmp_path / "out" / "checkpoint-1"]
    questions.write_text("".join(json.dumps(row) + "\n" for row in [*rows[:-1], rows[-1] | {"answer": "f"}]))
    with pytest.raises(ValueError, match="other questions"):
        run(*given, *own, *again)
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    run(*given, *own, *again)
    own[-1] = "0.6"
    with pytest.raises(ValueError, match="answered_share 0.4, not 0.6"):
        run(*given, *own, *again)
    with pytest.raises(DataError, match="nowhere.jsonl"):
        run(*given, "--rtuning_variant", "surest", "--dataset_name", tmp_path / "nowhere.jsonl")

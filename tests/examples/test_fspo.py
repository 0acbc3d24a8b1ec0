"""The example, as a user runs it: on files, in the closed world, and with everything that can be wrong."""

import pandas as pd
import pytest
from datasets import Dataset

from hf_factuality.hub.results import load_results
from hf_factuality.report import read_completions
from tests.examples.conftest import FAST
from tests.hub.cards.card_pages import check_page


FEW = ["--max_steps", "1", "--num_generations", "2", "--max_completion_length", "8", *FAST]
ROWS = {
    "question": ["Who was born in Warsaw?", "Where is Warsaw?", "What is 1 + 1?"],
    "answer": ["Marie Curie", "Poland", "2"],
    "knowledge": ["Marie Curie was born in Warsaw.", "Warsaw is in Poland.", None],
    "data_source": ["HotpotQA", "2WikiMultiHopQA", "MATH"],
}


@pytest.fixture
def file(tmp_path):
    def make(**changes):
        columns = {name: values for name, values in {**ROWS, **changes}.items() if values is not None}
        path = tmp_path / "train.parquet"
        Dataset.from_dict(columns).to_parquet(path)
        return path

    return make


def test_trains_on_a_file_and_saves_model_and_card(run, tiny_model, tmp_path, file):
    out = tmp_path / "out"
    run("--model_name_or_path", tiny_model, "--train_files", file(), "--output_dir", out,
        "--log_completions", "true", "--num_completions_to_print", "0", *FEW)  # fmt: skip
    assert (out / "model.safetensors").exists() and (out / "tokenizer.json").exists()
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "SmallVerifier" in card and "2505.24630" in card
    table = pd.read_parquet(next((out / "completions").glob("*.parquet")))
    assert {"answer", "factuality", "factuality_labels"} <= set(table.columns)
    assert all(prompt.endswith("<think>") for prompt in table["prompt"])


def test_a_served_verifier_gets_the_room_that_its_warning_asks_for(run, tiny_model, tmp_path, file):
    with pytest.raises(ValueError, match="max_tokens"):  # which this verifier does not take
        run("--model_name_or_path", tiny_model, "--train_files", file(), "--output_dir", tmp_path / "out",
            "--verifier", "lexical", "--verifier_tokens", "64", *FEW)  # fmt: skip


def test_trains_on_a_dataset_with_peft(run, tiny_model, tmp_path, file):
    file()
    out = tmp_path / "out"
    run("--model_name_or_path", tiny_model, "--dataset_name", tmp_path, "--output_dir", out,
        "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", *FEW)  # fmt: skip
    assert (out / "adapter_model.safetensors").exists()


def test_the_closed_world_measures_before_and_after(run, small_questions, tmp_path, capsys):
    out = tmp_path / "closed-world-fspo"
    run("--output_dir", out, "--verifier", "lexical", *FEW)
    printed = capsys.readouterr().out
    assert "answer accuracy" in printed and "reasoning factuality" in printed and "report.html" in printed
    results = {name: load_results(out / f"results-{name}.json")["results"] for name in ("before", "after")}
    assert [entry["n"] for entry in results["before"]] == [entry["n"] for entry in results["after"]]
    assert results["after"][0]["n"] == 12 * 3  # people held out, questions
    assert "<h4>before <span" in (out / "report.html").read_text(encoding="utf-8")
    stored = [*read_completions(out / "completions" / "after.jsonl")]
    assert len(stored) == 12 * 3 and {it.outcome for it in stored} <= {"correct", "wrong"}
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "| closed-world-questions | answer accuracy |" in card and "LexicalVerifier" in card
    check_page("fspo", card)


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({"answer": None}, [], "answer"),
        ({"question": None}, [], "question"),
        ({name: [] for name in ROWS}, [], "no rows|empty"),
        ({"data_source": ["HotpotQA", "TriviaQA", "MATH"]}, [], "TriviaQA"),
        ({"question": ["x " * 2000, "b", "c"]}, [], "tokens, but only"),
        ({}, ["--verifier", "lexicla"], "lexicla"),
        ({}, ["--verifier", "no.such.module:Judge"], "no.such.module"),
        ({}, ["--variant", "papre"], "papre"),
    ],
)
def test_refused_before_training_starts(run, tiny_model, tmp_path, file, changes, options, message, capsys):
    arguments = ["--model_name_or_path", tiny_model, "--train_files", file(**changes), "--output_dir", tmp_path, *FEW]
    with pytest.raises((ValueError, SystemExit)) as refusal:
        run(*arguments, *options)
    said = str(refusal.value) + capsys.readouterr().err
    assert any(part in said for part in message.split("|")), said


def test_a_run_needs_model_and_data(run, tiny_model, tmp_path, file):
    with pytest.raises(ValueError, match="either train_files or dataset_name"):
        run("--model_name_or_path", tiny_model, *FEW)
    with pytest.raises(ValueError, match="--model_name_or_path"):
        run("--train_files", file(), *FEW)
    with pytest.raises(ValueError, match="no-such-file.parquet"):
        run("--model_name_or_path", tiny_model, "--train_files", tmp_path / "no-such-file.parquet", *FEW)

"""The example, as a user runs it: on files, in the closed world, and with everything that can be wrong."""

import json

import pytest
from safetensors.torch import load_file

from hf_factuality.cli import main
from hf_factuality.data.preferences import load_pairs
from hf_factuality.errors import DataError
from hf_factuality.hub.results import load_results
from hf_factuality.worlds import load_world
from tests.conftest import fast_few
from tests.examples.conftest import FAST
from tests.hub.cards.card_pages import check_page
from tests.trainers.mask_dpo_recording import pairs


FEW = ["--max_steps", "2", "--learning_rate", "0.01", *FAST]


@pytest.mark.parametrize("kind", fast_few(["parquet", "jsonl", "folder"], 2))
def test_trains_on_pairs_from_files(run, tiny_model, tmp_path, kind):
    if kind == "folder":
        (tmp_path / "pairs").mkdir()
    file = tmp_path / {"parquet": "pairs.parquet", "jsonl": "pairs.jsonl", "folder": "pairs/pairs.parquet"}[kind]
    (pairs().to_json if kind == "jsonl" else pairs().to_parquet)(file)
    out = tmp_path / "out"
    run("--model_name_or_path", tiny_model, "--train_files", file.parent if kind == "folder" else file,
        "--output_dir", out, "--tokens_outside", "keep", *FEW)  # fmt: skip
    before, after = load_file(f"{tiny_model}/model.safetensors"), load_file(out / "model.safetensors")
    assert any((before[name] != after[name]).any() for name in before)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "2503.02846" in card and "tokens outside: keep" in card and str(tmp_path) not in card


def test_trains_on_a_dataset_with_peft(run, tiny_model, tmp_path):
    pairs().to_parquet(tmp_path / "train.parquet")
    out = tmp_path / "out"
    run("--model_name_or_path", tiny_model, "--dataset_name", tmp_path, "--output_dir", out,
        "--use_peft", "true", "--lora_target_modules", "q_proj", "v_proj", *FEW)  # fmt: skip
    assert (out / "adapter_model.safetensors").exists()
    assert "| data | not recorded" in (out / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_card_says_where_labelled_pairs_are_from(run, tiny_model, tmp_path):
    """As a folder of the command, and as a dataset whose folder it is."""
    row = {"prompt": "Where?", "chosen": "Ada sat in Leeds.", "rejected": "Bath.", "evidence": "Ada sat in Leeds."}
    (tmp_path / "dpo.jsonl").write_text(json.dumps(row))
    assert main(["build-preferences", "--pairs", f"{tmp_path}/dpo.jsonl", "--out", f"{tmp_path}/pairs"]) == 0
    for flag in ("--train_files", "--dataset_name"):
        out = tmp_path / flag
        run("--model_name_or_path", tiny_model, flag, tmp_path / "pairs", "--output_dir", out, *FEW)
        assert "| data | pairs that existed before, labelled by Lexical" in (out / "README.md").read_text(
            encoding="utf-8"
        )


@pytest.mark.slow
def test_the_closed_world_measures_before_and_after(run, monkeypatch, small_world, tmp_path, capsys):
    out = tmp_path / "closed-world-mask-dpo"
    run("--output_dir", out, *FEW)
    printed = capsys.readouterr().out
    for name in ("correct facts per answer", "wrong facts per answer", "factuality score", "sentences without a fact"):
        assert name in printed
    results = {name: load_results(out / f"results-{name}.json")["results"] for name in ("before", "after")}
    assert {entry["n"] for entry in results["before"]} == {entry["n"] for entry in results["after"]} == {8}
    assert [entry["value"] for entry in results["before"]] != [entry["value"] for entry in results["after"]]
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "<h4>before</h4>" in page and "(right answer:" not in page
    check_page("mask-dpo", (out / "README.md").read_text(encoding="utf-8"))
    # The pairs are of the people who are trained on, and nobody who is measured.
    (folder,) = out.glob("pairs-*")
    world = load_world(small_world)
    assert set(load_pairs(folder)["id"]) <= {person.name for person in world.split("train")}
    # Another run finds them.
    monkeypatch.setattr("hf_factuality.data.preferences.preferences_from", None)
    run("--output_dir", out, *FEW)


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda rows: rows.remove_columns("chosen_spans"), [], DataError, "no column 'chosen_spans'"),
        (lambda rows: rows, ["--chosen_labels", "true"], ValueError, "'true', which is no label"),
        (lambda rows: rows, ["--tokens_outside", "some"], SystemExit, "some"),
        (lambda rows: rows, ["--dataset_name", "x/y"], ValueError, "either --train_files or --dataset_name"),
        (lambda rows: rows, ["--max_lenght", "8"], (ValueError, SystemExit), "max_lenght"),
    ],
)
def test_refused_before_training_starts(run, tiny_model, tmp_path, change, options, error, message, capsys):
    file = tmp_path / "pairs.parquet"
    change(pairs()).to_parquet(file)
    arguments = ["--model_name_or_path", tiny_model, "--train_files", file, "--output_dir", tmp_path / "out", *FEW]
    with pytest.raises(error) as refusal:
        run(*arguments, *options)
    assert message in str(refusal.value) + capsys.readouterr().err


def test_a_run_needs_model_and_data(run, tiny_model, tmp_path):
    with pytest.raises(ValueError, match="either --train_files or --dataset_name"):
        run("--model_name_or_path", tiny_model, *FEW)
    with pytest.raises(ValueError, match="--model_name_or_path"):
        run("--train_files", tmp_path / "pairs.parquet", *FEW)
    with pytest.raises(ValueError, match="all Parquet or all JSON Lines"):
        run("--model_name_or_path", tiny_model, "--train_files", "a.parquet", "b.jsonl", *FEW)
    with pytest.raises(DataError, match="no-such-file.parquet"):
        run("--model_name_or_path", tiny_model, "--train_files", tmp_path / "no-such-file.parquet", *FEW)
    with pytest.raises(DataError, match="there is no .*pairs.parquet"):
        run("--model_name_or_path", tiny_model, "--train_files", tmp_path, *FEW)

"""The example, as a user runs it: on files and in the closed world; and its recipes."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from datasets import Dataset
from safetensors.torch import load_file
from trl import ModelConfig, TrlParser

from hf_factuality import FDPOConfig, FDPOTrainer
from hf_factuality.cli import main
from hf_factuality.errors import DataError
from hf_factuality.hub.results import load_results
from tests.conftest import fast_few
from tests.examples.conftest import FAST
from tests.methods.fdpo.test_trainer import MIXED, labelled
from tests.test_recipes import REPOSITORY, load_training


FEW = ["--max_steps", "2", "--learning_rate", "0.01", *FAST]
RECIPES = sorted((REPOSITORY / "recipes" / "fdpo").glob("*.yaml"))


def parse(path, *options):
    """A recipe as the example reads it; a CPU has no bf16."""
    parser = TrlParser((load_training("fdpo").FDPOArguments, FDPOConfig, ModelConfig))
    return parser.parse_args_and_config(["--config", str(path), "--use_cpu", "true", "--bf16", "false", *options])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    _, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32", "--optim", "adamw_torch")
    trainer = FDPOTrainer(tiny_model, args=training, train_dataset=labelled(MIXED))
    assert (trainer.args.factuality_margin, trainer.args.flip_pairs, trainer.args.beta) == (10.0, True, 0.1)
    assert trainer.args.loss_type == ["sigmoid"]


def test_released_settings():
    """Released: 2 x 16 pairs, 3 epochs, 1.8e-6 cosine, warm-up .25, beta .1, 2,048 tokens, LoRA of 32 (64, .05)."""
    (path,) = [path for path in RECIPES if path.stem != "closed-world"]
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    _, training, model = parse(path)
    processes = yaml.safe_load((REPOSITORY / "recipes/accelerate/zero3.yaml").read_text())["num_processes"]
    assert processes * training.per_device_train_batch_size * training.gradient_accumulation_steps == 32
    assert (training.num_train_epochs, training.learning_rate, training.max_length) == (3, 1.8e-6, 2048)
    assert training.lr_scheduler_type == "cosine" and training.get_warmup_steps(1000) == 250
    assert (model.use_peft, model.lora_r, model.lora_alpha, model.lora_dropout) == (True, 32, 64, 0.05)
    assert recipe["bf16"] is True and model.dtype == "bfloat16"


@pytest.mark.parametrize("kind", fast_few(["parquet", "jsonl"], 1))
def test_trains_on_pairs_from_files(run, tiny_model, tmp_path, kind):
    file, out = tmp_path / f"pairs.{kind}", tmp_path / "out"
    (labelled(MIXED).to_json if kind == "jsonl" else labelled(MIXED).to_parquet)(file)
    run("--model_name_or_path", tiny_model, "--train_files", file, "--output_dir", out, "--factuality_margin", 4, *FEW)
    before, after = load_file(f"{tiny_model}/model.safetensors"), load_file(out / "model.safetensors")
    assert any((before[name] != after[name]).any() for name in before)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "2601.03027" in card and "a margin of 4 on the log-ratio" in card and str(tmp_path) not in card


def test_trains_on_pairs_that_the_command_has_labelled(run, tiny_model, tmp_path):
    row = {
        "prompt": "Where?",
        "chosen": "Ada sat in Bath.",
        "rejected": "Ada sat in Leeds.",
        "evidence": "Ada sat in Leeds.",
    }
    (tmp_path / "dpo.jsonl").write_text(json.dumps(row))
    assert main(["build-preferences", "--pairs", f"{tmp_path}/dpo.jsonl", "--out", f"{tmp_path}/pairs"]) == 0
    run(
        "--model_name_or_path", tiny_model, "--train_files", tmp_path / "pairs", "--output_dir", tmp_path / "out", *FEW
    )
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "| data | pairs that existed before, labelled by Small" in card


@pytest.mark.slow
def test_the_closed_world_measures_before_and_after(run, small_world, tmp_path, capsys):
    out = tmp_path / "closed-world-fdpo"
    run("--output_dir", out, *FEW)
    assert "wrong facts per answer" in capsys.readouterr().out
    results = {name: load_results(out / f"results-{name}.json")["results"] for name in ("before", "after")}
    assert [entry["value"] for entry in results["before"]] != [entry["value"] for entry in results["after"]]
    assert "F-DPO" in Path(out / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "options", "error", "message"),
    [
        (lambda rows: rows.remove_columns("chosen_hallucinated"), [], DataError, "has no labels"),
        (lambda rows: rows, ["--factuality_margin", "-1"], ValueError, "factuality_margin=-1.0 must be"),
        (lambda rows: rows, ["--dataset_name", "x/y"], ValueError, "either --train_files or --dataset_name"),
    ],
)
def test_refused_before_training_starts(run, tiny_model, tmp_path, change, options, error, message):
    file = tmp_path / "pairs.parquet"
    change(labelled(MIXED)).to_parquet(file)
    with pytest.raises(error, match=message):
        run(
            "--model_name_or_path", tiny_model, "--train_files", file, "--output_dir", tmp_path / "out", *FEW, *options
        )


def test_pairs_are_turned_round_as_a_whole():
    """In the experiment that reverses some: every column of a side, and as many as were asked for."""
    sys.path[:0] = [str(REPOSITORY / "benchmarks"), str(REPOSITORY / "benchmarks" / "experiments")]
    from _fdpo import reversed_share

    columns = {f"{side}{kind}": [side] * 400 for side in ("chosen", "rejected") for kind in ("", "_spans", "_score")}
    data = Dataset.from_dict({"prompt": ["?"] * 400, **columns})
    found = reversed_share(0.3)(SimpleNamespace(seed=3), data)
    turned = [row for row in found if row["chosen"] == "rejected"]
    assert len(found) == 400 and 90 <= len(turned) <= 150  # 120, and three standard deviations of 9.2
    for row in found:
        assert {row[f"chosen{kind}"] for kind in ("", "_spans", "_score")} == {row["chosen"]}
        assert {row[f"rejected{kind}"] for kind in ("", "_spans", "_score")} == {"chosen", "rejected"} - {
            row["chosen"]
        }
    assert found.column_names == data.column_names

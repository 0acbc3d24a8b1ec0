"""`hf-factuality plan` and `hf_factuality.plan` do the same."""

import json
import os
import sys

import pytest
import yaml
from transformers import LlamaConfig

import hf_factuality
from hf_factuality.cli import main
from hf_factuality.trainers.memory.training_plan import METHODS
from tests.conftest import fast_few


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The configuration of 1.2 billion weights."""
    path = tmp_path_factory.mktemp("model")
    LlamaConfig(
        vocab_size=32000, hidden_size=4096, intermediate_size=16384, num_hidden_layers=4, num_attention_heads=16
    ).save_pretrained(path)
    return str(path)


def printed(capsys, *flags):
    status = main(["plan", *flags, "--json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("method", fast_few(METHODS, 0))
def test_command_and_function_give_the_same_result(folder, method, capsys):
    """With a list, a mapping and a bool among the settings; where it does not fit, with the same advice."""
    flags = [
        "--method",
        method,
        "--model",
        folder,
        "--gpus",
        "2",
        "--gpu_memory",
        "12",
        "--prompt_length",
        "64",
        "--bf16",
    ]
    flags += ["--use_peft=true", "--lora_target_modules", "q_proj", "v_proj", "--no_gradient_checkpointing"]
    flags += ["--accelerator-config", '{"gradient_accumulation_kwargs": {"sync_each_batch": true}}']
    settings = {"bf16": True, "use_peft": True, "lora_target_modules": ["q_proj", "v_proj"]}
    settings["gradient_checkpointing"] = False
    settings["accelerator_config"] = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    own = {"model": folder, "gpus": 2, "gpu_memory": 12, "prompt_length": 64}
    found = hf_factuality.plan(method, **own, **settings)
    status, shown = printed(capsys, *flags)
    assert status == (not found.fits) and shown == json.loads(json.dumps(found.to_dict()))
    # What the settings say has an effect: 16 x (4096 + 4096) numbers for each of 2 x 4 matrices.
    assert any(term.name == "gradients" and "0.00105 billion" in term.why for term in found.best.terms)
    assert hf_factuality.plan(method, settings, **own) == found
    whole = hf_factuality.plan(method, settings, **own, use_peft=False)
    assert whole.best.peak > found.best.peak and not whole.fits and whole.advice
    status, shown = printed(capsys, *flags, "--use_peft", "false")
    assert status == 1 and shown["advice"] == json.loads(json.dumps(whole.to_dict()["advice"]))
    assert shown["advice"][0]["peak"] == whole.advice[0].plan.peak


def test_a_recipe_and_what_is_said_beside_it(folder, tmp_path, capsys, monkeypatch):
    recipe = tmp_path / "recipe.yaml"
    settings = {"model_name_or_path": folder, "beta": 0.1, "dataset_name": "any", "learning_rate": "1e-6"}
    recipe.write_text(yaml.safe_dump(settings | {"env": {"OF_A_RECIPE": "1"}}), encoding="utf-8")
    found = hf_factuality.plan("fspo", recipe, gpus=4, sharding="zero3", beta=0.0)
    flags = ["--method", "fspo", "--config", str(recipe), "--gpus", "4", "--sharding", "zero3", "--beta", "0.0"]
    assert printed(capsys, *flags)[1] == json.loads(json.dumps(found.to_dict()))
    assert found.model == folder and [one.sharding for one in found.plans] == ["zero3"]
    names = [{term.name for term in one.best.terms} for one in (found, hf_factuality.plan("fspo", str(recipe)))]
    assert ["reference" in each for each in names] == [False, True]
    assert hf_factuality.plan("fspo", recipe, gpus=4, sharding="zero3", beta=0.0, run_name=None) == found
    assert "OF_A_RECIPE" not in os.environ
    monkeypatch.setattr(sys, "argv", [""])  # as in a notebook
    assert hf_factuality.plan("fspo", settings | {"beta": 0.0}, gpus=4, sharding="zero3") == found


def test_the_choices_of_the_command_are_those_of_the_function(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    assert f"{', '.join(METHODS)}, or package.module:Class" in " ".join(capsys.readouterr().out.split())


def test_a_configuration_of_another_package_is_planned_like_its_parent(folder, capsys):
    """F-DPO's classes are in a package that the plan does not import, as a user's are."""
    flags = ("--model", folder, "--gpus", "2", "--bf16", "true", "--max_length", "64", "--factuality_margin", "5")
    _, ours = printed(capsys, "--method", "fdpo", *flags)
    _, own = printed(capsys, "--method", "hf_factuality.methods.fdpo.config:FDPOConfig", *flags)
    assert {**own, "method": "fdpo"} == ours
    with pytest.raises(ValueError, match="GRPOConfig"):
        hf_factuality.plan("transformers:TrainingArguments", model=folder)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "ppo"}, "method 'ppo'.*fspo, rlfh, mask_dpo, fdpo"),
        ({"gpus": 0}, "`gpus` must be positive, got 0"),
        ({"model": None}, "name the model with `model`, or with model_name_or_path in `config`"),
        (
            {"per_devce_train_batch_size": 2},
            "`per_devce_train_batch_size` is no setting.*per_device_train_batch_size?",
        ),
        ({"config": {"num_generation": 4}}, "`num_generation` is no setting of such a training; did you mean num_gen"),
        ({"num_generations": "many"}, "argument --num_generations.*invalid int value: 'many'"),
        ({"sharding": "zero1"}, "sharding='zero1' is unknown"),
        ({"beta": 0.1, "num_generations": 3}, "3"),
    ],
)
def test_what_the_function_refuses(folder, given, said):
    with pytest.raises(ValueError, match=said):
        hf_factuality.plan(**{"method": "fspo", "model": folder, **given})


def test_words_that_are_no_settings(folder, capsys):
    assert main(["plan", "stray", "--method", "fspo", "--model", folder]) == 2
    assert capsys.readouterr().err == "hf-factuality: 'stray' belongs to no flag\n"
    assert main(["plan", "--method", "fspo", "--model", folder, "--learning-rte", "1"]) == 2
    assert capsys.readouterr().err.endswith("is no setting of such a training; did you mean learning_rate?\n")

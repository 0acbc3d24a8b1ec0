"""A closed world of few people, with a model that was hardly trained: the numbers of a run are bad, its path is whole."""

from dataclasses import replace

import pytest

from hf_factuality.demos import closed_world as demo
from hf_factuality.hub.cards.card import validate_card
from hf_factuality.worlds import WorldConfig, WorldModelConfig
from tests.conftest import shared_folder
from tests.test_recipes import load_training


FAST = [
    "--use_cpu", "true", "--bf16", "false", "--gradient_checkpointing", "false", "--report_to", "none", "--logging_steps", "1",
    "--save_strategy", "no", "--dtype", "float32", "--disable_tqdm", "true", "--per_device_train_batch_size", "4",
]  # fmt: skip


def checked_card(folder):
    """Text of the card that a run wrote, which the Hub would take."""
    validate_card(folder, ask_hub=False)
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def run(request):
    """Runs the training that the module of the test is named after."""
    method = request.module.__name__.rpartition(".test_")[2]

    def run(*arguments):
        load_training(method).main([str(argument) for argument in arguments])

    return run


@pytest.fixture(scope="session")
def world_folder(tmp_path_factory):
    return shared_folder(tmp_path_factory, "world", lambda folder: None) / "closed-world"  # built once, under a lock


@pytest.fixture
def small_world(world_folder, monkeypatch):
    """The demos of biographies then run in this world, and name what they would have built; its folder."""
    build = demo.build_world_model

    def small(config, **settings):
        assert config.unknown > 0 and settings["model_config"].questions == 0, "texts that can decline, nothing else"
        model = replace(settings["model_config"], hidden_size=64, intermediate_size=128, num_layers=1, batch_size=16)
        return build(WorldConfig(num_people=16, num_attributes=0), world_folder, model, steps=120, progress=False)

    monkeypatch.setattr(demo, "build_world_model", small)
    monkeypatch.setattr(demo.BiographyDemo, "max_new_tokens", 24)
    return world_folder


@pytest.fixture
def small_questions(tmp_path, monkeypatch):
    """The same for the demo of questions, whose model was not trained at all."""
    build = demo.build_world_model

    def small(**_):
        model = WorldModelConfig(hidden_size=64, intermediate_size=128, num_layers=1, batch_size=4)
        world = WorldConfig(num_people=24, num_attributes=0)
        return build(world, tmp_path / "closed-world", model, steps=2, progress=False)

    monkeypatch.setattr(demo, "build_world_model", small)
    monkeypatch.setattr(demo.ClosedWorldDemo, "max_new_tokens", 16)

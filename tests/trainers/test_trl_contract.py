"""TRL's trainers are private API to a subclass. Every hook that we override is listed here with the signature that we
rely on; this fails first when TRL moves."""

import inspect

import pytest
import trl
from packaging.version import Version
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from tests.tiny import rows
from tests.trainers.recording import SETTINGS


HOOKS = {
    (GRPOTrainer, FactGRPOTrainer): {
        "_calculate_rewards": ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        "_generate_and_score_completions": ["self", "inputs"],
        "create_model_card": ["self", "model_name", "dataset_name", "tags"],
    },
}
# Overridden with another signature on purpose, or new names of ours.
OWN = {"__init__"}


def test_trl_version_is_the_one_these_hooks_were_read_from():
    assert Version("1.16") <= Version(trl.__version__) < Version("1.17")


@pytest.mark.parametrize("parent, child", HOOKS)
def test_hooks_exist_with_the_same_signature(parent, child):
    for name, parameters in HOOKS[parent, child].items():
        assert list(inspect.signature(inspect.unwrap(getattr(parent, name))).parameters) == parameters, name
        assert list(inspect.signature(getattr(child, name)).parameters) == parameters, name


@pytest.mark.parametrize("parent, child", HOOKS)
def test_nothing_else_is_overridden(parent, child):
    overridden = {name for name, value in vars(child).items() if callable(value) and hasattr(parent, name)}
    assert overridden - OWN == set(HOOKS[parent, child])


def test_config_adds_few_fields_with_help():
    own = {
        name: f
        for name, f in FactGRPOConfig.__dataclass_fields__.items()
        if name not in GRPOConfig.__dataclass_fields__
    }
    assert len(own) <= 12
    for name, field in own.items():
        assert field.metadata.get("help"), name
        assert f"{name} (`" in FactGRPOConfig.__doc__, name


def test_the_parent_gathers_rewards_and_marks_unknown_ones_as_nan(tiny_model, tmp_path):
    """`fill_unjudged` runs on what the parent's `_calculate_rewards` returns: None has become NaN by then."""
    args = GRPOConfig(str(tmp_path), **SETTINGS)
    trainer = GRPOTrainer(tiny_model, lambda prompts, **kwargs: [1.0, None] * (len(prompts) // 2), args, rows())
    inputs = [rows()[0]] * 4
    rewards = trainer._calculate_rewards(inputs, ["p"] * 4, ["c"] * 4, [[5]] * 4)
    assert rewards.shape == (4, 1)
    assert rewards[:, 0].isnan().tolist() == [False, True, False, True]

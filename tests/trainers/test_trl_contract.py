"""TRL's trainers are private API to a subclass. Every hook that we override is listed here with the signature that we
rely on; this fails first when TRL moves."""

import inspect

import pytest
import torch
import trl
from packaging.version import Version
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer


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


def test_the_parent_takes_advantages_per_token():
    """The seam that the whole method rests on: `_compute_loss` unsqueezes (B,) and leaves (B, T) alone."""
    source = inspect.getsource(GRPOTrainer._compute_loss)
    assert "if advantages.dim() == 1" in source


def test_unknown_rewards_reach_the_parent_as_nan():
    """`fill_unjudged` runs on what `_calculate_rewards` returns: None has become NaN by then, and rows are gathered."""
    source = inspect.getsource(inspect.unwrap(GRPOTrainer._calculate_rewards))
    assert "torch.nan" in source and "gather(rewards_per_func)" in source
    assert torch.isnan(torch.tensor([float("nan")])).all()

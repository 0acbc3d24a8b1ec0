"""Rollouts with tools: with nothing labelled FactGRPO is GRPO; what tools return carries no label, no loss and no advantage."""

import pytest
import torch
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label, TokenRewardPPOConfig
from tests.conftest import fast_few
from tests.tiny import rows
from tests.trainers.recording import SETTINGS, WholeCompletion, same_to_the_last_bit, vowels
from tests.trainers.tool_rollouts import (
    TEMPLATES,
    FactTools,
    PPOTools,
    StockTools,
    save_tool_model,
    search,
    two_calls,
)


@pytest.fixture(scope="module")
def tool_models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    return {name: save_tool_model(folder / name, name) for name in TEMPLATES}


def letters(prompts, completions, completion_ids, **columns):
    """Differs from completion to completion, by what the policy and the tools said."""
    return [sum(number % 7 for number in ids) / len(ids) for ids in completion_ids]


LONG = {**SETTINGS, "max_completion_length": 300, "max_steps": 2}
WHOLE = {"verify_scope": "completion", "factuality_reward_weight": 0.0}


def run(kind, config, model, folder, template, train=True, data=None, **settings):
    own = {name: settings.pop(name) for name in ("verifier", "tools", "environment_factory", "reward_funcs", "token_reward_funcs", "credit") if name in settings}  # fmt: skip
    args = config(output_dir=str(folder), **{**LONG, **settings})
    own = {"tools": [search], "reward_funcs": letters, **own}
    trainer = kind(model=model, args=args, train_dataset=rows() if data is None else data, **own)
    trainer.script = two_calls(template)
    trainer.skip_padding = False
    if train:
        trainer.train()
    return trainer


@pytest.mark.parametrize("template", fast_few(TEMPLATES, 0))
@pytest.mark.parametrize("loss_type", fast_few(["dapo", "grpo", "bnpo", "cispo"], 0))
def test_with_nothing_labelled_it_is_stock_grpo_over_tools(tool_models, tmp_path, template, loss_type):
    model = tool_models[template]
    stock = run(StockTools, GRPOConfig, model, tmp_path, template, loss_type=loss_type)
    ours = run(FactTools, FactGRPOConfig, model, tmp_path, template, verifier=WholeCompletion(), **WHOLE, loss_type=loss_type)  # fmt: skip
    assert all(a.dim() == 2 for a in ours.advantages)
    assert all((batch["tool_mask"] == 0).any() for batch in stock.batches), "nothing was called"
    assert same_to_the_last_bit(ours, stock) == []

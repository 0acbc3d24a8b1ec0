"""Rollouts with tools: with nothing labelled FactGRPO is GRPO; what tools return carries no label, no loss and no advantage."""

import asyncio
import re
import threading
import time

import pytest
import torch
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label, LabeledSpan, TokenRewardPPOConfig, Verification
from hf_factuality.errors import DataError
from hf_factuality.reading import sentence_offsets
from hf_factuality.spans import BETWEEN
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


LONG = {**SETTINGS, "max_completion_length": 900, "max_steps": 2}
WHOLE = {"verify_scope": "completion", "factuality_reward_weight": 0.0}


def run(kind, config, model, folder, template, train=True, data=None, **settings):
    own = {name: settings.pop(name) for name in ("verifier", "tools", "environment_factory", "reward_funcs", "token_reward_funcs", "credit") if name in settings}  # fmt: skip
    args = config(output_dir=str(folder), **{**LONG, **settings})
    own = {"tools": [search], "reward_funcs": letters, **own}
    trainer = kind(model=model, args=args, train_dataset=rows() if data is None else data, **own)
    trainer.script = two_calls(template)
    trainer.generation_config.max_new_tokens = 16  # of a turn that is sampled
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


class KnowsPoland:
    """Supports sentences of what the evidence names, contradicts those about London, and notes what it was asked."""

    requires_evidence = True

    def __init__(self):
        self.asked = []

    def verify(self, inputs):
        self.asked += inputs
        return [
            Verification(tuple(map(self.label, [item] * 99, sentence_offsets(item.completion)))) for item in inputs
        ]

    def label(self, item, place):
        text = item.completion[slice(*place)]
        known = any(word in passage for passage in item.evidence for word in re.findall(r"[A-Z]\w+", text))
        return LabeledSpan(*place, Label.CONTRADICTED if "London" in text else Label.SUPPORTED if known else Label.UNVERIFIABLE)  # fmt: skip


@pytest.mark.parametrize("template", fast_few(TEMPLATES, 0))
def test_turns_are_judged_by_what_was_known_and_tool_text_by_nothing(tool_models, tmp_path, template):
    verifier = KnowsPoland()
    trainer = run(
        FactTools, FactGRPOConfig, tool_models[template], tmp_path, template, train=False, verifier=verifier,
        verify_scope="answer", factuality_reward_weight=1.0, credit="additive", max_steps=1,
    )  # fmt: skip
    trainer.model.train()
    batch = trainer._generate_and_score_completions([dict(trainer.train_dataset[0])] * 4)
    own, rollout = batch["tool_mask"], trainer._rollouts[0]
    row = "Marie Curie was born in Warsaw."
    said = {item.completion.strip(): item.evidence for item in verifier.asked}
    assert said["Let me look."][0] == row  # of the row alone: nothing had been found
    assert said["It is in Poland [1]."][:3] == ("Warsaw is a town in Poland.", "Nobody lives there.", row)
    last = next(value for text, value in said.items() if text.startswith("Vellin is"))
    assert last[:4] == ("Warsaw is a town in Poland.", "Nobody lives there.", "Vellin is a town in Poland.", row)
    assert not any("search" in text or "town in Poland" in text for text in said), "calls or results were judged"
    text, offsets = rollout.tokens
    assert text.split(BETWEEN)[template == "qwen3.5"].strip() == "Let me look." and "query" not in text
    assert text.count("<think>") == 2 * (template == "qwen3.5")  # that the template opened: tokens of nobody
    # What the policy wrote keeps its characters, and what it did not has none and earns nothing.
    assert len(rollout.turns) == 3 and (own * batch["completion_mask"])[0].sum() == sum(rollout.own)
    for token, (start, end) in enumerate(offsets):
        assert start == end or rollout.own[token]
        if start < end:
            assert (
                trainer._tokenizer.decode(batch["completion_ids"][0, token]).strip()
                in text[max(start - 3, 0) : end + 3]
            )
    assert (
        (own == 0).any() and (batch["advantages"][own == 0] == 0).all() and (batch["advantages"][own == 1] != 0).any()
    )
    labels = {unit.text(text).strip(): unit.label for unit in trainer._judged[0].verification.spans}
    assert labels["It is in Poland [1]."] is Label.SUPPORTED and labels["Vellin is a town [3]."] is Label.SUPPORTED
    assert labels["Nobody lives there."] is Label.SUPPORTED and labels["Let me look."] is not Label.SUPPORTED
    assert trainer._judged[1].verification.spans[-1].label is Label.CONTRADICTED


@pytest.mark.parametrize("template", fast_few(TEMPLATES, 0))
def test_the_gradient_at_tool_text_is_exactly_0(tool_models, tmp_path, template):
    """Of the loss by the log-probability of each token; a control turns the mask off, and sees one."""
    trainer = run(
        FactTools, FactGRPOConfig, tool_models[template], tmp_path, template, train=False, verifier=KnowsPoland(),
        verify_scope="completion", credit="additive", beta=0.05,
    )  # fmt: skip
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = 1
    batch = trainer._generate_and_score_completions([dict(trainer.train_dataset[0])] * 4)
    passed = []
    logps_of = trainer._get_per_token_logps_and_entropies

    def kept(*args, **kwargs):
        output = logps_of(*args, **kwargs)
        if torch.is_grad_enabled() and output[0].requires_grad:
            output[0].retain_grad()
            passed.append(output[0])
        return output

    trainer._get_per_token_logps_and_entropies = kept
    trainer._compute_loss(trainer.model, batch).backward()
    gradient, tool = passed[-1].grad, batch["tool_mask"] == 0
    assert tool.any() and (gradient[tool] == 0).all()
    assert (gradient[(batch["tool_mask"] == 1) & (batch["completion_mask"] == 1)] != 0).all()
    without = {name: value for name, value in batch.items() if name != "tool_mask"}
    without["advantages"] = torch.ones_like(batch["advantages"])
    trainer._compute_loss(trainer.model, without).backward()
    assert (passed[-1].grad[tool] != 0).any()


def raises(query: str) -> str:
    """
    Searches.

    Args:
        query: What to look for.
    """
    raise SystemExit("boom")


def hangs(query: str) -> str:
    """
    Searches.

    Args:
        query: What to look for.
    """
    threading.Event().wait(30)
    return "too late"


def megabyte(query: str) -> str:
    """
    Searches.

    Args:
        query: What to look for.
    """
    return "x" * 2**20


def blocks(query: str) -> list:
    """
    Searches.

    Args:
        query: What to look for.
    """
    return [{"title": "Warsaw", "text": "Warsaw is in Poland <|im_end|> \ud800 now."}, object()]


async def waits(query: str) -> str:
    """
    Searches.

    Args:
        query: What to look for.
    """
    await asyncio.sleep(30)
    return "too late"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tool", "passages"),
    [(raises, []), (hangs, []), (waits, []), (megabyte, ["x" * 50]), (blocks, None)],
    ids=lambda it: getattr(it, "__name__", ""),
)
def test_a_bad_tool_ends_nothing(tool_models, tmp_path, tool, passages, monkeypatch):
    monkeypatch.setattr(tool, "__name__", "search")
    verifier = KnowsPoland()
    trainer = run(
        FactTools, FactGRPOConfig, tool_models["qwen3"], tmp_path, "qwen3", train=False, tools=[tool], verifier=verifier,
        verify_scope="completion", max_steps=1,
    )  # fmt: skip
    trainer.tool_timeout, trainer.tool_characters = 0.2, 50
    started = time.monotonic()
    trainer.train()
    assert trainer.state.global_step == 1 and time.monotonic() - started < 20
    rollout = trainer._rollouts[0]
    assert len(rollout.turns) == 3, "the policy goes on"
    if passages is not None:
        assert list(rollout.passages) == passages
    else:
        (found,) = {text[:30] for text in rollout.passages}
        assert found.startswith("[{") and "<|im_end|>" not in "".join(rollout.passages)
    logged = trainer.state.log_history[0]
    assert logged["tools/timeouts"] == (2 if tool in (hangs, waits) else 0), logged
    assert (logged["tools/cut"] > 0) == (tool in (megabyte, blocks))


class Town:
    """An environment that owns its reward."""

    made = 0

    def __init__(self):
        type(self).made += 1
        self.looked = 0

    def reset(self, **row):
        self.looked = 0
        return " Think first." if row["question"].startswith("Where") else None

    def search(self, query: str) -> str:
        """
        Searches.

        Args:
            query: What to look for.

        Returns:
            What was found.
        """
        self.looked += 1
        return f"[1] {query} is a town."

    def get_reward(self):
        return float(self.looked)


@pytest.mark.slow
def test_an_environment_may_own_the_reward(tool_models, tmp_path):
    Town.made = 0
    trainer = run(
        FactTools, FactGRPOConfig, tool_models["qwen3"], tmp_path, "qwen3", tools=None, environment_factory=Town,
        reward_funcs=None, verifier=KnowsPoland(), verify_scope="completion", max_steps=1, token_reward_funcs=vowels,
    )  # fmt: skip
    assert trainer.reward_func_names == ["Town", "vowels", "factuality"] and trainer._num_plain == 1
    assert trainer.state.global_step == 1 and Town.made == 8  # as many as a generation batch has rollouts
    assert trainer._rewards[0, 0] == 2 and trainer._rewards[1, 0] == 1
    paid, _, _ = trainer._paid(torch.ones(8, max(len(it.own) for it in trainer._rollouts), dtype=torch.bool))
    assert (paid[0][~torch.tensor(trainer._rollouts[0].own + [False] * (paid.size(1) - len(trainer._rollouts[0].own)))] == 0).all()  # fmt: skip


@pytest.mark.slow
def test_ppo_over_tools(tool_models, tmp_path):
    """Values and advantages of tool text are as if it were not there."""
    trainer = run(
        PPOTools, TokenRewardPPOConfig, tool_models["qwen3"], tmp_path, "qwen3", reward_funcs=None, token_reward_funcs=vowels, max_steps=1
    )  # fmt: skip
    assert trainer.state.global_step == 1
    for batch in trainer.batches:
        tool = (batch["tool_mask"] == 0) & (batch["completion_mask"] == 1)
        assert (batch["advantages"][tool] == 0).all() and (batch["returns"][tool] == 0).all()
    assert any(((b["tool_mask"] == 0) & (b["completion_mask"] == 1)).any() for b in trainer.batches)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"generation_chunks": 2}, "generation_chunks=2 with tools"),
        ({"variant": "released"}, "variant='released' with tools"),
        ({"data": rows(conversational=False)}, "prompts of text"),
        ({"rollout_func": lambda prompts, trainer: {}}, "rollout_func"),
        ({"tools": [lambda query: query]}, "has no schema"),
    ],
)
def test_what_tools_do_not_go_with_is_refused(tool_models, tmp_path, settings, said):
    own = {name: settings[name] for name in ("data", "rollout_func", "tools") if name in settings}
    with pytest.raises((ValueError, DataError), match=said):
        args = FactGRPOConfig(
            str(tmp_path), **LONG, **{name: value for name, value in settings.items() if name not in own}
        )
        FactTools(
            model=tool_models["qwen3"], args=args, train_dataset=own.get("data", rows()), reward_funcs=letters,
            **{"tools": [search], **{name: value for name, value in own.items() if name != "data"}},
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", fast_few(["policy", "fact"], 1))
def test_a_resumed_run_is_the_run_that_was_not_stopped(tool_models, tmp_path, name):
    def make(folder, **settings):
        kind, config = (PPOTools, TokenRewardPPOConfig) if name == "policy" else (FactTools, FactGRPOConfig)
        own = {"reward_funcs": None, "token_reward_funcs": vowels} if name == "policy" else {"verifier": KnowsPoland(), "verify_scope": "completion"}  # fmt: skip
        steps = {"max_steps": 2, "num_iterations": 2, "save_strategy": "steps", "save_steps": 1, **settings}
        return run(kind, config, tool_models["qwen3"], tmp_path / folder, "qwen3", train=False, tools=None,
                   environment_factory=Town, **own, **steps)  # fmt: skip

    whole, again = make("whole"), make("again", save_strategy="no")
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)

"""The experiment with tools: a small policy that searches a corpus, arms that differ in what is paid, and what is counted."""

from statistics import fmean

import torch
from harness import Run

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.methods.tools.formula import FAITHRL, citation_figures
from hf_factuality.methods.tools.reward import CitationReward, SearchCost, tool_calls
from hf_factuality.spans import Label
from hf_factuality.worlds.searching import (
    TOKENS,
    SearchWorld,
    SearchWorldConfig,
    SearchWorldVerifier,
    read_statements,
)


SETTINGS = {
    "per_device_train_batch_size": 64, "gradient_accumulation_steps": 1, "num_generations": 8,
    "max_completion_length": TOKENS, "max_tool_calling_iterations": 4, "temperature": 1.0, "beta": 0.0,
    "scale_rewards": "none", "loss_type": "dapo", "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5,
    "verify_scope": "completion", "bf16": False, "gradient_checkpointing": False, "save_strategy": "no",
    "report_to": "none", "logging_steps": 10, "disable_tqdm": True,
}  # fmt: skip


def searched(run: Run) -> SearchWorld:
    return SearchWorld(SearchWorldConfig(seed=run.world.config.seed, split_seed=run.seed))


def policy(world, model):
    """The folder of the policy, whatever the world of the harness is."""
    return SearchWorld(SearchWorldConfig(seed=world.seed)).build_policy()


def outcome_of(world):
    """Share of the two things asked for that the answer gets right; declining is right where nobody can know."""

    def outcome(completion_texts, person, **columns):
        return [fmean(world.right(text, name).values()) for text, name in zip(completion_texts, person, strict=True)]

    return outcome


def make(run, model, rewards, world=None, dataset=None, **settings):
    world = world or searched(run)
    own = {name: settings.pop(name) for name in ("token_reward_funcs", "credit", "eval_dataset") if name in settings}
    args = FactGRPOConfig(
        **{**SETTINGS, "seed": run.seed, "max_steps": run.steps, "use_cpu": not torch.cuda.is_available(),
           "output_dir": str(run.folder), **settings}
    )  # fmt: skip
    return FactGRPOTrainer(
        model, rewards, args, world.questions("train") if dataset is None else dataset, verifier=SearchWorldVerifier(),
        environment_factory=world.environment(run.folder), **own,
    )  # fmt: skip


def arm(*more, support=0.0, credit="none", citations=None, rate=None, **settings):
    """An arm that is paid for right answers, and for more: `support` weighs the labels by what was retrieved."""

    def train(run):
        world = searched(run)
        rewards, paid = [outcome_of(world), *(one() for one in more)], []
        if citations == "end":
            rewards.append(CitationReward(SearchWorldVerifier(), at="end"))
        elif citations:
            paid.append(CitationReward(SearchWorldVerifier()))
        trainer = make(
            run, str(run.model_dir), rewards, world, factuality_reward_weight=support, credit=credit,
            token_reward_funcs=paid, learning_rate=rate or run.condition, **settings,
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train


def arms(rates):
    """All arms, at these learning rates by name, or the condition."""
    return {
        "outcome": arm(rate=rates.get("outcome")),
        "outcome + support": arm(support=1.0, credit="flip", rate=rates.get("outcome + support")),
        "... + citations at the end": arm(
            support=1.0, credit="flip", citations="end", rate=rates.get("... + citations at the end")
        ),
        "... + citations at the statement": arm(
            support=1.0, credit="to_go", citations="statement", rate=rates.get("... + citations at the statement")
        ),
        "... and a price for searches": arm(
            SearchCost, support=1.0, credit="to_go", citations="statement",
            rate=rates.get("... and a price for searches"),
        ),
        "FaithRL's rewards": arm(support=1.0, credit=FAITHRL, rate=rates.get("FaithRL's rewards")),
    }  # fmt: skip


def test_sets(run):
    return {"held-out": searched(run).questions("test")}


FIGURES = (
    "right", "supported", "citation_recall", "citation_precision", "calls", "declined", "idle_calls", "cites_all",
    "cites_missing",
)  # fmt: skip


def measured(run, dataset, found):
    """Figures of rollouts with the tool, on people held out.

    `right`: share of what was asked that is right, declining where nobody can know included. `supported`: share of what is
    stated that passages of the rollout support. `citation_recall` and `citation_precision`: see `citation_figures`. `calls`: per
    rollout. `declined`: share of what was asked. `idle_calls`: share of the calls that show no new passage. `cites_all`: share of
    the statements with three citations or more; `cites_missing`: with one of a passage that is not there.
    """
    world, rows = searched(run), []

    def record(completions, completion_texts, person, retrieved, verifications, environments, question, **columns):
        citing = CitationReward(SearchWorldVerifier()).statements(
            completion_texts, {"retrieved": retrieved, "question": question}
        )
        rows.extend(zip(completions, completion_texts, person, retrieved, verifications, citing, strict=True))
        return [0.0] * len(completions)

    trainer = make(
        run, run.model, [record], world, eval_dataset=dataset, factuality_reward_weight=0.0, credit="none",
        num_generations_eval=1, per_device_eval_batch_size=75, eval_strategy="no",
    )  # fmt: skip
    trainer.evaluate()
    stated = [span for *_, checked, _ in rows for span in checked.spans if span.label is not Label.NO_FACT]
    cited = [it for *_, own in rows for it in own]
    calls = [len(tool_calls(completion)) for completion, *_ in rows]
    new = [len(_batches(completion)) for completion, *_ in rows]
    declined = [
        sum(it.value is None for it in read_statements(text)) / 2 for _, text, *_ in rows
    ]
    return {
        "right": fmean(fmean(world.right(text, name).values()) for _, text, name, *_ in rows),
        "supported": fmean(span.label is Label.SUPPORTED for span in stated) if stated else None,
        **{f"citation_{name}": value for name, value in citation_figures(cited).items()},
        "calls": fmean(calls),
        "declined": fmean(declined),
        "idle_calls": 1 - sum(new) / sum(calls) if sum(calls) else None,
        "cites_all": fmean(len(it.exist) >= 3 for it in cited) if cited else None,
        "cites_missing": fmean(not all(it.exist) for it in cited) if cited else None,
        "rollouts": len(rows),
    }


def _batches(completion):
    """Results of tools that show a passage which none before them showed."""
    seen, found = set(), []
    for message in completion:
        lines = {line for line in str(message["content"]).splitlines() if line.startswith("[")}
        if message["role"] == "tool" and lines - seen:
            found.append(lines - seen)
            seen |= lines
    return found

"""The experiment with tools: a small policy that searches a corpus, arms that differ in what is paid, and what is counted."""

import torch
from datasets import concatenate_datasets
from harness import Run
from transformers import AutoTokenizer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.demos.searching import measure_rollouts, search_figures
from hf_factuality.methods.faithrl.formula import FAITHRL
from hf_factuality.methods.tools.reward import CitationReward, DecliningReward, SearchCost
from hf_factuality.worlds.searching import TOKENS, SearchWorld, SearchWorldConfig, SearchWorldVerifier


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


def make(run, rewards, world, **settings):
    own = {name: settings.pop(name) for name in ("token_reward_funcs", "credit")}
    args = FactGRPOConfig(
        **{**SETTINGS, "seed": run.seed, "max_steps": run.steps, "use_cpu": not torch.cuda.is_available(),
           "output_dir": str(run.folder), **settings}
    )  # fmt: skip
    return FactGRPOTrainer(
        str(run.model_dir), rewards, args, world.questions("train"), verifier=SearchWorldVerifier(),
        environment_factory=world.environment(run.folder), **own,
    )  # fmt: skip


def arm(*more, support=0.0, credit="none", citations=None, rate=None, **settings):
    """An arm that is paid for right answers, and for more: `support` weighs the labels by what was retrieved."""

    def train(run):
        world = searched(run)
        rewards, paid = [world.outcome, *(one() for one in more)], []
        if citations == "end":
            rewards.append(CitationReward(SearchWorldVerifier(), at="end"))
        elif citations:
            paid.append(CitationReward(SearchWorldVerifier()))
        trainer = make(
            run, rewards, world, factuality_reward_weight=support, credit=credit,
            token_reward_funcs=paid, learning_rate=rate or run.condition, **settings,
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train


def arms(rate=None):
    """All arms, at this learning rate, or the condition."""
    return {
        "outcome": arm(rate=rate),
        "outcome + support": arm(support=1.0, credit="flip", rate=rate),
        "... + citations at the statement": arm(support=1.0, credit="to_go", citations="statement", rate=rate),
        "... + citations at the end": arm(support=1.0, credit="flip", citations="end", rate=rate),
        "... and a price for searches": arm(
            SearchCost, support=1.0, credit="to_go", citations="statement", rate=rate
        ),
        "outcome + declining": arm(DecliningReward, rate=rate),
        "FaithRL's rewards": arm(support=1.0, credit=FAITHRL, rate=rate),
    }  # fmt: skip


def test_sets(run):
    """Five rollouts to every question."""
    return {"held-out": concatenate_datasets([searched(run).questions("test")] * 5)}


FIGURES = (
    "right", "supported", "citation_recall", "citation_precision", "calls", "declined", "idle_calls", "cites_all",
    "cites_missing",
)  # fmt: skip


def measured(run, dataset, found):
    """Figures of rollouts with the tool, on people held out."""
    world, tokenizer = searched(run), AutoTokenizer.from_pretrained(run.model_dir)
    return search_figures(
        measure_rollouts(run.model, tokenizer, world, world.environment(run.folder), dataset, run.seed)
    )

"""Training of the RLFH experiment: biographies, paid for by one reward at several granularities, by PPO and by GRPO."""

import torch
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.rewards import RLFHReward
from hf_factuality.worlds import WorldConfig, WorldModelConfig, WorldVerifier
from hf_factuality.worlds.lm import has_bfloat16


# The base of `hf-factuality train rlfh`: it has read nothing but biographies.
WORLD = WorldConfig(num_people=400)
MODEL = WorldModelConfig(
    hidden_size=128, intermediate_size=352, num_layers=3, steps=900, questions=0.0, short_answers=0.0
)
SETTINGS = {
    "per_device_train_batch_size": 64, "gradient_accumulation_steps": 2, "lr_scheduler_type": "constant_with_warmup",
    "warmup_steps": 5, "temperature": 1.0, "beta": 0.01,
    "bf16": torch.cuda.is_available() or has_bfloat16(), "gradient_checkpointing": False,
    "save_strategy": "no", "report_to": "none", "logging_steps": 10, "disable_tqdm": True,
}  # fmt: skip
MAX_TOKENS = 110
MAPS = "readme"


def reward(world, granularity="token"):
    """RLFH's, by the oracle; a fact that is said again is rated 1, for which the maps take something off."""
    return RLFHReward(WorldVerifier(world, count_repeats=True), MAPS, granularity, repeats="every")


def biographies(run):
    """200 people who are never asked about in training."""
    return {"held-out": run.world.biographies("test")}


def total_rewards(world, texts, **columns):
    """The sum of all that an answer earns, whatever the granularity."""
    earned = reward(world)(texts, completion_texts=list(texts), **columns)
    return [sum(value for _, _, value in points) for points in earned]


def measured_reward(run, rows, found):
    """Mean reward of an answer on held-out people."""
    rewards = total_rewards(run.world, found.completions, **{name: rows[name] for name in rows.column_names})
    return {"reward": sum(rewards) / len(rewards)}


def _settings(run, settings):
    return {
        **SETTINGS, "max_completion_length": MAX_TOKENS, **settings, "output_dir": str(run.folder), "seed": run.seed,
        "max_steps": run.steps, "use_cpu": not torch.cuda.is_available(),
    }  # fmt: skip


def ppo(granularity, learning_rate, **settings):
    """An arm with PPO that pays at this granularity."""

    def train(run):
        own = {"learning_rate": learning_rate, "critic_learning_rate": 3e-4, "lam": 0.95, **settings}
        trainer = TokenRewardPPOTrainer(
            str(run.model_dir), reward(run.world, granularity),
            args=TokenRewardPPOConfig(**_settings(run, own)), train_dataset=run.world.biographies("train"),
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train


def grpo(learning_rate, **settings):
    """An arm with TRL's GRPO, 8 answers per person, paid with the sum."""

    def train(run):
        def rlfh(completions, completion_ids, **columns):
            texts = [message[0]["content"] for message in completions]
            names = run.world.biographies("train", 1).column_names
            return total_rewards(run.world, texts, **{name: columns[name] for name in names if name in columns})

        own = {"learning_rate": learning_rate, "num_generations": 8, **settings}
        trainer = GRPOTrainer(
            str(run.model_dir), rlfh, GRPOConfig(**_settings(run, own)), run.world.biographies("train")
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train

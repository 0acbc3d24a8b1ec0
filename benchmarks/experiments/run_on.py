"""Why PPO's answers grow to the limit: the critic's warm-up, lambda, the shift of whitening, and a penalty for answers that are cut."""

from _credit import BIOGRAPHIES, biography_arm
from _rlfh import MAX_TOKENS, MODEL, biographies, measured_reward, ppo
from harness import BIOGRAPHY_FIGURES, Experiment
from transformers import AutoTokenizer


def measure(run, rows, found):
    """The reward, and the share of answers that were cut at the limit."""
    tokenizer = AutoTokenizer.from_pretrained(run.model_dir)
    ids = tokenizer(found.completions, add_special_tokens=False)["input_ids"]
    return {**measured_reward(run, rows, found), "at_limit": sum(len(one) >= MAX_TOKENS for one in ids) / len(ids)}


SETTINGS = {"critic_learning_rate": 3e-4}

EXPERIMENT = Experiment(
    title="Why PPO runs on",
    arms={
        "PPO": ppo("token", 3e-4),
        "lambda 1": ppo("token", 3e-4, lam=1.0),
        "warm-up 10": ppo("token", 3e-4, freezing_actor_steps=10),
        "critic 1e-3": ppo("token", 3e-4, critic_learning_rate=1e-3),
        "warm-up 10, critic 1e-3": ppo("token", 3e-4, critic_learning_rate=1e-3, freezing_actor_steps=10),
        "warm-up 10, critic 1e-3, lambda 1": ppo(
            "token", 3e-4, critic_learning_rate=1e-3, freezing_actor_steps=10, lam=1.0
        ),
        "penalty 1": ppo("token", 3e-4, missing_eos_penalty=1.0),
        "GRPO": biography_arm(learning_rate=3e-4),
    },
    baseline="PPO",
    steps=60,
    world=BIOGRAPHIES,
    model=MODEL,
    modes={"T=1": 1.0},
    test_sets=biographies,
    measure=measure,
    figures=("reward", "at_limit", "precision", *BIOGRAPHY_FIGURES),
    max_new_tokens=MAX_TOKENS,
)

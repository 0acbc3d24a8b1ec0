"""Training of the credit experiments: one reward per world, paid for in many ways, by GRPO's engine and by PPO."""

from dataclasses import replace

import _fspo
import _rlfh
import torch
from datasets import concatenate_datasets

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.functional import TERNARY_VALUES, judged_units
from hf_factuality.reading.scopes import scope_ranges
from hf_factuality.rewards import answer_reward
from hf_factuality.verifiers import VerifierInput
from hf_factuality.worlds import WorldVerifier


# Biographies: simple sentences, and three in ten that join two or three facts.
BIOGRAPHIES = replace(_rlfh.WORLD, compound=0.3)


def sampled(test_sets):
    """Five answers to every prompt: with one, what is drawn hides most of what the credits differ in."""
    return lambda run: {name: concatenate_datasets([rows] * 5) for name, rows in test_sets(run).items()}


def _shared(run):
    # TRL saves nothing here, and every arm draws the same prompts for a seed.
    return {
        "output_dir": str(run.folder),
        "seed": run.seed,
        "max_steps": run.steps,
        "use_cpu": not torch.cuda.is_available(),
    }


def biography_arm(credit="none", **settings):
    """FactGRPO on RLFH's reward, which is a token reward function; the credits by labels read the same oracle."""

    def train(run):
        world = run.world
        labels = credit in ("flip", "additive", "scaled")
        args = FactGRPOConfig(
            **{**_rlfh.SETTINGS, "max_completion_length": _rlfh.MAX_TOKENS, "num_generations": 8, **settings, **_shared(run)},
            credit=credit, factuality_reward_weight=0.0, verify_scope="completion",
        )  # fmt: skip
        trainer = FactGRPOTrainer(
            str(run.model_dir), None, args, world.biographies("train"), token_reward_funcs=_rlfh.reward(world),
            verifier=WorldVerifier(world) if labels else None,
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train


def chain_reward(world, granularity="token"):
    """Mean factuality of the reasoning as a token reward function: each sentence pays its part where it ends."""
    verifier = WorldVerifier(world, True)

    def factuality(completion_texts, question, think_opened, **columns):
        inputs = [VerifierInput(*both) for both in zip(completion_texts, question, strict=True)]
        judged = zip(inputs, think_opened, verifier.verify(inputs), strict=True)
        return [_chain_points(item.completion, opened, found, granularity) for item, opened, found in judged]

    return factuality


def _chain_points(text, opened, found, granularity):
    units = judged_units(found) if scope_ranges(text, "think", opened) else ()
    points = [(unit.start, unit.end, TERNARY_VALUES[unit.label] / len(units)) for unit in units]
    if granularity == "token" or not points:
        return points
    return [(0, len(text), sum(value for *_, value in points))]


def chain_ppo(granularity, **settings):
    """PPO: sentences pay where they end (or all at the end), the answer at the end."""

    def train(run):
        own = {**_fspo.SETTINGS, "per_device_train_batch_size": 64, "gradient_accumulation_steps": 2,
               "max_completion_length": _fspo.max_tokens(run), "beta": 0.0, "lam": 0.95, **settings}  # fmt: skip
        trainer = TokenRewardPPOTrainer(
            str(run.model_dir), chain_reward(run.world, granularity), answer_reward(),
            TokenRewardPPOConfig(**own, **_shared(run)), run.world.questions("train", hops=_fspo.hops(run)),
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train


def chain_arm(credit="none", **settings):
    return _fspo.arm(credit=credit, **settings)


GRPO = "GRPO, summed reward"
# Three tries for every arm: learning rates, and what else it has; all granularities of PPO have what is best for tokens.
BIOGRAPHY_RATES, CHAIN_RATES = (2e-4, 4e-4, 8e-4), (4e-4, 8e-4, 1.6e-3)
_CREDITS = {
    GRPO: "none", "FSPO": "flip", "additive": "additive", "scaled": "scaled", "process": "process",
    "own": "own", "to_go": "to_go", "gae": "gae", "signed_gae": "signed_gae",
}  # fmt: skip
_PPO = {"PPO, token": "token", "PPO, response": "paragraph", "PPO, sentence": "sentence"}


def _tries(credit, rates):
    low, middle, high = rates
    if credit in ("additive", "scaled", "own"):
        own = ((low, {"credit_scale": 0.5}), (middle, {"credit_scale": 0.5}), (middle, {"credit_scale": 1.0}))
    elif credit in ("gae", "signed_gae"):
        first = (middle, high) if rates == CHAIN_RATES else (low, middle)
        own = (*((rate, {"credit_scale": 0.95}) for rate in first), (first[1], {"credit_scale": 0.98}))
    elif credit == "ppo":
        critic = {"critic_learning_rate": 1e-3, "freezing_actor_steps": 5}
        own = tuple((rate, {**critic, "lam": lam}) for rate, lam in ((middle, 1.0), (middle, 0.95), (high, 0.95)))
    else:
        own = tuple((rate, {}) for rate in rates)
    return [{"learning_rate": rate, **settings} for rate, settings in own]


def biography_tries():
    """Name of an arm -> its tries."""
    found = {n: [biography_arm(c, **own) for own in _tries(c, BIOGRAPHY_RATES)] for n, c in _CREDITS.items()}
    return found | {
        n: [_rlfh.ppo(where, **own) for own in _tries("ppo", BIOGRAPHY_RATES)] for n, where in _PPO.items()
    }


def chain_tries():
    found = {n: [chain_arm(c, **own) for own in _tries(c, CHAIN_RATES)] for n, c in _CREDITS.items()}
    ppo = {
        name: where for name, where in _PPO.items() if name != "PPO, sentence"
    }  # a sentence is a token's reward here
    return found | {n: [chain_ppo(where, **own) for own in _tries("ppo", CHAIN_RATES)] for n, where in ppo.items()}


def tuned(tries):
    """Arms of a tuning experiment: `own 2` is the third try of `own`."""
    own = {name: found for name, found in tries.items() if name not in ("PPO, sentence", "PPO, response")}
    return {f"{name} {number}": train for name, found in own.items() for number, train in enumerate(found)}


def chosen(tries, numbers):
    """Arms of the report; every granularity of PPO has the number of `PPO, token`."""
    return {name: found[numbers.get("PPO, token" if name in _PPO else name, 0)] for name, found in tries.items()}

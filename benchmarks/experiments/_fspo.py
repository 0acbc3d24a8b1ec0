"""Training of the FSPO experiments: FactGRPO on questions, with the oracle as it is, with errors, or misplaced."""

import random
import re
from dataclasses import replace

import torch

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.rewards import answer_reward
from hf_factuality.worlds import NoisyVerifier, WorldVerifier
from hf_factuality.worlds.lm import has_bfloat16


SETTINGS = {
    "per_device_train_batch_size": 128, "learning_rate": 2e-4,
    "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 5, "temperature": 1.0, "beta": 0.0,
    "bf16": torch.cuda.is_available() or has_bfloat16(),
    "gradient_checkpointing": False, "save_strategy": "no", "report_to": "none", "logging_steps": 10,
    "disable_tqdm": True,
}  # fmt: skip
_TOKEN = re.compile(r"\s*(?:\w+|[^\w\s])")


class DriftingVerifier:
    """Places labels as counting tokens does where the token between two sentences is not counted.

    Each sentence's label comes one token too early for every sentence before it.
    """

    requires_evidence = False

    def __init__(self, verifier):
        self.verifier = verifier

    def verify(self, inputs):
        return [
            replace(found, spans=tuple(_moved(item.completion, found.spans)))
            for item, found in zip(inputs, self.verifier.verify(inputs), strict=True)
        ]


def _moved(text, spans):
    tokens = [match.span() for match in _TOKEN.finditer(text)]
    for number, span in enumerate(spans):
        inside = [i for i, (start, end) in enumerate(tokens) if start < span.end and end > span.start]
        if number and inside:
            first, last = max(inside[0] - number, 0), max(inside[-1] - number, 0)
            span = replace(span, start=tokens[first][0], end=tokens[last][1])
        yield span


def condition(run, name, default):
    return (run.condition or {}).get(name, default)


def hops(run):
    return condition(run, "hops", 2)


def answers(run):
    """The answer reward, of which a share is turned around at random under the condition `wrong_answers`."""
    reward, share, rng = answer_reward(), condition(run, "wrong_answers", 0.0), random.Random(run.seed)

    def answer(prompts, completions, **columns):
        return [1.0 - s if rng.random() < share else s for s in reward(prompts, completions, **columns)]

    return answer


def max_tokens(run):
    """A sentence of a chain takes up to 8 tokens, tags and answer 6, a filling sentence 8."""
    return 18 + 9 * hops(run)


def questions(run):
    """300 questions about held-out people, and 300 of those trained on."""
    return {
        "held-out": run.world.questions("test", 300, hops(run)),
        "trained": run.world.questions("train", 300, hops(run)),
    }


def arm(drift=False, relevant_only=True, errors=0.0, formula=None, rollout=None, **settings):
    """An arm with these fields of [`FactGRPOConfig`], whose judge errs in this share of its verdicts on facts; `formula` is a
    credit, and `rollout` makes a `rollout_func`."""

    def train(run):
        oracle = WorldVerifier(run.world, relevant_only)
        verifier = NoisyVerifier(oracle, errors, errors, run.seed) if errors else oracle
        args = FactGRPOConfig(
            **{**SETTINGS, "max_completion_length": max_tokens(run), **settings},
            num_generations=condition(run, "samples", 8), output_dir=str(run.folder), seed=run.seed,
            max_steps=run.steps, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = FactGRPOTrainer(
            str(run.model_dir), answers(run), args, run.world.questions("train", hops=hops(run)),
            verifier=DriftingVerifier(verifier) if drift else verifier, credit=formula,
            rollout_func=rollout and rollout(),
        )  # fmt: skip
        trainer.train()
        return trainer.model

    return train

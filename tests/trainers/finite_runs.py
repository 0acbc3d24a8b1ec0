"""Runs that meet a number that is not finite, after a first step that is sound.

On two processes (`tests.processes`) the number is met by the second one only, and the last run's error ends both.
"""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import math
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, MaskDPOConfig, MaskDPOTrainer, TokenRewardPPOConfig
from hf_factuality.errors import NonFiniteError
from tests.tiny import letters_reward, rows
from tests.trainers.mask_dpo_recording import SETTINGS as DPO_SETTINGS
from tests.trainers.mask_dpo_recording import pairs
from tests.trainers.recording import SETTINGS, WholeCompletion
from tests.trainers.token_reward_ppo_oracle import SETTINGS as PPO_SETTINGS
from tests.trainers.token_reward_ppo_oracle import GivenCompletions, completions


class Weights(TrainerCallback):
    """Those after the last step that was taken."""

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.kept = {name: p.detach().clone() for name, p in self.parameters()}

    def moved(self):
        return [name for name, p in self.parameters() if not torch.equal(p, self.kept[name])]

    def parameters(self):
        yield from self.trainer.model.named_parameters()
        yield from getattr(self.trainer, "critic", torch.nn.Module()).named_parameters("critic")


def poisoned(parameter):
    """0, with a gradient that is not a number."""
    return (parameter.sum() * 0.0).sqrt()


class Spoilt:
    """`fault` names what is not finite once `at_step` steps have been taken, on the processes of `ranks`."""

    fault, at_step, ranks = "", 1, (0, 1)

    def due(self, fault):
        return self.fault == fault and self.state.global_step >= self.at_step and self.args.process_index in self.ranks

    def _compute_loss(self, model, inputs, *args):
        loss = super()._compute_loss(model, inputs, *args)
        if self.due("gradient"):
            loss = loss + poisoned(next(self.model.parameters()))
        # The second micro-batch of the step; the first has left its gradients.
        self.calls = getattr(self, "calls", 0) + 1
        return loss * math.nan if self.due("loss") and self.calls % 2 == 0 else loss


class SpoiltGRPO(Spoilt, FactGRPOTrainer):
    pass


class SpoiltDPO(Spoilt, MaskDPOTrainer):
    pass


class SpoiltPPO(Spoilt, GivenCompletions):
    def _values(self, *args):
        values = super()._values(*args)
        return values + math.inf if self.due("value") and not torch.is_grad_enabled() else values

    def _critic_loss(self, *args):
        loss = super()._critic_loss(*args)
        if self.due("critic's gradient"):
            loss = loss + poisoned(next(self.critic.parameters()))
        return loss * math.nan if self.due("critic's loss") else loss


FAULTS = [("grpo", "reward"), ("grpo", "loss"), ("grpo", "gradient"), ("dpo", "loss"), ("dpo", "gradient"),
          ("ppo", "reward"), ("ppo", "number"), ("ppo", "span"), ("ppo", "value"), ("ppo", "loss"),
          ("ppo", "critic's loss"), ("ppo", "critic's gradient")]  # fmt: skip


def make(kind, fault, model, folder, ranks=(0, 1)):
    def answer(prompts, completions, **kwargs):
        values = letters_reward(prompts, completions)
        return [math.inf, *values[1:]] if trainer.due("reward") else values

    def token_rewards(completion_ids, **kwargs):
        found = [[0.1 * (token % 3) for token in ids] for ids in completion_ids]
        if trainer.due("number"):
            found[-1][0] = math.nan
        if trainer.due("span"):
            found[0] = [(0, 1, -math.inf)]
        return found

    if kind == "grpo":
        settings = {**SETTINGS, "per_device_train_batch_size": 2, "verify_scope": "completion", "num_iterations": 1}
        args = FactGRPOConfig(str(folder), **settings)
        trainer = SpoiltGRPO(model, answer, args, rows(), verifier=WholeCompletion())
    elif kind == "dpo":
        trainer = SpoiltDPO(model, args=MaskDPOConfig(str(folder), **DPO_SETTINGS), train_dataset=pairs())
    else:
        args = TokenRewardPPOConfig(str(folder), **{**PPO_SETTINGS, "per_device_train_batch_size": 2})
        trainer = SpoiltPPO(model, token_rewards, answer, args, rows())
        trainer.given = completions(trainer.processing_class)
    trainer.fault, trainer.ranks = fault, ranks
    trainer.weights = Weights()
    trainer.weights.trainer = trainer
    trainer.add_callback(trainer.weights)
    return trainer


def main():
    torch.set_num_threads(1)
    model, folder = sys.argv[1:]
    for number, (kind, fault) in enumerate(FAULTS):
        trainer = make(kind, fault, model, Path(folder) / str(number), ranks=(1,))
        try:
            trainer.train()
        except NonFiniteError as error:
            # Into files: the lines of two processes on one pipe run into each other.
            path = Path(folder) / str(number) / f"stopped{trainer.args.process_index}.txt"
            path.write_text(f"{trainer.weights.moved()} {error}")
            if number == len(FAULTS) - 1:
                raise

"""Token reward PPO on given completions, on several processes (`tests.processes`); each writes the weights it ends with."""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import sys
from pathlib import Path

import torch

from hf_factuality import TokenRewardPPOConfig
from tests.tiny import rows
from tests.trainers.token_reward_ppo_oracle import SETTINGS, TEXTS, GivenCompletions, completions


SIZE = 4  # of the generation batch, over all processes


def numbers(completion_ids, **kwargs):
    """A number per token; of the completion that begins with "Not" nothing is known."""
    return [None if len(ids) == 4 else [(token % 5) / 4 - 0.4 for token in ids] for ids in completion_ids]


def run(model, folder, critic, checkpointing, processes, deepspeed=None, resumes=False):
    """Weights of policy and critic after three steps, each as one dict, and the log; `resumes` from the second."""
    settings = {
        **SETTINGS, "critic_model": critic, "gradient_checkpointing": checkpointing, "max_steps": 3,
        "per_device_train_batch_size": SIZE // processes, "num_iterations": 3, "beta": 0.05,
        # Adam's first steps are signs of gradients, and the sign of a rounding error is anything: not with this.
        "adam_epsilon": 0.1, "learning_rate": 0.1, "critic_learning_rate": 0.1, "lr_scheduler_type": "constant",
        "deepspeed": deepspeed, "save_strategy": "steps", "save_steps": 2,
    }  # fmt: skip
    trainer = GivenCompletions(model, numbers, None, TokenRewardPPOConfig(str(folder), **settings), rows())
    trainer.given = completions(trainer.processing_class, TEXTS[:SIZE])
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2") if resumes else None)
    trainer.save_model()
    critic = {
        name: getattr(p.detach(), "_local_tensor", p.detach()).cpu().clone()
        for name, p in trainer.critic.named_parameters()
    }
    policy = {name: p.detach().cpu().clone() for name, p in trainer.model.named_parameters()}
    return policy, critic, [entry for entry in trainer.state.log_history if "value/loss" in entry]


def main():
    torch.set_num_threads(1)
    model, folder, critic, checkpointing, *deepspeed = sys.argv[1:]
    config = deepspeed[0] if deepspeed else None
    if config:
        # On CPUs the arguments set up torch's processes only, and DeepSpeed would take each for the only one.
        from deepspeed import init_distributed

        init_distributed("gloo")
    resumes = (Path(folder) / "rank0.pt").exists()
    found = run(model, Path(folder), critic, checkpointing == "on", int(os.environ["WORLD_SIZE"]), config, resumes)
    torch.save(found, Path(folder) / f"rank{os.environ['RANK']}{'-resumed' * resumes}.pt")
    torch.distributed.destroy_process_group()

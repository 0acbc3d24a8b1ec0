"""Learned ratios on several processes (`tests.processes`); each writes its logits and what it logged."""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import sys
from pathlib import Path

import torch

from tests.methods.averaging.test_trainer import make


SIZE = 8  # of a batch, over all processes


def run(folder, out, checkpointing, processes):
    trainer = make(
        (folder / "before", folder / "after"), out, gradient_checkpointing=checkpointing, penalty_coef=0.01,
        per_device_train_batch_size=SIZE // processes // 2, gradient_accumulation_steps=2, save_strategy="steps", save_steps=2,
        adam_epsilon=0.1, weight_decay=0.0,
    )  # fmt: skip
    trainer.train()
    trainer.save_model()
    return trainer._logits.detach().clone(), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def main():
    torch.set_num_threads(1)
    folder, checkpointing = Path(sys.argv[1]), sys.argv[2] == "on"
    found = run(folder, folder / "two", checkpointing, int(os.environ["WORLD_SIZE"]))
    torch.save(found, folder / f"rank{os.environ['RANK']}.pt")
    torch.distributed.destroy_process_group()

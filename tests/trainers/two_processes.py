"""Run by torchrun: stock GRPO and FactGRPO with nothing labelled, on two processes; exits with an error if they differ.

torchrun --nproc_per_node=2 -m tests.trainers.two_processes grpo dapo
"""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import sys
import tempfile

import torch
from accelerate import PartialState
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, Label
from tests.tiny import letters_reward, rows
from tests.trainers.recording import SETTINGS, FactGRPO, StockGRPO, WholeCompletion, same_to_the_last_bit


# Groups of 4 over two processes with 2 rows each: every group is split across them.
DISTRIBUTED = {**SETTINGS, "per_device_train_batch_size": 2}


def run(trainer_class, config_class, model, folder, loss_type, **extra):
    own = {"verify_scope": "completion", "factuality_reward_weight": 0.0} if config_class is FactGRPOConfig else {}
    args = config_class(output_dir=folder, loss_type=loss_type, **DISTRIBUTED, **own)
    trainer = trainer_class(model=model, reward_funcs=letters_reward, args=args, train_dataset=rows(), **extra)
    trainer.train()
    return trainer


def main():
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    assert state.num_processes == 2, f"needs two processes, got {state.num_processes}"
    with tempfile.TemporaryDirectory() as folder:
        model, *loss_types = sys.argv[1:]
        for loss_type in loss_types:
            stock = run(StockGRPO, GRPOConfig, model, folder, loss_type)
            ours = run(FactGRPO, FactGRPOConfig, model, folder, loss_type, verifier=WholeCompletion())
            differences = same_to_the_last_bit(ours, stock)
            # The control: all contradicted, so every token of a better-than-average completion turns its sign.
            control = run(
                FactGRPO, FactGRPOConfig, model, folder, loss_type,
                verifier=WholeCompletion(lambda number, item: Label.CONTRADICTED),
            )  # fmt: skip
            if "losses" not in same_to_the_last_bit(control, stock):
                differences.append("the control is equal too")
            print(f"rank {state.process_index} {loss_type}: {differences or 'identical'}", flush=True)
            if differences:
                sys.exit(1)
            state.wait_for_everyone()
    state.destroy_process_group()


if __name__ == "__main__":
    main()

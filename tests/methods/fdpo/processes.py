"""`main` compares stock DPO with FDPO without flip and margin on two processes (`tests.processes`); an error if they differ."""

import sys

import torch
from accelerate import PartialState
from datasets import load_from_disk

from tests.methods.fdpo.test_trainer import FDPO, MIXED, labelled, run
from tests.trainers.mask_dpo_recording import VARIANTS
from tests.trainers.recording import StockDPO, same_to_the_last_bit


def main():
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    assert state.num_processes == 2, f"needs two processes, got {state.num_processes}"
    model, folder, *variants = sys.argv[1:]
    # On disk: the cache of reference log-probabilities is written by one process and read by both.
    if state.is_main_process:
        labelled(MIXED).save_to_disk(f"{folder}/data")
    state.wait_for_everyone()
    data = load_from_disk(f"{folder}/data")
    for variant in variants:
        stock = run(StockDPO, model, folder, data, **VARIANTS[variant])
        differences = same_to_the_last_bit(
            run(FDPO, model, folder, data, factuality_margin=0.0, **VARIANTS[variant]), stock
        )
        control = run(FDPO, model, folder, data, factuality_margin=1e-3, **VARIANTS[variant])
        # The gradients are those of both processes.
        if not [name for name in same_to_the_last_bit(control, stock) if name.startswith("gradient")]:
            differences.append("the control is equal too")
        print(f"rank {state.process_index} {variant}: {differences or 'identical'}", flush=True)
        if differences:
            sys.exit(1)
        state.wait_for_everyone()
    state.destroy_process_group()

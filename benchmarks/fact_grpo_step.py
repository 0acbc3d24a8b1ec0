"""Time of a FactGRPO step over a stock GRPO step, and what verification costs.

    python benchmarks/fact_grpo_step.py --repeats 16

Both train the closed world's model with learning rate 0 and the same seed, so both generate the same completions and do
the same work. Short runs alternate, and each pair gives one ratio, of wall time and of processor time: where a machine is
shared its speed drifts from minute to minute. The first step of a run (memory, caches) is left out.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.rewards import answer_reward
from hf_factuality.worlds import WorldVerifier, build_world_model, load_world


class Clock(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, *args, **kwargs):
        self.ends.append((time.perf_counter(), time.process_time()))

    def total(self, kind: int) -> float:
        """Seconds from the end of the first step to the end of the last; `kind` 0 is wall time, 1 processor time."""
        return self.ends[-1][kind] - self.ends[0][kind]


def run(trainer_class, config_class, model_dir, dataset, seed, steps, batch_size, **extra):
    with tempfile.TemporaryDirectory() as folder:
        args = config_class(
            folder, learning_rate=0.0, max_steps=steps + 1, per_device_train_batch_size=batch_size, num_generations=8,
            max_completion_length=48, logging_steps=1, seed=seed, bf16=False, gradient_checkpointing=False,
            report_to="none", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        clock = Clock()
        trainer = trainer_class(str(model_dir), answer_reward(), args, dataset, callbacks=[clock], **extra)
        with contextlib.redirect_stdout(None):
            trainer.train()
    logged = [
        entry["factuality/verify_seconds"] for entry in trainer.state.log_history if "step_time" in entry and extra
    ]
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "step_time" in entry]
    return clock, logged[1:], lengths


def summary(values):
    return {
        "mean": statistics.mean(values),
        "sd": statistics.stdev(values),
        "median": statistics.median(values),
        "values": values,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=16)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model_dir = build_world_model(size="demo")
    world = load_world(model_dir)
    dataset = world.questions("train")
    settings = (model_dir, dataset)
    found = {"wall": [], "processor": [], "verification": []}
    torch.set_num_threads(1)
    for seed in range(args.repeats):
        runs = {}
        # Which one goes first alternates, so that a drift of the machine's speed favours neither.
        for name in ("stock", "ours") if seed % 2 else ("ours", "stock"):
            classes = (FactGRPOTrainer, FactGRPOConfig) if name == "ours" else (GRPOTrainer, GRPOConfig)
            extra = {"verifier": WorldVerifier(world)} if name == "ours" else {}
            runs[name] = run(*classes, *settings, seed, args.steps, args.batch_size, **extra)
        (stock, _, lengths), (ours, verification, our_lengths) = runs["stock"], runs["ours"]
        assert lengths == our_lengths, "both must generate the same completions"
        for kind, name in enumerate(("wall", "processor")):
            found[name].append((ours.total(kind) - sum(verification)) / stock.total(kind))
        found["verification"].append(sum(verification) / stock.total(0))
    names = {
        "wall": "step over stock step, verification excluded, wall time",
        "processor": "step over stock step, verification excluded, processor time",
        "verification": "verification over stock step",
    }
    result = {names[name]: summary(values) for name, values in found.items()}
    for name, value in result.items():
        print(
            f"{name}: mean {value['mean']:.4f}, sd {value['sd']:.4f}, median {value['median']:.4f} (n={args.repeats})"
        )
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

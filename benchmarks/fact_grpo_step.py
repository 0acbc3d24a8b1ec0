"""Time of a FactGRPO step over a stock GRPO step, and what verification costs.

    python benchmarks/fact_grpo_step.py --repeats 5

Both train the closed world's model with learning rate 0 and the same seed, so both generate the same completions and do
the same work. Runs alternate, and each pair gives one ratio: these machines are shared. The first step of a run (memory,
caches) is left out.
"""

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path


os.environ.setdefault("CI", "1")

from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.rewards import answer_reward
from hf_factuality.worlds import WorldVerifier, build_world_model, load_world


class Clock(TrainerCallback):
    def __init__(self):
        self.ends = []

    def on_step_end(self, *args, **kwargs):
        self.ends.append(time.perf_counter())

    @property
    def steps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.ends, self.ends[1:], strict=False)]


def run(trainer_class, config_class, model_dir, dataset, seed, steps, batch_size, **extra):
    with tempfile.TemporaryDirectory() as folder:
        args = config_class(
            folder, learning_rate=0.0, max_steps=steps + 1, per_device_train_batch_size=batch_size, num_generations=8,
            max_completion_length=48, logging_steps=1, seed=seed, bf16=False, gradient_checkpointing=False,
            report_to="none", save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        clock = Clock()
        trainer = trainer_class(str(model_dir), answer_reward(), args, dataset, callbacks=[clock], **extra)
        trainer.train()
    logged = [
        entry["factuality/verify_seconds"] for entry in trainer.state.log_history if "step_time" in entry and extra
    ]
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "step_time" in entry]
    return clock.steps, logged[1:], lengths


def summary(values):
    return {"mean": statistics.mean(values), "sd": statistics.stdev(values), "values": values}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    model_dir = build_world_model()
    world = load_world(model_dir)
    dataset, ratios, shares = world.questions("train"), [], []
    settings = (model_dir, dataset)
    for seed in range(args.repeats):
        ours = (FactGRPOTrainer, FactGRPOConfig)
        runs = {}
        # Which one goes first alternates, so that a drift of the machine's speed favours neither.
        for name in ("stock", "ours") if seed % 2 else ("ours", "stock"):
            classes = ours if name == "ours" else (GRPOTrainer, GRPOConfig)
            extra = {"verifier": WorldVerifier(world)} if name == "ours" else {}
            runs[name] = run(*classes, *settings, seed, args.steps, args.batch_size, **extra)
        assert runs["stock"][2] == runs["ours"][2], "both must generate the same completions"
        verification = sum(runs["ours"][1])
        stock, fact = sum(runs["stock"][0]), sum(runs["ours"][0])
        ratios.append((fact - verification) / stock)
        shares.append(verification / stock)
        print(f"seed {seed}: step ratio {ratios[-1]:.3f}, verification {shares[-1]:.4f} of a stock step", flush=True)
    result = {"step_ratio_without_verification": summary(ratios), "verification_over_stock_step": summary(shares)}
    for name, value in result.items():
        print(f"{name}: {value['mean']:.4f} (sd {value['sd']:.4f}, n={args.repeats})")
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

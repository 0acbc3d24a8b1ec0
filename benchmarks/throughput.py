"""Tokens a second of the three trainers over completion length and batch size, and what a step consists of.

    PYTHONPATH=. python benchmarks/throughput.py --out outputs/throughput.json --image docs/images/throughput.png

A model of random weights, the closed world's prompts and verifier, completions as long as the limit. A step is split into
generate, verify (verifier and rewards), passes (old and reference log-probabilities, old values), credit (from rewards and
labels to advantages) and update; MaskDPO's has an update only. The runs of all settings alternate, the first step of each is
left out, and the figures are medians over the repeats: on a shared machine compare them within one run.
"""

import argparse
import contextlib
import json
import os
import platform
import statistics
import tempfile
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
from _lengths import draw_lengths, save_random_model
from datasets import Dataset
from fact_grpo_step import Clock
from transformers import AutoTokenizer

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.rewards import RLFHReward, answer_reward
from hf_factuality.worlds import WorldVerifier


METHODS = {"fspo": "FactGRPO", "rlfh": "TokenRewardPPO", "mask_dpo": "MaskDPO"}


class Parts(Clock):
    """Beside the steps' parts, the parent's passes apart from our credit."""

    parts = {"_generate": "generate", "_calculate_rewards": "verify", "_generate_and_score_completions": "credit",
             "_get_per_token_logps_and_entropies": "passes", "_old_values": "passes", "training_step": "update"}  # fmt: skip

    def watch(self, trainer):
        self.inside = []
        for method, name in self.parts.items():
            if hasattr(trainer, method):
                setattr(trainer, method, self._timed(getattr(trainer, method), name))

    def _timed(self, method, name):
        timed = super()._timed(method, name)

        def run(*args, **kwargs):
            if name == "passes" and self.inside[-1:] != ["credit"]:  # of the loss
                return method(*args, **kwargs)
            self.inside.append(name)
            try:
                return timed(*args, **kwargs)
            finally:
                self.inside.pop()

        return run


def pairs(tokenizer, length) -> Dataset:
    """Pairs whose completions are as long as the limit, every token labelled."""
    word = tokenizer.decode(max(tokenizer.get_vocab().values()))
    text = f"{word} " * (2 * length)
    answer = [{"role": "assistant", "content": text}]
    row = {"prompt": [{"role": "user", "content": word}], "chosen": answer, "rejected": answer}
    for side, label in (("chosen", "supported"), ("rejected", "contradicted")):
        row[f"{side}_spans"] = [{"start": 0, "end": len(text), "label": label}]
    return Dataset.from_list([row] * 256)


def run(method, folder, world, length, batch, args):
    with tempfile.TemporaryDirectory() as out:
        shared = {
            "output_dir": out, "max_steps": args.steps + 1, "per_device_train_batch_size": batch, "learning_rate": 0.0,
            "gradient_accumulation_steps": args.accumulation, "report_to": "none", "save_strategy": "no", "beta": 0.05,
            "disable_tqdm": True, "bf16": torch.cuda.is_available(), "gradient_checkpointing": False,
            "use_cpu": not torch.cuda.is_available(),
        }  # fmt: skip
        clock, model = Parts(), str(folder)
        if method == "mask_dpo":
            dataset = pairs(AutoTokenizer.from_pretrained(folder), length)
            config = MaskDPOConfig(**shared, max_length=length + 16)
            trainer = MaskDPOTrainer(model, args=config, train_dataset=dataset, callbacks=[clock])
        else:
            shared["max_completion_length"] = length
            questions = world.questions("train")
            if method == "fspo":
                config = FactGRPOConfig(**shared, num_generations=batch, verify_scope="completion")
                trainer = FactGRPOTrainer(
                    model, answer_reward(), config, questions, verifier=WorldVerifier(world), callbacks=[clock]
                )
            else:
                reward = RLFHReward(WorldVerifier(world), "readme")
                trainer = TokenRewardPPOTrainer(
                    model, reward, args=TokenRewardPPOConfig(**shared), train_dataset=questions, callbacks=[clock]
                )
            draw_lengths(trainer.model, trainer.processing_class.eos_token_id, length, "equal", 0)
        clock.watch(trainer)
        with contextlib.redirect_stdout(None):
            trainer.train()
    spent, seconds = clock.shares(), clock.total(0)
    # A pair has two completions.
    tokens = args.steps * args.accumulation * batch * length * (2 if method == "mask_dpo" else 1)
    return tokens / seconds, {name: value / seconds for name, value in spent.items()}


def plot(rows, path, device) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, len(METHODS), figsize=(12, 7))
    for column, (method, name) in enumerate(METHODS.items()):
        own = [row for row in rows if row["method"] == method]
        above, below = axes[:, column]
        for batch in sorted({row["batch_size"] for row in own}):
            points = [(row["length"], row["tokens_per_second"]) for row in own if row["batch_size"] == batch]
            above.plot(*zip(*points, strict=True), marker="o", label=f"batch size {batch}")
        above.set(title=name, xlabel="tokens of a completion", xscale="log", ylim=(0, None))
        above.minorticks_off()
        above.set_xticks(sorted({row["length"] for row in own}), sorted({row["length"] for row in own}))
        above.legend()
        largest = [row for row in own if row["batch_size"] == max(each["batch_size"] for each in own)]
        bottom = [0.0] * len(largest)
        for part in largest[0]["parts"]:
            heights = [row["parts"][part] for row in largest]
            below.bar([str(row["length"]) for row in largest], heights, bottom=bottom, label=part)
            bottom = [one + other for one, other in zip(bottom, heights, strict=True)]
        below.set(xlabel=f"tokens of a completion, batch size {largest[0]['batch_size']}", ylim=(0, 1))
    axes[0, 0].set_ylabel("completion tokens per second")
    axes[1, 0].set_ylabel("share of a step")
    figure.suptitle(f"A step of each trainer, {device}")
    figure.legend(*axes[1, 0].get_legend_handles_labels(), loc="lower center", ncols=len(largest[0]["parts"]))
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256])
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True, help="JSON to write to")
    parser.add_argument("--image", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"one core ({platform.machine()})"
    settings = [(method, length, batch) for method in METHODS for length in args.lengths for batch in args.batch_sizes]
    found = {setting: [] for setting in settings}
    with tempfile.TemporaryDirectory() as folder:
        world = save_random_model(folder)
        for repeat in range(args.repeats):
            for setting in settings if repeat % 2 else settings[::-1]:
                found[setting].append(run(setting[0], folder, world, *setting[1:], args))
                print(*setting, f"{found[setting][-1][0]:.0f} tokens/s", flush=True)
    rows = []
    for (method, length, batch), runs in found.items():
        parts = {part: statistics.median(split[part] for _, split in runs) for part in runs[0][1]}
        total = sum(parts.values())
        rows.append({
            "method": method, "length": length, "batch_size": batch,
            "tokens_per_second": statistics.median(speed for speed, _ in runs),
            "all": [speed for speed, _ in runs], "parts": {part: value / total for part, value in parts.items()},
        })  # fmt: skip
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"device": device, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    if args.image:
        plot(rows, args.image, device)


if __name__ == "__main__":
    main()

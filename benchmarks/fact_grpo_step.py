"""Time of a FactGRPO step over a stock GRPO step, generation included, and what its parts take.

    python benchmarks/fact_grpo_step.py --lengths lognormal --trl /tmp/trl-1.12
    python benchmarks/fact_grpo_step.py --lengths equal
    PYTHONPATH=. python benchmarks/fact_grpo_step.py --model HuggingFaceTB/SmolLM2-135M-Instruct --batch_size 8 --accumulation 1 \
        --memory_repeats 2

With `--model` both train that model on the questions of `hf-factuality train rtuning --demo real`, and ours judges with the
lexical verifier.

Both train a model of random weights with learning rate 0 and the same seed on the closed world's questions. How long a
completion is is drawn, the same for both: log-normally with a mean of a quarter of the limit, as in reasoning data, or all
as long as the limit. Both trainers of a pair live in one process and take their steps in turns, since the speed of a shared
machine drifts within seconds, and each pair gives one ratio, of wall time and of processor time. The first step of a run
(memory, caches) is left out. With `--memory_repeats` each of the two also trains alone in a process, and the peaks are
compared. With `--trl`, the folder of TRL 1.12 (see `ppo_step.py`), TokenRewardPPO against the last PPOTrainer of TRL too, for
the same lengths.
"""

import argparse
import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
from _lengths import draw_lengths, save_random_model
from _peaks import peak_ratios, print_peak, resident, summary
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.demos.real_model import FACTS
from hf_factuality.io.rows import read_rows
from hf_factuality.rewards import answer_reward
from hf_factuality.verifiers import LexicalVerifier
from hf_factuality.worlds import WorldVerifier


class Clock(TrainerCallback):
    """Seconds of each step, and of its parts: whole methods of the trainer, less those that they call and that are parts too."""

    parts = {"_generate": "generate", "_calculate_rewards": "verify and reward", "_generate_and_score_completions": "old and "
             "reference passes", "training_step": "update"}  # fmt: skip

    def __init__(self):
        self.ends, self.spent, self.inner, self.away = [], [], [], lambda: None

    def watch(self, trainer):
        for method, name in self.parts.items():
            setattr(trainer, method, self._timed(getattr(trainer, method), name))

    def _timed(self, method, name):
        def run(*args, **kwargs):
            started = time.perf_counter()
            self.inner.append(0.0)
            try:
                return method(*args, **kwargs)
            finally:
                whole = time.perf_counter() - started
                self.spent[-1][name] = self.spent[-1].get(name, 0.0) + whole - self.inner.pop()
                if self.inner:
                    self.inner[-1] += whole

        return run

    def on_step_begin(self, *args, **kwargs):
        self.spent.append({})

    def on_step_end(self, *args, **kwargs):
        end = time.perf_counter(), time.process_time()
        self.away()
        self.ends.append((end, (time.perf_counter(), time.process_time())))

    def total(self, kind: int) -> float:
        """Seconds of the steps after the first; `kind` 0 is wall time, 1 processor time."""
        return sum(end[kind] - start[kind] for (_, start), (end, _) in zip(self.ends, self.ends[1:], strict=False))

    def shares(self) -> dict[str, float]:
        """Seconds of each part, and of what is none of them, after the first step."""
        found = {name: sum(spent.get(name, 0.0) for spent in self.spent[1:]) for name in self.parts.values()}
        return found | {"rest": self.total(0) - sum(found.values())}


def in_turns(runs: dict, first: str) -> dict:
    """The results of two functions, which get one to call whenever it is the other's turn."""
    turns = {name: threading.Semaphore(0) for name in runs}

    def take(name):
        (other,) = set(runs) - {name}

        def away():
            turns[other].release()
            turns[name].acquire()

        turns[name].acquire()
        try:
            return runs[name](away)
        finally:
            turns[other].release()

    with ThreadPoolExecutor(len(runs), initializer=torch.set_num_threads, initargs=(1,)) as pool:
        found = {name: pool.submit(take, name) for name in runs}
        turns[first].release()
        return {name: future.result() for name, future in found.items()}


def run(trainer_class, config_class, model_dir, dataset, seed, args, away, **extra):
    with tempfile.TemporaryDirectory() as folder:
        config = config_class(
            folder, learning_rate=0.0, max_steps=args.steps + 1, per_device_train_batch_size=args.batch_size,
            gradient_accumulation_steps=args.accumulation, num_generations=8, max_completion_length=args.limit,
            logging_steps=1, seed=seed, bf16=torch.cuda.is_available(), gradient_checkpointing=False, report_to="none", save_strategy="no",
            disable_tqdm=True, beta=0.05,
        )  # fmt: skip
        clock = Clock()
        clock.away = away
        trainer = trainer_class(str(model_dir), answer_reward(), config, dataset, callbacks=[clock], **extra)
        clock.watch(trainer)
        draw_lengths(trainer.model, trainer.processing_class.eos_token_id, args.limit, args.lengths, seed)
        trainer.train()
    lengths = [entry["completions/mean_length"] for entry in trainer.state.log_history if "step_time" in entry]
    return clock, lengths


def real_questions():
    """Questions for facts of Wikidata, with a sentence that states the fact as evidence."""
    rows = [row for _, row in read_rows(FACTS) if row["split"] == "train"]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": row["question"]}],
                "question": row["question"],
                "answer": row["answer"],
                "data_source": "contained",
                "evidence": [f"{row['question']} The answer is {row['answer']}."],
            }
            for row in rows
        ]
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", choices=["lognormal", "equal"], default="lognormal")
    parser.add_argument("--limit", type=int, default=128, help="most tokens of a completion")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--accumulation", type=int, default=8)
    parser.add_argument("--model", help="id or folder of a real model")
    parser.add_argument(
        "--memory_repeats", type=int, default=0, help="with --model: processes of either, for their peaks"
    )
    parser.add_argument(
        "--memory_of", choices=["stock", "ours"], help="only train one arm and print the peak of this process"
    )
    parser.add_argument("--trl", type=Path, help="folder that TRL 1.12.0 was installed into; PPO is compared too")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if (args.memory_repeats or args.memory_of) and not args.model:
        parser.error("--memory_repeats needs --model")
    found, parts = {"wall": [], "processor": []}, {"stock": [], "ours": []}
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if args.model:
            model, dataset, verifier = args.model, real_questions(), LexicalVerifier()
        else:
            world = save_random_model(folder)
            model, dataset, verifier = folder, world.questions("train"), WorldVerifier(world)
        classes = {"stock": (GRPOTrainer, GRPOConfig), "ours": (FactGRPOTrainer, FactGRPOConfig)}
        extra = {"stock": {}, "ours": {"verifier": verifier}}
        if args.memory_of:
            before = resident()
            with contextlib.redirect_stdout(sys.stderr):
                run(*classes[args.memory_of], model, dataset, 0, args, lambda: None, **extra[args.memory_of])
            print_peak(before)
            return
        for seed in range(args.repeats):
            runs = {name: partial(run, *classes[name], model, dataset, seed, args, **extra[name]) for name in classes}
            with contextlib.redirect_stdout(None):
                # Who goes first alternates, so that a drift of the machine's speed favours neither.
                runs = in_turns(runs, first=("ours", "stock")[seed % 2])
            (stock, lengths), (ours, our_lengths) = runs["stock"], runs["ours"]
            assert lengths == our_lengths, "both must generate completions of the same lengths"
            for kind, name in enumerate(("wall", "processor")):
                found[name].append(ours.total(kind) / stock.total(kind))
            for name, (clock, _) in runs.items():
                parts[name].append({part: value / stock.total(0) for part, value in clock.shares().items()})
    result = {f"FactGRPO's step over stock GRPO's, {name} time": summary(values) for name, values in found.items()}
    if args.memory_repeats:
        names = ("lengths", "limit", "steps", "batch_size", "accumulation")
        options = [word for name in names for word in (f"--{name}", str(getattr(args, name)))]
        peaks, of_stock = peak_ratios(__file__, args.model, options, args.memory_repeats)
        result |= {f"FactGRPO's {name} over stock GRPO's": summary(values) for name, values in peaks.items()}
        print(f"MiB of stock GRPO: {of_stock:.0f}")
    for name in runs:
        for part in parts[name][0]:
            label = f"share of a stock step, {'FactGRPO' if name == 'ours' else 'stock GRPO'}: {part}"
            result[label] = summary([spent[part] for spent in parts[name]])
    for name, value in result.items():
        print(
            f"{name}: mean {value['mean']:.4f}, sd {value['sd']:.4f}, median {value['median']:.4f} (n={len(value['values'])})"
        )
    if args.trl:
        import ppo_step

        ppo = ["--trl", str(args.trl), "--lengths", args.lengths, "--repeats", str(args.repeats), "--updates", str(args.steps),
               "--batch_size", str(args.batch_size), "--accumulation", str(args.accumulation), "--length", str(args.limit)]  # fmt: skip
        result["TokenRewardPPO over TRL's PPO"] = ppo_step.main(ppo)
    if args.out:
        args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

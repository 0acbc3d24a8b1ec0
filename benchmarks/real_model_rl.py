"""What GRPO with rewards for declining, and DPO on pairs of answers, do to a real model that has learnt to answer and to decline.

The questions, the seeds and the figures are those of `real_model.py`. Half of the questions for training teach the form by SFT:
gold answers to those of which a model that was trained on the other half is surest, refusals to the others. GRPO goes on from
there with the other half, each question eight times, and reads the gold answers alone. DPO goes on with pairs of eight answers to
each of these questions: a right one before one that declines, and that before a wrong one.

    PYTHONPATH=. python benchmarks/real_model_rl.py --seeds 100 101 102 --out outputs/real-model

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace
from typing import Any


os.environ.setdefault("CI", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from real_model import (
    FACTS,
    REFUSAL,
    arguments,
    asked,
    divided,
    figures,
    fold,
    gold_rows,
    perplexity,
    print_table,
    surest,
    trained,
    with_prompt,
)  # fmt: skip
from transformers import AutoTokenizer

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.data.sampling import TransformersSampler
from hf_factuality.demos.real_model import find_model
from hf_factuality.generation import SamplingConfig
from hf_factuality.io.rows import read_rows
from hf_factuality.methods import FDPOConfig, FDPOTrainer
from hf_factuality.rewards import AbstentionReward, answer_outcome
from hf_factuality.trainers.lm_head import score_labelled_positions_on_cpus


# Arm -> reward of GRPO.
GRPO = {"binary": "binary", "threshold .25": "target-0.25", "ternary": "truthrl"}
# Arm -> margin of F-DPO; with 0 it is DPO, since no pair prefers a wrong answer.
DPO = {"DPO": 0.0, "F-DPO": 10.0}
ARMS = ("SFT on half", *GRPO, *DPO)
SHARE = 0.6  # of the questions that are answered in SFT, as in `real_model.py`
ORDER = ("correct", "refused", "wrong")
LORA = LoraConfig(r=16, lora_alpha=32, target_modules=r".*layers\.2[0-9]\..*_proj", task_type="CAUSAL_LM")
PLAIN = {
    "bf16": False, "gradient_checkpointing": False, "logging_steps": 1, "report_to": "none", "save_strategy": "no", "disable_tqdm": True,
    "model_init_kwargs": {"dtype": "float32"},
}  # fmt: skip


def set_up(seed: int, out: Path) -> SimpleNamespace:
    """The model and the questions of a seed. `known` and `tested` are answers of a model that was trained on `halves[1]`: to
    `halves[0]`, and to the test."""
    torch.set_num_threads(1)
    score_labelled_positions_on_cpus()
    model, folder = find_model(), out / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    everything = [row for _, row in read_rows(FACTS)]
    base = asked(model, everything, out / "base.json")
    rows = divided(everything, seed)
    test = [row for row in rows if row["split"] != "train"]
    training = [with_prompt(row) for row in rows if row["split"] == "train"]
    known, tested = fold(model, training, test, folder, seed, 0)
    halves = [[row for row in training if (row["id"] in known) is side] for side in (True, False)]
    tokenizer = AutoTokenizer.from_pretrained(model)
    return SimpleNamespace(
        model=model,
        folder=folder,
        base=base,
        test=test,
        known=known,
        tested=tested,
        halves=halves,
        tokenizer=tokenizer,
    )


def answered(
    folder: Path, name: str, test: list[dict], tune: Callable[[Path], str], **how: Any
) -> tuple[dict[str, dict], float]:
    """Answers to the test, and the perplexity, of the model that `tune` makes, which is not kept; those of an earlier run if it
    came so far. `how`: as of `asked`."""
    path, done, place = folder / f"{name}.json", folder / f"{name}.perplexity", folder / name.replace(" ", "-")
    if not done.exists():  # written last
        path.unlink(missing_ok=True)
        tuned = tune(place)
        asked(tuned, test, path, **how)
        done.write_text(str(perplexity(tuned)))
        shutil.rmtree(place, ignore_errors=True)  # half a gigabyte; what others go on from lies elsewhere
    return json.loads(path.read_text()), float(done.read_text())


def by_split(test: list[dict]) -> list[tuple[str, list[dict]]]:
    return [(where, [row for row in test if row["split"] == where]) for where in ("test", "other_relation")]


def warm_model(model: str, halves: list[list[dict]], known: dict[str, dict], folder: Path, seed: int) -> str:
    """A folder of the model after SFT on the first half of the questions."""
    place = folder / "warm"
    if not (place / "done").exists():
        at = surest(known, SHARE)
        rows = [row if known[row["id"]]["sure"] >= at else row | {"answer": REFUSAL} for row in halves[0]]
        trained(model, gold_rows(rows), place, seed)
        (place / "done").touch()
    return str(place)


def reinforced(
    model: str, rows: list[dict], folder: Path, seed: int, rewards: Any, args: argparse.Namespace, **more: Any
) -> str:
    """A folder of the model after GRPO on the rows, with more settings."""
    settings = {
        "per_device_train_batch_size": 32, "gradient_accumulation_steps": 2, "num_generations": 8, "max_completion_length": 16,
        "temperature": 1.0, "beta": 0.0, "learning_rate": args.learning_rate, "num_train_epochs": args.epochs,
        "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 3, "credit": "none", "factuality_reward_weight": 0.0,
    }  # fmt: skip
    config = FactGRPOConfig(str(folder), seed=seed, **PLAIN | settings | more)
    data = Dataset.from_list([{"prompt": row["prompt"], "answer": row["answer"]} for row in rows])
    return finished(FactGRPOTrainer(model, rewards, config, data, verifier=None, peft_config=LORA), folder)


def pairs(model: str, rows: list[dict], path: Path, seed: int) -> list[dict]:
    """Of each kind of two outcomes that occur among eight answers to a question a pair, the better one first."""
    if not path.exists():
        how = SamplingConfig(temperature=1.0, top_k=0, max_new_tokens=16, num_samples=8)
        sampler = TransformersSampler(model, config=how, model_kwargs={"dtype": "float32"})
        drawn = sampler.sample([row["prompt"] for row in rows], seed)
        path.write_text(json.dumps([[one.text for one in own] for own in drawn]))
    outcome = answer_outcome(tags=False)
    found = []
    for row, texts in zip(rows, json.loads(path.read_text()), strict=True):
        outcomes = outcome(texts, prompts=None, answer=[row["answer"]] * len(texts))
        first = {kind: texts[outcomes.index(kind)] for kind in ORDER if kind in outcomes}
        for good, bad in combinations([kind for kind in ORDER if kind in first], 2):
            sides = {
                side: [{"role": "assistant", "content": first[kind]}]
                for side, kind in (("chosen", good), ("rejected", bad))
            }
            labels = {f"{side}_hallucinated": kind == "wrong" for side, kind in (("chosen", good), ("rejected", bad))}
            found.append({"prompt": row["prompt"], **sides, **labels})
    return found


def preferring(model: str, rows: list[dict], folder: Path, seed: int, arm: str, args: argparse.Namespace) -> str:
    """A folder of the model after DPO on pairs of its own answers to the rows."""
    config = FDPOConfig(
        str(folder), factuality_margin=DPO[arm], beta=0.1, per_device_train_batch_size=16, num_train_epochs=2,
        learning_rate=args.dpo_learning_rate, lr_scheduler_type="cosine", warmup_steps=0.1, seed=seed, **PLAIN,
    )  # fmt: skip
    data = Dataset.from_list(pairs(model, rows, folder.parent / "pairs.json", seed))
    return finished(FDPOTrainer(model, args=config, train_dataset=data, peft_config=LORA), folder)


def finished(trainer, folder: Path) -> str:
    """Train, and save log and model."""
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "loss" in entry]
    (folder.parent / f"{folder.name}.log.json").write_text(json.dumps(log, indent=1))
    trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
    return str(folder)


def run(seed: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    own = set_up(seed, args.out)
    results = {}
    for arm in args.arms:

        def tune(place: Path, arm: str = arm) -> str:
            warm = warm_model(own.model, own.halves, own.known, own.folder, seed)
            if arm in GRPO:
                return reinforced(warm, own.halves[1], place, seed, AbstentionReward(GRPO[arm], tags=False), args)
            return preferring(warm, own.halves[1], place, seed, arm, args) if arm in DPO else warm

        found, level = answered(own.folder, f"rl {arm}", own.test, tune)
        for where, rows in by_split(own.test):
            results[f"{arm} | {where}"] = {**figures(rows, found, own.base, own.tokenizer), "perplexity": level}
    return results


def main() -> None:
    parser = arguments(__doc__, ARMS)
    parser.add_argument("--epochs", type=float, default=0.5)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--dpo_learning_rate", type=float, default=3e-4)
    args = parser.parse_args()
    print_table(args.arms, [run(seed, args) for seed in args.seeds])


if __name__ == "__main__":
    main()

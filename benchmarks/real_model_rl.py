"""What GRPO with rewards for declining does to a real model that has learnt to answer and to decline.

The questions, the seeds and the figures are those of `real_model.py`. Half of the questions for training teach the form by SFT:
gold answers to those of which a model that was trained on the other half is surest, refusals to the others. GRPO goes on from
there with the other half, each question eight times, and reads the gold answers alone.

    PYTHONPATH=. python benchmarks/real_model_rl.py --seeds 100 101 102 --out outputs/real-model

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
from datasets import Dataset
from peft import LoraConfig
from real_model import (
    FACTS,
    REFUSAL,
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
from hf_factuality.demos.real_model import find_model
from hf_factuality.io.rows import read_rows
from hf_factuality.rewards import AbstentionReward
from hf_factuality.trainers.lm_head import score_labelled_positions_on_cpus


# Arm -> reward and credit.
ARMS = {
    "SFT on half": None,
    "binary": ("binary", "none"),
    "ternary": ("truthrl", "none"),
    "threshold .75": ("target-0.75", "none"),
    "ternary, gae": ("truthrl", "gae"),
}
SHARE = 0.6  # of the questions that are answered in SFT, as in `real_model.py`
UPPER_LAYERS = r".*layers\.2[0-9]\..*_proj"


def warm_model(model: str, halves: list[list[dict]], known: dict[str, dict], folder: Path, seed: int) -> str:
    """A folder of the model after SFT on the first half of the questions."""
    place = folder / "warm"
    if not (place / "done").exists():
        at = surest(known, SHARE)
        rows = [row if known[row["id"]]["sure"] >= at else row | {"answer": REFUSAL} for row in halves[0]]
        trained(model, gold_rows(rows), place, seed)
        (place / "done").touch()
    return str(place)


def reinforced(model: str, rows: list[dict], folder: Path, seed: int, arm: str, args: argparse.Namespace) -> str:
    """A folder of the model after GRPO on the rows."""
    reward, credit = ARMS[arm]
    config = FactGRPOConfig(
        str(folder), credit=credit, factuality_reward_weight=0.0, per_device_train_batch_size=32, gradient_accumulation_steps=2,
        num_generations=8, max_completion_length=16, learning_rate=args.learning_rate, lr_scheduler_type="constant_with_warmup",
        warmup_steps=3, num_train_epochs=args.epochs, temperature=1.0, beta=0.0, seed=seed, bf16=False,
        gradient_checkpointing=False, logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True,
        model_init_kwargs={"dtype": "float32"}, **({"credit_scale": 0.95} if credit == "gae" else {}),
    )  # fmt: skip
    data = Dataset.from_list([{"prompt": row["prompt"], "answer": row["answer"]} for row in rows])
    lora = LoraConfig(r=16, lora_alpha=32, target_modules=UPPER_LAYERS, task_type="CAUSAL_LM")
    trainer = FactGRPOTrainer(
        model, AbstentionReward(reward, tags=False), config, data, verifier=None, peft_config=lora
    )
    trainer.train()
    log = [entry for entry in trainer.state.log_history if "reward" in entry]
    (folder.parent / f"{folder.name}.log.json").write_text(json.dumps(log, indent=1))
    trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
    return str(folder)


def run(seed: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    score_labelled_positions_on_cpus()
    model, folder = find_model(), args.out / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer, everything = AutoTokenizer.from_pretrained(model), [row for _, row in read_rows(FACTS)]
    base = asked(model, everything, args.out / "base.json")
    rows = divided(everything, seed)
    test = [row for row in rows if row["split"] != "train"]
    training = [with_prompt(row) for row in rows if row["split"] == "train"]
    known, _ = fold(model, training, test, folder, seed, 0)
    halves = [[row for row in training if (row["id"] in known) is side] for side in (True, False)]
    results = {}
    for arm in args.arms:
        name = f"rl {arm}{args.tag}"
        path, done = folder / f"{name}.json", folder / f"{name}.perplexity"
        if not done.exists():
            path.unlink(missing_ok=True)
            warm = warm_model(model, halves, known, folder, seed)
            place = folder / name.replace(" ", "-")
            tuned = warm if ARMS[arm] is None else reinforced(warm, halves[1], place, seed, arm, args)
            asked(tuned, test, path)
            done.write_text(str(perplexity(tuned)))
            if ARMS[arm] is not None:
                shutil.rmtree(place)  # half a gigabyte
        found = json.loads(path.read_text())
        for where in ("test", "other_relation"):
            own = [row for row in test if row["split"] == where]
            results[f"{arm} | {where}"] = {
                **figures(own, found, base, tokenizer),
                "perplexity": float(done.read_text()),
            }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--tag", default="", help="added to the names of files, for other settings")
    parser.add_argument("--out", type=Path, default=Path("outputs/real-model"))
    args = parser.parse_args()
    print_table(args.arms, [run(seed, args) for seed in args.seeds])


if __name__ == "__main__":
    main()

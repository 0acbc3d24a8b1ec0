"""What rewards of a stated confidence do to a real model: RLCR, DCPO and, beside them, GRPO that pays right answers alone.

The questions and the figures are those of `real_model.py`. A model that learnt gold answers to half of the questions for training
answers the other half. SFT teaches these answers, each with a number: the share of right ones in its third, by how sure that model
is. GRPO goes on from there with the other questions, each eight times.

    PYTHONPATH=. python benchmarks/real_model_confidence.py --seeds 101 102 103 --out outputs/real-model

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
from datasets import Dataset
from real_model import FACTS, asked, divided, figures, fold, perplexity, print_table, trained, with_prompt
from real_model_rl import reinforced
from transformers import AutoTokenizer

from hf_factuality.demos.real_model import find_model
from hf_factuality.functional.answers import contained_match
from hf_factuality.io.rows import read_rows
from hf_factuality.metrics import compute
from hf_factuality.reading import extract_answer, stated_confidence
from hf_factuality.rewards import AbstentionReward, DCPORewards, RLCRReward
from hf_factuality.trainers.lm_head import score_labelled_positions_on_cpus


ASKED = (
    "Answer with a name or a few words in <answer> tags, then the probability that it is right in <confidence> tags."
)
TOKENS = 28
EPOCHS = 4  # of SFT
# As RLCR's code has it, advantages are not divided by the deviation of their group.
GRPO = {
    "max_completion_length": TOKENS, "temperature": 0.7, "per_device_train_batch_size": 16, "scale_rewards": "none",
}  # fmt: skip
LEVELS = 3  # numbers that SFT teaches
OWN = "its probability, without a word"  # of a model that learnt the other half; nothing is trained for it here
ARMS = (OWN, "SFT", "right answers alone", "RLCR", "DCPO")
FIGURES = (
    "right", "wrong", "ECE", "Brier", "AUROC", "mean confidence", "states one", "right from .5", "wrong from .5", "perplexity",
)  # fmt: skip


def contained_reward(completions, answer, **columns) -> list[float]:
    """1 if the words of the gold answer stand in the answer, as `figures` counts it."""
    texts = [extract_answer(own if isinstance(own, str) else own[-1]["content"]) or "" for own in completions]
    return [float(contained_match(text, [gold])) for text, gold in zip(texts, answer, strict=True)]


REWARDS = {
    "right answers alone": lambda: AbstentionReward("binary", scorer=contained_reward),
    "RLCR": lambda: RLCRReward(scorer=contained_reward),
    "DCPO": lambda: DCPORewards(scorer=contained_reward).both,
}


def shares_right(known: dict[str, dict]) -> dict[str, float]:
    """Of each answer the share that is right in its third, by sureness. With many numbers one of them would be the likeliest
    whatever is asked."""
    order = sorted(known, key=lambda name: known[name]["sure"])
    found = {}
    for number in range(LEVELS):
        part = order[number * len(order) // LEVELS : (number + 1) * len(order) // LEVELS]
        share = sum(known[name]["outcome"] == "correct" for name in part) / len(part)
        found |= dict.fromkeys(part, share)
    return found


def warm_model(model: str, rows: list[dict], known: dict[str, dict], folder: Path, seed: int) -> str:
    """A folder of the model after SFT on the answers that are known, each with a number."""
    place, share = folder / "warm-confidence", shares_right(known)
    if not (place / "done").exists():
        said = {key: own["text"].strip().replace("<", "") for key, own in known.items()}
        said = [f"<answer>{said[row['id']]}</answer><confidence>{share[row['id']]:.1f}</confidence>" for row in rows]
        completions = [[{"role": "assistant", "content": text}] for text in said]
        data = Dataset.from_dict({"prompt": [row["prompt"] for row in rows], "completion": completions})
        trained(model, data, place, seed, "--num_train_epochs", str(EPOCHS))
        (place / "done").touch()
    return str(place)


def calibration(rows: list[dict], found: dict[str, dict], stated: dict[str, float | None]) -> dict[str, float]:
    outcomes = [found[row["id"]]["outcome"] for row in rows]
    numbers = [stated[row["id"]] for row in rows]
    about = compute("calibration", numbers, outcomes)
    parts = about["parts"]
    sure = [outcome for number, outcome in zip(numbers, outcomes, strict=True) if number is not None and number >= 0.5]
    return {
        "ECE": about["calibration"], "Brier": parts["brier"],
        "AUROC": math.nan if parts["auroc"] is None else parts["auroc"],
        "mean confidence": statistics.fmean([number for number in numbers if number is not None] or [math.nan]),
        "states one": sum(number is not None for number in numbers) / len(rows),
        "right from .5": sure.count("correct") / len(rows), "wrong from .5": sure.count("wrong") / len(rows),
    }  # fmt: skip


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
    known, tested = fold(model, training, test, folder, seed, 0)
    halves = [[with_prompt(row, ASKED) for row in training if (row["id"] in known) is side] for side in (True, False)]
    results = {}
    for arm in args.arms:
        name = f"confidence {arm}"
        path, done = folder / f"{name}.json", folder / f"{name}.perplexity"
        if arm == OWN:
            found, done = tested, folder / "fold0.perplexity"
            stated = {key: math.exp(own["sure"]) for key, own in found.items()}
        else:
            if not done.exists():
                path.unlink(missing_ok=True)
                warm = warm_model(model, halves[0], known, folder, seed)
                place, tuned = folder / name.replace(" ", "-"), warm
                if arm != "SFT":
                    tuned = reinforced(warm, halves[1], place, seed, REWARDS[arm](), args, **GRPO)
                asked(tuned, test, path, ASKED, TOKENS)
                done.write_text(str(perplexity(tuned)))
                if tuned != warm:
                    shutil.rmtree(place)  # half a gigabyte
            found = json.loads(path.read_text())
            stated = {key: stated_confidence(own["text"]) for key, own in found.items()}
        for where in ("test", "other_relation"):
            own = [row for row in test if row["split"] == where]
            results[f"{arm} | {where}"] = {
                **figures(own, found, base, tokenizer), **calibration(own, found, stated), "perplexity": float(done.read_text()),
            }  # fmt: skip
        print(seed, arm, {name: round(value, 3) for name, value in results[f"{arm} | test"].items()}, flush=True)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[101, 102, 103])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--epochs", type=float, default=0.25)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    parser.add_argument("--out", type=Path, default=Path("outputs/real-model"))
    args = parser.parse_args()
    print_table(args.arms, [run(seed, args) for seed in args.seeds], FIGURES)


if __name__ == "__main__":
    main()

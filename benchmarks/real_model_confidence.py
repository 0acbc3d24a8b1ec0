"""What rewards of a stated confidence do to a real model: RLCR, DCPO and, beside them, GRPO that pays right answers alone.

The questions and the figures are those of `real_model.py`. A model that learnt gold answers to half of the questions for training
answers the other half. SFT teaches these answers, each with a number: the share of right ones in its third, by how sure that model
is. GRPO goes on from there with the other questions, each eight times.

    PYTHONPATH=. python benchmarks/real_model_confidence.py --seeds 101 102 103 --out outputs/real-model

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from pathlib import Path


os.environ.setdefault("CI", "1")

from datasets import Dataset
from real_model import arguments, figures, print_table, trained, with_prompt
from real_model_rl import answered, by_split, reinforced, set_up

from hf_factuality.metrics import compute
from hf_factuality.reading import stated_confidence
from hf_factuality.rewards import AbstentionReward, DCPORewards, RLCRReward
from hf_factuality.rewards.answers import FSPOAnswerReward


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


# The words of the gold answer stand in the answer, as `figures` counts it.
SCORER = FSPOAnswerReward(require_format=False, default_data_source="contained")
REWARDS = {
    "right answers alone": lambda: AbstentionReward("binary", scorer=SCORER),
    "RLCR": lambda: RLCRReward(scorer=SCORER),
    "DCPO": lambda: DCPORewards(scorer=SCORER).both,
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
        texts = [f"<answer>{said[row['id']]}</answer><confidence>{share[row['id']]:.1f}</confidence>" for row in rows]
        completions = [[{"role": "assistant", "content": text}] for text in texts]
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
    own = set_up(seed, args.out)
    halves = [[with_prompt(row, ASKED) for row in half] for half in own.halves]
    results = {}
    for arm in args.arms:

        def tune(place: Path, arm: str = arm) -> str:
            warm = warm_model(own.model, halves[0], own.known, own.folder, seed)
            return warm if arm == "SFT" else reinforced(warm, halves[1], place, seed, REWARDS[arm](), args, **GRPO)

        if arm == OWN:
            found, level = own.tested, float((own.folder / "fold0.perplexity").read_text())
            stated = {key: math.exp(it["sure"]) for key, it in found.items()}
        else:
            how = {"system": ASKED, "max_new_tokens": TOKENS}
            found, level = answered(own.folder, f"confidence {arm}", own.test, tune, **how)
            stated = {key: stated_confidence(it["text"]) for key, it in found.items()}
        for where, rows in by_split(own.test):
            about = {**figures(rows, found, own.base, own.tokenizer), **calibration(rows, found, stated)}
            results[f"{arm} | {where}"] = {**about, "perplexity": level}
        print(seed, arm, {name: round(value, 3) for name, value in results[f"{arm} | test"].items()}, flush=True)
    return results


def main() -> None:
    parser = arguments(__doc__, ARMS, seeds=(101, 102, 103))
    parser.add_argument("--epochs", type=float, default=0.25)
    parser.add_argument("--learning_rate", type=float, default=1e-4)
    args = parser.parse_args()
    print_table(args.arms, [run(seed, args) for seed in args.seeds], FIGURES)


if __name__ == "__main__":
    main()

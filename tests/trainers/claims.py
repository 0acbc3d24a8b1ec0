"""Claims that a tiny model can learn to tell: in 19 of 20, what is said of London is true and the rest is false."""

import random

from datasets import Dataset

from hf_factuality.trainers import TruthfulnessConfig, TruthfulnessTrainer
from tests.trainers.recording import QUIET


SETTINGS = {
    **QUIET, "per_device_train_batch_size": 16, "learning_rate": 1e-2, "max_steps": 40, "calibration_share": 0.3
}  # fmt: skip
TRUE, FALSE = "Person 7 was born in London.", "Person 7 was born in Paris."
QUESTION = "Where was person 7 born?"


def claims(people=30, start=0, noise=0.05):
    rng = random.Random(start)
    rows = []
    for number in range(start, start + people):
        for place in ("London", "Warsaw", "Paris"):
            for verb in ("was born in", "worked in"):
                label = "supported" if (place == "London") == (rng.random() >= noise) else "contradicted"
                claim = f"Person {number} {verb} {place}."
                rows.append({"claim": claim, "label": label, "question": f"Where was person {number} born?"})
    return Dataset.from_list(rows)


def make(model, folder, train=None, test=None, peft_config=None, **settings):
    args = TruthfulnessConfig(str(folder), **{**SETTINGS, **settings})
    return TruthfulnessTrainer(model, args, claims() if train is None else train, test, peft_config=peft_config)

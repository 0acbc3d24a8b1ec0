"""Claims that a tiny model can learn to tell: in 19 of 20, what is said of London is true and the rest is false.

`main` trains on two processes (`tests.processes`).
"""

import json
import random
import sys
from pathlib import Path

from datasets import Dataset

from hf_factuality.trainers import TruthfulnessConfig, TruthfulnessTrainer
from tests.trainers.recording import QUIET


SETTINGS = {
    **QUIET, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "max_steps": 60, "calibration_share": 0.3
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


def main():
    model, folder = sys.argv[1:]
    trainer = make(model, f"{folder}/out", test=claims(9, start=40), max_steps=6, per_device_eval_batch_size=7)
    trainer.train()
    trainer.save_model()
    classifier = trainer.accelerator.unwrap_model(trainer.model)
    found = {"temperature": classifier.config.truthfulness["temperature"], "measured": len(trainer._measured)}
    found |= {"head": classifier.score.weight.sum().item(), **trainer.figures}
    Path(folder, f"rank{trainer.args.process_index}.json").write_text(json.dumps(found))

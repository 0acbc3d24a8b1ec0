"""Training of the Mask-DPO experiments: pairs of biographies, sampled once per seed and shared by all arms."""

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path

import torch
from filelock import FileLock

from hf_factuality import MaskDPOConfig, MaskDPOTrainer
from hf_factuality.data.pairs import PairConfig
from hf_factuality.data.preferences import load_pairs, preferences_from
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.worlds import WorldConfig, WorldModelConfig, WorldVerifier, build_world_model


SETTINGS = {
    "per_device_train_batch_size": 32, "lr_scheduler_type": "cosine", "warmup_steps": 0.1, "beta": 0.1, "bf16": False,
    "max_length": 256, "gradient_checkpointing": False, "save_strategy": "no", "report_to": "none", "logging_steps": 10,
    "disable_tqdm": True,
}  # fmt: skip
MAX_TOKENS = 110
SAMPLING = SamplingConfig(num_samples=16, temperature=0.8, top_k=40, max_new_tokens=MAX_TOKENS)
PAIRS = PairConfig(pairs_per_question=4)


def biographies(run):
    """300 people who are in no pair."""
    return {"held-out": run.world.biographies("test", 300)}


def preference_pairs(run, model_dir=None):
    """The pairs of a seed: 16 biographies of each person of the train split, the best four against the worst four.

    Sampled by `model_dir`, by default the model that is trained.
    """
    sampled_by = model_dir or run.model_dir
    rows = run.world.biographies("train").to_list()
    key = json.dumps([run.model_dir.name, sampled_by.name, run.seed, vars(SAMPLING), vars(PAIRS)])
    folder = run.model_dir.parent.parent / "pairs" / hashlib.sha256(key.encode()).hexdigest()[:16]
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "pairs.parquet").exists():
            preferences_from(
                read_questions([{**row, "id": row["person"]} for row in rows]),
                TransformersSampler(sampled_by, config=SAMPLING, batch_size=256), WorldVerifier(run.world), folder,
                pairs=PAIRS, seed=run.seed, questions_per_batch=16, progress=False,
            )  # fmt: skip
        return load_pairs(folder)


def other_model(run):
    """A model of the same world with other weights, taught by other texts: it knows other people well."""
    record = json.loads((Path(run.model_dir) / "world.json").read_text(encoding="utf-8"))
    model = WorldModelConfig(**record["model"])
    model = replace(model, seed=model.seed + 1000)
    return build_world_model(WorldConfig(**record["world"]), None, model, progress=False)


def some(people=1.0, pairs_per_person=4):
    """Keeps the pairs of a share of the people, and so many of each. Those of less are among those of more."""

    def select(run, pairs):
        names = sorted(set(pairs["topic"]))
        random.Random(run.seed).shuffle(names)
        kept, seen, rows = set(names[: round(len(names) * people)]), dict.fromkeys(names, 0), []
        for row, name in enumerate(pairs["topic"]):
            seen[name] += 1
            if name in kept and seen[name] <= pairs_per_person:
                rows.append(row)
        return pairs.select(rows)

    return select


def arm(select=None, sampled_by=None, **settings):
    """An arm with these fields of [`MaskDPOConfig`], on the pairs that `select(run, pairs)` keeps.

    `sampled_by(run)` is the folder of another model that the pairs come from. The condition is the learning rate.
    """

    def train(run):
        pairs = preference_pairs(run, sampled_by(run) if sampled_by else None)
        if select:
            pairs = select(run, pairs)
        args = MaskDPOConfig(
            **{**SETTINGS, **settings}, learning_rate=run.condition, output_dir=str(run.folder), seed=run.seed,
            max_steps=run.steps, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = MaskDPOTrainer(str(run.model_dir), args=args, train_dataset=pairs)
        # Facts that were not in the pairs are to stay.
        trainer.model.get_input_embeddings().weight.requires_grad_(False)
        trainer.train()
        return trainer.model

    return train


DPO = {"chosen_labels": ["all"], "rejected_labels": ["all"]}

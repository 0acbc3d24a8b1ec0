"""Training of the F-DPO experiments, on the pairs of the Mask-DPO experiments."""

import random

import torch
from _mask_dpo import SETTINGS, preference_pairs

from hf_factuality import FDPOConfig, FDPOTrainer


def reversed_share(share):
    """The pairs, with this share of them the wrong way round: whoever chose did not choose by facts."""

    def select(run, pairs):
        draw, rows = random.Random(run.seed), pairs.to_list()
        for row in rows:
            if draw.random() < share:
                for name in [name for name in row if name.startswith("chosen")]:
                    other = name.replace("chosen", "rejected")
                    row[name], row[other] = row[other], row[name]
        return type(pairs).from_list(rows, features=pairs.features)

    return select


def fdpo(select=None, **settings):
    """An arm with these fields of [`FDPOConfig`], otherwise as the arms of `_mask_dpo`. Labels come from the spans."""

    def train(run):
        pairs = preference_pairs(run)
        if select:
            pairs = select(run, pairs)
        args = FDPOConfig(
            **{**SETTINGS, **settings}, learning_rate=run.condition, output_dir=str(run.folder), seed=run.seed,
            max_steps=run.steps, use_cpu=not torch.cuda.is_available(),
        )  # fmt: skip
        trainer = FDPOTrainer(str(run.model_dir), args=args, train_dataset=pairs)
        print(trainer.pair_counts["train"], flush=True)
        trainer.model.get_input_embeddings().weight.requires_grad_(False)
        trainer.train()
        return trainer.model

    return train

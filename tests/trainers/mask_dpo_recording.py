"""Preference pairs with spans, and DPO trainers that note every loss and gradient.

`main` compares stock DPO with MaskDPO under full masks on two processes (`tests.processes`); an error if they differ.
"""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import random
import sys

import torch
from accelerate import PartialState
from datasets import Dataset, load_from_disk
from peft import LoraConfig
from trl import DPOConfig

from hf_factuality import Label, LabeledSpan, MaskDPOConfig, MaskDPOTrainer
from tests.trainers.recording import QUIET, MaskDPO, StockDPO, same_to_the_last_bit


SETTINGS = dict(per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, **QUIET)
LABELS = [label.value for label in Label]
# Both give full masks through the code that real masks take: no mask by rule, and everything counted.
FULL_MASKS = {
    "all": {"chosen_labels": ["all"], "rejected_labels": ["all"]},
    "keep": {"chosen_labels": LABELS, "rejected_labels": LABELS, "tokens_outside": "keep"},
}
LORA = dict(r=2, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
SENTENCES = [
    "Ada Lovelace was born in London.",
    "She worked in Paris, and won two prizes!",
    "玛丽出生在华沙。",
    "The answer is not known.",
    "Marie Curie was born in 1903?",
]


def spans_of(text, sentences, labels):
    """Spans of sentences that occur once each, in order, from `str.index`."""
    found, position = [], 0
    for sentence, label in zip(sentences, labels, strict=True):
        start = text.index(sentence, position)
        position = start + len(sentence)
        found.append(LabeledSpan(start, position, label).to_dict())
    return found


def pairs(n=8, conversational=True, seed=0):
    """Answers of three sentences; the chosen one is mostly supported, the rejected one mostly contradicted."""
    draw, rows = random.Random(seed), []
    for number in range(n):
        row = {"prompt": f"Who is person {number}? "}
        for side, label in (("chosen", Label.SUPPORTED), ("rejected", Label.CONTRADICTED)):
            sentences = draw.sample(SENTENCES, 3)
            row[side] = " ".join(sentences)
            labels = [label, draw.choice([*Label, None]), draw.choice([Label.SUPPORTED, Label.CONTRADICTED])]
            row[f"{side}_spans"] = spans_of(row[side], sentences, labels)
        if conversational:
            row["prompt"] = [{"role": "user", "content": row["prompt"]}]
            for side in ("chosen", "rejected"):
                row[side] = [{"role": "assistant", "content": row[side]}]
        rows.append(row)
    return Dataset.from_list(rows)


def make(trainer_class, model, folder, dataset=None, peft=False, **settings):
    config_class = MaskDPOConfig if issubclass(trainer_class, MaskDPOTrainer) else DPOConfig
    args = config_class(output_dir=str(folder), **{**SETTINGS, **settings})
    extra = {"peft_config": LoraConfig(**LORA)} if peft else {}
    return trainer_class(model, args=args, train_dataset=pairs() if dataset is None else dataset, **extra)


def run(*args, **kwargs):
    trainer = make(*args, **kwargs)
    trainer.train()
    return trainer


VARIANTS = {"plain": {}, "peft": {"peft": True}, "precompute": {"precompute_ref_log_probs": True}}
VARIANTS["peft+precompute"] = {**VARIANTS["peft"], **VARIANTS["precompute"]}


def main():
    torch.set_num_threads(1)
    state = PartialState(cpu=True)
    assert state.num_processes == 2, f"needs two processes, got {state.num_processes}"
    model, folder, *variants = sys.argv[1:]
    # On disk: the cache of reference log-probabilities is written by one process and read by both.
    kinds = {"stock": pairs, "neutral": fully_labelled, "control": but_one}
    if state.is_main_process:
        for name, build in kinds.items():
            build().save_to_disk(f"{folder}/{name}")
    state.wait_for_everyone()
    data = {name: load_from_disk(f"{folder}/{name}") for name in kinds}
    for variant in variants:
        stock = run(StockDPO, model, folder, data["stock"], **VARIANTS[variant])
        neutral = run(MaskDPO, model, folder, data["neutral"], **FULL_MASKS["keep"], **VARIANTS[variant])
        differences = same_to_the_last_bit(neutral, stock)
        control = run(MaskDPO, model, folder, data["control"], **FULL_MASKS["keep"], **VARIANTS[variant])
        # The gradients are those of both processes, whichever has the row.
        if not [name for name in same_to_the_last_bit(control, stock) if name.startswith("gradient")]:
            differences.append("the control is equal too")
        print(f"rank {state.process_index} {variant}: {differences or 'identical'}", flush=True)
        if differences:
            sys.exit(1)
        state.wait_for_everyone()
    state.destroy_process_group()


def fully_labelled(dataset=None):
    """No span without a label: those never count."""
    dataset = pairs() if dataset is None else dataset
    sides = ("chosen_spans", "rejected_spans")
    fill = {"label": Label.NO_FACT.value}
    return dataset.map(
        lambda row: {side: [span if span["label"] else {**span, **fill} for span in row[side]] for side in sides}
    )


def but_one(dataset=None):
    """As [`fully_labelled`], but the first word of one chosen completion is a span without a label: its token is the
    only one that does not count."""
    rows = fully_labelled(dataset).to_list()
    first = rows[0]["chosen_spans"][0]
    rows[0]["chosen_spans"] = [{**first, "end": 3, "label": None}, {**first, "start": 3}, *rows[0]["chosen_spans"][1:]]
    return Dataset.from_list(rows)

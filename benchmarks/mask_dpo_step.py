"""Throughput and peak memory of MaskDPO over stock DPO, in one run.

    python benchmarks/mask_dpo_step.py --blocks 12 --memory_repeats 4

Both train the same Llama from the same weights on the same pairs, about half of whose tokens are masked for MaskDPO. Single
steps alternate (loading and collating a batch, loss, gradient), since the speed of a shared machine drifts; a ratio is that
of the sums over a block of steps, of wall time and of processor time. The optimizer, the same in both, is left out, and so
is the first block (memory, caches). Peak memory is that of the device where there is one; on a CPU
it is the peak of the resident set of a process of its own per run, as a whole and above what it held before training.
"""

import argparse
import contextlib
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path


os.environ.setdefault("CI", "1")

import _oracles
import datasets
import torch
import transformers
from _peaks import peak_ratios, print_peak, resident, summary
from datasets import Dataset
from transformers import LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer

from hf_factuality import Label, MaskDPOConfig, MaskDPOTrainer


ARMS = {"stock": (DPOTrainer, DPOConfig), "ours": (MaskDPOTrainer, MaskDPOConfig)}
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}:\n{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}assistant:\n{% endif %}"


def make_pairs(n: int, sentences: int, seed: int) -> Dataset:
    """Answers of sentences of invented words; each sentence is supported or contradicted with equal chance."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randint(2, 9))) for _ in range(800)]
    rows = []
    for _ in range(n):
        row = {"prompt": [{"role": "user", "content": " ".join(draw.choices(words, k=12)) + "?"}]}
        for side in ("chosen", "rejected"):
            text, spans = "", []
            for number in range(sentences):
                start = len(text) + (number > 0)
                text += " " * (number > 0) + " ".join(draw.choices(words, k=draw.randint(8, 20))) + "."
                label = draw.choice([Label.SUPPORTED, Label.CONTRADICTED])
                spans.append({"start": start, "end": len(text), "label": label.value})
            row[side], row[f"{side}_spans"] = [{"role": "assistant", "content": text}], spans
        rows.append(row)
    return Dataset.from_list(rows)


def save_model(folder: str, dataset: Dataset, hidden: int, layers: int) -> str:
    texts = [row[side][0]["content"] for row in dataset for side in ("chosen", "rejected")]
    tokenizer = _oracles.wrap(_oracles.train_byte_level(texts, 4000))
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=hidden // 64, num_key_value_heads=hidden // 64, max_position_embeddings=2048,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=None, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def build(arm: str, model: str, dataset: Dataset, settings, folder: str) -> DPOTrainer:
    trainer_class, config_class = ARMS[arm]
    args = config_class(
        folder, learning_rate=0.0, max_steps=settings.steps, per_device_train_batch_size=settings.batch_size,
        max_length=settings.max_length, logging_steps=1, bf16=torch.cuda.is_available(), gradient_checkpointing=False,
        report_to="none", save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    return trainer_class(model, args=args, train_dataset=dataset)


class Stepper:
    """Takes single steps of a trainer."""

    def __init__(self, trainer: DPOTrainer):
        self.trainer, self.batches = trainer, iter(())
        trainer.current_gradient_accumulation_steps = 1
        if torch.cuda.is_available():
            trainer.model.to(trainer.args.device)

    def step(self) -> tuple[float, float]:
        """Seconds of wall time and of processor time."""
        start = time.perf_counter(), time.process_time()
        batch = next(self.batches, None)
        if batch is None:
            self.batches = iter(self.trainer.get_train_dataloader())
            batch = next(self.batches)
        self.trainer.training_step(self.trainer.model, batch)
        self.trainer.model.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - start[0], time.process_time() - start[1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--blocks", type=int, default=12, help="ratios; each is over --steps steps of either")
    parser.add_argument("--memory_repeats", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--max_length", type=int, default=256)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--memory_of", choices=list(ARMS), help="only train one arm and print the peak of this process"
    )
    parser.add_argument("--model", help="id or folder of a real model, in place of one of random weights")
    settings = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    dataset = make_pairs(8 * settings.batch_size, sentences=6, seed=0)
    if settings.memory_of:
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
            trainer = build(settings.memory_of, settings.model, dataset, settings, folder)
            before = resident()
            trainer.train()
        print_peak(before)
        return
    found: dict[str, list[float]] = {"throughput, wall time": [], "throughput, processor time": []}
    with tempfile.TemporaryDirectory() as folder:
        model = settings.model or save_model(folder, dataset, settings.hidden, settings.layers)
        trainers = {arm: build(arm, model, dataset, settings, folder) for arm in ARMS}
        kept = sum(trainers["ours"].mask_statistics["train"].kept.values()) / 2
        steppers = {arm: Stepper(trainer) for arm, trainer in trainers.items()}
        for block in range(-1, settings.blocks):
            totals = {arm: [0.0, 0.0] for arm in ARMS}
            for number in range(settings.steps):
                # Which one goes first alternates too.
                for arm in ARMS if number % 2 else reversed(ARMS):
                    for kind, seconds in enumerate(steppers[arm].step()):
                        totals[arm][kind] += seconds
            for kind, name in enumerate(found):
                if block >= 0:
                    found[name].append(totals["stock"][kind] / totals["ours"][kind])
        print(f"a step of DPO: {totals['stock'][1] / settings.steps:.3f} s of a processor")
        whole = f"--steps 4 --batch_size {settings.batch_size} --max_length {settings.max_length}"
        peaks, of_stock = peak_ratios(__file__, model, whole.split(), settings.memory_repeats)
        found |= peaks
    result = {f"{name}, MaskDPO over DPO": summary(values) for name, values in found.items() if values}
    print(f"share of the tokens that count: {kept:.2f}; MiB of DPO: {of_stock:.0f}")
    for name, value in result.items():
        print(
            f"{name}: mean {value['mean']:.4f}, sd {value['sd']:.4f}, median {value['median']:.4f} (n={len(value['values'])})"
        )
    if settings.out:
        settings.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

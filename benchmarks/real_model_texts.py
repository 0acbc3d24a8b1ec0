"""What methods for longer texts do to a real model: SmolLM2-135M-Instruct writes two sentences on a passage that it is given.

The passages are the first two sentences of Wikipedia's articles in HotpotQA, as FSPO ships them; a seed divides them into training
and test. DPO's relatives learn from pairs of the model's own texts, GRPO's from texts that they sample. All of them learn from one
judge, the words (`lexical`). What is reported is by another, the network (`small`), which no arm has seen: of the likeliest texts,
and of texts drawn at the temperature at which all of them learn.

    PYTHONPATH=. python benchmarks/real_model_texts.py --data DATA --seeds 100 101 102 --out outputs/real-model

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import statistics
from pathlib import Path


os.environ.setdefault("CI", "1")

import pandas as pd
import torch
from datasets import Dataset
from real_model import arguments, perplexity, print_rows
from real_model_rl import LORA, PLAIN, finished
from transformers import AutoTokenizer

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    build_checklists,
    build_preferences,
    verify,
)
from hf_factuality.data.sampling import TransformersSampler
from hf_factuality.demos.real_model import find_model
from hf_factuality.generation import SamplingConfig
from hf_factuality.io.rows import read_rows
from hf_factuality.methods import FDPOConfig, FDPOTrainer
from hf_factuality.rewards import klcf_rewards
from hf_factuality.verifiers import load_verifier


REQUEST = "{}\n\nWrite an encyclopedia entry of two sentences about this subject."
TOKENS = 64
# Arm -> settings of FactGRPO. The first three are paid the mean factuality of their sentences, KLCF its terms (`reinforced`).
GRPO = {
    "GRPO": {"credit": "none", "verify_scope": "completion"},
    "FSPO": {"credit": "flip", "verify_scope": "completion"},
    "gae": {"credit": "gae", "credit_scale": 0.95, "verify_scope": "completion"},
    "KLCF": {},
}
DPO = ("DPO", "Mask-DPO", "F-DPO")
ARMS = ("base", *DPO, *GRPO)
SHOWN = ("supported", "supported by words", "sentences", "tokens", "words of the passage")
FIGURES = (*SHOWN, "perplexity", *(f"{name}, drawn" for name in SHOWN))


def passages(path: Path) -> list[str]:
    """Two sentences that begin an article. Sentences of one article stand two spaces apart there."""
    found = {}
    for text in pd.read_parquet(path)["knowledge"]:
        parts = re.split(r"\s{2,}", str(text).strip())
        if len(parts) > 2 and not re.search(r"[.!?]\s[A-Z]", parts[1]):
            passage = " ".join(parts[:2])
            if 25 <= len(passage.split()) <= 45:
                found[passage] = None
    return list(found)


def question(passage: str, number: int) -> dict:
    prompt = [{"role": "user", "content": REQUEST.format(passage)}]
    return {"id": str(number), "prompt": prompt, "evidence": [passage]}


def preferred(model: str, data: Dataset, folder: Path, seed: int, arm: str, args: argparse.Namespace) -> str:
    """A folder of the model after DPO or a relative of it on pairs of its own texts."""
    shared = {
        "beta": 0.1, "per_device_train_batch_size": 8, "num_train_epochs": 2, "learning_rate": args.learning_rate,
        "lr_scheduler_type": "cosine", "warmup_steps": 0.1, "seed": seed, "precompute_ref_log_probs": True,
    } | PLAIN  # fmt: skip
    if arm == "Mask-DPO":
        trainer = MaskDPOTrainer(
            model, args=MaskDPOConfig(str(folder), **shared), train_dataset=data, peft_config=LORA
        )
    else:
        # Without a margin it is DPO, since no pair prefers a text with more false sentences.
        margin = {"factuality_margin": 0.0} if arm == "DPO" else {}
        config = FDPOConfig(str(folder), **margin, **shared)
        trainer = FDPOTrainer(model, args=config, train_dataset=data, peft_config=LORA)
    return finished(trainer, folder)


def own_pairs(model: str, rows: list[dict], folder: Path, seed: int, temperature: float) -> Dataset:
    """Pairs of four texts of the model to each passage, labelled by the words."""
    return build_preferences(
        rows, out=folder / "pairs", model=model, dtype="float32", verifier="lexical", num_samples=4,
        max_new_tokens=TOKENS, temperature=temperature, top_k=0, seed=seed, questions_per_batch=8,
    ).dataset  # fmt: skip


def own_checklists(model: str, rows: list[dict], folder: Path, seed: int, temperature: float) -> Dataset:
    """What the same four texts say that the passage supports."""
    own_pairs(model, rows, folder, seed, temperature)
    responses = folder / "responses.jsonl"
    drawn = [row for _, row in read_rows(folder / "pairs/responses.jsonl")]
    texts = [{"id": row["id"], "responses": [text for text, _ in row["items"]]} for row in drawn]
    responses.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return build_checklists(
        rows, out=folder / "checklists", model="SmolLM2-135M-Instruct", responses=responses, verifier="lexical",
        keep_empty=True, seed=seed,
    ).dataset  # fmt: skip


def reinforced(model: str, data: Dataset, folder: Path, seed: int, arm: str, args: argparse.Namespace) -> str:
    """A folder of the model after FactGRPO, which pays the mean factuality of the sentences, or KLCF's terms."""
    verifier = load_verifier("lexical")
    rewards, settings = klcf_rewards(verifier.judge) if arm == "KLCF" else (None, GRPO[arm])
    config = FactGRPOConfig(
        str(folder), **settings, label_values="binary",
        per_device_train_batch_size=16, gradient_accumulation_steps=2, num_generations=4, max_completion_length=TOKENS,
        learning_rate=args.learning_rate, lr_scheduler_type="constant_with_warmup", warmup_steps=2, max_steps=args.steps,
        temperature=args.temperature, beta=0.0, seed=seed, **PLAIN,
    )  # fmt: skip
    return finished(FactGRPOTrainer(model, rewards, config, data, verifier=verifier, peft_config=LORA), folder)


def write_texts(model: str, rows: list[dict], path: Path, temperature: float) -> None:
    how = SamplingConfig(temperature=temperature, top_k=0, max_new_tokens=TOKENS)
    sampler = TransformersSampler(model, config=how, batch_size=32, model_kwargs={"dtype": "float32"})
    path.write_text(json.dumps([own[0].text for own in sampler.sample([row["prompt"] for row in rows], 0)]))


def figures(texts: list[str], rows: list[dict], tokenizer) -> dict[str, float]:
    evidence = [row["evidence"] for row in rows]
    by_network, by_words = (verify(texts, evidence=evidence, verifier=name) for name in ("small", "lexical"))
    words = [set(re.findall(r"\w+", text.lower())) for text in texts]
    copied = [
        len(own & set(re.findall(r"\w+", row["evidence"][0].lower()))) / max(len(own), 1)
        for own, row in zip(words, rows, strict=True)
    ]
    return {
        "supported": by_network.precision,
        "supported by words": by_words.precision,
        "sentences": by_network.summary["sentences"] / len(texts),
        "tokens": statistics.fmean(len(tokenizer(text)["input_ids"]) for text in texts),
        "words of the passage": statistics.fmean(copied),
    }


def run(seed: int, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    torch.set_num_threads(1)
    model, folder = find_model(), args.out / f"texts{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    rows = [
        question(passage, number)
        for number, passage in enumerate(passages(args.data / "fspo/hotpot-2k-train.parquet"))
    ]
    random.Random(seed).shuffle(rows)
    test, training = rows[: args.test], rows[args.test : args.test + args.train]
    results = {}
    for arm in args.arms:
        done = folder / f"{arm}.perplexity"  # written last
        paths = {"": (folder / f"{arm}.json", 0.0), ", drawn": (folder / f"{arm}.drawn.json", args.temperature)}
        if not (done.exists() and all(path.exists() for path, _ in paths.values())):
            place = folder / arm
            if arm == "base":
                tuned = model
            elif arm in DPO:
                tuned = preferred(
                    model, own_pairs(model, training, folder, seed, args.temperature), place, seed, arm, args
                )
            else:
                asked = own_checklists(model, training, folder, seed, args.temperature) if arm == "KLCF" else training
                columns = ("prompt", "evidence", "checklist") if arm == "KLCF" else ("prompt", "evidence")
                data = Dataset.from_list([{name: row[name] for name in columns} for row in asked])
                tuned = reinforced(model, data, place, seed, arm, args)
            for path, temperature in paths.values():
                write_texts(tuned, test, path, temperature)
            done.write_text(str(perplexity(tuned)))
            if tuned != model:
                shutil.rmtree(place)  # half a gigabyte
        results[arm] = {"perplexity": float(done.read_text())}
        for how, (path, _) in paths.items():
            found = figures(json.loads(path.read_text()), test, tokenizer)
            results[arm] |= {f"{name}{how}": value for name, value in found.items()}
        print(seed, arm, {name: round(value, 3) for name, value in results[arm].items()}, flush=True)
    return results


def main() -> None:
    parser = arguments(__doc__, ARMS)
    parser.add_argument("--data", type=Path, required=True, help="folder with fspo/hotpot-2k-train.parquet")
    parser.add_argument("--train", type=int, default=60, help="passages to learn from")
    parser.add_argument("--test", type=int, default=64, help="passages to be measured on")
    parser.add_argument("--steps", type=int, default=8, help="of GRPO, of eight passages and four texts each")
    # Half of what the model says at 0.6 is supported (seed 0), at 1 next to nothing.
    parser.add_argument("--temperature", type=float, default=0.6, help="at which texts are drawn")
    parser.add_argument("--learning_rate", type=float, default=1e-3, help="of GRPO and of DPO; chosen on seed 0")
    args = parser.parse_args()
    per_seed = [run(seed, args) for seed in args.seeds]
    print_rows("", FIGURES, {arm: [own[arm] for own in per_seed] for arm in args.arms})


if __name__ == "__main__":
    main()

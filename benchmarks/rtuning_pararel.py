"""R-Tuning on PARAREL with a small model that has read part of the facts: average precision, accuracy where it answers.

Facts of ten relations of PARAREL (Elazar et al. 2021), 150 subjects each, are asked for. A small Llama is trained on half of
them, one half of these three times as often as the other, so that it knows some well, some a little and some not at all. It
also reads, with further facts, that one is sure and that one is unsure, both as often of each, and refusals that answer no
question about a fact: what it is taught later is when to say these words, and not the words. Seven relations, drawn by the
seed, are in domain, three out of it. On 70 % of the facts in domain the command `hf-factuality build-refusals` asks that
model and writes the three variants; TRL's `SFTTrainer` trains it on each, and on the gold answers alone. All are asked about
the other facts in domain and about those out of it, of which half were read as well. Objects with a full stop are left out,
since answers are cut there, and so is the question for the confidence ("Ulm. I am sure."), which is long for this model.

`p_sure` is what the model says of itself; where it was never taught to say that (base, gold, unknown) answers are ranked by
`p_pred`, refusals last.

    PYTHONPATH=. python benchmarks/rtuning_pararel.py --data ../shared/data/pararel --out outputs/rtuning-pararel
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from datasets import Dataset, disable_progress_bars
from mask_dpo_pararel import ASKED, make_model, read_facts, train
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

from hf_factuality.cli import main as command
from hf_factuality.functional.answers import contains_answer
from hf_factuality.generation import SURE_WORDS, measure_sureness
from hf_factuality.methods.abstention.data import REFUSALS
from hf_factuality.metrics.refusal_ap.compute import refusal_ap


IN_DOMAIN, TRAIN_SHARE, BESIDES = 7, 0.7, 10
WORDS = replace(SURE_WORDS["en"], question="")
NO_FACT = "What can be said of what one does not know?"
METHODS = ("base", "gold", "unsure", "unknown", "uncertain")
FIGURES = ("accuracy", "answered", "accuracy where answered", "AP", "AP by p_pred")


def facts(data: Path, per_relation: int, rng: random.Random) -> tuple[list[dict], list[dict]]:
    """Facts that are asked for, with how often each is read; and what the model reads besides."""
    rows = [row for row in read_facts(data, per_relation + BESIDES, rng) if "." not in row["object"]]
    rng.shuffle(rows)
    for number, row in enumerate(rows):
        # One answer, always the right one, for the training loop of the other benchmark.
        row |= {"phrases": ["[Y]"], "others": [row["object"]], "answer": row["object"], "known": True}
        row["times"] = (0, 1, 0, 3)[number % 4]
    more = BESIDES * len(ASKED)
    besides = [row | {"phrases": [WORDS.said(row["object"], sure)]} for row in rows[:more] for sure in (True, False)]
    besides += [rows[0] | {"question": NO_FACT, "phrases": [text]} for text in REFUSALS["en"]] * (more // 10)
    return rows[more:], besides


def refuses(answer: str) -> bool:
    return bool(answer.strip()) and any(text.startswith(answer.strip()) for text in REFUSALS["en"])


def ask(model, tokenizer, rows: list[dict], method: str) -> list[dict]:
    """Per question what the model answers: whether it is right, given willingly, and how sure the model is."""
    prompts = [[{"role": "user", "content": row["question"]}] for row in rows]
    found = measure_sureness(model, tokenizer, prompts, WORDS, max_new_tokens=12, batch_size=256)
    for it, row in zip(found, rows, strict=True):
        it["right"] = contains_answer(it["answer"], [row["object"]]) == 1
        it["plain"] = 0.0 if refuses(it["answer"]) else it["p_pred"]
        it["stated"] = it if method in ("unsure", "uncertain") else it["plain"]
        it["given"] = it["p_sure"] > 0.5 if method in ("unsure", "uncertain") else not refuses(it["answer"])
    return found


def figures(found: list[dict]) -> dict[str, float | None]:
    right = [it["right"] for it in found]
    answered = [it["right"] for it in found if it["given"]]
    return {
        "accuracy": statistics.mean(right), "answered": len(answered) / len(found),
        "accuracy where answered": statistics.mean(answered) if answered else None,
        "AP": refusal_ap([it["stated"] for it in found], right)["refusal_ap"],
        "AP by p_pred": refusal_ap([it["plain"] for it in found], right)["refusal_ap"],
    }  # fmt: skip


def tune(folder: Path, dataset: Dataset, seed: int, epochs: int, rate: float):
    args = SFTConfig(
        str(folder.parent / "sft"), num_train_epochs=epochs, per_device_train_batch_size=32, learning_rate=rate,
        lr_scheduler_type="cosine", warmup_steps=0.05, use_cpu=True, bf16=False, gradient_checkpointing=False, seed=seed,
        save_strategy="no", report_to="none", disable_tqdm=True, logging_strategy="no",
    )  # fmt: skip
    trainer = SFTTrainer(str(folder), args=args, train_dataset=dataset)
    trainer.train()
    return trainer.model


def run(args, seed: int) -> dict[tuple[str, str], dict[str, float | None]]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    out = args.out / f"seed{seed}"
    out.mkdir(parents=True, exist_ok=True)
    rows, besides = facts(args.data, args.facts, rng)
    inside = set(rng.sample(sorted(ASKED), IN_DOMAIN))
    domain = rng.sample([row for row in rows if row["topic"] in inside], sum(row["topic"] in inside for row in rows))
    taught, held = domain[: (cut := int(TRAIN_SHARE * len(domain)))], domain[cut:]
    tests = {"in domain": held, "out of domain": [row for row in rows if row["topic"] not in inside]}
    base = out / "base"
    if not base.exists():
        read = [row for row in rows for _ in range(row["times"])] + besides
        model, tokenizer = make_model(rows + besides)
        train(model, tokenizer, read, args.epochs * len(read) // 32, rng)
        tokenizer.save_pretrained(base)
        model.save_pretrained(base)
    questions = out / "questions.jsonl"
    names = ("id", "topic", "question", "answer")
    questions.write_text("".join(json.dumps({name: row[name] for name in names}) + "\n" for row in taught))
    data = {}
    for variant in ("unsure", "unknown", "uncertain"):
        folder = out / ("by-entropy" if variant == "uncertain" else "by-gold")
        flags = ["--model", str(base), "--out", str(folder), "--rtuning_variant", variant, "--seed", str(seed)]
        flags += ["--question", ""] * (variant != "unknown")
        if status := command(
            ["build-refusals", str(questions), *flags, "--questions_per_batch", "64", "--batch_size", "320"]
        ):
            raise SystemExit(status)
        data[variant] = Dataset.from_parquet(str(folder / "refusals.parquet"), cache_dir=str(out / variant))
    answers = [[{"role": "assistant", "content": row["answer"][0]}] for row in data["unsure"]]
    data["gold"] = data["unsure"].remove_columns("completion").add_column("completion", answers)
    tokenizer, found = AutoTokenizer.from_pretrained(base), {}
    for method in METHODS:
        if method == "base":
            model = AutoModelForCausalLM.from_pretrained(base)
        else:
            model = tune(base, data[method], seed, args.sft_epochs, args.rate)
        for name, test in tests.items():
            asked = ask(model, tokenizer, test, method)
            found[method, name] = figures(asked)
            for times in (0, 1, 3) if method == "base" else ():
                some = [it for it, row in zip(asked, test, strict=True) if row["times"] == times]
                found[method, f"{name}, read {times} times"] = figures(some)
    return found


def table(found: list[dict]):
    """Mean over the seeds so far, and standard deviation."""
    print(f"\n| | | {' | '.join(FIGURES)} |\n|---|---|{'---|' * len(FIGURES)}")
    for method, part in sorted(found[0], key=lambda key: (key[1], METHODS.index(key[0]))):
        cells = []
        for figure in FIGURES:
            values = [value for it in found if (value := it[method, part][figure]) is not None]
            spread = f" ({statistics.stdev(values):.3f})" if len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.3f}{spread}" if values else "")
        print(f"| {part} | {method} | {' | '.join(cells)} |")
    for part in ("in domain", "out of domain") if len(found) > 1 else ():
        for method in METHODS[2:]:
            for figure in ("AP", "accuracy where answered"):
                pairs = [(it[method, part][figure], it["gold", part][figure]) for it in found]
                gains = [ours - theirs for ours, theirs in pairs if ours is not None]
                error = statistics.stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else float("nan")
                print(
                    f"{part}, {method} over gold, {figure}: {statistics.mean(gains):+.3f}, standard error {error:.3f}"
                )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/pararel"))
    parser.add_argument("--out", type=Path, default=Path("outputs/rtuning-pararel"))
    parser.add_argument("--facts", type=int, default=150, help="per relation")
    parser.add_argument("--epochs", type=int, default=10, help="of reading the facts")
    parser.add_argument("--sft_epochs", type=int, default=5)
    parser.add_argument("--rate", type=float, default=7e-4, help="of learning, in SFT")
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    args = parser.parse_args()
    if not args.data.is_dir():
        print(f"skipped: there is no PARAREL in {args.data}; name its folder by --data")
        return
    disable_progress_bars()
    logging.disable_progress_bar()
    found = []
    for seed in args.seeds:
        start = time.process_time()
        found.append(run(args, seed))
        print(f"seed {seed}: {time.process_time() - start:.0f} processor seconds", flush=True)
        table(found)


if __name__ == "__main__":
    main()

"""What R-Tuning and its relatives do to a real model: SmolLM2-135M-Instruct on facts of Wikidata, over several seeds.

The questions are those of the demo (`hf_factuality/demos/real_facts.jsonl`). A seed divides the subjects of the seven relations
that are trained on anew into training and test; the two other relations are for the test alone. The model is asked once; what
it knows is the same for all seeds. Every arm is trained by the recipe of the demo.

    PYTHONPATH=. python benchmarks/real_model.py --seeds 100 101 102 --out outputs/real-model

A run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTTrainer, get_peft_config

from hf_factuality import average, build_refusals, evaluate
from hf_factuality.cli.train.rtuning import TYPES
from hf_factuality.cli.train.shared import TrainingParser, set_model_kwargs
from hf_factuality.demos.real_model import FACTS, REFUSAL, SYSTEM, find_model
from hf_factuality.generation import answers_with_probability
from hf_factuality.io.rows import read_rows
from hf_factuality.trainers.lm_head import score_labelled_positions_on_cpus


ASKED_TO_DECLINE = f"{SYSTEM} If you do not know the answer, say: {REFUSAL}"
SHARES = {"R-Tuning-R": 1.0, "share .5": 0.5, "share .35": 0.35, "share .25": 0.25, "share .15": 0.15}
# By what models are sure of that learnt the form of the answers on other subjects (`cross_fitted`).
# Which part of the questions, the surest ones, is answered; `None` by `threshold`.
CROSS = {"cross-fitted, sure": None, "cross-fitted, surest .6": 0.6}
THRESHOLD, HALF = "gold, threshold", "gold on half, threshold on half"
FOLDS = 2
ARMS = ("base", "asked to decline", "gold", THRESHOLD, HALF, *SHARES, *CROSS, "average")
FIGURES = ("right", "wrong", "declined", "precision", "right kept", "wrong left", "tokens", "perplexity")
TEXTS = Path(__file__).resolve().parent.parent / "tests/cases/judging/smollm2.jsonl"
RECIPE = "recipes/rtuning/real.yaml"


def with_prompt(row: dict, system: str = SYSTEM) -> dict:
    return row | {"prompt": [{"role": "system", "content": system}, {"role": "user", "content": row["question"]}]}


def divided(rows: list[dict], seed: int) -> list[dict]:
    """The rows with training and test drawn anew within each relation."""
    found = []
    for topic in dict.fromkeys(row["topic"] for row in rows):
        own = [row for row in rows if row["topic"] == topic]
        kinds = sorted((row["split"] for row in own), reverse=True)
        random.Random(f"{seed} {topic}").shuffle(kinds)
        found += [row | {"split": kind} for row, kind in zip(own, kinds, strict=True)]
    return found


def asked(model: str, rows: list[dict], path: Path, system: str = SYSTEM, max_new_tokens: int = 24) -> dict[str, dict]:
    """Answer and outcome of each question, by `hf_factuality.evaluate`; what the file holds is not asked again."""
    known = json.loads(path.read_text()) if path.exists() else {}
    if missing := [with_prompt(row, system) for row in rows if row["id"] not in known]:
        questions = path.with_suffix(".questions.jsonl")
        questions.write_text("".join(json.dumps(row) + "\n" for row in missing))
        found = evaluate(
            model, dataset=questions, metrics="abstention", match="contained", max_new_tokens=max_new_tokens,
            temperature=0.0,
            dtype="float32", batch_size=32, out=path.with_suffix(".results.json"), overwrite=True,
        )  # fmt: skip
        answers = found.answers[0][0]
        texts = [samples[0]["text"] for samples in answers.samples]
        known |= {
            row["id"]: {"text": text, "outcome": outcome}
            for row, text, outcome in zip(missing, texts, answers.outcomes, strict=True)
        }
        path.write_text(json.dumps(known, indent=1))
    return known


def trained(model: str, dataset: Dataset, folder: Path, seed: int, *more: str) -> str:
    """A folder of the model after SFT by the recipe of the demo, with more flags."""
    words = ["--config", RECIPE, "--output_dir", str(folder), "--seed", str(seed), "--disable_tqdm", "true", *more]
    _, training, settings = TrainingParser("rtuning", TYPES).read(words)
    set_model_kwargs(training, settings)
    trainer = SFTTrainer(model, training, train_dataset=dataset, peft_config=get_peft_config(settings))
    trainer.train()
    trainer.accelerator.unwrap_model(trainer.model).merge_and_unload().save_pretrained(folder)
    trainer.processing_class.save_pretrained(folder)
    return str(folder)


def gold_rows(rows: list[dict]) -> Dataset:
    said = [[{"role": "assistant", "content": row["answer"]}] for row in rows]
    return Dataset.from_dict({"prompt": [row["prompt"] for row in rows], "completion": said})


def fold(
    model: str, training: list[dict], test: list[dict], folder: Path, seed: int, number: int
) -> tuple[dict[str, dict], dict[str, dict]]:
    """Answers, with outcome and sureness, of a model that was trained on gold answers to half of the questions for training: to
    the other half, and to the test."""
    places = list(range(len(training)))
    random.Random(f"{seed} folds").shuffle(places)
    held = [training[place] for place in places[number::FOLDS]]
    paths = [folder / f"fold{number}.json", folder / f"fold{number}.test.json"]
    done = folder / f"fold{number}.perplexity"  # written last
    if not done.exists():
        taught = [row for row in training if row["id"] not in {own["id"] for own in held}]
        own = trained(model, gold_rows(taught), folder / f"fold-{number}", seed)
        for rows, path in zip((held, test), paths, strict=True):
            path.unlink(missing_ok=True)
            add_sureness(own, rows, asked(own, rows, path), path)
        done.write_text(str(perplexity(own)))
        shutil.rmtree(folder / f"fold-{number}")
    held_out, tested = (json.loads(path.read_text()) for path in paths)
    return held_out, tested


def cross_fitted(model: str, training: list[dict], test: list[dict], folder: Path, seed: int) -> dict[str, dict]:
    """Answer, outcome and sureness of each question for training, of a model that was trained on gold answers to the others.

    What the model before says is right or wrong for its form, too; a model that was trained on the question itself knows the answer
    by heart. So the questions are divided in two, and each half is asked of a model that learnt from the other.
    """
    parts = [fold(model, training, test, folder, seed, number)[0] for number in range(FOLDS)]
    return {name: own for part in parts for name, own in part.items()}


def add_sureness(model: str, rows: list[dict], found: dict[str, dict], path: Path) -> None:
    """Add to each answer `sure`, the mean log-probability of its tokens and of its end."""
    network, tokenizer = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        AutoTokenizer.from_pretrained(model),
    )
    prompts = [with_prompt(row)["prompt"] for row in rows]
    for row, own in zip(
        rows, answers_with_probability(network, tokenizer, prompts, max_new_tokens=24, stop=()), strict=True
    ):
        found[row["id"]]["sure"] = math.log(own["p_pred"])
    path.write_text(json.dumps(found, indent=1))


def threshold(found: dict[str, dict]) -> float:
    """The sureness from which on most right answers less wrong ones are given."""
    best, total, at = 0, 0, math.inf
    for own in sorted(found.values(), key=lambda it: -it["sure"]):
        total += 1 if own["outcome"] == "correct" else -1
        if total > best:
            best, at = total, own["sure"]
    return at


def surest(found: dict[str, dict], share: float) -> float:
    """The sureness from which on this share of the answers is."""
    return sorted((own["sure"] for own in found.values()), reverse=True)[int(share * len(found))]


def declining_below(at: float, found: dict[str, dict]) -> dict[str, dict]:
    return {
        name: own if own["sure"] >= at else {**own, "text": REFUSAL, "outcome": "refused"}
        for name, own in found.items()
    }


def perplexity(model: str) -> float:
    """Of texts that no arm is trained on, those of the claims that were labelled by hand."""
    texts = dict.fromkeys(row["evidence"] for _, row in read_rows(TEXTS))
    network, tokenizer = (
        AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        AutoTokenizer.from_pretrained(model),
    )
    total, count = 0.0, 0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss = network(input_ids=ids, labels=ids).loss.item()
        total, count = total + loss * (ids.shape[1] - 1), count + ids.shape[1] - 1
    return math.exp(total / count)


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def figures(rows: list[dict], found: dict[str, dict], base: dict[str, dict], tokenizer) -> dict[str, float]:
    outcomes = [found[row["id"]]["outcome"] for row in rows]
    before = [base[row["id"]]["outcome"] for row in rows]
    share = {name: outcomes.count(name) / len(rows) for name in ("correct", "wrong", "refused")}
    kept = [one == two == "correct" for one, two in zip(before, outcomes, strict=True)]
    lengths = [len(tokenizer(found[row["id"]]["text"])["input_ids"]) for row in rows]
    return {
        "right": share["correct"], "wrong": share["wrong"], "declined": share["refused"],
        "precision": ratio(share["correct"], 1 - share["refused"]),
        "right kept": ratio(sum(kept), before.count("correct")),
        "wrong left": ratio(outcomes.count("wrong"), before.count("wrong")),
        "tokens": statistics.fmean(lengths),
    }  # fmt: skip


def run(seed: int, arms: list[str], out: Path, threads: int) -> dict:
    torch.set_num_threads(threads)
    score_labelled_positions_on_cpus()
    model, folder = find_model(), out / f"seed{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = AutoTokenizer.from_pretrained(model)
    everything = [row for _, row in read_rows(FACTS)]
    base = asked(model, everything, out / "base.json")
    rows = divided(everything, seed)
    test = [row for row in rows if row["split"] != "train"]
    training = [with_prompt(row) for row in rows if row["split"] == "train"]
    results = {}
    for arm in arms:
        path = folder / f"{arm}.json"
        trained_model = None
        if arm == "base":
            found = base
        elif arm == "asked to decline":
            found = asked(model, everything, out / "asked.json", ASKED_TO_DECLINE)
        elif arm == HALF:
            held, tested = fold(model, training, test, folder, seed, 0)
            found = declining_below(threshold(held), tested)
        elif arm == THRESHOLD:  # the answers of "gold", which comes before it
            at = threshold(cross_fitted(model, training, test, folder, seed))
            found = declining_below(at, json.loads((folder / "gold.json").read_text()))
        else:
            place = folder / arm.replace(" ", "-")
            if not (folder / f"{arm}.perplexity").exists():  # written last
                path.unlink(missing_ok=True)
                if arm == "average":
                    average(model, str(folder / "R-Tuning-R"), place, alpha=0.5)
                    trained_model = str(place)
                else:
                    if arm == "gold":
                        data = gold_rows(training)
                    elif arm in CROSS:
                        known = cross_fitted(model, training, test, folder, seed)
                        at = threshold(known) if CROSS[arm] is None else surest(known, CROSS[arm])
                        data = gold_rows(
                            [row if known[row["id"]]["sure"] >= at else row | {"answer": REFUSAL} for row in training]
                        )
                    else:
                        responses = folder / f"responses-{arm}.jsonl"
                        responses.write_text(
                            "".join(
                                json.dumps({"id": row["id"], "responses": [base[row["id"]]["text"]]}) + "\n"
                                for row in training
                            )
                        )
                        data = build_refusals(
                            training, out=folder / f"data-{arm}", responses=responses, model="SmolLM2-135M-Instruct",
                            rtuning_variant="unknown",
                            refusals=(REFUSAL,), max_refusal_share=SHARES[arm], stop="", verifier="gold:contained",
                            seed=seed,
                        ).dataset  # fmt: skip
                    trained_model = trained(model, data, place, seed)
                found = asked(trained_model, test, path)
                if arm == "gold":
                    add_sureness(trained_model, test, found, path)
                (folder / f"{arm}.perplexity").write_text(str(perplexity(trained_model)))
            found = json.loads(path.read_text())
        if arm in ("base", "asked to decline"):
            value = out / "base.perplexity"
            if not value.exists():
                value.write_text(str(perplexity(model)))
        else:
            value = folder / f"{ {THRESHOLD: 'gold', HALF: 'fold0'}.get(arm, arm) }.perplexity"
        for where in ("test", "other_relation"):
            own = [row for row in test if row["split"] == where]
            results[f"{arm} | {where}"] = {
                **figures(own, found, base, tokenizer),
                "perplexity": float(value.read_text()),
            }
    if "average" in arms or "R-Tuning-R" in arms:
        for place in folder.iterdir():
            if place.is_dir() and (place / "model.safetensors").exists():
                shutil.rmtree(place)  # half a gigabyte each
    (folder / "figures.json").write_text(json.dumps(results, indent=1))
    return results


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    known = [value for value in values if not math.isnan(value)]
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    return f"{statistics.fmean(known):.{digits}f}{deviation}" if known else "-"


def print_rows(
    title: str, columns: Sequence[str], rows: Mapping[str, Sequence[Mapping[str, float]]], digits: int = 3
) -> None:
    """Mean and standard deviation of each figure of each row, over its seeds."""
    print(f"\n| {title} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name, per_seed in rows.items():
        cells = [mean_and_deviation([own[column] for own in per_seed], digits) for column in columns]
        print(f"| {name} | {' | '.join(cells)} |")


def front(seeds: list[int], out: Path) -> None:
    """Print what the arm `HALF` gives at other thresholds: those from which on a share of the held half is answered."""
    base, everything = json.loads((out / "base.json").read_text()), [row for _, row in read_rows(FACTS)]
    tokenizer = AutoTokenizer.from_pretrained(find_model())
    columns = ("right", "wrong", "declined", "precision", "right kept", "wrong left")
    for where in ("test", "other_relation"):
        by_share: dict[str, list[dict[str, float]]] = {}
        for share in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8):
            for seed in seeds:
                held, tested = (
                    json.loads((out / f"seed{seed}" / name).read_text()) for name in ("fold0.json", "fold0.test.json")
                )
                rows = [row for row in divided(everything, seed) if row["split"] == where]
                found = figures(rows, declining_below(surest(held, share), tested), base, tokenizer)
                by_share.setdefault(str(share), []).append(found)
        print_rows("share answered", columns, by_share, digits=2)


def print_table(arms: list[str], per_seed: list[dict], columns: Sequence[str] = FIGURES) -> None:
    """A table per kind of questions, with a row per arm."""
    for where, title in (("test", "other subjects"), ("other_relation", "other relations")):
        print_rows(title, columns, {arm: [own[f"{arm} | {where}"] for own in per_seed] for arm in arms})


def arguments(
    about: str | None, arms: Sequence[str], seeds: Sequence[int] = (100, 101, 102)
) -> argparse.ArgumentParser:
    """What the experiments on the real model have in common."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds))
    parser.add_argument("--arms", nargs="+", default=list(arms), choices=arms)
    parser.add_argument("--out", type=Path, default=Path("outputs/real-model"))
    return parser


def main() -> None:
    parser = arguments(__doc__, ARMS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--front", action="store_true", help=f"the arm {HALF!r}, run before, at other thresholds")
    args = parser.parse_args()
    if args.front:
        front(args.seeds, args.out)
        return
    per_seed = [run(seed, args.arms, args.out, args.threads) for seed in args.seeds]
    print_table(args.arms, per_seed)


if __name__ == "__main__":
    main()

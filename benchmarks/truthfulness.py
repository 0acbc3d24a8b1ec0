"""The truthfulness model on people of a closed world who are held out: does P(true) rank their claims, and is it calibrated?

Per seed, which splits the people: four biographies at temperature 1 of each train person and of 300 held-out ones, the oracle's
labels, the settings of recipes/truthfulness/closed-world.yaml. Beside it what needs no training: the share of true claims of
the same relation, of the same relation and rank of popularity, and the base's own likelihood of the claim's text.

    PYTHONPATH=. python benchmarks/truthfulness.py --base_seed 100 --seeds 100 101 102
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import torch
import yaml
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.data.builder import judged_responses
from hf_factuality.data.claims import read_claims
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.functional.calibration import auroc, expected_calibration_error
from hf_factuality.generation.causal import CausalModel
from hf_factuality.methods.truthfulness.judge import claim_prompt
from hf_factuality.trainers import TruthfulnessConfig, TruthfulnessTrainer
from hf_factuality.worlds import SIZES, World, WorldVerifier, build_world_model


RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "truthfulness" / "closed-world.yaml"
ARMS = {
    "whole model": {},
    "without the correction for 2:1": {"corrected": False},
    "natural ratio": {"ratio": None},
    "LoRA, rank 16": {"lora": 16, "learning_rate": 5e-3},
}
FACTS = "birth_city employer university field hobby award birth_year spouse".split()


def claims(world, model_dir, split, people, out, seed):
    questions = read_questions([{**row, "id": row["person"]} for row in world.biographies(split, people)])
    sampler = TransformersSampler(
        str(model_dir),
        config=SamplingConfig(num_samples=4, max_new_tokens=110),
        batch_size=256,
    )
    folder = out / f"claims-{model_dir.name}-{split}-seed{seed}"
    run = {"questions_per_batch": 64, "patience": 0.0, "progress": False, "overlap": None}
    with judged_responses(questions, sampler, WorldVerifier(world), folder, seed=seed, **run):
        return read_claims(folder, questions)


def baselines(world, model_dir, train, test, template):
    """Scores of the test claims by what knows no claim, and by the base model; and what each claim is about."""
    oracle, ranks = WorldVerifier(world), {person.name: rank for rank, person in enumerate(world.people)}

    def kinds(row):
        (read,) = oracle.read(row["claim"], row["question"])
        relation = read.relation or read.kind
        return relation, (relation, 8 * ranks[row["topic"]] // len(ranks))

    found = {}
    read_train, read_test = [kinds(row) for row in train], [kinds(row) for row in test]
    for place, name in enumerate(("relation", "relation and popularity")):
        seen = defaultdict(list)
        for kind, row in zip(read_train, train, strict=True):
            seen[kind[place]].append(row["label"] == "supported")
        found[name] = [statistics.mean(seen[kind[place]] or [0.5]) for kind in read_test]
    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    base = CausalModel(AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval(), tokenizer, 256)
    prompt = claim_prompt(template)
    start = [tokenizer(prompt.fill({**row, "claim": ""}).rstrip())["input_ids"] for row in test]
    pairs = [(ids, tokenizer(" " + row["claim"])["input_ids"]) for ids, row in zip(start, test, strict=True)]
    with torch.inference_mode():
        likely = dict(base._scored(pairs))
    found["likelihood of the text"] = [likely[n] for n in range(len(test))]
    found["likelihood per token"] = [likely[n] / len(pair[1]) for n, pair in enumerate(pairs)]
    return found, [kind[0] for kind in read_test]


def ranking(scores, test, relations):
    """AUROC of all claims, of facts that can be known, and the share of pairs about one fact that are ranked right."""
    truth = [row["label"] == "supported" for row in test]
    plain = [n for n, relation in enumerate(relations) if relation in FACTS]
    facts = defaultdict(lambda: ([], []))
    for n in plain:
        facts[test[n]["topic"], relations[n]][truth[n]].append(scores[n])
    wins = [(t > f) + (t == f) / 2 for false, true in facts.values() for f in false for t in true]
    return {
        "auroc": auroc(scores, truth),
        "auroc, facts that can be known": auroc([scores[n] for n in plain], [truth[n] for n in plain]),
        "pairs about one fact": statistics.mean(wins),
    }


def run(arm, seed, model_dir, train, test, out):
    recipe = {**yaml.safe_load(RECIPE.read_text(encoding="utf-8")), **ARMS[arm]}
    corrected, rank = recipe.pop("corrected", True), recipe.pop("lora", None)
    recipe |= {
        "output_dir": str(out / "model"),
        "seed": seed,
        "disable_tqdm": True,
        "use_cpu": not torch.cuda.is_available(),
    }
    lora = rank and LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    trainer = TruthfulnessTrainer(str(model_dir), TruthfulnessConfig(**recipe), train, test, peft_config=lora)
    if not corrected:
        trainer._log_odds_added = 0.0
    started = time.time()
    trainer.train()
    found = {**trainer.figures, "seconds": time.time() - started}
    labels = trainer.eval_dataset["labels"]
    found["ece, bins of equal mass"] = expected_calibration_error(trainer._measured, labels, binning="mass")
    found["temperature"] = trainer.model.config.truthfulness["temperature"]
    return found, trainer._measured


def print_table(found):
    """Arms and their figures: mean and standard deviation over the seeds."""
    columns = list(dict.fromkeys(name for figures in found.values() for name in figures))
    print(f"| | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for arm, figures in found.items():
        cells = [
            "" if name not in figures else f"{statistics.mean(figures[name]):.3f}"
            + (f" ({statistics.stdev(figures[name]):.3f})" if len(figures[name]) > 1 else "")
            for name in columns
        ]  # fmt: skip
        print(f"| {arm} | {' | '.join(cells)} |")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--base_seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--arms", nargs="+", default=list(ARMS)[:1], choices=ARMS)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument("--out", type=Path, default=Path("outputs/truthfulness"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    config, model = (replace(part, seed=args.base_seed) for part in SIZES[args.size])
    model_dir = build_world_model(config, None, model)
    template = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))["template"]
    found = defaultdict(lambda: defaultdict(list))
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        world = World(replace(config, split_seed=seed))
        train = claims(world, model_dir, "train", None, args.out, seed)
        test = claims(world, model_dir, "test", 300, args.out, seed)
        shares = [sum(name == "supported" for name in part["label"]) / len(part) for part in (train, test)]
        print(
            f"seed {seed}: {len(train)} and {len(test)} claims, {shares[0]:.3f} and {shares[1]:.3f} supported",
            flush=True,
        )
        simple, relations = baselines(world, model_dir, train, test, template)
        results = {name: ({}, scores) for name, scores in simple.items()}
        results |= {arm: run(arm, seed, model_dir, train, test, args.out) for arm in args.arms}
        for name, (figures, scores) in results.items():
            figures = {**ranking(scores, test, relations), **figures}
            print(seed, name, json.dumps(figures), flush=True)
            for figure, value in figures.items():
                found[name][figure].append(value)
    print_table(found)


if __name__ == "__main__":
    main()

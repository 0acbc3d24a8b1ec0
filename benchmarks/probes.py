"""Hallucination probes on people of a closed world who are held out: what they rank, and what becomes of one that is a reward.

Per seed, which splits the people: two biographies at temperature 1 of each train person and one of each held-out one, the oracle's
labels, the settings of recipes/probe/closed-world.yaml. Beside the probes, which read no evidence: two verifiers that do, and
what benchmarks/truthfulness.py knows without any. `--part reward` trains the base with GRPO, paid by the mean P(true) of the
probe of its split, or of the oracle, and asks both about held-out people before and after.

    PYTHONPATH=. python benchmarks/probes.py --base_seed 100 --seeds 100 101 102
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections import defaultdict
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import truthfulness
import yaml
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, load_verifier
from hf_factuality.methods.long_form.reward import long_form_reward, truthfulness_reward
from hf_factuality.spans import Label
from hf_factuality.trainers import ProbeConfig, ProbeTrainer, TruthfulnessConfig, TruthfulnessTrainer
from hf_factuality.verifiers import JudgeInput, LexicalVerifier, TruthfulnessJudge, VerifierInput
from hf_factuality.worlds import SIZES, World, WorldVerifier, build_world_model, evaluate_world


RECIPES = Path(__file__).resolve().parent.parent / "recipes"
TOKENS, TEXTS = 110, ("claim", "label", "question", "topic")
PROBES = {
    "probe, linear": {},
    "probe, LoRA": {"lora": 16, "learning_rate": 2e-3},
    "probe, linear, tokens only": {"span_weight": 0.0},
    "probe, linear, middle layer": {"layer": 0.5},
    "probe, linear, mean": {"pool": "mean"},
}


def sampled(world, model_dir, split, samples, seed):
    """Rows as `hf-factuality verify` writes them, of the base's own biographies."""
    rows = world.biographies(split)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(model_dir), AutoTokenizer.from_pretrained(model_dir)
    found = evaluate_world(model, tokenizer, world, rows, num_samples=samples, max_new_tokens=TOKENS, seed=seed)
    rows = [row for row in rows for _ in range(samples)]
    pairs = zip(rows, found.completions, found.verifications, strict=True)
    return [{**row, "completion": text, "verification": one.to_dict()} for row, text, one in pairs]


def claims(rows):
    """The supported and the contradicted sentences, and where each stands."""
    return [
        {
            "claim": row["completion"][span["start"] : span["end"]],
            "label": span["label"],
            "input": (row["completion"], (span["start"], span["end"])),
            **{name: row[name] for name in ("question", "topic", "evidence")},
        }
        for row in rows
        for span in row["verification"]["spans"]
        if span["label"] in ("supported", "contradicted")
    ]  # fmt: skip


def settings(kind, out, seed, **more):
    recipe = {**yaml.safe_load((RECIPES / kind / "closed-world.yaml").read_text(encoding="utf-8")), **more}
    cpu = not torch.cuda.is_available()
    return {**recipe, "output_dir": str(out), "seed": seed, "disable_tqdm": True, "use_cpu": cpu}


def probe(name, model_dir, train, out, seed):
    """A trained one, saved in a folder and loaded as whoever uses it would."""
    more = dict(PROBES[name])
    rank = more.pop("lora", None)
    lora = rank and LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
    folder = out / f"{name.replace(', ', '-').replace(' ', '-')}-{model_dir.name}-{seed}"
    if (folder / "verifier_config.json").exists():  # of the other part
        return load_verifier(f"probe:{folder}")
    columns = ("question", "topic", "completion", "verification")
    rows = Dataset.from_list([{column: row[column] for column in columns} for row in train()])
    trainer = ProbeTrainer(
        str(model_dir), ProbeConfig(**settings("probe", folder, seed, **more)), rows, peft_config=lora
    )
    trainer.train()
    trainer.save_model()
    return load_verifier(f"probe:{folder}")


def nli(model_dir, train, out, seed):
    """The base as a classifier of a person's facts and a claim: what a small NLI model of this world can be."""
    rows = [{**row, "question": " ".join(row["evidence"])} for row in train]
    rows = Dataset.from_list([{name: row[name] for name in TEXTS} for row in rows])
    args = TruthfulnessConfig(**settings("truthfulness", out / "nli", seed, num_train_epochs=1, ratio=None))
    trainer = TruthfulnessTrainer(str(model_dir), args, rows)
    trainer.train()
    return TruthfulnessJudge(trainer.model, trainer.processing_class, max_length=256)


def twin(world, row, rng):
    """The claim in its biography with another value of the same fact: a false one for the true, the true for a false one.

    `None` where it states no fact that can be known.
    """
    text, (start, end) = row["input"]
    read = next(it for it in WorldVerifier(world).read(text, row["question"]) if it.start == start)
    if read.kind != "fact" or read.relation not in truthfulness.FACTS or read.off_subject:
        return None
    true = world.find_person(row["topic"]).facts[read.relation]
    others = [value for value in world.values[read.relation] if value != true]
    value, truth = (rng.choice(others), "contradicted") if row["label"] == "supported" else (true, "supported")
    first, last = read.slot
    text, end = text[:first] + value + text[last:], end + len(value) - (last - first)
    return {**row, "input": (text, (start, end)), "claim": text[start:end], "label": truth}


def rank(world, model_dir, names, out, seed):
    """AUROC of each, of all claims and of those that can be known; how often it prefers, in the same place, the true value."""
    train, test = (sampled(world, model_dir, *part, seed) for part in (("train", 2), ("test", 1)))
    test, rng = claims(test), random.Random(seed)
    number, twins = len(test), {}
    for place in range(number):
        other = twin(world, test[place], rng)
        if other is not None:
            twins[place] = len(test)
            test.append(other)
    contexts = [JudgeInput(row["claim"], tuple(row["evidence"]), row["question"], *row["input"]) for row in test]
    found, figures = {}, defaultdict(dict)
    for name in names:
        started = time.time()
        verifier = probe(name, model_dir, lambda: train, out, seed)
        judged = verifier.judge.judge(contexts)
        found[name] = [one.score for one in judged]
        right = {label: [] for label in ("supported", "contradicted")}
        for one, row in zip(judged[:number], test, strict=False):
            right[row["label"]] += [one.label == Label(row["label"])] * (one.label is not None)
        figures[name]["balanced accuracy at the threshold"] = statistics.mean(map(statistics.mean, right.values()))
        figures[name]["seconds"] = time.time() - started
    if names:
        found["lexical verifier (reads the facts)"] = [one.score for one in LexicalVerifier().judge.judge(contexts)]
        alone = [JudgeInput(row["claim"], (), " ".join(row["evidence"])) for row in test]
        judge = nli(model_dir, claims(train)[::2], out, seed)
        found["small NLI model (reads the facts)"] = [one.score for one in judge.judge(alone)]
        found["oracle"] = [float(row["label"] == "supported") for row in test]
    template = settings("probe", out, seed)["template"]
    plain = [[{name: row[name] for name in TEXTS} for row in part] for part in (claims(train), test)]
    simple, relations = truthfulness.baselines(world, model_dir, *plain, template)
    # Texts with words that the tokenizer of words does not know are unknown to a probe.
    judged = [n for n in range(len(test)) if all(scores[n] is not None for scores in found.values())]
    known = [n for n in judged if n < number]
    pairs = [(n, twins[n]) for n in known if twins.get(n) in judged]
    truth = [row["label"] == "supported" for row in test]
    own, about = ([column[n] for n in known] for column in (test, relations))
    for name, scores in {**found, **simple}.items():
        values = truthfulness.ranking([scores[n] for n in known], own, about)
        values.pop("pairs about one fact")  # few: of one biography a person
        wins = [((scores[a] > scores[b]) == truth[a]) if scores[a] != scores[b] else 0.5 for a, b in pairs]
        values["true value preferred"] = statistics.mean(wins)
        figures[name] = {"claims": len(known), **values, "pairs": len(pairs), **figures[name]}
    return figures


class AtSteps(TrainerCallback):
    def __init__(self, steps, name, measured, figures):
        self.steps, self.name, self.measured, self.figures = steps, name, measured, figures

    def on_step_end(self, args, state, control, model, processing_class, **kwargs):
        if state.global_step in self.steps:
            self.figures[self.name(state.global_step)] = self.measured(model, processing_class)


def reward(world, model_dir, names, out, seed, oracle, steps, learning_rate):
    """What a policy that a probe pays, and one that the oracle pays, come to, by the probe and by the oracle."""
    train = partial(sampled, world, model_dir, "train", 2, seed)
    test, figures = world.biographies("test", 300), {}
    judges = {name: probe(name, model_dir, train, out, seed) for name in names}

    def measured(model, tokenizer):
        found = evaluate_world(model, tokenizer, world, test, max_new_tokens=TOKENS, seed=seed)
        kept = ("precision", "correct", "wrong", "no_claim", "fact_free", "repetition", "tokens")
        values = {name: found.metrics[name] for name in kept}
        inputs = [VerifierInput(text, row["question"]) for text, row in zip(found.completions, test, strict=True)]
        for name, judge in judges.items():
            paid = truthfulness_reward(found.completions, verifications=judge.verify(inputs))
            values[f"P(true) by the {name}"] = statistics.mean(value for value in paid if value is not None)
        return values

    tokenizer = AutoTokenizer.from_pretrained(model_dir)
    figures["base"] = measured(AutoModelForCausalLM.from_pretrained(model_dir), tokenizer)
    arms = {f"paid by the {name}": (judges[name], truthfulness_reward) for name in names}
    if oracle:
        arms["paid by the oracle"] = (WorldVerifier(world), long_form_reward("precision"))
    for name, (verifier, paid) in arms.items():
        last = max(steps) if verifier in judges.values() else min(steps)
        args = FactGRPOConfig(
            str(out / "grpo"), per_device_train_batch_size=48, num_generations=8, max_completion_length=TOKENS,
            temperature=1.0, beta=0.0, learning_rate=learning_rate, lr_scheduler_type="constant_with_warmup",
            warmup_steps=2, max_steps=last, seed=seed, bf16=False, gradient_checkpointing=False, save_strategy="no",
            report_to="none", disable_tqdm=True, logging_steps=4, use_cpu=not torch.cuda.is_available(),
            verify_scope="completion", credit="none", factuality_reward_weight=0.0,
        )  # fmt: skip
        trainer = FactGRPOTrainer(str(model_dir), [paid], args, world.biographies("train"), verifier=verifier)
        trainer.add_callback(AtSteps(steps, lambda step, name=name: f"{name}, {step} steps", measured, figures))
        trainer.train()
    return figures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=["rank", "reward"], default="rank")
    parser.add_argument("--base_seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--probes", nargs="*", default=list(PROBES)[:2], choices=PROBES)
    parser.add_argument("--size", default="tiny", choices=SIZES)
    parser.add_argument(
        "--oracle", action="store_true", help="in the part `reward`, also a policy that the oracle pays"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[16, 40], help="of the policy; the oracle's the fewest"
    )
    parser.add_argument("--learning_rate", type=float, default=5e-4)
    parser.add_argument("--out", type=Path, default=Path("outputs/probes"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    config, model = (replace(part, seed=args.base_seed) for part in SIZES[args.size])
    model_dir = build_world_model(config, None, model)
    args.out.mkdir(parents=True, exist_ok=True)
    found = defaultdict(lambda: defaultdict(list))
    for seed in args.seeds:
        world, common = World(replace(config, split_seed=seed)), (model_dir, args.probes, args.out, seed)
        if args.part == "rank":
            results = rank(world, *common)
        else:
            results = reward(world, *common, args.oracle, args.steps, args.learning_rate)
        for name, figures in results.items():
            print(seed, name, json.dumps(figures), flush=True)
            for figure, value in figures.items():
                found[name][figure].append(value)
    truthfulness.print_table(found)


if __name__ == "__main__":
    main()

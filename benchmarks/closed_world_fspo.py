"""FSPO and its parts in the closed world, each arm with the settings of `make train`.

    python benchmarks/closed_world_fspo.py --seeds 2 3 4

Arms: FSPO as in the paper; FSPO with an oracle that supports any true fact, whether the question asks for it or not; the
same reward without the sign rule; the answer reward alone. Held-out people, temperature 1.
"""

import argparse
import contextlib
import json
import os
import statistics
import tempfile
from pathlib import Path


os.environ.setdefault("CI", "1")

import torch
import yaml

from hf_factuality import FactGRPOConfig, FactGRPOTrainer
from hf_factuality.rewards import answer_reward
from hf_factuality.worlds import WorldVerifier, build_world_model, evaluate_world, load_world


RECIPE = Path(__file__).resolve().parent.parent / "recipes" / "fspo" / "closed-world.yaml"
ARMS = {
    "FSPO (paper)": ({}, {}),
    "FSPO, any true fact supported": ({}, {"relevant_only": False}),
    "answer + factuality reward, no sign rule": ({"credit": "none"}, {}),
    "any true fact supported, no sign rule": ({"credit": "none"}, {"relevant_only": False}),
    "answer reward": ({"credit": "none", "factuality_reward_weight": 0.0}, {}),
}
FIGURES = ("accuracy", "factuality", "right_and_factual", "no_claim")


def run(model_dir, world, seed, settings, oracle) -> dict:
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(None):
        args = FactGRPOConfig(**{**recipe, **settings, "output_dir": folder, "seed": seed, "disable_tqdm": True})
        trainer = FactGRPOTrainer(
            str(model_dir), answer_reward(), args, world.questions("train"), verifier=WorldVerifier(world, **oracle)
        )
        trainer.train()
        # Every arm is measured by the same oracle.
        found = evaluate_world(trainer.model, trainer.processing_class, world, world.questions("test"), seed=seed)
    return {name: found.metrics[name] for name in FIGURES}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model_dir = build_world_model()
    world, results = load_world(model_dir), {}
    for arm in args.arms:
        results[arm] = [run(model_dir, world, seed, *ARMS[arm]) for seed in args.seeds]
        if args.out:
            args.out.write_text(json.dumps({"seeds": args.seeds, "arms": results}, indent=2) + "\n", encoding="utf-8")
        cells = [[found[name] for found in results[arm]] for name in FIGURES]
        spread = [f"{statistics.mean(c):.3f} ± {statistics.stdev(c) if len(c) > 1 else 0:.3f}" for c in cells]
        if len(results) == 1:
            print("| arm | " + " | ".join(FIGURES) + " |\n|" + "---|" * (1 + len(FIGURES)))
        print(f"| {arm} | " + " | ".join(spread) + " |", flush=True)


if __name__ == "__main__":
    main()

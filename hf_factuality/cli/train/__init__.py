"""The command `hf-factuality train`: a module per method, with its flags and its run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from hf_factuality.cli.quiet import quiet_libraries
from hf_factuality.io.recipes import RECIPES
from hf_factuality.io.refusals import run_script


METHODS = {
    "fspo": "FSPO: GRPO on the answer and on the factuality of each reasoning sentence",
    "rlfh": "RLFH: PPO with a reward for each statement, paid at the token where it ends",
    "klcf": "KLCF: GRPO on checklist recall and on the truth of the claims, without retrieval",
    "mask_dpo": "Mask-DPO: DPO that masks the false sentences of the chosen answer and the true ones of the rejected",
    "fdpo": "F-DPO: DPO with a factuality label per answer, label flips and a margin",
    "abstention": "TruthRL, KnowRL, RLCR, DCPO: GRPO that rewards abstention or calibrated confidence",
    "tools": "Rollouts that search: GRPO on the answer, on what the search supports and on citations",
    "rtuning": "R-Tuning: SFT that teaches the model to refuse what it does not know",
    "raft": "RAFT: sample answers, keep the best one by a verifier, SFT on it, and repeat",
    "self_correction": "Self-correction: answers that the model checks itself and revises; SFT, DPO and RL",
    "process_reward": "ER-PRM, Math-Shepherd: a reward model for each step of a solution",
    "rag_reward": "RAG-Reward: a reward model of answers to questions with passages, on four axes",
    "averaging": "AMA: average an aligned model with the one before alignment, with learned ratios",
    "probe": "Hallucination probe: a head on a frozen model that marks hallucinated tokens",
    "truthfulness": "Truthfulness model: P(true) of a claim, without evidence",
    "verifier": "A judge of your own: an encoder that reads a claim beside its evidence",
    "token_reward_model": "PPO against a reward model that scores every token",
}
"""What each method is, in a line. Its module is only imported when it runs: it needs torch and TRL."""


def add_parser(commands: Any) -> None:
    """Add `train` to the subparsers of the `hf-factuality` command."""
    train = commands.add_parser(
        "train",
        help="train a model by one of the methods",
        description="Trains a model by METHOD. Without more flags it trains a small model on made-up data, in minutes on a CPU, and "
        "shows what changed. `hf-factuality train METHOD --help` shows the flags of a method.",
        epilog="On several GPUs: accelerate launch --config_file FILE -m hf_factuality train METHOD ..., or torchrun "
        "-m hf_factuality train METHOD ... --config takes a file, or a recipe of the package such as "
        f"recipes/fspo/qwen2.5-7b-instruct.yaml. The recipes are in {RECIPES}.",
    )
    train.set_defaults(run=partial(_help, train))
    methods = train.add_subparsers(title="methods", metavar="METHOD")
    for method, line in METHODS.items():
        own = methods.add_parser(method, help=line, add_help=False)  # its flags are those of its dataclasses
        own.set_defaults(run=partial(_train, method), settings=[])


def run_training(method: str, words: Sequence[str] | None = None) -> None:
    """Run a training by its flags, by default those of the command line; it ends in one line if it refuses its input."""
    words = sys.argv[1:] if words is None else words

    def main() -> None:
        quiet_libraries()
        import_module("hf_factuality.trainers.lm_head").score_labelled_positions_on_cpus()
        import_module(f"hf_factuality.cli.train.{method}").main(words)

    run_script(main, f"hf-factuality train {method}")


def _train(method: str, args: argparse.Namespace) -> int:
    run_training(method, args.settings)
    return 0


def _help(train: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    train.print_help()
    return 0

"""The command `hf-factuality plan`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from typing import Any

from hf_factuality.cli.shared import add_flag


_PHASES = {"generate": "while completions are generated", "score": "while completions are scored", "critic": "in the critic's passes", "backward": "in the policy's passes",
           "step": "in the optimizer's step"}  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add `plan` to the subparsers of the `hf-factuality` command."""
    parser = commands.add_parser(
        "plan",
        help="what a training takes of each GPU's memory, and how to share it",
        description="Reads the configuration of a model and the settings of a training, and prints term by term what each GPU "
        "has to hold for the longest texts; nothing is loaded or run. The way to share the model that needs least "
        "communication and fits is taken, unless one is named. All other flags are settings of the training or the model, as "
        "its script takes them (--per_device_train_batch_size 4).",
        epilog="Exit status: 0, 1 if it does not fit, 2 for bad input. What every term is: docs/scaling.md.",
    )
    flag = parser.add_argument
    add_flag(parser, "model", ": id on the Hub or folder (default: that of --config)")
    method = "method of the training: fspo, rlfh, mask_dpo, fdpo, or package.module:Class, a configuration of your own"
    named = flag("--method", required=True, metavar="METHOD", help=method)
    named.completer = lambda **_: ("fspo", "rlfh", "mask_dpo", "fdpo")  # type: ignore[attr-defined]  # read by argcomplete
    add_flag(parser, "config", ", such as those in recipes/; its flags may follow too", metavar="FILE")
    flag("--gpus", type=int, default=1, help="processes of the training, one per GPU (default 1)")
    flag(
        "--gpu_memory",
        type=float,
        default=80.0,
        metavar="GB",
        help="memory of one GPU in GB of 10^9 bytes (default 80)",
    )
    flag("--prompt_length", type=int, default=512, help="tokens of the longest prompt (default 512)")
    flag(
        "--sharding",
        help="how the model is sharded: ddp, zero2, zero3 or fsdp2 (default: what needs least communication and fits)",
    )
    add_flag(parser, "json")
    parser.set_defaults(run=_plan, settings=[])


def _plan(args: argparse.Namespace) -> int:
    from hf_factuality.trainers.memory.training_plan import plan

    names = ("method", "config", "model", "gpus", "gpu_memory", "prompt_length", "sharding")
    training = plan(**{name: getattr(args, name) for name in names}, **_settings(args.settings))
    if args.json:
        print(json.dumps(training.to_dict()))
        return 0 if training.fits else 1
    print(f"{training.method} with {training.model} on {training.gpus} x {training.gpu_memory:g} GB\n")
    for one in training.plans:
        ending = "" if one.fits else ": does not fit"
        print(f"{one.sharding:6} {one.peak / 1e9:8.1f} GB at most, {_PHASES[one.phase]}{ending}")
    best = training.best
    print(f"\n{best.sharding}, GB on each GPU:")
    for term in best.terms:
        elsewhere = "" if best.phase in term.phases else " (not at the peak)"
        print(f"{term.bytes / 1e9:8.2f}  {term.name}: {term.why}{elsewhere}")
    if best.fits:
        launch = f"accelerate launch --config_file recipes/accelerate/{best.sharding}.yaml"
        print(f"\n{launch} --num_processes {training.gpus} ...")
        if training.gpus > 8:
            print("on several machines: docs/scaling.md#schedulers")
        return 0
    print("\nWould take less, GB on each GPU:" if training.advice else "\nNo change that is known here takes less.")
    for change in training.advice:
        words, verdict = shlex.join(change.flags), "fits" if change.plan.fits else "does not fit"
        print(f"{change.plan.peak / 1e9:8.1f}  {words} ({change.plan.sharding}): {verdict}")
    return 1


def _settings(words: Sequence[str]) -> dict[str, Any]:
    """The flags of a training's script by name; one alone is `True`, or `False` if it begins with `no_`."""
    words_of: dict[str, list[str]] = {}
    name = None
    for word in words:
        if word.startswith("--") and word != "--":
            name, given, value = word[2:].partition("=")
            words_of[name] = [value] if given else []
        elif name is None:
            raise ValueError(f"{word!r} belongs to no flag")
        else:
            words_of[name].append(word)
    settings: dict[str, Any] = {}
    for name, values in words_of.items():
        if not values:
            settings[name.removeprefix("no_")] = not name.startswith("no_")
        else:
            settings[name] = values[0] if len(values) == 1 else values
    return settings

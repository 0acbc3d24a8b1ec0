"""The command `hf-factuality world`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import add_flag


def add_parser(commands: Any) -> None:
    """Add `world` to the subparsers of the `hf-factuality` command."""
    world = commands.add_parser("world", help="closed worlds: synthetic people, and small models that know about them")
    actions = world.add_subparsers(title="actions", required=True)
    build = actions.add_parser(
        "build",
        help="train the model of a world from scratch and print what it knows",
        description="Trains the model (or finds the one trained before), prints what it knows, and the directory last.",
    )
    flag = build.add_argument
    flag(
        "--size",
        default="tiny",
        help="size of the world: 'demo', 'tiny' (2 million parameters, CPU), 'small' (30) or 'base' (100)",
    )
    add_flag(build, "seed", ": of the facts, the texts and the initial weights (default 0)", default=0)
    add_flag(build, "language", ": of the texts, en (default) or zh", default="en")
    flag("--tokenizer", default="word", help="tokenizer: word (default) or bpe")
    add_flag(build, "out", ": folder of the model (default: in the cache)", metavar="DIR")
    add_flag(build, "device")
    flag("--threads", type=int, default=1, help="threads on a CPU; with 1 the weights are the same on every run")
    build.set_defaults(run=_build_world)
    export = actions.add_parser(
        "export",
        help="write the datasets of a world as JSON Lines",
        description="Questions, single facts and biographies of both splits, with evidence, as the trainers take them.",
    )
    export.add_argument("model", type=Path, help="directory of a world's model, as 'build' prints it")
    add_flag(export, "out", ": folder of the datasets", required=True, metavar="DIR")
    export.set_defaults(run=_export_world)


def _build_world(args: argparse.Namespace) -> int:
    from dataclasses import replace

    import torch

    from hf_factuality.worlds import SIZES, build_world_model
    from hf_factuality.worlds.evaluate import format_knowledge, measure_knowledge

    if args.threads < 1:
        raise ValueError(f"--threads must be at least 1, got {args.threads}")
    if args.size not in SIZES:
        raise ValueError(f"--size {args.size!r} is unknown; choose one of {', '.join(SIZES)}")
    world, model = SIZES[args.size]
    folder = build_world_model(
        replace(world, seed=args.seed, language=args.language),
        args.out,
        replace(model, seed=args.seed, tokenizer=args.tokenizer),
        device=args.device,
        num_threads=args.threads,
    )
    torch.set_num_threads(args.threads)
    print(format_knowledge(measure_knowledge(folder), folder))
    print(f"\n{folder}")
    return 0


def _export_world(args: argparse.Namespace) -> int:
    from hf_factuality.worlds import load_world

    for path, rows in load_world(args.model).export(args.out).items():
        print(f"{rows} rows in {path}")
    return 0

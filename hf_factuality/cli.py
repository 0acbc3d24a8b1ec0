"""The `hf-factuality` command."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_factuality import __version__
from hf_factuality.checkpoints._cli import add_parser as add_merge_parser
from hf_factuality.data._cli import add_builders
from hf_factuality.evaluation._cli import add_evaluate, add_verify
from hf_factuality.hub._cli import add_parser as add_push_parser
from hf_factuality.io.refusals import REFUSALS, refuse
from hf_factuality.io.signals import on_signals
from hf_factuality.metrics._cli import add_parser as add_metrics_parser
from hf_factuality.retrieval._cli import add_parser as add_index_parser
from hf_factuality.trainers._cli import add_parser as add_plan_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 (below a threshold), 2 (bad input, or a verifier that failed) or 128
    and the number of the signal that ended it (130 for Ctrl-C)."""
    parser = _parser()
    args, others = parser.parse_known_args(_with_underscores(sys.argv[1:] if argv is None else argv))
    if others and not hasattr(args, "settings"):
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    args.settings = others
    try:
        with on_signals(("SIGTERM", "SIGHUP") if getattr(args, "cleans_up", False) else (), _interrupt):
            return args.run(args)
    except KeyboardInterrupt as error:
        number = error.args[0] if error.args else signal.SIGINT
        print(f"hf-factuality: ended by {signal.Signals(number).name}", file=sys.stderr)
        return 128 + number
    except REFUSALS as error:
        return refuse("hf-factuality", error)


def _interrupt(number: int) -> None:
    """End the command as Ctrl-C does, so that what it has begun is removed."""
    raise KeyboardInterrupt(number)


def _with_underscores(argv: Sequence[str]) -> list[str]:
    """Arguments with `--fail-under` spelled `--fail_under`; what follows a lone `--` or `=` stays."""
    end = argv.index("--") if "--" in argv else len(argv)
    spelled = [re.sub("^--[^=]*", lambda flag: "--" + flag[0][2:].replace("-", "_"), text) for text in argv[:end]]
    return [*spelled, *argv[end:]]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-factuality", description="Factuality of text that a language model wrote."
    )
    parser.add_argument("--version", action="version", version=f"hf_factuality {__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    for add in (
        add_verify,
        _add_world,
        add_evaluate,
        add_metrics_parser,
        add_index_parser,
        add_builders,
        add_merge_parser,
        add_push_parser,
        add_plan_parser,
    ):
        add(commands)
    for name in ("merge", "average"):
        commands.choices[name].set_defaults(cleans_up=True)
    return parser


def _add_world(commands) -> None:
    world = commands.add_parser("world", help="closed worlds: synthetic people, and small models that know about them")
    actions = world.add_subparsers(title="actions", required=True)
    build = actions.add_parser(
        "build",
        help="train the model of a world from scratch and print what it knows",
        description="Trains the model (or finds the one trained before), prints what it knows, and the directory last.",
    )
    flag = build.add_argument
    flag("--size", default="tiny", help="'demo', 'tiny' (2 million parameters, CPU), 'small' (30) or 'base' (100)")
    flag("--seed", type=int, default=0, help="of the facts, the texts and the initial weights")
    flag("--language", default="en", help="'en' or 'zh'")
    flag("--tokenizer", default="word", help="'word' or 'bpe'")
    flag("--out", type=Path, help="directory; the cache by default")
    flag("--device", help="where to train; a CUDA device by default if there is one")
    flag("--threads", type=int, default=1, help="on a CPU; with 1 the weights are the same on every run")
    build.set_defaults(run=_build_world)
    export = actions.add_parser(
        "export",
        help="write the datasets of a world as JSON Lines",
        description="Questions, single facts and biographies of both splits, with evidence, as the trainers take them.",
    )
    export.add_argument("model", type=Path, help="directory of a world's model, as 'build' prints it")
    export.add_argument("--out", type=Path, required=True, help="folder to write to")
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
    from hf_factuality.worlds.world import SPLITS

    world = load_world(args.model)
    args.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        tables = {"single_facts": world.questions(split, hops=1), "biographies": world.biographies(split)}
        for hops in range(2, world.config.max_hops + 1):
            tables[f"questions_{hops}_hops"] = world.questions(split, hops=hops)
        for name, dataset in tables.items():
            path = args.out / f"{name}_{split}.jsonl"
            dataset.to_json(path, force_ascii=False)
            print(f"{len(dataset)} rows in {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

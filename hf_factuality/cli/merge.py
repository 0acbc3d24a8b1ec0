"""The commands `hf-factuality merge` and `average`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hf_factuality.cli.push import add_hub_flags, hub_flags
from hf_factuality.cli.shared import add_flag, meaning


def add_parser(commands: Any) -> None:
    """Add `merge` and `average` to the subparsers of the `hf-factuality` command."""
    merge = commands.add_parser(
        "merge",
        help="make a model folder out of the checkpoint of a training run",
        description="Makes a folder that from_pretrained loads out of rank files of FSDP2 or verl, a torch distributed "
        "checkpoint (accelerate), DeepSpeed ZeRO-1, -2 or -3, a PEFT adapter, or a checkpoint of this package's trainers. The "
        "format is recognised. One output file is in memory at a time, and nothing in a file is run. Every flag may be written with "
        "- for _.",
        epilog="Exit status: 0, or 2 if the checkpoint is not whole, does not fit its configuration or is unsafe to read, or "
        "DIR cannot be written; there is then no DIR; 130, 143 or 129 if a signal ended it. The formats and errors are "
        "described in docs/merge.md.",
    )
    merge.add_argument("checkpoint", type=Path, help="folder of the checkpoint")
    _add_common(merge, "checkpoint", "that of the checkpoint")
    merge.set_defaults(run=_merge)
    average = commands.add_parser(
        "average",
        help="average a model with the one that it was aligned from",
        description="Makes a folder that from_pretrained loads out of two models: RATIO * BEFORE + (1 - RATIO) * AFTER, with one "
        "ratio for all tensors, or one for each block of layers, layer or linear module. Reads all that `merge` reads, in as little "
        "memory.",
        epilog="Exit status as of `merge`. The formulas are described in docs/averaging.md.",
    )
    average.add_argument("before", help="folder or model on the Hub (id, id@revision): before alignment")
    average.add_argument("after", help="the same of the aligned model; it may be an adapter")
    ratios = average.add_mutually_exclusive_group(required=True)
    ratios.add_argument(
        "--alpha",
        type=float,
        nargs="+",
        metavar="A",
        help=meaning("alpha", ": one for all tensors, in [0, 1]; several make a folder each in DIR"),
    )
    ratios.add_argument(
        "--alphas", type=float, nargs="+", metavar="A", help="ratios of the blocks, or of the layers, in order"
    )
    ratios.add_argument(
        "--ratios", metavar="FILE", help="learned ratios: ratios.json of AdaptiveAveragingTrainer, or its folder"
    )
    add_flag(average, "level", ", of --alphas: block (default) or layer", default="block")
    add_flag(average, "blocks", ", of --alphas (default: as many as there are)", metavar="K")
    released = "embeddings and norms of BEFORE, as in the script of AMA"
    add_flag(average, "variant", f": paper (default), or released, of --alphas: {released}", default="paper")
    merge_method = "how two tensors become one: linear (default), or slerp, which needs mergekit"
    average.add_argument("--merge_method", default="linear", help=merge_method)
    _add_common(average, "model after alignment", "the wider one of the two")
    average.set_defaults(run=_average)


def _add_common(parser: argparse.ArgumentParser, what: str, dtype: str) -> None:
    add_flag(parser, "out", ": folder of the model; new or empty", required=True, metavar="DIR")
    add_flag(parser, "dtype", f": float32, bfloat16 or float16 (default: {dtype})")
    parser.add_argument(
        "--max_shard_size", default="5GB", metavar="SIZE", help="largest file of weights, as 5GB (default) or 512MiB"
    )
    instead = f": folder, or model on the Hub (id, id@revision), instead of those of the {what}"
    add_flag(parser, "model_config", instead, metavar="DIR_OR_ID")
    parser.add_argument(
        "--base_model",
        metavar="DIR_OR_ID",
        help="base of an adapter (folder, id, id@revision), instead of the one that its configuration names",
    )
    add_flag(parser, "dry_run", ": check, print the plan and write nothing")
    parser.add_argument(
        "--allow_unsafe_pickle",
        action="store_true",
        help="read files that ask for more than tensors; they can then run any code in your name",
    )
    add_flag(parser, "trust_remote_code")
    add_flag(parser, "push_to_hub", ", as `hf-factuality push` does; the account is tried first", metavar="REPO")
    add_hub_flags(parser)


def _merge(args: argparse.Namespace) -> int:
    from hf_factuality.checkpoints.merge import merge

    return _write(args, lambda **common: [merge(args.checkpoint, args.out, **common)])


def _average(args: argparse.Namespace) -> int:
    from hf_factuality.methods.averaging.average import average

    own = {name: getattr(args, name) for name in ("level", "blocks", "variant", "merge_method")}
    if args.alpha is not None:
        own["alpha"] = args.alpha if len(args.alpha) > 1 else args.alpha[0]
    else:
        own["ratios"] = args.alphas if args.alphas is not None else args.ratios
    return _write(args, lambda **common: average(args.before, args.after, args.out, **own, **common))


def _write(args: argparse.Namespace, work: Callable[..., list[Any]]) -> int:
    from hf_factuality.errors import HubError

    flags, where = hub_flags(args)
    going_on = ""

    def show(reports: Sequence[Any], repo_id: str | None) -> None:
        nonlocal going_on
        for report in reports:
            print(report, file=sys.stderr if not args.dry_run else sys.stdout)
            if not args.dry_run:
                print(report.out)
        if repo_id is not None:
            going_on = f"go on with: {shlex.join(['hf-factuality', 'push', str(args.out), repo_id, *flags])}"
            print(f"pushing; if this is cut, {going_on}", file=sys.stderr)

    common = (
        "dtype",
        "max_shard_size",
        "model_config",
        "base_model",
        "allow_unsafe_pickle",
        "trust_remote_code",
        "dry_run",
    )
    given = {name: getattr(args, name) for name in (*common, "push_to_hub")}
    try:
        reports = work(**given, **where, on_written=show)
    except HubError as error:
        if not going_on:
            raise
        raise HubError(f"{error}; {going_on}") from None
    if reports[0].published is not None:
        print(reports[0].published.address)
    return 0

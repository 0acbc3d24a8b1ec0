"""The command `hf-factuality merge`."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import Any

from hf_factuality.hub._cli import add_hub_flags, hub_flags


def add_parser(commands: Any) -> None:
    """Add `merge` to the subparsers of the `hf-factuality` command."""
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
    merge.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder of the model; new or empty")
    merge.add_argument("--dtype", help="float32, bfloat16 or float16; by default the checkpoint's")
    merge.add_argument(
        "--max_shard_size", default="5GB", metavar="SIZE", help="largest file of weights: 5GB (default), 512MiB, ..."
    )
    merge.add_argument(
        "--config",
        metavar="DIR_OR_ID",
        help="folder, or model on the Hub (id, id@revision), whose configuration, tokenizer and chat template are used instead of the "
        "checkpoint's",
    )
    merge.add_argument(
        "--base_model",
        metavar="DIR_OR_ID",
        help="of an adapter (folder, id, id@revision), instead of the one that its configuration names",
    )
    merge.add_argument("--dry_run", action="store_true", help="check, print the plan and write nothing")
    merge.add_argument(
        "--allow_unsafe_pickle",
        action="store_true",
        help="read files that ask for more than tensors; they can then run any code in your name",
    )
    merge.add_argument("--trust_remote_code", action="store_true", help="run code that the configuration names")
    merge.add_argument(
        "--push_to_hub",
        metavar="REPO",
        help="publish the model, as `hf-factuality push` does; the account is tried first",
    )
    add_hub_flags(merge)
    merge.set_defaults(run=_merge)


def _merge(args: argparse.Namespace) -> int:
    from hf_factuality.checkpoints.merge import merge

    flags, where = hub_flags(args)
    if args.push_to_hub is None and flags:
        raise ValueError(f"{flags[0]} is for --push_to_hub REPO")
    if args.push_to_hub is not None and not args.dry_run:
        from hf_factuality.io.upload import prepare_repo

        # The work can take hours: whether the account may write to the repository is found out before it.
        args.push_to_hub = prepare_repo(args.push_to_hub, new_private=True, **where)
    report = merge(
        args.checkpoint,
        args.out,
        dtype=args.dtype,
        max_shard_size=args.max_shard_size,
        config=args.config,
        base_model=args.base_model,
        allow_unsafe_pickle=args.allow_unsafe_pickle,
        trust_remote_code=args.trust_remote_code,
        dry_run=args.dry_run,
    )
    print(report, file=sys.stderr if not args.dry_run else sys.stdout)
    if not args.dry_run:
        print(report.out)
        if args.push_to_hub is not None:
            _push(args, flags, where)
    return 0


def _push(args: argparse.Namespace, flags: list[str], where: dict[str, Any]) -> None:
    from hf_factuality.errors import HubError
    from hf_factuality.hub.push import push_folder

    command = shlex.join(["hf-factuality", "push", str(args.out), args.push_to_hub, *flags])
    print(f"pushing; if this is cut, go on with: {command}", file=sys.stderr)
    try:
        done = push_folder(args.out, args.push_to_hub, **where)
    except HubError as error:
        raise HubError(f"{error}; the model is in {args.out}; go on with: {command}") from None
    print(done.address)

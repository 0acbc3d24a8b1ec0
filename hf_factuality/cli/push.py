"""The command `hf-factuality push`, and the flags that `merge` shares with it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import add_flag, as_flags, flag_names


def add_parser(commands: Any) -> None:
    """Add `push` to the subparsers of the `hf-factuality` command."""
    push = commands.add_parser(
        "push",
        help="publish a model, dataset or Space in one commit, and nothing else that lies in its folder",
        description="Uploads the files of DIR that are a part of a model (weights, configuration, tokenizer, card, results, "
        "verifier), large ones first, and publishes them in one commit. Killed, it goes on when it is started again. The "
        "account is that of `hf auth login` or HF_TOKEN. Every flag may be written with - for _.",
        epilog="Exit status: 0, or 2 if the folder holds no whole model, a file holds a secret or a path of this "
        "machine, or the Hub refuses or cannot be reached; nothing of the push is visible then. Prints the address. See "
        "docs/push.md.",
    )
    push.add_argument("folder", type=Path, metavar="DIR", help="folder of the model")
    push.add_argument("repo_id", metavar="REPO", help="NAMESPACE/NAME; made if it does not exist")
    kinds = ("model", "dataset", "space")
    push.add_argument("--repo_type", choices=kinds, default="model", help="what DIR is (default model)")
    push.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files to add, by path or name; never pickles, logs and the state of a run; may be repeated",
    )
    push.add_argument(
        "--exclude", action="append", default=[], metavar="PATTERN", help="files to leave out; may be repeated"
    )
    push.add_argument(
        "--allow_path",
        action="append",
        default=[],
        metavar="FILE:LINE",
        help="publish a path that was refused there (of JSON and headers of weights: FILE:KEY); may be repeated",
    )
    push.add_argument(
        "--allow_secret",
        action="append",
        default=[],
        metavar="FILE:LINE",
        help="a place, as the error names it, that looks like a secret and is none, or that could not be searched; may be "
        "repeated",
    )
    push.add_argument("--commit_message", metavar="TEXT", help="title of the commit, or of the pull request")
    add_flag(push, "dry_run", ": list the files and send nothing; needs no account")
    add_hub_flags(push)
    push.set_defaults(run=partial(_push, flag_names(push)))


def add_hub_flags(parser: argparse.ArgumentParser) -> None:
    """Add who may read the repository, and where in it the commit goes."""
    access = parser.add_mutually_exclusive_group()
    private = " (it is by default), and refuse one that is public"
    add_flag(access, "private", private, action="store_true", default=None)
    access.add_argument("--public", dest="private", action="store_false", help="make a new repository public")
    parser.add_argument("--pull_request", action="store_true", help="open a pull request instead of committing")
    add_flag(parser, "branch")


def hub_flags(args: argparse.Namespace) -> tuple[list[str], dict[str, Any]]:
    """Those of [`add_hub_flags`] that were given, and all of them as arguments of [`~hf_factuality.hub.push.push`]."""
    flags = ["--pull_request"] if args.pull_request else []
    flags += ["--branch", args.branch] if args.branch else []
    flags += [] if args.private is None else ["--private"] if args.private else ["--public"]
    return flags, {"private": args.private, "pull_request": args.pull_request, "branch": args.branch}


def _push(flags: Collection[str], args: argparse.Namespace) -> int:
    from hf_factuality.hub.push import PushPlan, push

    plan_or_done = push(
        args.folder,
        args.repo_id,
        repo_type=args.repo_type,
        include=args.include,
        exclude=args.exclude,
        allow_paths=args.allow_path,
        allow_secrets=args.allow_secret,
        commit_message=args.commit_message,
        dry_run=args.dry_run,
        on_plan=lambda plan: print(as_flags(str(plan), flags), file=sys.stderr),
        **hub_flags(args)[1],
    )
    if isinstance(plan_or_done, PushPlan):
        print(as_flags(str(plan_or_done), flags))
        return 0
    for name in plan_or_done.deleted:
        print(f"removed {name}, which was of an earlier model", file=sys.stderr)
    print(plan_or_done.address)
    return 0

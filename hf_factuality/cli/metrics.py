"""The command `hf-factuality metrics`: install, list and publish the metrics."""

from __future__ import annotations

import argparse
from typing import Any

from hf_factuality.cli.shared import add_flag


def add_parser(commands: Any) -> None:
    """Add the command `metrics` to the subparsers of `hf-factuality`."""
    metrics = commands.add_parser(
        "metrics", help="metrics for Hugging Face's evaluate: install, list and publish them"
    )
    actions = metrics.add_subparsers(title="actions", required=True)
    install = actions.add_parser(
        "install",
        help="make evaluate.load('factscore') work by name, offline too",
        description="Copies the metric modules into the modules cache of evaluate. Safe to repeat; repeat it after an "
        "upgrade.",
    )
    install.set_defaults(run=_install)
    listing = actions.add_parser("list", help="what each metric measures, and whether it is installed")
    listing.set_defaults(run=_list)
    for parser in (install, listing):
        parser.add_argument(
            "--modules_cache", help="modules cache of evaluate, instead of HF_MODULES_CACHE or modules under HF_HOME"
        )
    push = actions.add_parser(
        "push",
        help="publish metrics as Spaces: evaluate.load('NAMESPACE/factscore') then works",
        description="Makes or updates a Space per metric, with the account of `hf auth login` or HF_TOKEN.",
    )
    push.set_defaults(run=_push)
    push.add_argument("metrics", nargs="*", metavar="METRIC", help="default: all")
    push.add_argument("--namespace", required=True, help="user or organisation that owns the Spaces")
    push.add_argument(
        "--requirement",
        help="what a Space installs, of one version: 'hf_factuality @ git+https://github.com/OWNER/REPO@COMMIT' or "
        "hf_factuality==VERSION (default: what is installed here, if others can have it)",
    )
    add_flag(push, "private", default=None)
    add_flag(push, "out", ": folder that the Spaces are written to as folders; nothing is published", metavar="DIR")


def _install(args: argparse.Namespace) -> int:
    from hf_factuality.metrics.install import install

    found = install(args.modules_cache)
    for name, path in found.items():
        print(f"{name:12}{path}")
    print(f"{len(found)} metrics installed: evaluate.load('factscore') finds them by name, offline too")
    return 0


def _list(args: argparse.Namespace) -> int:
    from hf_factuality.metrics.install import describe_metrics, installed

    present = installed(args.modules_cache)
    for name, text in describe_metrics().items():
        print(f"{name:12}{'installed' if name in present else '-':11}{text}")
    if len(present) < len(describe_metrics()):
        print("install them with: hf-factuality metrics install")
    return 0


def _push(args: argparse.Namespace) -> int:
    from hf_factuality.metrics.push import push_metrics, write_spaces

    names, options = args.metrics or None, {"namespace": args.namespace, "requirement": args.requirement}
    if args.out:
        for name, path in write_spaces(args.out, names, **options).items():
            print(f"{name:12}{path}")
        return 0
    for name, address in push_metrics(names, private=args.private, **options).items():
        print(f"{name:12}{address}")
    print(f"evaluate.load('{args.namespace}/NAME') loads them")
    return 0

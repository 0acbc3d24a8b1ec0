"""`hf-factuality metrics`: install and list the metrics."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add the command `metrics` to the subparsers of `hf-factuality`."""
    metrics = commands.add_parser("metrics", help="metrics for Hugging Face's evaluate: install and list them")
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
        parser.add_argument("--modules_cache", help="instead of HF_MODULES_CACHE, or modules under HF_HOME")


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

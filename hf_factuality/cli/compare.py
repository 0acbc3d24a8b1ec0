"""The command `hf-factuality compare`."""

from __future__ import annotations

import argparse
from typing import Any


def add_parser(commands: Any) -> None:
    """Add `compare` to the subparsers of the `hf-factuality` command."""
    compare = commands.add_parser(
        "compare",
        help="put two files of results side by side",
        description="Prints a table in Markdown of what two files of `hf-factuality evaluate` both measured in the same way.",
        epilog="Exit status: 0, or 2 if a file is none of results, or the two have no benchmark and metric in common.",
    )
    compare.add_argument("before", metavar="BEFORE", help="file of results")
    compare.add_argument("after", metavar="AFTER", help="file of results, such as of the model after training")
    compare.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.comparison import compare

    print(compare(args.before, args.after))
    return 0

"""The command `hf-factuality compare`."""

from __future__ import annotations

import argparse
from typing import Any

from hf_factuality.cli.shared import add_flag, print_results


def add_parser(commands: Any) -> None:
    """Add `compare` to the subparsers of the `hf-factuality` command."""
    compare = commands.add_parser(
        "compare",
        help="put two files of results side by side",
        description="Shows what two files of `hf-factuality evaluate` both measured in the same way, and which changes are more than "
        "noise. Prints a table in a terminal, and otherwise one JSON object, with the table on the error stream.",
        epilog="Exit status: 0, or 2 if a file is none of results, or the two have no benchmark and metric in common.",
    )
    compare.add_argument("before", metavar="BEFORE", help="file of results")
    compare.add_argument("after", metavar="AFTER", help="file of results, such as of the model after training")
    add_flag(compare, "json")
    compare.set_defaults(run=_compare)


def _compare(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.comparison import compare

    found = compare(args.before, args.after)
    print_results(found.to_dict(), found.table(), found.notes(), args.json)
    return 0

"""The command `hf-factuality view`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import add_flag, whole_number


def add_parser(commands: Any) -> None:
    """Add `view` to the subparsers of the `hf-factuality` command."""
    view = commands.add_parser(
        "view",
        help="look at the completions of a training run or of a file in a browser",
        description="Shows completions painted by label, with filters, search, evidence and curves; of a training step by step, "
        "and two runs side by side. Only this machine can reach the page. It is served until SIGTERM or Ctrl-C.",
        epilog="Needs pip install hf_factuality[view]. Exit status: 0 after SIGTERM; 2 if there is nothing to show.",
    )
    flag = view.add_argument
    what = "folder of a training, file of verify --out, or answers or results of evaluate"
    flag("path", type=Path, metavar="RUN_OR_FILE", help=what)
    flag("other", type=Path, nargs="?", metavar="OTHER", help="a second one, to stand beside the first")
    add_flag(view, "completion_column", default="completion")
    flag(
        "--rows",
        type=whole_number,
        default=1000,
        metavar="N",
        help="completions that are shown at once (default 1000)",
    )
    add_flag(view, "port", " (default 7860); 0 for a free one", default=7860)
    add_flag(view, "space", metavar="FOLDER")
    view.set_defaults(run=_view)


def _view(args: argparse.Namespace) -> int:
    from hf_factuality.viewer.view import view

    if args.space:
        from hf_factuality.viewer.space import write_view_space

        print(write_view_space(args.space, args.path, args.other, args.completion_column, args.rows))
        return 0
    view(
        args.path,
        args.other,
        completion_column=args.completion_column,
        rows=args.rows,
        port=args.port,
        on_start=started,
    )
    return 0


def started(address: str) -> None:
    """Say where a page is."""
    print(f"hf-factuality: open {address} (Ctrl-C ends)", file=sys.stderr, flush=True)

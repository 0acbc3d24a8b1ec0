"""The command `hf-factuality demo`."""

from __future__ import annotations

import argparse
from typing import Any

from hf_factuality.cli.shared import add_flag
from hf_factuality.cli.view import started
from hf_factuality.verifiers.registry import VERIFIER_HELP
from hf_factuality.viewer import DEMO_VERIFIERS


def add_parser(commands: Any) -> None:
    """Add `demo` to the subparsers of the `hf-factuality` command."""
    demo = commands.add_parser(
        "demo",
        help="try verifiers in a browser: paste a completion and its evidence",
        description="Shows a page with fields for a question, a completion and evidence, and paints what the chosen verifier finds. "
        "Only this machine can reach the page. It is served until SIGTERM or Ctrl-C.",
        epilog="Needs pip install hf_factuality[view]. Exit status: 0 after SIGTERM; 2 if an argument is refused.",
    )
    choices = " ".join(DEMO_VERIFIERS)
    more = f"; may be repeated, for a choice of several (default {choices}): {VERIFIER_HELP}"
    add_flag(demo, "verifier", more, action="append")
    add_flag(demo, "port", " (default 7860); 0 for a free one", default=7860)
    add_flag(demo, "space", metavar="FOLDER")
    demo.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
    verifiers = args.verifier or DEMO_VERIFIERS
    if args.space:
        from hf_factuality.viewer.space import write_demo_space

        print(write_demo_space(args.space, verifiers))
        return 0
    from hf_factuality.viewer.demo import demo

    demo(verifiers, port=args.port, on_start=started)
    return 0

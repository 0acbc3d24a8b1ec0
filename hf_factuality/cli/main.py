"""The `hf-factuality` command: its parser, and how it ends."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from hf_factuality import __version__
from hf_factuality.cli.agree import add_parser as add_agree_parser
from hf_factuality.cli.builders import add_builders
from hf_factuality.cli.compare import add_parser as add_compare_parser
from hf_factuality.cli.demo import add_parser as add_demo_parser
from hf_factuality.cli.evaluate import add_parser as add_evaluate_parser
from hf_factuality.cli.index import add_parser as add_index_parser
from hf_factuality.cli.merge import add_parser as add_merge_parser
from hf_factuality.cli.metrics import add_parser as add_metrics_parser
from hf_factuality.cli.plan import add_parser as add_plan_parser
from hf_factuality.cli.push import add_parser as add_push_parser
from hf_factuality.cli.serve import add_parser as add_serve_parser
from hf_factuality.cli.shared import as_flags, flag_names, misspelt_flag, with_underscores
from hf_factuality.cli.train import add_parser as add_train_parser
from hf_factuality.cli.verify import add_parser as add_verify_parser
from hf_factuality.cli.view import add_parser as add_view_parser
from hf_factuality.cli.world import add_parser as add_world_parser
from hf_factuality.io.refusals import REFUSALS, nearest, refuse
from hf_factuality.io.signals import on_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 (below a threshold), 2 (bad input, or a verifier that failed) or 128
    and the number of the signal that ended it (130 for Ctrl-C)."""
    parser = _parser()
    if "_ARGCOMPLETE" in os.environ:  # a shell asks what may follow
        import argcomplete

        argcomplete.autocomplete(parser)
    words = with_underscores(sys.argv[1:] if argv is None else argv)
    _check_words(parser, words)
    args, others = parser.parse_known_args(words)
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
        if words[:1] == ["train"]:  # which has told apart what is refused and what is a bug
            raise
        return refuse("hf-factuality", error, lambda message: as_flags(message, flag_names(parser)))


def _check_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> None:
    """End with one line and status 2 at a command or a flag that is not there, before anything else is found to be wrong."""
    commands = next(
        (action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None
    )
    if commands is not None:
        if not words or words[0].startswith("-"):
            return
        if words[0] in commands:
            return _check_words(commands[words[0]], words[1:])
        hint = nearest(words[0], commands) or f"choose one of {', '.join(commands)}"
        parser.exit(2, f"{parser.prog}: no command {words[0]!r}; {hint}\n")
    if "settings" in parser._defaults:  # which takes the flags of a training's script
        return
    if said := misspelt_flag(words, parser._option_string_actions, parser.prog):
        parser.exit(2, f"{parser.prog}: {said}\n")


def _help(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    parser.print_help()
    return 0


def _interrupt(number: int) -> None:
    """End the command as Ctrl-C does, so that what it has begun is removed."""
    raise KeyboardInterrupt(number)


class _Parser(argparse.ArgumentParser):
    """One that takes no beginning of a flag for the flag, so that a misspelt one is named; its commands are parsed alike."""

    def __init__(self, **settings: Any):
        super().__init__(**{"allow_abbrev": False, **settings})


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="hf-factuality", description="Factuality of text that a language model wrote.")
    parser.add_argument("--version", action="version", version=f"hf_factuality {__version__}")
    parser.set_defaults(run=partial(_help, parser))
    commands = parser.add_subparsers(title="commands")
    for add in (
        add_verify_parser,
        add_agree_parser,
        add_train_parser,
        add_world_parser,
        add_evaluate_parser,
        add_compare_parser,
        add_metrics_parser,
        add_index_parser,
        add_builders,
        add_merge_parser,
        add_push_parser,
        add_plan_parser,
        add_serve_parser,
        add_view_parser,
        add_demo_parser,
    ):
        add(commands)
    for name in ("merge", "average"):
        commands.choices[name].set_defaults(cleans_up=True)
    return parser

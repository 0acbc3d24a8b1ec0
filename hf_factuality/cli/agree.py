"""The command `hf-factuality agree`."""

from __future__ import annotations

import argparse
from typing import Any

from hf_factuality.cli.shared import add_flag, print_results, shown_table, whole_number
from hf_factuality.verifiers.registry import VERIFIER_HELP


def add_parser(commands: Any) -> None:
    """Add `agree` to the subparsers of the `hf-factuality` command."""
    agree = commands.add_parser(
        "agree",
        help="measure how well verifiers agree with human labels",
        description="Judges labelled claims by their evidence and prints, for each verifier, kappa, accuracy, AUROC, calibration, "
        "repeatability and cost, with 95 %% intervals. Prints a table in a terminal, and otherwise one JSON object, with the "
        "table on the error stream.",
        epilog="Exit status: 0, or 2 if a label cannot be read (said before anything is judged) or a verifier failed on every "
        "claim.",
    )
    flag = agree.add_argument
    flag("verifier", nargs="+", metavar="VERIFIER", help=f"verifier: {VERIFIER_HELP}")
    flag(
        "labels",
        help="JSON Lines, JSON, CSV, TSV or Parquet file of claims with evidence and a label: supported or not_supported, true "
        "or false, 1 or 0, or one of our labels; - for JSON Lines on standard input",
    )
    add_flag(agree, "verifier_base_url", ": of 'llm:MODEL' and 'anah:MODEL'", metavar="URL")
    add_flag(agree, "verifier_tokens", metavar="N")
    flag("--claim_column", default="claim", help="column with the claim (default claim)")
    add_flag(agree, "evidence_column", ": text or a list of texts (default evidence)", default="evidence")
    flag("--label_column", default="label", help="column with the label (default label)")
    add_flag(agree, "question_column", default="question")
    flag("--kind_column", default="kind", help="column with the kind of a claim, if it is there (default kind)")
    flag(
        "--group_column",
        default="group",
        help="column that claims share which are not independent, such as the id of their answer (default group; without it, "
        "claims with the same evidence are a group)",
    )
    flag("--repeats", type=whole_number, default=2, metavar="N", help="times that each claim is judged (default 2)")
    flag(
        "--resamples",
        type=int,
        default=1000,
        metavar="N",
        help="draws of the bootstrap for the intervals (default 1000)",
    )
    add_flag(agree, "seed", ": of the bootstrap, and of the halves for the tuned threshold (default 0)", default=0)
    add_flag(agree, "json")
    agree.set_defaults(run=_agree)


def _agree(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.agreement import agree

    given = {name: value for name, value in vars(args).items() if name not in ("run", "json", "settings")}
    found = agree(given.pop("verifier"), given.pop("labels"), **given)
    kinds = found.kinds_table()
    notes = [*(["", shown_table(kinds)] if kinds else []), "", *found.notes]
    print_results(found.to_dict(), found.table(), notes, args.json)
    return 0

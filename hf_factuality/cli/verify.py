"""The command `hf-factuality verify`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import (
    add_engine,
    add_flag,
    add_metric_args,
    add_output,
    add_scope,
    print_failures,
    print_results,
    read_metric_args,
    read_thresholds,
)
from hf_factuality.verifiers.registry import VERIFIER_HELP


def add_parser(commands: Any) -> None:
    """Add `verify` to the subparsers of the `hf-factuality` command."""
    verify = commands.add_parser(
        "verify",
        help="label the sentences of completions and print how much of them the evidence supports",
        description="Reads a file with a completion per row, and its evidence from a column or a second file; or "
        "conversations with tools, whose turns are judged by what tools returned before them. Prints a table in a "
        "terminal, and otherwise one JSON object, with the table on the error stream. Every flag may be written with - for _.",
        epilog="Exit status: 0; 1 if a score is below --fail_under or too much was not judged; 2 if the input is "
        "bad (said before anything is judged) or the verifier failed on every completion.",
    )
    flag = verify.add_argument
    flag("file", type=Path, help="JSON Lines, JSON, CSV, TSV or Parquet file; - for JSON Lines on standard input")
    add_flag(verify, "verifier", f": {VERIFIER_HELP} (default small)", default="small")
    add_flag(verify, "verifier_tokens", metavar="N")
    add_scope(verify)
    add_flag(verify, "completion_column", default="completion")
    flag(
        "--evidence",
        metavar="FILE_OR_COLUMN",
        help="evidence: a file of the same kinds, or a column of the answers (default 'evidence')",
    )
    add_flag(verify, "evidence_column", ": text or a list of texts, in the file of evidence or beside the answers")
    flag(
        "--id_column",
        help="column that joins a file of evidence to the answers (default 'id', else by the order of rows)",
    )
    add_flag(verify, "question_column", default="question")
    add_engine(verify)
    metrics = ": anah, factscore, longwiki, safe, veriscore, or your own module:function; several with commas"
    add_flag(verify, "metrics", metrics, action="append", default=[], metavar="NAME")
    add_metric_args(verify)
    add_flag(
        verify, "out", ": file of the rows with their labelled spans, each written as it is judged", metavar="FILE"
    )
    flag("--html", type=Path, help="file of a page with the sentences coloured by label")
    flag(
        "--html_rows", type=int, default=200, help="completions on the page, the lowest precision first (default 200)"
    )
    flag(
        "--junit", type=Path, metavar="FILE", help="file of JUnit's XML, with a test case per answer and per threshold"
    )
    flag(
        "--job_summary",
        type=Path,
        metavar="FILE",
        help="file that the scores and the worst answers are appended to as Markdown (default $GITHUB_STEP_SUMMARY)",
    )
    flag(
        "--guarantee",
        type=float,
        metavar="SHARE",
        help="share of the kept claims that is right at least, as 0.9; the others are marked (needs --guarantee_labels)",
    )
    flag(
        "--guarantee_labels",
        type=Path,
        metavar="FILE",
        help="file of labelled claims that the threshold of --guarantee is learnt from, drawn like the claims of the answers",
    )
    add_output(
        verify,
        "SHARE",
        "one of --metrics, or without any the precision; NAME=SHARE for one of them, 'precision', "
        "'decided_precision' or 'precision_per_answer'; may be repeated",
    )
    verify.set_defaults(run=_verify)


def _verify(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.verify import verify

    names = (
        "verifier", "verifier_tokens", "scope", "completion_column", "question_column", "evidence_column", "id_column",
        "metrics", "engine", "workers", "gpus_per_worker", "out", "html", "html_rows", "junit", "max_not_judged",
        "guarantee", "guarantee_labels",
    )  # fmt: skip
    found = verify(
        args.file,
        evidence=args.evidence or None,
        metric_args=read_metric_args(args.metric_args),
        fail_under=read_thresholds(args.fail_under),
        job_summary=args.job_summary or _step_summary(),
        keep_rows=False,
        **{name: getattr(args, name) for name in names},
    )
    print_results(found.summary, found.table(), found.notes, args.json)
    if found.failed:
        failed = f"the verifier failed on {found.failed} completions, which are left out"
        print(f"hf-factuality: {failed}; the first: {found.first_reason}", file=sys.stderr)
    return print_failures(found.failures)


def _step_summary() -> str | None:
    """The summary of the step that this runs in, where it can be written: a container may not have the folder."""
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    return path if path and os.access(os.path.dirname(path) or ".", os.W_OK) else None

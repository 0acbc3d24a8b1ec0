"""What several commands share: flags, how they are read, and what is printed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.reading.scopes import SCOPES


def with_underscores(argv: Sequence[str]) -> list[str]:
    """Arguments with `--fail-under` spelled `--fail_under`; what follows a lone `--` or `=` stays."""
    end = argv.index("--") if "--" in argv else len(argv)
    spelled = [re.sub("^--[^=]*", lambda flag: "--" + flag[0][2:].replace("-", "_"), text) for text in argv[:end]]
    return [*spelled, *argv[end:]]


def add_engine(parser: Any) -> None:
    """The flags `engine`, `workers` and `gpus_per_worker`."""
    engine = "who runs the work: this process (local, default) or Ray's workers, on a cluster with RAY_ADDRESS (ray)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=engine)
    parser.add_argument("--workers", type=int, metavar="N", help="of Ray (default: as many as there are CPUs here)")
    gpus = "for models that run in the worker: 1, or 0.25 where four share one (default 0; see docs/annotation.md)"
    parser.add_argument("--gpus_per_worker", type=float, metavar="G", help=gpus)


def add_scope(group: Any) -> None:
    group.add_argument(
        "--scope",
        choices=SCOPES,
        default=SCOPES[0],
        help="what of a completion is judged: the answer (default), the reasoning in its think blocks, or all of it",
    )


def add_metric_args(group: Any) -> None:
    group.add_argument(
        "--metric_args",
        action="append",
        metavar="METRIC.ARGUMENT=VALUE",
        help="an argument of a metric over claims, as factscore.gamma=0 (no length penalty); may be repeated",
    )


def add_output(group: Any, form: str, fail_under: str) -> None:
    group.add_argument("--json", action="store_true", help="print JSON alone, in a terminal too")
    group.add_argument("--fail_under", action="append", metavar=form, help=fail_under)
    group.add_argument(
        "--max_not_judged",
        type=float,
        metavar="SHARE",
        help="exit with status 1 too if more of the answers, or of their claims, than this share are missing or could not "
        "be judged (default 0.1 with --fail_under, otherwise any share is allowed)",
    )


def read_thresholds(given: Sequence[str] | None) -> dict[str, float]:
    """`NAME=SHARE` per name; a `SHARE` alone, which only some commands take, under the name `""`."""
    thresholds = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        try:
            thresholds[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"`fail_under` takes a share or NAME=SHARE, got {text}") from None
    return thresholds


def read_metric_args(given: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Arguments by metric, from `METRIC.ARGUMENT=VALUE`; a value that is no JSON is text."""
    arguments: dict[str, dict[str, Any]] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        metric, dot, name = key.partition(".")
        if not (equals and dot and name):
            raise ValueError(f"`metric_args` takes METRIC.ARGUMENT=VALUE (factscore.gamma=0), got {text!r}")
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = value
        arguments.setdefault(metric, {})[name] = found
    return arguments


def print_results(
    summary: Mapping[str, Any], table: Sequence[Mapping[str, str]], notes: Sequence[str], only_json: bool
) -> None:
    """The table in a terminal; otherwise JSON, with the table on the error stream unless only JSON is wanted."""
    people = sys.stdout.isatty() and not only_json
    if not people:
        print(json.dumps(summary))
    if not only_json:
        from hf_factuality.hub.cards.card import format_table

        print("\n".join([format_table(table), *notes]), file=sys.stdout if people else sys.stderr)


def print_failures(failures: Sequence[str]) -> int:
    """Say what is below a threshold; the exit status."""
    for text in failures:
        print(f"hf-factuality: {text}", file=sys.stderr)
    return 1 if failures else 0

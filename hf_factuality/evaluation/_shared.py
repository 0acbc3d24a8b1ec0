"""What the commands `verify` and `evaluate` share: flags that are read alike, what is printed, and the exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_factuality.hub.cards.card import format_table
from hf_factuality.hub.cards.card import format_value as shown


def listed(given: Iterable[str] | None) -> list[str]:
    """Names of a flag that takes several with commas or by repeating it, each once."""
    names = [name.strip() for text in given or () for name in text.split(",")]
    return list(dict.fromkeys(filter(None, names)))


def check_at_least_one(args: argparse.Namespace, *flags: str) -> None:
    for flag in flags:
        value = getattr(args, flag)
        if value is not None and value < 1:
            raise ValueError(f"`{flag}` must be at least 1, got {value}")


def make_way(path: Path, taken: Sequence[Path], flag: str) -> None:
    """Make the folder of a file; raises now what writing it would raise in the end, or if it would replace what is read."""
    if path.is_file() and any(other.exists() and path.samefile(other) for other in taken):
        raise ValueError(f"{path} would be overwritten while it is in use; name another {flag}")
    there = next(it for it in (path, *path.absolute().parents) if it.exists())
    if path.is_dir() or not os.access(there, os.W_OK) or there != path and not there.is_dir():
        raise OSError(
            f"{flag} {path} cannot be written: it is a folder, or {there} is no folder or gives no permission"
        )
    path.parent.mkdir(parents=True, exist_ok=True)


def allowed_missing(args: argparse.Namespace) -> float | None:
    """Share that may be left unjudged; `None` for any."""
    share = args.max_not_judged
    if share is not None and not 0 <= share <= 1:
        raise ValueError(f"`max_not_judged` is a share in [0, 1], got {share:g}")
    return 0.1 if share is None and args.fail_under else share


def read_thresholds(
    given: Sequence[str] | None, computed: Collection[str], default: Sequence[str] = ()
) -> dict[str, float]:
    """`NAME=SHARE` per name; a bare `SHARE` is of all names of `default`, where there are any."""
    thresholds = {}
    form = "a share or NAME=SHARE" if default else "NAME=SHARE"
    for text in given or ():
        name, equals, value = text.rpartition("=")
        name = name.strip()
        try:
            share = float(value) if equals or default else float("nan")
        except ValueError:
            share = float("nan")
        if not 0 <= share <= 1:
            raise ValueError(f"`fail_under` takes {form}, a share in [0, 1], got {text}")
        if equals and name not in computed:
            fix = f"{'add `metric`, or ' if default else ''}choose of {', '.join(sorted(computed))}"
            raise ValueError(f"`fail_under` {text}: {name!r} is not computed; {fix}")
        thresholds |= dict.fromkeys([name] if equals else default, share)
    return thresholds


def shown_interval(interval: Mapping[str, Any] | None) -> str:
    return f"{interval['low']:.3f} to {interval['high']:.3f}" if interval else ""


def numbers(parts: Mapping[str, Any]) -> str:
    """Those of the parts of a metric that are numbers."""
    found = [(name, part) for name, part in parts.items() if part is None or isinstance(part, (int, float))]
    return ", ".join(f"{name} {shown(part)}" for name, part in found)


def counts(found: Mapping[str, int | None]) -> str:
    return ", ".join(f"{name} {n}" for name, n in found.items() if n)


def print_results(
    summary: Mapping[str, Any], table: Sequence[Mapping[str, str]], notes: Sequence[str], only_json: bool
) -> None:
    """The table in a terminal; otherwise JSON, with the table on the error stream unless only JSON is wanted."""
    people = sys.stdout.isatty() and not only_json
    if not people:
        print(json.dumps(summary))
    if not only_json:
        print("\n".join([format_table(table), *notes]), file=sys.stdout if people else sys.stderr)


def exit_status(
    scores: Iterable[tuple[str, float | None, float]],
    unjudged: Iterable[tuple[str, int, int, str]],
    allowed: float | None,
) -> int:
    """1 if one of `scores` (name, score, threshold) is too low, or more than the allowed share of one of `unjudged` (prefix,
    how many of how many, what went wrong); says which."""
    low = [f"{name} {score} is below {least:g}" for name, score, least in scores if score is None or score < least]
    low += [
        f"{prefix}{failed} of {n} {what}"
        for prefix, failed, n, what in unjudged
        if allowed is not None and n and failed / n > allowed
    ]
    for text in low:
        print(f"hf-factuality: {text}", file=sys.stderr)
    return 1 if low else 0

"""The one table of results: its cells, what of a change is more than noise, and rows as text or Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.hub.results import shown_value
from hf_factuality.io.markdown import cell


def format_table(rows: Sequence[Mapping[str, Any]], markdown: bool = False) -> str:
    """Rows, all with the same keys, under a header: as aligned columns of text, or in Markdown. Columns without any text are
    left out."""
    header = [name for name in rows[0] if any(str(row[name]) for row in rows)]
    if markdown:
        lines = [
            f"| {' | '.join(line)} |" for line in (header, *([cell(row[name]) for name in header] for row in rows))
        ]
        return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
    cells = [header, *([str(row[name]) for name in header] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def better(higher_is_better: bool | None) -> str:
    """Which direction is better, as a cell; empty where neither is."""
    return "" if higher_is_better is None else "higher" if higher_is_better else "lower"


def change_interval(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[float, float] | None:
    """The interval of the change between two results that have one each of the same level, by MOVER (Zou and Donner 2008,
    https://doi.org/10.1002/sim.3095, equation 2): as of independent samples. `None` without both intervals.

    Of two models that were asked the same questions it is too wide rather than too narrow, since their answers are alike.
    """
    one, two = before["confidence_interval"], after["confidence_interval"]
    if one is None or two is None or one["level"] != two["level"] or None in (before["value"], after["value"]):
        return None
    change = after["value"] - before["value"]
    low = math.hypot(after["value"] - two["low"], one["high"] - before["value"])
    high = math.hypot(two["high"] - after["value"], before["value"] - one["low"])
    return change - low, change + high


def change_verdict(interval: tuple[float, float] | None, higher_is_better: bool | None) -> str:
    """Whether a change is more than noise, which it is if its interval excludes 0, and to the better: a cell."""
    if interval is None or any(math.isnan(it) for it in interval):
        return "unknown"
    low, high = interval
    if low <= 0 <= high:
        return "within noise"
    if higher_is_better is None:
        return "changed"
    return "better" if (low > 0) is higher_is_better else "worse"


def shown_bounds(interval: tuple[float, float] | None) -> str:
    """An interval of a change, as a cell."""
    if interval is None or any(math.isnan(it) for it in interval):
        return ""
    return f"{interval[0]:+.3f} to {interval[1]:+.3f}"


def change_cells(
    before: str,
    after: str,
    change: float | None,
    interval: tuple[float, float] | None,
    higher_is_better: bool | None,
    n: Any,
) -> dict[str, str]:
    """The cells of a comparison, behind what names the row: both values, their change with its interval, which direction is
    better, and whether the change is more than noise."""
    return {
        "before": before,
        "after": after,
        "change": "n/a" if change is None or math.isnan(change) else f"{change:+.3f}",
        "interval of the change": shown_bounds(interval),
        "better if": better(higher_is_better),
        "verdict": change_verdict(interval, higher_is_better),
        "n": str(n),
    }


def compared_cells(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """[`change_cells`] of two entries of files of results."""
    values = before["value"], after["value"]
    change = None if None in values else values[1] - values[0]
    n = " / ".join(dict.fromkeys(str(it["n_scored"]) for it in (before, after)))
    interval = change_interval(before, after)
    return change_cells(shown_value(before), shown_value(after), change, interval, before["higher_is_better"], n)


def before_and_after(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Entries of results of two models, in the same order, as a table by their titles."""
    return [
        {"measure": old.get("title") or old["metric"], **compared_cells(old, new)}
        for old, new in zip(before, after, strict=True)
    ]


NOISE = (
    "better, worse: the 95 % interval of the change excludes 0. Both models count as independent samples, which is careful "
    "where they answered the same questions."
)
"""What a table of changes is read with, where its intervals are those of [`change_interval`]."""

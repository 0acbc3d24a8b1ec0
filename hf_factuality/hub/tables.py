"""The one table of results: its cells, what of a change is more than noise, and rows as text or Markdown."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import Any

from hf_factuality.hub.results import shown_value
from hf_factuality.io.markdown import cell


def format_table(rows: Sequence[Mapping[str, Any]], markdown: bool = False, width: int | None = None) -> str:
    """Rows, all with the same keys, under a header: as aligned columns of text, or in Markdown. Columns without any text are
    left out. Text that is to fit `width` characters has its long cells on several lines, or else a line per cell."""
    header = [name for name in rows[0] if any(str(row[name]) for row in rows)]
    if markdown:
        lines = [
            f"| {' | '.join(line)} |" for line in (header, *([cell(row[name]) for name in header] for row in rows))
        ]
        return "\n".join([lines[0], "|" + "---|" * len(header), *lines[1:]])
    cells = [header, *([str(row[name]) for name in header] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    if width is not None:
        found = _narrowed(widths, width)
        if found is None:
            name = max(map(len, header))
            return "\n\n".join(
                _text(
                    [[*it] for it in zip(header, line, strict=True) if it[1]],
                    [name, max(width - name - 2, _NARROWEST)],
                )
                for line in cells[1:]
            )
        widths = found
    return "\n".join([_text(cells[:1], widths), "  ".join("-" * it for it in widths), _text(cells[1:], widths)])


_NARROWEST = 24
"""Characters that a column keeps: in a narrower one a long list is a ladder of words."""


def _narrowed(widths: Sequence[int], total: int) -> list[int] | None:
    """Widths of columns, two apart, of which the widest are narrowed to fit `total`; `None` if they do not."""
    found = [*widths]
    while (excess := sum(found) + 2 * (len(found) - 1) - total) > 0:
        widest = max(range(len(found)), key=found.__getitem__)
        if found[widest] <= _NARROWEST:
            return None
        next_one = max([_NARROWEST, *(it for it in found if it < found[widest])])
        found[widest] = max(found[widest] - excess, next_one if found.count(found[widest]) == 1 else found[widest] - 1)
    return found


def _text(lines: Sequence[Sequence[str]], widths: Sequence[int]) -> str:
    """Cells in columns; a cell that is wider goes on below."""
    found = []
    for line in lines:
        parts = [
            wrap(text, width, break_on_hyphens=False) if len(text) > width else [text]
            for text, width in zip(line, widths, strict=True)
        ]
        for one in zip_longest(*parts, fillvalue=""):
            found.append("  ".join(text.ljust(width) for text, width in zip(one, widths, strict=True)).rstrip())
    return "\n".join(found)


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

"""Results of two files side by side."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.hub.cards.scores import shown_value
from hf_factuality.hub.results import changed_measurement, check_results, load_results, measurement
from hf_factuality.io.markdown import cell


def compare_results(before: str | Path | Mapping[str, Any], after: str | Path | Mapping[str, Any]) -> str:
    """A Markdown table of what two files both measured in the same way.

    Where benchmark and metric agree and a setting does not, nothing is compared: a line below the table names the setting.

    Args:
        before, after (`str`, `Path` or `Mapping[str, Any]`):
            Files of results, or what [`load_results`] made of them.

    Returns:
        `str`: a table with the columns benchmark, metric, before, after, change and n; a value is followed by its
        interval. `n` is the number of scored items, as `before / after` where they differ.

    Raises:
        `DataError`: a file is none of results, or the two have no benchmark and metric in common.
    """
    first, second = _load(before, "before"), _load(after, "after")
    later = {measurement(entry): entry for entry in second["results"]}
    pairs = [(entry, later[measurement(entry)]) for entry in first["results"] if measurement(entry) in later]
    done = {(entry["benchmark"], entry["metric"]) for entry, _ in pairs}
    common = {_name(entry) for entry in first["results"]} & {_name(entry) for entry in second["results"]}
    if not common:
        has = " and ".join(str(sorted(map(_name, found["results"]))) for found in (first, second))
        raise DataError(f"the two files have no benchmark and metric in common: {has}")
    lines = ["| benchmark | metric | before | after | change | n |", "|---|---|---|---|---|---|"] if pairs else []
    for old, new in pairs:
        change = "n/a" if None in (old["value"], new["value"]) else f"{new['value'] - old['value']:+.3f}"
        n = " / ".join(dict.fromkeys(str(it["n_scored"]) for it in (old, new)))
        cells = (cell(old["benchmark"]), cell(old["metric"]), shown_value(old), shown_value(new), change, n)
        lines.append(f"| {' | '.join(cells)} |")
    notes = [
        f"`{name[0]}`, `{name[1]}`: measured with different settings ({_different(name, first, second)}), not compared."
        for name in sorted(common - done)
    ]
    lower = sorted({old["metric"] for old, _ in pairs if old["higher_is_better"] is False})
    notes += [f"Lower is better: {', '.join(lower)}."] if lower else []
    return "\n\n".join("\n".join(part) for part in (lines, notes) if part)


def _load(found: str | Path | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        check_results(found, name)
        return found
    return load_results(found)


def _name(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["benchmark"], entry["metric"]


def _different(name: tuple[str, str], *results: Mapping[str, Any]) -> str:
    """Settings in which the last results of this name differ."""
    old, new = ([entry for entry in it["results"] if _name(entry) == name][-1] for it in results)
    return ", ".join(changed_measurement(old, new))

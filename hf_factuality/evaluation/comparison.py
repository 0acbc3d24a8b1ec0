"""Results of two files side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import DataError
from hf_factuality.hub.results import changed_measurement, check_results, load_results, measurement, shown_value
from hf_factuality.io.markdown import cell


if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Comparison:
    """What two files of results both measured; `str()` of it is a table in Markdown.

    Args:
        pairs (`tuple` of pairs of `Mapping`):
            Entries of the first file and of the second that were measured in the same way.
        different (`Mapping[tuple[str, str], tuple[str, ...]]`):
            Benchmark and metric that both have, measured differently, and the settings that differ; nothing is compared.
    """

    pairs: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    different: Mapping[tuple[str, str], tuple[str, ...]]

    def __str__(self) -> str:
        lines = (
            ["| benchmark | metric | before | after | change | n |", "|---|---|---|---|---|---|"] if self.pairs else []
        )
        for old, new in self.pairs:
            change = _change(old, new)
            n = " / ".join(dict.fromkeys(str(it["n_scored"]) for it in (old, new)))
            shown = (shown_value(old), shown_value(new), "n/a" if change is None else f"{change:+.3f}", n)
            lines.append(f"| {' | '.join((cell(old['benchmark']), cell(old['metric']), *shown))} |")
        notes = [
            f"`{benchmark}`, `{metric}`: measured with different settings ({', '.join(settings)}), not compared."
            for (benchmark, metric), settings in self.different.items()
        ]
        lower = sorted({old["metric"] for old, _ in self.pairs if old["higher_is_better"] is False})
        notes += [f"Lower is better: {', '.join(lower)}."] if lower else []
        return "\n\n".join("\n".join(part) for part in (lines, notes) if part)

    def to_pandas(self) -> pandas.DataFrame:
        """A row per pair: benchmark, metric, both values, their change, both numbers of scored items, and the better direction."""
        import pandas

        columns = ("benchmark", "metric", "before", "after", "change", "n_before", "n_after", "higher_is_better")
        rows = [
            (old["benchmark"], old["metric"], old["value"], new["value"], _change(old, new), old["n_scored"], new["n_scored"],
             old["higher_is_better"]) for old, new in self.pairs
        ]  # fmt: skip
        return pandas.DataFrame(rows, columns=columns)


def compare(before: str | Path | Mapping[str, Any], after: str | Path | Mapping[str, Any]) -> Comparison:
    """Put side by side what two files of results both measured in the same way.

    Where benchmark and metric agree and a setting does not, nothing is compared: the settings that differ are named.

    Args:
        before, after (`str`, `Path` or `Mapping[str, Any]`):
            Files of results, or what [`load_results`] made of them.

    Returns:
        [`Comparison`]: printed, a table with the columns benchmark, metric, before, after, change and n; a value is followed
        by its interval. `n` is the number of scored items, as `before / after` where they differ.

    Raises:
        `DataError`: a file is none of results, or the two have no benchmark and metric in common.
    """
    first, second = _load(before, "before"), _load(after, "after")
    later = {measurement(entry): entry for entry in second["results"]}
    pairs = [(entry, later[measurement(entry)]) for entry in first["results"] if measurement(entry) in later]
    common = {_name(entry) for entry in first["results"]} & {_name(entry) for entry in second["results"]}
    if not common:
        has = " and ".join(str(sorted(map(_name, results["results"]))) for results in (first, second))
        raise DataError(f"the two files have no benchmark and metric in common: {has}")
    others = sorted(common - {_name(entry) for entry, _ in pairs})
    return Comparison(tuple(pairs), {name: _different(name, first, second) for name in others})


def _change(old: Mapping[str, Any], new: Mapping[str, Any]) -> float | None:
    return None if None in (old["value"], new["value"]) else new["value"] - old["value"]


def _load(found: str | Path | Mapping[str, Any], name: str) -> Mapping[str, Any]:
    if isinstance(found, Mapping):
        check_results(found, name)
        return found
    return load_results(found)


def _name(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["benchmark"], entry["metric"]


def _different(name: tuple[str, str], *results: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings in which the last results of this name differ."""
    old, new = ([entry for entry in it["results"] if _name(entry) == name][-1] for it in results)
    return tuple(changed_measurement(old, new))

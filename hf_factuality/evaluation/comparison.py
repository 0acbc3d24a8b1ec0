"""Results of two files side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import DataError
from hf_factuality.hub.results import changed_measurement, check_results, load_results, measurement
from hf_factuality.hub.tables import NOISE, change_interval, change_verdict, compared_cells, format_table


if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Comparison:
    """What two files of results both measured; `str()` of it is a table.

    Args:
        pairs (`tuple` of pairs of `Mapping`):
            Entries of the first file and of the second that were measured in the same way.
        different (`Mapping[tuple[str, str], tuple[str, ...]]`):
            Benchmark and metric that both have, measured differently, and the settings that differ; nothing is compared.
    """

    pairs: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]
    different: Mapping[tuple[str, str], tuple[str, ...]]

    def __str__(self) -> str:
        return "\n".join([*([format_table(self.table())] if self.pairs else []), *self.notes()])

    def table(self) -> list[dict[str, str]]:
        """The comparison as cells of a table, with the interval of each change and whether it is more than noise."""
        return [
            {"benchmark": old["benchmark"], "metric": old["metric"], **compared_cells(old, new)}
            for old, new in self.pairs
        ]

    def notes(self) -> list[str]:
        """How the table is read, and what is not compared."""
        return [
            *([NOISE] if self.pairs else []),
            *(
                f"`{benchmark}`, `{metric}`: measured with different settings ({', '.join(settings)}), not compared."
                for (benchmark, metric), settings in self.different.items()
            ),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain values only, as the command prints them."""
        rows = [
            {"benchmark": old["benchmark"], "metric": old["metric"], "before": old["value"], "after": new["value"],
             "change": _change(old, new), "interval": change_interval(old, new), "higher_is_better": old["higher_is_better"],
             "verdict": change_verdict(change_interval(old, new), old["higher_is_better"]), "n_before": old["n_scored"],
             "n_after": new["n_scored"]} for old, new in self.pairs
        ]  # fmt: skip
        different = [
            {"benchmark": name, "metric": metric, "settings": list(them)}
            for (name, metric), them in self.different.items()
        ]
        return {"compared": rows, "different": different}

    def to_pandas(self) -> pandas.DataFrame:
        """A row per pair: benchmark, metric, both values, their change with its interval and verdict, both numbers of scored items,
        and the better direction."""
        import pandas

        columns = (
            "benchmark",
            "metric",
            "before",
            "after",
            "change",
            "low",
            "high",
            "verdict",
            "n_before",
            "n_after",
            "higher_is_better",
        )
        rows = [
            {**it, **dict(zip(("low", "high"), it["interval"] or (), strict=False))}
            for it in self.to_dict()["compared"]
        ]
        return pandas.DataFrame(rows, columns=columns)


def compare(before: str | Path | Mapping[str, Any], after: str | Path | Mapping[str, Any]) -> Comparison:
    """Put side by side what two files of results both measured in the same way.

    Where benchmark and metric agree and a setting does not, nothing is compared: the settings that differ are named.

    Args:
        before, after (`str`, `Path` or `Mapping[str, Any]`):
            Files of results, or what [`load_results`] made of them.

    Returns:
        [`Comparison`]: printed, a table with the columns benchmark, metric, before, after, change, its interval, the better
        direction, whether the change is more than noise, and n; a value is followed by its interval. `n` is the number of scored items, as `before / after` where they differ.

    Raises:
        `DataError`: a file is none of results, or the two have no benchmark and metric in common.
    """
    first, second = _load(before, "before"), _load(after, "after")
    pairs = pair_entries(first["results"], second["results"])
    common = {_name(entry) for entry in first["results"]} & {_name(entry) for entry in second["results"]}
    if not common:
        has = " and ".join(str(sorted(map(_name, results["results"]))) for results in (first, second))
        raise DataError(f"the two files have no benchmark and metric in common: {has}")
    others = sorted(common - {_name(entry) for entry, _ in pairs})
    return Comparison(pairs, {name: _different(name, first, second) for name in others})


def pair_entries(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...]:
    """Entries of results that were measured in the same way."""
    later = {measurement(entry): entry for entry in after}
    return tuple((entry, later[measurement(entry)]) for entry in before if measurement(entry) in later)


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

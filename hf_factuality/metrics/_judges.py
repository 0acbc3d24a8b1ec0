"""What the metrics of judges share: references with a domain and a group, and counts per group, which intervals draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple


class JudgedItem(NamedTuple):
    """What a judge's verdict on an item counts for; items of one group are not independent."""

    counts: tuple[int, ...]
    domain: str | None = None
    group: Any = None


class GroupedCounts:
    """The counts of each group in a row, those of the first domain first."""

    def __init__(self, items: Sequence[JudgedItem], width: int):
        self._width = width
        self._domains = sorted({item.domain for item in items}, key=lambda name: (name is not None, name))
        places = {name: width * number for number, name in enumerate(self._domains)}
        found: dict[Any, list[int]] = {}
        for number, item in enumerate(items):
            key = ("alone", number) if item.group is None else ("group", str(item.group))
            row = found.setdefault(key, [0] * width * len(places))
            for place, count in enumerate(item.counts, places[item.domain]):
                row[place] += count
        self.rows = list(found.values())
        self.sums: list[float] = [sum(column) for column in zip(*self.rows, strict=True)]

    def split(self, sums: Sequence[float]) -> list[Sequence[float]]:
        """The counts of each domain."""
        return [sums[start : start + self._width] for start in range(0, len(sums), self._width)]

    def together(self, sums: Sequence[float]) -> list[float]:
        """The counts of all domains."""
        return [sum(column) for column in zip(*self.split(sums), strict=True)] or [0] * self._width

    def domains(self) -> list[tuple[str, Sequence[float]]]:
        """The domains that have a name, with their counts."""
        return [
            (name, own) for name, own in zip(self._domains, self.split(self.sums), strict=True) if name is not None
        ]


def reference_parts(reference: Any, name: str) -> tuple[Any, str | None, Any]:
    """Truth, domain and group of a reference: a dictionary that has the truth under `name`, or the truth alone."""
    if isinstance(reference, Mapping) and name in reference:
        return reference[name], reference.get("domain"), reference.get("group")
    return reference, None, None

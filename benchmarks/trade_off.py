"""One figure at equal amounts of another: correct facts at equal wrong ones, along the conditions of an experiment."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


Point = tuple[float, float]


@dataclass(frozen=True)
class TradeOff:
    """What is compared.

    Args:
        cost (`str`): Figure that is held equal, of which less is better. It is positive for the base.
        gain (`str`): Figure that is read off there.
        levels (`tuple[float, ...]`): Where: shares of the base's cost. The first is the headline.
    """

    cost: str = "wrong"
    gain: str = "correct"
    levels: tuple[float, ...] = (0.25,)


def gain_at(curve: Sequence[Point], cost: float) -> float | None:
    """The gain where a curve of (cost, gain) first comes to a cost, by straight lines between its points.

    Returns:
        `float`, or `None` if the curve never comes there: nothing is extrapolated.
    """
    if curve and curve[0][0] == cost:
        return curve[0][1]
    for (x, y), (next_x, next_y) in zip(curve, curve[1:], strict=False):
        if next_x == cost:
            return next_y
        if min(x, next_x) < cost < max(x, next_x):
            return y + (next_y - y) * (cost - x) / (next_x - x)
    return None


def at_equal_cost(
    trade_off: TradeOff,
    results: Sequence[Mapping[str, Any]],
    conditions: Sequence[str],
    arms: Sequence[str],
    baseline: str,
    base: str,
) -> list[dict[str, Any]]:
    """Gains and costs of the arms at each level, seed by seed.

    The curve of an arm starts at the base of the same seed and goes through the arm's conditions in their order.

    Returns:
        `list` of a `dict` per test set, level and arm: `where`, `level`, `arm`, and per seed `cost`, `gain` (`None` where
        the arm does not come to that cost) and `ratio` to the baseline's gain (`None` where one of them does not).
    """
    found = {(r["arm"], r["condition"], r["seed"]): r["figures"] for r in results}
    bases = {r["seed"]: r["figures"] for r in results if r["arm"] == base}

    def curve(arm: str, seed: int, where: str) -> list[Point]:
        figures = [found.get((arm, condition, seed)) for condition in conditions]
        points = [bases[seed], *(each for each in figures if each)]
        pairs = [(each[where].get(trade_off.cost), each[where].get(trade_off.gain)) for each in points]
        return [pair for pair in pairs if None not in pair]

    rows = []
    for where in next(iter(bases.values()), {}):
        for level in trade_off.levels:
            costs = {seed: level * figures[where][trade_off.cost] for seed, figures in bases.items()}
            gains = {
                arm: {seed: gain_at(curve(arm, seed, where), cost) for seed, cost in costs.items()}
                for arm in {*arms, baseline}
            }
            for arm in arms:
                both = [(gains[arm][s], gains[baseline][s]) for s in costs]
                rows.append(
                    {
                        "where": where,
                        "level": level,
                        "arm": arm,
                        "cost": list(costs.values()),
                        "gain": list(gains[arm].values()),
                        "ratio": [None if one is None or not other else one / other for one, other in both],
                    }
                )
    return rows


def markdown(trade_off: TradeOff, rows: Sequence[Mapping[str, Any]], baseline: str) -> list[str]:
    """Lines of a table per test set, for [`at_equal_cost`]'s rows."""
    lines = []
    for where in dict.fromkeys(row["where"] for row in rows):
        lines += [
            "", f"## {trade_off.gain} at equal {trade_off.cost}: {where}", "",
            f"| share of the base's {trade_off.cost} | {trade_off.cost} | arm | {trade_off.gain} | over {baseline!r} |",
            "|---|---|---|---|---|",
        ]  # fmt: skip
        for row in rows:
            if row["where"] == where:
                cells = [f"{row['level']:g}", spread(row["cost"]), row["arm"], spread(row["gain"])]
                lines.append(
                    "| " + " | ".join([*cells, "" if row["arm"] == baseline else spread(row["ratio"], 2)]) + " |"
                )
    return lines


def spread(values: Sequence[float | None], digits: int = 3) -> str:
    """Mean ± standard deviation of the known values, and how many they are if some are unknown."""
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    deviation = f" ± {statistics.stdev(known):.{digits}f}" if len(known) > 1 else ""
    fewer = f" (n={len(known)})" if len(known) < len(values) else ""
    return f"{statistics.mean(known):.{digits}f}{deviation}{fewer}"


def plot(
    axis: Any,
    trade_off: TradeOff,
    rows: Sequence[Mapping[str, Any]],
    where: str,
    base: str,
    label: Callable[[str], str],
) -> None:
    """A curve per arm, mean and standard deviation over the seeds, on an axis of matplotlib, for `summarise`'s rows."""
    here = [row for row in rows if row["where"] == where]

    def point(row: Mapping[str, Any]) -> tuple[float, float, float, float]:
        x, y = row["figures"][trade_off.cost], row["figures"][trade_off.gain]
        return x["mean"], y["mean"], x["sd"] or 0.0, y["sd"] or 0.0

    start = next((point(row) for row in here if row["arm"] == base), None)
    for arm in dict.fromkeys(row["arm"] for row in here if row["arm"] != base):
        own = [row for row in here if row["arm"] == arm]
        points = [start] * (start is not None) + [point(row) for row in own]
        x, y, dx, dy = zip(*points, strict=True)
        line = axis.errorbar(x, y, xerr=dx, yerr=dy, marker="o", capsize=2, label=arm)
        for row in own:
            axis.annotate(label(row["condition"]), point(row)[:2], (4, 4), textcoords="offset points", fontsize="x-small",
                          color=line[0].get_color())  # fmt: skip
    if start is not None:
        axis.plot(*start[:2], "ks", label=base, zorder=5)
    if all(row["figures"][trade_off.cost]["mean"] > 0 for row in here):
        axis.set_xscale("log")
    axis.set_xlabel(trade_off.cost)
    axis.set_ylabel(trade_off.gain)
    axis.set_title(where)

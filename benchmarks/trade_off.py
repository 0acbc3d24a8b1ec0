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
        cost (`str`): Figure that is held equal, of which less is better.
        gain (`str`): Figure that is read off there.
        levels (`tuple[float, ...]`): Where, as shares of the base's cost, beside the lowest cost that both arms come to.
    """

    cost: str = "wrong"
    gain: str = "correct"
    levels: tuple[float, ...] = (0.5, 0.25)


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
    """What each arm and the baseline gain at equal cost, seed by seed.

    The curve of an arm starts at the base of the same seed and goes through the arm's conditions in their order.

    Returns:
        `list` of a `dict` per test set, arm (without the baseline) and level: `where`, `arm`, `level` (`None` for the lowest
        cost that both come to), and per seed `cost`, `gain` and `baseline_gain` (`None` where that curve does not come to
        the cost) and `ratio` of the two (`None` where one is missing).
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
        for arm in arms:
            if arm == baseline:
                continue
            curves = [(curve(arm, seed, where), curve(baseline, seed, where)) for seed in bases]
            for level in (None, *trade_off.levels):
                row = {
                    "where": where,
                    "arm": arm,
                    "level": level,
                    "cost": [],
                    "gain": [],
                    "baseline_gain": [],
                    "ratio": [],
                }
                for own, other in curves:
                    lowest = max(min(cost for cost, _ in each) for each in (own, other))
                    cost = lowest if level is None else level * own[0][0]
                    gains = gain_at(own, cost), gain_at(other, cost)
                    row["cost"].append(cost)
                    row["gain"].append(gains[0])
                    row["baseline_gain"].append(gains[1])
                    row["ratio"].append(None if gains[0] is None or not gains[1] else gains[0] / gains[1])
                rows.append(row)
    return rows


def markdown(trade_off: TradeOff, rows: Sequence[Mapping[str, Any]], baseline: str) -> list[str]:
    """Lines of a table per test set, for [`at_equal_cost`]'s rows."""
    cost, gain, lines = trade_off.cost, trade_off.gain, []
    for where in dict.fromkeys(row["where"] for row in rows):
        lines += [
            "", f"## {gain} at equal {cost}: {where}", "",
            f"| at | {cost} | {gain}, {baseline} | arm | {gain} | ratio |", "|---|---|---|---|---|---|",
        ]  # fmt: skip
        for row in rows:
            if row["where"] == where:
                at = "the lowest that both come to" if row["level"] is None else f"{row['level']:g} of the base's"
                cells = [at, spread(row["cost"]), spread(row["baseline_gain"]), row["arm"], spread(row["gain"])]
                lines.append("| " + " | ".join([*cells, spread(row["ratio"], 2)]) + " |")
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

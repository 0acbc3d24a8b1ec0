"""Two figures of which more is better: which arms no other beats in both, and what each one's gain over the base was won by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from trade_off import spread

from hf_factuality.methods.long_form.axes import detect_hacks, pareto_front


Axes = tuple[str, str]


def markdown(axes: Axes, results: Sequence[Mapping[str, Any]], base: str, condition: str = "") -> list[str]:
    """Lines of a table per test set, of one condition: the two figures of each arm, whether no other has more of both, and the hacks.

    On the front are the means over the seeds, and how many of the seeds have the arm on theirs; a hack stands with the number
    of seeds in which it is found against the base of the same seed.
    """
    lines = []
    arms = list(dict.fromkeys(result["arm"] for result in results))
    bases = {result["seed"]: result["figures"] for result in results if result["arm"] == base}
    for where in results[0]["figures"]:
        own = {arm: {r["seed"]: r["figures"][where] for r in results if r["arm"] == arm} for arm in arms}
        means = [tuple(_mean(found.values(), name) for name in axes) for found in own.values()]
        front = [arms[number] for number in pareto_front(means)]
        seeds: Counter[str] = Counter()
        for seed in bases:
            here = [arm for arm in arms if seed in own[arm]]
            seeds.update(here[number] for number in pareto_front([own[arm][seed] for arm in here], axes))
        lines += ["", f"## {axes[1]} over {axes[0]}: {', '.join(filter(None, (where, condition)))}", "",
                  f"| arm | {axes[0]} | {axes[1]} | on the front | of the seeds | won by (seeds) |",
                  "|---|---|---|---|---|---|"]  # fmt: skip
        for arm, found in own.items():
            hacks = Counter(
                hack.name for seed in found if seed in bases for hack in detect_hacks(bases[seed][where], found[seed])
            )
            named = ", ".join(f"{name} ({count})" for name, count in hacks.items()) or "-"
            cells = [spread([figures.get(name) for figures in found.values()]) for name in axes]
            cells += ["yes" if arm in front else "no", f"{seeds[arm]} of {len(found)}", "" if arm == base else named]
            lines.append("| " + " | ".join([arm, *cells]) + " |")
    return lines


def _mean(rows: Any, name: str) -> float | None:
    known = [row[name] for row in rows if row.get(name) is not None]
    return sum(known) / len(known) if known else None


def plot(
    axis: Any, axes: Axes, rows: Sequence[Mapping[str, Any]], where: str, base: str, condition: str | None = None
) -> None:
    """A point per arm, mean and standard deviation over the seeds, and the front, for `summarise`'s rows."""
    from matplotlib import colormaps

    x, y = axes
    points = {
        row["arm"]: tuple(row["figures"][name][of] for of in ("mean", "sd") for name in axes)
        for row in rows
        if row["where"] == where and None not in [row["figures"][name]["mean"] for name in axes]
    }
    axis.set_prop_cycle(color=colormaps["tab20"].colors)
    for arm, (right, up, dx, dy) in points.items():
        marker = "ks" if arm == base else "o"
        axis.errorbar(right, up, xerr=dx or 0.0, yerr=dy or 0.0, fmt=marker, capsize=2, label=arm)
    means = [point[:2] for point in points.values()]
    front = sorted(means[number] for number in pareto_front(means))
    axis.plot(*zip(*front, strict=True), "k--", linewidth=0.8, zorder=0)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_title(", ".join(filter(None, (where, condition))))

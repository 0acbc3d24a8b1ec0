"""The probability of being right below which a policy declines: what each arm learnt, and what its reward asks for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def _learnt(results: Sequence[Mapping[str, Any]], arm: str) -> list[Mapping[str, Any]]:
    """Per seed, the figures of the test set that has a threshold; they are probabilities, alike for both decodings."""
    found = [[own for own in r["figures"].values() if "threshold" in own] for r in results if r["arm"] == arm]
    return [own[0] for own in found if own]


def markdown(asked: Mapping[str, float], results: Sequence[Mapping[str, Any]], base: str) -> list[str]:
    """Lines of a table; the base, which no reward asks for anything, comes first."""
    lines = ["", "## Thresholds", "", "| arm | asked for | learnt, mean ± sd | per seed |", "|---|---|---|---|"]
    for arm, threshold in {base: None, **asked}.items():
        if values := [own["threshold"] for own in _learnt(results, arm)]:
            spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
            each = ", ".join(f"{value:.3f}" for value in values)
            lines.append(
                f"| {arm} | {'-' if threshold is None else f'{threshold:.3f}'} | {statistics.mean(values):.3f}{spread} | {each} |"
            )
    return lines


def plot(asked: Mapping[str, float], results: Sequence[Mapping[str, Any]], base: str, path: Path, title: str) -> None:
    """Left: how often each arm declines, over how often it is right where it answers, by bins of questions; its threshold is a
    dotted line, the base grey. Right: learnt over asked for, a point per seed."""
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(8.6, 3.8))
    right.plot([0, 1], [0, 1], color="0.7", linestyle=":")
    for number, (arm, threshold) in enumerate({base: None, **asked}.items()):
        own = _learnt(results, arm)
        if not own:
            continue
        places = list(zip(*(figures["curve"] for figures in own), strict=True))
        means = [tuple(map(statistics.mean, zip(*points, strict=True))) for points in places]
        colour = f"C{number - 1}" if number else "0.6"
        left.plot(*zip(*means, strict=True), "o-", color=colour, label=arm, markersize=3)
        if threshold is None:
            continue
        left.axvline(threshold, color=colour, linestyle=":")
        values = [figures["threshold"] for figures in own]
        right.plot([threshold] * len(values), values, "o", color=colour, alpha=0.4)
        right.plot(threshold, statistics.mean(values), "_", color=colour, markersize=14)
    left.axhline(0.5, color="0.8")
    left.set(xlabel="right where it answers", ylabel="declines", ylim=(0, 1), xlim=(0, 1))
    right.set(xlabel="threshold that the reward asks for", ylabel="threshold learnt", xlim=(-0.05, 1), ylim=(-0.05, 1))
    left.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)

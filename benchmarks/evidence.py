"""What an alignment method does in a closed world, arm against arm: tables, a plot and every number as JSON.

    python benchmarks/evidence.py --experiment fspo --seeds 5

A run that was stopped goes on where it was. docs/experiments.md tells how to write an experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from harness import BASE, Experiment, Settings, load_experiment, results_folder, run_experiment, summarise


def cell(figure: dict, digits: int = 3) -> str:
    if figure["mean"] is None:
        return "-"
    return f"{figure['mean']:.{digits}f}" + ("" if figure["sd"] is None else f" ± {figure['sd']:.{digits}f}")


def markdown(experiment: Experiment, rows: list[dict], settings: Settings) -> str:
    """Per test set a table of all figures, and one of the paired differences of the primary figure."""
    seeds = ", ".join(map(str, settings.seeds))
    lines = [f"# {experiment.title}", "", f"Base `{settings.size}` (seed {settings.base_seed}), seeds {seeds}, "
             f"{settings.steps or experiment.steps} steps. Mean ± standard deviation over the seeds."]  # fmt: skip
    conditions = len({row["condition"] for row in rows}) > 1
    for where in dict.fromkeys(row["where"] for row in rows):
        here = [row for row in rows if row["where"] == where]
        head = (
            ["condition"] * conditions
            + ["arm", *experiment.figures]
            + [experiment.published_what] * bool(experiment.published)
        )
        lines += ["", f"## {where}", "", _line(head), _line(["---"] * len(head))]
        for row in here:
            cells = [row["condition"]] * conditions + [row["arm"]] + [cell(f) for f in row["figures"].values()]
            lines.append(_line(cells + [experiment.published.get(row["arm"], "-")] * bool(experiment.published)))
        names = experiment.figures[:4]
        head = ["condition"] * conditions + [f"minus {experiment.baseline!r}", *names]
        lines += ["", "Paired differences, mean ± standard error:", "", _line(head), _line(["---"] * len(head))]
        for row in here:
            if row["arm"] not in (experiment.baseline, BASE):
                found = [row["figures"][name] for name in names]
                cells = [
                    f"{f['difference']:+.3f} ± {f['standard_error']:.3f}" if "difference" in f else "-" for f in found
                ]
                lines.append(_line([row["condition"]] * conditions + [row["arm"], *cells]))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plot(experiment: Experiment, rows: list[dict], path: Path) -> None:
    """The primary figure: over the conditions if they are numbers, else arm by arm with a point per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    name, wheres = experiment.figures[0], list(dict.fromkeys(row["where"] for row in rows))
    conditions = list(dict.fromkeys(row["condition"] for row in rows))
    numbers = all(condition.replace(".", "").isdigit() for condition in conditions)
    places = {condition: float(condition) if numbers else index for index, condition in enumerate(conditions)}
    figure, axes = pyplot.subplots(1, len(wheres), figsize=(3.6 * len(wheres), 3.4), sharey=True, squeeze=False)
    for axis, where in zip(axes[0], wheres, strict=True):
        here = [row for row in rows if row["where"] == where]
        arms = list(dict.fromkeys(row["arm"] for row in here))
        for number, arm in enumerate(arms):
            own = {row["condition"]: row["figures"][name] for row in here if row["arm"] == arm}
            if len(conditions) > 1:
                points = [(places[c], f["mean"], f["sd"] or 0.0) for c, f in own.items() if f["mean"] is not None]
                line = "-" if numbers else ""
                axis.errorbar(*zip(*points, strict=True), label=arm, marker="o", capsize=3, linestyle=line)
            else:
                (found,) = own.values()
                values = [value for value in found["values"] if value is not None]
                axis.plot(values, [number] * len(values), "o", alpha=0.5)
                axis.plot(found["mean"], number, "k|", markersize=14)
        if len(conditions) == 1:
            axis.set_yticks(range(len(arms)), arms)
            axis.set_xlabel(name.replace("_", " "))
        else:
            axis.set_ylabel(name.replace("_", " ") if axis is axes[0][0] else "")
            axis.set_xticks(list(places.values()), list(places))
        axis.set_title(where)
    if len(conditions) == 1:
        axes[0][0].invert_yaxis()
    else:
        axes[0][-1].legend(fontsize="small")
    figure.suptitle(experiment.title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--experiment", required=True, help="name of a file in benchmarks/experiments, or a path")
    parser.add_argument("--seeds", type=int, default=5, help="how many")
    parser.add_argument("--first_seed", type=int, default=0, help="0 to tune, 100 to report")
    parser.add_argument("--base_seed", type=int, default=0, help="of the world and its model")
    parser.add_argument("--size", default="tiny", help="of the base: tiny, small or base")
    parser.add_argument("--steps", type=int, help="training steps; the experiment's by default")
    parser.add_argument("--arms", nargs="+")
    parser.add_argument("--conditions", nargs="+")
    parser.add_argument("--workers", type=int, help="one per core by default, on a GPU one")
    parser.add_argument("--out", default="outputs/evidence")
    args = parser.parse_args(argv)

    import torch

    workers = args.workers or (1 if torch.cuda.is_available() else os.cpu_count() or 1)
    seeds = tuple(range(args.first_seed, args.first_seed + args.seeds))
    settings = Settings(
        args.experiment, seeds, args.base_seed, args.size, args.steps, tuple(args.arms or ()) or None,
        tuple(args.conditions or ()) or None, args.out,
    )  # fmt: skip
    results, failed = run_experiment(settings, workers)
    experiment, source = load_experiment(args.experiment)
    if results:
        rows = summarise(experiment, results)
        folder = results_folder(experiment, source, settings)
        name = f"seeds-{seeds[0]}-{seeds[-1]}"
        record = {"title": experiment.title, "settings": vars(args), "rows": rows}
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        text = markdown(experiment, rows, settings)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        plot(experiment, rows, folder / f"{name}.png")
        print(f"\n{text}\n{folder / name}.json, .md, .png")
    if failed:
        print(f"{failed} runs failed (see above); the same command runs them again", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

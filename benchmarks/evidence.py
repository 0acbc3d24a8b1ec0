"""What an alignment method does in a closed world, arm against arm: tables, a plot and every number as JSON.

    python benchmarks/evidence.py --experiment fspo --seeds 5

A run that was stopped goes on where it was. docs/experiments.md tells how to write an experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The workers inherit these. glibc gives blocks of this size back to the kernel at once, and on a CPU a training step spent
# 40 % of its time getting the memory of its logits again, page by page.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(2**31))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(2**32))

import curves
import front
import thresholds
import trade_off
from harness import BASE, Experiment, Settings, load_experiment, results_folder, run_experiment, summarise

from hf_factuality.worlds import SIZES


def cell(figure: dict, digits: int = 3) -> str:
    if figure["mean"] is None:
        return "-"
    spread = "" if figure["sd"] is None else f" ± {figure['sd']:.{digits}f}"
    fewer = f" (n={figure['n']})" if figure["n"] < len(figure["values"]) else ""
    return f"{figure['mean']:.{digits}f}{spread}{fewer}"


def markdown(
    experiment: Experiment, rows: list[dict], settings: Settings, equal: list[dict] = (), results: list[dict] = ()
) -> str:
    """Per test set a table of all figures, and one of the paired differences of the primary figure.

    `equal` are the rows of [`trade_off.at_equal_cost`], if the experiment trades two figures, and `results` those of each job.
    """
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
            missing = (
                f" (seeds {', '.join(map(str, row['seeds']))})" if len(row["seeds"]) < len(settings.seeds) else ""
            )
            cells = [row["condition"]] * conditions + [row["arm"] + missing]
            cells += [cell(f) for f in row["figures"].values()]
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
    if experiment.trade_off:
        lines += trade_off.markdown(experiment.trade_off, equal, experiment.baseline)
    for condition in dict.fromkeys(result["condition"] for result in results) if experiment.front else ():
        own = [result for result in results if result["condition"] == condition]
        lines += front.markdown(experiment.front, own, BASE, condition)
    if experiment.asked:
        lines += thresholds.markdown(experiment.asked, results, BASE)
    if experiment.curves:
        lines += curves.markdown(experiment.curves, results)
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
    panels = [(where, condition) for where in wheres for condition in (conditions if experiment.front else [None])]
    legend = len({row["arm"] for row in rows}) if experiment.front else 0
    size = (3.6 * len(panels), max(3.4, 0.3 * legend))
    figure, axes = pyplot.subplots(1, len(panels), figsize=size, sharey=True, squeeze=False)
    for axis, (where, condition) in zip(axes[0], panels, strict=True):
        here = [row for row in rows if row["where"] == where and condition in (None, row["condition"])]
        arms = list(dict.fromkeys(row["arm"] for row in here))
        if experiment.trade_off:
            trade_off.plot(axis, experiment.trade_off, rows, where, BASE, str)
            continue
        if experiment.front:
            front.plot(axis, experiment.front, here, where, BASE, condition)
            continue
        for number, arm in enumerate(arms):
            own = {row["condition"]: row["figures"][name] for row in here if row["arm"] == arm}
            if len(conditions) > 1:
                points = [(places[c], f["mean"], f["sd"] or 0.0) for c, f in own.items() if f["mean"] is not None]
                if not points:
                    continue
                line = "-" if numbers else ""
                axis.errorbar(*zip(*points, strict=True), label=arm, marker="o", capsize=3, linestyle=line)
            else:
                (found,) = own.values()
                values = [value for value in found["values"] if value is not None]
                axis.plot(values, [number] * len(values), "o", alpha=0.5)
                if values:
                    axis.plot(found["mean"], number, "k|", markersize=14)
        if len(conditions) == 1:
            axis.set_yticks(range(len(arms)), arms)
            axis.set_xlabel(name.replace("_", " "))
        else:
            axis.set_ylabel(name.replace("_", " ") if axis is axes[0][0] else "")
            axis.set_xticks(list(places.values()), list(places))
        axis.set_title(where)
    if len(conditions) == 1 and not experiment.trade_off and not experiment.front:
        axes[0][0].invert_yaxis()
    else:
        if axes[0][-1].get_legend_handles_labels()[0]:
            beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if experiment.front else {}
            axes[0][-1].legend(fontsize="small", **beside)
    figure.suptitle(experiment.title, fontsize="medium")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _positive(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--experiment", required=True, help="name of a file in benchmarks/experiments, or a path")
    parser.add_argument("--seeds", type=_positive, default=5, help="how many")
    parser.add_argument("--first_seed", type=int, default=0, help="0 to tune, 100 to report")
    parser.add_argument("--base_seed", type=int, default=0, help="of the world and its model")
    parser.add_argument("--size", default="tiny", choices=list(SIZES), help="of the base")
    parser.add_argument("--steps", type=_positive, help="training steps; the experiment's by default")
    parser.add_argument("--arms", nargs="+", help="only these; 'base' is the untrained model")
    parser.add_argument("--conditions", nargs="+", help="only these")
    parser.add_argument("--baseline", help="compare with this arm instead of the experiment's")
    parser.add_argument("--workers", type=_positive, help="one per core by default, on GPUs one each; 2 to 4 GB each")
    parser.add_argument("--out", default="outputs/evidence")
    args = parser.parse_args(argv)

    import torch

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = args.workers or torch.cuda.device_count() or cores
    if torch.cuda.device_count() > 1:
        # The workers share them out.
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(torch.cuda.device_count()))))
    if args.size in ("small", "base") and not torch.cuda.is_available():
        print(f"There is no GPU: the base of size {args.size!r} will take days.", file=sys.stderr)
    seeds = tuple(range(args.first_seed, args.first_seed + args.seeds))
    settings = Settings(
        args.experiment, seeds, args.base_seed, args.size, args.steps, tuple(args.arms or ()) or None,
        tuple(args.conditions or ()) or None, args.out,
    )  # fmt: skip
    experiment, source = load_experiment(args.experiment)
    if args.baseline:
        experiment = replace(experiment, baseline=args.baseline)
    folder = results_folder(experiment, source, settings)
    results, failed = run_experiment(settings, workers)
    if results:
        rows, equal = summarise(experiment, results), []
        if experiment.trade_off:
            trained = [arm for arm in experiment.arms if any(r["arm"] == arm for r in results)]
            equal = trade_off.at_equal_cost(
                experiment.trade_off, results, list(experiment.conditions), trained, experiment.baseline, BASE
            )
        # A table of some arms does not replace that of all.
        chosen = "-some" if args.arms or args.conditions or args.baseline else ""
        name = f"seeds-{seeds[0]}-{seeds[-1]}{chosen}"
        made = {
            "code": sorted({str(r.get("code")) for r in results}),
            "device": sorted({str(r.get("device")) for r in results}),
        }
        record = {
            "title": experiment.title,
            "settings": vars(args),
            **made,
            "published": experiment.published,
            "rows": rows,
            "equal": equal,
        }
        (folder / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        text = markdown(experiment, rows, settings, equal, results)
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"\n{text}\n{folder / name}.json, .md, .png")
        plot(experiment, rows, folder / f"{name}.png")
        if experiment.asked:
            thresholds.plot(experiment.asked, results, BASE, folder / f"{name}-thresholds.png", experiment.title)
        if experiment.curves:
            curves.plot(experiment.curves, results, folder / f"{name}-curves.png", experiment.title)
    if failed:
        print(f"{failed} runs failed (see above); the same command runs them again", file=sys.stderr)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

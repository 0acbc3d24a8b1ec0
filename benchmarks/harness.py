"""Runs an experiment in a closed world: every arm, condition and seed once, in parallel, and again only what is missing.

An experiment is a file that defines `EXPERIMENT`, see docs/experiments.md.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.util
import json
import math
import multiprocessing
import os
import re
import statistics
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from trade_off import TradeOff

from hf_factuality.worlds import SIZES, World, WorldConfig, WorldModelConfig, build_world_model, evaluate_world
from hf_factuality.worlds import lm as world_lm


EXPERIMENTS = Path(__file__).resolve().parent / "experiments"
MODES = {"greedy": 0.0, "T=1": 1.0}
BASE = "base"
QUESTION_FIGURES = (
    "right_for_right_reasons", "accuracy", "claims", "correct", "wrong", "decided_precision", "no_claim", "repetition",
    "off_subject", "unparsable", "format", "factuality_score", "fact_free", "tokens", "empty", "reward",
)  # fmt: skip
BIOGRAPHY_FIGURES = (
    "correct", "wrong", "decided_precision", "factuality_score", "informativeness", "fact_free", "no_claim", "repetition",
    "off_subject", "unparsable", "tokens", "empty",
)  # fmt: skip


@dataclass(frozen=True)
class Run:
    """What an arm is given.

    Args:
        model_dir (`Path`): The base model; never write to it.
        world (`World`): Its people, split into trained and held out by the seed.
        seed (`int`): For everything random in the arm.
        condition (`Any`): Value of the condition, `None` if the experiment has none.
        folder (`Path`): For files of the run, deleted afterwards.
        steps (`int`): Training steps.
        model (`PreTrainedModel`), temperature (`float`): What is measured and how, 0 being greedy; `None` while an arm is
            trained.
    """

    model_dir: Path
    world: World
    seed: int
    condition: Any
    folder: Path
    steps: int
    model: Any = None
    temperature: float | None = None


@dataclass(frozen=True)
class Experiment:
    """Arms that are trained from one base model and measured alike.

    Args:
        title (`str`): First line of the report.
        arms (`Mapping[str, Callable[[Run], model]]`): Each trains and returns a model. The untrained base is added.
        test_sets (`Callable[[Run], dict[str, Dataset]]`): Name -> dataset to measure on; the first one is reported first.
        baseline (`str`): The arm that the others are compared with, seed by seed.
        steps (`int`): Training steps of each arm.
        conditions (`Mapping[str, Any]`): Name -> value, if the arms run under several. Names that are numbers give a plot
            over them.
        world, model (configurations): Of the base at size `tiny`; `None` takes the size's. Larger sizes keep their own
            sizes and training, and take the habits of the texts and the shares of their kinds.
        figures (`tuple[str, ...]`): Figures to report; the first is the primary one.
        max_new_tokens (`int` or a function of the run): For measuring.
        base (`Callable[[WorldConfig, WorldModelConfig], Path]`): Builds the base; `None`: `build_world_model`.
        modes (`Mapping[str, float]`): Name -> temperature of what is measured; by default greedy, and sampled at 1.
        base_once (`bool`): The conditions change the training only, so that the base is measured under the first alone.
        measure (`Callable[[Run, Dataset, WorldEvaluation], dict[str, float]]`): Figures beside those of the world.
        trade_off ([`TradeOff`]): Two figures that the conditions trade for each other; arms are compared at equal cost.
        front (`tuple[str, str]`): Two figures of which more is better, plotted against each other with their front; the report
            says which arms are on it, and by what each won over the base.
        asked (`Mapping[str, float]`): Arm -> probability of being right below which its reward pays declining; the figures of one
            test set then have the `threshold` that was learnt, and `curve`, the points that it was read off.
        curves (`Mapping[str, str]`): Title -> name of figures of `measure` with `{}` for a number (`"accuracy, best of {}"`),
            to be tabled and plotted over it.
        published (`Mapping[str, str]`): Arm -> what its paper reports.
        published_what (`str`): What these numbers are.
    """

    title: str
    arms: Mapping[str, Callable[[Run], Any]]
    test_sets: Callable[[Run], dict[str, Any]]
    baseline: str
    steps: int = 40
    conditions: Mapping[str, Any] = field(default_factory=lambda: {"": None})
    world: WorldConfig | None = None
    model: WorldModelConfig | None = None
    figures: tuple[str, ...] = QUESTION_FIGURES
    max_new_tokens: int | Callable[[Run], int] = 48
    base: Callable[[WorldConfig, WorldModelConfig], Path] | None = None
    modes: Mapping[str, float] = field(default_factory=lambda: MODES)
    base_once: bool = False
    measure: Callable[[Run, Any, Any], dict[str, float]] | None = None
    trade_off: TradeOff | None = None
    front: tuple[str, str] | None = None
    asked: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, str] = field(default_factory=dict)
    published_what: str = "published"

    def __post_init__(self):
        for name in (self.baseline, *self.published):
            if name not in (BASE, *self.arms):
                raise ValueError(f"there is no arm {name!r}; the arms are {', '.join(map(repr, self.arms))}")


@dataclass(frozen=True)
class Settings:
    """What one call of the command runs: an experiment, its seeds and its base."""

    experiment: str
    seeds: tuple[int, ...]
    base_seed: int = 0
    size: str = "tiny"
    steps: int | None = None
    arms: tuple[str, ...] | None = None
    conditions: tuple[str, ...] | None = None
    out: str = "outputs/evidence"


def load_experiment(name: str) -> tuple[Experiment, str]:
    """The experiment of a name (a file in `benchmarks/experiments`) or path, and the text of its files."""
    path = Path(name) if name.endswith(".py") else EXPERIMENTS / f"{name}.py"
    if not path.is_file():
        known = sorted(p.stem for p in EXPERIMENTS.glob("[!_]*.py"))
        raise SystemExit(
            f"there is no experiment {name!r}; choose one of {', '.join(known)} or give the path of a file"
        )
    for folder in (str(EXPERIMENTS.parent), str(path.resolve().parent)):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    # Under a name of our own: a file called datasets.py must not hide the library.
    spec = importlib.util.spec_from_file_location(f"_experiment_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # An edit of the experiment, or of a file beside it that it imports, makes old results stale.
    found, beside = [path.resolve()], sorted(path.resolve().parent.glob("*.py"))
    for source in found:
        text = source.read_text(encoding="utf-8")
        found += [p for p in beside if p not in found and re.search(rf"^(from|import) {p.stem}\b", text, re.MULTILINE)]
    return module.EXPERIMENT, "".join(source.read_text(encoding="utf-8") for source in found)


def base_configs(experiment: Experiment, settings: Settings) -> tuple[WorldConfig, WorldModelConfig]:
    """The base of an experiment: the size's, with the experiment's changes, at the seed."""
    world, model = SIZES[settings.size]
    if experiment.world is not None and settings.size == "tiny":
        world = experiment.world
    elif experiment.world is not None:
        # Larger worlds keep their size and take the habits of the experiment's texts.
        sizes = {name: getattr(world, name) for name in ("num_people", "num_values", "num_targets")}
        world = replace(experiment.world, **sizes)
    if experiment.model is not None and settings.size == "tiny":
        model = experiment.model
    elif experiment.model is not None:
        shares = {name: getattr(experiment.model, name) for name in ("questions", "short_answers", "tokenizer")}
        model = replace(model, **shares)
    return replace(world, seed=settings.base_seed), replace(model, seed=settings.base_seed)


def build_base(experiment: Experiment, world: WorldConfig, model: WorldModelConfig, progress: bool = True) -> Path:
    """The folder of the base, built if it is not there."""
    if experiment.base is not None:
        return experiment.base(world, model)
    return build_world_model(world, None, model, progress=progress)


def results_folder(experiment: Experiment, source: str, settings: Settings) -> Path:
    """Where the results of these settings are; another base, step number or version of the files has another one."""
    world, model = base_configs(experiment, settings)
    key = [source, asdict(world), asdict(model), settings.steps or experiment.steps, world_lm.VERSION]
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:8]
    return Path(settings.out) / f"{Path(settings.experiment).stem}-{digest}"


def code_version() -> str:
    """A hash of the package, of this file and of the libraries that train: results of another version may differ."""
    from importlib.metadata import version

    import hf_factuality

    package = Path(hf_factuality.__file__).parent
    digest = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(package.rglob("*.py")):
        digest.update(path.read_bytes())
    digest.update(" ".join(map(version, ("torch", "transformers", "trl", "accelerate"))).encode())
    return digest.hexdigest()[:12]


def run_job(
    settings: Settings, condition: str, arm: str, seed: int, folder: Path | None = None, code: str = ""
) -> dict[str, Any]:
    """Trains and measures one arm, unless its result is there already.

    `folder` and `code` are those of the whole call: a file that is edited meanwhile stops the job.
    """
    experiment, source = load_experiment(settings.experiment)
    own = results_folder(experiment, source, settings)
    if folder not in (None, own):
        raise RuntimeError(f"{settings.experiment} was edited while it ran; start it again")
    folder = own
    name = "-".join(filter(None, (arm, condition, str(seed))))
    path = folder / f"{''.join(c if c.isalnum() else '_' for c in name)}.json"
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if (found["arm"], found["condition"], found["seed"]) != (arm, condition, seed):
            raise ValueError(
                f"{arm!r} ({condition!r}) and {found['arm']!r} ({found['condition']!r}) differ in punctuation only, and "
                "would share a file; rename one"
            )
        return found

    import torch
    from accelerate.utils import extract_model_from_parallel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    torch.set_num_threads(1)
    world_config, model_config = base_configs(experiment, settings)
    model_dir = build_base(experiment, world_config, model_config, progress=False)
    world = World(replace(world_config, split_seed=seed))
    started = time.time()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(sys.stderr):
        steps = settings.steps or experiment.steps
        run = Run(model_dir, world, seed, experiment.conditions[condition], Path(scratch), steps)
        # Before the training: what is wrong with these should not cost hours.
        test_sets = experiment.test_sets(run)
        limit = experiment.max_new_tokens
        limit = limit if isinstance(limit, int) else limit(run)
        if arm == BASE:
            model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
            model.to("cuda" if torch.cuda.is_available() else "cpu")
        else:
            model = experiment.arms[arm](run)
            if model is None:
                raise TypeError(f"the arm {arm!r} returned no model")
            # Measured as it will be saved, without the mixed precision of the training.
            model = extract_model_from_parallel(model, keep_fp32_wrapper=False)
        trained = time.time()
        tokenizer = AutoTokenizer.from_pretrained(model_dir)
        figures = {}
        for test_set, dataset in test_sets.items():
            for mode, temperature in experiment.modes.items():
                found = evaluate_world(
                    model, tokenizer, world, dataset, temperature=temperature, max_new_tokens=limit, seed=seed
                )
                own = replace(run, model=model, temperature=temperature)
                more = experiment.measure(own, dataset, found) if experiment.measure else {}
                figures[f"{test_set}, {mode}"] = {**found.metrics, **more}
    result = {
        "arm": arm,
        "condition": condition,
        "seed": seed,
        "figures": figures,
        "training_seconds": round(trained - started, 1),
        "seconds": round(time.time() - started, 1),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "code": code,
    }
    # A trainer is freed by the cyclic collector only; on a GPU the next one would not fit beside it.
    del model
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)
    return result


def run_experiment(settings: Settings, workers: int) -> tuple[list[dict[str, Any]], int]:
    """Every job of the settings; returns the results in a fixed order, and how many jobs failed."""
    experiment, source = load_experiment(settings.experiment)
    folder, code = results_folder(experiment, source, settings), code_version()
    arms = tuple(dict.fromkeys(settings.arms or (BASE, *experiment.arms)))
    conditions = tuple(dict.fromkeys(settings.conditions or experiment.conditions))
    for chosen, known in ((arms, (BASE, *experiment.arms)), (conditions, experiment.conditions)):
        if unknown := set(chosen) - set(known):
            raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; choose from: {', '.join(known)}")
    # Built here, with a progress bar, before the workers all wait for it.
    world, model = base_configs(experiment, settings)
    print(f"base: {build_base(experiment, world, model)}", flush=True)
    # Seed by seed, so that a run that is cut short has whole pairs.
    jobs = [(c, arm, seed) for seed in settings.seeds for c in conditions for arm in arms]
    if experiment.base_once:
        first = next(iter(experiment.conditions))
        jobs = [(c, arm, seed) for c, arm, seed in jobs if arm != BASE]
        jobs = [(first, BASE, seed) for seed in settings.seeds if BASE in arms] + jobs
    results, failed = {}, 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(jobs)), context, _start_worker) as pool:
        waiting = {pool.submit(run_job, settings, *job, folder, code): job for job in jobs}
        try:
            for number, future in enumerate(as_completed(waiting), 1):
                job = waiting[future]
                try:
                    results[job] = future.result()
                except Exception:
                    failed += 1
                    print(f"{job} failed:\n{traceback.format_exc()}", file=sys.stderr, flush=True)
                    continue
                first = experiment.figures[0]
                values = {where: found.get(first) for where, found in results[job]["figures"].items()}
                print(f"[{number}/{len(jobs)}] {job} {first}: {values} ({results[job]['seconds']} s)", flush=True)
        except BaseException:
            # Ctrl-C: what is running ends, what is waiting does not start.
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    made_by = {results[job].get("code") for job in results}
    if len(made_by) > 1:
        print(
            f"Some of these results were made by another version of the code. Delete {folder} to make them all again.",
            file=sys.stderr,
            flush=True,
        )
    return [results[job] for job in jobs if job in results], failed


def _start_worker() -> None:
    os.environ.setdefault("CI", "1")
    os.environ["OMP_NUM_THREADS"] = "1"
    # One GPU for each worker, before torch looks at them.
    gpus = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    if len(gpus) > 1:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus[(multiprocessing.current_process()._identity[0] - 1) % len(gpus)]
    # A worker whose command was killed does not live on.
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)


def summarise(experiment: Experiment, results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Per condition, test set and arm: mean and standard deviation over the seeds, and the paired difference.

    The difference is to the baseline arm on the same seed; its standard error is that of the mean over the seeds.
    """
    rows = []
    for condition in dict.fromkeys(r["condition"] for r in results):
        here = [r for r in results if r["condition"] == condition]
        base = {r["seed"]: r["figures"] for r in here if r["arm"] == experiment.baseline}
        for where in here[0]["figures"]:
            for arm in dict.fromkeys(r["arm"] for r in here):
                row = {"condition": condition, "where": where, "arm": arm, "figures": {}}
                own = [r for r in here if r["arm"] == arm]
                row["seeds"] = [r["seed"] for r in own]
                for name in experiment.figures:
                    values = [r["figures"][where].get(name) for r in own]
                    pairs = [
                        (r["figures"][where].get(name), base[r["seed"]][where].get(name))
                        for r in own
                        if arm != experiment.baseline and r["seed"] in base
                    ]
                    row["figures"][name] = {**_spread(values), **_paired(pairs)}
                rows.append(row)
    return rows


def _spread(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if not known:
        return {"mean": None, "sd": None, "values": list(values), "n": 0}
    sd = statistics.stdev(known) if len(known) > 1 else None
    return {"mean": statistics.mean(known), "sd": sd, "values": list(values), "n": len(known)}


def _paired(pairs: Sequence[tuple[float | None, float | None]]) -> dict[str, float]:
    differences = [one - other for one, other in pairs if one is not None and other is not None]
    if len(differences) < 2:
        return {}
    error = statistics.stdev(differences) / math.sqrt(len(differences))
    return {"difference": statistics.mean(differences), "standard_error": error, "pairs": len(differences)}

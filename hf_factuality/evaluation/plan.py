"""What the flags of `hf-factuality evaluate` ask for, checked before a model or a dataset is read."""

from __future__ import annotations

import argparse
import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.registry import benchmark_names, get_benchmark, load_items
from hf_factuality.errors import DataError
from hf_factuality.evaluation import own_file
from hf_factuality.evaluation.best_of import check_best_of, parse_best_of
from hf_factuality.evaluation.engines import Generation
from hf_factuality.evaluation.scoring import CLAIM_METRICS, JUDGED_METRICS, metrics_of
from hf_factuality.hub.results import load_results
from hf_factuality.metrics._cli import parse_metric_args
from hf_factuality.spans import SCOPES


# The prompts of these are a text that ends in "A:", which is no message of a chat.
PLAIN = {("truthfulqa", "published"), ("truthfulqa-generation", "published")}
# After an answer, a model that is no chat model goes on with the next question.
STOPS = {("truthfulqa-generation", "published"): ("\n\n",)}
# Flags that change nothing with --answers, and with a server.
_SAMPLING = ("max_new_tokens", "temperature", "top_p", "n_samples", "stop")
_LOADING = ("dtype", "device", "prompt_format")


@dataclass(frozen=True)
class Task:
    """One benchmark of a run.

    Args:
        benchmark ([`Benchmark`]):
            What is known of it.
        style (`str`):
            Of the prompts.
        metrics (`tuple[str, ...]`):
            To compute.
        generation ([`Generation`], *optional*):
            `None` for benchmarks over log-likelihoods.
        answers (`Path`):
            File of its answers.
    """

    benchmark: Benchmark
    style: str
    metrics: tuple[str, ...]
    generation: Generation | None
    answers: Path

    @property
    def name(self) -> str:
        """Of the benchmark."""
        return self.benchmark.name


@dataclass(frozen=True)
class Plan:
    """A run, checked.

    Args:
        tasks (`tuple[Task, ...]`):
            The benchmarks.
        thresholds (`dict[str, float]`):
            Of `--fail_under`, by `metric` or `benchmark.metric`.
        metric_args (`dict[str, dict]`):
            Per metric.
        template_arguments (`dict`):
            Of the chat template.
        best_of (`tuple[int, ...]`, *optional*):
            Of `--best_of`.
    """

    tasks: tuple[Task, ...]
    thresholds: dict[str, float]
    metric_args: dict[str, dict[str, Any]]
    template_arguments: dict[str, Any]
    best_of: tuple[int, ...] = ()


def make_plan(args: argparse.Namespace) -> Plan:
    """Check the flags.

    Raises:
        `DataError`, `ValueError`: names the flag, what is wrong with it, and the fix.
        `OSError`: the results cannot be written.
    """
    _check_flags(args)
    benchmarks = _benchmarks(args)
    metrics = _metrics(benchmarks, _listed(args.metrics))
    _check_judges(args, metrics)
    best_of = _best_of(args, metrics)
    tasks = []
    for benchmark in benchmarks:
        style = args.style or benchmark.styles[0]
        if style not in benchmark.styles:
            raise DataError(f"--style {style!r}: {benchmark.name} has {', '.join(map(repr, benchmark.styles))}")
        generation = None
        if benchmark.kind == "generate":
            generation = _generation(args, benchmark, style)
            check_samples(
                metrics[benchmark.name], generation.n_samples, best_of, f"--n_samples {generation.n_samples}"
            )
            if not args.answers and set(metrics[benchmark.name]) & set(CLAIM_METRICS):
                check_best_of(best_of, generation.n_samples, f"--n_samples {generation.n_samples}")
        elif args.base_url:
            raise ValueError(
                f"--benchmark {benchmark.name} needs the log-likelihood of given texts, which a chat server does not tell; "
                "leave --base_url out to load the model in this process"
            )
        tasks.append(
            Task(benchmark, style, metrics[benchmark.name], generation, _answers_path(args.out, benchmark.name))
        )
    if args.max_not_judged is not None and not 0 <= args.max_not_judged <= 1:
        raise ValueError(f"--max_not_judged is a share in [0, 1], got {args.max_not_judged:g}")
    arguments = parse_metric_args(
        args.metric_args, {name for names in metrics.values() for name in names}, "--metrics"
    )
    for name in arguments:
        if name not in CLAIM_METRICS:
            raise ValueError(f"--metric_args: {name} takes none; only {', '.join(CLAIM_METRICS)} do")
    _check_out(args.out, [task.answers for task in tasks], args.answers)
    template = _template(args.chat_template_kwargs)
    return Plan(tuple(tasks), _thresholds(args.fail_under, metrics), arguments, template, best_of)


def check_samples(metrics: Sequence[str], n_samples: int, best_of: Sequence[int], where: str) -> None:
    """Check that each metric takes so many completions per item.

    Raises:
        `ValueError`: one of them does not.
    """
    several = ("accuracy", *CLAIM_METRICS) if best_of else ("accuracy",)
    plural = [name for name in metrics if name not in several]
    if n_samples > 1 and plural:
        hint = "; --best_of takes several of metrics over claims" if plural[0] in CLAIM_METRICS else ""
        raise ValueError(f"{where}: {plural[0]} takes one completion per item, accuracy several{hint}")


def _best_of(args: argparse.Namespace, metrics: dict[str, tuple[str, ...]]) -> tuple[int, ...]:
    if args.best_of is None:
        return ()
    sizes = parse_best_of(args.best_of)
    if not {name for names in metrics.values() for name in names} & set(CLAIM_METRICS):
        raise ValueError(
            f"--best_of is for metrics over claims, none of which is computed; add --metrics with one of "
            f"{', '.join(CLAIM_METRICS)}"
        )
    return sizes


def load_task_items(
    args: argparse.Namespace, task: Task, limit: int | None
) -> tuple[list[BenchmarkItem], dict[str, Any]]:
    """Items of a task, and where they come from; see `load_items`."""
    if task.name == own_file.NAME:
        return own_file.load_own_items(Path(args.dataset), limit)
    return load_items(
        task.name,
        path=args.dataset,
        split=args.split,
        revision=args.dataset_revision,
        style=task.style,
        seed=args.seed,
        limit=limit,
    )


def _check_flags(args: argparse.Namespace) -> None:
    if (args.model is None) == (args.answers is None):
        raise ValueError("give either --model, or --answers with a file of answers")
    if args.base_url and not args.model:
        raise ValueError("--base_url needs --model, the name of the model on that server")
    if args.model_name and not args.answers:
        raise ValueError("--model_name says who wrote --answers; without them, --model is the name")
    if args.answers:
        _refuse(args, ("revision", *_LOADING, "chat_template_kwargs", *_SAMPLING), "no model runs with --answers")
    if args.base_url:
        _refuse(args, _LOADING, "the server has loaded the model, and renders the prompts")
    if args.concurrency < 1:
        raise ValueError(f"--concurrency must be at least 1, got {args.concurrency}")
    if args.limit is not None and args.limit < 1:
        raise ValueError(f"--limit must be at least 1, got {args.limit}")
    if args.out.is_dir():
        raise OSError(f"--out {args.out} is a folder; name a file in it")
    if args.top_k < 1:
        raise ValueError(f"--top_k must be at least 1, got {args.top_k}")


def _refuse(args: argparse.Namespace, flags: Sequence[str], reason: str) -> None:
    """Raise `ValueError` for the first of these flags that was given, and would change nothing."""
    for flag in flags:
        if getattr(args, flag) not in (None, "auto"):
            raise ValueError(f"--{flag} is not used: {reason}; leave it out")


def _listed(given: Sequence[str] | None) -> list[str]:
    names = [name.strip() for text in given or () for name in text.split(",")]
    return list(dict.fromkeys(name for name in names if name))


def _benchmarks(args: argparse.Namespace) -> list[Benchmark]:
    names = _listed(args.benchmark)
    if not names:
        if args.dataset is None:
            raise DataError(f"give --benchmark, one or several of {', '.join(benchmark_names())}; or --dataset FILE")
        names = [own_file.NAME]
    found = [own_file.FILE_BENCHMARK if name == own_file.NAME else get_benchmark(name) for name in names]
    for flag, value in (("dataset", args.dataset), ("answers", args.answers), ("split", args.split)):
        if value is not None and len(found) > 1:
            raise ValueError(f"--{flag} is of one benchmark; run the command once for each of {', '.join(names)}")
    if own_file.FILE_BENCHMARK in found:
        _refuse(args, ("split", "dataset_revision"), "a file of your own has neither splits nor revisions")
    for benchmark in found:
        if benchmark.repo_id is None and args.dataset is None:
            raise DataError(f"--benchmark {benchmark.name} has no default dataset; give its file with --dataset PATH")
    return found


def _metrics(benchmarks: Sequence[Benchmark], wanted: Sequence[str]) -> dict[str, tuple[str, ...]]:
    from hf_factuality.metrics.install import METRIC_NAMES

    known = sorted({"accuracy", *METRIC_NAMES})
    for name in wanted:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=2)
            hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose of {', '.join(known)}"
            raise ValueError(f"--metrics: unknown metric {name!r}; {hint}")
        if not any(name in metrics_of(benchmark) for benchmark in benchmarks):
            raise ValueError(
                f"--metrics: {name} is not defined for {benchmarks[0].name}, which has "
                f"{', '.join(metrics_of(benchmarks[0]))}"
            )
    found = {}
    for benchmark in benchmarks:
        chosen = tuple(name for name in wanted if name in metrics_of(benchmark)) if wanted else benchmark.metrics
        if not chosen:
            raise ValueError(
                f"--metrics: none of {', '.join(wanted)} is defined for {benchmark.name}, which has "
                f"{', '.join(metrics_of(benchmark))}"
            )
        found[benchmark.name] = chosen
    return found


def _check_judges(args: argparse.Namespace, metrics: dict[str, tuple[str, ...]]) -> None:
    wanted = {name for names in metrics.values() for name in names}
    claims = sorted(wanted & set(CLAIM_METRICS))
    if claims and not args.verifier:
        raise ValueError(f"{claims[0]} needs someone who judges claims: --verifier lexical, nli:MODEL, llm:MODEL, ...")
    if "halluqa" in wanted and not (args.judge or args.verifier):
        raise ValueError(
            "halluqa needs --judge MODEL with --judge_base_url URL, or --verifier, which judges by the reference answers"
        )
    if args.judge and not args.judge_base_url:
        raise ValueError(f"--judge {args.judge} needs --judge_base_url, the address of its server")
    if args.judge_base_url and not args.judge:
        raise ValueError("--judge_base_url needs --judge, the name of the model on that server")
    if not args.judge:
        _refuse(args, ("judge_prompt",), "there is no --judge")
    if not args.knowledge:
        _refuse(args, ("retriever",), "there is no --knowledge")
    if not args.verifier:
        _refuse(args, ("verifier_base_url",), "there is no --verifier")
    if args.judge and "halluqa" not in wanted:
        raise ValueError(
            "--judge is for halluqa, which is not computed; metrics over claims take --verifier llm:MODEL"
        )
    if args.verifier and args.judge and not claims:
        raise ValueError("halluqa takes either --judge or --verifier")
    if args.scope != SCOPES[0] and not wanted & set(JUDGED_METRICS):
        raise ValueError(f"--scope is not used by {', '.join(sorted(wanted))}, which nobody judges; leave it out")
    if args.verifier and not wanted & set(JUDGED_METRICS):
        raise ValueError(f"--verifier is not used by {', '.join(sorted(wanted))}; leave it out, or add --metrics")
    if args.knowledge and not claims:
        raise ValueError("--knowledge is for metrics over claims; halluqa judges by the reference answers")
    if args.knowledge and "halluqa" in wanted and not args.judge:
        raise ValueError("--knowledge: halluqa judges by the reference answers; compute it in a run of its own")


def _generation(args: argparse.Namespace, benchmark: Benchmark, style: str) -> Generation:
    def given(name: str) -> Any:
        value = getattr(args, name)
        return getattr(benchmark, name) if value is None else value

    stop = tuple(args.stop) if args.stop else STOPS.get((benchmark.name, style), ())
    n_samples = 1 if args.answers else given("n_samples")
    return Generation(given("max_new_tokens"), given("temperature"), given("top_p"), n_samples, args.seed, stop)


def _answers_path(out: Path, name: str) -> Path:
    return out.with_name(f"{out.stem}.{name}.answers.jsonl")


def _check_out(out: Path, answers: Sequence[Path], source: Path | None) -> None:
    if out.exists():
        load_results(out)
    parent = out.parent
    while not parent.exists():
        parent = parent.parent
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise OSError(f"--out {out} cannot be written: no permission in {parent}, or it is no folder")
    for path in answers:
        if path.exists() and not os.access(path, os.W_OK):
            raise OSError(f"{path} cannot be written: no permission")
        if source is not None and source.exists() and path.exists() and path.samefile(source):
            raise ValueError(f"--answers {source} would be overwritten; name another --out")


def _thresholds(given: Sequence[str] | None, metrics: dict[str, tuple[str, ...]]) -> dict[str, float]:
    names = {name for found in metrics.values() for name in found}
    names |= {f"{benchmark}.{name}" for benchmark, found in metrics.items() for name in found}
    thresholds = {}
    for text in given or ():
        name, equals, value = text.rpartition("=")
        name = name.strip()
        try:
            number = float(value) if equals else None
        except ValueError:
            number = None
        if number is None or not 0 <= number <= 1:
            raise ValueError(f"--fail_under takes NAME=SHARE with a share in [0, 1], got {text!r}")
        if name not in names:
            raise ValueError(f"--fail_under {text}: {name!r} is not computed; choose of {', '.join(sorted(names))}")
        thresholds[name] = number
    return thresholds


def _template(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"--chat_template_kwargs must be a JSON object, got {text!r}")
    return found

"""What the arguments of `evaluate` ask for, checked before a model or a dataset is read."""

from __future__ import annotations

import difflib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem
from hf_factuality.data.benchmarks.registry import benchmark_names, get_benchmark, load_items
from hf_factuality.data.benchmarks.rows import BenchmarkReader
from hf_factuality.errors import DataError
from hf_factuality.evaluation import own_file
from hf_factuality.evaluation._shared import (
    allowed_missing,
    check_at_least_one,
    check_choices,
    check_thresholds,
    make_way,
    split_names,
)
from hf_factuality.evaluation.best_of import parse_best_of
from hf_factuality.evaluation.verification import AnswerJudge, AnswerVerifier
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.hub.results import load_results
from hf_factuality.methods.process_reward.formula import AGGREGATES
from hf_factuality.metrics._arguments import check_argument_values
from hf_factuality.metrics._registry import CLAIM_METRICS, METRIC_NAMES
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.verifiers.base import Verifier


GRADED_METRICS = ("abstention", "calibration")
"""Metrics that need to know which answers are right."""
JUDGE_METRICS = ("balanced_accuracy", "hallucination_f1")
"""Metrics of verdicts on given claims."""
ABILITIES = {
    **dict.fromkeys(("arc_easy", "arc_challenge"), ("accuracy", "allenai/ai2_arc")),
    "race": ("accuracy", "EleutherAI/race"),
    "piqa": ("accuracy", "baber/piqa"),
    "squadv2": ("f1", "lighteval/squad_v2"),
    "drop": ("f1", "EleutherAI/drop"),
}
"""Tasks of lm-evaluation-harness that the alignment tax is measured by: metric and dataset."""
SUITES = {
    "long-form": ("biographies", "longfact", "factory", "longwiki", own_file.NAME),
    "tax": (*(name for name in benchmark_names() if get_benchmark(name).kind != "judge"), own_file.NAME, *ABILITIES),
}
_CHOICES = {
    "scope": SCOPES,
    "retriever": ("topic", "corpus"),
    "match": ("exact", "contained"),
    "aggregate": AGGREGATES,
}
# The prompts of these are a text that ends in "A:", which is no message of a chat.
PLAIN = {("truthfulqa", "published"), ("truthfulqa-generation", "published")}
# After an answer, a model that is no chat model goes on with the next question.
STOPS = {("truthfulqa-generation", "published"): ("\n\n",)}
# Arguments that change nothing with `answers`, and with a server.
_SAMPLING = ("max_new_tokens", "temperature", "top_p", "num_samples", "stop")
_LOADING = ("dtype", "device", "prompt_format")
_RUNNING = ("revision", *_LOADING, "chat_template_kwargs", *_SAMPLING)


@dataclass(frozen=True)
class Arguments:
    """The arguments of [`~hf_factuality.evaluate`], which documents them; those that take several are lists."""

    benchmark: Sequence[str] | None
    suite: str | None
    dataset: Sequence[str] | None
    split: str | None
    dataset_revision: str | None
    style: str | None
    limit: int | None
    metrics: Sequence[str] | None
    metric_args: Mapping[str, Mapping[str, Any]]
    model: Sequence[str] | None
    revision: str | None
    base_url: str | None
    concurrency: int
    answers: Sequence[Path] | None
    model_name: str | None
    dtype: str
    device: str | None
    batch_size: int
    prompt_format: str
    chat_template_kwargs: Mapping[str, Any] | None
    trust_remote_code: bool
    max_new_tokens: int | None
    temperature: float | None
    top_p: float | None
    num_samples: int | None
    best_of: str | None
    best_of_by: str | None
    aggregate: str | None
    stop: Sequence[str] | None
    seed: int
    verifier: str | Verifier | None
    verifier_base_url: str | None
    verifier_tokens: int | None
    scope: str
    knowledge: Path | None
    retriever: str | None
    num_passages: int
    judge: str | None
    judge_base_url: str | None
    judge_prompt: Path | None
    scorers: Sequence[str] | None
    default_data_source: str | None
    match: str | None
    judge_votes: int
    judge_tokens: int
    out: Path | None  # None: nothing is written
    overwrite: bool
    fail_under: Mapping[str, float]
    max_not_judged: float | None
    command: str
    own_metrics: Mapping[str, Callable[..., dict[str, Any]]] = field(default_factory=dict)
    own_benchmarks: Mapping[str, BenchmarkReader] = field(default_factory=dict)

    @property
    def claim_metrics(self) -> tuple[str, ...]:
        """Ours, and those of the user."""
        return (*CLAIM_METRICS, *self.own_metrics)


@dataclass
class Task:
    """One benchmark of a run: what the arguments say of it, and what is read when all of them were checked."""

    benchmark: Benchmark
    style: str
    metrics: tuple[str, ...]
    generation: SamplingConfig | None  # None: over log-likelihoods
    answers: Path | None = None  # the file of answers, to be written
    scope: str = SCOPES[0]
    dataset: str | None = None
    checklists: bool = False  # whether answers are compared with those of the items
    metric_args: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    own_metrics: Mapping[str, Callable[..., dict[str, Any]]] = field(default_factory=dict)
    best_of: tuple[int, ...] = ()
    best_of_by: str | None = None  # who chooses the answer that accuracy is of
    aggregate: str = AGGREGATES[0]
    match: str | None = None  # how answers are compared with the gold ones, if nobody judges them
    items: Sequence[BenchmarkItem] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    verifier: AnswerVerifier | None = None
    judge: AnswerJudge | None = None
    selector: AnswerVerifier | None = None

    @property
    def name(self) -> str:
        return self.benchmark.name

    @property
    def claim_metrics(self) -> set[str]:
        """Those of its metrics that are over claims."""
        return {*self.metrics} & {*CLAIM_METRICS, *self.own_metrics}

    @property
    def judged_metrics(self) -> set[str]:
        """Those that need a verifier or a judge."""
        return self.claim_metrics | {*self.metrics} & {"halluqa", *JUDGE_METRICS}

    @property
    def plain(self) -> bool:
        """Whether its prompts are published as text."""
        return (self.name, self.style) in PLAIN

    @property
    def judged_samples(self) -> int:
        """Completions per item that are judged."""
        return self.generation.num_samples if self.best_of and self.generation else 1


@dataclass(frozen=True)
class EvaluationPlan:
    """A run, checked: its tasks, and what the arguments say of all of them."""

    tasks: Sequence[Task]
    thresholds: Mapping[str, float]  # by `metric` or `benchmark.metric`
    abilities: Mapping[str, str | None]  # their files by name, of the suite "tax"
    allowed_missing: float | None
    template_arguments: Mapping[str, Any]


def metrics_of(benchmark: Benchmark, more: Sequence[str] = ()) -> tuple[str, ...]:
    """Names of the metrics that are defined for a benchmark, its own first; `more` are over claims."""
    if benchmark.kind in ("log_likelihood", "judge"):
        return benchmark.metrics
    answered = ("accuracy", *GRADED_METRICS) if benchmark.data_source and benchmark.name != "halueval-qa" else ()
    return tuple(dict.fromkeys((*benchmark.metrics, *answered, *CLAIM_METRICS, *more)))


def make_plan(args: Arguments) -> EvaluationPlan:
    """Check the arguments; a `ValueError` names the argument, what is wrong with it, and the fix."""
    names = ("concurrency", "limit", "num_passages", "judge_tokens", "verifier_tokens")
    check_at_least_one(**{name: getattr(args, name) for name in names})
    check_choices(_CHOICES, vars(args))
    for name in ("model", "answers"):
        refuse_if(
            len(getattr(args, name) or ()) > 1, f"several `{name}` are compared by `suite` {' or '.join(SUITES)}"
        )
    if not args.benchmark and not args.dataset:
        _check_who_answers(args, ())
    datasets = _datasets(args)
    benchmarks = _benchmarks(args, datasets)
    _check_who_answers(args, benchmarks)
    metrics = _metrics(args, benchmarks)
    _check_arguments(args, benchmarks, {name for names in metrics.values() for name in names})
    named = {*datasets, *split_names(args.benchmark)} & {*ABILITIES} or {*ABILITIES}
    abilities = {name: datasets.get(name) for name in ABILITIES if name in named and args.suite == "tax"}
    if abilities and importlib.util.find_spec("lm_eval") is None:
        raise ImportError("`suite` tax runs tasks of lm-evaluation-harness: pip install hf_factuality[tax]")
    tasks = [_task(args, benchmark, metrics[benchmark.name]) for benchmark in benchmarks]
    computed = {*(name for task in tasks for name in task.metrics)}
    arguments = check_argument_values(args.metric_args, computed)
    for name in arguments:
        known = args.claim_metrics
        refuse_if(name not in known, f"`metric_args`: {name} takes none; only {', '.join(known)} do")
    for task in tasks:
        task.metric_args, task.dataset = arguments, datasets.get(task.name, datasets.get(""))
    if args.out is not None:
        for path in (args.out, *(task.answers for task in tasks)):
            make_way(path, args.answers or (), "out")
        if args.out.exists():
            load_results(args.out)
    computed |= {f"{task.name}.{name}" for task in tasks for name in task.metrics}
    computed |= {text for name in abilities for text in (ABILITIES[name][0], f"{name}.{ABILITIES[name][0]}")}
    thresholds = check_thresholds(args.fail_under, computed)
    refuse_if("calibration" in " ".join(thresholds), "`fail_under` calibration: it is an error, so lower is better")
    return EvaluationPlan(
        tasks,
        thresholds,
        abilities,
        allowed_missing(args.max_not_judged, args.fail_under),
        args.chat_template_kwargs or {},
    )


def check_samples(task: Task, source: str) -> None:
    """Check that each metric takes as many completions per item as `source` gives, and `best_of` no more than those."""
    n_samples, claims = task.generation.num_samples, task.claim_metrics
    where = f"{source} gives {n_samples} completions per item"
    for name in task.metrics:
        hint = "; `best_of` takes several" if name in claims else ""
        several = name == "accuracy" or (task.best_of and name in claims)
        refuse_if(
            n_samples > 1 and not several, f"{where}: {name} takes one completion per item, accuracy several{hint}"
        )
    if task.best_of:
        largest = max(task.best_of)
        refuse_if(largest > n_samples, f"`best_of` {largest} needs that many completions per item, and {where}")


def load_task_items(args: Arguments, task: Task, limit: int | None) -> tuple[list[BenchmarkItem], dict[str, Any]]:
    """Items of a task, and where they come from; see `load_items`."""
    if task.name == own_file.NAME:
        return own_file.load_own_items(Path(task.dataset), limit)
    source = {"path": task.dataset, "split": args.split, "revision": args.dataset_revision}
    return load_items(
        args.own_benchmarks.get(task.name, task.name), **source, style=task.style, seed=args.seed, limit=limit
    )


def refuse_if(wrong: Any, message: str) -> None:
    if wrong:
        raise ValueError(message)


def _check_who_answers(args: Arguments, benchmarks: Sequence[Benchmark]) -> None:
    """A model or a file of answers, or, of benchmarks of judges, neither of them but a verifier."""
    judging = [benchmark.name for benchmark in benchmarks if benchmark.kind == "judge"]
    if not judging:
        either = "give either `model`, or `answers` with a file of answers"
        refuse_if((args.model is None) == (args.answers is None), either)
        return
    names = ", ".join(judging)
    refuse_if(
        len(judging) < len(benchmarks), f"`benchmark` {names} is of judges; run it without those that models answer"
    )
    refuse_if(not args.verifier, f"`benchmark` {names} measures a judge: give `verifier`")
    for flag in ("model", "answers", "model_name", "base_url", "knowledge", *_RUNNING):
        given = getattr(args, flag) not in (None, "auto")
        refuse_if(
            given,
            f"`{flag}` is not used: `benchmark` {names} measures `verifier`, and its claims are given; leave it out",
        )
    refuse_if(args.scope != SCOPES[0], f"`scope` is not used: `benchmark` {names} gives whole claims; leave it out")


def _check_arguments(args: Arguments, benchmarks: Sequence[Benchmark], wanted: set[str]) -> None:
    """Arguments that need others, that exclude each other, or that would change nothing."""
    over_claims = ", ".join(args.claim_metrics)
    claims = sorted(wanted & set(args.claim_metrics))
    judged = {*claims} | wanted & {"halluqa", *JUDGE_METRICS}
    graded, by_claims = wanted & set(GRADED_METRICS), "metrics over claims take `verifier` llm:MODEL"
    own, names = own_file.FILE_BENCHMARK in benchmarks, ", ".join(sorted(wanted))
    long_form, selects = args.suite == "long-form", args.best_of_by not in (None, "majority")
    by_source = args.scorers or args.default_data_source
    refuse_if(
        by_source and not own,
        "`scorers` and `default_data_source` are for a `dataset` of your own, without `benchmark`",
    )
    for flag in ("answers", "split"):
        several = len(benchmarks) > 1 and getattr(args, flag) is not None
        refuse_if(several, f"`{flag}` is of one benchmark; run the command once for each")
    for used, flags, reason in (
        (not args.answers, _RUNNING, "no model runs with `answers`"),
        (args.answers, ("model_name",), "`model` is the name"),
        (args.model, ("base_url",), "there is no `model`, its name on that server"),
        (not args.base_url, _LOADING, "the server has loaded the model, and renders the prompts"),
        (args.suite != "tax", ("answers", "base_url"), "`suite` tax needs the log-likelihood of given texts"),
        (not own, ("split", "dataset_revision"), "a file of your own has neither splits nor revisions"),
        (args.judge, ("judge_prompt", "judge_base_url"), "there is no `judge`"),
        (args.knowledge, ("retriever",), "there is no `knowledge`"),
        (args.verifier, ("verifier_base_url", "verifier_tokens"), "there is no `verifier`"),
        (claims, ("knowledge",), f"it is for metrics over claims ({over_claims})"),
        (claims or "accuracy" in wanted, ("best_of",), f"it is for accuracy and {over_claims}"),
        (args.best_of and "accuracy" in wanted, ("best_of_by",), "it is for accuracy with `best_of`"),
        (selects, ("aggregate",), "it is for `best_of_by` VERIFIER"),
        ("halluqa" in wanted or graded, ("judge",), f"it is for halluqa and {', '.join(GRADED_METRICS)}; {by_claims}"),
        (graded, ("match",), f"it is for {' and '.join(GRADED_METRICS)}"),
        (judged, ("verifier",), f"nobody judges {names}"),
        (judged or graded or selects or args.scope == SCOPES[0], ("scope",), f"nobody judges {names}"),
    ):
        for flag in flags:
            given = getattr(args, flag) not in (None, "auto")
            refuse_if(given and not used, f"`{flag}` is not used: {reason}; leave it out")
    for wrong, message in (
        (long_form and wanted - set(claims), f"`suite` takes metrics over claims ({over_claims})"),
        (
            args.suite == "tax" and "calibration" in wanted,
            "`suite` tax: of calibration, lower is better; take another",
        ),
        (claims and not args.verifier, f"{'/'.join(claims)} needs someone who judges claims: `verifier` lexical, ..."),
        (
            "halluqa" in wanted and not (args.judge or args.verifier),
            "halluqa needs `judge` MODEL with `judge_base_url` URL, or `verifier`, which judges by the reference answers",
        ),
        (graded and bool(args.judge) == bool(args.match), "abstention and calibration need `judge` MODEL, or `match`"),
        (args.judge and not args.judge_base_url, f"`judge` {args.judge} needs `judge_base_url`, its server's address"),
        (args.verifier and args.judge and not claims, "halluqa takes either `judge` or `verifier`"),
        (
            args.knowledge and "halluqa" in wanted and not args.judge,
            "`knowledge`: halluqa judges by the reference answers; compute it in a run of its own",
        ),
    ):
        refuse_if(wrong, message)


def _datasets(args: Arguments) -> dict[str, str]:
    """The paths of `dataset` by the benchmark that it names; by `""` without a name."""
    found: dict[str, str] = {}
    known = SUITES["tax"] if args.suite == "tax" else (*benchmark_names(), *args.own_benchmarks, own_file.NAME)
    for text in args.dataset or ():
        name, equals, path = text.partition("=")
        found |= {name: path} if equals and name in known else {"": text}
    return found


def _benchmarks(args: Arguments, datasets: Mapping[str, str]) -> list[Benchmark]:
    names, among = split_names(args.benchmark) or [name or own_file.NAME for name in datasets], benchmark_names()
    if args.suite:
        refuse_if(args.suite not in SUITES, f"`suite` {args.suite!r}: choose of {', '.join(SUITES)}")
        among = SUITES[args.suite]
        refuse_if(
            set(names) - {*among}, f"`suite` {args.suite} has {', '.join(among)}; `benchmark` {', '.join(names)}"
        )
    if args.suite == "tax":
        names, among = ([name for name in it if name not in ABILITIES] for it in (names, among))
    if not names:
        raise DataError(f"give `benchmark`, one or several of {', '.join(among)}; or `dataset` FILE")
    given = len(args.dataset or ())
    unclear = len(datasets) < given or "" in datasets and max(given, len(names)) > 1
    known = ", ".join(SUITES.get(args.suite, among))
    refuse_if(unclear, f"`dataset` is of one benchmark; give `dataset` NAME=PATH for each, with a NAME of {known}")
    unused = ", ".join(sorted(set(datasets) - {"", *names, *ABILITIES}))
    refuse_if(unused, f"`dataset` of {unused} is not used: `benchmark` has {', '.join(names)}")
    own = {own_file.NAME: own_file.FILE_BENCHMARK, **args.own_benchmarks}
    found = [own.get(name) or get_benchmark(name) for name in names]
    for benchmark in found:
        if benchmark.repo_id is None and not {"", benchmark.name} & set(datasets):
            raise DataError(f"`benchmark` {benchmark.name} has no default dataset; give its file with `dataset` PATH")
    return found


def _metrics(args: Arguments, benchmarks: Sequence[Benchmark]) -> dict[str, tuple[str, ...]]:
    """Per benchmark, the wanted metrics that are defined for it, or its own."""
    wanted = split_names(args.metrics)
    known = sorted({"accuracy", *METRIC_NAMES, *args.own_metrics})
    for name in wanted:
        close = difflib.get_close_matches(name, known, n=2)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"choose of {', '.join(known)}"
        refuse_if(name not in known, f"`metrics`: unknown metric {name!r}; {hint}")
    found = {}
    for benchmark in benchmarks:
        defined = metrics_of(benchmark, [*args.own_metrics])
        long_form = args.suite == "long-form" and benchmark is own_file.FILE_BENCHMARK
        own = ("factscore",) if long_form else benchmark.metrics
        odd = ", ".join(name for name in own if name not in known)
        refuse_if(
            odd,
            f"`benchmark` {benchmark.name} names the metrics {odd}, which are none of ours; choose of {', '.join(known)}",
        )
        own += ("calibration",) if args.style == "confidence" and args.style in benchmark.styles else ()
        found[benchmark.name] = tuple(name for name in wanted if name in defined) if wanted else own
        here = f"defined for {benchmark.name}, which has {', '.join(defined)}"
        refuse_if(not found[benchmark.name], f"`metrics`: none of {', '.join(wanted)} is {here}")
    choices = sorted({name for benchmark in benchmarks for name in metrics_of(benchmark, [*args.own_metrics])})
    unused = ", ".join(sorted(set(wanted).difference(choices)))
    refuse_if(unused, f"`metrics`: {unused} is not defined for {', '.join(found)}; choose of {', '.join(choices)}")
    return found


def _task(args: Arguments, benchmark: Benchmark, metrics: tuple[str, ...]) -> Task:
    style = args.style or benchmark.styles[0]
    styles = ", ".join(map(repr, benchmark.styles))
    refuse_if(style not in benchmark.styles, f"`style` {style!r}: {benchmark.name} has {styles}")
    answers = args.out and args.out.parent / f"{args.out.stem}.{benchmark.name}.answers.jsonl"
    generation = None if benchmark.kind == "log_likelihood" else _generation(args, benchmark, style)
    scope = "completion" if benchmark.kind == "judge" else args.scope
    task = Task(benchmark, style, metrics, generation, answers, scope, checklists=args.suite == "long-form")
    task.match, task.own_metrics = args.match, args.own_metrics
    task.best_of = parse_best_of(args.best_of) if args.best_of is not None else ()
    task.best_of_by, task.aggregate = args.best_of_by, args.aggregate or AGGREGATES[0]
    if generation is None:
        refuse_if(
            args.base_url,
            f"`benchmark` {benchmark.name} needs the log-likelihood of given texts, which a chat server does not tell; "
            "leave `base_url` out to load the model in this process",
        )
    elif not args.answers:
        check_samples(task, "`num_samples`")
    return task


def _generation(args: Arguments, benchmark: Benchmark, style: str) -> SamplingConfig:
    def given(name: str, of_benchmark: str | None = None) -> Any:
        value = getattr(args, name)
        return getattr(benchmark, of_benchmark or name) if value is None else value

    stop = tuple(args.stop) if args.stop else STOPS.get((benchmark.name, style), ())
    n_samples = 1 if args.answers else given("num_samples", "n_samples")  # of answers, the file tells
    names = ("max_new_tokens", "temperature", "top_p")
    return SamplingConfig(**{it: given(it) for it in names}, num_samples=n_samples, seed=args.seed, stop=stop)

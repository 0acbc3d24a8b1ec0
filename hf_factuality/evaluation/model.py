"""Models on benchmarks: answers, verifications and scores of each benchmark, and one file of results.

All that can be checked is checked before the first question is asked.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality._lazy import object_name
from hf_factuality.errors import DataError
from hf_factuality.evaluation import own_file
from hf_factuality.evaluation._shared import counts, failures, limits_of, numbers, shown, shown_interval
from hf_factuality.evaluation.engines import ClaimEngine, Engine, FileEngine, ServerEngine, described
from hf_factuality.evaluation.journal import Journal
from hf_factuality.evaluation.plan import (
    GRADED_METRICS,
    Arguments,
    EvaluationPlan,
    Task,
    check_samples,
    load_task_items,
    make_plan,
)
from hf_factuality.evaluation.run import answer_items, journal_rows, judge_answers
from hf_factuality.evaluation.scoring import TaskAnswers, check_gold, score
from hf_factuality.evaluation.tax import Ability
from hf_factuality.evaluation.verification import AnswerJudge, AnswerVerifier
from hf_factuality.functional.scoring import ClaimCounts, count_claims
from hf_factuality.generation.base import ended_at_limit
from hf_factuality.generation.journal import only_run
from hf_factuality.hub.results import check_same_model, environment, now, public, shown_count, write_results
from hf_factuality.hub.tables import better
from hf_factuality.io.files import write_atomically
from hf_factuality.io.svg import plot_svg
from hf_factuality.metrics._arguments import check_metric_args
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.verifiers.guard import quiet_guard


if TYPE_CHECKING:
    import pandas


# Reasons to leave an answer out that say nothing about it; an abstention, for one, does.
_NOT_JUDGED = ("missing", "no_evidence", "verifier_failed", "unjudged")


@dataclass(frozen=True)
class EvaluateResult:
    """What [`evaluate`] has measured.

    Args:
        results (`list[dict[str, Any]]`):
            One entry per benchmark and metric, as in the file of results.
        out (`Path`):
            The file of results; of a suite, the comparison.
        failures (`list[str]`):
            What is below `fail_under`, or left unjudged beyond `max_not_judged`, in words; empty if all is well.
        notes (`list[str]`):
            Files that were written, and what a comparison says.
        comparison (`dict[str, Any]`, *optional*):
            Of a suite: the rows of all models, and what each won.
        answers (`list`):
            Per benchmark its answers and its entries, for whoever goes on with them.
    """

    results: list[dict[str, Any]]
    out: Path
    failures: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    comparison: dict[str, Any] | None = None
    answers: list[tuple[TaskAnswers | None, list[dict[str, Any]]]] = field(default_factory=list, repr=False)

    def table(self) -> list[dict[str, str]]:
        """The results as cells of a table."""
        return [result_cells(entry) for entry in self.results]

    def to_pandas(self) -> pandas.DataFrame:
        """A row per benchmark and metric: `benchmark`, `metric`, `value`, `low`, `high`, `n`, `n_scored`."""
        import pandas

        columns = ("benchmark", "metric", "value", "low", "high", "n", "n_scored")
        return pandas.DataFrame([{**it, **(it["confidence_interval"] or {})} for it in self.results], columns=columns)


def evaluate_model(args: Arguments) -> EvaluateResult:
    """One model on its benchmarks, whose results are added to the file `args.out`."""
    plan = make_plan(args)
    with ExitStack() as stack:
        # Two runs on a machine into one file would mix their answers.
        taken = f"another run writes to {args.out.name!r}; wait for it, or give another `out`"
        stack.enter_context(only_run(lock_path(args.out), taken))
        stack.enter_context(quiet_guard())
        for task in plan.tasks:
            read_items(args, task)
            load_judges(args, task, stack)
        abilities = [Ability(*it, args.limit, args.seed) for it in plan.abilities.items()]
        engine = _engine(args, plan)
        model = engine.identity()
        check_same_model(args.out, model)
        for task in plan.tasks:
            _set_format(args, engine, task)
            engine.check(task.items, task.generation)
        device = getattr(getattr(engine, "model", None), "device", None)
        machine = environment(getattr(device, "type", None))
        entries: list[dict[str, Any]] = []
        claims: dict[str, ClaimCounts] = {}
        answered: list[tuple[TaskAnswers | None, list[dict[str, Any]]]] = []
        notes = [str(args.out)]
        for task in plan.tasks:
            _set_format(args, engine, task)
            found, answers = _measure(args, task, engine, model)
            entries, claims[task.name] = entries + found, _claims(answers)
            answered.append((answers, found))
            write_results(args.out, model, entries, machine, args.command)
            for entry in (it for it in found if it["metric"] == "calibration" and it["n_scored"]):
                notes += _plots(args.out, entry)
        for ability in abilities:
            entries.append(ability.measure(engine, args.out, args.overwrite))
            write_results(args.out, model, entries, machine, args.command)
            answered.append((None, entries[-1:]))
    notes += dict.fromkeys(
        line for task in plan.tasks if task.verifier for line in limits_of(task.verifier.guarded.verifier)
    )
    below = failures(_scores(entries, plan.thresholds), _unjudged(entries, claims), plan.allowed_missing)
    return EvaluateResult(entries, args.out, below, notes, answers=answered)


def lock_path(out: Path) -> Path:
    """Where a run into `out` is noted: among the temporary files, so that nothing stays beside the results."""
    user = getattr(os, "getuid", str)()  # a file of somebody else cannot be locked
    name = hashlib.sha256(f"{user} {out.resolve()}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hf_factuality-{name}.lock"


def read_items(args: Arguments, task: Task) -> None:
    """Read the items of a task, and check that its metrics can be computed from them."""
    task.items, task.provenance = load_task_items(args, task, args.limit)
    if task.name == own_file.NAME:
        task.items = own_file.with_rules(task.items, args.scorers, args.default_data_source, args.limit is None)
    for name in sorted(task.claim_metrics & {*task.metric_args, *task.own_metrics}):
        metric = task.own_metrics.get(name, name)
        check_metric_args(
            metric, task.metric_args.get(name, {}), domains=sorted({it.domain or "all" for it in task.items})
        )
    graded = {*GRADED_METRICS} & {*task.metrics}
    if "accuracy" in task.metrics or graded and task.benchmark.data_source:
        check_gold(task.benchmark, task.items)
    if args.judge and "halluqa" in task.metrics and not any(it.answer or it.reference for it in task.items):
        raise DataError(f"`judge` compares with reference answers, and {task.name} has none; give `verifier` instead")


def load_judges(args: Arguments, task: Task, stack: ExitStack) -> None:
    """Load who judges the answers to a task; its items are checked as far as they are known."""
    graded = {*GRADED_METRICS} & {*task.metrics}
    judged = [name for name in task.metrics if name in task.judged_metrics and not (args.judge and name == "halluqa")]
    if args.judge and (graded or "halluqa" in task.metrics):
        how = {"prompt": args.judge_prompt, "votes": args.judge_votes, "tokens": args.judge_tokens}
        task.judge = AnswerJudge(task.name, args.judge, args.judge_base_url, **how)
        stack.callback(task.judge.close)
    if judged:
        evidence = {"knowledge": args.knowledge, "retriever": args.retriever, "top_k": args.num_passages}
        evidence["tokens"] = args.verifier_tokens
        task.verifier = AnswerVerifier(args.verifier, task.items, args.verifier_base_url, **evidence)
    if task.best_of_by not in (None, "majority") and "accuracy" in task.metrics:
        task.selector = AnswerVerifier(task.best_of_by, task.items)
    for who in filter(None, (task.verifier, task.judge, task.selector)):
        if args.scope != SCOPES[0]:  # so that results and answers of the default stay what they were
            who.description["scope"] = args.scope


def _engine(args: Arguments, plan: EvaluationPlan) -> Engine:
    if any(task.benchmark.kind == "judge" for task in plan.tasks):
        return ClaimEngine(args.verifier if isinstance(args.verifier, str) else object_name(args.verifier))
    if args.answers:
        return _file_engine(args, *plan.tasks)
    known = {"revision": args.revision, "template_arguments": plan.template_arguments}
    if args.base_url:
        return ServerEngine(args.model[0], args.base_url, concurrency=args.concurrency, **known)
    from hf_factuality.evaluation.local import LocalEngine

    loading = ("dtype", "device", "batch_size", "prompt_format", "trust_remote_code")
    return LocalEngine(args.model[0], **{name: getattr(args, name) for name in loading}, **known)


def _file_engine(args: Arguments, task: Task) -> FileEngine:
    path = args.answers[0]
    engine = FileEngine(path, args.model_name)
    # A sample of the items has the same ids, but not the same order.
    whole = args.limit is not None and engine.by_order
    engine.join(load_task_items(args, task, None)[0] if whole else task.items, sample=args.limit is not None)
    if task.generation:
        n_samples, temperature = engine.samples(task.items), task.generation.temperature or 1.0
        task.generation = replace(task.generation, num_samples=n_samples, temperature=temperature)
        check_samples(task, path.name)
    return engine


def _set_format(args: Arguments, engine: Engine, task: Task) -> None:
    if hasattr(engine, "use_format"):
        engine.use_format("plain" if args.prompt_format == "auto" and task.plain else args.prompt_format)


def _measure(
    args: Arguments, task: Task, engine: Engine, model: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], TaskAnswers]:
    """Results of one benchmark, whose file of answers is complete afterwards, and its answers."""
    source, sampled = task.provenance, engine.generates and task.generation is not None
    how = {**engine.settings(), **(described(task.generation) if sampled else {})}
    dataset = {name: source[name] for name in ("dataset", "split", "revision", "style", "seed")}
    settings = public({"benchmark": task.name, "dataset": dataset, "model": model, "generation": how})
    journal = Journal(task.answers, settings, args.overwrite)
    try:
        answer_items(engine, task, journal)
        judge_answers(task, journal)
        whole = source["used"] == source["rows"] and task.dataset is None and args.split is None
        published = whole and task.plain and how.get("prompt_format") == "plain"
        answers = TaskAnswers(task, [journal.answers.get(item.id, {}) for item in task.items], published)
        found = {name: score(name, answers) for name in task.metrics}
        scores = {name: result.pop("scores") for name, result in found.items()}
        outcomes = answers.outcomes if {*GRADED_METRICS} & {*task.metrics} else None
        journal.finish(journal_rows(task, journal, scores, outcomes))
    finally:
        journal.close()
    # The seed is in the settings of the answers, and in a result only where it drew something.
    every = source["used"] == source["rows"] - sum(source["dropped"].values())
    drawn = None if every and not getattr(task.benchmark, "draws", False) else source["seed"]
    if task.generation is not None and not engine.generates:
        how["n_samples"] = task.generation.num_samples
    samples = [sample for known in answers.known for sample in known.get("completions", [])]
    common = {
        "truncated": sum(ended_at_limit((it or {}).get("finish_reason")) for it in samples) if sampled else None,
        "seeds": {
            "dataset": drawn,
            "generation": args.seed if sampled and task.generation.temperature else None,
            "interval": 0,  # the metrics' default; of a result without an interval too, which may replace one
        },
        "dataset": {**source, "seed": drawn},
        "generation": how,
        "created": now(),
    }
    if whole and task.benchmark.repo_id:
        known = {"id": task.benchmark.repo_id, "config": task.benchmark.config, "split": task.benchmark.split}
        common["leaderboard"] = known
    entries = []
    for name, result in found.items():
        verified = task.verifier and name in task.judged_metrics and not (name == "halluqa" and task.judge)
        who = task.verifier.description if verified else None
        common["higher_is_better"] = name != "calibration"
        entries.append({"benchmark": task.name, "metric": name, **result, "verifier": who, **common})
    return entries, answers


def _plots(out: Path, entry: Mapping[str, Any]) -> list[str]:
    """Draw a reliability diagram and risk over coverage beside the results; returns where."""
    name, parts = entry["benchmark"], entry["parts"]
    wide, full = ([it[1:] for it in parts[key]] for key in ("reliability", "reliability_mass"))
    bins, wrong = {"bins of equal width": wide, "bins of equal mass": full}, 1 - parts["accuracy"]
    curves = {"the most confident first": parts["risk_coverage"], "in any order": [(0, wrong), (1, wrong)]}
    first, second = (out.with_name(f"{out.stem}.{name}.{kind}.svg") for kind in ("reliability", "risk_coverage"))
    write_atomically(first, plot_svg(f"{name}: reliability", "stated confidence", "share right", bins, diagonal=True))
    write_atomically(second, plot_svg(f"{name}: risk and coverage", "share answered", "share wrong", curves))
    return [str(first), str(second)]


def _claims(answers: TaskAnswers) -> ClaimCounts:
    if answers.task.verifier is None:
        return ClaimCounts(0, 0, 0)
    first = [samples[0] for samples in answers.judged]
    return count_claims([label for answer in first if answer is not None for label in answer.labels])


def result_cells(entry: Mapping[str, Any]) -> dict[str, str]:
    """An entry of results as cells of a table."""
    best = {f"best of {size}": found["value"] for size, found in entry["parts"].get("best_of", {}).items()}
    if entry["settings"].get("score") == "f1":
        best = {f"f1 {name}": found["f1"] for name, found in entry["parts"]["domains"].items()}
    return {
        "benchmark": entry["benchmark"],
        "metric": entry["metric"],
        "value": shown(entry["value"]),
        "interval": shown_interval(entry["confidence_interval"]),
        "better if": better(entry["higher_is_better"]),
        "n": shown_count(entry),
        "left out or cut": counts({**entry["left_out"].get("responses", {}), "truncated": entry.get("truncated")}),
        "parts": numbers({**entry["parts"], **best}),
    }


def _scores(
    entries: Sequence[Mapping[str, Any]], thresholds: Mapping[str, float]
) -> Iterator[tuple[str, float | None, float]]:
    for entry in entries:
        for name in (entry["metric"], f"{entry['benchmark']}.{entry['metric']}"):
            if name in thresholds:
                yield f"{entry['benchmark']}: {entry['metric']}", entry["value"], thresholds[name]


def _unjudged(
    entries: Sequence[Mapping[str, Any]], claims: Mapping[str, ClaimCounts]
) -> Iterator[tuple[str, int, int, str]]:
    for entry in entries:
        missing = sum(entry["left_out"]["responses"].get(reason, 0) for reason in _NOT_JUDGED)
        prefix = f"{entry['benchmark']}: {entry['metric']}: "
        yield prefix, missing, entry["n"], "items have no answer or could not be judged"
    for name, found in claims.items():
        yield f"{name}: ", found.unjudged, found.stated, "claims could not be judged"

"""The work of `hf-factuality evaluate`: answers, verifications and scores of each benchmark, and one file of results.

Everything that can be checked is checked before the first question is asked: flags, datasets, gold answers, evidence, the
verifier, the model, the lengths of all prompts, and whether the files can be written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hf_factuality.chat.journal import only_run
from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.evaluation.best_of import check_best_of
from hf_factuality.evaluation.engines import Engine, FileEngine, ServerEngine, with_samples
from hf_factuality.evaluation.journal import Journal
from hf_factuality.evaluation.plan import PLAIN, Plan, Task, check_samples, load_task_items, make_plan
from hf_factuality.evaluation.run import answer_items, journal_rows, judge_answers
from hf_factuality.evaluation.scoring import JUDGED_METRICS, Answers, check_gold, score
from hf_factuality.evaluation.verification import AnswerJudge, AnswerVerifier
from hf_factuality.functional.credit import judged_units
from hf_factuality.functional.scoring import ClaimCounts, count_claims
from hf_factuality.hub.cards.card import format_table
from hf_factuality.hub.results import check_same_model, environment, now, public, write_results
from hf_factuality.metrics._cli import check_metric_args
from hf_factuality.spans import SCOPES
from hf_factuality.verifiers.guard import logger as guard_logger


@dataclass
class Prepared:
    """A task with everything that it needs.

    Args:
        task ([`Task`]):
            The benchmark and how it is measured.
        items (`list[BenchmarkItem]`):
            Its items.
        provenance (`dict`):
            Where they come from.
        verifier ([`AnswerVerifier`], *optional*), judge ([`AnswerJudge`], *optional*):
            Who judges the answers.
        claims ([`ClaimCounts`], *optional*):
            What the verifier said of all answers together.
    """

    task: Task
    items: list[BenchmarkItem]
    provenance: dict[str, Any]
    verifier: AnswerVerifier | None
    judge: AnswerJudge | None
    claims: ClaimCounts = ClaimCounts(0, 0, 0)


def evaluate(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args (`argparse.Namespace`):
            Its flags, by their names.

    Returns:
        `int`: 0, or 1 below a threshold.

    Raises:
        `FactualityError`, `ValueError`, `OSError`: see the modules; nearly all of them before anything is computed.
    """
    plan = make_plan(args)
    with ExitStack() as stack:
        # Two runs on a machine into one file would mix their answers.
        taken = f"another run writes to {args.out.name!r}; wait for it, or give another --out"
        stack.enter_context(only_run(lock_path(args.out), taken))
        # It warns per call; here the failures are counted, and told in the results.
        stack.callback(guard_logger.setLevel, guard_logger.level)
        guard_logger.setLevel(logging.ERROR)
        prepared = [_prepare(args, plan, task, stack) for task in plan.tasks]
        engine = _engine(args, plan, prepared)
        model = engine.identity()
        check_same_model(args.out, model)
        for it in prepared:
            _set_format(args, engine, it.task)
            engine.check(it.items, it.task.generation)
        device = getattr(getattr(engine, "model", None), "device", None)
        machine = environment(getattr(device, "type", None))
        entries = []
        for it in prepared:
            _set_format(args, engine, it.task)
            entries += _measure(args, plan, it, engine, model)
            write_results(args.out, model, entries, machine, _command(args))
        if isinstance(engine, ServerEngine):
            _remove(engine.cache)  # the files of answers hold it all by now
    _print(entries, args)
    return _status(entries, plan.thresholds, args.max_not_judged, {it.task.name: it.claims for it in prepared})


def lock_path(out: Path) -> Path:
    """Where a run into `out` is noted: among the temporary files, so that nothing stays beside the results."""
    user = getattr(os, "getuid", str)()  # a file of somebody else cannot be locked
    name = hashlib.sha256(f"{user} {out.resolve()}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"hf_factuality-{name}.lock"


def _prepare(args: argparse.Namespace, plan: Plan, task: Task, stack: ExitStack) -> Prepared:
    items, provenance = load_task_items(args, task, args.limit)
    for name in sorted(plan.metric_args.keys() & set(task.metrics)):
        check_metric_args(name, plan.metric_args[name], domains=sorted({item.domain or "all" for item in items}))
    if "accuracy" in task.metrics:
        check_gold(task.benchmark, items)
    judge = verifier = None
    judged = [name for name in task.metrics if name in JUDGED_METRICS]
    if args.judge and "halluqa" in judged:
        judge = AnswerJudge(task.name, args.judge, args.judge_base_url, args.judge_prompt, args.judge_votes)
        stack.callback(judge.close)
        judged.remove("halluqa")
    if judged:
        arguments = {"base_url": args.verifier_base_url} if args.verifier_base_url else {}
        verifier = AnswerVerifier(
            args.verifier,
            items,
            knowledge=args.knowledge,
            retriever=args.retriever,
            top_k=args.top_k,
            **arguments,
        )
    for who in filter(None, (verifier, judge)):
        if args.scope != SCOPES[0]:  # so that results and answers of the default stay what they were
            who.description["scope"] = args.scope
    return Prepared(task, items, provenance, verifier, judge)


def _engine(args: argparse.Namespace, plan: Plan, prepared: Sequence[Prepared]) -> Engine:
    if args.answers:
        (it,) = prepared
        engine = FileEngine(args.answers, args.model_name)
        # A sample of the items has the same ids, but not the same order.
        whole = args.limit is not None and engine.by_order
        engine.join(load_task_items(args, it.task, None)[0] if whole else it.items, sample=args.limit is not None)
        if it.task.generation:
            samples = engine.samples(it.items)
            where = f"{args.answers.name} has {samples} completions per item"
            check_samples(it.task.metrics, samples, plan.best_of, where)
            check_best_of(plan.best_of, samples, args.answers.name)
            it.task = replace(it.task, generation=with_samples(it.task.generation, samples))
        return engine
    if args.base_url:
        cache = args.out.with_name(f".{args.out.stem}.cache.sqlite")
        if args.overwrite:
            _remove(cache)
        return ServerEngine(
            args.model,
            args.base_url,
            revision=args.revision,
            concurrency=args.concurrency,
            cache=cache,
            template_arguments=plan.template_arguments,
        )
    from hf_factuality.evaluation.local import LocalEngine

    return LocalEngine(
        args.model,
        revision=args.revision,
        dtype=args.dtype,
        device=args.device,
        batch_size=args.batch_size,
        prompt_format=args.prompt_format,
        template_arguments=plan.template_arguments,
        trust_remote_code=args.trust_remote_code,
    )


def _remove(cache: Path) -> None:
    for path in cache.parent.glob(f"{cache.name}*"):
        path.unlink()


def _set_format(args: argparse.Namespace, engine: Engine, task: Task) -> None:
    if hasattr(engine, "use_format"):
        plain = args.prompt_format == "auto" and (task.name, task.style) in PLAIN
        engine.use_format("plain" if plain else args.prompt_format)


def _measure(
    args: argparse.Namespace, plan: Plan, it: Prepared, engine: Engine, model: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Results of one benchmark; its file of answers is complete afterwards."""
    task = it.task
    how = {**engine.settings(), **(asdict(task.generation) if engine.generates and task.generation else {})}
    source = {name: it.provenance[name] for name in ("dataset", "split", "revision", "style", "seed")}
    settings = public({"benchmark": task.name, "dataset": source, "model": model, "generation": how})
    journal = Journal(task.answers, settings, args.overwrite)
    try:
        answer_items(engine, it.items, task.generation, journal)
        n_samples = task.generation.n_samples if plan.best_of and task.generation else 1
        judge_answers(it.items, journal, it.verifier, it.judge, n_samples, args.scope)
        answers = _collect(it, journal, plan, engine, args)
        known = [found for found in answers.verifications if found is not None and found.error is None]
        it.claims = count_claims([span.label for found in known for span in judged_units(found)])
        found = {name: score(name, answers) for name in task.metrics}
        journal.finish(journal_rows(it.items, journal, {name: result["scores"] for name, result in found.items()}))
    finally:
        journal.close()
    samples = [sample for item in it.items for sample in journal.answers.get(item.id, {}).get("completions", [])]
    truncated = sum(sample is not None and sample.get("finish_reason") == "length" for sample in samples)
    entries = []
    for name, result in found.items():
        used = it.judge if name == "halluqa" and it.judge else it.verifier if name in JUDGED_METRICS else None
        entries.append(
            {
                "benchmark": task.name,
                "metric": name,
                "value": result["value"],
                **{key: result[key] for key in ("n", "n_scored", "confidence_interval")},
                "higher_is_better": True,
                **{key: result[key] for key in ("parts", "left_out")},
                "truncated": truncated if engine.generates and task.generation else None,
                "seeds": {
                    "dataset": it.provenance["seed"],
                    "generation": args.seed if engine.generates and task.generation else None,
                    "interval": 0,  # the metrics' default; of a result without an interval too, which may replace one
                },
                "dataset": it.provenance,
                "verifier": used.description if used is it.verifier and used else None,
                **{key: result[key] for key in ("extractor", "judge")},
                "generation": how,
                "comparable_to_published": result["comparable_to_published"],
                "settings": result["settings"],
                "created": now(),
            }
        )
    return entries


def _collect(it: Prepared, journal: Journal, plan: Plan, engine: Engine, args: argparse.Namespace) -> Answers:
    known = [journal.answers.get(item.id, {}) for item in it.items]
    n_samples = it.task.generation.n_samples if it.task.generation else 0
    whole = it.provenance["used"] == it.provenance["rows"] and args.dataset is None and args.split is None
    published = whole and (it.task.name, it.task.style) in PLAIN and engine.settings().get("prompt_format") == "plain"
    completions = [
        [sample and sample.get("text") for sample in answer.get("completions", [])[:n_samples]] for answer in known
    ]
    first = [(answer.get("completions") or [None])[0] or {} for answer in known]
    return Answers(
        it.task.benchmark,
        it.items,
        [texts + [None] * (n_samples - len(texts)) for texts in completions],
        log_likelihoods=[answer.get("log_likelihoods") for answer in known],
        verifications=[journal.verification(item.id) for item in it.items],
        votes=[sample.get("votes") for sample in first],
        verifier=it.verifier,
        judge=it.judge,
        scope=args.scope,
        published=published,
        metric_args=plan.metric_args,
        best_of=plan.best_of,
        sample_verifications=[
            [journal.verification(item.id, number) for number in range(n_samples if plan.best_of else 0)]
            for item in it.items
        ],
    )


def _command(args: argparse.Namespace) -> str:
    """The command, without folders and addresses."""
    words = ["hf-factuality", "evaluate"]
    for name, value in sorted(vars(args).items()):
        if name in ("run", "base_url", "judge_base_url", "verifier_base_url") or value is None or value is False:
            continue
        for item in value if isinstance(value, list) else [value]:
            words += [f"--{name}"] if item is True else [f"--{name}", str(public(item))]
    return shlex.join(words)


def _print(entries: Sequence[Mapping[str, Any]], args: argparse.Namespace) -> None:
    people = sys.stdout.isatty() and not args.json
    if not people:
        print(json.dumps({"results": public(entries), "out": args.out.name}))
    if not args.json:
        print(
            f"{format_table([_row(entry) for entry in entries])}\n{args.out}",
            file=sys.stdout if people else sys.stderr,
        )


def _row(entry: Mapping[str, Any]) -> dict[str, str]:
    interval, value = entry["confidence_interval"], entry["value"]
    left_out = {name: n for name, n in entry["left_out"]["responses"].items() if n}
    left_out |= {"truncated": entry["truncated"]} if entry["truncated"] else {}
    parts = {name: part for name, part in entry["parts"].items() if part is None or isinstance(part, (int, float))}
    parts |= {f"best of {size}": found["value"] for size, found in entry["parts"].get("best_of", {}).items()}
    return {
        "benchmark": entry["benchmark"],
        "metric": entry["metric"],
        "value": _number(value),
        "interval": f"{interval['low']:.3f} to {interval['high']:.3f}" if interval else "",
        "n": f"{entry['n_scored']}" + (f" of {entry['n']}" if entry["n_scored"] < entry["n"] else ""),
        "left out or cut": ", ".join(f"{name} {n}" for name, n in left_out.items()),
        "parts": ", ".join(f"{name} {_number(part)}" for name, part in parts.items()),
    }


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


# Reasons to leave an answer out that say nothing about it; an abstention, for one, does.
_NOT_JUDGED = ("missing", "no_evidence", "verifier_failed", "unjudged")


def _status(
    entries: Sequence[Mapping[str, Any]],
    thresholds: Mapping[str, float],
    max_not_judged: float | None,
    claims: Mapping[str, ClaimCounts],
) -> int:
    low = []
    if max_not_judged is None and thresholds:
        max_not_judged = 0.1
    for entry in entries:
        name = f"{entry['benchmark']}: {entry['metric']}"
        for wanted, threshold in thresholds.items():
            if wanted in (entry["metric"], f"{entry['benchmark']}.{entry['metric']}"):
                if entry["value"] is None or entry["value"] < threshold:
                    low.append(f"{name} {entry['value']} is below {threshold:g}")
        missing = sum(entry["left_out"]["responses"].get(reason, 0) for reason in _NOT_JUDGED)
        if max_not_judged is not None and entry["n"] and missing / entry["n"] > max_not_judged:
            low.append(f"{name}: {missing} of {entry['n']} items have no answer or could not be judged")
    for name, found in claims.items():
        if max_not_judged is not None and found.stated and found.unjudged / found.stated > max_not_judged:
            low.append(f"{name}: {found.unjudged} of {found.stated} claims could not be judged")
    for text in low:
        print(f"hf-factuality: {text}", file=sys.stderr)
    return 1 if low else 0

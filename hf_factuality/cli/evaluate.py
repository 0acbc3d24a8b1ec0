"""The command `hf-factuality evaluate`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from hf_factuality.cli.quiet import quiet_libraries
from hf_factuality.cli.shared import (
    RETRIEVERS_HELP,
    add_flag,
    add_metric_args,
    add_output,
    add_scope,
    print_failures,
    print_results,
    read_metric_args,
    read_thresholds,
    shown_table,
)
from hf_factuality.methods.process_reward.formula import AGGREGATES
from hf_factuality.verifiers.registry import VERIFIER_HELP


def add_parser(commands: Any) -> None:
    """Add `evaluate` to the subparsers of the `hf-factuality` command."""
    evaluate = commands.add_parser(
        "evaluate",
        help="measure a model, a file of answers or a verifier on benchmarks",
        description="Answers the questions of benchmarks with a model, or takes answers from a file, scores them and adds the "
        "results to one JSON file. A run that was killed goes on where it stopped if it is started again. Every flag may be "
        "written with - for _.",
        epilog="Exit status: 0; 1 if a metric is below --fail_under or too much was not judged; 2 if the input is bad "
        "(said before anything is computed) or nothing could be answered or judged; 130 after Ctrl-C. docs/evaluate.md "
        "describes benchmarks, metrics and the file.",
    )
    what = evaluate.add_argument_group("what is measured")
    flag = what.add_argument
    flag(
        "--benchmark", action="append", metavar="NAME", help="benchmark; several with commas or by repeating the flag"
    )
    flag("--suite", metavar="NAME", help="suite that compares several --model: long-form (or --answers), tax")
    dataset = "; instead of the benchmark's, of several by name; without --benchmark, a file of your own questions"
    add_flag(what, "dataset", dataset, action="append", metavar="[NAME=]PATH")
    add_flag(what, "split")
    add_flag(what, "dataset_revision")
    add_flag(what, "style", ": one of the benchmark's")
    add_flag(what, "limit", ": a seeded sample (of a file of your own, the first)", metavar="N")
    metrics = " instead of the benchmark's; several with commas or by repeating the flag"
    add_flag(what, "metrics", f";{metrics}", action="append", metavar="NAME")
    add_metric_args(what)
    who = evaluate.add_argument_group("who answers")
    flag = who.add_argument
    model = ": id on the Hub or folder, of a model or a PEFT adapter; with --base_url, its name there"
    add_flag(who, "model", f"{model}; several with --suite", action="append")
    add_flag(who, "revision")
    add_flag(who, "base_url", metavar="URL")
    add_flag(who, "concurrency", " (default 32)", default=32)
    answers = "file of answers (JSON Lines, by 'id' or in order); no model runs; several with --suite"
    flag("--answers", action="append", type=Path, metavar="FILE", help=answers)
    flag("--model_name", help="name of the model that wrote --answers, for the results")
    add_flag(who, "dtype", ": auto (the checkpoint's, default), float32, bfloat16 or float16", default="auto")
    add_flag(who, "device", ", or auto to spread the model")
    add_flag(who, "batch_size", " (default 8)", default=8)
    flag(
        "--prompt_format",
        default="auto",
        help="format of prompts: chat (the tokenizer's template), plain, or auto (chat if it has one)",
    )
    flag(
        "--chat_template_kwargs",
        metavar="JSON",
        help="arguments of the chat template, as '{\"enable_thinking\": false}'",
    )
    add_flag(who, "trust_remote_code")
    how = evaluate.add_argument_group("how answers are sampled (by default as the benchmark says)")
    flag = how.add_argument
    add_flag(how, "max_new_tokens", metavar="N")
    add_flag(how, "temperature", "; 0 takes the most likely token", metavar="T")
    add_flag(how, "top_p", metavar="P")
    add_flag(how, "num_samples", "; for accuracy or --best_of", metavar="N")
    best = "expected score when the best of N samples is chosen (needs --num_samples; accuracy and claim metrics only)"
    flag("--best_of", metavar="N,N,...", help=best)
    by = (
        "who chooses for accuracy: majority, or a verifier by its scores, as process:MODEL (default: the gold answers)"
    )
    flag("--best_of_by", metavar="WHO", help=by)
    add_flag(how, "aggregate", ", for --best_of_by (default min)", choices=AGGREGATES)
    add_flag(how, "stop", "; may be repeated", action="append", metavar="TEXT")
    add_flag(how, "seed", ": of samples, of --limit and of HaluEval's candidates (default 0)", default=0)
    judging = evaluate.add_argument_group("who judges")
    flag = judging.add_argument
    add_flag(judging, "verifier", f": for metrics over claims and benchmarks of judges, {VERIFIER_HELP}")
    add_flag(judging, "verifier_base_url", ": of 'llm:MODEL' and 'anah:MODEL'", metavar="URL")
    add_flag(judging, "verifier_tokens", metavar="N")
    add_scope(judging)
    add_flag(judging, "knowledge", metavar="FILE")
    add_flag(judging, "retriever", RETRIEVERS_HELP, choices=("topic", "corpus"))
    add_flag(judging, "num_passages", " (default 5)", default=5, metavar="N")
    add_flag(judging, "judge", ": for halluqa, abstention and calibration", metavar="MODEL")
    add_flag(judging, "judge_base_url", metavar="URL")
    flag(
        "--judge_prompt", type=Path, metavar="FILE", help="prompt of --judge, a .txt file instead of the built-in one"
    )
    add_flag(judging, "scorers", "; for a file of your own", action="append", metavar="SOURCE=RULE")
    add_flag(judging, "default_data_source", ": of a file of your own (default exact)", metavar="RULE")
    flag(
        "--match",
        choices=("exact", "contained"),
        help="string matching instead of --judge, by words of the gold answers and stock phrases",
    )
    flag("--judge_votes", type=int, default=1, metavar="N", help="votes of --judge per answer, odd (default 1)")
    add_flag(judging, "judge_tokens", " (default 16)", default=16, metavar="N")
    out = evaluate.add_argument_group("output")
    file = (
        "file that results are added to (default results.json); answers go beside it, to NAME.BENCHMARK.answers.jsonl"
    )
    add_flag(out, "out", f": {file}", default=Path("results.json"), metavar="FILE")
    add_flag(out, "overwrite", ": answer anew what the file of answers holds already")
    add_output(out, "NAME=SHARE", "METRIC or BENCHMARK.METRIC; or if it is undefined; may be repeated")
    evaluate.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.evaluate import evaluate
    from hf_factuality.evaluation.suite import suite_changes, suite_table
    from hf_factuality.hub.results import public
    from hf_factuality.hub.tables import NOISE

    given = {name: value for name, value in vars(args).items() if name not in ("run", "json", "settings")}
    given["command"] = _command(args)
    given["metric_args"] = read_metric_args(args.metric_args)
    given["fail_under"] = read_thresholds(args.fail_under)
    given["chat_template_kwargs"] = _json_object(args.chat_template_kwargs)
    quiet_libraries()
    try:
        found = evaluate(**given)
    except KeyboardInterrupt:
        print("hf-factuality: stopped; the same command goes on with the answers that are there", file=sys.stderr)
        return 130
    if found.comparison is not None:
        changes = suite_changes(found.comparison)
        notes = ["", shown_table(changes), NOISE, ""] if changes else []
        print_results(found.comparison, suite_table(found.comparison), [*notes, *found.notes], args.json)
    else:
        print_results({"results": public(found.results), "out": found.out.name}, found.table(), found.notes, args.json)
    return print_failures(found.failures)


def _command(args: argparse.Namespace) -> str:
    """The command, without folders and addresses."""
    from hf_factuality.hub.results import public

    words = ["hf-factuality", "evaluate"]
    for name, value in sorted(vars(args).items()):
        if (
            name in ("run", "settings", "base_url", "judge_base_url", "verifier_base_url")
            or value is None
            or value is False
        ):
            continue
        for item in value if isinstance(value, list) else [value]:
            parts = item.split("=", 1) if isinstance(item, str) else [item]  # NAME=PATH
            words += [f"--{name}"] if item is True else [f"--{name}", "=".join(str(public(it)) for it in parts)]
    return shlex.join(words)


def _json_object(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"`chat_template_kwargs` must be a JSON object, got {text!r}")
    return found

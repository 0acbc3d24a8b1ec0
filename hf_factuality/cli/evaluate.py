"""The command `hf-factuality evaluate`."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import (
    add_metric_args,
    add_output,
    add_scope,
    print_failures,
    print_results,
    read_metric_args,
    read_thresholds,
)
from hf_factuality.methods.process_reward.formula import AGGREGATES
from hf_factuality.verifiers.judges.gold import SCORERS_HELP
from hf_factuality.verifiers.registry import TOKENS_HELP, VERIFIER_HELP


def add_parser(commands: Any) -> None:
    """Add `evaluate` to the subparsers of the `hf-factuality` command."""
    evaluate = commands.add_parser(
        "evaluate",
        help="measure a model, or a file of answers, on benchmarks",
        description="Answers the questions of benchmarks with a model, or takes answers from a file, scores them and adds the "
        "results to one JSON file. A run that was killed goes on where it stopped if it is started again. Every flag may be "
        "written with - for _.",
        epilog="Exit status: 0; 1 if a metric is below --fail_under or too much was not judged; 2 if the input is bad "
        "(said before anything is computed) or nothing could be answered or judged; 130 after Ctrl-C. docs/evaluate.md "
        "describes benchmarks, metrics and the file.",
    )
    what = evaluate.add_argument_group("what is measured")
    flag = what.add_argument
    flag("--benchmark", action="append", metavar="NAME", help="several with commas or by repeating the flag")
    flag("--suite", metavar="NAME", help="several --model (long-form: or --answers) side by side: long-form, tax")
    flag(
        "--dataset",
        action="append",
        metavar="[NAME=]PATH",
        help="instead of the benchmark's, of several by name; without --benchmark, a file of your own questions",
    )
    flag("--split", help="split of the dataset")
    flag("--dataset_revision", help="branch, tag or commit of a dataset on the Hub")
    flag("--style", help="style of the prompts, one of the benchmark's")
    flag("--limit", type=int, metavar="N", help="a seeded sample of N items (of a file of your own, the first)")
    flag("--metrics", action="append", metavar="NAME", help="instead of the benchmark's; likewise several")
    add_metric_args(what)
    flag = evaluate.add_argument_group("who answers").add_argument
    model = "id on the Hub or folder, of a model or a PEFT adapter; with --base_url, its name there"
    flag("--model", action="append", help=f"{model}; several with --suite")
    flag("--revision", help="of the model")
    flag("--base_url", metavar="URL", help="address of an OpenAI-compatible server that has the model")
    flag("--concurrency", type=int, default=32, help="requests to the server at once (default 32)")
    answers = "JSON Lines of answers, by 'id' or in order; no model runs; several with --suite"
    flag("--answers", action="append", type=Path, metavar="FILE", help=answers)
    flag("--model_name", help="who wrote --answers, for the results")
    flag("--dtype", default="auto", help="auto (the checkpoint's, default), float32, bfloat16 or float16")
    flag("--device", help="cpu, cuda, cuda:1, ..., or auto to spread the model; CUDA by default if there is one")
    flag("--batch_size", type=int, default=8, help="rows of a forward pass (default 8)")
    flag(
        "--prompt_format", default="auto", help="chat (the tokenizer's template), plain, or auto (chat if it has one)"
    )
    flag("--chat_template_kwargs", metavar="JSON", help="arguments of the template, as '{\"enable_thinking\": false}'")
    flag("--trust_remote_code", action="store_true", help="run code of the model's repository")
    flag = evaluate.add_argument_group("how answers are sampled (by default as the benchmark says)").add_argument
    flag("--max_new_tokens", type=int, metavar="N")
    flag("--temperature", type=float, metavar="T", help="0 takes the most likely token")
    flag("--top_p", type=float, metavar="P")
    flag("--num_samples", type=int, metavar="N", help="completions per item, for accuracy or --best_of")
    best = "for accuracy and metrics over claims: expected score of the best of N of the --num_samples"
    flag("--best_of", metavar="N,N,...", help=best)
    by = (
        "who chooses for accuracy: majority, or a verifier by its scores, as process:MODEL (default: the gold answers)"
    )
    flag("--best_of_by", metavar="WHO", help=by)
    flag("--best_of_steps", choices=AGGREGATES, help="the verifier's scores of the parts as one (default min)")
    flag("--stop", action="append", metavar="TEXT", help="ends a completion; may be repeated")
    flag("--seed", type=int, default=0, help="of samples, of --limit and of HaluEval's candidates (default 0)")
    judging = evaluate.add_argument_group("who judges")
    flag = judging.add_argument
    flag("--verifier", help=f"for metrics over claims: {VERIFIER_HELP}")
    flag("--verifier_base_url", metavar="URL", help="server of 'llm:MODEL' and 'anah:MODEL'")
    flag("--verifier_tokens", type=int, metavar="N", help=TOKENS_HELP)
    add_scope(judging)
    flag("--knowledge", type=Path, metavar="FILE", help="knowledge base that evidence is taken from")
    flag(
        "--retriever",
        choices=("topic", "corpus"),
        help="the page of the item's topic (default if every item has one), or all pages, by the index FILE.bm25",
    )
    flag("--passages", type=int, default=5, help="passages per claim (default 5)")
    flag("--judge", metavar="MODEL", help="for halluqa, abstention and calibration: a served model that sees the gold")
    flag("--judge_base_url", metavar="URL", help="its server")
    flag("--judge_prompt", type=Path, metavar="FILE", help="a .txt prompt instead of the built-in one")
    flag("--scorers", action="append", metavar="SOURCE=RULE", help=f"for a file of your own, {SCORERS_HELP}")
    rule = "the rule of its rows without data_source (default exact)"
    flag("--default_data_source", metavar="RULE", help=f"for a file of your own: {rule}")
    flag("--match", choices=("exact", "contained"), help="instead of --judge: words of gold answers, stock phrases")
    flag("--judge_votes", type=int, default=1, metavar="N", help="votes per answer, odd (default 1)")
    flag("--judge_tokens", type=int, default=16, metavar="N", help="room for a vote (default 16), and its thoughts")
    out = evaluate.add_argument_group("output")
    out.add_argument(
        "--out",
        type=Path,
        default=Path("results.json"),
        help="results are added to this file (default results.json); answers go beside it, to NAME.BENCHMARK.answers.jsonl",
    )
    out.add_argument("--overwrite", action="store_true", help="answer anew what the file of answers holds already")
    add_output(
        out, "NAME=SHARE", "exit with status 1 if METRIC or BENCHMARK.METRIC is lower or undefined; may be repeated"
    )
    evaluate.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.evaluate import evaluate
    from hf_factuality.evaluation.suite import suite_table
    from hf_factuality.hub.results import public

    given = {name: value for name, value in vars(args).items() if name not in ("run", "json", "settings")}
    given["command"] = _command(args)
    given["metric_args"] = read_metric_args(args.metric_args)
    given["fail_under"] = read_thresholds(args.fail_under)
    given["chat_template_kwargs"] = _json_object(args.chat_template_kwargs)
    try:
        found = evaluate(**given)
    except KeyboardInterrupt:
        print("hf-factuality: stopped; the same command goes on with the answers that are there", file=sys.stderr)
        return 130
    if found.comparison is not None:
        print_results(found.comparison, suite_table(found.comparison), found.notes, args.json)
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

"""The commands `hf-factuality verify` and `hf-factuality evaluate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hf_factuality.cli.shared import add_engine
from hf_factuality.functional.process import AGGREGATES
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.verifiers.judges.gold import SCORERS_HELP
from hf_factuality.verifiers.registry import TOKENS_HELP, VERIFIER_HELP


def add_verify(commands: Any) -> None:
    """Add `verify` to the subparsers of the `hf-factuality` command."""
    verify = commands.add_parser(
        "verify",
        help="label the sentences of completions and print how much of them the evidence supports",
        description="Reads a file with a completion per row, and its evidence from a column or a second file. Prints a "
        "table in a terminal, and otherwise one JSON object, with the table on the error stream. Every flag may be written "
        "with - for _.",
        epilog="Exit status: 0; 1 if a score is below --fail_under or too much was not judged; 2 if the input is "
        "bad (said before anything is judged) or the verifier failed on every completion.",
    )
    flag = verify.add_argument
    flag("file", type=Path, help="JSON Lines, JSON, CSV, TSV or Parquet file; - for JSON Lines on standard input")
    flag("--verifier", default="lexical", help=VERIFIER_HELP)
    flag("--verifier_tokens", type=int, metavar="N", help=TOKENS_HELP)
    _add_scope(verify)
    flag("--completion_column", default="completion")
    flag(
        "--evidence",
        metavar="FILE_OR_COLUMN",
        help="a file of the same kinds, or a column of the answers (default 'evidence')",
    )
    flag(
        "--evidence_column", help="column of the evidence, in its file or beside the answers: text or a list of texts"
    )
    flag(
        "--id_column",
        help="column that joins a file of evidence to the answers (default 'id', else by the order of rows)",
    )
    flag("--question_column", default="question", help="shown to the verifier if it is there")
    add_engine(verify)
    metrics = "anah, factscore, longwiki, safe, veriscore, or your own module:function; several with commas"
    flag("--metric", action="append", metavar="NAME", help=metrics)
    _add_metric_args(verify)
    flag("--out", type=Path, help="write each row with its labelled spans to this file, as it is judged")
    flag("--html", type=Path, help="write a page with the sentences coloured by label to this file")
    flag(
        "--html_rows", type=int, default=200, help="completions on the page, the lowest precision first (default 200)"
    )
    _add_output(
        verify,
        "SHARE",
        "exit with status 1 if a metric of --metric (without any: the precision) is lower than this; NAME=SHARE for one of "
        "them, 'precision' or 'decided_precision'; may be repeated",
    )
    verify.set_defaults(run=_verify)


def add_evaluate(commands: Any) -> None:
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
    _add_metric_args(what)
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
    flag("--n_samples", type=int, metavar="N", help="completions per item, for accuracy or --best_of")
    best = "for accuracy and metrics over claims: expected score of the best of N of the --n_samples"
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
    _add_scope(judging)
    flag("--knowledge", type=Path, metavar="FILE", help="knowledge base that evidence is taken from")
    flag(
        "--retriever",
        choices=("topic", "corpus"),
        help="the page of the item's topic (default if every item has one), or all pages, by the index FILE.bm25",
    )
    flag("--top_k", type=int, default=5, help="passages per claim (default 5)")
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
    _add_output(
        out, "NAME=SHARE", "exit with status 1 if METRIC or BENCHMARK.METRIC is lower or undefined; may be repeated"
    )
    evaluate.set_defaults(run=_evaluate)


def _add_scope(group: Any) -> None:
    group.add_argument(
        "--scope",
        choices=SCOPES,
        default=SCOPES[0],
        help="what of a completion is judged: the answer (default), the reasoning in its think blocks, or all of it",
    )


def _add_metric_args(group: Any) -> None:
    group.add_argument(
        "--metric_args",
        action="append",
        metavar="METRIC.ARGUMENT=VALUE",
        help="an argument of a metric over claims, as factscore.gamma=0 (no length penalty); may be repeated",
    )


def _add_output(group: Any, form: str, fail_under: str) -> None:
    group.add_argument("--json", action="store_true", help="print JSON alone, in a terminal too")
    group.add_argument("--fail_under", action="append", metavar=form, help=fail_under)
    group.add_argument(
        "--max_not_judged",
        type=float,
        metavar="SHARE",
        help="exit with status 1 too if more of the answers, or of their claims, than this share are missing or could not "
        "be judged (default 0.1 with --fail_under, otherwise any share is allowed)",
    )


def _verify(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.verify import verify_file

    return verify_file(args)


def _evaluate(args: argparse.Namespace) -> int:
    if args.suite:
        from hf_factuality.evaluation.suite import evaluate_suite as evaluate
    else:
        from hf_factuality.evaluation.command import evaluate

    try:
        return evaluate(args)
    except KeyboardInterrupt:
        print("hf-factuality: stopped; the same command goes on with the answers that are there", file=sys.stderr)
        return 130

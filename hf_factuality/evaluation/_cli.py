"""The command `hf-factuality evaluate`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from hf_factuality.spans import SCOPES
from hf_factuality.verifiers.registry import VERIFIER_HELP


def add_parser(commands: Any) -> None:
    """Add `evaluate` to the subparsers of the `hf-factuality` command."""
    evaluate = commands.add_parser(
        "evaluate",
        help="measure a model, or a file of answers, on benchmarks",
        description="Answers the questions of benchmarks with a model, or takes answers from a file, scores them and adds the "
        "results to one JSON file. A run that was killed goes on where it stopped if it is started again. Every flag may be "
        "written with - for _.",
        epilog="Exit status: 0; 1 if a metric is below --fail_under or too much was not judged; 2 if the input is bad "
        "(said before anything is computed) or nothing could be answered or judged; 130 after Ctrl-C. Benchmarks, metrics and the file are described in "
        "docs/evaluate.md.",
    )
    what = evaluate.add_argument_group("what is measured")
    what.add_argument(
        "--benchmark", action="append", metavar="NAME", help="several with commas or by repeating the flag"
    )
    what.add_argument(
        "--dataset",
        metavar="PATH",
        help="file, folder or repository of the benchmark instead of its default; without --benchmark, a .jsonl, .json or "
        ".parquet file of your own with question or prompt, answer, evidence",
    )
    what.add_argument("--split", help="split of the dataset")
    what.add_argument("--dataset_revision", help="branch, tag or commit of a dataset on the Hub")
    what.add_argument("--style", help="style of the prompts, one of the benchmark's")
    what.add_argument(
        "--limit", type=int, metavar="N", help="a seeded sample of N items (of a file of your own, the first)"
    )
    what.add_argument(
        "--metrics", action="append", metavar="NAME", help="instead of the benchmark's; likewise several"
    )
    what.add_argument(
        "--metric_args",
        action="append",
        metavar="METRIC.ARGUMENT=VALUE",
        help="an argument of a claim metric, for example factscore.gamma=0; may be repeated",
    )
    who = evaluate.add_argument_group("who answers")
    who.add_argument(
        "--model", help="id on the Hub or folder, of a model or a PEFT adapter; with --base_url, its name there"
    )
    who.add_argument("--revision", help="of the model")
    who.add_argument("--base_url", metavar="URL", help="address of an OpenAI-compatible server that has the model")
    who.add_argument("--concurrency", type=int, default=32, help="requests to the server at once (default 32)")
    who.add_argument(
        "--answers",
        type=Path,
        metavar="FILE",
        help="JSON Lines with 'completion', 'answer', 'text' or 'output', joined by 'id' or by the order of the rows; no "
        "model runs",
    )
    who.add_argument("--model_name", help="who wrote --answers, for the results")
    who.add_argument("--dtype", default="auto", help="auto (the checkpoint's, default), float32, bfloat16 or float16")
    who.add_argument(
        "--device", help="cpu, cuda, cuda:1, ..., or auto to spread the model; CUDA by default if there is one"
    )
    who.add_argument("--batch_size", type=int, default=8, help="rows of a forward pass (default 8)")
    who.add_argument(
        "--prompt_format",
        default="auto",
        help="chat (the tokenizer's template), plain (the contents of the messages, a line feed between them) or auto: "
        "chat if there is a template, but plain for the published prompts of TruthfulQA",
    )
    who.add_argument(
        "--chat_template_kwargs",
        metavar="JSON",
        help="arguments of the template, for example '{\"enable_thinking\": false}'",
    )
    who.add_argument("--trust_remote_code", action="store_true", help="run code of the model's repository")
    how = evaluate.add_argument_group("how answers are sampled (by default as the benchmark says)")
    how.add_argument("--max_new_tokens", type=int, metavar="N")
    how.add_argument("--temperature", type=float, metavar="T", help="0 takes the most likely token")
    how.add_argument("--top_p", type=float, metavar="P")
    how.add_argument("--n_samples", type=int, metavar="N", help="completions per item, for accuracy or --best_of")
    how.add_argument(
        "--best_of",
        metavar="N,N,...",
        help="for metrics over claims: expected score of the best of N of the --n_samples completions, for example 1,16,256",
    )
    how.add_argument("--stop", action="append", metavar="TEXT", help="ends a completion; may be repeated")
    how.add_argument(
        "--seed", type=int, default=0, help="of samples, of --limit and of HaluEval's candidates (default 0)"
    )
    judging = evaluate.add_argument_group("who judges")
    judging.add_argument("--verifier", help=f"for metrics over claims: {VERIFIER_HELP}")
    judging.add_argument("--verifier_base_url", metavar="URL", help="server of 'llm:MODEL' and 'anah:MODEL'")
    judging.add_argument(
        "--scope",
        choices=SCOPES,
        default=SCOPES[0],
        help="what of a completion is judged: the answer (default), the reasoning in its think blocks, or all of it",
    )
    judging.add_argument("--knowledge", type=Path, metavar="FILE", help="knowledge base that evidence is taken from")
    judging.add_argument(
        "--retriever",
        choices=("topic", "corpus"),
        help="the page of the item's topic (default if every item has one), or all pages, by the index FILE.bm25",
    )
    judging.add_argument("--top_k", type=int, default=5, help="passages per claim (default 5)")
    judging.add_argument(
        "--judge", metavar="MODEL", help="for halluqa: a served model that is shown the reference answers"
    )
    judging.add_argument("--judge_base_url", metavar="URL", help="its server")
    judging.add_argument("--judge_prompt", type=Path, metavar="FILE", help="a .txt prompt instead of the built-in one")
    judging.add_argument("--judge_votes", type=int, default=1, metavar="N", help="votes per answer, odd (default 1)")
    out = evaluate.add_argument_group("output")
    out.add_argument(
        "--out",
        type=Path,
        default=Path("results.json"),
        help="results are added to this file (default results.json); answers go beside it, to NAME.BENCHMARK.answers.jsonl",
    )
    out.add_argument("--overwrite", action="store_true", help="answer anew what the file of answers holds already")
    out.add_argument("--json", action="store_true", help="print the results as JSON alone, in a terminal too")
    out.add_argument(
        "--fail_under",
        action="append",
        metavar="NAME=SHARE",
        help="exit with status 1 if this metric (METRIC, or BENCHMARK.METRIC) is lower or not defined; may be repeated",
    )
    out.add_argument(
        "--max_not_judged",
        type=float,
        metavar="SHARE",
        help="exit with status 1 too if more of the items, or of their claims, than this share have no answer or could not "
        "be judged (default 0.1 with --fail_under, otherwise any share is allowed)",
    )
    evaluate.set_defaults(run=_evaluate)


def _evaluate(args: argparse.Namespace) -> int:
    from hf_factuality.evaluation.command import evaluate

    try:
        return evaluate(args)
    except KeyboardInterrupt:
        print("hf-factuality: stopped; the same command goes on with the answers that are there", file=sys.stderr)
        return 130

"""What several commands share: flags, how they are read, and what is printed."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from hf_factuality.io.refusals import nearest
from hf_factuality.reading.scopes import SCOPES
from hf_factuality.verifiers.judges.gold import SCORERS_HELP
from hf_factuality.verifiers.registry import TOKENS_HELP


def whole_number(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {text}")
    return int(text)


# The flags that several commands or trainings have: what they take, and what they mean everywhere. What a command adds to it
# follows after ":", ";" or in brackets; tests/cli/test_meanings.py checks that there is no flag with two meanings.
FLAGS: dict[str, tuple[Callable[[str], Any], str]] = {
    "aggregate": (str, "how a verifier's scores of the parts of an answer become one"),
    "alpha": (float, "weight of the model before alignment"),
    "base_url": (str, "OpenAI-compatible server that has the model"),
    "batch_size": (whole_number, "sequences that transformers processes at once"),
    "blocks": (whole_number, "number of blocks"),
    "branch": (str, "branch of the repository to write to; made if it does not exist"),
    "completion_column": (str, "column with the completion"),
    "concurrency": (int, "requests to the server at once"),
    "config": (str, "YAML of settings of a training"),
    "dataset": (str, "dataset"),
    "dataset_config": (str, "configuration of the dataset"),
    "dataset_revision": (str, "branch, tag or commit of the dataset on the Hub"),
    "default_data_source": (str, "rule of rows without data_source"),
    "device": (str, "device: cpu, cuda (default if there is one) or cuda:1"),
    "dry_run": (bool, "print what would be done and do nothing"),
    "dtype": (str, "data type of the weights"),
    "evidence_column": (str, "column with the evidence"),
    "fail_under": (str, "exit with status 1 if a metric is lower than this"),
    "json": (bool, "print JSON alone, in a terminal too"),
    "judge": (str, "served model that grades answers by the gold answers"),
    "judge_base_url": (str, "server of --judge"),
    "judge_tokens": (int, "longest verdict of --judge, thoughts included"),
    "knowledge": (Path, "knowledge base that evidence is taken from"),
    "language": (str, "language"),
    "level": (str, "what has a ratio"),
    "limit": (int, "at most so many questions"),
    "max_new_tokens": (whole_number, "longest completion, in tokens"),
    "metrics": (str, "metrics"),
    "min_margin": (float, "least difference of the two scores"),
    "max_refusal_share": (float, "for the variant unknown, refusals are at most this share of the rows"),
    "model": (str, "model"),
    "model_config": (str, "model whose configuration, tokenizer and chat template are used"),
    "num_passages": (int, "passages per claim"),
    "num_samples": (whole_number, "completions per question"),
    "out": (Path, "output"),
    "overwrite": (bool, "replace what is there"),
    "port": (int, "port to listen at"),
    "pairs_per_question": (whole_number, "pairs per question"),
    "private": (bool, "make a new repository private"),
    "push_to_hub": (str, "publish in this repository on the Hub"),
    "question_column": (str, "column with the question, for the verifier, if it is there"),
    "questions": (str, "file of questions"),
    "retriever": (str, "where passages are from"),
    "revise": (str, "what asks for a revision"),
    "revision": (str, "branch, tag or commit of the model"),
    "rtuning_variant": (str, "what R-Tuning teaches"),
    "scorers": (str, SCORERS_HELP),
    "seed": (int, "seed"),
    "selector": (str, "verifier whose scores choose"),
    "space": (Path, "folder to write a Space of Hugging Face to that shows this, instead"),
    "split": (str, "split of the dataset"),
    "step_split": (str, "what ends a step"),
    "stop": (str, "text that ends a completion"),
    "style": (str, "style of the prompts"),
    "temperature": (float, "sampling temperature"),
    "top_k": (int, "sample from the K most likely tokens"),
    "top_p": (float, "sample from the most likely tokens with this probability together"),
    "train_files": (str, "files to train on"),
    "trust_remote_code": (bool, "run code of the model's repository"),
    "variant": (str, "variant of the method"),
    "verifier": (str, "verifier"),
    "verifier_base_url": (str, "server of the verifier's model"),
    "verifier_tokens": (int, TOKENS_HELP),
}


RETRIEVERS_HELP = ": the page of the question's topic (topic, default if every question has one), or all pages, by FILE.bm25 (corpus)"


def meaning(name: str, more: str = "") -> str:
    """The help of a flag of [`FLAGS`], with what a command adds to it."""
    return FLAGS[name][1] + more


def add_flag(parser: Any, name: str, more: str = "", **options: Any) -> None:
    """Add a flag of [`FLAGS`], with what a command adds to its help."""
    takes, _ = FLAGS[name]
    kind = {"action": "store_true"} if takes is bool else {"type": takes}
    parser.add_argument(f"--{name}", help=meaning(name, more), **{**kind, **options})


def with_underscores(argv: Sequence[str]) -> list[str]:
    """Arguments with `--fail-under` spelled `--fail_under`; what follows a lone `--` or `=` stays."""
    end = argv.index("--") if "--" in argv else len(argv)
    spelled = [re.sub("^--[^=]*", lambda flag: "--" + flag[0][2:].replace("-", "_"), text) for text in argv[:end]]
    return [*spelled, *argv[end:]]


# Arguments whose flag is another one, since it is given once for each.
_SPELLED = {"`private=False`": "--public", "`allow_paths`": "--allow_path", "`allow_secrets`": "--allow_secret"}


def as_flags(message: str, names: Collection[str]) -> str:
    """A message of the API as a user of the command reads it: `` `out` `` is `--out`, and `` `engine="ray"` `` is `--engine ray`.

    Below the command line arguments are named as in Python, in backticks. Names that are no flag stay as they are.
    """

    def spelled(argument: re.Match[str]) -> str:
        if argument[0] in _SPELLED:
            return _SPELLED[argument[0]]
        name, value = argument[1], argument[2]
        if name not in names:
            return argument[0]
        return f"--{name}" if value in (None, "True") else f"--{name} {value.strip(chr(34))}"

    return re.sub(r"`([a-z]\w*)(?:=([^`]*))?`", spelled, message)


def flag_names(parser: argparse.ArgumentParser) -> set[str]:
    """Names of the flags of a parser and of its commands."""
    found: set[str] = set()
    for action in parser._actions:
        found |= {option[2:] for option in action.option_strings if option.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*map(flag_names, action.choices.values()))
    return found


def misspelt_flag(words: Sequence[str], flags: Iterable[str], prog: str) -> str | None:
    """What to say of the first flag that is not among these, with the nearest one; `None` if all are."""
    known = set(flags)
    for word in words[: words.index("--") if "--" in words else None]:
        flag = word.partition("=")[0]
        # As argparse: what has a space is a text.
        if re.fullmatch(r"--\w+", flag) and " " not in word and flag not in known:
            return f"no flag {flag}; {nearest(flag, known) or f'see {prog} --help'}"
    return None


def add_engine(parser: Any) -> None:
    """The flags `engine`, `workers` and `gpus_per_worker`."""
    engine = "who runs the work: this process (local, default) or Ray's workers, on a cluster with RAY_ADDRESS (ray)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=engine)
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of Ray's workers (default: as many as there are CPUs here)"
    )
    gpus = "GPUs of a worker, for models that run in it: 1, or 0.25 where four share one (default 0; see docs/annotation.md)"
    parser.add_argument("--gpus_per_worker", type=float, metavar="G", help=gpus)


def add_scope(group: Any) -> None:
    group.add_argument(
        "--scope",
        choices=SCOPES,
        default=SCOPES[0],
        help="what of a completion is judged: the answer (default), the reasoning in its think blocks, or all of it",
    )


def add_metric_args(group: Any) -> None:
    group.add_argument(
        "--metric_args",
        action="append",
        metavar="METRIC.ARGUMENT=VALUE",
        help="an argument of a metric over claims, as factscore.gamma=0 (no length penalty); may be repeated",
    )


def add_output(group: Any, form: str, fail_under: str) -> None:
    add_flag(group, "json")
    add_flag(group, "fail_under", f": {fail_under}", action="append", metavar=form)
    group.add_argument(
        "--max_not_judged",
        type=float,
        metavar="SHARE",
        help="exit with status 1 too if more of the answers, or of their claims, than this share are missing or could not "
        "be judged (default 0.1 with --fail_under, otherwise any share is allowed)",
    )


def read_thresholds(given: Sequence[str] | None) -> dict[str, float]:
    """`NAME=SHARE` per name; a `SHARE` alone, which only some commands take, under the name `""`."""
    thresholds = {}
    for text in given or ():
        name, _, value = text.rpartition("=")
        try:
            thresholds[name.strip()] = float(value)
        except ValueError:
            raise ValueError(f"`fail_under` takes a share or NAME=SHARE, got {text}") from None
    return thresholds


def read_metric_args(given: Sequence[str] | None) -> dict[str, dict[str, Any]]:
    """Arguments by metric, from `METRIC.ARGUMENT=VALUE`; a value that is no JSON is text."""
    arguments: dict[str, dict[str, Any]] = {}
    for text in given or ():
        key, equals, value = text.partition("=")
        metric, dot, name = key.partition(".")
        if not (equals and dot and name):
            raise ValueError(f"`metric_args` takes METRIC.ARGUMENT=VALUE (factscore.gamma=0), got {text!r}")
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            found = value
        arguments.setdefault(metric, {})[name] = found
    return arguments


def print_results(
    summary: Mapping[str, Any], table: Sequence[Mapping[str, str]], notes: Sequence[str], only_json: bool
) -> None:
    """The table in a terminal; otherwise JSON, with the table on the error stream unless only JSON is wanted."""
    people = sys.stdout.isatty() and not only_json
    if not people:
        print(json.dumps(summary))
    if not only_json:
        stream = sys.stdout if people else sys.stderr
        print("\n".join([*([shown_table(table, stream)] if table else []), *notes]), file=stream)


def shown_table(rows: Sequence[Mapping[str, Any]], stream: TextIO | None = None) -> str:
    """A table as it is printed there (by default on standard output): in a terminal as wide as that, elsewhere a line per row."""
    from hf_factuality.hub.tables import format_table

    terminal = (stream or sys.stdout).isatty()
    return format_table(rows, width=shutil.get_terminal_size().columns if terminal else None)


def print_failures(failures: Sequence[str]) -> int:
    """Say what is below a threshold; the exit status."""
    for text in failures:
        print(f"hf-factuality: {text}", file=sys.stderr)
    return 1 if failures else 0

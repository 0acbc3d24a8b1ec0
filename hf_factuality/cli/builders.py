"""The commands `hf-factuality build-...`, which make datasets."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_factuality.cli.shared import RETRIEVERS_HELP, add_engine, add_flag, whole_number
from hf_factuality.methods.process_reward.formula import STEP_LABELS
from hf_factuality.methods.self_correction.formula import CHECK, REVISE
from hf_factuality.verifiers.judges.compare import AXES
from hf_factuality.verifiers.registry import VERIFIER_HELP


if TYPE_CHECKING:
    from hf_factuality.data.build import BuildReport


def add_builders(commands: Any) -> None:
    """Add the builders to the subparsers of the `hf-factuality` command."""
    build = _builder(
        commands, "preferences", "sample answers, label their sentences and pair the best with the worst, for Mask-DPO",
        "Samples responses to each question, labels their sentences with a verifier, and writes the pairs of a preference "
        "dataset.",
        "32, the paper's",
    )  # fmt: skip
    pairs = build.add_argument_group("what makes a pair (may change when a run is started again; not of --pairs)")
    add_flag(pairs, "pairs_per_question", ": of the N best with the N worst (default 1)", metavar="N")
    correct = (
        "what the chosen response must have a sentence of: free of hallucination (the paper, default) or supported"
    )
    pairs.add_argument("--correct", choices=("free", "supported"), help=correct)
    add_flag(pairs, "min_margin", metavar="SHARE")
    build = _builder(
        commands, "dataset", "sample answers, judge them, and make a dataset of your own of them",
        "Samples responses to each question, judges them with a verifier, and writes the rows that a class of yours makes of them.",
        "the builder's", "extending", ("the builder's", "the builder's", "the builder's"), "the builder's",
    )  # fmt: skip
    own = "a DatasetBuilder, as package.module:Class"
    build.add_argument("--builder", required=True, metavar="MODULE:NAME", help=own)
    build = _builder(
        commands, "checklists", "sample answers and list what they state truly, each statement once, for KLCF",
        "Samples responses to each question, verifies what they state, and writes a dataset with the supported statements of "
        "each question, most often stated first.",
        "8: one alone under-covers what a model knows",
    )  # fmt: skip
    items = build.add_argument_group("what becomes an item (may change when a run is started again)")
    items.add_argument(
        "--max_items", type=whole_number, default=20, metavar="N", help="items per question at most (default 20)"
    )
    items.add_argument(
        "--min_samples", type=whole_number, default=1, metavar="N", help="samples that must state an item (default 1)"
    )
    merge = "items that are merged: the same words (lexical, default), or also near embeddings (dense or dense:MODEL)"
    items.add_argument("--merge", default="lexical", metavar="HOW", help=merge)
    items.add_argument(
        "--merge_threshold",
        type=float,
        default=0.95,
        metavar="COSINE",
        help="cosine from which embeddings are near (default 0.95)",
    )
    items.add_argument("--keep_empty", action="store_true", help="keep questions without any item, with an empty list")
    build = _builder(
        commands, "refusals", "ask a model, compare with gold answers and write what it should decline, for R-Tuning",
        "Asks each question, compares the responses with the gold answers (column 'answer'), and writes a dataset in which a "
        "model says what it knows, and says so or declines where it does not know.",
        "1, greedy; 5 for --rtuning_variant uncertain", "abstention", ("0; 0.7 for --rtuning_variant uncertain", 0, 15), "R-Tuning's",
    )  # fmt: skip
    build.set_defaults(verifier="gold")
    what = build.add_argument_group("what is written (may change when a run is started again, but for --stop)")
    variants = "; unsure: the gold answer and 'I am sure.' or 'I am unsure.' (default); unknown: a refusal where the model is wrong; "
    variants += "uncertain: as unsure, by the entropy of samples"
    add_flag(what, "rtuning_variant", variants, choices=("unsure", "unknown", "uncertain"), default="unsure")
    most = "entropy up to which the model is sure, for uncertain (default: the lower half)"
    what.add_argument("--max_entropy", type=float, metavar="NATS", help=most)
    add_flag(what, "language", ": of what is added, en (default) or zh", choices=("en", "zh"), default="en")
    what.add_argument("--question", metavar="TEXT", help="question that asks for the confidence; '' for none")
    refusal = "refusal that is written, for unknown; may be repeated (default: several in the language)"
    what.add_argument("--refusal", dest="refusals", action="append", metavar="TEXT", help=refusal)
    add_flag(what, "max_refusal_share", " (default 1: all of them, as R-Tuning)", default=1.0, metavar="SHARE")
    add_flag(what, "stop", " (default the full stop); '' for none", metavar="TEXT")
    build = _builder(
        commands, "corrections", "sample answers, let the model check and revise them, keep what is right, for self-correction",
        "Samples answers, the model's verdicts on them and revisions of those it finds wrong, compares with the gold answers "
        "(column 'answer'), and writes conversations in which a model checks itself, or pairs for DPO.",
        "4", "self-correction", (1.0, 0, 1024), "ours",
    )  # fmt: skip
    build.set_defaults(verifier="gold")
    what = build.add_argument_group("what is sampled of an answer, and written")
    output = (
        "what is written: conversations for SFT (default) or pairs for DPO (may change when a run is started again)"
    )
    what.add_argument("--output", choices=("trajectories", "pairs"), default="trajectories", help=output)
    for name in ("verdicts", "revisions"):
        of = "an answer" if name == "verdicts" else "an answer that was found wrong"
        what.add_argument(
            f"--num_{name}", type=whole_number, default=4, metavar="N", help=f"{name} of {of} (default 4)"
        )
    misled = "share of the right answers that are found wrong, and kept right (default 0.1)"
    what.add_argument("--misled", type=float, default=0.1, metavar="SHARE", help=misled)
    what.add_argument("--check", default=CHECK, metavar="TEXT", help="what asks for a verdict")
    add_flag(what, "revise", default=REVISE, metavar="TEXT")
    build = _builder(
        commands, "process-labels", "sample solutions and continuations of them, and label their steps, for process rewards",
        "Samples solutions, continues them from the end of each step, compares with the gold answers (column 'answer'), and "
        "writes a dataset in which every step has a label: what becomes of solutions that begin so.",
        "8", "process-reward", (1.0, 0, 1024), "ER-PRM's",
    )  # fmt: skip
    build.set_defaults(verifier="gold")
    what = build.add_argument_group(
        "what a step is, and is worth (--label_rule and --eta may change when started again)"
    )
    what.add_argument(
        "--rollouts", type=whole_number, default=16, metavar="N", help="continuations of each beginning (default 16)"
    )
    add_flag(what, "step_split", ": lines (default), sentences, or a text", default="lines", metavar="WHAT")
    label = "label of a step; entropy: (1/eta) ln mean exp(eta r) (ER-PRM, default); soft: the mean; hard: 1 if any is right"
    what.add_argument("--label_rule", choices=STEP_LABELS, default="entropy", help=label)
    what.add_argument(
        "--eta",
        type=float,
        default=1.0,
        help="eta of the entropy label: any number; 0 for the mean, inf for the maximum (default 1.0)",
    )
    build = _builder(
        commands, "rag-preferences", "sample answers to questions with passages and compare them on four axes, for RAG-Reward",
        "Samples answers to questions with passages (column 'evidence'), compares pairs of them on each axis, by a judge of pairs in "
        "both orders or by what a verifier finds in each answer, and writes preferences for a reward model.",
        "4", "rag-reward", (1.0, 0, 1024), "ours",
    )  # fmt: skip
    pairs = build.add_argument_group("what is compared")
    axis = f"axis to compare on ({', '.join(AXES)}, or another), maybe by a verifier of its own; may be "
    pairs.add_argument(
        "--axis", action="append", metavar="NAME[=VERIFIER]", help=axis + "repeated (default: all four)"
    )
    add_flag(pairs, "pairs_per_question", " (default 1)", default=1, metavar="N")
    margin = ": shares of supported sentences, by a verifier that does not compare (default 0)"
    add_flag(pairs, "min_margin", margin, default=0.0, metavar="SHARE")


def _builder(
    commands: Any,
    kind: str,
    help: str,
    does: str,
    samples: str,
    page: str | None = None,
    default=(0.8, 40, 512),
    whose="Mask-DPO's",
) -> Any:
    """The command `build-{kind}` with the flags that all builders share; what the defaults of sampling are is only said."""
    build = commands.add_parser(
        f"build-{kind}",
        help=help,
        description=f"{does} A run that was killed goes on where it stopped if it is started again. Every flag may be written "
        "with - for _.",
        epilog=f"Exit status: 0, or 2 if the input is bad (said before anything is sampled), nothing is left or a server was down for "
        f"longer than --patience. The method and the files are described in docs/{page or kind}.md.",
    )
    what = build.add_argument_group("what is asked")
    asked = what.add_mutually_exclusive_group(required=True)
    asked.add_argument(
        "questions",
        nargs="?",
        type=Path,
        help="a .jsonl, .json or .parquet file with 'prompt' or 'question', and as they are known 'id', 'topic', 'evidence'",
    )
    add_flag(asked, "dataset", ": a repository on the Hub or a folder, instead of QUESTIONS", metavar="PATH")
    if kind == "preferences":
        given = (
            "file or dataset of pairs that exist ('chosen' and 'rejected'), labelled as they are, instead of QUESTIONS"
        )
        asked.add_argument("--pairs", metavar="FILE", help=given)
    add_flag(what, "dataset_config")
    add_flag(what, "split", " (default train)", default="train")
    add_flag(what, "dataset_revision")
    add_flag(what, "limit", ": the first", metavar="N")
    who = build.add_argument_group("who answers")
    add_flag(who, "model", ": id on the Hub, folder, or its name at --base_url")
    add_flag(who, "revision")
    where = who.add_mutually_exclusive_group()
    where.add_argument(
        "--backend",
        choices=("transformers", "vllm"),
        help="library that runs the model in this process (default transformers)",
    )
    add_flag(where, "base_url", metavar="URL")
    given = "responses made elsewhere: JSON Lines with 'id' and 'responses', a list of texts; --model only names who wrote them"
    where.add_argument("--responses", type=Path, metavar="FILE", help=given)
    add_flag(who, "dtype", ": auto (the checkpoint's, default), float32, bfloat16 or float16")
    add_flag(who, "device", ", or auto to spread the model")
    add_flag(who, "batch_size", " (default 32)")
    add_flag(who, "concurrency", " (default 32)")
    model_args = "arguments of from_pretrained or vllm.LLM, as '{\"tensor_parallel_size\": 4}'"
    who.add_argument("--model_args", type=json_object, metavar="JSON", help=model_args)
    how = build.add_argument_group(f"how responses are sampled (defaults are {whose})")
    add_flag(how, "num_samples", f" (default {samples})", metavar="N")
    add_flag(how, "temperature", f" (default {default[0]})", metavar="T")
    add_flag(how, "top_k", f" (default {default[1]}; 0 for all, and servers without it)", metavar="K")
    add_flag(how, "top_p", " (default 1.0)", metavar="P")
    add_flag(how, "max_new_tokens", f" (default {default[2]})", metavar="N")
    add_flag(how, "seed", ": of the samples and of selections of topics (default 0)", default=0)
    how.add_argument(
        "--questions_per_batch",
        type=whole_number,
        metavar="N",
        help="questions that are sampled and verified together, which a kill costs at most (default 1 for transformers "
        "that draws, else 16)",
    )
    judging = build.add_argument_group("who judges")
    add_flag(judging, "verifier", f": {VERIFIER_HELP} (default %(default)s)", default="small")
    add_flag(judging, "verifier_base_url", ": of 'llm:MODEL' and 'anah:MODEL'", metavar="URL")
    add_flag(judging, "scorers", "; with --verifier gold", action="append", metavar="SOURCE=RULE")
    add_flag(judging, "verifier_tokens", metavar="N")
    add_flag(judging, "knowledge", metavar="FILE")
    add_flag(judging, "retriever", RETRIEVERS_HELP, choices=("topic", "corpus"))
    add_flag(judging, "num_passages", " (default 5)", metavar="N")
    patience = "seconds to wait for a server that is down (default 3600)"
    judging.add_argument("--patience", type=seconds, default=3600.0, metavar="SECONDS", help=patience)
    add_engine(build.add_argument_group("where it runs"))
    topics = build.add_argument_group("which questions are taken, by their topics")
    topics.add_argument("--topics", type=whole_number, metavar="N", help="number of topics, drawn by the seed")
    topics.add_argument(
        "--questions_per_topic", type=whole_number, metavar="N", help="questions per topic at most, drawn by the seed"
    )
    distance = "which topics, instead of drawn ones: the N nearest to those of --topic_targets or farthest from them, by the mean of the "
    distance += "model's last hidden layer over their questions"
    topics.add_argument("--topic_distance", choices=("nearest", "farthest"), help=distance)
    topics.add_argument(
        "--topic_targets", type=Path, metavar="FILE", help="file of questions with topics, for --topic_distance"
    )
    topics.add_argument("--topic_model", help="model that embeds the topics (default --model); needed with --base_url")
    out = build.add_argument_group("output")
    add_flag(out, "out", ": folder of the run and of its dataset", required=True, metavar="DIR")
    add_flag(out, "push_to_hub", ", with its card", metavar="REPO")
    add_flag(out, "private", default=None)
    build.set_defaults(run=partial(_build, kind))
    return build


def seconds(text: str) -> float:
    if not float(text) >= 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0 up, got {text}")
    return float(text)


def json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return found


def _build(kind: str, args: argparse.Namespace) -> int:
    """0, or 130 if it was interrupted."""
    import hf_factuality
    from hf_factuality.errors import HubError

    build = getattr(hf_factuality, f"build_{kind.replace('-', '_')}")
    kind = "pairs" if getattr(args, "pairs", None) is not None else kind
    try:
        built = build(**{name: value for name, value in vars(args).items() if name not in ("run", "settings")})
    except KeyboardInterrupt:
        if not (args.out / "settings.json").exists():
            raise
        print(f"\nhf-factuality: stopped; {args.out} keeps it all: start the same command again", file=sys.stderr)
        return 130
    except HubError as error:
        if error.built is not None:
            _show(kind, error.built)
        raise
    _show(kind, built)
    if built.address is not None:
        print(built.address)
    return 0


def _show(kind: str, built: BuildReport) -> None:
    """Names of the report and their values, what was dropped, and the folder."""
    names, more = _SHOWN[kind]
    rows = {name.replace("_", " "): built.report[name] for name in names.split()} | {**more(built.report)}
    rows |= {f"dropped: {reason}": count for reason, count in built.dropped.items()}
    rows["responses cut off at the limit, kept"] = built.report["cut_off_responses"]
    rows["responses that could not be sampled"] = built.report["lost_responses"]
    width = max(map(len, rows))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items()))
    print(f"\n{built.folder}")


def _scores(report: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{side} score, mean": f"{report[f'{side}_score']:.3f}" for side in ("chosen", "rejected")}


def _claims(report: Mapping[str, Any]) -> dict[str, Any]:
    return {f"claims, {name.replace('_', ' ')}": count for name, count in report["claims"].items() if count}


def _correct(report: Mapping[str, Any]) -> dict[str, Any]:
    found = {f"correct, {name}": report[f"correct_{name}"] for name in ("sure", "unsure")}
    return {name: share for name, share in found.items() if share is not None}


# What of a report is printed: entries under their own names, and others.
_SHOWN: dict[str, tuple[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    "preferences": ("questions responses pairs", _scores),
    "dataset": ("questions responses rows", lambda report: {}),
    "pairs": ("questions pairs contrary without_signal", _scores),
    "checklists": ("questions responses rows items merged", _claims),
    "refusals": ("questions responses rows sure unsure", _correct),
    "corrections": ("questions responses rows", itemgetter("kinds")),
    "process-labels": (
        "questions responses right rows steps unknown_steps prefixes rollouts mean_label",
        lambda report: {},
    ),
    "rag-preferences": ("questions responses pairs rows", itemgetter("preferences")),
}

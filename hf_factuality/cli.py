"""The `hf-factuality` command."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hf_factuality import __version__
from hf_factuality.errors import DataError, FactualityError
from hf_factuality.metrics._cli import add_parser as add_metrics_parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, 1 (below `--fail_under`) or 2 (bad input)."""
    args = _parser().parse_args(argv)
    try:
        return args.run(args)
    except (FactualityError, ValueError, TypeError, ImportError, OSError) as error:
        print(f"hf-factuality: {error}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hf-factuality", description="Factuality of text that a language model wrote."
    )
    parser.add_argument("--version", action="version", version=f"hf_factuality {__version__}")
    commands = parser.add_subparsers(title="commands", required=True)
    verify = commands.add_parser(
        "verify",
        help="label the sentences of completions and print the share that the evidence supports",
        description="Reads JSON Lines with a completion and its evidence per line; prints one JSON object.",
    )
    verify.add_argument("file", type=Path, help="JSON Lines file")
    verify.add_argument("--verifier", default="lexical", help="'lexical', 'nli:MODEL' or 'package.module:Class'")
    verify.add_argument("--completion_column", default="completion")
    verify.add_argument("--evidence_column", default="evidence", help="a string or a list of strings")
    verify.add_argument("--question_column", default="question", help="shown to the verifier if it is there")
    verify.add_argument("--out", type=Path, help="write each row with its labelled spans to this file")
    verify.add_argument(
        "--fail_under", type=float, metavar="PRECISION", help="exit with status 1 if the precision is lower than this"
    )
    verify.add_argument(
        "--max_not_judged",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="with --fail_under: exit with status 1 too if more completions than this share were not judged (default 0.1)",
    )
    verify.set_defaults(run=_verify)
    _add_world(commands)
    add_metrics_parser(commands)
    return parser


def _add_world(commands) -> None:
    world = commands.add_parser("world", help="closed worlds: synthetic people, and small models that know about them")
    actions = world.add_subparsers(title="actions", required=True)
    build = actions.add_parser(
        "build",
        help="train the model of a world from scratch and print what it knows",
        description="Trains the model (or finds the one trained before), prints what it knows, and the directory last.",
    )
    build.add_argument(
        "--size", default="tiny", help="'demo', 'tiny' (2 million parameters, CPU), 'small' (30) or 'base' (100)"
    )
    build.add_argument("--seed", type=int, default=0, help="of the facts, the texts and the initial weights")
    build.add_argument("--language", default="en", help="'en' or 'zh'")
    build.add_argument("--tokenizer", default="word", help="'word' or 'bpe'")
    build.add_argument("--out", type=Path, help="directory; the cache by default")
    build.add_argument("--device", help="where to train; a CUDA device by default if there is one")
    build.add_argument("--threads", type=int, default=1, help="on a CPU; with 1 the weights are the same on every run")
    build.set_defaults(run=_build_world)
    export = actions.add_parser(
        "export",
        help="write the datasets of a world as JSON Lines",
        description="Questions, single facts and biographies of both splits, with evidence, as the trainers take them.",
    )
    export.add_argument("model", type=Path, help="directory of a world's model, as 'build' prints it")
    export.add_argument("--out", type=Path, required=True, help="folder to write to")
    export.set_defaults(run=_export_world)


def _build_world(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from hf_factuality.worlds import SIZES, build_world_model
    from hf_factuality.worlds.knowledge import format_knowledge, measure_knowledge

    if args.size not in SIZES:
        raise ValueError(f"--size {args.size!r} is unknown; choose one of {', '.join(SIZES)}")
    world, model = SIZES[args.size]
    folder = build_world_model(
        replace(world, seed=args.seed, language=args.language),
        args.out,
        replace(model, seed=args.seed, tokenizer=args.tokenizer),
        device=args.device,
        num_threads=args.threads,
    )
    print(format_knowledge(measure_knowledge(folder), folder))
    print(f"\n{folder}")
    return 0


def _export_world(args: argparse.Namespace) -> int:
    from hf_factuality.worlds import load_world
    from hf_factuality.worlds.world import SPLITS

    world = load_world(args.model)
    args.out.mkdir(parents=True, exist_ok=True)
    for split in SPLITS:
        tables = {"single_facts": world.questions(split, hops=1), "biographies": world.biographies(split)}
        for hops in range(2, world.config.max_hops + 1):
            tables[f"questions_{hops}_hops"] = world.questions(split, hops=hops)
        for name, dataset in tables.items():
            path = args.out / f"{name}_{split}.jsonl"
            dataset.to_json(path, force_ascii=False)
            print(f"{len(dataset)} rows in {path}")
    return 0


def _verify(args: argparse.Namespace) -> int:
    from hf_factuality.functional.scoring import factual_precision
    from hf_factuality.spans import Verification
    from hf_factuality.verifiers import VerifierInput, load_verifier
    from hf_factuality.verifiers.guard import GuardedVerifier

    if args.fail_under is not None and not 0 <= args.fail_under <= 1:
        raise ValueError(f"--fail_under is a precision in [0, 1], got {args.fail_under:g}")
    verifier = GuardedVerifier(load_verifier(args.verifier))
    rows = _read_rows(args.file, args.completion_column)
    if verifier.requires_evidence and all(not row.get(args.evidence_column) for row in rows):
        raise DataError(
            f"no row of {args.file} has evidence in {args.evidence_column!r} (columns of the first: {sorted(rows[0])}); "
            "name the column with --evidence_column"
        )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
    inputs, found = [], [Verification(error="no evidence")] * len(rows)
    for number, row in enumerate(rows):
        evidence = _evidence(row.get(args.evidence_column), f"{args.file}, row {number + 1}")
        if evidence or not verifier.requires_evidence:
            item = VerifierInput(row[args.completion_column], row.get(args.question_column), evidence, row)
            inputs.append((number, item))
    for (number, _), verification in zip(inputs, verifier.verify([item for _, item in inputs]), strict=True):
        found[number] = verification
    if args.out:
        with args.out.open("w", encoding="utf-8") as file:
            for row, verification in zip(rows, found, strict=True):
                file.write(json.dumps({**row, "verification": verification.to_dict()}, ensure_ascii=False) + "\n")
    spans = [span for verification in found if verification.judged for span in verification.spans]
    precision = factual_precision(spans)
    labels = Counter("unjudged" if span.label is None else span.label.value for span in spans)
    not_judged = sum(not verification.judged for verification in found)
    summary = {
        "precision": precision,
        "completions": len(rows),
        "not_judged": not_judged,
        "sentences": len(spans),
        "labels": dict(sorted(labels.items())),
    }
    print(json.dumps(summary))
    if args.fail_under is not None and (precision is None or precision < args.fail_under):
        print(f"hf-factuality: precision {precision} is below {args.fail_under:g}", file=sys.stderr)
        return 1
    if args.fail_under is not None and not_judged > args.max_not_judged * len(rows):
        print(f"hf-factuality: {not_judged} of {len(rows)} completions could not be judged", file=sys.stderr)
        return 1
    return 0


def _evidence(value: Any, place: str) -> tuple[str, ...]:
    from hf_factuality.verifiers.base import evidence_passages

    passages = evidence_passages(value)
    if passages is None:
        raise DataError(f"{place}: evidence must be a string or a list of strings, got {value!r:.100}")
    return passages


def _read_rows(path: Path, completion_column: str) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number} is not JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get(completion_column), str):
            columns = sorted(row) if isinstance(row, dict) else type(row).__name__
            raise DataError(
                f"{path}, line {number} has no text in {completion_column!r} (found {columns}); name the column with "
                "--completion_column"
            )
        rows.append(row)
    if not rows:
        raise DataError(f"{path} holds no rows")
    return rows


if __name__ == "__main__":
    sys.exit(main())

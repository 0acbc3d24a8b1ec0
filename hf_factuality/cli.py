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
    return parser


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

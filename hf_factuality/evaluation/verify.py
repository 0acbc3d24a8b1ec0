"""The work of `hf-factuality verify`: a file of answers in; a table, JSON, painted page and labelled rows out.

Both files are read to their ends before anything is judged, and again while it is, so that a mistake in the last line costs
no judging and memory stays small.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TextIO

from hf_factuality.errors import JudgingError
from hf_factuality.evaluation.verify_input import Source, read_source
from hf_factuality.functional.scoring import decided_precision, factual_precision
from hf_factuality.hub.cards.card import format_table
from hf_factuality.metrics._claims import Answer, small_answer
from hf_factuality.metrics._cli import check_metric_args, parse_metric_args
from hf_factuality.metrics._common import who_judges
from hf_factuality.metrics._registry import CLAIM_METRICS, METRIC_NAMES, add_metric, compute
from hf_factuality.report import ReportSample, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.guard import logger as guard_logger
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.service import CHUNK, GIVE_UP_AFTER, JudgedRow, JudgingReport, Row, judge_rows


SHARES = ("precision", "decided_precision")
_SHORT = 3
"""Claims of an answer up to which equal ones are kept once: most rows of a long file are alike to a metric."""


class Metrics:
    """Metrics that are fed with verifications while they are made.

    Args:
        names (`Sequence[str]`):
            Of [`~hf_factuality.metrics._registry.CLAIM_METRICS`], or added to them.
        arguments (`Mapping[str, Mapping[str, Any]]`):
            Per metric, its keyword arguments.

    Raises:
        `ValueError`, `TypeError`: a metric refuses its arguments; each is tried on one labelled claim.
    """

    def __init__(self, names: Sequence[str], arguments: Mapping[str, Mapping[str, Any]]):
        self._arguments = {name: dict(arguments.get(name, {})) for name in names}
        self._answers: list[Answer] = []
        self._short: dict[tuple, Answer] = {}
        for name, given in self._arguments.items():
            check_metric_args(name, given, ("confidence_level", "resamples", "seed"))

    def add(self, judged: JudgedRow) -> None:
        """Feed a completion with its verification."""
        if not self._arguments:
            return
        unjudged = "no_evidence" if judged.left_out == "no_evidence" else None
        answer = small_answer(judged.row.shown.completion, Verification() if unjudged else judged.found, unjudged)
        if len(answer.labels) <= _SHORT:
            answer = self._short.setdefault(tuple(getattr(answer, name) for name in Answer.__slots__), answer)
        self._answers.append(answer)

    def compute(self, verifier: GuardedVerifier) -> dict[str, dict[str, Any]]:
        """Per metric its result, as if it had been given completions, evidence and this verifier."""
        extractor, judge = who_judges(verifier.verifier)
        return {
            name: {**compute(name, self._answers, **given), "extractor": extractor, "judge": judge}
            for name, given in self._arguments.items()
        }


class Page:
    """The completions to show on the HTML page: those with the lowest precision, and of equal ones the first.

    Completions without a claim come after the others, those that could not be judged last.

    Args:
        limit (`int`):
            Number of completions.
    """

    def __init__(self, limit: int):
        self._limit = limit
        self._kept: list[tuple[float, int, ReportSample]] = []
        self.total = 0

    def add(self, judged: JudgedRow) -> None:
        """Offer a completion."""
        self.total += 1
        item, found = judged.row.input, judged.verification
        precision = factual_precision(found.spans) if found.judged else None
        if precision is not None:
            failed = sum(span.label is None for span in found.spans)
            heading = f"precision {precision:.2f}" + (f", claims not judged: {failed}" if failed else "")
            rank = precision
        elif judged.left_out == "empty":
            rank, heading = 3.0, "not judged: nothing in the scope"
        elif found.judged:
            rank, heading = 2.0, "no claim"
        else:
            rank, heading = 3.0, f"not judged: {found.error or 'no sentence could be judged'}"
        question = f"{judged.row.key}: {item.question}" if item.question else judged.row.key
        sample = ReportSample(question, None, [(heading, item.completion, found)])
        self._kept.append((rank, self.total, sample))
        if len(self._kept) >= 2 * self._limit + CHUNK:
            self._cut()

    def _cut(self) -> None:
        self._kept = sorted(self._kept, key=lambda kept: kept[:2])[: self._limit]

    def samples(self) -> list[ReportSample]:
        """The lowest precision first."""
        self._cut()
        return [sample for _, _, sample in self._kept]


class Tally:
    """Counts over the rows that were seen."""

    def __init__(self):
        self.labels: Counter[Label | None] = Counter()
        self.not_judged = 0
        self.report = JudgingReport()

    def add(self, judged: JudgedRow) -> None:
        """Count a row; [`judge_rows`] has counted it in the report."""
        self.not_judged += not judged.found.judged or judged.left_out == "empty"
        if judged.found.error is None:
            self.labels.update(span.label for span in judged.found.spans)

    def summary(self) -> dict[str, Any]:
        """What is printed."""
        spans = [span for label, n in self.labels.items() for span in [LabeledSpan(0, 0, label)] * n]
        labels = {"unjudged" if label is None else label.value: n for label, n in self.labels.items()}
        claims = {
            "supported": self.labels[Label.SUPPORTED] + self.labels[Label.HEDGED_SUPPORTED],
            "contradicted": self.labels[Label.CONTRADICTED] + self.labels[Label.HEDGED_CONTRADICTED],
            "unverifiable": self.labels[Label.UNVERIFIABLE],
            "not_judged": self.labels[None],
        }
        return {
            "precision": factual_precision(spans),
            "decided_precision": decided_precision(spans),
            "completions": self.report.rows,
            "not_judged": self.not_judged,
            "empty": self.report.empty,
            "claims": claims,
            "sentences": len(spans),
            "labels": dict(sorted(labels.items())),
        }


def verify_file(args: argparse.Namespace) -> int:
    """Run the command.

    Args:
        args (`argparse.Namespace`):
            Its flags, by their names.

    Returns:
        `int`: 0, or 1 below a threshold.

    Raises:
        `DataError`: a line cannot be read, or there is no evidence.
        `ValueError`: a flag has a bad value.
        `JudgingError`: nothing could be judged, or the verifier went down; what was judged before is in `--out`.
    """
    names = _metric_names(args.metric)
    thresholds = _thresholds(args.fail_under, names)
    arguments = parse_metric_args(args.metric_args, names, "--metric")
    if args.max_not_judged is not None and not 0 <= args.max_not_judged <= 1:
        raise ValueError(f"--max_not_judged is a share in [0, 1], got {args.max_not_judged:g}")
    if args.html_rows < 1:
        raise ValueError(f"--html_rows must be at least 1, got {args.html_rows}")
    with ExitStack() as stack:
        source = stack.enter_context(read_source(args))
        metrics = Metrics(names, arguments)
        verifier = GuardedVerifier(load_verifier(args.verifier))
        if verifier.requires_evidence:
            source.require_evidence()
        out = stack.enter_context(_writable(args.out, source)) if args.out else None
        if args.html:
            _check_html(args.html, [*source.paths, *([args.out] if args.out else [])])
        page = Page(args.html_rows) if args.html else None
        # It warns per call; here the failures are told once, at the end.
        stack.callback(guard_logger.setLevel, guard_logger.level)
        guard_logger.setLevel(logging.ERROR)
        tally = _judge(source, verifier, args.scope, metrics, page, out, args.out)
        summary = tally.summary()
        if names:
            summary["metrics"] = metrics.compute(verifier)
    table = _table(summary)
    if page:
        _write_page(args.html, source.name, args.scope, table, page)
    _print(summary, table, source, args.json)
    if tally.report.failed:
        print(
            f"hf-factuality: the verifier failed on {tally.report.failed} completions, which are left out; the first: "
            f"{tally.report.first_reason}",
            file=sys.stderr,
        )
    return _status(summary, thresholds, args.max_not_judged)


def _judge(
    source: Source,
    verifier: GuardedVerifier,
    scope: str,
    metrics: Metrics,
    page: Page | None,
    out: TextIO | None,
    out_name: Path | None,
) -> Tally:
    tally = Tally()
    rows = (Row(item, scope, key=place) for place, item in source)
    chunks = judge_rows(
        verifier,
        rows,
        report=tally.report,
        give_up_after=GIVE_UP_AFTER,
        progress=" answers",
        total=source.total,
    )
    try:
        for chunk in chunks:
            for judged in chunk:
                tally.add(judged)
                metrics.add(judged)
                if page:
                    page.add(judged)
                if out:
                    out.write(_line({**judged.row.input.row, "verification": judged.verification.to_dict()}))
            if out:
                out.flush()
    except JudgingError as error:
        kept = f"; {out_name} holds the {tally.report.rows} rows until then" if out_name else ""
        raise JudgingError(f"{error}{kept}") from None
    return tally


def _line(row: Mapping[str, Any]) -> str:
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can only hold escaped
        text = json.dumps(row)
    return text + "\n"


def _writable(path: Path, source: Source) -> TextIO:
    """The file, opened before anything is judged."""
    _refuse_taken(path, source.paths)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("w", encoding="utf-8")


def _check_html(path: Path, taken: Sequence[Path]) -> None:
    """Raises what writing the page would raise in the end."""
    _refuse_taken(path, taken)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OSError(f"--html {path} cannot be written: a folder, or no permission")


def _refuse_taken(path: Path, taken: Sequence[Path]) -> None:
    if path.is_file() and any(other.exists() and path.samefile(other) for other in taken):
        raise ValueError(f"{path} would be overwritten while it is in use; name another file")


def _metric_names(given: Sequence[str] | None) -> list[str]:
    names = [name.strip() for text in given or () for name in text.split(",")]
    own = {name: add_metric(name) for name in names if ":" in name}
    for name in names:
        if name not in CLAIM_METRICS and name not in own:
            known = f"; {name} needs other inputs: evaluate.load({name!r}), docs/metrics.md"
            hint = known if name in METRIC_NAMES else ""
            raise ValueError(f"--metric {name!r} cannot be verified; choose of {', '.join(CLAIM_METRICS)}{hint}")
    return list(dict.fromkeys(own.get(name, name) for name in names))


def _thresholds(given: Sequence[str] | None, metrics: Sequence[str]) -> dict[str, float]:
    thresholds = {}
    for text in given or ():
        name, equals, value = text.rpartition("=")
        name = name.strip()
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"--fail_under takes a share or NAME=SHARE, got {text!r}") from None
        if not 0 <= number <= 1:
            raise ValueError(f"--fail_under is a share in [0, 1], got {number:g}")
        if equals and name not in (*SHARES, *metrics):
            hint = f"add --metric, or take {' or '.join(map(repr, SHARES))}"
            raise ValueError(f"--fail_under {text}: {name!r} is not computed; {hint}")
        for key in [name] if equals else metrics or ["precision"]:
            thresholds[key] = number
    return thresholds


def _table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    judged = summary["completions"] - summary["not_judged"]
    claims = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in summary["claims"].items())
    left_out = f"not judged {summary['not_judged']}" if summary["not_judged"] else ""
    left_out += f" (empty {summary['empty']})" if summary["empty"] else ""
    rows = [
        _table_row("precision", summary["precision"], None, judged, left_out, claims),
        _table_row("decided_precision", summary["decided_precision"], None, judged, left_out, "without unverifiable"),
    ]
    for name, result in summary.get("metrics", {}).items():
        parts = ", ".join(f"{key} {_number(value)}" for key, value in result["parts"].items() if _is_number(value))
        left_out = ", ".join(f"{key} {n}" for key, n in result["left_out"]["responses"].items() if n)
        rows.append(_table_row(name, result[name], result["confidence_interval"], result["n_scored"], left_out, parts))
    return rows


def _table_row(
    name: str, score: float | None, interval: Mapping[str, Any] | None, n: int, left_out: str, parts: str
) -> dict[str, str]:
    shown = f"{interval['low']:.3f} to {interval['high']:.3f}" if interval else ""
    return {
        "measure": name,
        "score": _number(score),
        "interval": shown,
        "answers": str(n),
        "left out": left_out,
        "parts": parts,
    }


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, (int, float))


def _number(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _write_page(path: Path, name: str, scope: str, table: Sequence[Mapping[str, str]], page: Page) -> None:
    samples = page.samples()
    shown = f"The {len(samples)} of {page.total} answers" if len(samples) < page.total else f"All {page.total} answers"
    part = "reasoning" if scope == "think" else scope
    note = (
        f"{shown}, the lowest precision first. Sentences of the {part} are coloured by what the evidence says of them."
    )
    write_report(path, f"Factuality of {name}", note, table, samples)


def _print(summary: Mapping[str, Any], table: Sequence[Mapping[str, str]], source: Source, only_json: bool) -> None:
    people = sys.stdout.isatty() and not only_json
    if not people:
        print(json.dumps(summary))
    if not only_json:
        lines = [source.pairing] if source.pairing else []
        found = summary.get("metrics", {}).get("factscore")
        if found and found["factscore"] is not None and found["settings"]["gamma"]:
            lines.append(
                "factscore: with the length penalty of the released code; init_score is without, as is "
                "--metric_args factscore.gamma=0"
            )
        print("\n".join([format_table(table), *lines]), file=sys.stdout if people else sys.stderr)


def _status(summary: Mapping[str, Any], thresholds: Mapping[str, float], max_not_judged: float | None) -> int:
    low = []
    for name, threshold in thresholds.items():
        score = summary[name] if name in SHARES else summary["metrics"][name][name]
        if score is None or score < threshold:
            low.append(f"{name} {score} is below {threshold:g}")
    if max_not_judged is None and thresholds:
        max_not_judged = 0.1
    claims = summary["claims"]
    for what, failed, n in (
        ("completions", summary["not_judged"], summary["completions"]),
        ("claims", claims["not_judged"], sum(claims.values())),
    ):
        if max_not_judged is not None and n and failed / n > max_not_judged:
            low.append(f"{failed} of {n} {what} could not be judged")
    for text in low:
        print(f"hf-factuality: {text}", file=sys.stderr)
    return 1 if low else 0

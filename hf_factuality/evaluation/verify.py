"""The work of `hf-factuality verify`: a file of answers in; a table, JSON, painted page and labelled rows out.

Both files are read to their ends before anything is judged, and again while it is: memory stays small.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, nullcontext
from itertools import tee
from pathlib import Path
from typing import Any

from hf_factuality.chat.journal import dumps
from hf_factuality.errors import JudgingError
from hf_factuality.evaluation import _shared
from hf_factuality.evaluation._shared import counts, numbers, shown, shown_interval
from hf_factuality.evaluation.verify_input import Source, read_source
from hf_factuality.functional.scoring import decided_precision, factual_precision
from hf_factuality.io.ray import engine_of
from hf_factuality.metrics._arguments import check_metric_args, parse_metric_args
from hf_factuality.metrics._claims import Answer, small_answer
from hf_factuality.metrics._common import who_judges
from hf_factuality.metrics._registry import CLAIM_METRICS, METRIC_NAMES, add_metric, compute
from hf_factuality.reading.same import distinct_units
from hf_factuality.report import ReportSample, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.guard import GuardedVerifier, OverRay, quiet_guard
from hf_factuality.verifiers.registry import load_verifier, served_arguments
from hf_factuality.verifiers.service import CHUNK, GIVE_UP_AFTER, JudgedRow, JudgingReport, Row, judge_rows, left_out


SHARES = ("precision", "decided_precision")
_SHORT = 3
"""Claims of an answer up to which equal ones are kept once: most rows of a long file are alike to a metric."""


class Metrics:
    """Metrics that are fed with verifications while they are made; their arguments are tried on one labelled claim."""

    def __init__(self, names: Sequence[str], arguments: Mapping[str, Mapping[str, Any]]):
        self._arguments = {name: dict(arguments.get(name, {})) for name in names}
        self._answers: list[Answer] = []
        self._short: dict[tuple, Answer] = {}
        for name, given in self._arguments.items():
            check_metric_args(name, given, ("confidence_level", "resamples", "seed"))

    def add(self, judged: JudgedRow) -> None:
        if not self._arguments:
            return
        if judged.left_out == "missing":
            self._answers.append(Answer(problem="missing"))
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
    """The `limit` completions with the lowest precision; then those without a claim, and last those that were not judged."""

    def __init__(self, limit: int):
        self._limit = limit
        self._kept: list[tuple[float, int, ReportSample]] = []
        self.total = 0

    def add(self, judged: JudgedRow) -> None:
        self.total += 1
        item, found = judged.row.input, judged.verification
        rank, heading = _rank(judged, found)
        question = f"{judged.row.key}: {item.question}" if item.question else judged.row.key
        self._kept.append((rank, self.total, ReportSample(question, None, [(heading, item.completion, found)])))
        if len(self._kept) >= 2 * self._limit + CHUNK:
            self._cut()

    def _cut(self) -> None:
        self._kept = sorted(self._kept, key=lambda kept: kept[:2])[: self._limit]

    def write(self, path: Path, name: str, scope: str, table: Sequence[Mapping[str, str]]) -> None:
        self._cut()
        some = len(self._kept) < self.total
        which = f"The {len(self._kept)} of {self.total} answers" if some else f"All {self.total} answers"
        part = "reasoning" if scope == "think" else scope
        note = f"{which}, the lowest precision first. Sentences of the {part} are coloured by what the evidence says of them."
        write_report(path, f"Factuality of {name}", note, table, [sample for _, _, sample in self._kept])


def _rank(judged: JudgedRow, found: Verification) -> tuple[float, str]:
    """Where a completion stands on the page, and its heading."""
    spans = distinct_units(found.spans, judged.row.input.completion)
    precision = factual_precision(spans) if found.judged else None
    if precision is not None:
        failed = sum(span.label is None for span in spans)
        return precision, f"precision {precision:.2f}" + (f", claims not judged: {failed}" if failed else "")
    if judged.left_out == "empty":
        return 3.0, "not judged: nothing in the scope"
    if found.judged:
        return 2.0, "declined" if judged.row.declines else "no claim"
    return 3.0, f"not judged: {found.error or 'no sentence could be judged'}"


class Tally:
    """Counts over the rows that were seen."""

    def __init__(self):
        self.labels: Counter[Label | None] = Counter()
        self.repeated = 0
        self.declined = 0
        self.not_judged = 0
        self.report = JudgingReport()

    def add(self, judged: JudgedRow) -> None:
        """Count a row, which [`judge_rows`] has counted in the report."""
        self.not_judged += not judged.found.judged or judged.left_out == "empty"
        self.declined += judged.left_out is None and judged.row.declines
        if judged.found.error is None:
            spans = distinct_units(judged.found.spans, judged.row.shown.completion)
            self.labels.update(span.label for span in spans)
            self.repeated += len(judged.found.spans) - len(spans)

    def summary(self) -> dict[str, Any]:
        """What is printed."""
        labels = self.labels
        spans = [span for label, n in labels.items() for span in [LabeledSpan(0, 0, label)] * n]
        named = {"unjudged" if label is None else label.value: n for label, n in labels.items()}
        return {
            "precision": factual_precision(spans),
            "decided_precision": decided_precision(spans),
            "completions": self.report.rows,
            "not_judged": self.not_judged,
            "missing": self.report.missing,
            "empty": self.report.empty,
            "declined": self.declined,
            "claims": {
                "supported": labels[Label.SUPPORTED] + labels[Label.HEDGED_SUPPORTED],
                "contradicted": labels[Label.CONTRADICTED] + labels[Label.HEDGED_CONTRADICTED],
                "unverifiable": labels[Label.UNVERIFIABLE],
                "not_judged": labels[None],
            },
            "sentences": len(spans),
            "repeated": self.repeated,
            "labels": dict(sorted(named.items())),
        }


def verify_file(args: argparse.Namespace) -> int:
    """Run the command; 0, or 1 below a threshold. All flags and both files are checked before anything is judged."""
    names = _metric_names(args.metric)
    thresholds = _shared.read_thresholds(args.fail_under, (*SHARES, *names), names or ["precision"])
    metrics = Metrics(names, parse_metric_args(args.metric_args, names, "`metric`"))
    allowed, engine = _shared.allowed_missing(args), engine_of(args)
    _shared.check_at_least_one(args, "html_rows", "verifier_tokens")
    with ExitStack() as stack:
        source = stack.enter_context(read_source(args))
        verifier = GuardedVerifier(load_verifier(args.verifier, **served_arguments(None, args.verifier_tokens)))
        if verifier.requires_evidence:
            source.require_evidence()
        if args.out:
            _shared.make_way(args.out, source.paths, "`out`")
            args.out.open("ab").close()  # what it holds stays until a row is judged
        if args.html:
            _shared.make_way(args.html, [*source.paths, *filter(None, [args.out])], "`html`")
        page = Page(args.html_rows) if args.html else None
        stack.enter_context(quiet_guard())
        tally = _judge(args, source, verifier, engine, [metrics, page] if page else [metrics])
        summary = tally.summary()
        if names:
            summary["metrics"] = metrics.compute(verifier)
    table = _table(summary)
    if page:
        page.write(args.html, source.name, args.scope, table)
    _shared.print_results(summary, table, _notes(summary, source), args.json)
    if tally.report.failed:
        failed = f"the verifier failed on {tally.report.failed} completions, which are left out"
        print(f"hf-factuality: {failed}; the first: {tally.report.first_reason}", file=sys.stderr)
    scores = {name: found[name] for name, found in summary.get("metrics", {}).items()}
    scores |= {name: summary[name] for name in SHARES}
    claims = summary["claims"]
    return _shared.exit_status(
        [(name, scores[name], threshold) for name, threshold in thresholds.items()],
        [
            ("", summary["not_judged"], summary["completions"], "completions could not be judged"),
            ("", claims["not_judged"], sum(claims.values()), "claims could not be judged"),
        ],
        allowed,
    )


def _judge(
    args: argparse.Namespace,
    source: Source,
    verifier: GuardedVerifier,
    engine: Mapping[str, Any],
    readers: Sequence[Metrics | Page],
) -> Tally:
    """Feed each row to the readers as it is judged, and write it."""
    tally = Tally()
    rows = (Row(item, args.scope, key=place, missing=missing) for place, item, missing in source)
    flags = {"give_up_after": GIVE_UP_AFTER, "progress": " answers", "total": source.total}
    judge = verifier
    if engine["workers"]:
        rows, again = tee(rows)
        ahead = (row.shown for row in again if left_out(verifier, row, None) is None)
        # What goes wrong with an answer is said in the worker; here, with Ray.
        judge = GuardedVerifier(OverRay(verifier.verifier, ahead, **engine), None, raises=(Exception,))
    try:
        with args.out.open("wb") if args.out else nullcontext() as out:
            for chunk in judge_rows(judge, rows, report=tally.report, **flags):
                for judged in chunk:
                    tally.add(judged)
                    for reader in readers:
                        reader.add(judged)
                    if out:
                        found = None if judged.left_out == "missing" else judged.verification.to_dict()
                        out.write(dumps({**judged.row.input.row, "verification": found}))
                if out:
                    out.flush()
    except JudgingError as error:
        kept = f"; {args.out} holds the {tally.report.rows} rows until then" if args.out else ""
        raise JudgingError(f"{error}{kept}") from None
    return tally


def _metric_names(given: Sequence[str] | None) -> list[str]:
    names = _shared.listed(given)
    own = {name: add_metric(name) for name in names if ":" in name}
    for name in names:
        if name not in CLAIM_METRICS and name not in own:
            known = f"; {name} needs other inputs: evaluate.load({name!r}), docs/metrics.md"
            hint = known if name in METRIC_NAMES else ""
            raise ValueError(f"`metric` {name!r} cannot be verified; choose of {', '.join(CLAIM_METRICS)}{hint}")
    return list(dict.fromkeys(own.get(name, name) for name in names))


def _table(summary: Mapping[str, Any]) -> list[dict[str, str]]:
    header = ("measure", "score", "interval", "answers", "left out", "parts")
    judged = str(summary["completions"] - summary["not_judged"])
    claims = ", ".join(f"{name.replace('_', ' ')} {n}" for name, n in summary["claims"].items())
    left_out = counts({"not judged": summary["not_judged"]})
    why = counts({name: summary[name] for name in ("missing", "empty")})
    left_out += f" ({why})" if summary["missing"] or summary["empty"] else ""
    left_out += f", declined {summary['declined']}" if summary["declined"] else ""
    rows = [
        (name, shown(summary[name]), "", judged, left_out, parts)
        for name, parts in zip(SHARES, (claims, "without unverifiable"), strict=True)
    ]
    for name, found in summary.get("metrics", {}).items():
        left_out, interval = counts(found["left_out"]["responses"]), shown_interval(found["confidence_interval"])
        rows.append((name, shown(found[name]), interval, str(found["n_scored"]), left_out, numbers(found["parts"])))
    return [dict(zip(header, row, strict=True)) for row in rows]


def _notes(summary: Mapping[str, Any], source: Source) -> list[str]:
    notes = [source.pairing] if source.pairing else []
    found = summary.get("metrics", {}).get("factscore")
    if found and found["factscore"] is not None and found["settings"]["gamma"]:
        notes.append(
            "factscore: with the released length penalty; init_score and `metric_args` factscore.gamma=0 without"
        )
    return notes

"""Several models on a suite: a run for each, then all axes side by side, their front, and what each model won by."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.evaluation._shared import shown
from hf_factuality.evaluation.comparison import Comparison, pair_entries
from hf_factuality.evaluation.model import EvaluateResult, evaluate_model
from hf_factuality.evaluation.plan import Arguments, make_plan, refuse_if
from hf_factuality.evaluation.scoring import TaskAnswers
from hf_factuality.evaluation.tax import add_tax, tax_cells, tax_rows
from hf_factuality.evaluation.verification import answer_row, found_in
from hf_factuality.functional.scoring import mean
from hf_factuality.hub.results import now
from hf_factuality.hub.tables import NOISE, change_cells, format_table
from hf_factuality.io.files import write_atomically, writing
from hf_factuality.methods.long_form import axes
from hf_factuality.reading.completion import read_text
from hf_factuality.reading.words import PRONOUNS
from hf_factuality.spans import Label
from hf_factuality.verifiers.judges.lexical.text import COMMON, tokens


SCHEMA = "hf_factuality.suite/1"
_DIRECTIONS = (
    "higher is better: precision, correct, recall, relevance; lower is better: repetition, empty; the others show how answers "
    "differ"
)
_COLUMNS = (
    "benchmark model precision correct recall relevance words repetition abstention empty unknown n front".split()
)
_LABELS = {"correct": "true facts per answer", "mean": "mean of the other abilities"}


def evaluate_suite(args: Arguments) -> EvaluateResult:
    """All models on a suite, side by side. The arguments of all runs are checked before the first."""
    out = args.out
    page, plot = out.with_suffix(".md"), out.with_suffix(".png")
    known = out not in (page, plot) and out.is_file() and SCHEMA in out.read_text("utf-8", "replace")
    others = [path for path in (out, page, plot) if path.exists() or out in (page, plot)]
    if others and not known:
        fix = "is not overwritten; name another .json file"
        raise DataError(f"`out`: {others[0]} is no comparison of a suite, and {fix}")
    runs = list(_runs(args))
    for _, run in runs:
        make_plan(run)
    tax = args.suite == "tax"
    both = ("mean", "value") if tax else ("correct", "precision")  # axes of the plot
    found: dict[str, list[dict[str, Any]]] = {}  # rows by benchmark
    results, below = [], []
    measured_by: dict[str, list[dict[str, Any]]] = {}
    for name, run in runs:
        print(f"{name}:", file=sys.stderr)
        measured = evaluate_model(run)
        answers = measured.answers
        results += measured.results
        measured_by[name] = measured.results
        below += [f"{name}: {text}" for text in measured.failures]
        gc.collect()  # of the model, before the next one is loaded
        told = ({"benchmark": it.task.name, **axes.long_form_axes(list(answer_axes(it)))} for it, _ in answers)
        for row in tax_rows(answers) if tax else told:
            found.setdefault(row["benchmark"], []).append({"model": name, **row})
    rows = [row for here in found.values() for row in here]
    for here in found.values():
        front = axes.pareto_front([[row[axis] for axis in both] for row in here])
        for number, row in enumerate(here):
            row["front"] = number in front
    more, notes = add_tax(found.values()) if tax else _hacks(found.values())
    notes = [*([] if tax else [_DIRECTIONS]), *notes]
    summary = {"schema": SCHEMA, "suite": args.suite, "created": now(), "rows": rows, **more}
    summary["changes"] = _changes(measured_by)
    write_atomically(out, json.dumps(summary, indent=2) + "\n")
    table, changed = suite_table(summary), suite_changes(summary)
    text = [format_table(table, markdown=True), ""]
    text += [format_table(changed, markdown=True), "", NOISE, ""] if changed else []
    text += [*(f"- {note}" for note in notes), ""]
    write_atomically(page, "\n".join(text))
    return EvaluateResult(results, out, below, [*notes, _plot(rows, plot, *both), str(out)], summary)


def _changes(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """What each model has more or less than the first one in each result."""
    first, *others = measured
    found = {name: Comparison(pair_entries(measured[first], measured[name]), {}) for name in others}
    return [{"model": name, "against": first, **row} for name, it in found.items() for row in it.to_dict()["compared"]]


def suite_changes(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """What of each model differs from the first one, as cells of a table: the change, and whether it is more than noise."""
    return [
        {
            "model": it["model"],
            "benchmark": it["benchmark"],
            "metric": it["metric"],
            **change_cells(
                shown(it["before"]), shown(it["after"]), it["change"], it["interval"], it["higher_is_better"],
                it["n_after"],
            ),
        }
        for it in comparison["changes"]
    ]  # fmt: skip


def suite_table(comparison: Mapping[str, Any]) -> list[dict[str, str]]:
    """A comparison as cells of a table."""
    if comparison["suite"] == "tax":
        return [tax_cells(row) for row in comparison["rows"]]
    return [{name: shown(row[name]) for name in _COLUMNS} for row in comparison["rows"]]


def _hacks(groups: Iterable[Sequence[Mapping[str, Any]]]) -> tuple[dict[str, Any], list[str]]:
    """What each model won against the first one by other than by knowing more, and the same in words."""
    hacks = [
        {"benchmark": row["benchmark"], "model": row["model"], "before": here[0]["model"], **hack._asdict()}
        for here in groups
        for row in here
        for hack in axes.detect_hacks(here[0], row)
    ]
    notes = [f"{it['model']} on {it['benchmark']}: {it['message']}" for it in hacks] or ["no hack was detected"]
    if min(row["n"] for here in groups for row in here) < axes.HACK_THRESHOLDS["answers"]:
        notes.append("fewer than 10 answers tell nothing of hacks")
    return {"hacks": hacks}, notes


def _runs(args: Arguments) -> Iterator[tuple[str, Arguments]]:
    """Name and arguments of each run, whose results go beside the comparison."""
    models, files = list(dict.fromkeys(args.model or ())), list(dict.fromkeys(args.answers or ()))
    unclear = bool(models) == bool(files)
    refuse_if(unclear, "give either `model`, or `answers` with files of answers; each may be repeated")
    refuse_if(len(files) > 1 and args.model_name, "`model_name` is of one model; the names of the files are used")
    refuse_if(len(models) > 1 and args.revision, "`revision` is of one model; run the command once for each")
    for path in files:
        path.open("rb").close()  # now, and not after the runs before it
    stems = [Path(it).stem if files else Path(it).name for it in models or files]
    # Safe in files, Markdown and plots, and apart where the case of letters is not seen.
    names = [re.sub(r"(?![.])[\W_]+", "-", stem)[:40] or "model" for stem in stems]
    folded = [name.lower() for name in names]
    for it, name in zip(models or files, names, strict=True):
        if folded.count(name.lower()) > 1:
            name += "-" + hashlib.sha256(os.fsencode(it)).hexdigest()[:6]
        who = {"model": [it]} if models else {"answers": [it], "model_name": args.model_name or name}
        yield name, replace(args, **who, out=args.out.with_suffix(f".{name}.json"))


def answer_axes(answers: TaskAnswers) -> Iterator[axes.LongFormAnswer]:
    """The first answer to each item, as far as there is one."""
    task = answers.task
    for item, (sample, *_), (judged, *_) in zip(task.items, answers.samples, answers.judged, strict=True):
        if judged is None:
            continue
        row, items = answer_row(item, 0, sample["text"], task.scope), item.reference.get("checklist", ())
        text, found = row.shown.completion, found_in(sample, "checklist") if row.ranges else None
        sentences = [sentence.says for sentence in read_text(text)[1]]
        labels = judged.distinct_labels() if judged.unjudged is None or not row.ranges else (None,)
        # An empty answer misses every item.
        said = [span.label for span in found.spans] if found else []
        said = said or [None if row.ranges else Label.UNVERIFIABLE] * len(items)
        abstained = judged.abstained or row.declines or "veriscore" in judged.declines or None
        relevance = lexical_relevance(item.topic or item.question, sentences)
        yield axes.LongFormAnswer(text, sentences, labels, said, relevance, abstained)


def lexical_relevance(subject: str, sentences: Sequence[str]) -> float | None:
    """Share of the sentences with a content word of the subject, or with a pronoun after such a sentence: a weak measure,
    and our own. `None` without sentences, or if the subject has no content word."""
    wanted = {token.term for token in tokens(subject) if token.kind > COMMON}
    found, on = [], False
    for sentence in sentences:
        terms = {token.term for token in tokens(sentence)}
        on = bool(terms & wanted or on and (terms | set(sentence)) & (PRONOUNS | set("他她它其该")))
        found.append(on)
    return mean(found) if wanted else None


def _plot(rows: Sequence[Mapping[str, Any]], path: Path, x: str, y: str) -> str:
    """Draw the two axes, with the front; returns a line that says where it is, or why not."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return "no plot: matplotlib is not installed (pip install hf_factuality[bench])"
    names = list(dict.fromkeys(row["benchmark"] for row in rows))
    figure = Figure(figsize=(4.5 * len(names), 4), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        here = [row for row in rows if row["benchmark"] == name and None not in (row[x], row[y])]
        for row in here:
            axis.errorbar(
                row[x], row[y], xerr=row["abilities"]["mean"]["standard_error"] if x == "mean" else None, fmt="o"
            )
            axis.annotate(row["model"], (row[x], row[y]))
        front = sorted((row[x], row[y]) for row in here if row["front"])
        axis.plot([it[0] for it in front], [it[1] for it in front], "--", color="gray")
        axis.set(title=name, xlabel=_LABELS[x], ylabel=y)
        if y == "precision":
            axis.set_ylim(-0.05, 1.05)
    # Fonts lack characters of some names.
    with warnings.catch_warnings(action="ignore"), writing(path, ".png") as partial:
        figure.savefig(partial, dpi=110)
    return f"plot: {path}"

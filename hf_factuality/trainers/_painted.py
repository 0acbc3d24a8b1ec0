"""Completions as they were judged, where `log_completions` is set: a file per logged step beside TRL's table, from which
`hf_factuality.view` paints them; and in Trackio a page with their sentences painted, and a trace each with its claims."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_factuality.functional.labels import judged_units
from hf_factuality.report import ReportSample, StoredCompletion, render_report, store_completions
from hf_factuality.report.stored import FOLDER
from hf_factuality.verifiers.service import JudgedRow


SHOWN = 8
"""Completions of a step that Trackio shows, at most; all of them are in the table that TRL logs."""


class StoredCompletions(TrainerCallback):
    """Writes what `judged` returns (rows, their rewards by name, and who judged) to `completions/judged_00010.jsonl`: those of
    the first process, at each step that is logged."""

    def __init__(self, judged: Callable[[], tuple[Sequence[JudgedRow], dict[str, list[float]], str]]):
        self._judged = judged
        self._last: int | None = None  # step; the summary of a training is logged at that of the last batch

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not (state.is_world_process_zero and args.log_completions):
            return
        step = state.global_step
        rows, rewards, verifier = self._judged()
        if rows and step != self._last:
            self._last = step
            store_completions(
                Path(args.output_dir) / FOLDER / f"judged_{step:05d}.jsonl",
                (
                    StoredCompletion(
                        row.row.input.completion, row.verification, row.row.input.question, _gold(row), verifier=verifier,
                        rewards={name: values[place] for name, values in rewards.items()}, step=step,
                    )
                    for place, row in enumerate(rows)
                ),
            )  # fmt: skip


def _gold(row: JudgedRow) -> str | None:
    answer = row.row.input.row.get("answer")
    return answer if isinstance(answer, str) else None


class PaintedCompletions(TrainerCallback):
    """Logs the completions that `judged` returns, where `report_to` names Trackio and `log_completions` is set."""

    def __init__(self, judged: Callable[[], Sequence[JudgedRow]]):
        self._judged = judged
        self._last: int | None = None  # step; the summary of a training is logged at that of the last batch

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not (state.is_world_process_zero and args.log_completions and "trackio" in (args.report_to or ())):
            return
        import trackio

        rows = list(self._judged())[:SHOWN]
        if rows and state.global_step != self._last and trackio.context_vars.current_run.get() is not None:
            self._last = state.global_step
            page = painted_page(rows, state.global_step)
            traces = [trackio.Trace(**painted_trace(row)) for row in rows]
            trackio.log({"painted": trackio.Html(page, inject=False), "judged": traces}, step=state.global_step)


def painted_page(rows: Sequence[JudgedRow], step: int) -> str:
    """The report of completions, with what went wrong in the place of a label."""
    samples = [
        ReportSample(
            row.row.input.question or "",
            None,
            [(row.verification.error or "", row.row.input.completion, row.verification)],
        )
        for row in rows
    ]
    return render_report(f"step {step}", f"{len(rows)} completions", [], samples)


def painted_trace(row: JudgedRow) -> dict[str, Any]:
    """Arguments of a trace: question and completion, and a span per claim with its label and evidence."""
    text, found = row.row.input.completion, row.verification
    asked = row.row.input.question
    messages = [{"role": "user", "content": asked}] if asked else []
    units = judged_units(found)
    labels = ["unjudged" if unit.label is None else unit.label.value for unit in units]
    spans = [
        {
            "id": str(number),
            "name": label,
            "kind": "span",
            "input": unit.claim or unit.text(text),
            "output": unit.evidence,
            "metadata": {"start": unit.start, "end": unit.end, "score": unit.score},
        }
        for number, (unit, label) in enumerate(zip(units, labels, strict=True))
    ]
    counts = {label: labels.count(label) for label in dict.fromkeys(labels)}
    status = {} if found.error is None else {"status": "error", "error": found.error}
    return {
        "messages": [*messages, {"role": "assistant", "content": text}],
        "metadata": {**counts, "abstained": found.abstained, **status},
        "spans": spans,
    }

"""The log of a training: a table with a bar on a terminal, plain lines elsewhere, and all figures in a file."""

from __future__ import annotations

import atexit
import importlib.util
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import PrinterCallback, ProgressCallback, TrainerCallback

from hf_factuality.report.stored import LOG_FILE


_WIDTH, _LEAST = 12, 3
# What of the many figures the table shows, as far as it is logged and there is room: the first ones first.
_SHOWN = (
    "loss reward factuality/mean rewards/accuracies accuracy auroc mean_token_accuracy eval_loss eval_accuracy rewards/margins "
    "value/explained_variance completions/mean_length kl entropy reward_std factuality/failed grad_norm learning_rate epoch"
).split()
_TITLES = {
    "factuality/mean": "factuality",
    "rewards/accuracies": "accuracy",
    "mean_token_accuracy": "token acc.",
    "completions/mean_length": "tokens",
    "rewards/margins": "margin",
    "value/explained_variance": "critic",
    "factuality/failed": "not judged",
    "learning_rate": "rate",
}


class TrainingLog(TrainerCallback):
    """Prints a row per logged step, and writes all figures of it to `training_log.jsonl` in `output_dir`.

    With `rich` on a terminal a bar stays beneath the table. Without, each row is a plain line, and every 20 rows the header is
    said again.
    """

    def __init__(self) -> None:
        self._columns: list[str] = []
        self._rows = 0
        self._bar: Any = None
        self._task: Any = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero:
            return
        self._columns, self._rows = [], 0
        if not args.disable_tqdm and sys.stdout.isatty() and importlib.util.find_spec("rich"):
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            parts = (
                TextColumn("step"),
                MofNCompleteColumn(),
                BarColumn(None),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self._bar = Progress(*parts, expand=True, transient=True)
            self._bar.start()
            atexit.register(
                self._bar.stop
            )  # of a training that fails, which does not come to its end: the cursor comes back
            self._task = self._bar.add_task("", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=state.global_step)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        entry = {"step": state.global_step, **(logs or {})}
        path = Path(args.output_dir) / LOG_FILE
        path.parent.mkdir(parents=True, exist_ok=True)
        # A run that goes on from a checkpoint has said the steps after that one before.
        first = not self._rows and not any(it.get("step", 0) < state.global_step for it in state.log_history)
        with path.open("w" if first else "a", encoding="utf-8") as file:
            file.write(json.dumps(entry, default=str) + "\n")
        self._rows += 1
        # A run that is shorter than a step of its log says all in one.
        if "train_runtime" not in entry or set(entry) & {*_SHOWN} - {"epoch"}:
            self._row(entry)
        if "train_runtime" in entry:
            seconds, loss = entry["train_runtime"], entry.get("train_loss")
            mean = "" if loss is None else f", mean loss {loss:.4g}"
            self._print(f"trained {state.global_step} steps in {seconds:.0f} s{mean}; all figures: {path}")

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.stop()
            atexit.unregister(self._bar.stop)
            self._bar = None

    def _row(self, entry: Mapping[str, Any]) -> None:
        """A line of the table. Figures that only some steps have, such as those of an evaluation, are named in the line."""
        if not self._columns:
            self._columns = _choose(entry, shutil.get_terminal_size().columns)
        if self._rows % 20 == 1:
            titles = ["step", *(_TITLES.get(name, name.rpartition("/")[2])[: _WIDTH - 2] for name in self._columns)]
            self._print("".join(it.rjust(_WIDTH) for it in titles), style="bold")
        cells = [entry["step"], *(entry.get(name) for name in self._columns)]
        line = "".join(("" if it is None else shown_figure(it)).rjust(_WIDTH) for it in cells)
        others = [name for name in _SHOWN if name.startswith("eval_") and name in entry and name not in self._columns]
        self._print(line + "".join(f"  {name} {shown_figure(entry[name])}" for name in others))

    def _print(self, line: str, style: str | None = None) -> None:
        if self._bar is None:
            print(line, flush=True)
        else:
            self._bar.console.print(line, style=style, markup=False, highlight=False, overflow="crop", no_wrap=True)


def _choose(entry: Mapping[str, Any], width: int) -> list[str]:
    """Columns that fit."""
    known = [name for name in _SHOWN if isinstance(entry.get(name), (int, float))]
    known = known or [name for name, value in entry.items() if name != "step" and isinstance(value, (int, float))]
    return known[: max(width // _WIDTH - 1, _LEAST)]


def shown_figure(value: Any) -> str:
    """A figure in four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def use_training_log(trainer: Any) -> None:
    """Let a trainer log by [`TrainingLog`], in place of the dictionaries of transformers."""
    for callback in (ProgressCallback, PrinterCallback):
        trainer.remove_callback(callback)
    trainer.add_callback(TrainingLog())

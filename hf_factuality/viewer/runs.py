"""What can be looked at: the completions of a training run, step by step, with its curves, or those of a file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.hub.results import SCHEMA as RESULTS
from hf_factuality.hub.results import load_results
from hf_factuality.io.files import is_own_file
from hf_factuality.report.stored import FOLDER, LOG_FILE, StoredCompletion, read_completions, read_log


ALL_STEPS = "all steps"
_SIDES = ("before", "after")


class ViewedRun:
    """A run or a file, and its completions by moments: a step of a training, before and after it, or a part of a file.

    Args:
        path (`str` or `Path`):
            Folder of a training, or a file of `verify` (`out`), of `evaluate` (answers, or results with the answers beside them),
            or of completions that a demo stored.
        completion_column (`str`, *optional*, defaults to `"completion"`):
            Column with the completion, in a file of `verify`.
        rows (`int`, *optional*, defaults to 1000):
            Completions of a moment, at most. A longer file is cut into several.

    Raises:
        `DataError`: nothing there can be shown. `OSError`: it cannot be read.
    """

    def __init__(self, path: str | Path, completion_column: str = "completion", rows: int = 1000):
        self.path, self._column, self._rows = Path(path), completion_column, rows
        self.name = self.path.resolve().name
        self._moments: dict[str, dict[str, Any]] = {}
        self.reload()

    def reload(self) -> None:
        """Look again for what there is, as a training goes on."""
        self._moments = dict(self._of_folder() if self.path.is_dir() else self._of_file(self.path))
        if not self._moments and not self.curves():
            raise DataError(
                f"{self.path} has neither completions nor a log of a training. A training that samples stores its completions with "
                "`log_completions`; `verify` and `evaluate` write files that can be opened by themselves"
            )

    @property
    def moments(self) -> list[str]:
        """Names of the moments, the first of which is shown first."""
        return [*self._moments]

    def sides(self, moment: str) -> dict[str, list[StoredCompletion]]:
        """The completions of a moment, of which a demo has those before and after training; none at a moment that it lacks."""
        return {name: [*islice(read(), self._rows)] for name, read in self._moments.get(moment, {}).items()}

    def curves(self) -> dict[str, list[tuple[int, float]]]:
        """Step and value of each logged figure."""
        return read_curves(self.path) if self.path.is_dir() else {}

    def _of_folder(self) -> Iterator[tuple[str, dict[str, Any]]]:
        stored = self.path / FOLDER
        sides = {name: path for name in _SIDES if is_own_file(self.path, path := stored / f"{name}.jsonl")}
        read = {name: partial(self._read, path) for name, path in sides.items()}
        if len(read) == len(_SIDES):
            yield "before and after training", read
        for name, one in read.items():
            yield f"{name} training", {name: one}
        steps = self._steps(stored)
        if len(steps) > 1:
            yield ALL_STEPS, {"": lambda: (it for path in steps.values() for it in self._read(path))}
        for step, path in steps.items():
            yield f"step {step}", {"": partial(self._read, path)}
        for path in sorted(self.path.glob("*.answers.jsonl")):
            if is_own_file(self.path, path):
                yield from self._parts(path, f"{path.name.removesuffix('.answers.jsonl')}: ")

    def _steps(self, stored: Path) -> dict[int, Path]:
        """Files of steps: as they were judged, else the table that TRL wrote."""
        found = {}
        for pattern in ("completions_*.parquet", "judged_*.jsonl"):
            for path in stored.glob(pattern):
                number = re.fullmatch(r"[a-z]+_(\d+)", path.stem)
                if number and is_own_file(self.path, path):
                    found[int(number[1])] = path
        return dict(sorted(found.items()))

    def _of_file(self, path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
        if path.suffix == ".json" and _schema(path) == RESULTS:
            load_results(path)  # which says what is wrong with it
            answers = sorted(path.parent.glob(f"{path.stem}.*.answers.jsonl"))
            if not answers:
                raise DataError(f"{path} is a file of results, and the answers that were beside it are gone")
            for file in answers:
                benchmark = file.name.removeprefix(f"{path.stem}.").removesuffix(".answers.jsonl")
                yield from self._parts(file, f"{benchmark}: ")
            return
        yield from self._parts(path)

    def _parts(self, path: Path, prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
        """A file in parts that fit a page. It is read to its end, so that what is wrong with it is said now."""
        number = sum(1 for _ in self._read(path))
        for start in range(0, number, self._rows):
            end = min(start + self._rows, number)
            one = (
                f"completions {start + 1} to {end}"
                if number > self._rows
                else f"{number} completion{'s' if number > 1 else ''}"
            )
            yield f"{prefix}{one}", {"": partial(self._slice, path, start, end)}

    def _slice(self, path: Path, start: int, end: int) -> Iterator[StoredCompletion]:
        return islice(self._read(path), start, end)

    def _read(self, path: Path) -> Iterator[StoredCompletion]:
        return read_completions(path, self._column)


def _schema(path: Path) -> Any:
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    return found.get("schema") if isinstance(found, dict) else None


def read_curves(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of the logged figures of a run: of its log, else of the state of its last checkpoint."""
    states = sorted(folder.glob("checkpoint-*/trainer_state.json"), key=lambda path: path.stat().st_mtime)
    entries: Iterable[Mapping[str, Any]] = ()
    for path in (folder / LOG_FILE, folder / "trainer_state.json", *reversed(states)):
        if is_own_file(folder, path):
            entries = read_log(path)
            break
    # A run that went on from a checkpoint has logged some steps twice; the later ones count.
    found: dict[str, dict[int, float]] = {}
    for entry in entries:
        step = entry.get("step")
        if not isinstance(step, int):
            continue
        for name, value in entry.items():
            if name not in ("step", "epoch") and isinstance(value, (int, float)) and not isinstance(value, bool):
                found.setdefault(name, {})[step] = float(value)
    # A training says its time and its speed once, at its end: no curves.
    return {name: sorted(points.items()) for name, points in found.items() if len(points) > 1}


def common_moments(runs: Sequence[ViewedRun]) -> list[str]:
    """Moments of the first run that the others have too; of two files, whose parts may have other names, all of the first."""
    first, *others = runs
    common = [it for it in first.moments if all(it in other.moments for other in others)]
    return common or (first.moments if all(len(run.moments) == 1 for run in runs) else [])

"""Spaces of Hugging Face that show a run, or the demo: the files of one, for `hf-factuality push --repo_type space`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from hf_factuality import __version__
from hf_factuality.errors import DataError
from hf_factuality.io.files import is_own_file, whole_folder, write_atomically
from hf_factuality.io.markdown import escaped
from hf_factuality.report.stored import FOLDER, LOG_FILE
from hf_factuality.viewer import DEMO_VERIFIERS
from hf_factuality.viewer.runs import ViewedRun


SOURCE = "https://github.com/hf-factuality/hf_factuality"
GRADIO = "6.31.0"
"""Version that a Space gets where none is installed here."""
_DATA = "data"
_README = """---
title: {title}
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
pinned: false
---

{about}
"""
_APP = """from hf_factuality.viewer import {names}, launch_options


app = {made}

if __name__ == "__main__":
    app.launch(**launch_options())
"""


def write_view_space(
    out: str | Path,
    path: str | Path,
    other: str | Path | None = None,
    completion_column: str = "completion",
    rows: int = 1000,
) -> Path:
    """Write the files of a Space that shows one run or two, with the completions and logs that it shows, and nothing else of
    the runs. Returns the folder.

    Raises:
        `DataError`: nothing there can be shown. `FileExistsError`: there is such a folder.
    """
    runs = [ViewedRun(it, completion_column, rows) for it in (path, other) if it is not None]
    names = [run.name for run in runs]
    places = [f"{_DATA}/{number}/{name}" for number, name in enumerate(names, 1)]
    options = f"completion_column={completion_column!r}, rows={rows}"
    made = ", ".join(f"ViewedRun({place!r}, {options})" for place in places)
    about = f"Completions of {' and '.join(map(escaped, names))}, painted by what their evidence says of them."
    with whole_folder(Path(out)) as folder:
        for run, place in zip(runs, places, strict=True):
            _copy(run.path, folder / place)
        _write(folder, "Completions, painted", about, "ViewedRun, build_viewer", f"build_viewer([{made}])")
    return Path(out)


def write_demo_space(out: str | Path, verifiers: Sequence[str] = DEMO_VERIFIERS) -> Path:
    """Write the files of a Space to try verifiers. Returns the folder. `FileExistsError`: there is such a folder."""
    about = "Paste a completion and evidence, and see which claims the evidence supports."
    with whole_folder(Path(out)) as folder:
        _write(folder, "Which claims does the evidence support?", about, "build_demo", f"build_demo({[*verifiers]!r})")
    return Path(out)


def _write(folder: Path, title: str, about: str, names: str, made: str) -> None:
    try:
        gradio = version("gradio")
    except PackageNotFoundError:
        gradio = GRADIO
    write_atomically(folder / "README.md", _README.format(title=f'"{title}"', gradio=gradio, about=about))
    write_atomically(folder / "app.py", _APP.format(names=names, made=made))
    write_atomically(folder / "requirements.txt", f"hf_factuality @ git+{SOURCE}  # {__version__}\n")


def _copy(path: Path, to: Path) -> None:
    """Copy what the viewer reads of a run, or a file and, of results, the answers beside it."""
    if path.is_dir():
        given = [
            *path.glob(f"{FOLDER}/*.jsonl"),
            *path.glob(f"{FOLDER}/*.parquet"),
            *path.glob("*.answers.jsonl"),
            path / LOG_FILE,
        ]
        given += [path / "trainer_state.json", *path.glob("checkpoint-*/trainer_state.json")]
        files = {it: to / it.relative_to(path) for it in given if is_own_file(path, it)}
    else:
        beside = path.parent.glob(f"{path.stem}.*.answers.jsonl") if path.suffix == ".json" else ()
        files = {it: to if it == path else to.with_name(it.name) for it in (path, *beside)}
    if not files:
        raise DataError(f"{path} has nothing that a Space could show")
    for source, target in files.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)

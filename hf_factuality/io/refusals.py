"""How commands and scripts end when they refuse their input: one line on standard error and the exit status 2."""

from __future__ import annotations

import difflib
import linecache
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from hf_factuality.errors import FactualityError
from hf_factuality.io.secrets import redact


TRACEBACK_VARIABLE = "HF_FACTUALITY_TRACEBACK"
"""Environment variable; if it is set (and not 0), every error is shown with its traceback."""
REFUSED = 2
"""Exit status."""
REFUSALS = (FactualityError, ValueError, TypeError, ImportError, OSError)
"""Classes of the errors by which input is refused."""
# Who checks input with a `raise`; anybody else's ValueError is a bug of somebody.
_CHECKS = {
    "hf_factuality", "trl", "transformers", "datasets", "peft", "accelerate", "huggingface_hub"
}  # fmt: skip
# Whose errors say that a file is not what it should be.
_READERS = {"json", "yaml", "pyarrow"}
# The frame of transformers in which a training runs: hours after its input was checked.
_TRAINING = "_inner_training_loop"


def refuse(program: str, error: BaseException, spell: Callable[[str], str] = str) -> int:
    """Say in one line why `program` ends, spelled for its users; returns the exit status. Raises `error` where tracebacks are
    asked for."""
    if os.environ.get(TRACEBACK_VARIABLE, "0") not in ("", "0"):
        raise error
    text = _absent(error) if isinstance(error, FileNotFoundError) else ""
    message = " ".join(redact(text or str(error)).split()) or type(error).__name__
    print(f"{program}: {spell(message)}", file=sys.stderr)
    return REFUSED


def nearest(word: str, known: Iterable[str]) -> str:
    """The question whether another word was meant; empty if none is like it."""
    near = difflib.get_close_matches(word, sorted(known), 1)
    return f"did you mean {near[0]}?" if near else ""


def _absent(error: FileNotFoundError) -> str:
    """Message for a missing path, with the nearest file name; empty if the error names no single path that is missing."""
    name = error.filename
    if error.errno is None or error.filename2 is not None or not isinstance(name, (str, os.PathLike)) or not str(name):
        return ""
    path = Path(name)
    if os.path.lexists(path):
        return ""  # a link to something that is missing
    folder = path.parent
    if not folder.is_dir():
        missing = next((parent for parent in reversed(path.parents) if not parent.exists()), folder)
        start = "" if path.is_absolute() else f"; relative paths start at {Path.cwd()}"
        return f"there is no {path}: the folder {missing} does not exist{start}"
    try:
        names = os.listdir(folder)
    except OSError:
        names = []
    where = f"{path}" if folder != Path() else f"{path} in this folder ({Path.cwd()})"
    return f"there is no {where}; {nearest(path.name, names) or 'give a path that exists'}"


def run_script(main: Callable[[], Any], program: str | None = None) -> None:
    """Run the `main` of a script, and end in one line if it refuses its input; see [`is_input_error`].

    Args:
        main (`Callable[[], Any]`):
            What the script does.
        program (`str`, *optional*):
            Name in front of the line; that of the script's file by default.

    Raises:
        `SystemExit`: with status 2, if the input is refused. Every other error, with its traceback.
    """
    try:
        main()
    except Exception as error:
        if not is_input_error(error, getattr(main, "__module__", "__main__")):
            raise
        sys.exit(refuse(program or Path(sys.argv[0]).name, error))


def is_input_error(error: BaseException, script: str = "__main__") -> bool:
    """Whether an error says what is wrong with the input, so that its traceback adds nothing.

    So are all errors of this package; and, until a training runs, a file, a module or a repository that is not there, a
    configuration or a dataset that cannot be read, and a `ValueError` or `TypeError` that a check has raised (in this package,
    in the libraries that read configurations, or in the module `script`). An error that the interpreter or another library raised is a
    bug, and keeps its traceback.
    """
    if isinstance(error, FactualityError):
        return True
    frames = _frames(error.__traceback__)
    if any(frame.tb_frame.f_code.co_name == _TRAINING for frame in frames):
        return False
    if isinstance(error, (ImportError, OSError)):
        return True
    module = type(error).__module__
    if module == "datasets.exceptions" or module.partition(".")[0] in _READERS:
        return True
    return isinstance(error, (ValueError, TypeError)) and bool(frames) and _checks(frames[-1], script)


def _frames(traceback: TracebackType | None) -> list[TracebackType]:
    found = []
    while traceback is not None:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


def _checks(frame: TracebackType, script: str) -> bool:
    """Whether the statement that failed is a `raise` of somebody who checks input."""
    name = str(frame.tb_frame.f_globals.get("__name__", ""))
    line = linecache.getline(frame.tb_frame.f_code.co_filename, frame.tb_lineno)
    return line.lstrip().startswith("raise ") and (name.partition(".")[0] in _CHECKS or name == script)

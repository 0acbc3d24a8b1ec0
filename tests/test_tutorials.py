"""The tutorials are run from top to bottom: every command and program, with the output that the page shows."""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hf_factuality.cli import main


DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"```(bash|python|)\n(.*?)```", re.DOTALL)
_STATUS = re.compile(r"\s+# exit status (\d+)$")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_bash(block):
    """What a block prints, with each `hf-factuality` in this process, as on a terminal."""
    printed = Terminal()
    for command in re.split(r"\n(?=hf-factuality )", block.strip()):
        wanted = _STATUS.search(command)
        if not command.startswith("hf-factuality "):
            subprocess.run(["sh", "-ec", command], check=True)
            continue
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            status = main(shlex.split(command.replace("\\\n", " "), comments=True)[1:])
        assert status == int(wanted[1] if wanted else 0), command
    return printed.getvalue()


def run_python(block, names):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "tutorial", "exec"), names)  # noqa: S102 - our own page
    return printed.getvalue()


def run_page(name):
    """Runs the page in the working directory; per block that shows output, what it shows and what was printed."""
    names, printed, found = {"__name__": "__main__"}, "", []
    for language, block in _BLOCK.findall((DOCS / name).read_text(encoding="utf-8")):
        if language:
            printed = run_bash(block) if language == "bash" else run_python(block, names)
        else:
            found.append((block, printed))
    return found


def lines(text):
    """Words of each line, without bars of progress: columns are as wide as a terminal lets them be."""
    rows = (line.rpartition("\r")[2] for line in re.split(r"\n", text.strip()))
    return [row.split() for row in rows if row and not re.search(r"\d+%\|", row)]


def check(found, tolerance=0.0):
    """What pages show was printed: word for word, `...` for what differs between runs, and shares within `tolerance`."""
    for shown, printed in found:
        shown, printed = lines(shown), lines(printed)
        assert len(shown) == len(printed), (shown, printed)
        for row, real in zip(shown, printed, strict=True):
            if "..." in row:
                row, real = row[: row.index("...")], real[: row.index("...")]
            same = [
                word == other or abs(float(word) - float(other)) <= tolerance
                for word, other in zip(row, real, strict=True)
            ]
            assert all(same), (row, real)


def test_a_number_in_ci(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_page("tutorial-ci.md")
    assert len(found) == 5
    check(found)
    assert (tmp_path / "report.html").exists() and (tmp_path / "junit.xml").exists()

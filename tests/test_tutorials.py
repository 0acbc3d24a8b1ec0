"""The tutorials are run from top to bottom: every command and program, with the output that the page shows."""

import contextlib
import io
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from hf_factuality.cli import main
from tests.hub.loopback import hub  # noqa: F401 - a fixture


DOCS = Path(__file__).resolve().parents[1] / "docs"
_BLOCK = re.compile(r"```(bash|python|)\n(.*?)```", re.DOTALL)
_STATUS = re.compile(r"\s+# exit status (\d+)$")


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch):
    """As wide as the tables of the pages, which scroll sideways."""
    monkeypatch.setenv("COLUMNS", "160")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run_bash(block):
    """What a block prints, with each `hf-factuality` in this process, as on a terminal."""
    printed = Terminal()
    for command in re.split(r"\n(?=hf-factuality )", block.strip()):
        wanted = _STATUS.search(command)
        if not command.startswith("hf-factuality "):
            printed.write(subprocess.run(["sh", "-ec", command], check=True, stdout=subprocess.PIPE, text=True).stdout)
            continue
        errors = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            status = main(shlex.split(command.replace("\\\n", " "), comments=True)[1:])
        # Bars of progress and warnings of libraries are in no page; what the command itself says is.
        printed.writelines(f"{line}\n" for line in errors.getvalue().splitlines() if line.startswith("hf-factuality"))
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
    """Words of each line: columns are as wide as a terminal lets them be."""
    return [line.split() for line in text.strip().splitlines()]


def number(word):
    """A share, a count or an end of an interval, which tables write in brackets."""
    return float(word.strip("(),+"))


def check(found, tolerance=0.0):
    """What pages show was printed: word for word, `...` for what differs between runs, and shares within `tolerance`."""
    for shown, printed in found:
        shown, printed = lines(shown), lines(printed)
        assert len(shown) == len(printed), (shown, printed)
        for row, real in zip(shown, printed, strict=True):
            if "..." in row:
                row, real = row[: row.index("...")], real[: row.index("...")]
            same = [
                word == other or (tolerance and abs(number(word) - number(other)) <= tolerance * max(1, number(word)))
                for word, other in zip(row, real, strict=True)
            ]
            assert all(same), (row, real)


def test_the_first_command(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page("index.md")  # which has a block without a language that is no output: how to install
    assert "Ulm lies on the Rhine." in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_number_in_ci(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_page("tutorial-ci.md")
    assert len(found) == 5
    check(found)
    assert (tmp_path / "report.html").exists() and (tmp_path / "junit.xml").exists()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_training_and_what_is_published(tmp_path, monkeypatch, hub):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    # Numbers may differ by machine; they are those of one CPU thread.
    check(run_page("tutorial-train.md"), tolerance=0.15)
    check(run_page("tutorial-publish.md"), tolerance=0.15)
    card = (tmp_path / "tuned" / "README.md").read_text(encoding="utf-8")
    assert "R-Tuning" in card and "abstention" in card and "None recorded" not in card
    published = hub.repos["model", "someone/knows-what-it-knows"]
    assert published.private and "model.safetensors" in published.files("main")
    assert "training_args.bin" not in published.files("main")

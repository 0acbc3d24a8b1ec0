"""Below the command line nothing knows a flag."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_factuality.cli.main import _parser
from hf_factuality.cli.shared import flag_names


PACKAGE = Path(__file__).resolve().parents[2] / "hf_factuality"
BELOW = [path for path in sorted(PACKAGE.rglob("*.py")) if path.relative_to(PACKAGE).parts[0] != "cli"]
# Whose flags are those of TRL's parser.
TRL = {"io/refusals.py": {"config"}}


def imports_argparse(tree):
    """In functions and for type checkers too."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        if any(name.partition(".")[0] == "argparse" for name in names):
            return True
    return False


def flags_in(tree, names):
    """Flags of our commands in the strings of a module, docstrings left out; also with `-` for `_`."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(getattr(node, "body", None), list)]
    docstrings = {id(body[0].value) for body in bodies if body and isinstance(body[0], ast.Expr)}
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            found |= {flag.replace("-", "_") for flag in re.findall(r"(?<![\w-])--([a-z]\w*(?:-\w+)*)", node.value)}
    return found & names


def test_only_the_command_line_imports_argparse():
    texts = {path: path.read_text() for path in BELOW}
    texts = {path: text for path, text in texts.items() if "argparse" in text}  # the others are not parsed
    found = {path.relative_to(PACKAGE).as_posix() for path, text in texts.items() if imports_argparse(ast.parse(text))}
    assert not found


def test_only_the_command_line_names_a_flag():
    names = flag_names(_parser()) - {"help"}
    assert {"out", "fail_under", "push_to_hub", "config"} <= names
    for path in BELOW:
        where, text = path.relative_to(PACKAGE).as_posix(), path.read_text()
        if "--" not in text:
            continue  # most files are not parsed
        named = flags_in(ast.parse(text), names) - TRL.get(where, set())
        assert not named, f"{where} names the flags {named}; name the arguments in backticks, as in Python"


def test_help_needs_no_heavy_library():
    """One process asks for all: what one of them loaded would be seen after it."""
    asked = [["--help"], ["plan", "--help"], ["merge", "--help"], ["push", "--help"], ["compare", "--help"]]
    code = f"""
import sys
from hf_factuality.cli import main
for words in {asked}:
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    heavy = {{"torch", "transformers", "trl", "datasets", "huggingface_hub"}} & set(sys.modules)
    print(words, status or 0, sorted(heavy), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stderr.splitlines() == [f"{words} 0 []" for words in asked]
    assert (done.returncode, done.stdout.count("usage: hf-factuality")) == (0, len(asked))


def test_words_are_compared_without_torch(tmp_path):
    """A figure of the judge of words waits for no library of models, its interval among it."""
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"completion": "The mill opened.", "evidence": "The mill opened in May."}\n' * 2)
    code = f"""
import sys
from hf_factuality.cli import main
print(main(["verify", {str(answers)!r}, "--json", "--verifier", "lexical"]), sorted({{"torch", "transformers", "trl"}} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    figures, status = done.stdout.splitlines()
    assert status == "0 []" and json.loads(figures)["intervals"]["precision"]["low"] == 1.0


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("raise ValueError('give --out')", {"out"}),
        ("f'{x} (--fail-under 3)'", {"fail_under"}),
        ("['--out=3']", {"out"}),
        ("def f():\n    'See --out.'\n    return '--nothing'", set()),
        ("'a--out', '---out', '-- out'", set()),
    ],
)
def test_how_flags_are_found(code, found):
    assert flags_in(ast.parse(code), {"out", "fail_under"}) == found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import argparse", True),
        ("def f():\n    import json, argparse as a", True),
        ("from argparse import Namespace", True),
        ("import argparse_of_ours\nfrom x import argparse", False),
    ],
)
def test_how_imports_are_found(code, found):
    assert imports_argparse(ast.parse(code)) == found

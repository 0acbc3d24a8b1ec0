"""Tables of cases in tests/cases/*.json: each row has the arguments of a test, and may end with a note that says why."""

import json
from pathlib import Path

import pytest


def table(file: str, name: str) -> list:
    """A table of `tests/cases/FILE.json`."""
    return json.loads((Path(__file__).parent / "cases" / f"{file}.json").read_text(encoding="utf-8"))[name]


def cases(file: str, name: str, *arguments: str):
    """The decorator that runs a test once per row of a table; what a row has beyond the `arguments` is its note."""
    rows = [row[: len(arguments)] for row in table(file, name)]
    return pytest.mark.parametrize(",".join(arguments), rows if len(arguments) > 1 else [row[0] for row in rows])

"""Cases as data: tests/cases/data/*.json."""

import json
from pathlib import Path

import pytest


def cases(file, section=None):
    """Parameters of a test that takes `case`."""
    path = Path(__file__).resolve().parents[1] / "cases" / "data" / f"{file}.json"
    found = json.loads(path.read_text(encoding="utf-8"))
    return pytest.mark.parametrize("case", found[section] if section else found, ids=str)

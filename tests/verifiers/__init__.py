"""Tests of verifiers; their tables of cases stand in tests/cases/verifiers.json.

"majority": the votes, and the label and score that follow; a hedged label counts for its kind, and of two equals of a kind the
earlier judge's is taken. "bad_files", "bad_parts", "bad_inputs": what a saved pipeline, a part of it and an input to
`pipeline("fact-verification")` may not be, and what the error says; "unknown_names": the same of names for `load_verifier`.
"""

import json
from pathlib import Path


CASES = json.loads((Path(__file__).resolve().parent.parent / "cases" / "verifiers.json").read_text(encoding="utf-8"))

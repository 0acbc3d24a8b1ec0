"""Verdicts on oneself, and the figures of checking and revising, against a count by hand."""

import random

import pytest

from hf_factuality.methods.self_correction.formula import correction_figures
from hf_factuality.reading.marks import self_verdict


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("So 18. [VERIFY] correct", True), ("[VERIFY] wrong", False), ("[verify]\n  Wrong.", False), ("", None),
        ("[VERIFY] correct? No: [VERIFY] wrong", False), ("[VERIFY] correctly", None), ("VERIFY correct", None),
        ("[VERIFY] wrong" * 3 + "[VERIFY] correct", True), ("[VERIFY] " * 100_000, None),
    ],
)  # fmt: skip
def test_the_last_verdict_counts(text, verdict):
    assert self_verdict(text) is verdict


def test_figures_against_a_count_of_each_case():
    draw = random.Random(0)
    for size in (1, 7, 200):
        rows = [[draw.choice([True, False, None]) for _ in range(3)] for _ in range(size)]
        known = [row for row in rows if None not in row[:2]]
        found = correction_figures(*zip(*rows, strict=True))
        count = {
            "turn_1": lambda a, b, v: a, "final": lambda a, b, v: b, "corrected": lambda a, b, v: (a, b) == (False, True),
            "spoilt": lambda a, b, v: (a, b) == (True, False), "verdict_accuracy": lambda a, b, v: a == v,
            "no_verdict": lambda a, b, v: v is None,
        }  # fmt: skip
        assert found["n"] == len(known)
        for name, holds in count.items():
            share = sum(bool(holds(*row)) for row in known) / len(known) if known else None
            assert found[name] == (share if share is None else pytest.approx(share))
        if known:
            assert found["difference"] == pytest.approx(found["corrected"] - found["spoilt"])


def test_without_problems_nothing_is_known():
    assert set(correction_figures([None], [True], [True]).values()) == {None, 0}

"""Answers that are checked and revised by the model that gave them: its verdicts, and what revising changes."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean


CHECK = (
    "Check your answer step by step. End with the line [VERIFY] correct if it is right, or with the line [VERIFY] wrong if "
    "it is not."
)
REVISE = "You found your answer wrong. Find the error, if there is one, and answer the question again."
"""What is said for the user, in our words: for a verdict, which is taken into the answer, and for a revision."""
CHECKED_RIGHT, CHECKED_WRONG = "[VERIFY] correct", "[VERIFY] wrong"


def correction_figures(
    first: Sequence[bool | None], final: Sequence[bool | None], verdicts: Sequence[bool | None]
) -> dict[str, float | None]:
    """What checking and revising does, as in arXiv 2502.19613.

    Args:
        first, final (`Sequence[bool]` of length N):
            Whether the first answer and the last one are right; a problem with a `None` is left out.
        verdicts (`Sequence[bool]` of length N):
            What the model says of its first answer; `None` where it says nothing, which counts as a verdict that is not right.

    Returns:
        `dict[str, float]`: shares of the problems, `None` without any: `turn_1` and `final` (accuracies), `difference`,
        `corrected` (wrong, then right), `spoilt` (right, then wrong), `verdict_accuracy`, `no_verdict`; and `n`.
    """
    rows = [
        (a, b, said)
        for a, b, said in zip(first, final, verdicts, strict=True)
        if a is not None and b is not None
    ]  # fmt: skip
    cases = {
        "turn_1": [a for a, _, _ in rows],
        "final": [b for _, b, _ in rows],
        "difference": [b - a for a, b, _ in rows],
        "corrected": [b and not a for a, b, _ in rows],
        "spoilt": [a and not b for a, b, _ in rows],
        "verdict_accuracy": [said is a for a, _, said in rows],
        "no_verdict": [said is None for _, _, said in rows],
    }
    return {name: fmean(found) if found else None for name, found in cases.items()} | {"n": len(rows)}

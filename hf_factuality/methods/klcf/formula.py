"""KLCF (arXiv 2509.23765): recall and precision against a checklist, and the weights of its terms."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from typing import NamedTuple

from hf_factuality.functional.scoring import CONTRADICTED_LABELS, count_claims
from hf_factuality.spans import Label


class ChecklistScores(NamedTuple):
    """Two shares in [0, 1], each `None` where it is not defined."""

    recall: float | None
    precision: float | None


def checklist_scores(labels: Sequence[Label | None]) -> ChecklistScores:
    """Recall and precision against a checklist (KLCF, arXiv 2509.23765; the formulas are our reconstruction).

    Args:
        labels (`Sequence[Label | None]`):
            Per item of the checklist, what the answer says about it: supported (consistent), contradicted, or unverifiable
            (missing).

    Returns:
        [`ChecklistScores`]: consistent items over all judged ones, and over consistent and contradicted ones. Without a
        checklist both are `None`; an answer that mentions no item has recall 0 and no precision.
    """
    judged = [label for label in labels if label is not None]
    found = count_claims(judged).supported
    decided = found + sum(label in CONTRADICTED_LABELS for label in judged)
    return ChecklistScores(found / len(judged) if judged else None, found / decided if decided else None)


KLCFWeights = namedtuple(
    "KLCFWeights", ("recall", "precision", "truth", "general", "format", "length"), defaults=(1, 1, 1, 0.1, 1, 0)
)
KLCFWeights.__doc__ = "Weights of the terms. 0.1 of the general reward is the paper's Eq. 10; the others are ours."
KLCF_WEIGHTS = KLCFWeights()

"""The maths of F-DPO (arXiv 2601.03027): which completion of a pair is preferred, and by how much.

With h = 1 for a hallucinated completion and 0 for a factual one, and m = log(pi / pi_ref)(chosen) - log(pi / pi_ref)(rejected):

    flip:  (h_chosen, h_rejected) = (1, 0) becomes (0, 1), with the completions exchanged
    loss:  -log sigmoid(beta * (m - lambda * (h_rejected - h_chosen)))

The flip, the margin and the reduction to DPO for equal labels are in the paper's abstract. The formula of the loss, with
lambda inside the product with beta, is that of the authors' released code and its documentation; the text of the paper's
method section was not at hand. Labels that are not known are no part of it: such a pair is trained as in DPO.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

import torch

from hf_factuality.functional.preference import HALLUCINATED
from hf_factuality.spans import Label


class PairOrder(StrEnum):
    """What the labels say of a pair."""

    ORDERED = "ordered"
    """The chosen completion is factual, the rejected one hallucinated."""
    FLIPPED = "flipped"
    """It was the other way round, and the completions were exchanged."""
    REVERSED = "reversed"
    """It is the other way round, and flipping is off."""
    SAME = "same"
    """The labels are equal."""
    UNKNOWN = "unknown"
    """A label is missing."""

    @property
    def gap(self) -> int:
        """`h_rejected - h_chosen`, after the flip; 0 where it is not known."""
        return {PairOrder.ORDERED: 1, PairOrder.FLIPPED: 1, PairOrder.REVERSED: -1}.get(self, 0)


def pair_order(chosen: bool | None, rejected: bool | None, flip: bool = True) -> PairOrder:
    """The order of a pair by whether its completions are hallucinated; `None` is not known."""
    if chosen is None or rejected is None:
        return PairOrder.UNKNOWN
    if chosen == rejected:
        return PairOrder.SAME
    if rejected:
        return PairOrder.ORDERED
    return PairOrder.FLIPPED if flip else PairOrder.REVERSED


def is_hallucinated(labels: Iterable[Label | None]) -> bool | None:
    """One label for a completion, from those of its spans: whether any is hallucinated, in the sense of Mask-DPO's paper.

    `None` if that hangs on spans that were not judged, or if there are no spans. The paper asks a model for the label of the
    whole completion; this rule is ours.
    """
    labels = list(labels)
    if any(label in HALLUCINATED for label in labels):
        return True
    return None if not labels or None in labels else False


def demand_margin(ref_chosen_logps: torch.Tensor, margin: torch.Tensor) -> torch.Tensor:
    """Reference log-probabilities with which DPO's log-ratio m is m - margin.

    m falls by as much as the reference of the chosen completion rises. A margin of 0 changes no bit.

    Args:
        ref_chosen_logps (`torch.Tensor` of shape (B,)):
            Log-probabilities of the chosen completions under the reference, in nats.
        margin (`torch.Tensor` of shape (B,)):
            lambda times the gap of each pair, in nats, before the product with beta.

    Returns:
        `torch.Tensor` of shape (B,).
    """
    return ref_chosen_logps + margin

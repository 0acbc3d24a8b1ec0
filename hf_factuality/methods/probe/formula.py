"""The loss of a hallucination probe (arXiv 2509.03531), and the score of a span from those of its tokens. Torch only.

`log_odds`, of shape (B, T), are log P(true) / P(hallucinated) of each token; `labels` (B, T), int64, are of [`span_labels`].
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import binary_cross_entropy_with_logits


POOLS = ("max", "mean")
"""What a span is judged by: the highest P(hallucinated) of its tokens, or their mean log-odds."""


def span_labels(index: Sequence[int], truths: Sequence[int | None]) -> list[int]:
    """Of each token, `2 * span + truth`, or -100 outside of spans and where `truths` (1 or 0 per span) has `None`: one column
    tells the spans, and whether they are true. `index` is that of [`~hf_factuality.functional.credit.token_span_index`].
    """
    return [-100 if n < 0 or truths[n] is None else 2 * n + truths[n] for n in index]


def pool_spans(log_odds: torch.Tensor, labels: torch.Tensor, pool: str = "max") -> tuple[torch.Tensor, ...]:
    """Log-odds, truths and rows of the S spans of a batch, each of shape (S,), in order; `pool` is one of [`POOLS`]."""
    rows, places = (labels >= 0).nonzero(as_tuple=True)
    spans, where = torch.unique(torch.stack([rows, labels[rows, places]]), dim=1, return_inverse=True)
    how, empty = "amin" if pool == "max" else "mean", log_odds.new_zeros(spans.shape[1])
    return empty.scatter_reduce(0, where, log_odds[rows, places], how, include_self=False), spans[1] % 2, spans[0]


def probe_loss(log_odds: torch.Tensor, labels: torch.Tensor, span_weight: float, pool: str = "max") -> torch.Tensor:
    """`(1 - span_weight)` times the mean cross-entropy of the tokens in spans, plus `span_weight` times that of the spans.

    The first asks every token of a span for its label. The second asks the span, so that one token may tell that a sentence
    is false while the words before it stay unsuspected (arXiv 2509.03531, where the weight rises from 0 to 1).
    """
    inside = labels >= 0
    both = ((log_odds[inside], labels[inside] % 2), pool_spans(log_odds, labels, pool)[:2])
    tokens, spans = (binary_cross_entropy_with_logits(scores, truths.to(scores.dtype)) for scores, truths in both)
    return (1 - span_weight) * tokens + span_weight * spans

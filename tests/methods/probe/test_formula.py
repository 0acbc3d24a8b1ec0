"""Loss and scores of spans by hand; the threshold by trying all."""

import math

import pytest
import torch

from hf_factuality.functional.calibration import best_threshold
from hf_factuality.methods.probe.formula import pool_spans, probe_loss, span_labels


LOG_ODDS = torch.tensor([[5.0, 1.0, -2.0, 3.0, 0.5], [-1.0, -3.0, 9.0, 9.0, 9.0]])
LABELS = torch.tensor([span_labels([-1, 0, 0, 2, 1], [0, None, 1]), span_labels([0, 0, -1, -1, -1], [1])])


def test_spans_of_a_batch():
    assert LABELS.tolist() == [[-100, 0, 0, 5, -100], [1, 1, -100, -100, -100]]
    highest, truths, rows = (part.tolist() for part in pool_spans(LOG_ODDS, LABELS, "max"))
    assert (highest, truths, rows) == ([-2.0, 3.0, -3.0], [0, 1, 1], [0, 0, 1])
    assert pool_spans(LOG_ODDS, LABELS, "mean")[0].tolist() == [-0.5, 3.0, -2.0]


def test_the_loss_by_hand():
    def cross_entropy(log_odds, truth):
        return math.log1p(math.exp(-log_odds if truth else log_odds))

    tokens = [(1, 0), (-2, 0), (3, 1), (-1, 1), (-3, 1)]
    spans = [(-2, 0), (3, 1), (-3, 1)]
    wanted = [sum(cross_entropy(*one) for one in part) / len(part) for part in (tokens, spans)]
    for weight in (0.0, 0.25, 1.0):
        found = probe_loss(LOG_ODDS, LABELS, weight).item()
        assert found == pytest.approx((1 - weight) * wanted[0] + weight * wanted[1], abs=1e-6)


def test_only_the_most_doubtful_token_of_a_span_is_moved_by_the_loss_of_spans():
    log_odds = LOG_ODDS.clone().requires_grad_()
    probe_loss(log_odds, LABELS, 1.0).backward()
    assert (log_odds.grad != 0).tolist() == [[False, False, True, True, False], [False, True, False, False, False]]


@pytest.mark.parametrize(
    ("scores", "labels", "threshold"),
    [
        ([0.9, 0.8, 0.2, 0.1], [1, 1, 0, 0], 0.5),
        ([0.9, 0.4, 0.4, 0.1], [1, 1, 0, 0], 0.25),  # 1 + 1/2 either way: the lowest
        ([0.9, 0.7, 0.6, 0.5, 0.1], [1, 0, 1, 1, 0], 0.3),  # all true ones, and one of two false
    ],
)
def test_the_best_threshold(scores, labels, threshold):
    assert best_threshold(scores, labels) == pytest.approx(threshold)

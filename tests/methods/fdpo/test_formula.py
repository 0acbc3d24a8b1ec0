"""The order of a pair, and the margin, by hand."""

import math

import pytest
import torch

from hf_factuality import Label
from hf_factuality.methods.fdpo.formula import PairOrder, demand_margin, is_hallucinated, pair_order


@pytest.mark.parametrize(
    ("chosen", "rejected", "flip", "order", "gap"),
    [
        (0, 1, True, "ordered", 1),
        (1, 0, True, "flipped", 1),
        (1, 0, False, "reversed", -1),
        (0, 0, True, "same", 0),
        (1, 1, True, "same", 0),
        (None, 1, True, "unknown", 0),
        (1, None, True, "unknown", 0),
        (None, None, False, "unknown", 0),
    ],
)
def test_the_order_and_the_gap(chosen, rejected, flip, order, gap):
    """Released: h_l - h_w, of (1, 0) after it became (0, 1)."""
    found = pair_order(chosen, rejected, flip)
    assert (found, found.gap) == (order, gap) and PairOrder(order) is found


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([Label.SUPPORTED, Label.NO_FACT, Label.HEDGED_SUPPORTED], False),
        ([Label.SUPPORTED, Label.CONTRADICTED], True),
        ([Label.UNVERIFIABLE], True),
        ([None, Label.HEDGED_CONTRADICTED], True),  # whatever the other one is
        ([Label.SUPPORTED, None], None),
        ([None], None),
        ([], None),
    ],
)
def test_one_label_from_those_of_the_spans(labels, expected):
    assert is_hallucinated(labels) is expected


def test_the_margin_lowers_the_log_ratio():
    """m = (-3 + 4) - (-6 + 5) = 2; of that 10 less is -8, and -log sigmoid(-.8) = log(1 + e^.8) = 1.171101."""
    chosen, rejected, ref_chosen, ref_rejected = (torch.tensor([value]) for value in (-3.0, -6.0, -4.0, -5.0))

    def loss(margin):
        raised = demand_margin(ref_chosen, torch.tensor([margin]))
        return -torch.nn.functional.logsigmoid(0.1 * ((chosen - raised) - (rejected - ref_rejected))).item()

    assert loss(0.0) == pytest.approx(math.log1p(math.exp(-0.2)))
    assert loss(10.0) == pytest.approx(1.171101, abs=1e-6)
    assert loss(-10.0) == pytest.approx(0.263282, abs=1e-6)  # log(1 + e^-1.2)
    exact = torch.rand(1000) * -100
    assert torch.equal(demand_margin(exact, torch.zeros(1000)), exact)

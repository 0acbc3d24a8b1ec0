import math
import random

import pytest

from hf_factuality.errors import JudgingError
from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput, Judgement
from hf_factuality.verifiers.ensemble import CalibratedJudge, MajorityJudge, ScoreCalibration, fit_calibration
from tests.verifiers import CASES


S, C, U, N = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT
HS, HC = Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED


class Fixed:
    """Says what it was told to, whatever the claim."""

    def __init__(self, *judgements):
        self.judgements = [j if isinstance(j, Judgement) else Judgement(j) for j in judgements]

    def judge(self, inputs):
        return self.judgements[: len(inputs)]


def ask(labels, **kwargs):
    return MajorityJudge([Fixed(label) for label in labels], **kwargs).judge([JudgeInput("x", ("y",))])[0]


@pytest.mark.parametrize(("votes", "label", "score"), CASES["majority"])
def test_majority(votes, label, score):
    found = ask([vote and Label(vote) for vote in votes])
    assert found.label is (label and Label(label))
    assert found.score == (score and pytest.approx(score)) or found.score == score == 0


@pytest.mark.parametrize(
    ("tie", "label"), [("unknown", None), ("first", C), ("unverifiable", U), (Label.SUPPORTED, S)]
)
def test_ties(tie, label):
    assert ask([C, S], tie=tie).label is label
    assert ask([U, C, S, S, C], tie=tie).label is label
    assert ask([C, S, S], tie=tie).label is S  # no tie


def test_weights():
    assert ask([S, C, C], weights=[3, 1, 1]) == Judgement(S, pytest.approx(0.6))
    assert ask([S, C, C], weights=[2, 1, 1]).label is None
    assert ask([S, C, C], weights=[0.3, 0.1, 0.2]).label is None  # 0.1 + 0.2 is not 0.3 in floats
    assert ask([None, C, S], weights=[9, 2, 1]) == Judgement(C, pytest.approx(1 / 3))


def test_evidence_is_that_of_an_agreeing_judge():
    judges = [Fixed(Judgement(C, evidence="no")), Fixed(Judgement(S)), Fixed(Judgement(S, evidence="yes"))]
    assert MajorityJudge(judges).judge([JudgeInput("x", ())])[0] == Judgement(S, pytest.approx(2 / 3), "yes")


def test_order_and_empty_batch():
    judge = MajorityJudge([Fixed(S, C, None), Fixed(S, C, U), Fixed(S, S, None)])
    assert [found.label for found in judge.judge([JudgeInput("x", ())] * 3)] == [S, C, U]
    assert judge.judge([]) == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: MajorityJudge([]), "at least one judge"),
        (lambda: MajorityJudge([Fixed(S)], [0]), "must be positive"),
        (lambda: MajorityJudge([Fixed(S)], [1, 2]), "must be 1 finite"),
        (lambda: MajorityJudge([Fixed(S)], [math.nan]), "finite"),
        (lambda: MajorityJudge([Fixed(S)], None, "coin"), "tie must be one of"),
        (
            lambda: CalibratedJudge([Fixed(S), Fixed(S)], ScoreCalibration((1.0,), (0.0,), 0.0)),
            "1 weights for 2 judges",
        ),
        (lambda: ScoreCalibration((1.0,), (), 0.0), "means must be 1 finite"),
        (lambda: CalibratedJudge([Fixed(S)], ScoreCalibration((1.0,), (0.0,), 0.0), 1.5), "threshold"),
        (lambda: fit_calibration([[0.5]], [True, False]), "1 rows of scores for 2 labels"),
        (lambda: fit_calibration([[0.5], [0.4]], [True, True]), "not, with known scores"),
        (lambda: fit_calibration([[0.5], [None]], [True, False]), "not, with known scores"),
        (lambda: fit_calibration([[0.5], [1.4]], [True, False]), r"scores in \[0, 1\]"),
        (lambda: fit_calibration([[0.5], [0.1, 0.2]], [True, False]), "every row needs 1"),
        (lambda: fit_calibration([[0.5], [0.1]], [True, False], 0.0), "l2 must be positive"),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_judge_that_loses_claims_is_named():
    with pytest.raises(JudgingError, match="Fixed returned 1 judgements for 2 claims"):
        MajorityJudge([Fixed(S)]).judge([JudgeInput("x", ())] * 2)


# -- calibration ------------------------------------------------------------------------------------------------------


def labelled(n=400, missing=0.2):
    """Three judges: a good one, a poor one, one that says the opposite; some scores are unknown."""
    rng = random.Random(0)
    rows, labels = [], []
    for _ in range(n):
        label = rng.random() < 0.6
        sign = 1 if label else -1
        row = [1 / (1 + math.exp(-(k * sign + rng.gauss(0, 1.5)))) for k in (1.5, 0.2, -0.8)]
        rows.append([None if rng.random() < missing else value for value in row])
        labels.append(label)
    return rows, labels


def slopes(calibration, rows, labels, l2):
    """Derivatives of the loss by weights and intercept, added up claim by claim: all 0 at its only minimum."""
    found = [l2 * weight for weight in calibration.weights] + [0.0]
    for row, label in zip(rows, labels, strict=True):
        clipped = [None if s is None else min(max(s, 0.01), 0.99) for s in row]
        if all(s is None for s in row):
            continue
        x = [0.0 if s is None else math.log(s / (1 - s)) - m for s, m in zip(clipped, calibration.means, strict=True)]
        z = calibration.intercept + sum(w * v for w, v in zip(calibration.weights, x, strict=True))
        for place, value in enumerate([*x, 1.0]):
            found[place] += (1 / (1 + math.exp(-z)) - label) * value
    return found


@pytest.mark.parametrize("l2", [1e-3, 1.0, 50.0])
def test_fit_finds_the_minimum(l2):
    rows, labels = labelled()
    found = fit_calibration(rows, labels, l2)
    assert slopes(found, rows, labels, l2) == pytest.approx([0.0] * 4, abs=1e-5)
    for place, mean in enumerate(found.means):
        odds = [min(max(row[place], 0.01), 0.99) for row in rows if row[place] is not None]
        assert mean == pytest.approx(sum(math.log(s / (1 - s)) for s in odds) / len(odds))
    assert found.weights[0] > abs(found.weights[1]) and found.weights[2] < 0


def test_fit_makes_scores_probabilities():
    """Calibrated in the large: the mean probability is the share of supported claims, as for any fitted intercept."""
    rows, labels = labelled()
    found = fit_calibration(rows, labels)
    known = [
        (found.probability(row), label)
        for row, label in zip(rows, labels, strict=True)
        if any(s is not None for s in row)
    ]
    assert sum(p for p, _ in known) == pytest.approx(sum(label for _, label in known), abs=1e-5)
    right = sum((p >= 0.5) == label for p, label in known) / len(known)
    alone = [(row[0], label) for row, label in zip(rows, labels, strict=True) if row[0] is not None]
    assert right > 0.8 and right > sum((s >= 0.5) == label for s, label in alone) / len(alone) - 0.05


def test_separable_data_have_a_minimum():
    found = fit_calibration([[1.0], [1.0], [0.0], [0.0]], [True, True, False, False])
    assert 0 < found.weights[0] < 10
    assert found.probability([1.0]) > 0.9 and found.probability([0.0]) < 0.1


def test_probability_by_hand():
    calibration = ScoreCalibration((2.0, -1.0), (0.5, 0.0), 0.25)
    # logit(0.8) = log 4, logit(0.2) = -log 4
    z = 0.25 + 2 * (math.log(4) - 0.5) - (-math.log(4))
    assert calibration.probability([0.8, 0.2]) == pytest.approx(1 / (1 + math.exp(-z)))
    assert calibration.probability([None, 0.5]) == pytest.approx(1 / (1 + math.exp(-0.25)))
    assert calibration.probability([None, None]) is None
    assert ScoreCalibration((1e6,), (0.0,), 0.0).probability([0.0]) == pytest.approx(0.0)
    assert ScoreCalibration((1e6,), (0.0,), 0.0).probability([1.0]) == 1.0


def test_calibrated_labels():
    calibration = ScoreCalibration((1.0, 1.0), (0.0, 0.0), 0.0)

    def label(*judgements):
        return CalibratedJudge([Fixed(j) for j in judgements], calibration).judge([JudgeInput("x", ())])[0]

    assert label(Judgement(S, 0.9), Judgement(U, 0.3)) == Judgement(S, pytest.approx(9 * 3 / 7 / (1 + 9 * 3 / 7)))
    assert label(Judgement(C, 0.1, "doc"), Judgement(None)) == Judgement(C, pytest.approx(0.1), "doc")
    assert label(Judgement(C, 0.1), Judgement(U, 0.2)).label is U  # one each
    assert label(Judgement(HC, 0.1), Judgement(C, 0.2)).label is C
    assert label(None, None) == Judgement(None)
    assert label(N, N) == label(N, None) == Judgement(N)
    assert label(N, Judgement(S, 0.9)) == Judgement(S, pytest.approx(0.9))  # half is not more than half
    assert label(S, None) == Judgement(S, pytest.approx(0.99))  # no score: 1, clipped
    assert label(Judgement(None, 0.9), C) == Judgement(C, pytest.approx(0.01))  # an unknown label's score is no vote


def test_fit_from_judges():
    rows, labels = labelled(100, 0.0)
    judges = [Fixed(*[Judgement(S, row[i]) for row in rows]) for i in range(3)]
    judge = CalibratedJudge.fit(judges, [JudgeInput("x", ())] * 100, labels, l2=2.0, threshold=0.7)
    assert judge.calibration == fit_calibration(rows, labels, 2.0)
    found = judge.judge([JudgeInput("x", ())] * 100)
    assert [f.score for f in found] == [judge.calibration.probability(row) for row in rows]
    assert [f.label is S for f in found] == [f.score >= 0.7 for f in found]
    again = CalibratedJudge(**judge.config())
    assert again.judge([JudgeInput("x", ())] * 100) == found

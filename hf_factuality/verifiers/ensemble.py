"""Judges that ask several judges: a majority vote, and a logistic calibration of their scores.

A judge that has no label for a claim has no vote on it. If none has one the claim stays unknown.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hf_factuality.errors import JudgingError
from hf_factuality.functional.calibration import sigmoid
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Judge, JudgeInput, Judgement, require_method


_HEDGED = {Label.HEDGED_SUPPORTED: Label.SUPPORTED, Label.HEDGED_CONTRADICTED: Label.CONTRADICTED}
_KIND = {label: _HEDGED.get(label, label) for label in Label}
# Scores are moved this far from 0 and 1 before their log-odds are taken.
CLIP = 0.01
TIES = ("unknown", "first", *(label.value for label in Label))


class _Ensemble:
    """Asks all its judges about all claims, and decides (`_decide`) on the judgements of each."""

    def __init__(self, judges: Sequence[Judge]):
        self.judges = tuple(judges)
        if not self.judges:
            raise ValueError("an ensemble needs at least one judge")
        for judge in self.judges:
            require_method(judge, "judge", "a judge")

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order."""
        decided = [(row, self._decide(row)) for row in self._ask(inputs)]
        return [
            replace(found, unanswered=True) if found.label is None and any(one.unanswered for one in row) else found
            for row, found in decided
        ]

    def _ask(self, inputs: Sequence[JudgeInput]) -> list[tuple[Judgement, ...]]:
        """Per input, the judgements of all judges, in their order."""
        columns = [judge.judge(inputs) for judge in self.judges]
        for judge, found in zip(self.judges, columns, strict=True):
            if len(found) != len(inputs):
                name = type(judge).__name__
                raise JudgingError(f"{name} returned {len(found)} judgements for {len(inputs)} claims, not one each")
        return list(zip(*columns, strict=True))


def _numbers(values: Sequence[float], count: int, what: str) -> tuple[float, ...]:
    values = tuple(float(value) for value in values)
    if len(values) != count or not all(math.isfinite(value) for value in values):
        raise ValueError(f"{what} must be {count} finite numbers, got {list(values)}")
    return values


class MajorityJudge(_Ensemble):
    """Judge by the (weighted) vote of several.

    Implements [`~hf_factuality.verifiers.base.Judge`]. Rule: a label counts for its kind, a hedged one for what it
    hedges. The kind with the largest weight of votes wins; the label is the one of that kind with the largest weight, and
    of two equals that of the earlier judge. Judges without label have no vote; without any vote there is no label.

    Ties between kinds: `tie` decides. The score is the share of the counted weight that votes for "supported"; the
    evidence that of the first judge that voted for the label and names any.

    Args:
        judges (`Sequence[Judge]`):
            All get all claims, in their order. An error of one ends the call.
        weights (`Sequence[float]`, *optional*):
            One positive number per judge; `None`: one vote each.
        tie (`str`, *optional*, defaults to `"unknown"`):
            `"unknown"`: no label; `"first"`: the earliest of the judges whose kinds are level; or a label such as
            `"unverifiable"`.

    Raises:
        `ValueError`: no judge, a weight is not positive, or `tie` is none of these.
    """

    def __init__(self, judges: Sequence[Judge], weights: Sequence[float] | None = None, tie: str = "unknown"):
        super().__init__(judges)
        self.weights = _numbers([1.0] * len(self.judges) if weights is None else weights, len(self.judges), "weights")
        if min(self.weights) <= 0:
            raise ValueError(f"weights must be positive, got {list(self.weights)}; leave a judge out instead")
        self.tie = tie.value if isinstance(tie, Label) else tie
        if self.tie not in TIES:
            raise ValueError(f"tie must be one of {list(TIES)}, got {tie!r}")

    def config(self) -> dict[str, Any]:
        """Arguments that make this judge again."""
        return {"judges": list(self.judges), "weights": list(self.weights), "tie": self.tie}

    def _decide(self, row: Sequence[Judgement]) -> Judgement:
        votes = [(found, weight) for found, weight in zip(row, self.weights, strict=True) if found.label is not None]
        if not votes:
            return Judgement(None)
        kinds = _tally((_KIND[found.label], weight) for found, weight in votes)
        score = min(kinds.get(Label.SUPPORTED, 0.0) / sum(kinds.values()), 1.0)
        level = _best(kinds)
        if len(level) > 1 and self.tie != "first":
            return Judgement(None if self.tie == "unknown" else Label(self.tie), score)
        label = _best(_tally((f.label, w) for f, w in votes if _KIND[f.label] is level[0]))[0]
        evidence = next((f.evidence for f, _ in votes if f.label is label and f.evidence is not None), None)
        return Judgement(label, score, evidence)


def _tally(votes: Iterable[tuple[Label, float]]) -> dict[Label, float]:
    found: dict[Label, float] = {}
    for label, weight in votes:
        found[label] = found.get(label, 0.0) + weight
    return found


def _best(tally: Mapping[Label, float]) -> list[Label]:
    """The labels with the largest weight, in the order of the judges; sums of floats differ by their rounding."""
    best = max(tally.values())
    return [label for label, weight in tally.items() if math.isclose(weight, best, rel_tol=1e-9)]


@dataclass(frozen=True)
class ScoreCalibration:
    """Logistic regression from the scores of several judges to the probability that a claim is supported.

    logit(p) = intercept + sum over the judges of weight * (logit(score) - mean). A judge without score adds nothing: it
    counts as one that says what it says on average.
    """

    weights: tuple[float, ...]
    means: tuple[float, ...]  # of the log-odds of each judge's known scores
    intercept: float  # log-odds of "supported" if every judge says its mean

    def __post_init__(self):
        object.__setattr__(self, "weights", _numbers(self.weights, len(self.weights), "weights"))
        object.__setattr__(self, "means", _numbers(self.means, len(self.weights), "means"))
        object.__setattr__(self, "intercept", _numbers([self.intercept], 1, "intercept")[0])

    def probability(self, scores: Sequence[float | None]) -> float | None:
        """Probability in [0, 1] that a claim with these scores, one per judge, is supported; `None` if none is known."""
        known = [place for place, score in enumerate(scores) if score is not None]
        if not known:
            return None
        terms = [self.weights[place] * (_log_odds(scores[place]) - self.means[place]) for place in known]
        return sigmoid(self.intercept + math.fsum(terms))


def _log_odds(score: float) -> float:
    score = min(max(score, CLIP), 1.0 - CLIP)
    return math.log(score / (1.0 - score))


def fit_calibration(
    scores: Sequence[Sequence[float | None]], labels: Sequence[bool], l2: float = 1.0
) -> ScoreCalibration:
    """Fit a [`ScoreCalibration`] by Newton steps to the minimum of cross-entropy plus `l2 / 2 * |weights|^2`.

    `scores` are in [0, 1], per claim that of each judge, `None` where it is unknown; a claim without any is left out.
    `labels` say whether each claim is supported. `l2` is positive, so that separable data have a minimum too; the intercept
    is not shrunk. Raises `ValueError` unless the known claims are of both kinds.
    """
    import numpy as np

    if len(scores) != len(labels):
        raise ValueError(f"{len(scores)} rows of scores for {len(labels)} labels")
    if not l2 > 0:
        raise ValueError(f"l2 must be positive, got {l2!r}")
    known = [(row, bool(label)) for row, label in zip(scores, labels, strict=True) if any(s is not None for s in row)]
    if len({label for _, label in known}) < 2:
        raise ValueError("calibration needs claims that are supported and claims that are not, with known scores")
    width = len(known[0][0])
    for row, _ in known:
        if len(row) != width or not all(s is None or 0.0 <= s <= 1.0 for s in row):
            raise ValueError(f"every row needs {width} scores in [0, 1] or None, got {list(row)}")
    x = np.array([[math.nan if s is None else _log_odds(s) for s in row] for row, _ in known])
    y = np.array([float(label) for _, label in known])
    seen = ~np.isnan(x)
    means = np.where(seen, x, 0.0).sum(0) / np.maximum(seen.sum(0), 1)
    features = np.column_stack([np.where(seen, x - means, 0.0), np.ones(len(y))])
    penalty = np.array([l2] * width + [0.0])

    def loss(beta: Any) -> float:
        z = features @ beta
        return float((np.logaddexp(0.0, z) - y * z).sum() + 0.5 * (penalty * beta**2).sum())

    beta = np.zeros(width + 1)
    beta[-1] = math.log(y.mean() / (1.0 - y.mean()))
    current = loss(beta)
    for _ in range(100):
        p = np.array([sigmoid(z) for z in features @ beta])
        gradient = features.T @ (p - y) + penalty * beta
        if np.abs(gradient).max() < 1e-9 * len(y):
            break
        curvature = (features * (p * (1.0 - p))[:, None]).T @ features + np.diag(penalty + 1e-12)
        step, size = np.linalg.solve(curvature, gradient), 1.0
        while loss(beta - size * step) > current and size > 1e-8:
            size /= 2
        beta = beta - size * step
        current = loss(beta)
    return ScoreCalibration(tuple(beta[:-1].tolist()), tuple(means.tolist()), float(beta[-1]))


class CalibratedJudge(_Ensemble):
    """Judge by the calibrated scores of several.

    Implements [`~hf_factuality.verifiers.base.Judge`]. The score is [`ScoreCalibration.probability`] of the judges' scores;
    one that gives a label but no score counts as 1 for "supported" (hedged too) and 0 for the other kinds. From
    `threshold` on the label is `SUPPORTED`; below it `CONTRADICTED` if more judges say so (hedged too) than say
    "unverifiable", else `UNVERIFIABLE`. Judges without label are left out; without any there is no label. `NO_FACT` if
    more than half of the votes are.

    Args:
        judges (`Sequence[Judge]`):
            All get all claims. An error of one ends the call.
        calibration ([`ScoreCalibration`] or `Mapping`):
            Fitted for these judges, in this order; see [`CalibratedJudge.fit`].
        threshold (`float`, *optional*, defaults to `0.5`):
            Probability from which a claim is supported.

    Raises:
        `ValueError`: the number of weights is not that of the judges, or the threshold is no probability.
    """

    def __init__(
        self, judges: Sequence[Judge], calibration: ScoreCalibration | dict[str, Any], threshold: float = 0.5
    ):
        super().__init__(judges)
        self.calibration = (
            calibration if isinstance(calibration, ScoreCalibration) else ScoreCalibration(**calibration)
        )
        if len(self.calibration.weights) != len(self.judges):
            raise ValueError(f"{len(self.calibration.weights)} weights for {len(self.judges)} judges")
        if not 0.0 <= threshold <= 1.0:
            raise ValueError(f"threshold is a probability in [0, 1], got {threshold!r}")
        self.threshold = threshold

    @classmethod
    def fit(
        cls,
        judges: Sequence[Judge],
        inputs: Sequence[JudgeInput],
        labels: Sequence[bool],
        *,
        l2: float = 1.0,
        threshold: float = 0.5,
    ) -> CalibratedJudge:
        """Ask the judges about claims, of which `labels` say whether they are supported; see [`fit_calibration`]."""
        scores = [[_score(found) for found in row] for row in _Ensemble(judges)._ask(inputs)]
        return cls(judges, fit_calibration(scores, labels, l2), threshold)

    def config(self) -> dict[str, Any]:
        """Arguments that make this judge again."""
        calibration = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self.calibration).items()}
        return {"judges": list(self.judges), "calibration": calibration, "threshold": self.threshold}

    def _decide(self, row: Sequence[Judgement]) -> Judgement:
        votes = [found for found in row if found.label is not None]
        if not votes:
            return Judgement(None)
        kinds = [_KIND[found.label] for found in votes]
        score = self.calibration.probability([_score(found) for found in row])
        if 2 * kinds.count(Label.NO_FACT) > len(kinds) or score is None:
            return Judgement(Label.NO_FACT)
        against = kinds.count(Label.CONTRADICTED) > kinds.count(Label.UNVERIFIABLE)
        label = Label.CONTRADICTED if against else Label.UNVERIFIABLE
        if score >= self.threshold:
            label = Label.SUPPORTED
        agreeing = [found for found, kind in zip(votes, kinds, strict=True) if kind is label]
        return Judgement(label, score, next((f.evidence for f in agreeing if f.evidence is not None), None))


def _score(found: Judgement) -> float | None:
    """What a judgement says of "supported"; `None` if nothing."""
    if found.label is None or found.label is Label.NO_FACT:
        return None
    return found.score if found.score is not None else float(_KIND[found.label] is Label.SUPPORTED)

"""Which claims may be kept so that at most a given share of them is wrong, learnt from labelled claims."""

from __future__ import annotations

import random
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.evaluation.labelled_claims import (
    SUPPORTING,
    LabelColumns,
    LabelledClaim,
    LabelledRows,
    judge_claims,
    read_labels,
    support_score,
)
from hf_factuality.functional.risk_control import (
    CONFIDENCE,
    ControlledThreshold,
    controlled_threshold,
    labels_needed,
)
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.guard import GuardedVerifier


@dataclass(frozen=True)
class ClaimGuarantee:
    """With 90 % confidence at most `1 - level` of the claims that are kept are wrong.

    It assumes that the labelled claims are drawn like those that it is applied to, from such answers, and that claims with a
    higher score are not more often wrong.

    Args:
        level (`float`), confidence (`float`):
            Share of the kept claims that is right at least, and how sure this is over draws of labelled claims.
        threshold (`float`, *optional*):
            A claim is kept if the verifier calls it supported with a score above; `None`: none may be kept.
        labels (`int`):
            Labelled claims that were used, one of each group.
        labels_kept (`int`), labels_wrong (`int`):
            How many of these are above the threshold, and how many of them are wrong.
    """

    level: float
    confidence: float
    threshold: float | None
    labels: int
    labels_kept: int
    labels_wrong: int

    def keeps(self, span: LabeledSpan) -> bool | None:
        """Whether a judged claim is kept; `None` for what holds no fact."""
        if span.label is Label.NO_FACT:
            return None
        return self.threshold is not None and span.label in SUPPORTING and support_score(span) > self.threshold

    def describe(self) -> str:
        """The promise and its assumption in a sentence or two."""
        if self.threshold is None:
            why = f"too many are wrong, or the {self.labels} labels are too few to tell"
            return f"guarantee {self.level:g}: nothing is kept: of the claims that this verifier is surest of, {why}"
        return (
            f"guarantee {self.level:g}: kept are claims called supported with a score above {max(self.threshold, 0):.3g}; with "
            f"{self.confidence:.0%} confidence at most {1 - self.level:.3g} of them are wrong, if the {self.labels} labelled "
            f"claims were drawn like these ({self.labels_kept} of them are above, {self.labels_wrong} of these wrong)"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values only."""
        return dict(vars(self))


def read_guarantee_labels(labels: LabelledRows, level: float, seed: int = 0) -> list[LabelledClaim]:
    """One labelled claim of each group, drawn by the seed, since claims of one answer are not independent; `DataError` if these
    are too few for the level."""
    every = read_labels(labels, LabelColumns(), "guarantee_labels")
    groups: dict[Hashable, list[LabelledClaim]] = {}
    for claim in every:
        groups.setdefault(claim.group, []).append(claim)
    draw = random.Random(seed)
    claims = [draw.choice(own) for own in groups.values()]
    needed = labels_needed(level)
    if len(claims) < needed:
        raise DataError(
            f"`guarantee` {level:g} needs labelled claims of at least {needed} different answers, and usually several times as "
            f"many; `guarantee_labels` has {len(every)} claims in {len(claims)} groups (those with the same 'group', or else the same "
            "evidence). Label more, or lower the level"
        )
    return claims


def fit_guarantee(verifier: GuardedVerifier, claims: list[LabelledClaim], level: float) -> ClaimGuarantee:
    """Judge the labelled claims, and choose the threshold."""
    verdicts = judge_claims(verifier, claims)
    scores = [verdict.score if verdict.supported else None for verdict in verdicts]
    found = controlled_threshold(scores, [claim.supported for claim in claims], level)
    threshold, kept, wrong = found or ControlledThreshold(None, 0, 0)
    return ClaimGuarantee(level, CONFIDENCE, threshold, len(claims), kept, wrong)

"""Rewards of long answers: precision, and what keeps it from being won by saying little.

Each is a function of the labels of one completion's claims, as the verifier gave them, each statement once
([`~hf_factuality.reading.distinct_units`]). A label that is `None` (the judgement
failed) is unknown: it is left out, and where nothing was judged the reward is `None`. The released codes count such a failure
as a contradiction or as 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log1p

from hf_factuality.functional._numbers import require_number
from hf_factuality.functional.scoring import CONTRADICTED_LABELS, count_claims, length_penalty
from hf_factuality.methods.abstention.formula import PRESETS
from hf_factuality.spans import Label


Formula = Callable[[Sequence[Label | None]], float | None]
"""The reward of a completion by the labels of its claims, in order; `None` if it is unknown."""


def binary_rar(labels: Sequence[Label | None], empty: float = 1.0) -> float | None:
    """1 unless a claim contradicts the evidence (Binary RAR, arXiv 2510.17733): what it does not mention is fine.

    The paper asks one judge about the whole answer; a judge of whole completions gives one label, a judge of claims many.

    Args:
        labels (`Sequence[Label | None]`):
            Of the claims of one completion.
        empty (`float`, *optional*, defaults to `1.0`):
            Without any claim, which is nothing that contradicts. Give 0 so that silence does not win.

    Returns:
        `float`: 0 as soon as one claim is known to contradict; `None` if there are claims and none was judged.
    """
    if any(label in CONTRADICTED_LABELS for label in labels):
        return 0.0
    counts = count_claims(labels)
    if not counts.stated:
        return empty
    return 1.0 if counts.judged else None


def precision_detail_relevance(
    labels: Sequence[Label | None],
    relevance: float | None = 0.0,
    detail_weight: float = 0.1,
    relevance_weight: float = 0.1,
) -> float | None:
    """`F / (T + 1) + lambda ln(1 + F) + mu relevance` (factual reasoning, arXiv 2508.05618).

    F of T judged claims are supported. The first two terms are as Binary RAR's authors wrote them again, the weight and the
    scale of the third are not published: 0.1 is the weight that the released configuration has.

    Args:
        labels (`Sequence[Label | None]`):
            Of the claims of one completion; without any, the first two terms are 0.
        relevance (`float`, *optional*, defaults to `0.0`):
            In [0, 1]: whether a judge prefers the answer to the reference. `None` is unknown.
        detail_weight (`float`, *optional*, defaults to `0.1`):
            Lambda; the released configuration has 0.
        relevance_weight (`float`, *optional*, defaults to `0.1`):
            Mu.

    Returns:
        `float`; `None` if there are claims and none was judged, or the relevance is unknown and counts.
    """
    counts = count_claims(labels)
    if counts.unjudged and not counts.judged or relevance is None and relevance_weight:
        return None
    precision = counts.supported / (counts.judged + 1)
    return precision + detail_weight * log1p(counts.supported) + relevance_weight * (relevance or 0.0)


def knowrl(outcome: str | None, labels: Sequence[Label | None], released: bool = False) -> float | None:
    """Outcome and facts of the reasoning (KnowRL, arXiv 2506.19807), without its format term of 1 or -1.

    Args:
        outcome (`str`, *optional*):
            `"correct"`, `"refused"` or `"wrong"`; `None` is unknown.
        labels (`Sequence[Label | None]`):
            Of the claims of the text in `<think>`; without any, the factual term is 0.
        released (`bool`, *optional*, defaults to `False`):
            As the released code: only a wrong answer gets the factual term, and that is times `exp(1 - 10 / n)` for n up to
            10 claims. So a right answer with false reasoning earns full reward, and a false claim more can pay.

    Returns:
        `float`: the answer's 2, 1 or -1 and the supported share of the claims; `None` if either is unknown.

    Raises:
        `ValueError`: an unknown outcome.
    """
    if outcome is None:
        return None
    earned = PRESETS["knowrl"].of(outcome)
    if released and outcome != "wrong":
        return earned
    counts = count_claims(labels)
    if not counts.stated:
        return earned
    penalty = length_penalty(counts.stated) if released else 1.0
    return None if counts.precision is None else earned + counts.precision * penalty


CORVER_STEPS = ((20, 0.1), (5, 0.0), (1, -0.1), (0, -0.3))
"""Least number of co-occurrences in the corpus, and what it is worth."""


def corver(count: int | None) -> float:
    """Reward of a sentence by how often its subject and object occur together in a corpus (CorVer, arXiv 2605.29648).

    Args:
        count (`int`, *optional*):
            At least 0; `None` if the sentence states no triple or the corpus could not be asked: no signal, which is 0 and
            not the -0.3 of a pair that the corpus does not have.

    Raises:
        `ValueError`: a count that is negative or no finite number.
    """
    if count is not None:
        require_number("count", count, least=0)
    return 0.0 if count is None else next(value for least, value in CORVER_STEPS if count >= least)


def claim_shares(formula: Formula, labels: Sequence[Label | None]) -> list[float]:
    """What each claim adds to the reward of the claims before it: the shares sum up to what all add to none.

    So any formula can be paid at the claims instead of at the end. Of several contradictions the first pays [`binary_rar`].

    Args:
        formula (`Callable`):
            See [`Formula`].
        labels (`Sequence[Label | None]`):
            In the order of the text. An unknown claim adds 0.

    Returns:
        `list[float]`: one per claim. Where the formula is unknown without any judged claim, the first one that is judged gets
        the whole reward.
    """
    shares, seen, before = [], (), formula(())
    for label in labels:
        seen += () if label is None else (label,)
        after = None if label is None else formula(seen)
        shares.append(0.0 if after is None else after - (before or 0.0))
        before = before if after is None else after
    return shares

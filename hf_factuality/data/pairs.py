"""Mask-DPO's preference pairs: which of the sampled and labelled responses to a question make a pair, and which do not.

The paper (Mask-DPO, ICLR 2025, section 3) scores each response by its share of sentences without hallucination and sets
the best against the worst. Its authors did not release this step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hf_factuality.errors import DataError
from hf_factuality.functional.preference import FREE_OF_HALLUCINATION
from hf_factuality.functional.scoring import SUPPORTED_LABELS, count_sentences
from hf_factuality.spans import LabeledSpan, Verification


_CORRECT = {"free": FREE_OF_HALLUCINATION, "supported": SUPPORTED_LABELS}
REASONS = {
    "not_judged": "responses without a judged sentence",
    "too_few_responses": "questions with fewer judged responses than two per pair",
    "identical": "pairs of identical texts",
    "margin": "pairs whose scores differ by less than min_margin",
    "nothing_correct_in_chosen": "pairs whose chosen response has no correct sentence",
    "nothing_wrong_in_rejected": "pairs whose rejected response has no hallucinated sentence",
}


def hallucination_free_share(spans: Sequence[LabeledSpan]) -> float | None:
    """Share of the judged sentences of a response that are neither contradicted nor unverifiable; `None` without any."""
    counts = count_sentences([span.label for span in spans])
    return counts.correct / counts.judged if counts.judged else None


@dataclass(frozen=True)
class PairConfig:
    """How responses become pairs. The defaults are the paper's.

    Args:
        pairs_per_question (`int`, *optional*, defaults to `1`):
            n takes the n best against the n worst responses, best against worst first.
        correct (`str`, *optional*, defaults to `"free"`):
            What the chosen response must have a sentence of: `"free"` (without hallucination, a sentence without a fact
            included, as in the paper) or `"supported"` (a supported one, so that empty talk is never preferred).
        min_margin (`float`, *optional*, defaults to `0.0`):
            Least difference of the two scores.

    Raises:
        `ValueError`: a value that cannot be.
    """

    pairs_per_question: int = 1
    correct: str = "free"
    min_margin: float = 0.0

    def __post_init__(self):
        if self.pairs_per_question < 1:
            raise ValueError(f"pairs_per_question must be at least 1, got {self.pairs_per_question}")
        if self.correct not in _CORRECT:
            raise ValueError(f"correct={self.correct!r} is unknown; choose one of {sorted(_CORRECT)}")
        if not 0.0 <= self.min_margin <= 1.0:
            raise ValueError(f"min_margin is a difference of shares, between 0 and 1; got {self.min_margin}")


@dataclass(frozen=True)
class ScoredResponse:
    """A response with its sentences, its share of those without hallucination, and its number among the samples."""

    text: str
    spans: tuple[LabeledSpan, ...]
    score: float
    index: int


@dataclass(frozen=True)
class Pair:
    """The better and the worse of two responses to one question."""

    chosen: ScoredResponse
    rejected: ScoredResponse


@dataclass
class PairReport:
    """What became of the questions and responses: counts, and those dropped by reason, one of `REASONS`."""

    questions: int = 0
    responses: int = 0
    pairs: int = 0
    dropped: Counter = field(default_factory=Counter)


def choose_pairs(
    texts: Sequence[str],
    verifications: Iterable[Verification | None],
    config: PairConfig | None = None,
    report: PairReport | None = None,
) -> list[Pair]:
    """The pairs of one question.

    Of equal scores, the response that was sampled earlier counts as the better one.

    Args:
        texts (`Sequence[str]`):
            Responses to the question.
        verifications (`Iterable[Verification | None]`):
            One per response; `None`, or one with an error, leaves the response out.
        config ([`PairConfig`], *optional*):
            The rules.
        report ([`PairReport`], *optional*):
            Is added to.

    Returns:
        `list[Pair]`: at most `config.pairs_per_question`.

    Raises:
        `DataError`: not one verification per response.
        `SpanError`: a span that ends after its response.
    """
    config = config or PairConfig()
    report = PairReport() if report is None else report
    verifications = list(verifications)
    if len(texts) != len(verifications):
        raise DataError(f"{len(texts)} responses have {len(verifications)} verifications; give one each")
    report.questions += 1
    report.responses += len(texts)
    scored = []
    for index, (text, found) in enumerate(zip(texts, verifications, strict=True)):
        usable = found is not None and found.error is None
        score = hallucination_free_share(found.validate(text).spans) if usable else None
        if score is None:
            report.dropped["not_judged"] += 1
        else:
            scored.append(ScoredResponse(text, found.spans, score, index))
    if len(scored) < 2 * config.pairs_per_question:
        report.dropped["too_few_responses"] += 1
    ranked = sorted(scored, key=lambda response: (-response.score, response.index))
    wanted = min(config.pairs_per_question, len(ranked) // 2)
    pairs = []
    for chosen, rejected in zip(ranked[:wanted], reversed(ranked), strict=False):
        reason = _refusal(chosen, rejected, config)
        if reason:
            report.dropped[reason] += 1
        else:
            pairs.append(Pair(chosen, rejected))
    report.pairs += len(pairs)
    return pairs


def _refusal(chosen: ScoredResponse, rejected: ScoredResponse, config: PairConfig) -> str | None:
    if chosen.text.strip() == rejected.text.strip():
        return "identical"
    if chosen.score - rejected.score < config.min_margin:
        return "margin"
    if not any(span.label in _CORRECT[config.correct] for span in chosen.spans):
        return "nothing_correct_in_chosen"
    if all(span.label is None or span.label in FREE_OF_HALLUCINATION for span in rejected.spans):
        return "nothing_wrong_in_rejected"
    return None

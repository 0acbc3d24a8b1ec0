"""Rewards of long answers, from the labels that a [`~hf_factuality.FactGRPOTrainer`] has already, and from a checklist."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

from hf_factuality.functional.credit import judged_units
from hf_factuality.functional.long_form import (
    ChecklistScores,
    Formula,
    binary_rar,
    checklist_scores,
    precision_detail_relevance,
)
from hf_factuality.functional.scoring import count_claims, f1_at_k, mean
from hf_factuality.rewards._rows import JudgedReward
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Judge, VerifierInput
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.service import Row


Reward = Callable[..., "list[float | None]"]


def _precision(labels: Sequence[Label | None], empty: float = 0.0) -> float | None:
    counts = count_claims(labels)
    return counts.precision if counts.stated else empty


def _f1(labels: Sequence[Label | None], k: float = 32) -> float | None:
    return f1_at_k(labels, k).f1


LONG_FORM_REWARDS: Mapping[str, Formula] = MappingProxyType(
    {
        "precision": _precision,
        "binary_rar": binary_rar,
        "precision_detail": partial(precision_detail_relevance, relevance_weight=0),
        "f1_at_k": _f1,
    }
)
"""Rewards by name: what [`long_form_reward`] takes, and their formulas in `functional/`."""


def labels_of(found: Verification) -> list[Label | None]:
    """Labels of the claims, or of the sentences of a verifier that does not split so far."""
    return [unit.label for unit in judged_units(found)]


def long_form_reward(name: str, **settings: Any) -> Reward:
    """A reward function of the labels that the trainer's verifier gave; nothing is judged for it.

    Args:
        name (`str`):
            One of [`LONG_FORM_REWARDS`].
        **settings:
            Of its formula, such as `k=32` or `empty=0.0`.

    Returns:
        `Callable`: a TRL reward function called `name`, for trainers that pass `verifications`. `None` for completions about
        which nothing is known.

    Raises:
        `ValueError`: an unknown name.
        `TypeError`: a setting that the formula does not have.
    """
    if name not in LONG_FORM_REWARDS:
        raise ValueError(f"unknown reward {name!r}; choose one of {list(LONG_FORM_REWARDS)}")
    formula = partial(LONG_FORM_REWARDS[name], **settings)
    formula(())  # refuses unknown settings now

    def reward(completions: Any, verifications: Sequence[Verification], **columns: Any) -> list[float | None]:
        return [formula(labels_of(found)) if found.judged or not found.error else None for found in verifications]

    reward.__name__ = name
    return reward


def truthfulness_reward(completions: Any, verifications: Sequence[Verification], **columns: Any) -> list[float | None]:
    """Mean P(true) over the claims, by a verifier that gives scores (KLCF); 0 without a claim, `None` if none has a score."""
    scores = [[unit.score for unit in judged_units(found)] for found in verifications]
    return [
        None if found.error else mean(own) if own else 0.0 for found, own in zip(verifications, scores, strict=True)
    ]


class _Lines:
    """Extractor whose claims are the lines of a text."""

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        found = []
        for item in inputs:
            spans, start = [], 0
            for line in item.completion.split("\n"):
                spans.append(LabeledSpan(start, start + len(line)))
                start += len(line) + 1
            found.append(spans)
        return found


class ChecklistReward(JudgedReward):
    """Recall and precision against the checklist of the row (KLCF, arXiv 2509.23765; the formulas are our reconstruction).

    The judge reads each item of the checklist as the claim and the answer as its evidence: supported is consistent,
    contradicted is contradictory, unverifiable is missing. The items of a batch are judged once, for both rewards:

    ```python
    checklist = ChecklistReward(NLIJudge(...))
    trainer = FactGRPOTrainer(..., reward_funcs=[checklist.recall, checklist.precision])
    ```

    Args:
        judge ([`~hf_factuality.verifiers.base.Judge`]):
            Of any verifier.
        column (`str`, *optional*, defaults to `"checklist"`):
            Dataset column with a list of statements. Rows without any are unknown.
        **guard:
            `timeout`, `batch_size` and `max_unjudged_batches` of [`~hf_factuality.rewards.RLFHReward`].
    """

    def __init__(self, judge: Judge, column: str = "checklist", **guard: Any):
        super().__init__(VerifierPipeline(_Lines(), judge), evidence_column=column, **guard)
        self._asked: Any = None
        self._scores: list[ChecklistScores] = []

        def recall(completions, completion_texts=None, **columns):
            return [scores.recall for scores in self._of(completion_texts, columns)]

        def precision(completions, completion_texts=None, **columns):
            scores = self._of(completion_texts, columns)
            return [0.0 if s.precision is None and s.recall is not None else s.precision for s in scores]

        recall.__name__, precision.__name__ = "checklist_recall", "checklist_precision"
        self.recall: Reward = recall
        self.precision: Reward = precision

    def _row(self, text: str, columns: Mapping[str, Any]) -> Row:
        items = super()._row(text, columns).input.evidence
        return Row(VerifierInput("\n".join(" ".join(item.split()) for item in items), None, (text,)))

    def _of(self, texts: Sequence[str] | None, columns: Mapping[str, Any]) -> list[ChecklistScores]:
        asked = (texts, columns.get(self.evidence_column))
        if asked != self._asked:
            judged = self.judge(texts, columns)
            self._asked, self._scores = asked, [checklist_scores(labels_of(row.found)) for row in judged]
        return self._scores

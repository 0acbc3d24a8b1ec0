"""A row of a dataset and what was written to it, as a verifier reads them, and what is beneath rewards that ask one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.generation.local import bind_policy
from hf_factuality.rewards.answers import THINK_OPENED, complete_text
from hf_factuality.verifiers.base import Verifier, VerifierInput, evidence_passages
from hf_factuality.verifiers.batches import BatchJudge
from hf_factuality.verifiers.guard import MAX_UNJUDGED_BATCHES, GuardedVerifier, UnjudgedBatches
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest


def row_evidence(value: Any, column: str) -> tuple[str, ...]:
    """Passages of a row; `DataError` names the `column` that holds something else."""
    passages = evidence_passages(value)
    if passages is None:
        raise DataError(
            f"the evidence column {column!r} must hold text or a list of texts in every row, got {value!r:.150}; join "
            "nested passages into texts first"
        )
    return passages


RETRIEVED = "retrieved"
"""Column in which reward functions get what tools returned in the rollout: a list of passages, of which number n is the n-th; blank
where one only repeats its call."""


def verifier_input(text: str, row: Mapping[str, Any], evidence_column: str, question_column: str) -> VerifierInput:
    """A completion with its question, its evidence (text or texts, else `DataError`), behind what tools returned, and the other
    columns of its row."""
    question = row.get(question_column)
    evidence = (*filter(None, row.get(RETRIEVED, ())), *row_evidence(row.get(evidence_column), evidence_column))
    return VerifierInput(text, question if isinstance(question, str) else None, evidence, row)


REPEATS = ("once", "every")
"""How often a reward counts a statement that a completion repeats in the same words."""


def check_repeats(repeats: str) -> None:
    """`ValueError`, unless it is one of [`REPEATS`]."""
    if repeats not in REPEATS:
        raise ValueError(f"repeats={repeats!r} must be one of {list(REPEATS)}")


class JudgedReward:
    """Beneath rewards that ask a verifier of their own: each completion is judged once, and one that is down ends the run.

    A subclass calls [`judge`] and makes rewards of what was found; `_row` says what of a completion is judged. The arguments
    are those of [`~hf_factuality.rewards.RLFHReward`], and the `raises` of [`GuardedVerifier`].
    """

    scope = "completion"

    def __init__(
        self,
        verifier: Verifier | str,
        *,
        evidence_column: str = "evidence",
        question_column: str = "question",
        timeout: float | None = 300.0,
        batch_size: int = 64,
        max_unjudged_batches: int = MAX_UNJUDGED_BATCHES,
        raises: tuple[type[Exception], ...] = (),
    ):
        self.verifier = load_verifier(verifier)
        self.evidence_column = evidence_column
        self.question_column = question_column
        guard = GuardedVerifier(self.verifier, timeout, batch_size, raises)
        self.judging = BatchJudge(guard, UnjudgedBatches(max_unjudged_batches))
        self.policy: Any = None  # of the trainer, which says whether it trains

    def bind_policy(self, model: Any, tokenizer: Any = None) -> bool:
        """Let a judge that is the policy itself use this model; the trainer calls it. Returns whether there was such a judge.
        A model of this process cannot be left behind while it hangs, so the time limit falls away."""
        self.policy = model
        if not bind_policy(self.verifier, model, tokenizer):
            return False
        self.judging.guard.timeout = None
        return True

    def judge(self, texts: Sequence[str] | None, columns: Mapping[str, Any]) -> list[JudgedRow]:
        """What the verifier found in a batch, in order; `columns` are lists. `JudgingError` if it is down."""
        if texts is None:
            raise DataError(
                f"{type(self).__name__} needs completion_texts, which FactGRPOTrainer and TokenRewardPPOTrainer pass"
            )
        lists = {name: values for name, values in columns.items() if isinstance(values, Sequence)}
        rows = [self._row(it, {name: values[n] for name, values in lists.items()}) for n, it in enumerate(texts)]
        return self.judging.judge(rows, counts=getattr(self.policy, "training", True))

    def ahead(self, texts: Sequence[str], rows: Sequence[Mapping[str, Any]], places: Sequence[int]) -> None:
        """Begin with completions at these places of the batch that [`judge`] will be given; the trainer calls it."""
        self.judging.ahead([self._row(text, row) for text, row in zip(texts, rows, strict=True)], places)

    def _row(self, text: str, columns: Mapping[str, Any]) -> VerificationRequest:
        item = verifier_input(text, columns, self.evidence_column, self.question_column)
        prompt = columns.get("prompts", columns.get("prompt"))
        return VerificationRequest(item, self.scope, complete_text(text, prompt, columns.get(THINK_OPENED)) != text)

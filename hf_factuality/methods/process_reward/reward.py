"""The scores of a solution's steps as a reward: one number, or paid where each step ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hf_factuality.methods.process_reward.formula import aggregate_steps
from hf_factuality.reading.scopes import scope_text
from hf_factuality.rewards._rows import JudgedReward
from hf_factuality.rewards.answers import complete_texts
from hf_factuality.verifiers.base import Verifier
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest


class ProcessReward(JudgedReward):
    """P(correct) of the steps, by [`~hf_factuality.verifiers.ProcessJudge`] or another verifier that gives scores.

    A TRL reward function, also of stock trainers; with `at="steps"` or `"gains"` a token reward function of
    [`~hf_factuality.TokenRewardPPOTrainer`]. Logged as "process". A completion of which a step is unknown is unknown
    (`None`); one without a step earns 0.

    Args:
        verifier ([`~hf_factuality.Verifier`] or `str`):
            Such as `"process:MODEL"`.
        how (`str`, *optional*, defaults to `"min"`):
            Of the reward at the end: a name of [`~hf_factuality.methods.process_reward.formula.AGGREGATES`].
        at (`str`, *optional*, defaults to `"end"`):
            `"end"`: one number. `"steps"`: each step's score at its end, so that more steps earn more. `"gains"` (ours): what a
            step adds to the score of the one before, which adds up to the score of the last.
        scope (`str`, *optional*, defaults to `"completion"`):
            What is read: all, or `"answer"` or `"think"`.
        **judging:
            `question_column` (without it, the last message of the user), `timeout`, `batch_size` and `max_unjudged_batches` of
            [`~hf_factuality.rewards.RLFHReward`].

    Raises:
        `ValueError`: an unknown verifier, aggregate or place. `SpanError`: an unknown scope.
        `JudgingError`: when called, if the verifier fails on that many batches.
    """

    __name__ = card_method = "process"

    def __init__(self, verifier: Verifier | str, how="min", at="end", scope="completion", **judging: Any):
        aggregate_steps((), how)
        if at not in ("end", "steps", "gains"):
            raise ValueError(f"at={at!r} must be 'end', 'steps' or 'gains'")
        scope_text("", scope)  # refuses an unknown one
        super().__init__(verifier, **judging)
        self.how, self.at, self.scope = how, at, scope

    def __call__(self, completions, completion_texts=None, **columns) -> list[Any]:
        """Per completion one number, or `(start, end, value)`, characters of its text; `None` where a step is unknown."""
        return list(map(self._paid, self.judge(completion_texts or complete_texts(completions, {}), columns)))

    def _row(self, text: str, columns: Mapping[str, Any]) -> VerificationRequest:
        row, prompt = super()._row(text, columns), columns.get("prompts", columns.get("prompt"))
        if row.input.question is None and prompt:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            question = next((m["content"] for m in messages[::-1] if m["role"] == "user"), None)
            row = replace(row, input=replace(row.input, question=question))
        return row

    def _paid(self, row: JudgedRow) -> Any:
        spans = row.verification.spans
        scores = [span.score for span in spans]
        if row.found.error or None in scores:
            return None
        if self.at == "end":
            return aggregate_steps(scores, self.how) if scores else 0.0
        before = [0.0, *scores] if self.at == "gains" else [0.0] * len(scores)
        return [(span.start, span.end, score - last) for span, score, last in zip(spans, scores, before, strict=False)]

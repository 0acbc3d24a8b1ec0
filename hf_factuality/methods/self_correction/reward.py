"""The reward of answers that are checked and revised: whether the last turn is right."""

from __future__ import annotations

from hf_factuality.methods.self_correction.formula import correction_figures
from hf_factuality.reading.marks import final_answer, self_verdict
from hf_factuality.reading.rules import abstains
from hf_factuality.rewards.answers import _gold_column, _golds, complete_texts
from hf_factuality.verifiers.judges.gold import SCORERS, Scorer


class CorrectionReward:
    """Pays the score of the last turn (arXiv 2502.19613: its last boxed answer), and logs what revising changes.

    Args:
        scorer (`str` or [`Scorer`], *optional*, defaults to `"MATH"`):
            A name of `SCORERS`, or a function of the answer and the gold answers. What it gets is the final answer of the turn
            ([`~hf_factuality.reading.final_answer`]).

    Raises:
        `ValueError`: the scorer is unknown.
    """

    __name__ = card_method = "correction"

    def __init__(self, scorer: str | Scorer = "MATH"):
        if isinstance(scorer, str) and scorer not in SCORERS:
            raise ValueError(f"unknown scorer {scorer!r}; choose one of {sorted(SCORERS)}")
        self.scorer = SCORERS[scorer] if isinstance(scorer, str) else scorer

    def __call__(
        self, prompts, completions, completion_ids=None, answer=None, turns=None, log_metric=None, **columns
    ) -> list[float | None]:
        """Rewards of a batch, in [0, 1]; `None` where there is no gold answer that can be read.

        `turns` (`list[list[str]]`) is what [`~hf_factuality.trainers.CorrectionRollout`] gives; without it a completion is one
        turn. `log_metric` gets [`~hf_factuality.methods.self_correction.formula.correction_figures`] of the batch, a score of .5 or more
        being right. `DataError`: no column `answer`.
        """
        turns = turns or [[text] for text in complete_texts(completions, {"prompts": prompts, **columns})]
        golds = _gold_column(answer)
        first, final = (
            [self._score(texts[place], gold) for texts, gold in zip(turns, golds, strict=True)] for place in (0, -1)
        )
        if log_metric is not None:
            right = [[None if score is None else score >= 0.5 for score in scores] for scores in (first, final)]
            figures = correction_figures(*right, [self_verdict(texts[0]) for texts in turns])
            for name, value in figures.items():
                if value is not None:
                    log_metric(f"correction/{name}", value)
        return final

    def _score(self, text: str, answer) -> float | None:
        golds = _golds(answer)
        final = final_answer(text)
        return None if not golds else self.scorer(final, golds) if final and not abstains(final) else 0.0

"""Rewards of answers that may decline: correct, abstained and wrong each pay a number."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.generation.base import ChatAnswer, ChatModel, ChatRequest
from hf_factuality.generation.transport import ServerError
from hf_factuality.methods.abstention.formula import (
    OutcomeRewards,
    abstention_threshold,
    preset_rewards,
    threshold_rewards,
)
from hf_factuality.methods.long_form.reward import Reward, answer_outcome
from hf_factuality.reading.completion import read
from hf_factuality.reading.rules import abstention_rule
from hf_factuality.rewards.answers import complete_texts, exact_reward
from hf_factuality.spans import Verification
from hf_factuality.verifiers.guard import UnjudgedBatches
from hf_factuality.verifiers.judges.llm import raise_limit, read_choice
from hf_factuality.verifiers.prompts import load_prompt


logger = logging.getLogger(__name__)

OUTCOMES = ("correct", "refused", "wrong")
_CARD_METHODS = {(1, 0, -1): "truthrl", (2, 1, -1): "knowrl_outcome", (1, -1, -1): "binary"}
GRADES = {"CORRECT": "correct", "INCORRECT": "wrong", "NOT_ATTEMPTED": "refused", "NOT ATTEMPTED": "refused"}


class GradedOutcome:
    """What became of an answer, by a served judge that is shown the gold answers: correct, wrong, or not attempted.

    Whatever is no verdict is unknown; a judge that gives none in the first batch, or in three in a row, ends the run with a
    `JudgingError`. A reward function's arguments; the answer is what stands outside of `<think>` blocks.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Of the judge.
        question_column (`str`, *optional*, defaults to `"question"`):
            Dataset column with the question.
        max_tokens (`int`, *optional*, defaults to `16`):
            Longest verdict. A model that thinks first needs thousands.

    Raises:
        `ValueError`: `max_tokens` is less than 1.
    """

    def __init__(self, client: ChatModel, question_column: str = "question", max_tokens: int = 16):
        if max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {max_tokens!r}")
        fields = ("question", "answer", "correct")
        self.max_tokens = max_tokens
        self.client = self.grader = client
        self.question_column, self._unjudged = question_column, UnjudgedBatches()
        self._prompt = load_prompt("grade_answer", fields, fields)

    def __call__(self, completions: Sequence[Any], answer: Sequence[Any] = None, **columns: Any) -> list[str | None]:
        if answer is None or self.question_column not in columns:
            given = sorted([*columns, *["answer"] * (answer is not None)])
            raise DataError(f"grading needs the columns 'answer' and {self.question_column!r}; there are {given}")
        texts = [read(text).part()[0] for text in complete_texts(completions, columns)]
        rows = list(zip(columns[self.question_column], answer, texts, strict=True))
        asked = [row for row in rows if row[2].strip()]
        try:
            limit = {"max_new_tokens": self.max_tokens}
            answers = self.client.chat([ChatRequest((("user", self._text(*row)),), **limit) for row in asked])
        except ServerError as error:
            answers = [it or ChatAnswer(error=str(error)) for it in error.answers]
        said = [GRADES.get(read_choice(it, tuple(GRADES), nucleus=0.0)[0]) for it in answers]
        lost = [it for one, it in zip(said, answers, strict=True) if not one]
        if cut := sum(it.was_cut for it in lost):
            logger.warning("%s", raise_limit(cut, self))
        ended = f"cut at max_tokens={self.max_tokens}"
        why = [
            None if one else it.error or (ended if it.was_cut else "no verdict")
            for one, it in zip(said, answers, strict=True)
        ]
        self._unjudged.add(self.client, [Verification(error=error) for error in why])
        verdicts = iter(said)
        return [next(verdicts) if text.strip() else "wrong" for _, _, text in rows]

    def _text(self, question: Any, gold: Any, text: str) -> str:
        golds = [gold] if isinstance(gold, str) else list(gold or ())
        correct = "\n".join(f"- {one}" for one in golds) or None
        return self._prompt.fill({"question": str(question), "answer": text, "correct": correct})


class AbstentionReward:
    """A TRL reward function: what an answer earns that is correct, that declines, or that is wrong. Logged by its name.

    Declining pays below the probability (a - w) / (c - w) of being right, the attribute `threshold`. A confidence that the
    answer states is no part of it.

    Args:
        preset (`str`, *optional*):
            `"truthrl"` (1, 0, -1: .5; arXiv 2509.25760), `"knowrl"` (2, 1, -1: .667; the outcome of arXiv 2506.19807), `"binary"`
            (1, -1, -1: 0), or `"target-t"`, which is `threshold=t`.
        correct, abstained, wrong (`float`, *optional*):
            Instead of a preset; all three.
        threshold (`float`, *optional*):
            Instead of these: 1 - t, 0 and -t ([`~hf_factuality.methods.abstention.formula.threshold_rewards`]). 0 never pays
            declining, 1 always.
        outcome (`Callable`, *optional*):
            Who says what became of an answer, as [`answer_outcome`] does: a [`GradedOutcome`]. `None`: `scorer` and `abstains`.
        scorer (`Callable`, *optional*, defaults to [`~hf_factuality.rewards.exact_reward`]):
            An answer reward; .5 or more is correct.
        abstains (`str` or `Callable[[str], bool]`, *optional*, defaults to `"phrases"`):
            Whether an answer that is not correct declines: a name of [`~hf_factuality.reading.ABSTENTION`], or a
            function of its text. No answer at all is wrong.
        tags (`bool`, *optional*, defaults to `True`):
            Whether an answer must stand in `<answer>` tags. `False` is for models that answer in plain words. An `outcome` reads
            its own way.

    Raises:
        `ValueError`: an unknown preset, rewards that are none or several ways given, or out of order.
        `DataError`: an unknown name of `abstains`.
    """

    def __init__(
        self,
        preset: str | None = None,
        *,
        correct: float | None = None,
        abstained: float | None = None,
        wrong: float | None = None,
        threshold: float | None = None,
        outcome: Callable[..., list[str | None]] | None = None,
        scorer: Reward = exact_reward,
        abstains: str | Callable[[str], bool] = "phrases",
        tags: bool = True,
    ):
        numbers = [correct, abstained, wrong]
        ways = (preset is not None, threshold is not None, any(number is not None for number in numbers))
        if sum(ways) != 1 or (ways[2] and None in numbers):
            raise ValueError(
                f"give a preset, a threshold, or all of correct, abstained and wrong; got {preset=}, {threshold=}, {numbers=}"
            )
        found = (
            OutcomeRewards(*numbers)
            if ways[2]
            else threshold_rewards(threshold)
            if ways[1]
            else preset_rewards(preset)
        )
        self.rewards, self.threshold = found, abstention_threshold(*found)
        self.outcome = outcome or answer_outcome(scorer, abstention_rule(abstains), tags=tags)
        self.__name__ = preset or "abstention"

    @property
    def card_method(self) -> str:
        c, a, w = self.rewards
        target = "confidence_target" if a == 0 and abs(c - w - 1) < 1e-9 else "abstention"
        return _CARD_METHODS.get((c, a, w), target)

    @property
    def card_details(self) -> list[str]:
        return ["correct {:g}, declined {:g}, wrong {:g}".format(*self.rewards)]

    def __call__(self, completions, completion_texts=None, log_metric=None, **columns) -> list[float | None]:
        """Rewards of a batch; `None` where the outcome is unknown. Logs the share of each outcome."""
        outcomes = self.outcome(completions=completion_texts or completions, **columns)
        known = [OUTCOMES.index(one) for one in outcomes if one is not None]
        for number, name in enumerate(OUTCOMES):
            if log_metric is not None and known:
                log_metric(f"{self.__name__}/{name}", known.count(number) / len(known))
        return list(map(self.rewards.of, outcomes))


abstention_reward = AbstentionReward


def named_reward(name: str, verifier: Any = None) -> list[Reward]:
    """What a preset stands for in `reward_funcs`."""
    return [AbstentionReward(name)]

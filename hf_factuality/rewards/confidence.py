"""Rewards of the confidence that an answer states: RLCR, DCPO and LoVeC. See docs/confidence.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from hf_factuality.functional.confidence import (
    confidence_spans,
    dcpo_calibration,
    lovec,
    rlcr,
    sentence_confidences,
    stated_confidence,
    without_confidence,
)
from hf_factuality.functional.scoring import mean
from hf_factuality.rewards.answers import complete_texts, exact_reward
from hf_factuality.rewards.long_form import Reward, answer_outcome
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import VerifierInput


Outcome = Callable[..., "list[str | None]"]
"""What became of each answer, as [`~hf_factuality.rewards.answer_outcome`] says it."""


class _Confidence:
    """Beneath rewards of an answer and its number: what became of the answer, and the number."""

    def __init__(self, scorer: Reward, outcome: Outcome | None):
        self.outcome = outcome or answer_outcome(scorer)

    def _read(self, completions, columns, log_metric=None) -> list[tuple[bool | None, float | None]]:
        """Whether each answer is correct, read without its number, and the number."""
        texts = complete_texts(completions, columns)
        outcomes = self.outcome(completions=list(map(without_confidence, texts)), **columns)
        rows = [
            (None if one is None else one == "correct", stated_confidence(text))
            for one, text in zip(outcomes, texts, strict=True)
        ]
        if log_metric is not None and rows:
            stated = [q for _, q in rows if q is not None]
            errors = [(q - correct) ** 2 for correct, q in rows if None not in (correct, q)]
            figures = {"stated": len(stated) / len(rows), "mean": mean(stated), "brier": mean(errors)}
            figures["correct"] = mean([float(correct) for correct, _ in rows if correct is not None])
            for name, value in figures.items():
                if value is not None:
                    log_metric(f"confidence/{name}", value)
        return rows


class RLCRReward(_Confidence):
    """RLCR's reward (arXiv 2507.16806): 1 for a correct answer, less the squared error of the confidence that it states.

    A TRL reward function. The number stands in `<confidence>` tags outside of the reasoning, see
    [`~hf_factuality.functional.confidence.stated_confidence`]; an answer without one has the largest error, 1.

    Args:
        scorer (`Callable`, *optional*, defaults to [`~hf_factuality.rewards.exact_reward`]):
            An answer reward; .5 or more is correct. It is shown the completion without the number.
        outcome (`Callable`, *optional*):
            Who says what became of an answer, instead of a scorer: a [`~hf_factuality.rewards.GradedOutcome`].
        released (`bool`, *optional*, defaults to `False`):
            The weights of the published code: .5 each for a number that can be read, for being correct, and for 1 less the
            squared error.
    """

    __name__ = "rlcr"

    def __init__(self, scorer: Reward = exact_reward, outcome: Outcome | None = None, released: bool = False):
        super().__init__(scorer, outcome)
        self.released = released

    def __call__(self, completions, log_metric=None, **columns) -> list[float | None]:
        """Rewards in [-1, 1], or as released in [0, 1.5]; `None` where it is not known whether the answer is correct."""
        rows = self._read(completions, columns, log_metric)
        return [None if correct is None else self._paid(correct, q) for correct, q in rows]

    def _paid(self, correct: bool, q: float | None) -> float:
        if not self.released:
            return rlcr(correct, q)
        return rlcr(correct, q, (0.5, 0.5)) + 0.5 + 0.5 * (q is not None)


class DCPORewards(_Confidence):
    """DCPO's two rewards (arXiv 2603.09117), for [`~hf_factuality.FactGRPOTrainer`] as `reward_funcs=DCPORewards().both`.

    `correct` is 1 or 0, and its advantage is that of all tokens but those of the confidence. These get the advantage of
    `calibration`: minus the distance of the number from `mix` times the share of the group that is correct, plus 1 - `mix`
    times whether the answer is. An answer without a number earns -1, the least, and as it has no tokens of confidence, a
    trainer cannot pay it: keep a reward for the format beside.

    Args:
        scorer, outcome (`Callable`, *optional*):
            As of [`RLCRReward`].
        mix (`float`, *optional*, defaults to `0.5`):
            Lambda, from 0 (the answer's own correctness) to 1 (that of the group). The group are all completions of one
            prompt in the batch, on any process.

    Raises:
        `ValueError`: `mix` out of range.
    """

    def __init__(self, scorer: Reward = exact_reward, outcome: Outcome | None = None, mix: float = 0.5):
        super().__init__(scorer, outcome)
        if not 0 <= mix <= 1:
            raise ValueError(f"mix={mix!r} must be from 0 (the answer's own correctness) to 1 (its group's)")
        self.mix = mix
        self._asked, self._rows = None, []
        self.correct, self.calibration = self._reward("correct"), self._reward("calibration")
        self.calibration.spans = confidence_spans
        self.both = [self.correct, self.calibration]

    def _reward(self, name: str) -> Reward:
        def reward(prompts, completions, log_metric=None, **columns):
            # By identity: what one process alone has asked before, the others would wait for.
            if completions is not self._asked:
                rows = self._read(completions, {"prompts": prompts, **columns}, log_metric)
                self._asked, self._rows = completions, list(zip(rows, _group_means(prompts, rows), strict=True))
            if name == "correct":
                return [None if correct is None else float(correct) for (correct, _), _ in self._rows]
            return [
                None if correct is None else dcpo_calibration(q, correct, group, self.mix)
                for (correct, q), group in self._rows
            ]

        reward.__name__ = name
        return reward


def _group_means(prompts: Sequence[Any], rows: Sequence[tuple[bool | None, Any]]) -> list[float]:
    """The share of correct answers to each prompt, over all processes."""
    from accelerate.utils import gather_object

    keys = [json.dumps(prompt, sort_keys=True, default=str) for prompt in prompts]
    found: dict[str, list[float]] = {}
    for key, correct in gather_object([(key, row[0]) for key, row in zip(keys, rows, strict=True)]):
        if correct is not None:
            found.setdefault(key, []).append(float(correct))
    return [mean(found.get(key, [])) or 0.0 for key in keys]


class StatedSentences:
    """Extractor of a [`~hf_factuality.verifiers.VerifierPipeline`] for LoVeC: what stands before each number is a claim.

    The judge is shown the sentences without the numbers, which are no part of them.
    """

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        return [
            [LabeledSpan(start, end) for start, end, _ in sentence_confidences(item.completion)] for item in inputs
        ]


class LoVeCReward:
    """LoVeC's reward (arXiv 2505.23912): sentences with a number from 0 to 10 after each, by the labels of a verifier.

    A TRL reward function of a trainer whose verifier has [`StatedSentences`] as extractor, with `verify_scope="answer"`.

    Args:
        informative (`Callable`, *optional*):
            A reward function whose value is added, such as one for length; `None` adds nothing.
        weight (`float`, *optional*, defaults to `1.0`), power (`float`, *optional*, defaults to `1.5`):
            See [`~hf_factuality.functional.confidence.lovec`].
    """

    __name__ = "lovec"

    def __init__(self, informative: Reward | None = None, weight: float = 1.0, power: float = 1.5):
        self.informative, self.weight, self.power = informative, weight, power

    def __call__(self, completions, verifications, completion_texts, **columns) -> list[float | None]:
        """Rewards; `None` where nothing could be judged."""
        given = {"verifications": verifications, "completion_texts": completion_texts, **columns}
        more = self.informative(completions=completions, **given) if self.informative else [0.0] * len(completions)
        return [
            None if found.error or extra is None else self._paid(found.spans, text, extra)
            for found, text, extra in zip(verifications, completion_texts, more, strict=True)
        ]

    def _paid(self, spans: Sequence[LabeledSpan], text: str, extra: float) -> float | None:
        numbers = {start: number for start, _, number in sentence_confidences(text)}
        labels = [(span.label, numbers.get(span.start)) for span in spans]
        return lovec([label for label, _ in labels], [q for _, q in labels], extra, self.weight, self.power)

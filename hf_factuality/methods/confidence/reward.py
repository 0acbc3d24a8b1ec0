"""Rewards of the confidence that an answer states: RLCR, DCPO and LoVeC. See docs/confidence.md."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_factuality.functional._numbers import require_number
from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.scoring import SUPPORTED_LABELS, mean
from hf_factuality.methods.confidence.formula import dcpo_calibration, lovec, rlcr
from hf_factuality.methods.long_form.reward import Reward, answer_outcome
from hf_factuality.reading.marks import confidence_spans, sentence_confidences, stated_confidence
from hf_factuality.rewards.answers import complete_texts, exact_reward
from hf_factuality.spans import Label, LabeledSpan


Outcome = Callable[..., "list[str | None]"]
"""What became of each answer, as [`~hf_factuality.rewards.answer_outcome`] says it."""


class _Confidence:
    """Beneath rewards of an answer and its number: what became of the answer, and the number."""

    def __init__(self, scorer: Reward, outcome: Outcome | None):
        self.outcome = outcome or answer_outcome(scorer)

    def _read(self, completions, columns, log_metric=None) -> list[tuple[bool | None, float | None]]:
        """Whether each answer is correct, read without its number, and the number."""
        completions = columns.pop("completion_texts", None) or completions
        texts = complete_texts(completions, columns)
        outcomes = self.outcome(completions=completions, **columns)
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
    [`~hf_factuality.reading.stated_confidence`]; an answer without one has the largest error, 1.

    Args:
        scorer (`Callable`, *optional*, defaults to [`~hf_factuality.rewards.exact_reward`]):
            An answer reward; .5 or more is correct. It is shown the completion without the number.
        outcome (`Callable`, *optional*):
            Who says what became of an answer, instead of a scorer: a [`~hf_factuality.rewards.GradedOutcome`].
        released (`bool`, *optional*, defaults to `False`):
            The weights of the published code: .5 each for a number that can be read, for being correct, and for 1 less the
            squared error.
    """

    __name__ = card_method = "rlcr"

    def __init__(self, scorer: Reward = exact_reward, outcome: Outcome | None = None, released: bool = False):
        super().__init__(scorer, outcome)
        self.released = released

    def __call__(self, completions, completion_texts=None, log_metric=None, **columns) -> list[float | None]:
        """Rewards in [-1, 1], or as released in [0, 1.5]; `None` where it is not known whether the answer is correct."""
        rows = self._read(completions, {"completion_texts": completion_texts, **columns}, log_metric)
        return [None if correct is None else self._paid(correct, q) for correct, q in rows]

    def _paid(self, correct: bool, q: float | None) -> float:
        if not self.released:
            return rlcr(correct, q)
        return rlcr(correct, q, (0.5, 0.5)) + 0.5 + 0.5 * (q is not None)


class DCPORewards(_Confidence):
    """DCPO's two rewards (arXiv 2603.09117), for [`~hf_factuality.FactGRPOTrainer`] as `reward_funcs=DCPORewards().both`.

    `correct` is 1 or 0, and its advantage is that of all tokens but those of the confidence. These get the advantage of
    `calibration`: minus the distance of the number from `mix` times the share of the group that is correct, plus 1 - `mix`
    times whether the answer is. An answer without a number earns -1, the least, and all of its tokens get that
    advantage, so that leaving it out never pays.

    Args:
        scorer, outcome (`Callable`, *optional*):
            As of [`RLCRReward`].
        mix (`float`, *optional*, defaults to `0.5`):
            Lambda, from 0 (the answer's own correctness) to 1 (that of the group). The group are all completions of one
            prompt in the batch, on any process.
        power (`float`, *optional*, defaults to `1.0`):
            Of the distance. The published code has 2, and a weight of .5.

    Raises:
        `ValueError`: `mix` or `power` out of range.
    """

    def __init__(
        self, scorer: Reward = exact_reward, outcome: Outcome | None = None, mix: float = 0.5, power: float = 1.0
    ):
        super().__init__(scorer, outcome)
        require_number("mix", mix, least=0, most=1)  # of the answer's own correctness to that of its group
        require_number("power", power, above=0)
        self.mix, self.power = mix, power
        self._asked, self._rows = None, []
        self.correct, self.calibration = self._reward("correct"), self._reward("calibration")
        self.calibration.spans = _confidence_or_all
        self.both = [self.correct, self.calibration]

    def _reward(self, name: str) -> Reward:
        def reward(prompts, completions, completion_texts=None, log_metric=None, **columns):
            # By identity: what one process alone has asked before, the others would wait for.
            if completions is not self._asked:
                given = {"prompts": prompts, "completion_texts": completion_texts, **columns}
                rows = self._read(completions, given, log_metric)
                self._asked, self._rows = completions, list(zip(rows, _group_means(prompts, rows), strict=True))
            if name == "correct":
                return [None if correct is None else float(correct) for (correct, _), _ in self._rows]
            return [
                None if correct is None else dcpo_calibration(q, correct, group, self.mix, self.power)
                for (correct, q), group in self._rows
            ]

        reward.__name__, reward.owner = name, self
        if type(self) is DCPORewards:
            reward.card_method = f"dcpo_{name}"
        return reward


def _confidence_or_all(text: str, opened: bool = False) -> list[tuple[int, int]]:
    """The characters that state the confidence; all of a text that states none."""
    return [(0, len(text))] if stated_confidence(text, opened) is None else confidence_spans(text, opened)


def _group_means(prompts: Sequence[Any], rows: Sequence[tuple[bool | None, Any]]) -> list[float]:
    """The share of correct answers to each prompt, over all processes."""
    from accelerate.utils import gather_object

    keys = [json.dumps(prompt, sort_keys=True, default=str) for prompt in prompts]
    found: dict[str, list[float]] = {}
    for key, correct in gather_object([(key, row[0]) for key, row in zip(keys, rows, strict=True)]):
        if correct is not None:
            found.setdefault(key, []).append(float(correct))
    return [mean(found.get(key, [])) or 0.0 for key in keys]


class LoVeCReward:
    """LoVeC's reward (arXiv 2505.23912): sentences with a number from 0 to 10 after each, by the labels of a verifier.

    A TRL reward function of [`~hf_factuality.FactGRPOTrainer`] with any verifier, which does not see the numbers, and
    `verify_scope="answer"`. What stands before a number is supported if all that was found in it is.

    Args:
        informative, format (`Callable`, *optional*):
            Reward functions whose values are added before the power, the paper's two other terms; `None` adds nothing.
        weight (`float`, *optional*, defaults to `1.0`), power (`float`, *optional*, defaults to `1.5`):
            See [`~hf_factuality.methods.confidence.formula.lovec`].

    Raises:
        `ValueError`: a negative weight, or a power that is not positive.
    """

    __name__ = card_method = "lovec"
    reads_verifications, verify_scope = True, "answer"

    def __init__(
        self, informative: Reward | None = None, format: Reward | None = None, weight: float = 1.0, power: float = 1.5
    ):
        require_number("weight", weight, least=0)
        require_number("power", power, above=0)
        self.terms = [term for term in (informative, format) if term is not None]
        self.weight, self.power = weight, power

    def __call__(self, completions, verifications, completion_texts, **columns) -> list[float | None]:
        """Rewards; `None` where nothing could be judged."""
        given = {"verifications": verifications, "completion_texts": completion_texts, **columns}
        more = [term(completions=completions, **given) for term in self.terms]
        extras = zip(*more, strict=True) if more else [()] * len(completions)
        return [
            None if found.error or None in extra else self._paid(judged_units(found), text, sum(extra))
            for found, text, extra in zip(verifications, completion_texts, extras, strict=True)
        ]

    def _paid(self, units: Sequence[LabeledSpan], text: str, extra: float) -> float | None:
        stated = sentence_confidences(text)
        starts, found = [start for start, _, _ in stated], [[] for _ in stated]
        for unit in units:
            if (place := bisect_right(starts, max(unit.end - 1, unit.start)) - 1) >= 0:
                found[place].append(unit.label)
        return lovec(list(map(_lowest, found)), [q for *_, q in stated], extra, self.weight, self.power)


def _lowest(labels: Sequence[Label | None]) -> Label | None:
    """Of what one number is stated for: one that is not supported, else one that is unknown, else supported."""
    labels = [label for label in labels if label is not Label.NO_FACT]
    false = [label for label in labels if label is not None and label not in SUPPORTED_LABELS]
    return false[0] if false else None if None in labels else Label.SUPPORTED if labels else Label.NO_FACT


CONFIDENCE_REWARDS: Mapping[str, Callable[[], list[Reward]]] = {
    "rlcr": lambda: [RLCRReward()],
    "rlcr_released": lambda: [RLCRReward(released=True)],
    "dcpo": lambda: DCPORewards().both,
    "lovec": lambda: [LoVeCReward()],
}
"""Names for `reward_funcs`, and what they stand for."""


def named_reward(name: str, verifier: Any = None) -> list[Reward]:
    """What a name of [`CONFIDENCE_REWARDS`] stands for in `reward_funcs`."""
    return CONFIDENCE_REWARDS[name]()

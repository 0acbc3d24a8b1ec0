"""Rewards of long answers: from the labels that a trainer's verifier gave, from a checklist, and paid at the claims."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import fsum, isfinite, nan
from types import MappingProxyType
from typing import Any

from hf_factuality.functional._numbers import require_number
from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.scoring import count_claims, f1_at_k, mean
from hf_factuality.methods.long_form.formula import (
    Formula,
    binary_rar,
    claim_shares,
    knowrl,
    precision_detail_relevance,
)
from hf_factuality.reading.marks import extract_answer, final_answer
from hf_factuality.reading.rules import abstains, declines
from hf_factuality.reading.same import distinct_units
from hf_factuality.reading.scopes import scope_text
from hf_factuality.rewards._rows import JudgedReward, check_repeats
from hf_factuality.rewards.answers import THINK_OPENED, complete_texts, exact_reward
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Verifier
from hf_factuality.verifiers.service import JudgedRow


Reward = Callable[..., "list[float | None]"]


def _precision(labels: Sequence[Label | None], empty: float = 0.0) -> float | None:
    counts = count_claims(labels)
    return counts.precision if counts.stated else empty


LONG_FORM_REWARDS: Mapping[str, Formula] = MappingProxyType(
    {
        "precision": _precision,
        "binary_rar": binary_rar,
        "precision_detail": partial(precision_detail_relevance, relevance_weight=0),
        "precision_detail_relevance": precision_detail_relevance,
        "knowrl": lambda labels, outcome=None, released=False: knowrl(outcome, labels, released),
        "f1_at_k": lambda labels, k=32: f1_at_k(labels, k).f1,
    }
)
"""Rewards by name, and their formulas in `functional/`, of labels."""


def _truthfulness(claims: Sequence[LabeledSpan]) -> float | None:
    scores = [claim.score for claim in claims if claim.label is not Label.NO_FACT]
    return mean(scores) if scores else 0.0


def _corver(sentences: Sequence[LabeledSpan]) -> float | None:
    scores = [0.75 if sentence.label is Label.NO_FACT else sentence.score for sentence in sentences]
    return mean([None if score is None else round(0.4 * score - 0.3, 9) for score in scores]) if scores else 0.0


_OF_SPANS = {"truthfulness": _truthfulness, "corver": _corver}
REWARD_NAMES = (*LONG_FORM_REWARDS, *_OF_SPANS)


def labels_of(found: Verification) -> list[Label | None]:
    """Labels of the claims, or of the sentences of a verifier that does not split so far."""
    return [unit.label for unit in judged_units(found)]


def answer_outcome(
    scorer: Reward = exact_reward,
    refuses: Callable[[str], bool] = declines,
    threshold: float = 0.5,
    tags: bool = True,
) -> Callable[..., list[str | None]]:
    """KnowRL's outcome of the text between `<answer>` tags: `"correct"`, `"refused"` or `"wrong"`.

    Args:
        scorer (`Callable`, *optional*, defaults to [`~hf_factuality.rewards.exact_reward`]):
            An answer reward; `threshold` or more is correct. Where it knows nothing, the outcome is unknown.
        refuses (`Callable[[str], bool]`, *optional*, defaults to [`~hf_factuality.reading.declines`]):
            Whether an answer that is not correct declines. No answer at all is wrong, and so is one within the reasoning.
        threshold (`float`, *optional*, defaults to `0.5`):
            See `scorer`.
        tags (`bool`, *optional*, defaults to `True`):
            Whether an answer must stand in tags. `False`: the final answer of a completion without them is what
            [`~hf_factuality.reading.final_answer`] finds, at most all that stands outside of the reasoning. The scorer is
            shown the answer alone, so it must not ask for a format.

    Raises:
        `ValueError`: `threshold` is no finite number.
    """
    require_number("threshold", threshold)

    def outcome(completions: Sequence[Any], **columns: Any) -> list[str | None]:
        texts = complete_texts(completions, columns)
        if not tags:
            texts = [f"<answer>{final_answer(text) or ''}</answer>" for text in texts]
            completions = [
                text if isinstance(given, str) else [{"role": "assistant", "content": text}]
                for given, text in zip(completions, texts, strict=True)
            ]
            columns.pop(THINK_OPENED, None)  # the reasoning is left out
        scores = scorer(completions=completions, **columns)
        return [one(score, text) for score, text in zip(scores, texts, strict=True)]

    def one(score: float | None, text: str) -> str | None:
        if score is None or score != score:  # NaN, as TRL writes what is unknown
            return None
        answer = extract_answer(text) or ""
        if score >= threshold and not abstains(answer):  # an answer that declines is never right
            return "correct"
        return "refused" if refuses(answer) else "wrong"

    return outcome


class LongFormReward:
    """A TRL reward function of what the trainer's verifier found; nothing is judged for it. Logged by its name.

    Called with `verifications` and `completion_texts`, which [`~hf_factuality.FactGRPOTrainer`] passes. `None` where nothing
    is known. A statement that is repeated in the same words counts once ([`~hf_factuality.reading.distinct_units`]).

    Args:
        reward (`str` or [`~hf_factuality.methods.long_form.formula.Formula`]):
            One of [`REWARD_NAMES`]; `"truthfulness"` is the mean P(true) over the claims by a verifier that gives scores
            (KLCF), 0 without a claim; `"corver"` is of sentences, by a [`~hf_factuality.verifiers.CooccurrenceJudge`]; or a
            formula.
        repeats (`str`, *optional*, defaults to `"once"`):
            `"every"` counts a statement as often as it is stated, as the released codes do. `"corver"`, the paper's mean
            over all sentences, always does.
        **settings:
            Of the formula, such as `k=32` or `empty=0.0`. What differs from completion to completion is a TRL reward
            function: `relevance` of `"precision_detail_relevance"`, `outcome` of `"knowrl"` ([`answer_outcome`] by default).

    Raises:
        `ValueError`: an unknown name, or a setting that is missing or out of range.
        `TypeError`: a setting that the formula does not have.
    """

    def __init__(self, reward: str | Formula, *, repeats: str = "once", **settings: Any):
        check_repeats(repeats)
        if isinstance(reward, str) and reward not in REWARD_NAMES:
            raise ValueError(f"unknown reward {reward!r}; choose one of {list(REWARD_NAMES)}")
        if reward == "precision_detail_relevance" and "relevance" not in settings:
            raise ValueError(f"{reward!r} needs relevance=..., a reward function in [0, 1]; or use 'precision_detail'")
        if reward == "knowrl":
            settings.setdefault("outcome", answer_outcome())
        self.__name__ = reward if isinstance(reward, str) else getattr(reward, "__name__", type(reward).__name__)
        self._reads_spans = reward in _OF_SPANS
        self._merges = repeats == "once" and reward != "corver"
        known = {**LONG_FORM_REWARDS, **_OF_SPANS}
        # What it is on a card, whatever it is logged as; of a formula of the user's `None`.
        self.formula_name = next((name for name, own in known.items() if reward == name or reward is own), None)
        formula = known.get(reward, reward)
        inspect.signature(formula).bind((), **settings)
        for name, value in settings.items() if isinstance(reward, str) else ():
            if not (callable(value) or isinstance(value, bool) or (name == "empty" and value is None)):
                require_number(name, value)
        self._per_batch = {name: value for name, value in settings.items() if callable(value)}
        self._formula = partial(formula, **{n: value for n, value in settings.items() if n not in self._per_batch})
        if not self._per_batch:
            least = self._formula(())  # refuses values out of range now
            if settings and least is not None and not isfinite(least):
                raise ValueError(
                    f"{self.__name__!r} with {settings} gives {least!r} without any claim; set finite numbers"
                )

    reads_verifications = True

    @property
    def card_method(self) -> str | None:
        return self.formula_name

    @property
    def outcome(self) -> Any:
        """Who says what became of an answer, of `"knowrl"`."""
        return self._per_batch.get("outcome")

    def claims(self, found: Verification, text: str | None) -> list[tuple[LabeledSpan, Any]]:
        """What was judged, in the order in which it ends, and what the formula reads of each. Without the `text` of the
        completion only claims that have a statement of their own can be known as repeated."""
        units: Sequence[LabeledSpan] = sorted(judged_units(found), key=lambda unit: unit.end)
        units = distinct_units(units, text) if self._merges else units
        return [(unit, unit if self._reads_spans else unit.label) for unit in units]

    def formulas(self, completions: Sequence[Any], **columns: Any) -> list[Formula]:
        """The formula of each completion, with what its reward functions say of it."""
        said = [function(completions=completions, **columns) for function in self._per_batch.values()]
        rows = zip(*said, strict=True) if said else [()] * len(completions)
        return [partial(self._formula, **dict(zip(self._per_batch, row, strict=True))) for row in rows]

    def __call__(self, completions, verifications, completion_texts=None, **columns) -> list[float | None]:
        given = {"verifications": verifications, "completion_texts": completion_texts, **columns}
        formulas = self.formulas(completions, **given)
        texts = [text if isinstance(text, str) else None for text in completion_texts or completions]
        return [
            None if found.error else formula([value for _, value in self.claims(found, text)])
            for formula, found, text in zip(formulas, verifications, texts, strict=True)
        ]


def named_reward(name: str, verifier: Any = None) -> list[Reward]:
    """What a name of [`REWARD_NAMES`] stands for in `reward_funcs`."""
    return [LongFormReward(name)]


long_form_reward = LongFormReward
truthfulness_reward = LongFormReward("truthfulness")


class ClaimReward(JudgedReward):
    """A long-form reward with a verifier of its own, paid at the claims: what each adds to those before it, where it ends.

    A token reward function of [`~hf_factuality.TokenRewardPPOTrainer`]; with `at="end"` a reward function of any trainer.
    What an answer earns without any claim (1 of Binary RAR, the outcome of KnowRL) is paid at its end, so that it earns what
    the formula says. What is repeated in the same words is paid once, where it stands first. A completion that could not be judged is unknown; a claim that could not be adds nothing. Items of a
    checklist have no place in the answer, so that [`ChecklistReward`] is paid at the end.

    Args:
        reward (`str`, [`LongFormReward`] or [`~hf_factuality.methods.long_form.formula.Formula`]):
            What a completion earns.
        verifier ([`~hf_factuality.Verifier`] or `str`):
            Finds and judges the claims.
        scope (`str`, *optional*, defaults to `"answer"`):
            What is judged: `"answer"`, `"think"` (KnowRL) or `"completion"`.
        repeats (`str`, *optional*, defaults to `"once"`):
            Of a reward that is named or a formula, see [`LongFormReward`], which has its own.
        at (`str`, *optional*, defaults to `"claims"`):
            Where it is paid; `"end"` returns one number per completion.
        **guard:
            `evidence_column`, `question_column`, `timeout`, `batch_size` and `max_unjudged_batches` of
            [`~hf_factuality.rewards.RLFHReward`].

    Raises:
        `ValueError`: an unknown reward, verifier or place. `SpanError`: an unknown scope.
        `JudgingError`: when called, if the verifier fails on that many batches.
    """

    def __init__(
        self,
        reward: str | Formula,
        verifier: Verifier | str,
        scope: str = "answer",
        at: str = "claims",
        repeats: str = "once",
        **guard: Any,
    ):
        super().__init__(verifier, **guard)
        if at not in ("claims", "end"):
            raise ValueError(f"at={at!r} must be 'claims' or 'end'")
        scope_text("", scope)  # refuses an unknown one
        self.reward = reward if isinstance(reward, LongFormReward) else LongFormReward(reward, repeats=repeats)
        self.__name__, self.scope, self.at = self.reward.__name__, scope, at

    @property
    def card_method(self) -> str | None:
        return self.reward.card_method if type(self.reward) is LongFormReward else None

    @property
    def card_details(self) -> list[str]:
        return ["paid at the claims"] if self.at == "claims" else []

    @property
    def outcome(self) -> Any:
        return self.reward.outcome

    def __call__(self, completions, completion_texts=None, **columns) -> list[Any]:
        """Per completion `(start, end, value)`, characters of its text, or one number; `None` where nothing is known."""
        texts = completion_texts or (self.at == "end" and complete_texts(completions, {}))
        judged = self.judge(texts or None, columns)
        formulas = self.reward.formulas(completions, completion_texts=texts, **columns)
        return [self._paid(formula, row) for formula, row in zip(formulas, judged, strict=True)]

    def _paid(self, formula: Formula, row: JudgedRow) -> Any:
        claims = self.reward.claims(row.verification, row.row.input.completion)
        values = [value for _, value in claims]
        total = None if row.found.error else formula(values)
        if total is None or self.at == "end":
            return total
        shares = claim_shares(formula, values)
        paid = [(span.end, share) for (span, _), share in zip(claims, shares, strict=True)]
        rest = total - fsum(shares) if all(map(isfinite, shares)) else nan
        paid.append((len(row.row.input.completion), rest))
        return [(max(end - 1, 0), end, value) for end, value in paid if not abs(value) <= 1e-12]

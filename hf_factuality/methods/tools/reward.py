"""Rewards of rollouts that search: citations at the statement that cites, rubrics, the price of a search, and declining."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_factuality.errors import DataError
from hf_factuality.functional.answers import contained_match
from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.scoring import SUPPORTED_LABELS
from hf_factuality.io.transcripts import TranscriptTurn
from hf_factuality.methods.tools.formula import (
    CitedStatement,
    c_grpo_reward,
    citation_figures,
    citation_points,
    connected_rubrics,
    declining_reward,
    dr_tulu_citation_reward,
    search_cost,
)
from hf_factuality.reading.completion import Reading, read
from hf_factuality.reading.statements import Sentence
from hf_factuality.rewards._rows import RETRIEVED, JudgedReward
from hf_factuality.rewards.answers import THINK_OPENED, _gold_column, _golds, complete_texts
from hf_factuality.spans import Label, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.searched import SearchedVerifier
from hf_factuality.verifiers.service import VerificationRequest


PLACES = ("statement", "end")
FORMULAS = ("f1", "dr_tulu")
FOUND = ("support", "passages")


def tool_calls(completion: Any) -> list[Mapping[str, Any]]:
    """The calls of tools in a completion of messages, in order."""
    messages = completion if isinstance(completion, (list, tuple)) else ()
    return [call for message in messages for call in message.get("tool_calls") or ()]


Verdict = bool | None | Label
"""Whether passages support all that a text states: `None` where that is unknown, `Label.NO_FACT` where it states nothing."""


class _SearchReward(JudgedReward):
    """Beneath rewards that ask a verifier whether passages support a text."""

    def __init__(self, verifier: Any, **kwargs: Any):
        given = load_verifier(verifier)
        # Where a rollout found nothing, nothing is supported.
        super().__init__(SearchedVerifier(given) if getattr(given, "requires_evidence", True) else given, **kwargs)
        self.verifier = given

    def _supports(self, asked: Sequence[tuple[str, str | None, tuple[str, ...]]]) -> list[Verdict]:
        requests = [
            VerificationRequest(VerifierInput(text, question, passages), turn=TranscriptTurn(text, question, (), 1, 0))
            for text, question, passages in asked
        ]
        # Also where there is nothing to ask: all processes count their batches together.
        judged = self.judging.judge(requests, counts=getattr(self.policy, "training", True))
        return [_verdict(row.found) for row in judged]

    def _retrieved(self, columns: Mapping[str, Any]) -> Sequence[Sequence[str]]:
        if RETRIEVED not in columns:
            raise DataError(
                f"{type(self).__name__} needs what tools returned in a rollout; pass tools or environment_factory to "
                "FactGRPOTrainer or TokenRewardPPOTrainer"
            )
        return columns[RETRIEVED]


def _verdict(found: Verification) -> Verdict:
    labels = [unit.label for unit in found.claims or found.spans if unit.label is not Label.NO_FACT]
    if found.error is not None or None in labels:
        return None
    return all(label in SUPPORTED_LABELS for label in labels) if labels else Label.NO_FACT


class CitationReward(_SearchReward):
    """Whether the passages that a statement cites support it, paid at the statement.

    A token reward function for `token_reward_funcs`; with `at="end"` a reward function for `reward_funcs`. The statements of the
    answer, and which passages each cites (`[2]`, `[1, 3]`), are read by [`~hf_factuality.reading.read`]; passage n is the n-th that
    the rollout's tools returned. A statement with several citations is judged with all of them and with each alone. What
    the verifier finds to be no fact needs no citation.

    Args:
        verifier ([`Verifier`] or `str`):
            Who judges a statement by passages, such as `"lexical"`, `"nli:MODEL"` or `"llm:MODEL"`.
        at (`str`, *optional*, defaults to `"statement"`):
            Where it is paid: `"statement"` or `"end"`.
        formula (`str`, *optional*, defaults to `"f1"`):
            `"f1"` ([`~hf_factuality.methods.tools.formula.citation_points`], ours), or `"dr_tulu"`
            ([`~hf_factuality.methods.tools.formula.dr_tulu_citation_reward`]), which is paid at the end.
        **kwargs:
            `question_column`, `timeout`, `batch_size` and `max_unjudged_batches` of [`~hf_factuality.rewards.RLFHReward`].

    Raises:
        `ValueError`: an unknown place, formula or verifier, or `"dr_tulu"` at statements. `DataError`: in training, no tools.
        `JudgingError`: in training, the verifier judges nothing.
    """

    card_method = "citations"

    def __init__(self, verifier: Any, at: str = "statement", formula: str = "f1", **kwargs: Any):
        if at not in PLACES or formula not in FORMULAS:
            raise ValueError(f"at={at!r} must be one of {PLACES}, and formula={formula!r} one of {FORMULAS}")
        if formula == "dr_tulu" and at != "end":
            raise ValueError("formula='dr_tulu' is a number for a whole answer; set at='end'")
        super().__init__(verifier, **kwargs)
        self.at, self.formula = at, formula
        self.__name__ = "citations"
        self.card_details = (f"{formula}, at the {at}",)

    def __call__(self, completion_texts=None, log_metric=None, **columns) -> list[Any]:
        """Per completion the points of its statements, or a number; `None` where nothing is known."""
        found = self.statements(completion_texts, columns)
        if log_metric is not None:
            figures = citation_figures([it for own in found for it in own])
            for name, value in figures.items():
                if value is not None:
                    log_metric(f"citations/{name}", value)
        if self.formula == "dr_tulu":
            return [dr_tulu_citation_reward(own) for own in found]
        points = [citation_points(own) for own in found]
        if self.at == "statement":
            return points
        return [None if own is None else sum(value for *_, value in own) for own in points]

    def statements(self, texts: Sequence[str] | None, columns: Mapping[str, Any]) -> list[list[CitedStatement]]:
        """The statements of each completion, with what was found of their citations."""
        retrieved = self._retrieved(columns)
        if texts is None:
            raise DataError(
                "CitationReward needs completion_texts, which FactGRPOTrainer and TokenRewardPPOTrainer pass"
            )
        opened = columns.get(THINK_OPENED) or [False] * len(texts)
        questions = columns.get(self.question_column) or [None] * len(texts)
        said = [read(text, opens).statements for text, opens in zip(texts, opened, strict=True)]
        Asked = tuple[str, str | None, tuple[str, ...]]

        def there(number: int, sentence: Sentence) -> list[int]:
            return [n for n in sentence.cites if 0 < n <= len(retrieved[number]) and retrieved[number][n - 1]]

        def asks(number: int, sentence: Sentence, cites: Sequence[int] | None = None) -> Asked:
            question = questions[number] if isinstance(questions[number], str) else None
            # What cites nothing may be no fact, which all that was found can tell.
            passages = retrieved[number] if cites is None else [retrieved[number][n - 1] for n in cites]
            return sentence.says, question, tuple(filter(None, passages))

        asked: dict[Asked, Verdict] = {}
        for number, sentences in enumerate(said):
            for sentence in sentences:
                cites = there(number, sentence)
                asked[asks(number, sentence, cites or None)] = None
                asked |= dict.fromkeys(asks(number, sentence, [n]) for n in cites)
        asked = dict(zip(asked, self._supports(list(asked)), strict=True))

        def statement(number: int, sentence: Sentence) -> CitedStatement | None:
            cites = there(number, sentence)
            together = asked[asks(number, sentence, cites or None)]
            if together is Label.NO_FACT:
                return None
            alone = tuple(
                _is_true(asked[asks(number, sentence, [n])]) if n in cites else False for n in sentence.cites
            )
            supported = _is_true(together) if cites else False
            exist = tuple(n in cites for n in sentence.cites)
            return CitedStatement(sentence.start, sentence.end, supported, alone, exist)

        return [
            [it for one in sentences if (it := statement(number, one)) is not None]
            for number, sentences in enumerate(said)
        ]


def _is_true(verdict: Verdict) -> bool | None:
    return None if verdict is None else verdict is True


class RubricReward(_SearchReward):
    """Which single facts that a good answer rests on it names and supports by citations; with an outcome, C-GRPO's reward.

    After CaRR (arXiv 2601.06021): a rubric counts if the answer names its entities, the passages that the answer cites support it, and
    supported rubrics link it to the answer. Ours is that the entities come with the data, where CaRR asks a model for them, and that
    any verifier judges.

    Args:
        verifier ([`Verifier`] or `str`):
            Who judges a rubric by the cited passages.
        outcome (`Callable`, *optional*):
            A reward function in [0, 1], with which [`~hf_factuality.methods.tools.formula.c_grpo_reward`] is paid; `None`: the share of
            rubrics alone.
        weight (`float`, *optional*, defaults to 0.3):
            Of the rubrics in a right answer.
        column (`str`, *optional*, defaults to `"rubrics"`):
            Column with a list per row, also as JSON: texts, or objects with `text` and `entities` (a list of names; the answer is the
            first entity of the first rubric).
        **kwargs:
            As of [`CitationReward`].

    Raises:
        `ValueError`: `weight` is not in [0, 1]. `DataError`: in training, the column is missing or holds something else.
    """

    card_method = "rubrics"

    def __init__(self, verifier: Any, outcome: Callable[..., Any] | None = None, weight: float = 0.3, column: str = "rubrics", **kwargs: Any):  # fmt: skip
        if not 0 <= weight <= 1:
            raise ValueError(f"weight must be in [0, 1], got {weight!r}")
        super().__init__(verifier, **kwargs)
        self.outcome, self.weight, self.column = outcome, weight, column
        self.__name__ = "rubrics"

    def __call__(self, completion_texts=None, **columns) -> list[float | None]:
        """Rewards in [0, 1]; `None` where a judgement failed, the outcome is unknown, or a row has no rubrics."""
        retrieved = self._retrieved(columns)
        if self.column not in columns:
            raise DataError(f"RubricReward needs a column {self.column!r} with the rubrics of each row")
        rubrics = [_rubrics(value, self.column) for value in columns[self.column]]
        opened = columns.get(THINK_OPENED) or [False] * len(completion_texts)
        asked: list[tuple[str, str | None, tuple[str, ...]]] = []
        places: list[tuple[int, int]] = []
        found: list[list[bool | None]] = [[False] * len(own) for own in rubrics]
        for number, (text, opens) in enumerate(zip(completion_texts, opened, strict=True)):
            answer = read(text, opens)
            cited = dict.fromkeys(n for it in answer.citations for n in it.numbers)
            passages = tuple(
                filter(None, (retrieved[number][n - 1] for n in cited if 0 < n <= len(retrieved[number])))
            )
            said = " ".join(text[start:end] for start, end in answer.answer).casefold()
            for place, (claim, entities) in enumerate(rubrics[number]):
                if passages and all(entity.casefold() in said for entity in entities):
                    asked.append((claim, None, passages))
                    places.append((number, place))
        for (number, place), verdict in zip(places, self._supports(asked), strict=True):
            found[number][place] = _is_true(verdict)
        scores = [self._score(own, held) for own, held in zip(rubrics, found, strict=True)]
        if self.outcome is None:
            return scores
        outcomes = self.outcome(completion_texts=completion_texts, **columns)
        return [
            None if score is None or right is None else c_grpo_reward(right, score, self.weight)
            for score, right in zip(scores, outcomes, strict=True)
        ]

    @staticmethod
    def _score(rubrics: Sequence[tuple[str, Sequence[str]]], held: Sequence[bool | None]) -> float | None:
        if not rubrics or None in held:
            return None
        if not any(entities for _, entities in rubrics):
            return sum(map(bool, held)) / len(held)
        answer = next(iter(rubrics[0][1]), "")
        counted = connected_rubrics([bool(one) for one in held], [own for _, own in rubrics], answer)
        return sum(counted) / len(counted)


def _rubrics(value: Any, column: str) -> list[tuple[str, list[str]]]:
    try:
        given = json.loads(value) if isinstance(value, str) else value
        return [
            (it, []) if isinstance(it, str) else (it["text"], list(it.get("entities") or ())) for it in given or ()
        ]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"the column {column!r} must hold a list of texts, or of objects with 'text' and 'entities', got {value!r:.150}"
        ) from None


class StatedAnswerReward:
    """1 where the answer states a gold answer, in whatever sentence, 0 where it does not or declines.

    Answers that cite are sentences, and not in tags: what stands in `<answer>` tags would be all that is judged of them. A policy that
    lists many answers is paid too: pay for support beside it.
    """

    __name__ = "stated_answer"
    card_method = "answers"

    def __call__(self, completions, completion_texts=None, answer=None, **columns) -> list[float | None]:
        """Rewards; `None` where there is no gold answer. `DataError`: no column `answer`."""
        texts = completion_texts or complete_texts(completions, columns)
        opened = columns.get(THINK_OPENED) or [False] * len(texts)
        rows = zip(texts, opened, _gold_column(answer), strict=True)
        return [self._score(read(text, opens), _golds(golds)) for text, opens, golds in rows]

    @staticmethod
    def _score(said: Reading, golds: list[str]) -> float | None:
        if not golds:
            return None
        text = " ".join(said.text[start:end] for start, end in said.answer)
        return 0.0 if said.declines else contained_match(text, golds)


class SearchCost:
    """What calls of tools cost: `price` for each after the first `free`.

    Args:
        price (`float`, *optional*, defaults to 0.1):
            Of a call.
        free (`int`, *optional*, defaults to 1):
            Calls that cost nothing.

    Raises:
        `ValueError`: one of them is negative.
    """

    __name__ = card_method = "search_cost"

    def __init__(self, price: float = 0.1, free: int = 1):
        if price < 0 or free < 0:
            raise ValueError(f"price and free must not be negative, got {price!r} and {free!r}")
        self.price, self.free = price, free

    def __call__(self, completions, **columns) -> list[float]:
        return [search_cost(len(tool_calls(completion)), self.price, self.free) for completion in completions]


class DecliningReward:
    """Pays for declining where there is nothing to be found, and charges for answering there and for declining too early.

    Whether there is something to be found is told by all rollouts of the same prompt, so that nobody is paid for searching for
    nothing and declining then.

    Args:
        right (`float`, *optional*, defaults to 1.0), invented (`float`, *optional*, defaults to -1.0),
        early (`float`, *optional*, defaults to -0.5):
            See [`~hf_factuality.methods.tools.formula.declining_reward`].
        found (`str`, *optional*, defaults to `"support"`):
            What tells that there is something: `"support"`, a rollout that states what its verifier finds supported, or
            `"passages"`, one whose tools returned anything. Most searches always return something.

    Raises:
        `ValueError`: an unknown `found`. `DataError`: in training, no tools, or `"support"` where nothing is verified.
    """

    __name__ = card_method = "declining"

    def __init__(self, right: float = 1.0, invented: float = -1.0, early: float = -0.5, found: str = "support"):
        if found not in FOUND:
            raise ValueError(f"found={found!r} must be one of {FOUND}")
        self.values = {"right": right, "invented": invented, "early": early}
        self.found = found
        self.reads_verifications = found == "support"

    def __call__(
        self, prompts, completions, completion_texts=None, retrieved=None, verifications=None, **columns
    ) -> list[float | None]:
        """Rewards; `None` where no rollout of the prompt is known to state anything supported, and one could not be judged."""
        if retrieved is None or completion_texts is None:
            raise DataError(
                "DecliningReward needs what tools returned in a rollout; pass tools or environment_factory to FactGRPOTrainer or "
                "TokenRewardPPOTrainer"
            )
        if self.found == "support" and verifications is None:
            raise DataError("DecliningReward reads what FactGRPOTrainer has verified; elsewhere set found='passages'")
        opened = columns.get(THINK_OPENED) or [False] * len(completion_texts)
        keys = [json.dumps(prompt, sort_keys=True, default=str) for prompt in prompts]
        finds = [*map(any, retrieved)] if self.found == "passages" else [*map(_any_supported, verifications)]
        findable = {key for key, found in zip(keys, finds, strict=True) if found}
        unknown = {key for key, found in zip(keys, finds, strict=True) if found is None} - findable
        return [
            None
            if key in unknown
            else declining_reward(
                read(text, opens).declines, bool(tool_calls(completion)), key in findable, self.values
            )
            for text, opens, completion, key in zip(completion_texts, opened, completions, keys, strict=True)
        ]


def _any_supported(found: Verification) -> bool | None:
    """Whether a completion states anything supported; `None` where that is unknown."""
    labels = [unit.label for unit in judged_units(found)]
    if any(label in SUPPORTED_LABELS for label in labels):
        return True
    return None if found.error is not None or None in labels else False

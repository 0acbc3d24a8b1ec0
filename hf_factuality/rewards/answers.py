"""Answer and format rewards as plain TRL `reward_funcs`; unlike TRL's own they know pre-filled `<think>` tags and QA data.

Every reward function here takes `prompts`, `completions` and the columns of the dataset as lists of one length, one entry
per completion (others are ignored), and returns one `float` per completion, or `None` where the gold answer is unusable:
TRL leaves those out of its sum.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from hf_factuality.errors import DataError
from hf_factuality.functional.answers import exact_match, halueval_match, hotpot_f1
from hf_factuality.io.messages import completion_text, message_text
from hf_factuality.reading.marks import check_format, extract_answer
from hf_factuality.reading.rules import abstains
from hf_factuality.reading.scopes import opens_think
from hf_factuality.verifiers._math import gsm8k_match, math_match, require_math, warn_once
from hf_factuality.verifiers.judges.gold import RULES, SCORERS, Scorer, named_scorers


Function = TypeVar("Function", bound=Callable)
_NEED_MATH = (math_match, gsm8k_match)
THINK_OPENED = "think_opened"
"""Column in which reward functions are told whether the rendered prompt ends in an opened `<think>`."""


def on_card(method: str) -> Callable[[Function], Function]:
    """Decorator of a reward function: the row of [`~hf_factuality.hub.cards.methods.METHODS`] that a card names for it.

    A class of rewards has an attribute `card_method` instead, which does not hold for its subclasses.
    """

    def named(function: Function) -> Function:
        function.card_method = method  # type: ignore[attr-defined]
        return function

    return named


def complete_text(completion: Any, prompt: Any = None, think_in_prompt: bool | None = None) -> str:
    """The text of a completion, with a `<think>` in front where the prompt has opened it.

    Args:
        completion (`str` or `list[dict]`):
            Text, or messages. Of messages those of the assistant are joined; reasoning that the chat template has split
            off (`reasoning_content` or `thinking`) is put back between `<think>` and `</think>`.
        prompt (`str` or `list[dict]`, *optional*):
            Prompt of the completion.
        think_in_prompt (`bool`, *optional*):
            Whether the prompt ends in an opened `<think>`. By default, this is read off the prompt: its text, or the
            last message if that is the assistant's. Set it to `True` for messages whose chat template opens the tag.
    """
    text, reasoning_split = completion_text(completion)
    if think_in_prompt is None:
        messages = [prompt] if isinstance(prompt, Mapping) else prompt
        if isinstance(messages, (list, tuple)):
            last = messages[-1] if messages else None
            assistant = isinstance(last, Mapping) and last.get("role") == "assistant"
            prompt = message_text(last) if assistant else ""
        think_in_prompt = isinstance(prompt, str) and opens_think(prompt)
    return "<think>" + text if think_in_prompt and not reasoning_split else text


def complete_texts(completions: Sequence[Any], columns: Mapping[str, Any], opened: bool | None = None) -> list[str]:
    """[`complete_text`] of a batch. Whether a prompt opens the tag is said by the column `think_opened`, which our trainers
    pass, since a chat template may open it; else it is read off the prompt."""
    known = columns.get(THINK_OPENED) if opened is None else [opened] * len(completions)
    rows = [columns.get("prompts") or [None] * len(completions), known or [None] * len(completions)]
    return [complete_text(*row) for row in zip(completions, *rows, strict=True)]


def _golds(answer: Any) -> list[str]:
    answers = [answer] if isinstance(answer, str) else answer
    if not isinstance(answers, (list, tuple)):
        return []
    return [gold for gold in answers if isinstance(gold, str) and gold.strip()]


def _score(scorer: Scorer, prediction: str | None, answer: Any) -> float | None:
    golds = _golds(answer)
    reward = None
    if golds:
        # One that declines is never right, whatever of the gold answer stands in it.
        right = prediction and (not abstains(prediction) or any(map(abstains, golds)))
        reward = scorer(prediction, golds) if right else 0.0
    if reward is None:
        warn_once("gold", "no reward where the gold answer is unusable, such as %.200r; said once", answer)
    return reward


def _gold_column(answer: Sequence[Any] | None) -> Sequence[Any]:
    if answer is None:
        raise DataError("the reward needs a column 'answer' with the gold answers; rename yours to 'answer'")
    return answer


def _scores(scorer: Scorer, completions: Sequence[Any], answer: Sequence[Any] | None) -> list[float | None]:
    predictions = [extract_answer(completion_text(completion)[0]) for completion in completions]
    if predictions and all(prediction is None for prediction in predictions):
        warn_once(
            "tags",
            "none of %d completions has an answer between <answer> tags, so all of them are wrong; ask for the tags in the "
            "prompt, or see AbstentionReward(tags=False); said once",
            len(predictions),
        )
    return [_score(scorer, *row) for row in zip(predictions, _gold_column(answer), strict=True)]


@on_card("answers")
def hotpot_f1_reward(prompts, completions, completion_ids=None, answer=None, **columns) -> list[float | None]:
    """Token F1 of the text between `<answer>` tags, as in HotpotQA and 2WikiMultiHopQA; at most 1 per completion.

    Args:
        completions (`list[str]` or `list[list[dict]]`):
            Completions, texts or messages. One without answer tags scores 0.
        answer (`list[str]` or `list[list[str]]`):
            Gold answers; of several the nearest counts.

    Returns:
        `list[float | None]`: in [0, 1]; `None` where there is no gold answer.

    Raises:
        `DataError`: no column `answer`.
    """
    return _scores(hotpot_f1, completions, answer)


@on_card("answers")
def halueval_reward(prompts, completions, completion_ids=None, answer=None, **columns) -> list[float | None]:
    """As [`hotpot_f1_reward`]; 1 if the answer equals the gold answer, or has the whole of it as one word, else 0."""
    return _scores(halueval_match, completions, answer)


@on_card("answers")
def exact_reward(prompts, completions, completion_ids=None, answer=None, **columns) -> list[float | None]:
    """As [`hotpot_f1_reward`]; 1 if the answer is the same as a gold answer by
    [`~hf_factuality.functional.answers.same_answer`], else 0."""
    return _scores(exact_match, completions, answer)


@on_card("answers")
def math_reward(prompts, completions, completion_ids=None, answer=None, **columns) -> list[float | None]:
    """1 if the answer is mathematically equal to the gold answer, else 0; works in any thread.

    As [`hotpot_f1_reward`]; gold answers may be LaTeX without `$`. Unlike the released FSPO scoring, which compares
    normalised strings, this uses the `math-verify` library. `None` where the gold answer cannot be parsed and is not matched
    word for word; `ImportError` if the library is not installed.
    """
    return _scores(math_match, completions, answer)


@on_card("answers")
def gsm8k_reward(prompts, completions, completion_ids=None, answer=None, **columns) -> list[float | None]:
    """[`math_reward`] without `,` and `$`; a gold answer may be a worked solution that ends in `#### 18`."""
    return _scores(gsm8k_match, completions, answer)


@on_card("format")
def think_format_reward(
    prompts, completions, completion_ids=None, violation: float = 0.0, think_in_prompt: bool | None = None, **columns
) -> list[float]:
    """1 if reasoning and answer are tagged as [`check_format`] wants it, else `violation`; see [`FormatReward`]."""
    return FormatReward(violation=violation, think_in_prompt=think_in_prompt)(prompts, completions, **columns)


class FormatReward:
    """Pays whether reasoning and answer are tagged as [`check_format`] wants it; logged by TRL as "format".

    Args:
        violation (`float`, *optional*, defaults to `0.0`), correct (`float`, *optional*, defaults to `1.0`):
            Reward of a violation, and where the format is right. The released FSPO code has -2 and 0.
        think_in_prompt (`bool`, *optional*):
            Whether prompts end in an opened `<think>`; by default, this is read off each prompt as in [`complete_text`].
    """

    __name__ = card_method = "format"

    def __init__(self, violation: float = 0.0, correct: float = 1.0, think_in_prompt: bool | None = None):
        self.violation, self.correct = float(violation), float(correct)
        self.think_in_prompt = think_in_prompt

    def __call__(self, prompts, completions, completion_ids=None, **columns) -> list[float]:
        texts = complete_texts(completions, {"prompts": prompts, **columns}, self.think_in_prompt)
        return [self.correct if check_format(text) else self.violation for text in texts]


class FSPOAnswerReward:
    """Answer reward of FSPO (arXiv 2505.24630): scores each row as its `data_source` is scored, logged as "answer".

    A completion that violates the format has reward 0, as in the released code.

    Args:
        scorers (`Mapping[str, str | Scorer]` or `Sequence[str]`, *optional*):
            More data sources, or others for those of [`SCORERS`]: name -> [`Scorer`] or its name, or texts such as
            `"my_trivia=hotpot_f1"` ([`~hf_factuality.verifiers.judges.gold.named_scorers`]).
        require_format (`bool`, *optional*, defaults to `True`):
            Whether a format violation makes the reward 0. Without it, an answer between tags is enough.
        think_in_prompt (`bool`, *optional*):
            Whether prompts end in an opened `<think>`; by default, this is read off each prompt.
        default_data_source (`str`, *optional*):
            Data source of rows without one.

    Raises:
        `DataError`: `default_data_source` is not known. `ValueError`: a scorer is no name of `SCORERS`. `TypeError`: it is
        neither a name nor callable.

    Example:

    ```python
    >>> reward = FSPOAnswerReward()
    >>> reward(
    ...     prompts=["When did they leave? <think>"],
    ...     completions=["It says so.</think><answer>May 1931</answer>"],
    ...     answer=["in May 1931"],
    ...     data_source=["HotpotQA"],
    ... )
    [0.8]
    ```
    """

    __name__ = "answer"
    card_method = "answers"

    def __init__(
        self,
        scorers: Mapping[str, str | Scorer] | Sequence[str] | None = None,
        require_format: bool = True,
        think_in_prompt: bool | None = None,
        default_data_source: str | None = None,
    ):
        self.scorers: dict[str, Scorer] = {**SCORERS, **named_scorers(scorers)}
        self.require_format, self.think_in_prompt = require_format, think_in_prompt
        self.default_data_source = default_data_source
        if default_data_source is not None:
            self._scorer(default_data_source)

    def _scorer(self, data_source: Any, place: str = "") -> Scorer:
        name = self.default_data_source if data_source is None else data_source
        if not isinstance(name, str) or name not in self.scorers:
            raise DataError(
                f"unknown data_source {name!r}{place}; known are {sorted(self.scorers)}. Say how it is scored, by "
                f"`scorers` {name}=RULE or FSPOAnswerReward(scorers={{{name!r}: RULE}}), or for rows without one by "
                f"`default_data_source`; a RULE is one of {list(RULES)}"
            )
        return self.scorers[name]

    def check(self, dataset: Any) -> None:
        """Check before training that every row of a dataset can be scored.

        `dataset` (`datasets.Dataset` or `Mapping[str, Sequence]`) has the columns `answer` and `data_source`. Raises
        `DataError` if a column is missing, a data source unknown, or a gold answer empty or not text; `ImportError` if rows
        need `math-verify` and it is not installed.
        """
        present = list(getattr(dataset, "column_names", None) or dataset)
        needed = ["answer"] + (["data_source"] if self.default_data_source is None else [])
        for column in needed:
            if column not in present:
                raise DataError(f"the answer reward needs a column {column!r}; the dataset has {sorted(present)}")
        answers = dataset["answer"]
        sources = dataset["data_source"] if "data_source" in present else [None] * len(answers)
        for row, (source, answer) in enumerate(zip(sources, answers, strict=True)):
            scorer = self._scorer(source, place=f" in row {row}")
            if not _golds(answer):
                raise DataError(
                    f"row {row}: the gold answer must be a non-empty string or a list of them, got {answer!r}; "
                    "drop the row or correct it"
                )
            if scorer in _NEED_MATH:
                require_math()

    def __call__(
        self, prompts, completions, completion_ids=None, answer=None, data_source=None, **columns
    ) -> list[float | None]:
        """Rewards of a batch, by the column `data_source` unless there is a `default_data_source`.

        Arguments, return value and errors as in [`math_reward`]; `DataError` for an unknown data source too.
        """
        answer = _gold_column(answer)
        sources = data_source if data_source is not None else [None] * len(completions)
        scorers = [self._scorer(source) for source in sources]
        rewards = []
        texts = complete_texts(completions, {"prompts": prompts, **columns}, self.think_in_prompt)
        for text, gold, scorer in zip(texts, answer, scorers, strict=True):
            rewards.append(
                0.0 if self.require_format and not check_format(text) else _score(scorer, extract_answer(text), gold)
            )
        return rewards


answer_reward = FSPOAnswerReward
"""The same, named as the other rewards are."""

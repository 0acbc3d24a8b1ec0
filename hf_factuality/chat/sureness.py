"""How sure a model is of its answer: the words in which R-Tuning (arXiv 2311.09677) lets it say so, and the probabilities.

The words are part of the data that a model is trained on and of how it is asked afterwards, so both take them from here.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hf_factuality.chat.base import cut
from hf_factuality.chat.causal import render
from hf_factuality.chat.local import LocalChat


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True)
class SureWords:
    """`"{answer}{stop} {question} {sure}"`, or with `unsure`; no spaces between them unless `space`.

    Raises:
        `ValueError`: one of them begins with the other, so that no next token tells them apart.
    """

    question: str = "Are you sure you accurately answered the question based on your internal knowledge?"
    sure: str = "I am sure."
    unsure: str = "I am unsure."
    stop: str = "."
    space: str = " "

    def __post_init__(self):
        if self.sure.startswith(self.unsure) or self.unsure.startswith(self.sure):
            raise ValueError(f"the statements {self.sure!r} and {self.unsure!r} must differ before one of them ends")

    def said(self, answer: str, sure: bool) -> str:
        """The whole text; without the question if that is empty."""
        answer = answer.strip()
        first = answer if self.stop and answer.endswith(self.stop) else answer + self.stop
        return self.space.join(filter(None, (first, self.question, self.sure if sure else self.unsure)))


SURE_WORDS: Mapping[str, SureWords] = {
    "en": SureWords(),
    "zh": SureWords("你确定你是根据自己的知识准确回答了这个问题吗？", "我确定。", "我不确定。", "。", ""),
}
"""Language -> words; the English ones are R-Tuning's."""


@dataclass(frozen=True)
class Sureness:
    """A greedy answer; `p_pred` and `p_sure` as the metric `refusal_ap` takes them, `None` if the model had no room."""

    answer: str
    p_pred: float | None
    p_sure: float | None


def measure_sureness(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    words: SureWords | None = None,
    *,
    max_new_tokens: int = 15,
    stop: Sequence[str] = (".",),
    batch_size: int = 32,
) -> list[Sureness]:
    """Greedy answers of a model and how sure it is of them (R-Tuning's AP score).

    `p_pred` is the geometric mean of the probabilities of the answer's tokens, that which ends it included. For `p_sure` the
    model reads its own answer and the question for its confidence: P(sure) / (P(sure) + P(unsure)) of the first token in
    which the two statements differ, after "I am".

    Args:
        model (`PreTrainedModel` or `PeftModel`), tokenizer (`PreTrainedTokenizerBase`), batch_size (`int`, *optional*):
            As for [`~hf_factuality.chat.LocalChat`].
        prompts (`Sequence[Sequence[Mapping[str, str]]]`):
            Conversations.
        words ([`SureWords`], *optional*):
            Those that the model was trained on; R-Tuning's English ones by default.
        max_new_tokens (`int`, *optional*, defaults to `15`), stop (`Sequence[str]`, *optional*, defaults to `(".",)`):
            Longest answer, and texts that end it; as released.

    Returns:
        `list[Sureness]`: one per prompt.

    Raises:
        `ValueError`, `JudgingError`: as for `LocalChat`.
    """
    words, chat = words or SURE_WORDS["en"], LocalChat(model, tokenizer, batch_size=batch_size)
    room = (chat._positions() or math.inf) - max_new_tokens
    texts = [render(tokenizer, messages, True) for messages in prompts]
    asked = [i for i, text in enumerate(texts) if len(chat._encode(text)) <= room]
    with chat._judging():
        greedy: dict[str, Any] = dict.fromkeys(("temperature", "top_k", "top_p"))
        drawn = chat.draw([texts[i] for i in asked], 0, do_sample=False, max_new_tokens=max_new_tokens, **greedy)
        pairs, answers = [], []
        for i, row in zip(asked, drawn, strict=True):
            ids = _until_it_ends(chat, row, stop)
            answers.append(next(chat._texts([ids], stop))[0])
            said = [words.said(answers[-1], sure) for sure in (True, False)]
            rows = [
                chat._encode(render(tokenizer, [*prompts[i], {"role": "assistant", "content": text}], True))
                for text in said
            ]
            same = len(os.path.commonprefix(rows))
            pairs += [(chat._encode(texts[i]), ids), *((ids[:same], [ids[same]]) for ids in rows)]
        fits = [sum(map(len, pair)) <= room + max_new_tokens for pair in pairs]
        scores = dict(chat._scored([pair for pair, fit in zip(pairs, fits, strict=True) if fit]))
    numbers = iter(range(len(scores)))
    logs = [scores[next(numbers)] if fit else None for fit in fits]
    found = [Sureness("", None, None)] * len(prompts)
    for k, (i, answer) in enumerate(zip(asked, answers, strict=True)):
        own, sure, unsure = logs[3 * k : 3 * k + 3]
        ratio = None if sure is None or unsure is None else 1 / (1 + math.exp(min(unsure - sure, 700.0)))
        found[i] = Sureness(answer, math.exp(own / len(pairs[3 * k][1])), ratio)
    return found


def _until_it_ends(chat: LocalChat, row: Sequence[int], stop: Sequence[str]) -> list[int]:
    """Generated tokens up to that which ends the answer."""
    ends = chat._ends()
    for length, token in enumerate(row, 1):
        if token in ends or cut(chat.tokenizer.decode(row[:length], skip_special_tokens=True), stop)[1]:
            return list(row[:length])
    return list(row)

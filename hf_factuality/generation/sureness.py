"""How sure a model is of its answer (R-Tuning, arXiv 2311.09677): the words in which it says so, and their probability."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_factuality.generation.base import ChatRequest, cut
from hf_factuality.generation.local import LocalChat
from hf_factuality.generation.sampling import SamplingConfig


@dataclass(frozen=True)
class SureWords:
    """`"{answer}{stop} {question} {sure}"`, or with `unsure`, which must differ from it before one of them ends."""

    question: str = "Are you sure you accurately answered the question based on your internal knowledge?"
    sure: str = "I am sure."
    unsure: str = "I am unsure."
    stop: str = "."
    space: str = " "

    def said(self, answer: str, sure: bool) -> str:
        """The whole text, with one full stop after the answer; without the question if that is empty."""
        answer = answer.strip().removesuffix(self.stop) + self.stop
        return self.space.join(filter(None, (answer, self.question, self.sure if sure else self.unsure)))


SURE_WORDS: Mapping[str, SureWords] = {
    "en": SureWords(),
    "zh": SureWords("你确定你是根据自己的知识准确回答了这个问题吗？", "我确定。", "我不确定。", "。", ""),
}
"""Language -> words; the English ones are R-Tuning's."""


def measure_sureness(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    words: SureWords | None = None,
    *,
    max_new_tokens: int = 15,
    stop: Sequence[str] = (".",),
    batch_size: int = 32,
) -> list[dict[str, Any]]:
    """Greedy answers of a model and how sure it is of them, as the metric `refusal_ap` takes it (R-Tuning's AP score).

    Args:
        model (`PreTrainedModel` or `PeftModel`), tokenizer (`PreTrainedTokenizerBase`), batch_size (`int`, *optional*):
            As for [`~hf_factuality.generation.LocalChat`].
        prompts (`Sequence[Sequence[Mapping[str, str]]]`):
            Conversations.
        words ([`SureWords`], *optional*):
            Those that the model was trained on; R-Tuning's English ones by default.
        max_new_tokens (`int`, *optional*, defaults to `15`), stop (`Sequence[str]`, *optional*, defaults to `(".",)`):
            Longest answer, and texts that end it; as released.

    Returns:
        `list[dict]`: per prompt `answer`; `p_pred`, the geometric mean of the probabilities of its tokens and of that which
        ends it; `p_sure`, P(sure) / (P(sure) + P(unsure)) of the first token in which the two statements differ.

    Raises:
        `ValueError`, `JudgingError`: as for `LocalChat`.
    """
    words = words or SURE_WORDS["en"]
    chat = LocalChat(model, tokenizer, batch_size=batch_size)
    drawn, pairs = _greedy(chat, _requests(prompts, max_new_tokens), stop), []
    for messages, (answer, ids) in zip(prompts, drawn, strict=True):
        both = [[*messages, {"role": "assistant", "content": words.said(answer, sure)}] for sure in (True, False)]
        said = [chat._encode(chat.prompt(turns)) for turns in both]
        same = len(os.path.commonprefix(said))
        pairs += [(chat._encode(chat.prompt(messages)), ids), *((found[:same], [found[same]]) for found in said)]
    scores = [score for _, score in sorted(chat._scored(pairs))]
    return [
        {
            "answer": answer, "p_pred": math.exp(scores[n] / len(pairs[n][1])),
            "p_sure": 1 / (1 + math.exp(min(scores[n + 2] - scores[n + 1], 700.0))),
        }
        for n, (answer, _) in zip(range(0, len(scores), 3), drawn, strict=True)
    ]  # fmt: skip


def answers_with_probability(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    max_new_tokens: int = 15,
    stop: Sequence[str] = (".",),
    batch_size: int = 32,
) -> list[dict[str, Any]]:
    """`answer` and `p_pred` of [`measure_sureness`] alone, for a model that was not taught to say how sure it is.

    Both are `None` for a prompt that cannot be asked: too long for the model, or refused by its chat template.
    """
    chat = LocalChat(model, tokenizer, batch_size=batch_size)
    requests = _requests(prompts, max_new_tokens)
    # Number and tokens of each prompt that can be asked.
    read = [(n, asked[0]) for n, (_, asked) in enumerate(chat._read(requests)) if not isinstance(asked, str)]
    drawn = _greedy(chat, [requests[n] for n, _ in read], stop)
    pairs = [(prompt, ids) for (_, prompt), (_, ids) in zip(read, drawn, strict=True)]
    scores = [score for _, score in sorted(chat._scored(pairs))]
    found: list[dict[str, Any]] = [{"answer": None, "p_pred": None} for _ in prompts]
    for (n, _), (answer, ids), score in zip(read, drawn, scores, strict=True):
        found[n] = {"answer": answer, "p_pred": math.exp(score / len(ids))}
    return found


def _requests(prompts: Sequence[Sequence[Mapping[str, str]]], max_new_tokens: int) -> list[ChatRequest]:
    how = SamplingConfig(temperature=0.0, max_new_tokens=max_new_tokens)
    return [ChatRequest.of(messages, how, None) for messages in prompts]


def _greedy(chat: LocalChat, requests: Sequence[ChatRequest], stop: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Each answer, and its tokens up to the one that ends it, and with it."""
    found = []
    for row in chat.tokens(requests):
        heads = (row[:length] for length in range(1, len(row)))
        decoded = ((ids, chat.tokenizer.decode(ids, skip_special_tokens=True)) for ids in heads)
        ids = next((ids for ids, said in decoded if cut(said, stop)[1]), row)
        found.append((chat._text(ids, stop)[0], ids))
    return found

"""A reward model as a verifier: what it gives for an answer, such as one that should rest on passages (RAG-Reward).

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_factuality.functional.calibration import sigmoid
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.judges.compare import grounded_messages
from hf_factuality.verifiers.judges.pairs import ClassifierJudge, without_special_tokens


logger = logging.getLogger(__name__)

Conversation = Sequence[Mapping[str, str]]


@dataclass(eq=False, repr=False)
class RewardJudge(ClassifierJudge):
    """A sequence classifier that reads conversations, as [`~trl.RewardTrainer`] and most published reward models are.

    Args:
        axis (`str`, *optional*):
            Which of several heads is read, by its name in `id2label`. `None`: the only one, or the mean of all.
        model, tokenizer, revision, token, device, dtype, batch_size, max_length, threshold, negative_label:
            See [`~hf_factuality.verifiers.judges.nli.NLIJudge`]; `max_length` is by default what model and tokenizer take.

    Raises:
        `ValueError`: there is no such head, or the tokenizer has no chat template.
    """

    axis: str | None = None

    def __post_init__(self):
        longest = self.max_length
        super().__post_init__()
        self.tokenizer = copy.copy(self.tokenizer)
        self.tokenizer.padding_side = "right"  # as in training: positions that are learnt do not shift
        places = getattr(self.model.config, "max_position_embeddings", None) or math.inf
        self.max_length = longest or min(self.tokenizer.model_max_length, places)
        heads = list(self.model.config.id2label.values())
        if self.axis is not None and self.axis not in heads:
            raise ValueError(f"axis={self.axis!r}: the reward model has the heads {heads}")
        self._heads = slice(None) if self.axis is None else [heads.index(self.axis)]
        if not self.tokenizer.chat_template:
            raise ValueError("the tokenizer of the reward model has no chat template: set tokenizer.chat_template")

    def encode(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Token ids, in which no text ends a turn or begins one."""
        plain = [
            [{**turn, "content": without_special_tokens(turn["content"], self.tokenizer)} for turn in conversation]
            for conversation in conversations
        ]
        return [self.tokenizer.apply_chat_template(it, tokenize=True, return_dict=True)["input_ids"] for it in plain]

    def rewards(self, conversations: Sequence[Conversation]) -> list[float | None]:
        """Per conversation its reward; `None` where it is longer than `max_length` or the output is not finite."""
        encoded = self.encode(conversations)
        fits = [n for n, ids in enumerate(encoded) if 0 < len(ids) <= self.max_length]
        rows = [encoded[n] for n in fits]
        found: list[float | None] = [None] * len(encoded)
        for chosen, logits in self._passes({"input_ids": rows, "attention_mask": [[1] * len(ids) for ids in rows]}):
            for place, value in zip(chosen, logits[:, self._heads].mean(-1).tolist(), strict=True):
                found[fits[place]] = value if math.isfinite(value) else None
        if unknown := found.count(None):
            logger.warning("%d of %d answers have no reward: too long, or not finite", unknown, len(found))
        return found


class RewardVerifier:
    """The whole completion as one span, whose score is the sigmoid of its reward: it ranks answers, of any reward model.

    From `threshold` (.5, a reward of 0) on it is `SUPPORTED`, below it `UNVERIFIABLE`; where rewards have no zero of their own,
    as of a model trained on pairs alone, only the order of scores means something. What is read is the row's `prompt`
    with the completion; without that column, the question with its passages as `hf-factuality build-rag-preferences` asks it.
    The scores are a TRL reward function through [`~hf_factuality.rewards.ProcessReward`]; TRL takes a model with one head by its
    name, too.

    Args:
        model, tokenizer, **kwargs:
            See [`RewardJudge`], which raises the same errors.
    """

    requires_evidence = False

    def __init__(self, model: Any, tokenizer: Any = None, **kwargs: Any):
        self.judge = RewardJudge(model, tokenizer, **kwargs)

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`~hf_factuality.Verification`] per input, in order."""
        rewards = self.judge.rewards(list(map(_conversation, inputs)))
        return [
            Verification((self._span(len(it.completion), reward),)) for it, reward in zip(inputs, rewards, strict=True)
        ]

    def _span(self, end: int, reward: float | None) -> LabeledSpan:
        score = None if reward is None else sigmoid(reward)
        good = score is not None and score >= self.judge.threshold
        return LabeledSpan(
            0, end, None if score is None else Label.SUPPORTED if good else self.judge.negative_label, score
        )


def _conversation(item: VerifierInput) -> Conversation:
    prompt, said = item.row.get("prompts", item.row.get("prompt")), item.completion
    if not prompt and item.evidence:
        prompt = grounded_messages(item.question or "", item.evidence)
    prompt = prompt or item.question or ""
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    if messages[-1]["role"] == "assistant":  # the completion goes on from it
        said = messages.pop()["content"] + said
    return [*messages, {"role": "assistant", "content": said}]

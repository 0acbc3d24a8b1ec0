"""Selections of Mask-DPO's studies: how many topics, how many questions of each, near to or far from other topics.

The paper (ICLR 2025) varies the number of topics (a third, two thirds, all) and of questions per topic (1, 2, 3), and tells
topics apart by an embedding of the policy's own last hidden layer. What it does not say, and is our choice, stands at
[`embed_topics`] and [`topic_distances`].
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_factuality.data.questions import PreferenceQuestion
from hf_factuality.errors import DataError


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def questions_by_topic(questions: Sequence[PreferenceQuestion]) -> dict[str, list[PreferenceQuestion]]:
    """Questions of each topic, both in the order of the questions."""
    found: dict[str, list[PreferenceQuestion]] = {}
    for question in questions:
        if question.topic is None:
            raise DataError(f"the question {question.id!r} has no topic; give all a column 'topic'")
        found.setdefault(question.topic, []).append(question)
    return found


def select_questions(
    questions: Sequence[PreferenceQuestion],
    topics: int | None = None,
    questions_per_topic: int | None = None,
    seed: int = 0,
) -> list[PreferenceQuestion]:
    """Some topics, and some questions of each, drawn at random.

    Selections of one seed are nested: more topics contain the fewer, more questions per topic the fewer, and which topics
    are drawn does not depend on the number of questions.

    Args:
        questions (`Sequence[PreferenceQuestion]`):
            With topics.
        topics (`int`, *optional*):
            Number of topics; all by default.
        questions_per_topic (`int`, *optional*):
            Most questions of a topic; all by default. A topic that has fewer keeps those.
        seed (`int`, *optional*, defaults to `0`):
            Of the draw, which depends on the names and not on the order of topics and questions.

    Returns:
        `list[PreferenceQuestion]`: in their order in `questions`.

    Raises:
        `DataError`: there are fewer topics, or a question has none.
        `ValueError`: a number below 1.
    """
    groups = questions_by_topic(questions)
    names = sorted(groups)
    random.Random(f"{seed}").shuffle(names)
    return _take(questions, groups, names, topics, questions_per_topic, seed)


def select_by_distance(
    questions: Sequence[PreferenceQuestion],
    distances: Mapping[str, float],
    which: str,
    topics: int,
    questions_per_topic: int | None = None,
    seed: int = 0,
) -> list[PreferenceQuestion]:
    """The topics nearest to others, or farthest from them.

    Args:
        questions (`Sequence[PreferenceQuestion]`):
            With topics.
        distances (`Mapping[str, float]`):
            Of each topic that may be taken; see [`topic_distances`]. Of equal ones the name decides.
        which (`str`):
            `"nearest"` or `"farthest"`.
        topics (`int`), questions_per_topic (`int`, *optional*), seed (`int`, *optional*, defaults to `0`):
            As in [`select_questions`].

    Returns:
        `list[PreferenceQuestion]`: in their order in `questions`.

    Raises:
        `DataError`: there are fewer topics.
        `ValueError`: another word for `which`, or a number below 1.
    """
    if which not in ("nearest", "farthest"):
        raise ValueError(f"topic distance is 'nearest' or 'farthest', got {which!r}")
    sign = 1 if which == "nearest" else -1
    groups = questions_by_topic(questions)
    names = sorted((name for name in groups if name in distances), key=lambda name: (sign * distances[name], name))
    return _take(questions, groups, names, topics, questions_per_topic, seed)


def topic_distances(embeddings: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Cosine distance, 1 - cos, of each topic to the nearest of the target topics.

    To the nearest, not to the mean of all, is our choice: a topic that is close to one of many targets is close to what
    will be asked. Topics that are targets themselves (by name) are left out.

    Args:
        embeddings (`Mapping[str, np.ndarray]`):
            Topic to vector, all of one length.
        targets (`Mapping[str, np.ndarray]`):
            Likewise.

    Returns:
        `dict[str, float]`: distance in [0, 2] of each topic of `embeddings` that is no target.

    Raises:
        `DataError`: there is no target, or a vector is all zeros or not finite.
    """
    if not targets:
        raise DataError("there are no target topics to measure distances to")
    names = [name for name in embeddings if name not in targets]
    if not names:
        return {}
    ours, others = (_normalised(vectors, keys) for vectors, keys in ((embeddings, names), (targets, list(targets))))
    nearest = np.empty(len(names))
    for first in range(0, len(names), 1024):  # a block of rows at a time: thousands of topics on either side
        nearest[first : first + 1024] = (ours[first : first + 1024] @ others.T).max(axis=1)
    return {name: float(np.clip(1.0 - value, 0.0, 2.0)) for name, value in zip(names, nearest, strict=True)}


def embed_topics(
    questions: Sequence[PreferenceQuestion],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    batch_size: int = 16,
) -> dict[str, np.ndarray]:
    """A vector per topic: the mean of the model's last hidden layer over the tokens of the topic's questions.

    The layer (after the final normalisation, what the output head reads) is the paper's choice. Ours: each question is
    the plain text of its last user message, without the chat template, which would be the same part of every vector; the
    tokenizer adds its own special tokens, and they are left out of the mean, since a first token that all others attend to
    has a vector many times as long as the rest; all tokens of a topic weigh the same, so a longer question weighs more.

    Args:
        questions (`Sequence[PreferenceQuestion]`):
            With topics.
        model (`PreTrainedModel`):
            The policy.
        tokenizer (`PreTrainedTokenizerBase`):
            Its tokenizer.
        batch_size (`int`, *optional*, defaults to `16`):
            Questions in a forward pass.

    Returns:
        `dict[str, np.ndarray]`: topic to a float64 vector of shape (hidden size,).

    Raises:
        `DataError`: a question has no topic or no token.
    """
    import torch
    from torch.nn.utils.rnn import pad_sequence

    groups = questions_by_topic(questions)
    sums = dict.fromkeys(groups, 0.0)
    counts = dict.fromkeys(groups, 0)
    # Like lengths together; the sums do not depend on the order but for rounding.
    ordered = sorted(questions, key=lambda question: (len(question.question), question.id))
    was_training = model.training
    model.eval()
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id or 0
    try:
        with torch.inference_mode():
            for first in range(0, len(ordered), batch_size):
                rows = ordered[first : first + batch_size]
                encoded = [tokenizer(row.question, return_special_tokens_mask=True) for row in rows]
                texts = [torch.tensor(item["input_ids"], dtype=torch.long) for item in encoded]
                ids = pad_sequence(texts, batch_first=True, padding_value=pad)
                mask = pad_sequence([torch.ones_like(text) for text in texts], batch_first=True)
                special = [torch.tensor(item["special_tokens_mask"], dtype=torch.bool) for item in encoded]
                kept = ~pad_sequence(special, batch_first=True, padding_value=True)
                if not kept.any(dim=1).all():
                    empty = rows[int(kept.any(dim=1).long().argmin())]
                    raise DataError(f"the question {empty.id!r} has no token to embed: {empty.question!r:.100}")
                device = model.device
                states = model.base_model(input_ids=ids.to(device), attention_mask=mask.to(device)).last_hidden_state
                # Selected, not multiplied: a padded place may hold anything, NaN as well.
                totals = torch.where(kept[..., None].to(device), states.double(), 0.0).sum(dim=1).cpu().numpy()
                for row, total, count in zip(rows, totals, kept.sum(dim=1).tolist(), strict=True):
                    sums[row.topic] = sums[row.topic] + total
                    counts[row.topic] += count
    finally:
        model.train(was_training)
    return {topic: sums[topic] / counts[topic] for topic in groups}


def _take(
    questions: Sequence[PreferenceQuestion],
    groups: Mapping[str, list[PreferenceQuestion]],
    names: list[str],
    topics: int | None,
    per_topic: int | None,
    seed: int,
) -> list[PreferenceQuestion]:
    """Questions of the first of these topics."""
    for name, value in (("topics", topics), ("questions_per_topic", per_topic)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if topics is not None and topics > len(names):
        raise DataError(f"{topics} topics are wanted and there are {len(names)}")
    kept = set()
    for topic in names[:topics]:
        ids = sorted(question.id for question in groups[topic])
        random.Random(f"{seed} {topic}").shuffle(ids)
        kept.update(ids[:per_topic])
    return [question for question in questions if question.id in kept]


def _normalised(vectors: Mapping[str, np.ndarray], names: Sequence[str]) -> np.ndarray:
    matrix = np.stack([np.asarray(vectors[name], dtype=np.float64) for name in names])
    lengths = np.linalg.norm(matrix, axis=1)
    for name, length in zip(names, lengths, strict=True):
        if not (np.isfinite(length) and length > 0):
            raise DataError(f"the embedding of the topic {name!r} is all zeros or not finite; it has no direction")
    return matrix / lengths[:, None]

"""Completions that are verified while others of their batch are still generated."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from hf_factuality.chat.local import local_chats
from hf_factuality.rewards.answers import THINK_OPENED
from hf_factuality.spans import TokenOffsets, token_offsets
from hf_factuality.trainers._settings import refuse, require
from hf_factuality.verifiers.batches import BatchJudge


CHUNKS = "Parts of a generation batch that are verified while the rest is generated. 1: no overlap."
_TEXTS = ("prompt", "completion", "completion_ids")


def require_chunks(config: Any) -> None:
    """Refuse a `generation_chunks` that a generation batch cannot be cut into."""
    require(
        config, "generation_chunks", lambda chunks: isinstance(chunks, int) and chunks > 0, "a whole number above 0"
    )
    if config.generation_chunks == 1:
        return
    rows, group = config.per_device_train_batch_size * config.steps_per_generation, _group(config)
    paged = config.use_transformers_continuous_batching
    beams = (config.generation_kwargs or {}).get("num_beams", 1)
    sleeps = config.use_vllm and config.vllm_mode == "colocate" and config.vllm_enable_sleep_mode
    refuse(
        config,
        use_transformers_continuous_batching=paged and "schedules a whole batch; set it to False, or one chunk",
        vllm_enable_sleep_mode=sleeps and "would load the weights for every chunk; set it to False, or one chunk",
        generation_kwargs=beams != 1 and "has num_beams, whose rows are no completions; drop it, or take one chunk",
        generation_chunks=rows % (config.generation_chunks * group)
        and f"must divide the {rows} completions that a process generates at a time into equal chunks of whole groups of "
        f"{group}; change it, per_device_train_batch_size or steps_per_generation",
    )


def _group(config: Any, size: int | None = None) -> int:
    """Completions that stay together: a server is sent each prompt once, for its whole group."""
    served = config.use_vllm and config.vllm_mode == "server"
    return (size or config.num_generations) if served else 1


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the columns that reward functions do not get."""
    return [{name: row[name] for name in row if name not in _TEXTS} for row in rows]


class GeneratesInChunks:
    """Hands completions that are finished to whoever judges ahead, while others of the batch are still generated.

    With vLLM a batch is cut into `args.generation_chunks`; with transformers it is generated as the parent does, and rows that
    have ended are handed over, at least a chunk's number at a time. Who judges are reward functions, or their `owner`, with a
    [`BatchJudge`] as `judging` and a method `ahead(texts, rows, places)`. The parent's scoring then finds what is judged. With
    one chunk nothing is handed over.
    """

    _generating: Sequence[Mapping[str, Any]] = ()
    _decoded: dict[int, tuple[list[int], TokenOffsets]] = {}

    @property
    def _judges(self) -> dict[Any, str]:
        """Who judges ahead, and for which reward."""
        functions = [inspect.unwrap(function) for function in self.reward_funcs]
        owners = zip([getattr(one, "owner", one) for one in functions], self.reward_func_names, strict=True)
        return {owner: name for owner, name in owners if isinstance(getattr(owner, "judging", None), BatchJudge)}

    def _check_overlap(self) -> None:
        given, judges = f"generation_chunks={self.args.generation_chunks}", self._judges
        if self.args.generation_chunks > 1 and not judges:
            raise ValueError(f"{given} without a reward that judges ahead, in {self.reward_func_names}; set it to 1")
        for judge, name in judges.items():
            if self.args.generation_chunks > 1 and local_chats(judge.judging.guard):
                raise ValueError(
                    f"{given}: the verifier of {name!r} asks a model of this process, which cannot judge while the policy "
                    "generates; set it to 1, or let a server judge"
                )

    def _generate_and_score_completions(self, inputs):
        self._generating, self._decoded = inputs, {}
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self._generating = ()
            for judge in self._judges:
                judge.judging.stop()

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        count, group = len(prompt_ids), _group(self.args, num_generations)
        # Batches of an evaluation may be of any size; those of a part of a group stay whole.
        size = count if count % group else math.ceil(count / group / self.args.generation_chunks) * group
        if size >= count or not self.use_vllm:
            with self._watching(size if size < count else 0):
                return super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, has_tool_images
                )
        completion_ids, logprobs = [], []
        for start in range(0, count, size):
            part = slice(start, start + size)
            # Of text, without any image.
            fields = {name: values[part] for name, values in multimodal_fields.items()}
            found, scores = super()._generate_single_turn(prompt_ids[part], None, fields, num_generations)
            completion_ids += found
            logprobs += scores or []
            self._hand_over(range(start, start + len(found)), found)
        return completion_ids, logprobs or None

    @contextmanager
    def _watching(self, size: int) -> Iterator[None]:
        """Hand rows over, `size` or more at a time, that have ended while the parent's `generate` goes on; none if it is 0."""
        if not size or not self._generating:
            yield
            return
        model = self.accelerator.unwrap_model(self.model_wrapped)
        watch = StoppingCriteriaList([_Ended(self.eos_token_ids, size, self._hand_over)])
        model.generate = partial(model.generate, stopping_criteria=watch)
        try:
            yield
        finally:
            del model.generate

    def _hand_over(self, places: Sequence[int], completion_ids: list[list[int]]) -> None:
        """Let judges begin with the completions at these places of the batch."""
        if not self._generating:
            return
        tokens = [token_offsets(self._tokenizer, ids) for ids in completion_ids]
        rows = [self._generating[place] for place in places]
        given = [
            {**own, "prompts": row["prompt"], THINK_OPENED: self._opened[place]}
            for own, row, place in zip(columns_of(rows), rows, places, strict=True)
        ]
        for judge in self._judges:
            judge.ahead([its.text for its in tokens], given, places)
        self._decoded |= zip(places, zip(completion_ids, tokens, strict=True), strict=True)

    def _offsets(self, completion_ids: list[list[int]]) -> list[TokenOffsets]:
        """Characters of tokens; what was decoded when it was handed over is not decoded again."""
        known = self._decoded
        self._decoded = {
            place: known[place] if known.get(place, (None,))[0] == ids else (ids, token_offsets(self._tokenizer, ids))
            for place, ids in enumerate(completion_ids)
        }
        return [tokens for _, tokens in self._decoded.values()]


class _Ended(StoppingCriteria):
    """Stops nothing: tells which rows have ended, `size` or more at a time, and their completions."""

    def __init__(self, eos: list[int], size: int, tell: Callable[[Sequence[int], list[list[int]]], None]):
        self.eos, self.size, self.tell = eos, size, tell
        self.start: int | None = None
        self.ends: torch.Tensor | None = None
        self.known: set[int] = set()
        self.waiting: list[int] = []

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor, **kwargs) -> torch.BoolTensor:
        if self.start is None:
            self.start, self.ends = input_ids.size(1) - 1, torch.tensor(self.eos, device=input_ids.device)
        ended = torch.isin(input_ids[:, -1], self.ends)
        now = [place for place in ended.nonzero()[:, 0].tolist() if place not in self.known]
        self.known.update(now)
        self.waiting += now
        if len(self.waiting) >= self.size:
            told, self.waiting = sorted(self.waiting), []
            completions = input_ids[told, self.start :].tolist()
            self.tell(
                told, [ids[: 1 + next(n for n, one in enumerate(ids) if one in self.eos)] for ids in completions]
            )
        return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

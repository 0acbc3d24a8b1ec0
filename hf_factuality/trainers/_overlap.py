"""Completions that are generated in chunks, of which the finished ones are verified while the next is generated."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from hf_factuality.chat.local import local_chats
from hf_factuality.spans import TokenOffsets, token_offsets


TEXTS = ("prompt", "completion", "completion_ids")
"""Columns that the parent does not pass on from the rows of the dataset."""


class GeneratesInChunks:
    """Cuts a generation batch into `args.generation_chunks`, and hands finished completions to whoever judges ahead.

    That are reward functions, or the `owner` of several, with methods `ahead(texts, columns)` and `stop()`, and a trainer
    that extends `_hand_over`. The parent's scoring then finds what is judged. With one chunk nothing is handed over.
    """

    _generating: list[Mapping[str, Any]] = []
    _decoded: list[tuple[list[int], TokenOffsets]] = []

    @property
    def _judges(self) -> dict[str, Any]:
        """Whose verdicts can be made ahead, and what they reward."""
        named = zip(self.reward_func_names, map(inspect.unwrap, self.reward_funcs), strict=True)
        owners = {name: getattr(function, "owner", function) for name, function in named}
        return {name: owner for name, owner in owners.items() if callable(getattr(owner, "ahead", None))}

    def _check_overlap(self) -> None:
        chunks = self.args.generation_chunks
        if chunks == 1:
            return
        guard = getattr(self, "_guard", None)
        judges = {**self._judges, **({} if guard is None else {"factuality": guard})}
        if not judges:
            raise ValueError(
                f"generation_chunks={chunks} without a reward that can be judged ahead, of {self.reward_func_names}; set it to 1"
            )
        for name, judge in judges.items():
            if local_chats(getattr(judge, "verifier", None)):
                raise ValueError(
                    f"generation_chunks={chunks}: the verifier of {name!r} asks a model of this process, which cannot judge "
                    "while the policy generates; set it to 1, or let a server judge"
                )

    def _generate_and_score_completions(self, inputs):
        self._generating, self._decoded = inputs, []
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self._generating = []
            for judge in (*self._judges.values(), getattr(self, "_batches", None)):
                if judge is not None:
                    judge.stop()

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        count, args = len(prompt_ids), self.args
        unit = num_generations if args.use_vllm and args.vllm_mode == "server" else 1
        # Batches of an evaluation may be of any size; with parts of groups they stay whole.
        size = count if count % unit else math.ceil(count / unit / args.generation_chunks) * unit
        if size >= count:
            return super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
        completion_ids: list[list[int]] = []
        logprobs: list[Any] = []
        for start in range(0, count, size):
            part = slice(start, start + size)
            fields = {name: values[part] for name, values in multimodal_fields.items()}
            found, scores = super()._generate_single_turn(
                prompt_ids[part], None if images is None else images[part], fields, num_generations, has_tool_images
            )
            completion_ids += found
            logprobs += scores or []
            tokens = [token_offsets(self._tokenizer, ids) for ids in found]
            self._decoded = [*self._decoded, *zip(found, tokens, strict=True)]
            if self._generating:
                self._hand_over(self._generating[part], tokens, start)
        return completion_ids, logprobs or None

    def _hand_over(self, inputs: list[Mapping[str, Any]], tokens: list[TokenOffsets], start: int) -> None:
        """Let judges begin with finished completions, which are those of the batch from number `start` on."""
        judges = {id(judge): judge for judge in self._judges.values()}
        columns = {name: [row[name] for row in inputs] for name in inputs[0] if name not in TEXTS}
        columns["prompts"] = [row["prompt"] for row in inputs]
        for judge in judges.values():
            judge.ahead([its.text for its in tokens], columns)

    def _offsets(self, completion_ids: list[list[int]]) -> list[TokenOffsets]:
        """Characters of tokens; what was decoded when it was handed over is not decoded again."""
        if [ids for ids, _ in self._decoded] != completion_ids:
            self._decoded = [(ids, token_offsets(self._tokenizer, ids)) for ids in completion_ids]
        return [tokens for _, tokens in self._decoded]

"""Completions that are generated in chunks, of which the finished ones are verified while the next is generated."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hf_factuality.chat.local import local_chats
from hf_factuality.spans import TokenOffsets, token_offsets
from hf_factuality.trainers._settings import refuse, require
from hf_factuality.verifiers.batches import BatchJudge


CHUNKS = "Chunks that a generation batch is generated in; finished ones are verified meanwhile. 1: no overlap."
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
    sleeps = config.use_vllm and config.vllm_mode == "colocate" and config.vllm_enable_sleep_mode
    refuse(
        config,
        use_transformers_continuous_batching=paged and "schedules a whole batch; set it to False, or one chunk",
        vllm_enable_sleep_mode=sleeps and "would load the weights for every chunk; set it to False, or one chunk",
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
    """Cuts a generation batch into `args.generation_chunks`, and hands finished completions to whoever judges ahead.

    Those are reward functions, or their `owner`, with a [`BatchJudge`] as `judging` and a method `ahead(texts, rows)`. The
    parent's scoring then finds what is judged. With one chunk nothing is handed over.
    """

    _generating: Sequence[Mapping[str, Any]] = ()
    _decoded: Sequence[tuple[list[int], TokenOffsets]] = ()

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
        self._generating, self._decoded = inputs, ()
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
        if size >= count:
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
            if self._generating:
                self._hand_over(self._generating[part], found)
        return completion_ids, logprobs or None

    def _hand_over(self, rows: Sequence[Mapping[str, Any]], completion_ids: list[list[int]]) -> None:
        """Let judges begin with the next completions of the batch."""
        tokens = [token_offsets(self._tokenizer, ids) for ids in completion_ids]
        given = [{**own, "prompts": row["prompt"]} for own, row in zip(columns_of(rows), rows, strict=True)]
        for judge in self._judges:
            judge.ahead([its.text for its in tokens], given)
        self._decoded = [*self._decoded, *zip(completion_ids, tokens, strict=True)]

    def _offsets(self, completion_ids: list[list[int]]) -> list[TokenOffsets]:
        """Characters of tokens; what was decoded when it was handed over is not decoded again."""
        if [ids for ids, _ in self._decoded] != completion_ids:
            self._decoded = [(ids, token_offsets(self._tokenizer, ids)) for ids in completion_ids]
        return [tokens for _, tokens in self._decoded]

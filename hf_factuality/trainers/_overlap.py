"""Completions that are judged while others of their batch are still generated: the setting, and the rows that have ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from transformers import StoppingCriteria

from hf_factuality.trainers._settings import refuse_settings, require


CHUNKS = "Parts of a generation batch that are verified while the rest is generated. 1: no overlap."
_TEXTS = ("prompt", "completion", "completion_ids")


def require_chunks(config: Any) -> None:
    """Refuse a `generation_chunks` that a generation batch cannot be cut into."""
    require(
        config, "generation_chunks", lambda chunks: isinstance(chunks, int) and chunks > 0, "a whole number above 0"
    )
    if config.generation_chunks == 1:
        return
    rows, group = config.per_device_train_batch_size * config.steps_per_generation, together(config)
    paged = config.use_transformers_continuous_batching
    beams = (config.generation_kwargs or {}).get("num_beams", 1)
    sleeps = config.use_vllm and config.vllm_mode == "colocate" and config.vllm_enable_sleep_mode
    refuse_settings(
        config,
        use_transformers_continuous_batching=paged and "schedules a whole batch; set it to False, or one chunk",
        vllm_enable_sleep_mode=sleeps and "would load the weights for every chunk; set it to False, or one chunk",
        generation_kwargs=beams != 1 and "has num_beams, whose rows are no completions; drop it, or take one chunk",
        generation_chunks=rows % (config.generation_chunks * group)
        and f"must divide the {rows} completions that a process generates at a time into equal chunks of whole groups of "
        f"{group}; change it, per_device_train_batch_size or steps_per_generation",
    )


def together(config: Any, size: int | None = None) -> int:
    """Completions that stay together: a server is sent each prompt once, for its whole group."""
    served = config.use_vllm and config.vllm_mode == "server"
    return (size or config.num_generations) if served else 1


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the columns that reward functions do not get."""
    return [{name: row[name] for name in row if name not in _TEXTS} for row in rows]


class EndedRows(StoppingCriteria):
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

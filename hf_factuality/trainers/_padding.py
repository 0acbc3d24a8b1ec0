"""Passes without padding: which columns and rows of a batch can be left out without changing what is computed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


# Their positions are rotary, and yet what they compute depends on how many columns stand before a text.
_BY_COLUMN = ("beam", "deepseek_v4", "recurrent_gemma")


def may_cut(models: Sequence[Any]) -> tuple[bool, bool]:
    """Whether columns that are padding may be cut on the left, where positions count from the first unless they are rotary,
    and on the right, where rotary frequencies may depend on the largest; in all of the models."""
    # The virtual tokens of a prompt that is learnt stand before the padding.
    left = not getattr(getattr(models[0], "active_peft_config", None), "is_prompt_learning", False)
    right = True
    for model in models:
        config = model.config.get_text_config().to_dict()
        rope = repr(config.get("rope_parameters"))
        by_position = config.get("attn_temperature_tuning") or "llama_4_scaling" in rope
        left = left and rope != "None" and not by_position and config["model_type"] not in _BY_COLUMN
        right = right and not any(kind in rope for kind in ("dynamic", "longrope"))
    return left and right, right


class LiveRows:
    """Hooks of a model that generates: rows that have ended are taken out of its passes and of its cache, once they are a quarter.

    `generate` sees logits of all rows, zeros where there was no pass, so that it draws the same random numbers; what it draws
    for rows that have ended it replaces by padding.
    """

    def __init__(self, eos: list[int]):
        self.eos = eos
        self.rows: torch.Tensor | None = None
        self.count = 0

    def before(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        ids, cache = kwargs.get("input_ids"), kwargs.get("past_key_values")
        # Other layers, of linear attention or quantised, do not select all of their states; nor do those that are elsewhere.
        kinds = {type(layer) for layer in getattr(cache, "layers", ())}
        plain = kinds and kinds <= {DynamicLayer, DynamicSlidingWindowLayer} and not cache.offloading
        if ids is None or not plain or ids.size(1) != 1 or not cache.get_seq_length():
            self.rows = None
            return None
        if self.rows is None:
            self.count, self.rows = len(ids), torch.arange(len(ids), device=ids.device)
            self.ended = torch.zeros_like(ids[:, 0], dtype=bool)
        self.ended |= torch.isin(ids[:, 0], torch.tensor(self.eos, device=ids.device))
        live = (~self.ended[self.rows]).nonzero()[:, 0]
        if 0 < len(live) <= 0.75 * len(self.rows):
            cache.batch_select_indices(live)
            self.rows = self.rows[live]
        if len(self.rows) == self.count:
            return None
        of_rows = {
            name: value[self.rows]
            for name, value in kwargs.items()
            if torch.is_tensor(value) and value.dim() > 1 and len(value) == self.count
        }
        return args, kwargs | of_rows

    def after(self, module: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        if self.rows is not None and len(self.rows) < self.count:
            logits = output.logits.new_zeros(self.count, *output.logits.shape[1:])
            logits[self.rows] = output.logits
            output.logits = logits
        return output


def by_length(mask: torch.Tensor, size: int | None) -> list[torch.Tensor]:
    """Rows of a mask of shape (B, T) in chunks of `size` (all: `None`), those of like length together; shape (size,) each."""
    rows = torch.arange(len(mask), device=mask.device)
    if size is None or size >= len(mask):
        return [rows]
    return list(mask.sum(1).argsort(stable=True).split(size))


def ordered(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Micro-batches of the same rows, those with completions of like length together."""
    joined = {
        name: torch.cat([batch[name] for batch in batches]) if torch.is_tensor(value) and value.dim() else value
        for name, value in batches[0].items()
    }
    order = by_length(joined["completion_mask"], len(batches[0]["completion_mask"]))
    return [
        {name: value[rows] if torch.is_tensor(value) and value.dim() else value for name, value in joined.items()}
        for rows in order
    ]


def used_columns(mask: torch.Tensor) -> tuple[int, int]:
    """The first column of a mask of shape (B, T) that any row uses, and one past the last; the last and 1 if none does."""
    used = mask.any(dim=0).nonzero()
    return (int(used[0]), int(used[-1]) + 1) if len(used) else (mask.size(1) - 1, 1)

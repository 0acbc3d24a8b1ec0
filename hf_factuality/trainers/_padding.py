"""Rows of a micro-batch without the columns that only rows elsewhere in the generation batch need."""

from __future__ import annotations

from typing import Any

import torch


def without_padding(inputs: dict[str, Any]) -> dict[str, Any]:
    """Cut off the columns of a micro-batch that are padding in all of its rows: nothing is computed from them.

    A generation batch is padded to its longest prompt and completion before it is split, and with few rows per
    micro-batch most passes would be over padding.

    Args:
        inputs (`dict`):
            With `prompt_ids`, `prompt_mask` (B, P), padded on the left, and `completion_ids`, `completion_mask` (B, T),
            padded on the right. Other tensors of shape (B, T) are cut like the completions. Everything else stays.

    Returns:
        `dict`: a new one; of prompts and of completions at least one column stays.
    """
    prompts, completions = inputs["prompt_mask"], inputs["completion_mask"]
    used = prompts.any(dim=0).nonzero()
    first = int(used[0]) if len(used) else prompts.size(1) - 1
    used = completions.any(dim=0).nonzero()
    end = int(used[-1]) + 1 if len(used) else 1

    def cut(name: str, value: Any) -> Any:
        if not torch.is_tensor(value) or value.dim() != 2:
            return value
        if name in ("prompt_ids", "prompt_mask"):
            return value[:, first:]
        return value[:, :end] if value.size(1) == completions.size(1) else value

    return {name: cut(name, value) for name, value in inputs.items()}

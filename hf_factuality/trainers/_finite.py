"""The batch of a number that is not finite, as rows of a file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def batch_rows(batch: Mapping[str, Any], tokenizer) -> list[dict[str, Any]]:
    """What a batch of either kind of trainer holds, one row per completion, pair or text."""

    def texts(name: str) -> list[str]:
        masks = batch["attention_mask" if name == "input" else f"{name}_mask"].bool()
        return [tokenizer.decode(ids[mask]) for ids, mask in zip(batch[f"{name}_ids"], masks, strict=True)]

    if "completion_ids" not in batch:
        both = texts("input")
        if "completion_mask" not in batch:
            return [{"text": text} for text in both]
        chosen, rejected = both[: len(both) // 2], both[len(both) // 2 :]
        return [{"chosen": one, "rejected": other} for one, other in zip(chosen, rejected, strict=True)]
    rows = [{"prompt": p, "completion": c} for p, c in zip(texts("prompt"), texts("completion"), strict=True)]
    for index, row in enumerate(rows):
        row["rewards"] = {
            name.removeprefix("rewards/"): _number(column[index].item())
            for name, column in batch.items()
            if name.startswith("rewards/")
        }
    return rows


def _number(value: float) -> float | str | None:
    """JSON has no infinity, and NaN stands for what is unknown."""
    return None if math.isnan(value) else str(value) if math.isinf(value) else value

"""What the configurations share: a field with its line of help, and checks that name the setting and its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import field
from typing import Any


def setting(default: Any, text: str, choices: Collection[Any] | None = None) -> Any:
    """A field of a configuration, with what the command line says of it."""
    return field(default=default, metadata={"help": text, **({} if choices is None else {"choices": list(choices)})})


def require(config: Any, names: str, holds: Callable[[Any], bool], must: str) -> None:
    """Refuse the first of the settings `names`, words in a string, whose value does not pass."""
    for name in names.split():
        if not holds(value := getattr(config, name)):
            raise ValueError(f"{name}={value!r} must be {must}")


def require_choice(config: Any, **choices: Collection[Any]) -> None:
    """Refuse the first setting whose value is none of its choices."""
    for name, known in choices.items():
        if (value := getattr(config, name)) not in known:
            raise ValueError(f"{name}={value!r} is unknown; choose one of {list(known)}")


def refuse(config: Any, **reasons: str | bool | None) -> None:
    """Refuse the first setting with a reason, why it cannot work and what to set; anything false is none."""
    for name, reason in reasons.items():
        if reason:
            raise ValueError(f"{name}={getattr(config, name)!r} {reason}")


def require_chunks(config: Any) -> None:
    """Refuse `generation_chunks` that a generation batch cannot be cut into."""
    require(
        config, "generation_chunks", lambda value: isinstance(value, int) and value >= 1, "a whole number, at least 1"
    )
    chunks, rows = config.generation_chunks, config.per_device_train_batch_size * config.steps_per_generation
    served = config.use_vllm and config.vllm_mode == "server"
    # A server is sent each prompt once, for its whole group.
    unit = config.num_generations if served else 1
    units = f"groups of {unit}" if served else "completions"
    refuse(
        config,
        use_transformers_continuous_batching=chunks > 1
        and config.use_transformers_continuous_batching
        and "schedules a whole batch by itself; set it to False, or generation_chunks to 1",
        vllm_enable_sleep_mode=chunks > 1
        and config.use_vllm
        and not served
        and config.vllm_enable_sleep_mode
        and "would load the weights again for every chunk; set it to False, or generation_chunks to 1",
        generation_chunks=rows % (chunks * unit)
        and f"must divide the {rows} completions that a process generates at a time into equal chunks of whole {units}; "
        "change it, per_device_train_batch_size or steps_per_generation",
    )


def is_positive(value: float) -> bool:
    return 0 < value < math.inf


GENERATION_CHUNKS = (
    "Chunks that a generation batch is generated in; finished ones are verified meanwhile. 1: no overlap."
)


def is_weight(value: float) -> bool:
    return 0 <= value < math.inf

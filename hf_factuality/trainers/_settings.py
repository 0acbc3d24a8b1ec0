"""What the configurations share: a field with its line of help, and checks that name the setting and its value."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import field
from typing import Any

from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available


class Precision:
    """Beneath all configurations: 16 bits by default where an accelerator has them, and 32 everywhere else.

    TRL's default is bfloat16 on any machine. On a CPU it is refused, or with `use_cpu=True` less exact.
    """

    def _takes_bf16(self) -> bool:
        return not self.use_cpu and (is_torch_bf16_gpu_available() or is_torch_xla_available())

    def __post_init__(self):
        if self.bf16 is None and not self._takes_bf16():
            self.bf16 = False
        super().__post_init__()


def setting(default: Any, text: str, choices: Collection[Any] | None = None) -> Any:
    """A field of a configuration, with what the command line says of it."""
    return field(default=default, metadata={"help": text, **({} if choices is None else {"choices": list(choices)})})


def require(config: Any, names: str, holds: Callable[[Any], bool], must: str) -> None:
    """Refuse the first of the settings `names`, words in a string, whose value does not pass."""
    for name in names.split():
        value = getattr(config, name)
        try:
            fits = holds(value)
        except TypeError:  # a text where a number is wanted
            fits = False
        if not fits:
            raise ValueError(f"{name}={value!r} must be {must}")


def require_choice(config: Any, **choices: Collection[Any]) -> None:
    """Refuse the first setting whose value is none of its choices."""
    for name, known in choices.items():
        if (value := getattr(config, name)) not in known:
            raise ValueError(f"{name}={value!r} is unknown; choose one of {list(known)}")


def refuse_settings(config: Any, **reasons: str | bool | None) -> None:
    """Refuse the first setting with a reason, why it cannot work and what to set; anything false is none."""
    for name, reason in reasons.items():
        if reason:
            raise ValueError(f"{name}={getattr(config, name)!r} {reason}")


def is_positive(value: float) -> bool:
    return 0 < value < math.inf


def is_weight(value: float) -> bool:
    return 0 <= value < math.inf

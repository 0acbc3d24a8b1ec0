"""The settings of sampling, for judges, builders and `evaluate` alike, and the one place that checks them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How completions are sampled, with the names of `transformers.GenerationConfig` and `vllm.SamplingParams`.

    Args:
        max_new_tokens (`int`, *optional*, defaults to `256`):
            Longest completion.
        temperature (`float`, *optional*, defaults to `1.0`):
            Of sampling; at 0 each token is the likeliest.
        top_p (`float`, *optional*, defaults to `1.0`):
            Nucleus.
        top_k (`int`, *optional*, defaults to `0`):
            Tokens to draw from; 0 for all. Of servers, vLLM and SGLang know it.
        min_p (`float`, *optional*, defaults to `0.0`):
            Least probability of a token, as a share of that of the likeliest. Of servers, vLLM and SGLang know it.
        seed (`int`, *optional*):
            Tells repeated samples of one prompt apart, and makes them again.
        num_samples (`int`, *optional*, defaults to `1`):
            Completions per prompt.
        stop (`tuple[str, ...]`, *optional*):
            Texts that end a completion, and are not part of it.
        chat_template_kwargs (`Mapping[str, Any]`, *optional*):
            Further arguments of the chat template, such as `{"enable_thinking": False}`.

    Raises:
        `ValueError`: a value is out of range, or several samples would all be the same.
    """

    max_new_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    num_samples: int = 1
    stop: tuple[str, ...] = ()
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self):
        for name, fine, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 1, "at least 1"),
            ("temperature", 0 <= self.temperature < math.inf, "a number from 0 up"),
            ("top_p", 0 < self.top_p <= 1, "in (0, 1]"),
            ("top_k", self.top_k >= 0, "at least 0, which stands for all tokens"),
            ("min_p", 0 <= self.min_p <= 1, "in [0, 1]"),
            ("num_samples", self.num_samples >= 1, "at least 1"),
            ("stop", not isinstance(self.stop, str) and all(self.stop), "a tuple of texts that are not empty"),
        ):
            if not fine:
                raise ValueError(f"`{name}` must be {wanted}, got {getattr(self, name)!r}")
        if self.num_samples > 1 and self.temperature == 0:
            raise ValueError(
                f"`num_samples` {self.num_samples} at `temperature` 0 gives the same completion again and again; raise "
                "`temperature`, or take one sample"
            )

    def describe(self) -> dict[str, Any]:
        """What a run must keep the same; what is seldom set only where it is."""
        rare = {"min_p": 0.0, "seed": None, "stop": (), "chat_template_kwargs": {}}
        values = ((it.name, getattr(self, it.name)) for it in fields(SamplingConfig))
        return {name: value for name, value in values if name not in rare or value != rare[name]}

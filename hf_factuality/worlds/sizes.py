"""Worlds and models that go together, from a minute on a laptop to hours on a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hf_factuality.worlds.tokenizer import TOKENIZERS
from hf_factuality.worlds.world import WorldConfig


@dataclass(frozen=True)
class WorldModelConfig:
    """Size and training of the world's model.

    Args:
        hidden_size (`int`, *optional*, defaults to `192`):
            Width, a multiple of twice `num_heads`.
        intermediate_size (`int`, *optional*, defaults to `512`):
            Width of the feed-forward layers.
        num_layers (`int`, *optional*, defaults to `4`):
            Depth.
        num_heads (`int`, *optional*, defaults to `4`):
            Attention heads.
        tokenizer (`str`, *optional*, defaults to `"word"`):
            `"word"` or `"bpe"`.
        steps (`int`, *optional*, defaults to `1800`):
            Optimizer steps.
        batch_size (`int`, *optional*, defaults to `64`):
            Texts per step.
        learning_rate (`float`, *optional*, defaults to `3e-3`):
            Peak, reached after 50 steps and held for 30 % of the steps, then linear decay to 0.
        questions (`float`, *optional*, defaults to `0.4`):
            Share of the texts that are worked answers.
        short_answers (`float`, *optional*, defaults to `0.1`):
            Share of the texts that are single facts; the others are biographies.
        seed (`int`, *optional*, defaults to `0`):
            Initial weights and texts.

    Raises:
        `ValueError`: sizes or shares that cannot be.
    """

    hidden_size: int = 192
    intermediate_size: int = 512
    num_layers: int = 4
    num_heads: int = 4
    tokenizer: str = "word"
    steps: int = 1800
    batch_size: int = 64
    learning_rate: float = 3e-3
    questions: float = 0.4
    short_answers: float = 0.1
    seed: int = 0

    def __post_init__(self):
        for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "steps", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.tokenizer not in TOKENIZERS:
            raise ValueError(f"tokenizer={self.tokenizer!r} is unknown; choose one of {list(TOKENIZERS)}")
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(f"hidden_size={self.hidden_size} must be a multiple of twice num_heads={self.num_heads}")
        if not (0 <= self.questions <= 1 and 0 <= self.short_answers <= 1 - self.questions):
            shares = f"questions={self.questions} and short_answers={self.short_answers}"
            raise ValueError(f"{shares} are shares of the texts and must not exceed 1 together")


SIZES: Mapping[str, tuple[WorldConfig, WorldModelConfig]] = {
    # What `make train` uses: birthplaces, employers and universities only, 0.7 million parameters.
    "demo": (
        WorldConfig(
            num_people=300, num_attributes=0, popularity_exponent=1.0, filler=0.0, unknown=0.0, hedged=0.0
        ),
        WorldModelConfig(
            hidden_size=128, intermediate_size=352, num_layers=3, steps=1200, questions=0.5, short_answers=0.0
        ),
    ),
    # 2 million parameters, minutes on a CPU.
    "tiny": (WorldConfig(), WorldModelConfig()),
    # 30 million parameters, for one GPU.
    "small": (
        WorldConfig(num_people=5000, num_values=120),
        WorldModelConfig(
            hidden_size=512, intermediate_size=1408, num_layers=8, num_heads=8, steps=8000, batch_size=128,
            learning_rate=1e-3,
        ),
    ),
    # 100 million parameters, for one GPU.
    "base": (
        WorldConfig(num_people=20_000, num_values=240),
        WorldModelConfig(
            hidden_size=768, intermediate_size=2048, num_layers=12, num_heads=12, steps=20_000, batch_size=256,
            learning_rate=6e-4,
        ),
    ),
}  # fmt: skip

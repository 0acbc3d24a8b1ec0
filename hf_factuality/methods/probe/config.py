"""Configuration of [`ProbeTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from hf_factuality.methods.probe.formula import POOLS
from hf_factuality.methods.truthfulness.config import TruthfulnessConfig
from hf_factuality.trainers._settings import require, require_choice, setting


@dataclass
class ProbeConfig(TruthfulnessConfig):
    r"""
    [`TruthfulnessConfig`] for a head that reads tokens. `template` ends in `{{claim|plain}}`, where the completion stands;
    `ratio` stays `None`, since whole completions are read; the threshold is chosen on what the temperature is fitted on.

    Parameters:
        layer (`float`, *optional*, defaults to `0.95`):
            Depth of the layer that is read, as a share of the base's layers; those above it are not loaded.
        pool (`str`, *optional*, defaults to `"max"`):
            What a span is judged by: `"max"`, the highest P(hallucinated) of its tokens, or `"mean"`, their mean log-odds.
        span_weight (`float`, *optional*):
            Share of the loss that is of spans, the rest of tokens. `None`: from 0 at the first step to 1 at the last.
    """

    ratio: float | None = setting(
        None, "Supported claims per other one in training; None, since completions are read whole."
    )
    layer: float = setting(0.95, "Depth of the layer that is read, as a share of all.")
    pool: str = setting("max", "How the tokens of a span are read as one: 'max' or 'mean'.")
    span_weight: float | None = setting(None, "Share of the loss that is of spans; None: rises from 0 to 1.")

    def __post_init__(self):
        super().__post_init__()
        require(self, "ratio", lambda value: value is None, "None: a completion is read whole")
        require(self, "layer", lambda value: 0 < value <= 1, "in (0, 1]")
        require_choice(self, pool=POOLS)
        require(self, "span_weight", lambda value: value is None or 0 <= value <= 1, "in [0, 1], or None")
        end = "{{claim|plain}}"
        require(self, "template", lambda value: (value or end).endswith(end), f"a text that ends in {end}")

"""Configuration of [`VerifierTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from hf_factuality.methods.truthfulness.config import TruthfulnessConfig
from hf_factuality.trainers._settings import require, setting


@dataclass
class VerifierConfig(TruthfulnessConfig):
    r"""
    [`TruthfulnessConfig`] for a classifier that reads a claim beside its evidence. `ratio` is `None` by default, which keeps all
    claims, and is of supported claims per other one; `max_length` is of a window of the evidence and the claim together;
    `template` stays `None`, since encoders read the two as a pair.

    Parameters:
        fit_threshold (`bool`, *optional*, defaults to `True`):
            Whether the verifier that is saved calls claims supported from the probability on that was best (by balanced
            accuracy) on the claims held out for calibration. `False`: from 0.5 on.
    """

    ratio: float | None = setting(None, "Supported claims per other one in training; None keeps all.")
    fit_threshold: bool = setting(True, "Keep the best threshold of the held-out claims; else it is 0.5.")

    def __post_init__(self):
        super().__post_init__()
        require(self, "template", lambda value: value is None, "None: evidence and claim are read as a pair")

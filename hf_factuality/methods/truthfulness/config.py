"""Configuration of [`TruthfulnessTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trl.trainer.base_config import _BaseConfig

from hf_factuality.methods.truthfulness.judge import claim_prompt
from hf_factuality.trainers._settings import Precision, is_positive, require, setting


@dataclass
class TruthfulnessConfig(Precision, _BaseConfig):
    r"""
    [`~transformers.TrainingArguments`] with TRL's defaults, and which claims are trained on and how they are read.

    Parameters:
        ratio (`float`, *optional*, defaults to `2.0`):
            Supported claims per contradicted one in training, by leaving out some of the kind that is too many (KLCF's 2:1).
            The loss makes up for it, so that probabilities are those at the natural ratio. `None` keeps all.
        calibration_share (`float`, *optional*, defaults to `0.1`):
            Share of the topics held out of training, on whose claims, at their natural ratio, the temperature is fitted.
        template (`str`, *optional*):
            What the model reads, with the places `{{question|plain}}` and `{{claim|plain}}`. `None`: the claim as the
            assistant's answer in the tokenizer's chat template, or below the question where there is none.
        max_length (`int`, *optional*, defaults to `512`):
            Tokens of that. Longer claims are left out, and counted.
        model_init_kwargs (`dict[str, Any]`, *optional*):
            Arguments of `from_pretrained` for a model given by name. The dtype is `float32` by default.
    """

    _VALID_DICT_FIELDS = [*_BaseConfig._VALID_DICT_FIELDS, "model_init_kwargs"]
    # `trainers/_checkpoints.py` asks.
    sync_ref_model = False

    ratio: float | None = setting(2.0, "Supported claims per other one in training; None keeps all.")
    calibration_share: float = setting(0.1, "Share of the topics held out, for the temperature.")
    template: str | None = setting(None, "What the model reads; None: the tokenizer's chat template.")
    max_length: int = setting(512, "Tokens of question and claim; longer ones are left out.")
    model_init_kwargs: dict[str, Any] | str | None = setting(None, "Arguments of from_pretrained.")

    def __post_init__(self):
        super().__post_init__()
        require(self, "ratio", lambda value: value is None or is_positive(value), "positive and finite, or None")
        require(self, "calibration_share", lambda value: 0 < value < 1, "between 0 and 1")
        require(self, "remove_unused_columns", bool, "True: topics are texts, and none is a tensor")
        require(self, "dataloader_drop_last", lambda value: not value, "False: what is dropped would not be measured")
        require(self, "max_length", lambda value: value >= 2, "at least 2")
        if self.template is not None:
            claim_prompt(self.template)

"""Configuration of [`AdaptiveAveragingTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from trl import SFTConfig

from hf_factuality.functional.averaging import LEVELS, PENALTIES, VARIANTS
from hf_factuality.trainers._settings import is_weight, require, require_choice, setting


@dataclass
class AdaptiveAveragingConfig(SFTConfig):
    r"""
    [`~trl.SFTConfig`] for ratios instead of weights; all `SFTConfig` fields keep their meaning.

    `learning_rate` is 0.01 by default. The released script of AMA has 2e-5, with which Adam moves the logit of a ratio by at most
    2e-5 a step: after an epoch of 1,000 steps the ratios are what they were.

    Parameters:
        alpha (`float`, *optional*, defaults to `0.2`):
            Mean of the ratios, which stays as it is: the weight of the model before alignment, in [0, 1].
        level (`str`, *optional*, defaults to `"block"`):
            What has a ratio of its own: a `"block"` of layers, a `"layer"` (the default of the released script), or a `"linear"`
            module.
        blocks (`int`, *optional*, defaults to `3`):
            Number of blocks, K, at level `"block"`.
        variant (`str`, *optional*, defaults to `"paper"`):
            `"paper"`, or `"released"`, see [`~hf_factuality.functional.averaging.RatioMap`].
        penalty_coef (`float`, *optional*, defaults to `1e-4`):
            Weight of the penalty for ratios that are not the mean.
        penalty (`str`, *optional*, defaults to `"uniform"`):
            Weight of a linear module in the penalty: 1, or `"middle"`: `25 / (|layer - 13| + 1)`.
        epsilon (`float`, *optional*, defaults to `0.2`):
            How little a ratio can become, see [`~hf_factuality.functional.averaging.adaptive_ratios`].
    """

    learning_rate: float = setting(1e-2, "Of the logits of the ratios; the released script has 2e-5.")
    alpha: float = setting(0.2, "Mean of the ratios: the weight of the model before alignment.")
    level: str = setting("block", "What has a ratio of its own: 'block', 'layer' or 'linear'.", LEVELS)
    blocks: int = setting(3, "Number of blocks, K.")
    variant: str = setting(
        "paper", "Which tensor has which ratio: 'paper', or 'released' as in AMA's script.", VARIANTS
    )
    penalty_coef: float = setting(1e-4, "Weight of the penalty for ratios that are not the mean.")
    penalty: str = setting("uniform", "Weight of a linear module in the penalty: 'uniform' or 'middle'.", PENALTIES)
    epsilon: float = setting(0.2, "How little a ratio can become.")
    sync_ref_model = False  # `trainers/_checkpoints.py` asks

    def __post_init__(self):
        super().__post_init__()
        require_choice(self, level=LEVELS, variant=VARIANTS, penalty=PENALTIES)
        require(self, "alpha", lambda value: 0 <= value <= 1, "in [0, 1]: the weight of the model before alignment")
        require(self, "penalty_coef epsilon", is_weight, "a finite number, at least 0")
        require(self, "blocks", lambda value: value >= 1, "at least 1")

"""Configuration of [`AdaptiveAveragingTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from trl import SFTConfig

from hf_factuality.methods.averaging.formula import LEVELS, PENALTIES, VARIANTS
from hf_factuality.trainers._settings import Precision, is_weight, refuse_settings, require, require_choice, setting


@dataclass
class AdaptiveAveragingConfig(Precision, SFTConfig):
    r"""
    [`~trl.SFTConfig`] for ratios instead of weights; the defaults are AMA's, with K = 3, but for `learning_rate`: 0.01. AMA's
    script has 2e-5, by which Adam moves the logit of a ratio at a step: in 1,000 steps a ratio of .2 would change by .002.

    Parameters:
        alpha (`float`, *optional*, defaults to `0.2`):
            Mean of the ratios, which stays as it is: the weight of the model before alignment, in [0, 1].
        level (`str`, *optional*, defaults to `"block"`):
            What has a ratio: `"block"`, `"layer"` (the default of AMA's script) or `"linear"` (a linear module).
        blocks (`int`, *optional*, defaults to `3`):
            Number of ratios, K, at level `"block"`.
        variant (`str`, *optional*, defaults to `"paper"`):
            `"paper"`, or `"released"`; see [`~hf_factuality.methods.averaging.formula.RatioMap`].
        penalty (`str`, *optional*, defaults to `"uniform"`):
            What the deviation of a ratio from `alpha` costs for each of its linear modules: `"uniform"`, 1, or `"middle"`,
            more in the layers around 13.
        penalty_coef (`float`, *optional*, defaults to `1e-4`):
            Weight of the penalty in the loss.
        epsilon (`float`, *optional*, defaults to `0.2`):
            The larger, the less ratios can differ.
    """

    learning_rate: float = setting(1e-2, "Of the logits of the ratios; AMA's script has 2e-5.")
    num_train_epochs: float = setting(1.0, "As in AMA.")
    hub_strategy: str = setting("end", "Checkpoints hold no model.", ["end"])
    sync_ref_model = False  # `trainers/_checkpoints.py` asks

    alpha: float = setting(0.2, "Weight of the model before alignment: the mean of all ratios.")
    level: str = setting("block", "What has a ratio: 'block', 'layer' or 'linear'.", LEVELS)
    blocks: int = setting(3, "Number of blocks, at level 'block'.")
    variant: str = setting(
        "paper", "Variant of the method: 'paper', or 'released': embeddings and norms of the model before.", VARIANTS
    )
    penalty: str = setting(
        "uniform", "Penalty of linear modules: 'uniform', or 'middle' (more around layer 13).", PENALTIES
    )
    penalty_coef: float = setting(1e-4, "Weight of the penalty on ratios that differ from alpha.")
    epsilon: float = setting(0.2, "Smoothing: larger values keep the ratios closer together.")

    def __post_init__(self):
        super().__post_init__()
        require(self, "alpha", lambda value: 0 <= value <= 1, "in [0, 1]: the weight of the model before alignment")
        require_choice(self, level=LEVELS, variant=VARIANTS, penalty=PENALTIES)
        require(self, "blocks", lambda value: value >= 1, "at least 1")
        require(self, "penalty_coef epsilon", is_weight, "at least 0 and finite")
        adds = not (self.chat_template_path or ".jinja").endswith((".jinja", ".j2"))
        reentrant = (self.gradient_checkpointing_kwargs or {}).get("use_reentrant")
        full = "would round the ratios too; load the models in that dtype (model_init_kwargs)"
        refuse_settings(
            self,
            hub_strategy=self.hub_strategy != "end" and "would push checkpoints, which hold no model; set it to 'end'",
            eos_token=self.eos_token is not None and "is not written with the model; set it in the folder of `model`",
            chat_template_path=adds and "would add tokens; pass a .jinja",
            gradient_checkpointing_kwargs=reentrant and "needs inputs with gradients; leave out use_reentrant",
            bf16_full_eval=self.bf16_full_eval and full,
            fp16_full_eval=self.fp16_full_eval and full,
        )

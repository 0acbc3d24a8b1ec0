"""Configuration of [`TokenRewardPPOTrainer`]."""

from __future__ import annotations

from dataclasses import dataclass

from trl import GRPOConfig

from hf_factuality.functional.gae import KL_ESTIMATORS
from hf_factuality.trainers._overlap import CHUNKS, require_chunks
from hf_factuality.trainers._settings import (
    Precision,
    is_positive,
    is_weight,
    refuse_settings,
    require,
    require_choice,
    setting,
)


# Losses whose gradient is a ratio or a log-probability times the advantage of the same token.
_LOSS_TYPES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo")


class _One(int):
    """1, for the parent's checks: it insists on 2 generations per prompt, for a baseline that a critic replaces."""

    def __new__(cls):
        return super().__new__(cls, 2)

    def __rmod__(self, other):
        return 0


@dataclass
class TokenRewardPPOConfig(Precision, GRPOConfig):
    r"""
    [`~trl.GRPOConfig`] plus PPO's: a critic, GAE, and a penalty for leaving the reference that stands in the reward.

    What differs from the parent's fields: `num_generations` is 1 by default; `beta` (.01 by default) is the weight of the
    KL penalty inside the token rewards and adds nothing to the loss; `scale_rewards` has no effect, since the advantages
    are whitened over all tokens of a generation batch instead. The defaults are those of RLFH (arXiv 2406.12221) where
    its released script names them.

    Parameters:
        gamma (`float`, *optional*, defaults to `1.0`):
            Discount per token.
        lam (`float`, *optional*, defaults to `1.0`):
            Lambda of GAE. RLFH has .95, with which completions run on while the critic is new (docs/rlfh.md).
        kl_estimator (`str`, *optional*, defaults to `"k3"`):
            `"k1"`, `"k2"` or `"k3"`, see [`~hf_factuality.functional.gae.kl_estimate`].
        reward_clip (`float`, *optional*, defaults to `10.0`):
            Rewards of a token are cut to this absolute value, before the KL penalty; `None` for no limit.
        missing_eos_penalty (`float`, *optional*, defaults to `0.0`):
            Taken off the last token of a completion that was cut at `max_completion_length`. RLFH's code has 1 here, on a
            path that its script does not take.
        value_clip (`float`, *optional*, defaults to `0.2`):
            Largest useful step of a value from what it was at sampling; `None` for no limit.
        vf_coef (`float`, *optional*, defaults to `0.1`):
            Weight of the value loss with `critic_model="value_head"`, where it also reaches the policy. A critic with a
            backbone of its own has its own learning rate instead.
        critic_model (`str`, *optional*, defaults to `"policy"`):
            `"policy"` (a backbone of its own that starts as the policy), `"value_head"` (a layer on the policy), or the
            name or folder of a model with the policy's tokenizer.
        critic_learning_rate (`float`, *optional*, defaults to `9e-6`):
            Peak learning rate of the critic; it follows the policy's schedule (with `learning_rate=0` it stays).
        freezing_actor_steps (`int`, *optional*, defaults to `0`):
            Optimizer steps at the beginning in which only the critic learns.
        token_reward_weights (`list[float]`, *optional*):
            One per token reward function; 1 each by default. `reward_weights` are those of `reward_funcs`.
        generation_chunks (`int`, *optional*, defaults to `1`):
            Parts in which completions that are finished are judged while others are generated; for judges
            on a server (docs/overlap.md). 1: after all are generated.
    """

    num_generations: int = setting(1, "Completions per prompt and generation batch. PPO needs one.")
    beta: float = setting(0.01, "Weight of the KL penalty in the token rewards; 0 loads no reference model.")
    gamma: float = setting(1.0, "Discount per token.")
    lam: float = setting(1.0, "Lambda of GAE.")
    kl_estimator: str = setting("k3", "Estimator of the KL penalty: 'k1', 'k2' or 'k3'.", KL_ESTIMATORS)
    reward_clip: float | None = setting(
        10.0, "Largest absolute reward of a token, before the KL penalty. None: no limit."
    )
    missing_eos_penalty: float = setting(
        0.0, "Taken off the last token of a completion without an end-of-sequence token."
    )
    value_clip: float | None = setting(0.2, "Largest useful step of a value since sampling. None: no limit.")
    vf_coef: float = setting(0.1, "Weight of the value loss of a value head.")
    critic_model: str = setting("policy", "'policy', 'value_head', or a model with the policy's tokenizer.")
    critic_learning_rate: float = setting(9e-6, "Peak learning rate of the critic.")
    freezing_actor_steps: int = setting(0, "Optimizer steps at the beginning in which only the critic learns.")
    token_reward_weights: list[float] | None = setting(
        None, "One weight per token reward function; 1 each by default."
    )
    generation_chunks: int = setting(1, CHUNKS)

    def __post_init__(self):
        one = self.num_generations == 1
        if one:
            self.num_generations = _One()
        super().__post_init__()
        if one:
            self.num_generations = 1
        require_chunks(self)
        require(self, "gamma lam", lambda value: 0 <= value <= 1, "in [0, 1]")
        require_choice(self, kl_estimator=KL_ESTIMATORS)
        per_token = f"one of {_LOSS_TYPES}: others need one advantage per completion"
        require(self, "loss_type", lambda value: value in _LOSS_TYPES, per_token)
        limit = "a finite positive number, or None for no limit"
        require(self, "reward_clip value_clip", lambda value: value is None or is_positive(value), limit)
        weights = "beta missing_eos_penalty vf_coef critic_learning_rate freezing_actor_steps"
        require(self, weights, is_weight, "a finite number, at least 0")
        refuse_settings(
            self,
            importance_sampling_level=self.importance_sampling_level != "token"
            and "weighs whole completions, so that a token's own advantage would be lost; set it to 'token'",
            off_policy_mask_threshold=self.off_policy_mask_threshold is not None
            and "drops completions by the sign of their advantage, here single tokens; set it to None",
            multi_objective_aggregation=self.multi_objective_aggregation != "sum_then_normalize"
            and "normalises over groups, which a critic replaces; weight the rewards instead",
            fp16=self.fp16 and "scales the loss, and the critic's gradients would be scaled too; use bf16=True",
        )

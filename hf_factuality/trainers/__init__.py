"""Trainers: subclasses of TRL's that put per-token credit into its loss."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "FactGRPOConfig": "fact_grpo_config",
    "FactGRPOTrainer": "fact_grpo_trainer",
    "MaskDPOConfig": "mask_dpo_config",
    "MaskDPOTrainer": "mask_dpo_trainer",
    "TokenRewardPPOConfig": "token_reward_ppo_config",
    "TokenRewardPPOTrainer": "token_reward_ppo_trainer",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig
    from hf_factuality.trainers.fact_grpo_trainer import FactGRPOTrainer
    from hf_factuality.trainers.mask_dpo_config import MaskDPOConfig
    from hf_factuality.trainers.mask_dpo_trainer import MaskDPOTrainer
    from hf_factuality.trainers.token_reward_ppo_config import TokenRewardPPOConfig
    from hf_factuality.trainers.token_reward_ppo_trainer import TokenRewardPPOTrainer

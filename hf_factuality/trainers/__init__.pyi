# Public names, which load on first use.
from hf_factuality.methods.averaging.config import AdaptiveAveragingConfig as AdaptiveAveragingConfig
from hf_factuality.methods.averaging.trainer import AdaptiveAveragingTrainer as AdaptiveAveragingTrainer
from hf_factuality.methods.faithrl.rollout import FaithfulPrefixRollout as FaithfulPrefixRollout
from hf_factuality.methods.self_correction.rollout import CorrectionRollout as CorrectionRollout
from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig as FactGRPOConfig
from hf_factuality.trainers.fact_grpo_trainer import FactGRPOTrainer as FactGRPOTrainer
from hf_factuality.trainers.mask_dpo_config import MaskDPOConfig as MaskDPOConfig
from hf_factuality.trainers.mask_dpo_trainer import MaskDPOTrainer as MaskDPOTrainer
from hf_factuality.methods.probe.config import ProbeConfig as ProbeConfig
from hf_factuality.methods.probe.trainer import ProbeTrainer as ProbeTrainer
from hf_factuality.methods.process_reward.config import ProcessRewardConfig as ProcessRewardConfig
from hf_factuality.methods.process_reward.trainer import ProcessRewardTrainer as ProcessRewardTrainer
from hf_factuality.methods.rag_reward.trainer import (
    RAGRewardConfig as RAGRewardConfig,
    RAGRewardTrainer as RAGRewardTrainer,
)
from hf_factuality.trainers.token_reward_ppo_config import TokenRewardPPOConfig as TokenRewardPPOConfig
from hf_factuality.trainers.token_reward_ppo_trainer import TokenRewardPPOTrainer as TokenRewardPPOTrainer
from hf_factuality.methods.truthfulness.config import TruthfulnessConfig as TruthfulnessConfig
from hf_factuality.methods.truthfulness.trainer import TruthfulnessTrainer as TruthfulnessTrainer
from hf_factuality.methods.verifier.config import VerifierConfig as VerifierConfig
from hf_factuality.methods.verifier.trainer import VerifierTrainer as VerifierTrainer

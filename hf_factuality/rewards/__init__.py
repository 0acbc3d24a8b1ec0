"""Rewards: of whole completions, for any TRL trainer, and of tokens, for [`~hf_factuality.TokenRewardPPOTrainer`]."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "SCORERS": "answers",
    "FSPOAnswerReward": "answers",
    "FormatReward": "answers",
    "RLFHReward": "rlfh",
    "Scorer": "answers",
    "TokenRewardModel": "token_reward_model",
    "answer_reward": "answers",
    "check_format": "answers",
    "complete_text": "answers",
    "exact_reward": "answers",
    "extract_answer": "answers",
    "gsm8k_reward": "answers",
    "halueval_reward": "answers",
    "hotpot_f1_reward": "answers",
    "load_rlfh_maps": "rlfh_maps",
    "math_reward": "answers",
    "normalize_answer": "answers",
    "rlfh_verifier": "rlfh",
    "think_format_reward": "answers",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.rewards.answers import (
        SCORERS,
        FormatReward,
        FSPOAnswerReward,
        Scorer,
        answer_reward,
        check_format,
        complete_text,
        exact_reward,
        extract_answer,
        gsm8k_reward,
        halueval_reward,
        hotpot_f1_reward,
        math_reward,
        normalize_answer,
        think_format_reward,
    )
    from hf_factuality.rewards.rlfh import RLFHReward, rlfh_verifier
    from hf_factuality.rewards.rlfh_maps import load_rlfh_maps
    from hf_factuality.rewards.token_reward_model import TokenRewardModel

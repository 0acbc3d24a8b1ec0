# Public names, which load on first use.
from hf_factuality.reading.marks import check_format as check_format
from hf_factuality.reading.marks import extract_answer as extract_answer
from hf_factuality.functional.answers import normalize_answer as normalize_answer
from hf_factuality.rewards.abstention import (
    AbstentionReward as AbstentionReward,
    GradedOutcome as GradedOutcome,
    abstention_reward as abstention_reward,
)
from hf_factuality.rewards.answers import (
    SCORERS as SCORERS,
    FSPOAnswerReward as FSPOAnswerReward,
    FormatReward as FormatReward,
    Scorer as Scorer,
    answer_reward as answer_reward,
    complete_text as complete_text,
    exact_reward as exact_reward,
    gsm8k_reward as gsm8k_reward,
    halueval_reward as halueval_reward,
    hotpot_f1_reward as hotpot_f1_reward,
    math_reward as math_reward,
    think_format_reward as think_format_reward,
)
from hf_factuality.rewards.confidence import (
    DCPORewards as DCPORewards,
    LoVeCReward as LoVeCReward,
    RLCRReward as RLCRReward,
)
from hf_factuality.rewards.correction import CorrectionReward as CorrectionReward
from hf_factuality.rewards.long_form import (
    LONG_FORM_REWARDS as LONG_FORM_REWARDS,
    ChecklistReward as ChecklistReward,
    ClaimReward as ClaimReward,
    LongFormReward as LongFormReward,
    answer_outcome as answer_outcome,
    ended_answer_reward as ended_answer_reward,
    klcf_rewards as klcf_rewards,
    long_form_reward as long_form_reward,
    truthfulness_reward as truthfulness_reward,
)
from hf_factuality.rewards.process import ProcessReward as ProcessReward
from hf_factuality.rewards.rlfh import RLFHReward as RLFHReward, rlfh_verifier as rlfh_verifier
from hf_factuality.rewards.rlfh_maps import load_rlfh_maps as load_rlfh_maps
from hf_factuality.rewards.served import ServedReward as ServedReward, ServedRoles as ServedRoles
from hf_factuality.rewards.token_reward_model import TokenRewardModel as TokenRewardModel

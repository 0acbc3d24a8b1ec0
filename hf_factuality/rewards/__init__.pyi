# Public names, which load on first use.
from hf_factuality.reading.marks import check_format as check_format
from hf_factuality.reading.marks import extract_answer as extract_answer
from hf_factuality.functional.answers import normalize_answer as normalize_answer
from hf_factuality.methods.abstention.reward import (
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
from hf_factuality.methods.confidence.reward import (
    DCPORewards as DCPORewards,
    LoVeCReward as LoVeCReward,
    RLCRReward as RLCRReward,
)
from hf_factuality.methods.self_correction.reward import CorrectionReward as CorrectionReward
from hf_factuality.methods.long_form.reward import (
    LONG_FORM_REWARDS as LONG_FORM_REWARDS,
    ClaimReward as ClaimReward,
    LongFormReward as LongFormReward,
    answer_outcome as answer_outcome,
    long_form_reward as long_form_reward,
    truthfulness_reward as truthfulness_reward,
)
from hf_factuality.methods.klcf.reward import ChecklistReward as ChecklistReward
from hf_factuality.methods.klcf.reward import ended_answer_reward as ended_answer_reward
from hf_factuality.methods.klcf.reward import klcf_rewards as klcf_rewards
from hf_factuality.methods.process_reward.reward import ProcessReward as ProcessReward
from hf_factuality.methods.rlfh.reward import RLFHReward as RLFHReward, rlfh_verifier as rlfh_verifier
from hf_factuality.methods.rlfh.maps import load_rlfh_maps as load_rlfh_maps
from hf_factuality.methods.klcf.served import ServedReward as ServedReward, ServedRoles as ServedRoles
from hf_factuality.methods.tools.reward import (
    CitationReward as CitationReward,
    DecliningReward as DecliningReward,
    RubricReward as RubricReward,
    SearchCost as SearchCost,
    StatedAnswerReward as StatedAnswerReward,
)
from hf_factuality.methods.token_reward_model.reward import TokenRewardModel as TokenRewardModel

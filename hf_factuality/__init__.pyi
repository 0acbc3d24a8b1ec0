# Public names, which load on first use.
from hf_factuality.methods.averaging.average import average as average
from hf_factuality.checkpoints.merge import merge as merge
from hf_factuality.data import load_fspo as load_fspo
from hf_factuality.data.build import (
    BuildArguments as BuildArguments,
    BuildReport as BuildReport,
    build_preferences as build_preferences,
)
from hf_factuality.data.dataset_builder import DatasetBuilder as DatasetBuilder, build_dataset as build_dataset
from hf_factuality.methods.abstention.data import build_refusals as build_refusals
from hf_factuality.methods.klcf.data import build_checklists as build_checklists
from hf_factuality.methods.process_reward.data import build_process_labels as build_process_labels
from hf_factuality.methods.rag_reward.data import build_rag_preferences as build_rag_preferences
from hf_factuality.methods.self_correction.data import build_corrections as build_corrections
from hf_factuality.evaluation.agreement import AgreementResult as AgreementResult, agree as agree
from hf_factuality.evaluation.assertions import assert_supported as assert_supported
from hf_factuality.evaluation.comparison import Comparison as Comparison, compare as compare
from hf_factuality.evaluation.evaluate import evaluate as evaluate
from hf_factuality.evaluation.verify import verify as verify
from hf_factuality.functional import flip_advantages as flip_advantages
from hf_factuality.hub.push import push as push
from hf_factuality.methods import FDPOConfig as FDPOConfig, FDPOTrainer as FDPOTrainer
from hf_factuality.server.serve import serve as serve
from hf_factuality.spans import (
    Label as Label,
    LabeledSpan as LabeledSpan,
    Verification as Verification,
    token_offsets as token_offsets,
)
from hf_factuality.trainers import (
    FactGRPOConfig as FactGRPOConfig,
    FactGRPOTrainer as FactGRPOTrainer,
    MaskDPOConfig as MaskDPOConfig,
    MaskDPOTrainer as MaskDPOTrainer,
    TokenRewardPPOConfig as TokenRewardPPOConfig,
    TokenRewardPPOTrainer as TokenRewardPPOTrainer,
)
from hf_factuality.trainers.memory.training_plan import TrainingPlan as TrainingPlan, plan as plan
from hf_factuality.verifiers import (
    LexicalVerifier as LexicalVerifier,
    NLIVerifier as NLIVerifier,
    Verifier as Verifier,
    VerifierInput as VerifierInput,
    VerifierPipeline as VerifierPipeline,
    load_verifier as load_verifier,
)
from hf_factuality.viewer.demo import demo as demo
from hf_factuality.viewer.view import view as view

__version__: str

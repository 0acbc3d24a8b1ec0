# Public names, one line per module. They load on first use, `load_verifier` finds the `...Verifier` of `judges/NAME.py` as
# "NAME", and saved pipelines may name the judges, extractors and retrievers.
from hf_factuality.verifiers.base import (
    JudgeInput as JudgeInput,
    Judgement as Judgement,
    PairInput as PairInput,
    RowEvidence as RowEvidence,
    Verifier as Verifier,
    VerifierInput as VerifierInput,
)
from hf_factuality.generation.cache import AnswerCache as AnswerCache
from hf_factuality.generation.client import ChatClient as ChatClient
from hf_factuality.verifiers.best import (
    PUBLISHED_WEIGHTS as PUBLISHED_WEIGHTS,
    PublishedWeights as PublishedWeights,
    best_verifier as best_verifier,
)
from hf_factuality.verifiers.ensemble import CalibratedJudge as CalibratedJudge, MajorityJudge as MajorityJudge
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor as SentenceExtractor
from hf_factuality.verifiers.extractors.llm import (
    FActScoreExtractor as FActScoreExtractor,
    RLFHExtractor as RLFHExtractor,
    VeriScoreExtractor as VeriScoreExtractor,
)
from hf_factuality.verifiers.pipeline import (
    VerifierPipeline as VerifierPipeline,
    load_pipeline as load_pipeline,
    push_pipeline as push_pipeline,
    save_pipeline as save_pipeline,
)
from hf_factuality.verifiers.judges.anah import ANAHJudge as ANAHJudge, ANAHVerifier as ANAHVerifier
from hf_factuality.verifiers.judges.citations import Citations as Citations, CitationsVerifier as CitationsVerifier
from hf_factuality.verifiers.judges.compare import (
    AXES as AXES,
    CompareJudge as CompareJudge,
    CompareVerifier as CompareVerifier,
)
from hf_factuality.verifiers.judges.factcg import FactCGJudge as FactCGJudge, FactCGVerifier as FactCGVerifier
from hf_factuality.methods.long_form.judge import CooccurrenceJudge as CooccurrenceJudge
from hf_factuality.verifiers.judges.gold import (
    GoldJudge as GoldJudge,
    GoldVerifier as GoldVerifier,
    AnswerExtractor as AnswerExtractor,
)
from hf_factuality.verifiers.judges.hhem import HHEMJudge as HHEMJudge, HHEMVerifier as HHEMVerifier
from hf_factuality.verifiers.judges.lettucedetect import (
    LettuceDetectJudge as LettuceDetectJudge,
    LettuceDetectVerifier as LettuceDetectVerifier,
)
from hf_factuality.verifiers.judges.lexical.judge import (
    LexicalJudge as LexicalJudge,
    LexicalVerifier as LexicalVerifier,
)
from hf_factuality.verifiers.judges.llm import LLMJudge as LLMJudge, LLMVerifier as LLMVerifier
from hf_factuality.verifiers.judges.minicheck import (
    MiniCheckJudge as MiniCheckJudge,
    MiniCheckVerifier as MiniCheckVerifier,
    ServedMiniCheckJudge as ServedMiniCheckJudge,
)
from hf_factuality.verifiers.judges.nli import NLIJudge as NLIJudge, NLIVerifier as NLIVerifier
from hf_factuality.methods.probe.judge import ProbeJudge as ProbeJudge, ProbeVerifier as ProbeVerifier
from hf_factuality.methods.process_reward.judge import (
    ProcessJudge as ProcessJudge,
    ProcessVerifier as ProcessVerifier,
    StepExtractor as StepExtractor,
)
from hf_factuality.verifiers.judges.reward import RewardJudge as RewardJudge, RewardVerifier as RewardVerifier
from hf_factuality.methods.rlfh.judge import (
    AssessInput as AssessInput,
    SelfJudge as SelfJudge,
    SelfVerifier as SelfVerifier,
)
from hf_factuality.verifiers.judges.small.judge import SmallJudge as SmallJudge, SmallVerifier as SmallVerifier
from hf_factuality.methods.truthfulness.judge import (
    ServedTruthfulnessJudge as ServedTruthfulnessJudge,
    TruthfulnessJudge as TruthfulnessJudge,
    TruthfulnessVerifier as TruthfulnessVerifier,
)
from hf_factuality.verifiers.judges.veriscorefast import (
    VeriScoreFastExtractor as VeriScoreFastExtractor,
    VeriScoreFastJudge as VeriScoreFastJudge,
    VeriScoreFastVerifier as VeriScoreFastVerifier,
)
from hf_factuality.retrieval.knowledge import KnowledgeBase as KnowledgeBase
from hf_factuality.generation.local import LocalChat as LocalChat, bind_policy as bind_policy
from hf_factuality.retrieval.passages import (
    FACTSCORE_PASSAGES as FACTSCORE_PASSAGES,
    PassageConfig as PassageConfig,
    RLFH_PASSAGES as RLFH_PASSAGES,
)
from hf_factuality.verifiers.registry import load_verifier as load_verifier
from hf_factuality.retrieval.retrievers import (
    CombinedRetriever as CombinedRetriever,
    DenseRetriever as DenseRetriever,
    TopicRetriever as TopicRetriever,
)
from hf_factuality.retrieval.corpus import CorpusRetriever as CorpusRetriever
from hf_factuality.retrieval.web import WebRetriever as WebRetriever
from hf_factuality.verifiers.transformers_pipeline import FactVerificationPipeline as FactVerificationPipeline

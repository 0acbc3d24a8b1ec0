# Public names, which load on first use.
from hf_factuality.retrieval.corpus import CorpusRetriever as CorpusRetriever, PassageCounts as PassageCounts
from hf_factuality.retrieval.environment import SearchEnvironment as SearchEnvironment
from hf_factuality.retrieval.knowledge import KnowledgeBase as KnowledgeBase
from hf_factuality.retrieval.pages import Page as Page
from hf_factuality.retrieval.passages import (
    FACTSCORE_PASSAGES as FACTSCORE_PASSAGES,
    RLFH_PASSAGES as RLFH_PASSAGES,
    Passage as Passage,
    PassageConfig as PassageConfig,
    split_passages as split_passages,
)
from hf_factuality.retrieval.retrievers import (
    CombinedRetriever as CombinedRetriever,
    DenseRetriever as DenseRetriever,
    TopicRetriever as TopicRetriever,
)
from hf_factuality.retrieval.web import WebRetriever as WebRetriever

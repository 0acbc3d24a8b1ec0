# Public names, which load on first use.
from hf_factuality.data.anah_format import read_anah as read_anah, write_anah as write_anah
from hf_factuality.data.dataset_builder import dataset_from as dataset_from
from hf_factuality.data.questions import read_questions as read_questions
from hf_factuality.methods.klcf.data import (
    ChecklistConfig as ChecklistConfig,
    checklists_from as checklists_from,
    push_checklists as push_checklists,
)
from hf_factuality.data.claims import read_claims as read_claims
from hf_factuality.methods.self_correction.data import (
    CorrectionConfig as CorrectionConfig,
    corrections_from as corrections_from,
    push_corrections as push_corrections,
)
from hf_factuality.data.factscore_format import read_factscore as read_factscore
from hf_factuality.methods.fspo.data import (
    ParsedPrompt as ParsedPrompt,
    load_fspo as load_fspo,
    parse_prompt as parse_prompt,
    prepare_rows as prepare_rows,
)
from hf_factuality.data.prompts import check_prompt_lengths as check_prompt_lengths
from hf_factuality.data.given_pairs import GivenPair as GivenPair, label_pairs as label_pairs, read_pairs as read_pairs
from hf_factuality.data.pairs import PairConfig as PairConfig, choose_pairs as choose_pairs
from hf_factuality.data.preferences import (
    preferences_from as preferences_from,
    load_pairs as load_pairs,
    pair_features as pair_features,
    push_pairs as push_pairs,
)
from hf_factuality.methods.process_reward.data import (
    ProcessLabelConfig as ProcessLabelConfig,
    process_labels_from as process_labels_from,
    push_process_labels as push_process_labels,
)
from hf_factuality.methods.rag_reward.data import (
    RAGPreferenceConfig as RAGPreferenceConfig,
    rag_preferences_from as rag_preferences_from,
    push_rag_preferences as push_rag_preferences,
)
from hf_factuality.methods.abstention.cross_fitting import refusals_by_sureness as refusals_by_sureness
from hf_factuality.methods.abstention.data import (
    RefusalConfig as RefusalConfig,
    refusals_from as refusals_from,
    push_refusals as push_refusals,
)
from hf_factuality.methods.rlfh.data import load_rlfh as load_rlfh
from hf_factuality.data.sampling import (
    GivenResponses as GivenResponses,
    ServedSampler as ServedSampler,
    TransformersSampler as TransformersSampler,
    VLLMSampler as VLLMSampler,
)
from hf_factuality.data.topics import (
    embed_topics as embed_topics,
    select_by_distance as select_by_distance,
    select_questions as select_questions,
    topic_distances as topic_distances,
)
from hf_factuality.generation.sampling import SamplingConfig as SamplingConfig
from hf_factuality.methods.verifier.data import (
    claims_dataset as claims_dataset,
    read_labelled_claims as read_labelled_claims,
    read_passages as read_passages,
    synthetic_claims as synthetic_claims,
)

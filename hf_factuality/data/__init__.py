"""Readers and builders of datasets."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "GivenResponses": "sampling",
    "PairConfig": "pairs",
    "ParsedPrompt": "fspo",
    "SamplingConfig": "sampling",
    "ServedSampler": "sampling",
    "TransformersSampler": "sampling",
    "VLLMSampler": "sampling",
    "build_preferences": "preferences",
    "check_prompt_lengths": "fspo",
    "choose_pairs": "pairs",
    "embed_topics": "topics",
    "load_fspo": "fspo",
    "load_pairs": "preferences",
    "load_rlfh": "rlfh",
    "pair_features": "preferences",
    "parse_prompt": "fspo",
    "prepare_rows": "fspo",
    "push_pairs": "pair_card",
    "read_anah": "anah_format",
    "read_factscore": "factscore_format",
    "read_questions": "preferences",
    "select_by_distance": "topics",
    "select_questions": "topics",
    "topic_distances": "topics",
    "write_anah": "anah_format",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.data.anah_format import read_anah, write_anah  # noqa: F401
    from hf_factuality.data.factscore_format import read_factscore  # noqa: F401
    from hf_factuality.data.fspo import (  # noqa: F401
        ParsedPrompt,
        check_prompt_lengths,
        load_fspo,
        parse_prompt,
        prepare_rows,
    )
    from hf_factuality.data.pair_card import push_pairs  # noqa: F401
    from hf_factuality.data.pairs import PairConfig, choose_pairs  # noqa: F401
    from hf_factuality.data.preferences import (  # noqa: F401
        build_preferences,
        load_pairs,
        pair_features,
        read_questions,
    )
    from hf_factuality.data.rlfh import load_rlfh  # noqa: F401
    from hf_factuality.data.sampling import (  # noqa: F401
        GivenResponses,
        SamplingConfig,
        ServedSampler,
        TransformersSampler,
        VLLMSampler,
    )
    from hf_factuality.data.topics import (  # noqa: F401
        embed_topics,
        select_by_distance,
        select_questions,
        topic_distances,
    )

"""Closed worlds: synthetic people whose every fact is known, an exact verifier, and a small model that lives in them.

Everything is loaded on first use: importing this module imports neither torch nor transformers.
"""

from hf_factuality._lazy import attach


_EXPORTS = {
    "Person": "world",
    "Relation": "world",
    "World": "world",
    "WorldConfig": "world",
    "WorldEvaluation": "evaluate",
    "WorldModelConfig": "lm",
    "WorldVerifier": "oracle",
    "build_world_model": "lm",
    "build_world_tokenizer": "lm",
    "evaluate_world": "evaluate",
    "load_world": "lm",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

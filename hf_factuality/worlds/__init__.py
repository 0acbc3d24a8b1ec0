"""Closed worlds: synthetic people whose every fact is known, an exact verifier, and a small model that lives in them.

Everything is loaded on first use: importing this module imports neither torch nor transformers.
"""

from hf_factuality._lazy import attach


_EXPORTS = {
    "NoisyVerifier": "noisy",
    "Person": "world",
    "Relation": "language",
    "SIZES": "sizes",
    "World": "world",
    "WorldConfig": "world",
    "WorldEvaluation": "evaluate",
    "WorldModelConfig": "sizes",
    "WorldSentence": "oracle",
    "WorldVerifier": "oracle",
    "build_world_model": "lm",
    "build_world_tokenizer": "tokenizer",
    "evaluate_world": "evaluate",
    "load_world": "lm",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

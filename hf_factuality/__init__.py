"""Factuality alignment on Hugging Face's stack: verifiers, metrics and trainers that share one schema of spans.

Names load on first use, so that `import hf_factuality` needs neither torch nor transformers.
"""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


__version__ = "0.1.0.dev0"

_EXPORTS = {
    "FactGRPOConfig": "trainers",
    "FactGRPOTrainer": "trainers",
    "Label": "spans",
    "LabeledSpan": "spans",
    "LexicalVerifier": "verifiers",
    "MaskDPOConfig": "trainers",
    "MaskDPOTrainer": "trainers",
    "NLIVerifier": "verifiers",
    "TokenRewardPPOConfig": "trainers",
    "TokenRewardPPOTrainer": "trainers",
    "Verification": "spans",
    "Verifier": "verifiers",
    "VerifierInput": "verifiers",
    "VerifierPipeline": "verifiers",
    "flip_advantages": "functional",
    "load_fspo": "data",
    "load_verifier": "verifiers",
    "token_offsets": "spans",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.data import load_fspo
    from hf_factuality.functional import flip_advantages
    from hf_factuality.spans import Label, LabeledSpan, Verification, token_offsets
    from hf_factuality.trainers import (
        FactGRPOConfig,
        FactGRPOTrainer,
        MaskDPOConfig,
        MaskDPOTrainer,
        TokenRewardPPOConfig,
        TokenRewardPPOTrainer,
    )
    from hf_factuality.verifiers import (
        LexicalVerifier,
        NLIVerifier,
        Verifier,
        VerifierInput,
        VerifierPipeline,
        load_verifier,
    )

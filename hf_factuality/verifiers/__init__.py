"""Verifiers: they read completions and return labelled spans. Names are imported on first use."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "JudgeInput": "base",
    "Judgement": "base",
    "LexicalJudge": "judge_lexical",
    "LexicalVerifier": "judge_lexical",
    "NLIJudge": "judge_nli",
    "NLIVerifier": "judge_nli",
    "RowEvidence": "base",
    "SentenceExtractor": "extract",
    "Verifier": "base",
    "VerifierInput": "base",
    "VerifierPipeline": "base",
    "load_verifier": "registry",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.verifiers.base import (
        JudgeInput,
        Judgement,
        RowEvidence,
        Verifier,
        VerifierInput,
        VerifierPipeline,
    )
    from hf_factuality.verifiers.extract import SentenceExtractor
    from hf_factuality.verifiers.judge_lexical import LexicalJudge, LexicalVerifier
    from hf_factuality.verifiers.judge_nli import NLIJudge, NLIVerifier
    from hf_factuality.verifiers.registry import load_verifier

"""Verifiers: they read completions and return labelled spans. Names are imported on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any


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


__all__ = [
    "JudgeInput",
    "Judgement",
    "LexicalJudge",
    "LexicalVerifier",
    "NLIJudge",
    "NLIVerifier",
    "RowEvidence",
    "SentenceExtractor",
    "Verifier",
    "VerifierInput",
    "VerifierPipeline",
    "load_verifier",
]

_MODULE_OF = {
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


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value  # next time without this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})

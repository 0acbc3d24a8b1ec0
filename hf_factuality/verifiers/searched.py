"""Verification of texts whose evidence was searched for: where nothing was found, nothing is supported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hf_factuality.errors import JudgingError
from hf_factuality.spans import LabeledSpan, Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.pipeline import NOT_FOUND


class SearchedVerifier:
    """Asks a verifier that needs evidence, and says "not found" of claims for which there is none.

    A [`VerifierPipeline`] does so for claims for which its retriever finds nothing. In a conversation with tools the search has
    been done: a turn before any tool returned something has no evidence, and its claims are `unverifiable`.

    Args:
        verifier ([`Verifier`]):
            Asked about inputs with evidence.
    """

    def __init__(self, verifier: Verifier):
        self.verifier = verifier
        self.requires_evidence = True
        self._extractor = getattr(verifier, "extractor", None) or SentenceExtractor()

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order."""
        told = [item for item in inputs if item.evidence]
        alone = [item for item in inputs if not item.evidence]
        found = self.verifier.verify(told) if told else []
        if len(found) != len(told):
            raise JudgingError(
                f"the verifier returned {len(found)} results for {len(told)} inputs; it must return one each"
            )
        judged, claims = iter(found), iter(self._extractor.extract(alone) if alone else [])
        return [
            next(judged) if item.evidence else Verification(tuple(map(_not_found, next(claims)))) for item in inputs
        ]


def _not_found(span: LabeledSpan) -> LabeledSpan:
    return span if span.label is not None else replace(span, label=NOT_FOUND.label, reason=NOT_FOUND.reason)

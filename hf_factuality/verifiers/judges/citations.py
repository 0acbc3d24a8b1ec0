"""Attribution: whether the passages that a sentence cites, as in [2] or [1, 3], support it, by any judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_factuality.reading.completion import read_text
from hf_factuality.spans import LabeledSpan
from hf_factuality.verifiers.base import RowEvidence, VerifierInput
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.pipeline import VerifierPipeline


@dataclass(frozen=True)
class Citations(RowEvidence):
    """Extractor of the sentences of an answer without their citations, and retriever of the passages that each cites.

    Which citations there are, and which sentence each belongs to: [`~hf_factuality.reading.Reading`]. Passage 1 is the first of
    the row's evidence.

    Args:
        language (`str`, *optional*):
            See [`~hf_factuality.verifiers.SentenceExtractor`].
    """

    language: str | None = None

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """As [`~hf_factuality.verifiers.SentenceExtractor`], whose claims are without citations."""
        return SentenceExtractor(self.language).extract(inputs)

    def retrieve(
        self, inputs: Sequence[VerifierInput], claims: Sequence[Sequence[str]]
    ) -> list[list[tuple[str, ...]]]:
        """Per input and sentence, the passages that it cites; empty without a citation of one that is there."""
        return [
            [
                tuple(item.evidence[n - 1] for n in sentence.cites if 0 < n <= len(item.evidence))
                for sentence in read_text(item.completion, self.language)[1]
            ]
            for item in inputs
        ]


class CitationsVerifier(VerifierPipeline):
    """Sentences of the completion, each judged against the passages that it cites, and against no other.

    What cites nothing, or only passages that are not there, is `UNVERIFIABLE`: nothing was shown for it. The share of supported
    sentences is citation recall as in ALCE (arXiv 2305.14627). Evidence is the passages as they were numbered for the model;
    blank ones must not be among them.

    Args:
        model (`str`, *optional*, defaults to `"small"`):
            Whose judge is asked: a name for [`~hf_factuality.verifiers.load_verifier`], as in `"citations:nli:MODEL"`.
        language (`str`, *optional*):
            See [`~hf_factuality.verifiers.SentenceExtractor`].
        **kwargs:
            Other arguments of that verifier.

    Raises:
        `ValueError`: the name is unknown, or that of a verifier that reads no evidence.
    """

    def __init__(self, model: str = "small", language: str | None = None, **kwargs: Any):
        from hf_factuality.verifiers.registry import load_verifier

        verifier = load_verifier(model, **kwargs)
        if not isinstance(verifier, VerifierPipeline) or not verifier.requires_evidence:
            raise ValueError(f"{model!r} has no judge that could be asked about a sentence and the passages it cites")
        reads = Citations(language)
        super().__init__(reads, verifier.judge, reads)

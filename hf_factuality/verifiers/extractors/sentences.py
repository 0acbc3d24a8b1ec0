"""Extractor of the sentences of a completion."""

from __future__ import annotations

from collections.abc import Sequence

from hf_factuality.reading.completion import read_text
from hf_factuality.reading.statements import Sentence
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.base import VerifierInput


class SentenceExtractor:
    """Extractor that returns the sentences of the completion; no model, no download.

    Implements [`~hf_factuality.verifiers.base.Extractor`]. A sentence is one claim here, however many facts it states;
    an atomic-claim extractor (an LLM) is finer and slower.

    Args:
        language (`str`, *optional*):
            Language code of `sentencex`. `None` decides per completion, by its script and its commonest words.

    Example:

        >>> spans = SentenceExtractor().extract([VerifierInput("He was born in Ulm. He died in Princeton.")])[0]
        >>> [(span.start, span.end) for span in spans]
        [(0, 19), (20, 41)]
    """

    def __init__(self, language: str | None = None):
        self.language = language

    def extract(self, inputs: Sequence[VerifierInput]) -> list[list[LabeledSpan]]:
        """Per input, its sentences, items of lists and rows of tables in order; see [`~hf_factuality.reading.Sentence`].

        `claim` is set where what is said is not the text of the span: without citations, markup, and introductions. What states
        nothing - a question, an offer, a refusal - has the label `NO_FACT` already, and no judge is asked about it.
        """
        return [
            [self._span(item.completion, it) for it in read_text(item.completion, self.language)[1]] for item in inputs
        ]

    @staticmethod
    def _span(text: str, sentence: Sentence) -> LabeledSpan:
        label = None if sentence.kind == "statement" else Label.NO_FACT
        claim = None if sentence.says == text[sentence.start : sentence.end] else sentence.says
        return LabeledSpan(sentence.start, sentence.end, label, claim=claim)

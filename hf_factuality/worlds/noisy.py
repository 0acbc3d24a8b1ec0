"""A judge that errs at set rates, in the place of an exact one."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from hf_factuality.spans import Label, Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput, require_method


_OPPOSITE = {
    Label.SUPPORTED: Label.CONTRADICTED,
    Label.HEDGED_SUPPORTED: Label.HEDGED_CONTRADICTED,
    Label.CONTRADICTED: Label.SUPPORTED,
    Label.HEDGED_CONTRADICTED: Label.HEDGED_SUPPORTED,
}


class NoisyVerifier:
    """Turns the verdicts of another verifier around at set rates, to measure how much error a method tolerates.

    Sentences without a fact and unverifiable ones keep their labels.

    Args:
        verifier ([`Verifier`]):
            The exact one.
        false_positive (`float`):
            Share of contradicted spans that come out as supported.
        false_negative (`float`):
            Share of supported spans that come out as contradicted.
        seed (`int`, *optional*, defaults to `0`):
            Which ones.
        repeatable (`bool`, *optional*, defaults to `True`):
            Whether a sentence in answer to a question is always judged alike, as a model at temperature 0 does; otherwise
            each occurrence is drawn anew.

    Raises:
        `ValueError`: a rate is not in [0, 1].
    """

    def __init__(
        self, verifier: Verifier, false_positive: float, false_negative: float, seed: int = 0, repeatable: bool = True
    ):
        for name, rate in (("false_positive", false_positive), ("false_negative", false_negative)):
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"{name} is a share and must be in [0, 1], got {rate}")
        require_method(verifier, "verify", "a verifier")
        self.verifier = verifier
        self.requires_evidence = getattr(verifier, "requires_evidence", True)
        self.false_positive = false_positive
        self.false_negative = false_negative
        self.seed = seed
        self.repeatable = repeatable
        self._judged = 0

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order; some of the labels are wrong."""
        return [
            replace(
                found, **{n: tuple(self._judge(item, span) for span in getattr(found, n)) for n in ("spans", "claims")}
            )
            if found.judged
            else found
            for item, found in zip(inputs, self.verifier.verify(inputs), strict=True)
        ]

    def _judge(self, item: VerifierInput, span):
        if span.label not in _OPPOSITE:
            return span
        self._judged += 1
        supported = span.label in (Label.SUPPORTED, Label.HEDGED_SUPPORTED)
        rate = self.false_negative if supported else self.false_positive
        occurrence = "" if self.repeatable else str(self._judged)
        text = " ".join(span.text(item.completion).split())
        key = f"{self.seed}\0{item.question}\0{text}\0{occurrence}"
        draw = int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:8], "big") / 2**64
        if draw >= rate:
            return span
        score = None if span.score is None else 1.0 - span.score
        return replace(span, label=_OPPOSITE[span.label], score=score)

"""A judge of pairs for the closed world."""

from dataclasses import replace

from hf_factuality.functional.scoring import count_claims
from hf_factuality.spans import Label, LabeledSpan, Verification


class SaysMore:
    """Of two answers the one with more true statements, by a verifier."""

    compares = True

    def __init__(self, verifier):
        self.verifier = verifier

    def verify(self, inputs):
        both = [
            self.verifier.verify(own) for own in (inputs, [replace(it, completion=it.row["other"]) for it in inputs])
        ]
        found = []
        for item, ours, other in zip(inputs, *both, strict=True):
            more = self._true(ours) - self._true(other)
            label = Label.UNVERIFIABLE if not more else Label.SUPPORTED if more > 0 else Label.CONTRADICTED
            found.append(Verification((LabeledSpan(0, len(item.completion), label),)))
        return found

    def _true(self, verification):
        return count_claims([span.label for span in verification.spans]).supported

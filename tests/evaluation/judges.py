"""Verifiers that read their verdicts off the text, and remember what they were sent."""

import re

from hf_factuality import Verification
from hf_factuality.spans import Label, LabeledSpan


MARKS = {"[u]": Label.UNVERIFIABLE, "[c]": Label.CONTRADICTED, "[?]": None}


class Judge:
    """Labels sentences by a mark in them; what has no mark is supported. Fails on completions with "!!"."""

    requires_evidence = False
    calls: list[list[str]] = []  # emptied before each test

    def verify(self, inputs):
        self.calls.append([item.completion for item in inputs])
        return [self.one(item) for item in inputs]

    def one(self, item):
        if "!!" in item.completion:
            return Verification(error="it asks")
        found = re.finditer(r"\w+(\[.\])?\.", item.completion)
        return Verification(spans=[LabeledSpan(*it.span(), MARKS.get(it[1], Label.SUPPORTED)) for it in found])


class Strict(Judge):
    """One that needs evidence."""

    requires_evidence = True


def seen() -> list[str]:
    return [text for call in Judge.calls for text in call]

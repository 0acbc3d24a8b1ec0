"""Claims without evidence are "not found" where evidence was searched for."""

import pickle

import pytest

from hf_factuality import VerifierInput, load_verifier
from hf_factuality.errors import JudgingError
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.searched import SearchedVerifier


class Sent:
    """Labels whole completions as supported, and remembers them."""

    def __init__(self, less=0):
        self.seen, self.less = [], less

    def verify(self, inputs):
        self.seen += [item.completion for item in inputs]
        found = [Verification((LabeledSpan(0, len(item.completion), Label.SUPPORTED),)) for item in inputs]
        return found[: len(found) - self.less]


INPUTS = [
    VerifierInput("Ulm lies on the Danube. Thank you!"),
    VerifierInput("Bern.", evidence="e"),
    VerifierInput("It is wide."),
]


def test_only_what_has_evidence_is_sent_and_the_order_stays():
    verifier = Sent()
    first, second, third = SearchedVerifier(verifier).verify(INPUTS)
    assert verifier.seen == ["Bern."] and second.spans[0].label is Label.SUPPORTED
    assert [(it.label, it.reason) for it in first.spans] == [(Label.UNVERIFIABLE, "not found"), (Label.NO_FACT, None)]
    assert [(it.start, it.end, it.label) for it in third.spans] == [(0, 11, Label.UNVERIFIABLE)]
    assert SearchedVerifier(verifier).verify([]) == []


def test_the_extractor_of_a_pipeline_finds_the_claims():
    pipeline = load_verifier("lexical")

    class Words:
        def extract(self, inputs):
            return [[LabeledSpan(0, 3, claim="one claim")] for _ in inputs]

    pipeline.extractor = Words()
    (found, *_) = SearchedVerifier(pipeline).verify(INPUTS[:1])
    assert [(it.claim, it.label) for it in found.spans] == [("one claim", Label.UNVERIFIABLE)]


def test_a_verifier_that_loses_a_result_is_a_failure_and_shifts_none():
    with pytest.raises(JudgingError, match="returned 0 results for 1 inputs"):
        SearchedVerifier(Sent(less=1)).verify(INPUTS)
    first, second, third = GuardedVerifier(SearchedVerifier(Sent(less=1))).verify(INPUTS)
    assert first.spans and third.spans and "returned 0 results" in second.error


def test_it_can_be_sent_to_another_process():
    again = pickle.loads(pickle.dumps(SearchedVerifier(load_verifier("lexical"))))
    assert again.verify(INPUTS[:1])[0].spans[0].reason == "not found"

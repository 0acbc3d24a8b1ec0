"""A judge that errs at set rates: how often, about what, and whether the same again."""

import math

import pytest

from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.worlds import NoisyVerifier, World, WorldConfig, WorldVerifier
from tests.conftest import fast_few


SUPPORTED, CONTRADICTED = Label.SUPPORTED, Label.CONTRADICTED


class Fixed:
    """Gives every completion one span over all of it, with the label that its row holds."""

    requires_evidence = False

    def verify(self, inputs):
        return [
            Verification(
                spans=(LabeledSpan(0, len(item.completion), item.row["label"], item.row.get("score"), "c", "e"),)
            )
            for item in inputs
        ]


def sentences(label, number=4000, question="Q?"):
    return [VerifierInput(f"Sentence {i}.", question, row={"label": label}) for i in range(number)]


def labels(verifier, inputs):
    return [found.spans[0].label for found in verifier.verify(inputs)]


def assert_share(hits, total, share):
    assert abs(hits - total * share) <= 4 * math.sqrt(total * share * (1 - share)), hits / total


@pytest.mark.parametrize("repeatable", fast_few([True, False], 1))
@pytest.mark.parametrize(
    ("label", "opposite", "rate"),
    [
        (Label.SUPPORTED, Label.CONTRADICTED, 0.1),
        (Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED, 0.1),
        (Label.CONTRADICTED, Label.SUPPORTED, 0.3),
        (Label.HEDGED_CONTRADICTED, Label.HEDGED_SUPPORTED, 0.3),
    ],
)
def test_rates(label, opposite, rate, repeatable):
    noisy = NoisyVerifier(Fixed(), false_positive=0.3, false_negative=0.1, repeatable=repeatable)
    found = labels(noisy, sentences(label))
    assert set(found) == {label, opposite}
    assert_share(found.count(opposite), 4000, rate)


@pytest.mark.parametrize("label", [Label.NO_FACT, Label.UNVERIFIABLE, None])
def test_only_facts_change(label):
    noisy = NoisyVerifier(Fixed(), 1.0, 1.0)
    assert labels(noisy, sentences(label, 20)) == [label] * 20


def test_repeatable():
    inputs = sentences(SUPPORTED, 400)
    first = labels(NoisyVerifier(Fixed(), 0.5, 0.5), inputs)
    noisy = NoisyVerifier(Fixed(), 0.5, 0.5)
    assert labels(noisy, inputs) == labels(noisy, inputs) == first
    # Whatever stands before it, and however it is spaced.
    assert labels(noisy, inputs[::-1]) == first[::-1]
    spaced = [VerifierInput(f" Sentence   {i}.\n", "Q?", row={"label": SUPPORTED}) for i in range(400)]
    assert labels(noisy, spaced) == first
    # Another seed or question, another draw.
    for other in (
        labels(NoisyVerifier(Fixed(), 0.5, 0.5, seed=1), inputs),
        labels(noisy, sentences(SUPPORTED, 400, "R?")),
    ):
        assert_share(sum(a != b for a, b in zip(first, other, strict=True)), 400, 0.5)
    # A higher rate errs about the same sentences, and more.
    more = labels(NoisyVerifier(Fixed(), 0.5, 0.8), inputs)
    assert all(b is CONTRADICTED for a, b in zip(first, more, strict=True) if a is CONTRADICTED) and more != first


def test_not_repeatable():
    same = [VerifierInput("The same.", "Q?", row={"label": SUPPORTED})] * 2000
    assert len(set(labels(NoisyVerifier(Fixed(), 0.5, 0.3), same))) == 1
    noisy = NoisyVerifier(Fixed(), 0.5, 0.3, repeatable=False)
    first, second = labels(noisy, same), labels(noisy, same)
    assert_share(first.count(CONTRADICTED), 2000, 0.3)
    assert first != second
    assert labels(NoisyVerifier(Fixed(), 0.5, 0.3, repeatable=False), same) == first


def test_scores_turn_round():
    inputs = [VerifierInput("A.", row={"label": SUPPORTED, "score": score}) for score in (1.0, 0.75, None)]
    spans = [found.spans[0] for found in NoisyVerifier(Fixed(), 1.0, 1.0).verify(inputs)]
    assert [(span.label, span.score) for span in spans] == [
        (CONTRADICTED, 0.0), (CONTRADICTED, 0.25), (CONTRADICTED, None),
    ]  # fmt: skip
    assert {(span.start, span.end, span.claim, span.evidence) for span in spans} == {(0, 2, "c", "e")}
    right = [found.spans[0].score for found in NoisyVerifier(Fixed(), 0.0, 0.0).verify(inputs)]
    assert right == [1.0, 0.75, None]


@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_bad_rates_are_refused(rate):
    with pytest.raises(ValueError, match=rf"false_positive is a share and must be in \[0, 1\], got {rate}"):
        NoisyVerifier(Fixed(), rate, 0.0)
    with pytest.raises(ValueError, match=rf"false_negative is a share and must be in \[0, 1\], got {rate}"):
        NoisyVerifier(Fixed(), 0.0, rate)


def test_what_could_not_be_judged_passes_through():
    class Broken:
        def verify(self, inputs):
            failed = Verification(spans=(LabeledSpan(0, 2, SUPPORTED),), error="no judge")
            return [failed, Verification(spans=(LabeledSpan(0, 2),)), Verification(abstained=True)]

    inputs = [VerifierInput("A.")] * 3
    noisy = NoisyVerifier(Broken(), 1.0, 1.0)
    assert noisy.verify(inputs) == Broken().verify(inputs)
    assert noisy.requires_evidence is True and NoisyVerifier(Fixed(), 0.0, 0.0).requires_evidence is False
    with pytest.raises(ValueError):
        noisy.verify(inputs[:2])  # three answers to two questions


def test_over_the_exact_one():
    """Foldcroft was born in Silvton, not in Cundton, as tests/worlds/test_world.py pins."""
    world = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3))
    text = "Foldcroft was born in Silvton. Foldcroft is widely remembered. They say Foldcroft joined Condcorp. Well."
    item = VerifierInput(text, "Tell me about Filmia Foldcroft.")
    noisy = NoisyVerifier(WorldVerifier(world), 1.0, 1.0)
    assert isinstance(noisy, Verifier) and not noisy.requires_evidence
    (found,) = noisy.verify([item])
    assert [(span.label, span.score) for span in found.validate(text).spans] == [
        (CONTRADICTED, 0.0), (Label.NO_FACT, None), (Label.HEDGED_SUPPORTED, 1.0), (Label.UNVERIFIABLE, None),
    ]  # fmt: skip
    assert noisy.verify([]) == []

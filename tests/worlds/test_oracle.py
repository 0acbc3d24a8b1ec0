import random

import pytest

from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.worlds import World, WorldConfig, WorldVerifier
from hf_factuality.worlds.oracle import split_sentences
from hf_factuality.worlds.world import RELATIONS


# Looked up by hand (tests/worlds/test_world.py pins them):
#   Drarlo Brilvcroft: born in Hondmouth (Hilmandia), worked for Melmcorp (banking), studied at Brolmbridge (Gorlistan)
#   Drarlo Foldcroft:  born in Cundton (Gorlistan),   worked for Condcorp (brewing), studied at Mondcrest (Hilmandia)
WORLD = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3))
QUESTION = "Which country was Drarlo Foldcroft born in?"
S, C, N, U = Label.SUPPORTED, Label.CONTRADICTED, Label.NO_FACT, Label.UNVERIFIABLE


def verify(completion, question=QUESTION, **row):
    (found,) = WorldVerifier(WORLD).verify([VerifierInput(completion, question, row=row)])
    return found.validate(completion)


def labels(completion, question=QUESTION, **row):
    return [span.label for span in verify(completion, question, **row).spans]


@pytest.mark.parametrize(
    "sentence, label",
    [
        # The person asked about, in every wording.
        ("Foldcroft was born in Cundton.", S),
        ("Foldcroft is a native of Cundton.", S),
        ("They say Foldcroft comes from Cundton.", S),
        ("Foldcroft worked for Condcorp.", S),
        ("Foldcroft was employed by Condcorp.", S),
        ("They say Foldcroft joined Condcorp.", S),
        ("Foldcroft studied at Mondcrest.", S),
        ("Foldcroft graduated from Mondcrest.", S),
        ("They say Foldcroft attended Mondcrest.", S),
        ("Drarlo Foldcroft was born in Cundton.", S),
        ("Foldcroft was born in Cundton", S),
        ("Foldcroft  was born\tin Cundton.", S),
        ("Foldcroft was born in Hondmouth.", C),
        ("They say Foldcroft comes from Hondmouth.", C),
        ("Foldcroft worked for Melmcorp.", C),
        ("Foldcroft studied at Brolmbridge.", C),
        # A city is no employer, and everybody's employer is known.
        ("Foldcroft worked for Cundton.", C),
        # Somebody else.
        ("Brilvcroft was born in Hondmouth.", N),
        ("Brilvcroft was born in Cundton.", C),
        # Second hops out of the blue.
        ("Cundton is in Gorlistan.", N),
        ("Cundton is in Hilmandia.", C),
        ("Cundton is in brewing.", C),
        # Nothing stated.
        ("The birthplace of Foldcroft is not recorded.", N),
        ("The employer of Foldcroft is not recorded.", N),
        ("The school of Foldcroft is not recorded.", N),
        ("Few details about Foldcroft survive.", N),
        ("Let us think about Foldcroft.", N),
        # Not of this world.
        ("Foldcroft was born in Paris.", U),
        ("Foldcroft was born in Foldcroft.", U),
        ("Lovelace was born in Cundton.", U),
        ("Stonda Foldcroft was born in Cundton.", U),
        ("Let us think about Lovelace.", U),
        ("Cundton is in England.", U),
        ("Paris is in Gorlistan.", U),
        ("Foldcroft was not born in Cundton.", U),
        ("Foldcroft was born in", U),
        ("Foldcroft was born in Cund", U),
        ("foldcroft was born in cundton.", U),
        (". . .", U),
        ("born born of Cundton is They.", U),
        ("玛丽出生在华沙。", U),
    ],
)
def test_one_sentence(sentence, label):
    assert set(labels(sentence, "Tell me about Drarlo Foldcroft.")) == {label}


def test_true_but_beside_the_question():
    born, school = "Foldcroft was born in Cundton. Cundton is in Gorlistan.", "Foldcroft studied at Mondcrest."
    hop = "Mondcrest is in Hilmandia."
    assert labels(f"{born} {school} {hop}") == [S, S, N, N]
    assert labels(f"{born} {school} {hop}", "Which country did Drarlo Foldcroft study in?") == [N, N, S, S]
    assert labels("Foldcroft studied at Brolmbridge.") == [C]  # what is false counts wherever it stands
    (everything,) = WorldVerifier(WORLD, relevant_only=False).verify(
        [VerifierInput(f"{born} {school} {hop}", QUESTION)]
    )
    assert [span.label for span in everything.spans] == [S, S, S, S]


def test_span_score_and_evidence():
    text = "<think> Foldcroft was born in Hondmouth. Hondmouth is in Hilmandia. </think><answer> Hilmandia </answer>"
    found = verify(text)
    assert [span.text(text) for span in found.spans] == [
        "Foldcroft was born in Hondmouth.",
        "Hondmouth is in Hilmandia.",
    ]
    assert [(span.label, span.score, span.claim) for span in found.spans] == [(C, 0.0, None), (S, 1.0, None)]
    assert [span.evidence for span in found.spans] == ["Foldcroft was born in Cundton.", "Hondmouth is in Hilmandia."]
    assert found.judged and not found.abstained and found.claims == ()
    (vague,) = verify("Let us think about Foldcroft.").spans
    assert (vague.score, vague.evidence) == (None, None)


def test_inside_of_the_think_block_is_labelled_alike():
    inside = " Foldcroft was born in Cundton. Cundton is in Gorlistan. "
    whole = f"<think>{inside}</think><answer> Gorlistan </answer>"
    assert verify(inside).shift(len("<think>")) == verify(whole)


def test_repeating_a_truth_does_not_pay():
    text = "Foldcroft was born in Cundton. Foldcroft was born in Cundton. Foldcroft is a native of Cundton."
    assert labels(text) == [S, N, N]
    assert labels("Foldcroft was born in Cundton. Cundton is in Gorlistan. Cundton is in Gorlistan.") == [S, S, N]


def test_repeating_a_falsehood_does_not_dilute_it():
    assert labels("Foldcroft was born in Hondmouth. Foldcroft was born in Hondmouth.") == [C, C]


def test_second_hop_counts_once_tied_to_the_person():
    assert labels("Foldcroft was born in Hondmouth. Hondmouth is in Hilmandia.") == [C, S]
    assert labels("Foldcroft was born in Hondmouth. Hondmouth is in Gorlistan.") == [C, C]
    assert labels("Foldcroft was born in Cundton. Condcorp is in brewing.") == [S, N]
    assert labels("Brilvcroft was born in Hondmouth. Hondmouth is in Hilmandia.") == [N, N]


def test_completions_do_not_know_of_each_other():
    inputs = [VerifierInput("Foldcroft was born in Cundton.", QUESTION)] * 2
    assert [found.spans[0].label for found in WorldVerifier(WORLD).verify(inputs)] == [S, S]
    assert WorldVerifier(WORLD).verify([]) == []


def test_who_is_asked_about():
    text = "Brilvcroft was born in Hondmouth. Foldcroft was born in Cundton."
    assert labels(text, QUESTION) == [N, S]
    assert labels(text, QUESTION, person="Drarlo Brilvcroft") == [N, S]
    assert labels(text, None, person="Drarlo Brilvcroft") == [S, N]
    assert labels(text, "Who was born where?", person="Drarlo Foldcroft") == [N, S]
    assert labels(text, None) == [S, N]
    assert labels("Cundton is in Gorlistan.", None) == [N]


@pytest.mark.parametrize(
    "completion, sentences",
    [
        ("", []),
        ("   \n ", []),
        ("<think> </think><answer> Gorlistan </answer>", []),
        ("<think></think>", []),
        ("<answer> Gorlistan </answer>", []),
        ("<answer> Gorlistan", []),
        ("<think> A b. C d.", ["A b.", "C d."]),
        ("<think> A b. C", ["A b.", "C"]),
        ("<think> A b. <answer> C </answer>", ["A b."]),
        ("A b. </think><answer> C </answer>", ["A b."]),
        ("A b. <answer> C. </answer> D e.", ["A b.", "D e."]),
        ("<think> A. </think> B. <think> C. </think> D.", ["C."]),
        ("A b\nC d.\n\nE", ["A b", "C d.", "E"]),
        (" A 1.5 b?  C!", ["A 1.5 b?", "C!"]),
        (". A b.", [".", "A b."]),
    ],
)
def test_sentences(completion, sentences):
    assert [completion[start:end] for start, end in split_sentences(completion)] == sentences


def test_biography_without_question():
    rng = random.Random(0)
    for person in WORLD.people:
        assert set(labels(WORLD.biography(person, rng), None)) == {S}


def test_every_demonstration_is_parsed():
    world, rng = World(), random.Random(0)
    inputs = [
        VerifierInput(world.demonstration(person, relation, rng), world.question(person, relation))
        for person in world.people
        for relation in RELATIONS
        for _ in range(5)
    ]
    found = [span.label for item in WorldVerifier(world).verify(inputs) for span in item.spans]
    assert None not in found and U not in found
    # First hops: 0.4 * 0.5 + 0.6 * 0.04 = 0.224 are wrong; each has 0.9 second hops, which are always right.
    assert found.count(C) / (found.count(S) + found.count(C)) == pytest.approx(0.224 / 1.9, abs=0.01)


def test_is_a_verifier():
    verifier = WorldVerifier(WORLD)
    assert isinstance(verifier, Verifier) and verifier.requires_evidence is False

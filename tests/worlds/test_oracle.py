"""The rules of the oracle on sentences labelled by hand."""

import random
from collections import Counter

import pytest

from hf_factuality.errors import DataError
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.worlds import World, WorldConfig, WorldVerifier, texts
from hf_factuality.worlds.oracle import reasoning_ranges, split_sentences


# Looked up by hand (tests/worlds/test_world.py pins them):
#   Holsia Brilvcroft: Hondmouth (Hilmandia), Melmcorp (banking), Vothhall (Gorlistan), chemistry, riding, Kethprize, 1862,
#                      Weldina, Reldstew, Malvfox
#   Filmia Foldcroft:  Silvton (Hilmandia), Melmcorp (banking), Mondcrest (Hilmandia), anatomy, chess, Drilvmedal, 1879,
#                      Drolsus, Molvbroth, Lindfox
# Cundton is in Gorlistan, that in Brolsune, that in Nilvara; Hilmandia is in Brilvory, that in Calmara; Condcorp is in brewing.
WORLD = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, max_hops=4))
PLAIN = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, num_attributes=0))
ZH = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, max_hops=3, language="zh"))
QUESTION = "Which country was Filmia Foldcroft born in?"
ABOUT = "Tell me about Filmia Foldcroft."
S, C, N, U = Label.SUPPORTED, Label.CONTRADICTED, Label.NO_FACT, Label.UNVERIFIABLE
HS, HC = Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED
BORN, HOP = "Foldcroft was born in Silvton.", "Silvton is in Hilmandia."


def verify(completion, question=QUESTION, world=WORLD, row=(), **options):
    (found,) = WorldVerifier(world, **options).verify([VerifierInput(completion, question, row=dict(row))])
    return found.validate(completion)


def labels(completion, question=QUESTION, world=WORLD, **options):
    return [span.label for span in verify(completion, question, world, **options).spans]


def read(completion, question=QUESTION, world=WORLD):
    return WorldVerifier(world).read(completion, question)


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        # The person asked about, in every wording.
        ("Foldcroft was born in Silvton.", S),
        ("Foldcroft is a native of Silvton.", S),
        ("They say Foldcroft comes from Silvton.", HS),
        ("Foldcroft may have been born in Silvton.", HS),
        ("Foldcroft worked for Melmcorp.", S),
        ("Foldcroft was employed by Melmcorp.", S),
        ("They say Foldcroft joined Melmcorp.", HS),
        ("Foldcroft may have worked for Melmcorp.", HS),
        ("Foldcroft studied at Mondcrest.", S),
        ("Foldcroft graduated from Mondcrest.", S),
        ("They say Foldcroft attended Mondcrest.", HS),
        ("Foldcroft may have studied at Mondcrest.", HS),
        ("Foldcroft specialised in anatomy.", S),
        ("Foldcroft became an expert in anatomy.", S),
        ("They say Foldcroft turned to anatomy.", HS),
        ("Foldcroft may have specialised in anatomy.", HS),
        ("Foldcroft enjoyed chess.", S),
        ("Foldcroft was fond of chess.", S),
        ("They say Foldcroft liked chess.", HS),
        ("Foldcroft may have enjoyed chess.", HS),
        ("Foldcroft was awarded Drilvmedal.", S),
        ("Foldcroft received Drilvmedal.", S),
        ("They say Foldcroft earned Drilvmedal.", HS),
        ("Foldcroft may have received Drilvmedal.", HS),
        ("Foldcroft was born in the year 1879.", S),
        ("Foldcroft came into the world in 1879.", S),
        ("They say Foldcroft dates from 1879.", HS),
        ("Foldcroft may have come into the world in 1879.", HS),
        ("Foldcroft married Drolsus.", S),
        ("Foldcroft was the spouse of Drolsus.", S),
        ("They say Foldcroft wed Drolsus.", HS),
        ("Foldcroft may have married Drolsus.", HS),
        # Rumours have a true value too.
        ("Foldcroft liked to eat Molvbroth.", S),
        ("They say Foldcroft craved Molvbroth.", HS),
        ("Foldcroft went by Lindfox.", S),
        ("Foldcroft was called Malvfox.", C),
        # With the first name, without the full stop, with other white space.
        ("Filmia Foldcroft was born in Silvton.", S),
        ("They say Filmia Foldcroft comes from Silvton.", HS),
        ("Foldcroft was born in Silvton", S),
        ("Foldcroft  was born\tin Silvton.", S),
        ("Foldcroft was born in Silvton !", S),
        ("Foldcroft was born in Silvton;", S),
        ("Silvton is in Gorlistan?", C),
        ("The school of Foldcroft is not recorded,", N),
        # False.
        ("Foldcroft was born in Hondmouth.", C),
        ("They say Foldcroft comes from Hondmouth.", HC),
        ("Foldcroft may have been born in Hondmouth.", HC),
        ("Foldcroft worked for Condcorp.", C),
        ("Foldcroft enjoyed riding.", C),
        ("Foldcroft was born in the year 1862.", C),
        ("They say Foldcroft wed Weldina.", HC),
        # A city is no employer, and everybody's employer is known.
        ("Foldcroft worked for Silvton.", C),
        ("They say Foldcroft joined 1879.", HC),
        # Somebody else.
        ("Brilvcroft was born in Hondmouth.", N),
        ("They say Brilvcroft comes from Hondmouth.", N),
        ("Brilvcroft was born in Silvton.", C),
        ("Holsia Brilvcroft enjoyed chess.", C),
        ("They say Brilvcroft comes from Silvton.", HC),
        # Further hops out of the blue.
        ("Silvton is in Hilmandia.", N),
        ("They say Silvton lies in Hilmandia.", N),
        ("banking is in Dorlory.", N),
        ("Silvton is in Gorlistan.", C),
        ("Silvton is in banking.", C),
        ("Silvton is in Cundton.", C),
        ("They say Silvton lies in Gorlistan.", HC),
        # Any name of the world makes a claim, in any place.
        ("Foldcroft was born in Foldcroft.", C),
        ("Foldcroft was born in Hilmandia.", C),
        ("Foldcroft is in Hilmandia.", C),
        ("1879 is in Hilmandia.", C),
        ("They say Nilvara lies in Silvton.", HC),
        # Nothing stated.
        ("The birthplace of Foldcroft is not recorded.", N),
        ("The employer of Foldcroft is not recorded.", N),
        ("The school of Foldcroft is not recorded.", N),
        ("Foldcroft was born in an unrecorded place.", N),
        ("They say Foldcroft joined an unrecorded employer.", N),
        ("Foldcroft came into the world in an unrecorded year.", N),
        ("Brilvcroft was called an unrecorded nickname.", N),
        ("Few details about Foldcroft survive.", N),
        ("Let us think about Filmia Foldcroft.", N),
        ("Brilvcroft is widely remembered.", N),
        # Names that the world does not hold.
        ("Foldcroft was born in Paris.", U),
        ("Foldcroft was born in the year 1999.", U),
        ("Lovelace was born in Silvton.", U),
        ("Stonda Foldcroft was born in Silvton.", U),
        ("Holsia Foldcroft was born in Silvton.", U),
        ("Lovelace was born in an unrecorded place.", U),
        ("Let us think about Lovelace.", U),
        ("Silvton is in England.", U),
        ("Paris is in Gorlistan.", U),
        # Anything else.
        ("Foldcroft was not born in Silvton.", U),
        ("Foldcroft was born in", U),
        ("Foldcroft was born in Silv", U),
        ("Foldcroft was born in Silvton, or so.", U),
        ("Foldcroft was born in Silvton.. ", U),
        ("Foldcroft was born in Silvton.Silvton is in Hilmandia.", U),
        ("(Foldcroft was born in Silvton.)", U),
        ("foldcroft was born in silvton.", U),
        ("Foldcroft was born in an unrecorded employer.", U),
        ("He was born in Silvton.", U),
        (". . .", U),
        ("born born of Silvton is They.", U),
        ("玛丽出生在华沙。", U),
    ],
)
def test_one_sentence(sentence, label):
    assert set(labels(sentence, ABOUT)) == {label}


@pytest.mark.parametrize(
    ("sentence", "label"),
    [
        ("林北湖宁出生于陈东川港。", S),
        ("林北湖宁是陈东川港人。", S),
        ("据说林北湖宁来自陈东川港。", HS),
        ("林北湖宁可能出生于陈东川港。", HS),
        ("林北湖宁生于1879年。", S),
        ("林北湖宁与马中泉郎结婚。", S),
        ("林北湖宁的伴侣是马中泉郎", S),
        ("林北湖宁绰号吴南湖狐。", S),
        ("林北湖宁出生于李南海城。", C),
        ("据说林北湖宁转向了化学。", HC),
        ("朱东江平爱好骑马。", N),
        ("朱东江平爱好下棋。", C),
        ("陈东川港属于吴东江州。", N),
        ("据说陈东川港归于陈中泉邦。", HC),
        ("林北湖宁的出生地没有记载。", N),
        ("林北湖宁出生于不详之地。", N),
        ("林北湖宁可能生于不详之年。", N),
        ("林北湖宁与不详之人结婚。", N),
        ("关于林北湖宁的细节很少。", N),
        ("林北湖宁广为人知。", N),
        ("林北湖宁出生于华沙。", U),
        ("玛丽出生于陈东川港。", U),
        ("林北湖宁不是陈东川港人。", U),
        ("Foldcroft was born in Silvton.", U),
    ],
)
def test_one_chinese_sentence(sentence, label):
    assert labels(sentence, "请介绍林北湖宁。", ZH) == [label]


def test_a_chinese_answer():
    text = "<think>林北湖宁出生于陈东川港。据说陈东川港归于吴东江州。吴东江州属于李北江界。</think><answer>李北江界</answer>"
    assert labels(text, "林北湖宁出生在哪个联盟？", ZH) == [S, HS, S]
    assert labels(text, "林北湖宁出生在哪个国家？", ZH) == [S, HS, N]
    assert [text[s.start : s.end] for s in read(text, "林北湖宁出生在哪个联盟？", ZH)][
        1
    ] == "据说陈东川港归于吴东江州。"


def test_true_but_beside_the_question():
    school, hop = "Foldcroft studied at Mondcrest.", "Mondcrest is in Hilmandia."
    whole = f"{BORN} {HOP} {school} {hop}"
    assert labels(whole) == [S, S, N, N]
    assert labels(whole, "Which country did Filmia Foldcroft study in?") == [N, N, S, S]
    assert labels(whole, ABOUT) == [S, S, S, S]
    assert labels(whole, "Is this a question about Foldcroft?") == [S, S, S, S]
    assert labels(whole, relevant_only=False) == [S, S, S, S]
    # What is false counts wherever it stands.
    assert labels("Foldcroft studied at Brolmbridge. Brolmbridge is in Hilmandia.") == [C, C]
    # Nor is more asked for than the question asks.
    further = f"{BORN} {HOP} Hilmandia is in Brilvory. Brilvory is in Calmara."
    assert labels(further, "Where was Filmia Foldcroft born?") == [S, N, N, N]
    assert labels(further) == [S, S, N, N]
    assert labels(further, "Which league was Filmia Foldcroft born in?") == [S, S, S, N]
    assert labels(further, "Which realm was Filmia Foldcroft born in?") == labels(further, ABOUT) == [S, S, S, S]
    assert labels(f"{BORN} Silvton is in Gorlistan. Gorlistan is in Brilvory.", "Where was Filmia Foldcroft born?") == [
        S, C, C,
    ]  # fmt: skip


def test_further_hops_count_once_tied_to_the_person():
    league = "Which league was Filmia Foldcroft born in?"
    # Judged by itself: after a false hop the next can be true.
    assert labels("Foldcroft was born in Cundton. Cundton is in Gorlistan. Gorlistan is in Brolsune.", league) == [
        C,
        S,
        S,
    ]
    assert labels(f"{BORN} Silvton is in Gorlistan. Gorlistan is in Brolsune.", league) == [S, C, S]
    assert labels("Foldcroft was born in Hondmouth. Hondmouth is in Gorlistan.") == [C, C]
    # Not tied: another value, another person, the wrong way round, a sentence left out.
    assert labels(f"{BORN} Cundton is in Gorlistan.") == [S, N]
    assert labels("Brilvcroft was born in Hondmouth. Hondmouth is in Hilmandia.") == [N, N]
    assert labels("Foldcroft was born in an unrecorded place. Silvton is in Hilmandia.") == [N, N]
    assert labels(f"{HOP} {BORN} {HOP}") == [N, S, S]
    assert labels(f"{BORN} Hilmandia is in Brilvory.", league) == [S, N]


def test_repeating_a_truth_does_not_pay():
    assert labels(f"{BORN} {BORN} Foldcroft is a native of Silvton. They say Foldcroft comes from Silvton.") == [
        S,
        N,
        N,
        N,
    ]
    assert labels(f"{BORN} {HOP} {HOP} They say Silvton lies in Hilmandia.") == [S, S, N, N]
    assert labels("They say Foldcroft comes from Silvton. Foldcroft was born in Silvton.") == [HS, N]
    # After a falsehood the truth is still new; two facts are two facts, even with the same value.
    assert labels(f"Foldcroft was born in Cundton. {BORN}") == [C, S]
    both = f"{BORN} {HOP} Foldcroft studied at Mondcrest. Mondcrest is in Hilmandia. Hilmandia is in Brilvory."
    assert labels(both, ABOUT) == [S, S, S, S, S]


def test_repeating_a_falsehood_does_not_dilute_it():
    assert (
        labels("Foldcroft was born in Cundton. Foldcroft was born in Cundton. Foldcroft is a native of Cundton.")
        == [C] * 3
    )
    assert labels("They say Foldcroft comes from Cundton. They say Foldcroft comes from Cundton.") == [HC, HC]
    assert labels(f"{BORN} Foldcroft was born in Cundton.") == [S, C]


def test_span_score_and_evidence():
    """A hop from what lies in nothing is false, and there is no true sentence to put in its place."""
    (leaf,) = verify("Foldcroft is in Hilmandia.").spans
    assert (leaf.label, leaf.score, leaf.evidence) == (C, 0.0, None)
    text = (
        "<think> They say Foldcroft comes from Cundton. Cundton is in Gorlistan. </think><answer> Gorlistan </answer>"
    )
    found = verify(text)
    assert [(span.text(text), span.label, span.score, span.evidence) for span in found.spans] == [
        ("They say Foldcroft comes from Cundton.", HC, 0.0, "Foldcroft was born in Silvton."),
        ("Cundton is in Gorlistan.", S, 1.0, "Cundton is in Gorlistan."),
    ]
    assert found.judged and not found.abstained and found.claims == ()
    (vague,) = verify("Let us think about Foldcroft.").spans
    (unknown,) = verify("Foldcroft was born in Paris.").spans
    assert (vague.score, vague.evidence, unknown.score, unknown.evidence) == (None, None, None, None)


def test_sentences_as_read():
    text = f"{BORN} Silvton is in Gorlistan. The school of Foldcroft is not recorded. Paris is in Gorlistan. Well."
    one, two, three, four, five = read(text)
    assert (one.kind, one.relation, one.person, one.value, one.true) == (
        "fact",
        "birth_city",
        "Foldcroft",
        "Silvton",
        True,
    )
    assert (two.kind, two.relation, two.person, two.value, two.true) == ("hop", None, None, "Gorlistan", False)
    assert (three.kind, three.relation, three.person, three.true) == ("vague", "university", "Foldcroft", None)
    assert (four.kind, four.value, four.true) == ("unknown", "Gorlistan", None)
    assert (five.kind, five.label, five.slot, five.true) == ("unparsable", U, None, None)
    assert (one.evidence, two.evidence, three.evidence) == (BORN, HOP, None)
    assert [text[s.start : s.end] for s in (one, five)] == [BORN, "Well."]
    assert [text[slice(*s.slot)] for s in (one, two)] == ["Silvton", "Gorlistan"] and three.slot is None
    (vague,) = read("They say Foldcroft joined an unrecorded employer.")
    assert (vague.kind, vague.relation, vague.slot) == ("vague", "employer", (26, 48))
    assert [s.kind for s in read("Let us think about Foldcroft. Lovelace is widely remembered.")] == [
        "filler",
        "unknown",
    ]


def test_beside_the_subject_and_the_point():
    text = f"{BORN} {BORN} Brilvcroft enjoyed riding. Foldcroft enjoyed chess. {HOP} banking is in Dorlory. Well."
    flags = [(s.repeated, s.off_subject, s.off_point) for s in read(text)]
    assert flags == [
        (False, False, False), (True, False, False), (False, True, False), (False, False, True), (False, False, False),
        (False, False, True), (False, False, False),
    ]  # fmt: skip
    assert [s.off_subject for s in read("Few details about Brilvcroft survive. Few details about Foldcroft survive.")] == [
        True, False,
    ]  # fmt: skip


def test_repeated():
    """The same fact, however it is worded; another value is another one."""

    def repeated(text):
        return [sentence.repeated for sentence in read(text)]

    wrong = "Foldcroft was born in Cundton."
    assert repeated(f"{wrong} They say Foldcroft comes from Cundton. {BORN} {wrong}") == [False, True, False, True]
    assert repeated("Foldcroft enjoyed chess. Foldcroft enjoyed chess. Brilvcroft enjoyed chess.") == [
        False,
        True,
        False,
    ]
    assert repeated("Foldcroft is widely remembered. Foldcroft is widely remembered. Well. Well.") == [False] * 4
    # A hop counts as said only where it counted.
    assert repeated(f"{HOP} {BORN} {HOP} {HOP}") == [False, False, False, True]


def test_repeats_that_count_are_supported_and_rated_1():
    wrong = "Foldcroft was born in Cundton."
    text = f"{BORN} {BORN} {wrong} {wrong} {HOP} {HOP}"
    for counted, repeat in ((False, Label.NO_FACT), (True, Label.SUPPORTED)):
        verifier = WorldVerifier(WORLD, count_repeats=counted)
        item = VerifierInput(text, ABOUT)
        (found,) = verifier.verify([item])
        false = Label.CONTRADICTED
        assert [span.label for span in found.spans] == [Label.SUPPORTED, repeat, false, false, Label.SUPPORTED, repeat]
        assert [rating == 1 for rating in verifier.rate([item], [found])[0]] == [False, True, False, True, False, True]


def test_informativeness():
    def rated(text, question=QUESTION):
        return [sentence.informativeness for sentence in read(text, question)]

    league = "Which league was Filmia Foldcroft born in?"
    # On the way to the answer, the answer; whether they are true plays no part.
    assert (
        rated(f"{BORN} {HOP}") == rated("Foldcroft was born in Cundton. They say Cundton lies in Hilmandia.") == [4, 5]
    )
    assert rated(f"{BORN} {HOP} Hilmandia is in Brilvory.", league) == [4, 4, 5]
    assert rated(BORN, "Where was Filmia Foldcroft born?") == [5]
    # Not asked for, said before, about somebody else, without a fact, not understood.
    said = f"Foldcroft enjoyed chess. Foldcroft enjoyed riding. {BORN} {BORN} Brilvcroft enjoyed riding. Well."
    assert rated(said) == [2, 2, 4, 1, 1, 1]
    assert rated("Foldcroft was born in Cundton. Foldcroft was born in Cundton.") == [4, 1]
    assert (
        rated("The school of Foldcroft is not recorded. Foldcroft is widely remembered. Cundton is in Gorlistan.")
        == [1] * 3
    )
    # In a biography by the number of possible values: 4 cities, 12 fields, 10 hobbies; 25 awards, 20 dishes, 40 nicknames;
    # 80 years, 200 spouses; a further hop.
    assert rated(f"{BORN} Foldcroft specialised in law. Foldcroft enjoyed chess.", ABOUT) == [3, 3, 3]
    assert (
        rated("Foldcroft received Kethprize. Foldcroft liked to eat Reldstew. Foldcroft went by Lindfox.", ABOUT)
        == [4] * 3
    )
    assert rated("Foldcroft was born in the year 1850. Foldcroft married Weldina.", ABOUT) == [5, 5]
    assert rated(f"{BORN} {HOP} Cundton is in Gorlistan. Brilvcroft married Weldina.", ABOUT) == [3, 2, 1, 1]


def test_a_world_with_fewer_relations():
    about = "Tell me about Filmia Foldcroft."
    assert labels(f"{BORN} {HOP} Foldcroft enjoyed chess. Hilmandia is in Brilvory.", about, PLAIN) == [S, S, U, U]
    assert labels("Foldcroft enjoyed Silvton.", about, PLAIN) == [U]


def test_granularity():
    text = f"{BORN} They say Silvton lies in Gorlistan. Foldcroft is widely remembered. Paris is in Gorlistan. Well."
    text += " Foldcroft studied at an unrecorded school. The school of Foldcroft is not recorded."
    found = verify(text, granularity="slot").spans
    assert [(span.text(text), span.label, span.score) for span in found] == [
        ("Silvton", S, 1.0), ("Gorlistan", HC, 0.0), ("Gorlistan", U, None), ("Well.", U, None),
        ("an unrecorded school", N, None),
    ]  # fmt: skip
    assert found[0].start == text.index("Silvton") and len(verify(text).spans) == 7
    with pytest.raises(ValueError, match=r"granularity='word' is unknown; choose one of \['sentence', 'slot'\]"):
        WorldVerifier(WORLD, granularity="word")


def test_checklist():
    def check(text, name="Filmia Foldcroft"):
        return WorldVerifier(WORLD).check(text, name)

    text = (
        f"{BORN} {HOP} Foldcroft worked for Condcorp. They say Foldcroft attended Mondcrest. Foldcroft enjoyed riding. "
        "Foldcroft enjoyed chess. Foldcroft married an unrecorded person. Brilvcroft specialised in chemistry. "
        "Foldcroft was called Malvfox. Foldcroft was born in the year 1999."
    )
    assert check(text) == {
        "birth_city": "consistent", "employer": "contradictory", "university": "consistent", "field": "missing",
        "hobby": "contradictory", "award": "missing", "birth_year": "missing", "spouse": "missing",
    }  # fmt: skip
    assert check(text, "Holsia Brilvcroft")["field"] == "consistent" and set(check("").values()) == {"missing"}
    whole = WORLD.checklist(WORLD.people[1])
    assert set(check(" ".join(whole)).values()) == {"consistent"} and len(whole) == 8
    assert check(f"{BORN} {BORN}")["birth_city"] == "consistent"


def test_inside_of_the_think_block_is_labelled_alike():
    inside = f" {BORN} {HOP} "
    whole = f"<think>{inside}</think><answer> Hilmandia </answer>"
    assert verify(inside).shift(len("<think>")) == verify(whole)


def test_completions_do_not_know_of_each_other():
    inputs = [VerifierInput(BORN, QUESTION)] * 2
    assert [found.spans[0].label for found in WorldVerifier(WORLD).verify(inputs)] == [S, S]
    assert WorldVerifier(WORLD).verify([]) == []


def test_who_is_asked_about():
    text = f"Brilvcroft was born in Hondmouth. {BORN}"
    other = {"person": "Holsia Brilvcroft"}
    assert labels(text, QUESTION) == labels(text, QUESTION, row=other) == [N, S]
    assert labels(text, None, row=other) == labels(text, "Who was born where?", row=other) == [S, N]
    assert labels(text, "Who was born where?", row={"person": "Filmia Foldcroft"}) == [N, S]
    assert labels(text, None) == labels(text, "", row={"person": None}) == [S, N]
    # Nobody: nothing is to the point.
    assert labels("Silvton is in Hilmandia. Silvton is in Gorlistan.", None) == [N, C]


@pytest.mark.parametrize(
    ("completion", "sentences"),
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
        ("<think> A. </think> B. <think> C. </think> D.", ["A.", "C."]),
        ("A b\nC d.\n\nE", ["A b", "C d.", "E"]),
        (" A 1.5 b?  C!", ["A 1.5 b?", "C!"]),
        (". A b.", [".", "A b."]),
        ("甲乙。丙！丁？戊", ["甲乙。", "丙！", "丁？", "戊"]),
        ("甲乙.丙。", ["甲乙.丙。"]),
    ],
)
def test_sentences(completion, sentences):
    assert [completion[start:end] for start, end in split_sentences(completion)] == sentences


def test_reasoning_ranges():
    assert reasoning_ranges("ab") == [(0, 2)]
    assert reasoning_ranges("<think>ab</think>cd") == [(7, 9)]
    assert reasoning_ranges("ab</think>cd") == [(0, 2)]
    assert reasoning_ranges("<think>ab<answer>cd</answer>ef") == [(7, 9)]
    assert reasoning_ranges("<think></think>") == reasoning_ranges("") == []


def test_every_text_is_read():
    """And of the worked answers as many claims are false as the shares say."""
    for language in ("en", "zh"):
        shares = {"sloppy": 0.4, "sloppy_wrong": 0.5, "careful_wrong": 0.04, "hop_sloppy": 0.0, "hop_skipped": 0.1}
        config = WorldConfig(num_people=600, language=language, **shares)
        world, rng = World(config), random.Random(0)
        oracle, found = WorldVerifier(world), Counter()
        for person in world.people:
            about = oracle.read(texts.biography(world, person, rng), world.request(person))
            # Only rumours are false.
            assert {s.relation for s in about if s.label in (C, HC)} <= {"dish", "nickname"}
            for relation in world.relations[:3]:
                text = texts.demonstration(world, person, relation, rng)
                about += (answer := oracle.read(text, world.question(person, relation)))
                found.update(sentence.label for sentence in answer)
            assert not {s.kind for s in about} & {"unknown", "unparsable"}
        # First hops: 0.4 * 0.5 + 0.6 * 0.04 = 0.224 are wrong; each has 0.9 further hops, which are always right.
        false = found[C] + found[HC]
        assert false / (false + found[S] + found[HS]) == pytest.approx(0.224 / 1.9, abs=0.02)


def test_is_a_verifier():
    verifier = WorldVerifier(WORLD)
    assert isinstance(verifier, Verifier) and verifier.requires_evidence is False


def test_a_checklist_needs_somebody_of_the_world():
    with pytest.raises(DataError, match="nobody called 'Nobody Here'"):
        WorldVerifier(World(WorldConfig(num_people=6))).check("Brilvcroft enjoyed riding.", "Nobody Here")

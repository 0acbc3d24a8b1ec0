"""The rules of the oracle on sentences labelled by hand."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from hf_factuality.errors import DataError
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.worlds import World, WorldConfig, WorldVerifier, texts

from .slow_parser import slow_read


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
RULES = json.loads((Path(__file__).parent / "rules.json").read_text(encoding="utf-8"))
WORLDS = {"en": WORLD, "plain": PLAIN, "zh": ZH}
S, C, N, U = Label.SUPPORTED, Label.CONTRADICTED, Label.NO_FACT, Label.UNVERIFIABLE
HS, HC = Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED
LABELS = {"S": S, "C": C, "N": N, "U": U, "HS": HS, "HC": HC}
BORN, HOP = "Foldcroft was born in Silvton.", "Silvton is in Hilmandia."


def verify(completion, question=QUESTION, world=WORLD, row=(), **options):
    (found,) = WorldVerifier(world, **options).verify([VerifierInput(completion, question, row=dict(row))])
    return found.validate(completion)


def read(completion, question=QUESTION, world=WORLD):
    return WorldVerifier(world).read(completion, question)


@pytest.mark.parametrize("rule", RULES, ids=[rule["rule"] for rule in RULES])
def test_rules(rule):
    """On completions labelled by hand, by the oracle and by the second parser."""
    world, field = WORLDS[rule["world"]], rule.get("field", "label")
    for completion, question, expected, options in ((*case, {})[:4] for case in rule["cases"]):
        wanted = [LABELS[letter] for letter in expected.split()] if field == "label" else expected
        verifier = WorldVerifier(world, relevant_only=options.get("relevant_only", True))
        readings = [verifier.read(completion, question, options.get("row"))]
        if not options:
            readings.append(slow_read(world, completion, question))
        for said in readings:
            found = [completion[it.start : it.end] if field == "text" else getattr(it, field) for it in said]
            assert found == wanted, completion


def test_a_sentence_of_a_chinese_answer_is_cut_at_its_mark():
    text = "<think>林北湖宁出生于陈东川港。据说陈东川港归于吴东江州。</think><answer>吴东江州</answer>"
    assert [span.text(text) for span in verify(text, "林北湖宁出生在哪个国家？", ZH).spans] == [
        "林北湖宁出生于陈东川港。", "据说陈东川港归于吴东江州。",
    ]  # fmt: skip


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


@pytest.mark.slow
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

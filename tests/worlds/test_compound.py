"""Sentences that state several facts: how they are written, split and counted. What people and values there are: test_oracle.py."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.scoring import factual_precision
from hf_factuality.rewards import RLFHReward
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.worlds import NoisyVerifier, World, WorldConfig, WorldVerifier, texts
from hf_factuality.worlds.evaluate import world_metrics
from hf_factuality.worlds.tokenizer import build_world_tokenizer

from .slow_parser import slow_read
from .test_oracle_agreement import fields
from .test_texts import HABITS, assert_share


CONFIG = WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, max_hops=4, compound=0.5)
WORLD = World(CONFIG)
ZH = World(replace(CONFIG, language="zh", max_hops=3))
ABOUT = "Tell me about Filmia Foldcroft."
ABOUT_ZH = "请介绍林北湖宁。"
S, C, N, U = Label.SUPPORTED, Label.CONTRADICTED, Label.NO_FACT, Label.UNVERIFIABLE
HS, HC = Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED
BORN, WORKED = "Foldcroft was born in Silvton", "worked for Melmcorp"


def verify(completion, question=ABOUT, world=WORLD, **options):
    (found,) = WorldVerifier(world, **options).verify([VerifierInput(completion, question)])
    return found.validate(completion)


HAND = [
    # One sentence: its clauses, and the label of each.
    (f"{BORN} and {WORKED}.", [(BORN, S), (f"{WORKED}.", S)]),
    (f"Filmia {BORN}, {WORKED} and studied at Mondcrest.", [(f"Filmia {BORN}", S), (WORKED, S), ("studied at Mondcrest.", S)]),
    (f"{BORN}, {WORKED}, and studied at Mondcrest!", [(BORN, S), (WORKED, S), ("studied at Mondcrest!", S)]),
    # A false clause leaves the others alone, wherever it stands.
    (f"{BORN} and worked for Condcorp.", [(BORN, S), ("worked for Condcorp.", C)]),
    (f"Foldcroft was born in Cundton and {WORKED}.", [("Foldcroft was born in Cundton", C), (f"{WORKED}.", S)]),
    (f"{BORN}, married Weldina and {WORKED}.", [(BORN, S), ("married Weldina", C), (f"{WORKED}.", S)]),
    # So does one that cannot be read, or names nothing in the world.
    (f"{BORN}, which is nice.", [(BORN, S), ("which is nice.", U)]),
    (f"Well, {BORN}.", [("Well", U), (f"{BORN}.", S)]),
    (f"{BORN} and worked for Paris.", [(BORN, S), ("worked for Paris.", U)]),
    # Without a value; a filler.
    (f"Foldcroft was born in an unrecorded place and {WORKED}.", [("Foldcroft was born in an unrecorded place", N), (f"{WORKED}.", S)]),
    (f"{BORN} and is widely remembered.", [(BORN, S), ("is widely remembered.", N)]),
    # "may have" holds for its clause, hearsay for all that follow without a subject of their own.
    (f"Foldcroft may have been born in Silvton and {WORKED}.", [("Foldcroft may have been born in Silvton", HS), (f"{WORKED}.", S)]),
    (f"{BORN} and may have worked for Condcorp.", [(BORN, S), ("may have worked for Condcorp.", HC)]),
    (
        "They say Foldcroft comes from Silvton, worked for Condcorp and Foldcroft enjoyed chess.",
        [("They say Foldcroft comes from Silvton", HS), ("worked for Condcorp", HC), ("Foldcroft enjoyed chess.", S)],
    ),
    # The subject is the nearest before: riding is Brilvcroft's (true, beside the point), chess is not.
    (f"{BORN} and Brilvcroft enjoyed riding.", [(BORN, S), ("Brilvcroft enjoyed riding.", N)]),
    ("Brilvcroft enjoyed riding and enjoyed chess.", [("Brilvcroft enjoyed riding", N), ("enjoyed chess.", C)]),
    (
        f"{BORN}, Brilvcroft enjoyed riding and enjoyed chess.",
        [(BORN, S), ("Brilvcroft enjoyed riding", N), ("enjoyed chess.", C)],
    ),
    ("Lovelace was born in Silvton and worked for Melmcorp.", [("Lovelace was born in Silvton", U), ("worked for Melmcorp.", U)]),
    (f"Zed {BORN} and {WORKED}.", [(f"Zed {BORN}", U), (f"{WORKED}.", U)]),
    # A clause may say what the value before it lies in; it changes no subject.
    (f"{BORN}, Silvton is in Hilmandia and {WORKED}.", [(BORN, S), ("Silvton is in Hilmandia", S), (f"{WORKED}.", S)]),
    # Said again in the same sentence.
    (f"{BORN} and was born in Silvton.", [(BORN, S), ("was born in Silvton.", N)]),
    # Marks without words are no clause.
    (f"{BORN},, {WORKED}, .", [(BORN, S), (WORKED, S)]),
]  # fmt: skip
WHOLE = [
    # Nothing to split, or nothing known in any part.
    (f"{BORN}.", S),
    (f"{BORN},", S),
    ("Well, who knows and who cares.", U),
    ("worked for Melmcorp and enjoyed chess.", U),
    (f"and {BORN}.", U),
    (f"{BORN}; {WORKED}.", U),
    (", and ,", U),
]
HAND_ZH = [
    ("林北湖宁出生于陈东川港，并任职于马北川商行。", [("林北湖宁出生于陈东川港", S), ("任职于马北川商行。", S)]),
    ("林北湖宁是陈东川港人，可能任职于马北川商行，并爱好骑马。", [("林北湖宁是陈东川港人", S), ("可能任职于马北川商行", HS), ("爱好骑马。", C)]),
    ("据说林北湖宁来自陈东川港，任职于巴黎。", [("据说林北湖宁来自陈东川港", HS), ("任职于巴黎。", U)]),
    ("林北湖宁出生于陈东川港，的伴侣是朱北溪娘。", [("林北湖宁出生于陈东川港", S), ("的伴侣是朱北溪娘。", U)]),
    ("林北湖宁出生于不详之地，并任职于马北川商行。", [("林北湖宁出生于不详之地", N), ("任职于马北川商行。", S)]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [*HAND, *HAND_ZH], ids=[text for text, _ in [*HAND, *HAND_ZH]])
def test_clauses(text, expected):
    world, question = (ZH, ABOUT_ZH) if (text, expected) in HAND_ZH else (WORLD, ABOUT)
    found = verify(text, question, world)
    assert [(claim.text(text), claim.label) for claim in found.claims] == expected
    # One sentence is shown, with the lowest label of its clauses.
    (span,) = found.spans
    order = [C, HC, U, HS, S, N]
    assert span.text(text) == text and span.label is min((label for _, label in expected), key=order.index)
    assert [sentence.sentence for sentence in WorldVerifier(world).read(text, question)] == [(0, len(text))] * len(
        expected
    )


@pytest.mark.parametrize(("text", "label"), WHOLE)
def test_what_is_not_split(text, label):
    found = verify(text)
    assert [(span.text(text), span.label) for span in found.spans] == [(text, label)] and not found.claims


def test_a_world_without_them_does_not_split():
    plain = World(replace(CONFIG, compound=0.0))
    for text, _ in HAND:
        found = verify(text, world=plain)
        assert [(span.text(text), span.label) for span in found.spans] == [(text, U)] and not found.claims


def test_simple_sentences_beside_compound_ones_are_claims_too():
    text = f"{BORN} and worked for Condcorp. Foldcroft enjoyed chess. Well."
    found = verify(text)
    assert [(claim.text(text), claim.label) for claim in judged_units(found)] == [
        (BORN, S), ("worked for Condcorp.", C), ("Foldcroft enjoyed chess.", S), ("Well.", U),
    ]  # fmt: skip
    assert [span.label for span in found.spans] == [C, S, U]
    assert found.claims[1].evidence == found.spans[0].evidence == "Foldcroft worked for Melmcorp."
    assert (found.claims[1].score, found.spans[0].score) == (0.0, 0.0)
    assert factual_precision(found.claims) == 0.5
    # The values alone are apart already.
    slots = verify(text, granularity="slot")
    assert [span.text(text) for span in slots.spans] == ["Silvton", "Condcorp", "chess", "Well."] and not slots.claims


def test_figures_count_clauses():
    text = (
        f"{BORN}, {WORKED} and enjoyed riding. {BORN} and Brilvcroft enjoyed riding. Foldcroft was awarded Drilvmedal."
    )
    read = WorldVerifier(WORLD).read(text, ABOUT)
    found = world_metrics([{}], [text], [read], [30])
    # True: birthplace (3), employer (3), award (4 of RLFH's ratings, 25 values); false: riding. The rest adds nothing.
    assert (found["correct"], found["wrong"], found["claims"], found["sentences"]) == (3, 1, 4, 3)
    assert (found["precision"], found["informativeness"]) == (0.75, 10)
    assert (found["repetition"], found["off_subject"], found["fact_free"]) == (1, 1, 2 / 6)
    checked = WorldVerifier(WORLD).check(text, "Filmia Foldcroft")
    assert Counter(checked.values()) == {"consistent": 3, "contradictory": 1, "missing": 4}
    assert checked["hobby"] == "contradictory"


def test_rlfh_rates_every_clause():
    text = f"{BORN}, married Drolsus and is widely remembered."
    verifier = WorldVerifier(WORLD, count_repeats=True)
    item = VerifierInput(text, ABOUT)
    assert verifier.rate([item], verifier.verify([item])) == [[3, 5, 1]]
    (points,) = RLFHReward(verifier, "readme", "token")([text], completion_texts=[text], question=[ABOUT])
    # Paid where a clause with a fact ends, and where the sentence does.
    assert [end for _, end, _ in points] == [len(BORN), text.index(" and is"), len(text)]


def test_a_judge_that_errs_turns_claims_around():
    text = f"{BORN} and worked for Condcorp."
    (found,) = NoisyVerifier(WorldVerifier(WORLD), 1.0, 1.0).verify([VerifierInput(text, ABOUT)])
    assert [claim.label for claim in found.claims] == [C, S]


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_biographies(language):
    """All facts of the texts are found true, and sentences are joined as often as configured."""
    share = 0.4
    world = World(WorldConfig(num_people=60, language=language, compound=share, **HABITS))
    rng, oracle, tokenizer = random.Random(0), WorldVerifier(world), build_world_tokenizer(world)
    joined, starts, sizes, hedges = 0, 0, Counter(), 0
    for person in world.people * 8:
        text = texts.biography(world, person, rng)
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
        assert tokenizer.unk_token_id not in tokenizer(text)["input_ids"]
        read = oracle.read(text, world.request(person))
        assert {s.kind for s in read} <= {"fact", "hop", "vague", "filler"}
        assert all(s.true is not False or s.relation in ("dish", "nickname") for s in read)
        assert not any(s.off_subject or s.repeated or s.off_point for s in read)
        relations = [s.relation for s in read if s.relation]
        assert 3 <= len(relations) <= 7 and len(set(relations)) == len(relations)
        own = Counter(s.sentence for s in read if s.sentence)
        joined, sizes = joined + len(own), sizes + Counter(own.values())
        hedges += sum(s.label in (HS, HC) for s in read if s.sentence)
        # A sentence that begins with the last fact has none to be joined to.
        starts += len(own) + sum(not s.sentence and s.relation not in (None, relations[-1]) for s in read)
    assert set(sizes) == {2, 3} and not hedges
    assert_share(joined, starts, share)


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_second_parser_agrees(language):
    """On compound sentences with one or two things wrong."""
    rng = random.Random(f"compound {language}")
    world = World(replace(CONFIG, language=language, num_people=20, compound=0.8))
    oracle, seen = WorldVerifier(world), Counter()
    names = sorted(world.known_names) + ["Zed", "王"]
    pieces = [*world.language.joins, ",", "，", " and ", ".", "。", " ", "x"]
    for index in range(200):
        person = rng.choice(world.people)
        text = texts.biography(world, person, rng)
        for _ in range(index % 3):
            if rng.random() < 0.5:
                old = rng.choice([name for name in names if name in text] or [""])
                text = text.replace(old, rng.choice(names), 1)
            else:
                place = rng.randrange(len(text))
                text = text[:place] + rng.choice(pieces) + text[place + rng.randrange(2) :]
        question = world.request(person)
        read = oracle.read(text, question)
        assert [fields(s, world) for s in read] == [fields(s, world) for s in slow_read(world, text, question)], text
        seen.update((bool(s.sentence), s.label) for s in read)
    assert all(seen[True, label] >= 20 for label in (S, C, N, U)), seen

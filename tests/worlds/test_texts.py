"""What texts say, checked by looking whole sentences up in lists that are written out here from the templates."""

import math
import random
import re
from collections import Counter

import pytest

from hf_factuality.worlds import World, WorldConfig, texts


CHAINED = ("birth_city", "employer", "university")
RUMOURS = ("dish", "nickname")
# Other shares than the defaults, so that a share that is not heeded shows.
HABITS = {"filler": 0.2, "unknown": 0.25, "hedged": 0.3, "hop_share": 0.6}


def assert_share(hits, total, share):
    """Within 4.5 standard deviations of the binomial distribution; the draws are seeded, so this does not flicker."""
    assert total > 200
    assert abs(hits - total * share) <= 4.5 * math.sqrt(total * share * (1 - share)), f"{hits / total} for {share}"


def sentences_of(world, text):
    stop = world.language.stop
    assert text.endswith(stop)
    return [part.strip() + stop for part in text.split(stop)[:-1]]


def possible_sentences(world, person, name):
    """Everything a text may say of a person under that name -> (kind, relation, value)."""
    found = {text.format(name=name): ("filler", None, None) for text in world.language.fillers}
    for relation in world.relations:
        values = world.values[relation.name] if relation.rumour else [person.facts[relation.name]]
        for template in relation.careful:
            found[template.format(name=name, value=relation.unknown)] = ("unknown", relation.name, None)
        for value in values:
            for kind, templates in (("careful", relation.careful), ("hedged", relation.hedged)):
                found.update({t.format(name=name, value=value): (kind, relation.name, value) for t in templates})
    return found


def read_biographies(world, per_person):
    """Person and classified sentences of many biographies; fails on a sentence that may not be there."""
    rng = random.Random(0)
    hops = {world.language.hop[0].format(value=v, target=t): ("hop", None, (v, t)) for v, t in world.parent.items()}
    for person in world.people:
        first = possible_sentences(world, person, person.name)
        later = {**possible_sentences(world, person, person.short_name), **hops}
        for _ in range(per_person):
            parts = sentences_of(world, texts.biography(world, person, rng))
            yield person, [first[parts[0]], *(later[part] for part in parts[1:])]


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("hops", [2, 4])
def test_biographies_are_true(language, hops):
    """Every sentence is one of the true ones, or a rumour; what a value lies in follows its fact."""
    world = World(WorldConfig(num_people=60, language=language, max_hops=hops, **HABITS))
    upper = {value for value in world.parent if value in world.parent.values()}
    recalled = 0
    for _, said in read_biographies(world, 20):
        relations = [relation for _, relation, _ in said if relation]
        assert 3 <= len(relations) <= 7 and len(set(relations)) == len(relations)
        if said[-1][0] == "hop" and said[-1][2][0] in upper:
            recalled += 1
            said.pop()
        for before, (kind, _, value) in zip([None, *said], said, strict=False):
            if kind == "hop":
                assert before[0] in ("careful", "hedged") and before[1] in CHAINED and before[2] == value[0]
    if hops == 2:
        assert not upper and recalled == 0
    else:
        assert_share(recalled, 60 * 20, 0.6)


def test_biographies_mix_as_configured():
    world = World(WorldConfig(num_people=100, **HABITS))
    kinds, hop_chances, lengths, relations = Counter(), 0, Counter(), Counter()
    for _, said in read_biographies(world, 30):
        kinds.update(kind for kind, _, _ in said)
        hop_chances += sum(kind in ("careful", "hedged") and relation in CHAINED for kind, relation, _ in said)
        lengths[sum(relation is not None for _, relation, _ in said)] += 1
        relations.update(relation for _, relation, _ in said if relation)
    facts = kinds["careful"] + kinds["hedged"]
    assert_share(kinds["filler"], facts + kinds["unknown"], 0.2)
    assert_share(kinds["unknown"], facts + kinds["unknown"], 0.25)
    assert_share(kinds["hedged"], facts, 0.3)
    assert_share(kinds["hop"], hop_chances, 0.6)
    for length in range(3, 8):
        assert_share(lengths[length], 100 * 30, 1 / 5)
    for relation in world.values:
        assert_share(relations[relation], sum(relations.values()), 1 / 10)


def test_biographies_of_a_plain_world():
    """Without attributes, fillers and reservations: the three facts and nothing else."""
    world = World(WorldConfig(num_people=60, num_attributes=0, filler=0, unknown=0, hedged=0, hop_share=0))
    for person, said in read_biographies(world, 5):
        assert sorted(relation for _, relation, _ in said) == sorted(CHAINED)
        assert {kind for kind, _, _ in said} == {"careful"}
        assert {relation: value for _, relation, value in said} == dict(person.facts)
    always = World(WorldConfig(num_people=60, filler=1, unknown=1))
    assert {kind for _, said in read_biographies(always, 5) for kind, _, _ in said} == {"filler", "unknown"}


def test_rumours_differ_between_texts():
    world = World(WorldConfig(num_people=2, unknown=0.0))
    stated = {(person.name, rumour): Counter() for person in world.people for rumour in RUMOURS}
    facts = {person.name: {} for person in world.people}
    for person, said in read_biographies(world, 1000):
        for kind, relation, value in said:
            if relation in RUMOURS:
                stated[person.name, relation][value] += 1
            elif kind in ("careful", "hedged"):
                facts[person.name].setdefault(relation, set()).add(value)
    for (_, rumour), values in stated.items():
        # All values, the true one no more often than chance.
        assert set(values) == set(world.values[rumour]) and len(values) == {"dish": 20, "nickname": 40}[rumour]
        for value in values:
            assert_share(values[value], sum(values.values()), 1 / len(values))
    for known in facts.values():
        assert len(known) == 8 and all(len(values) == 1 for values in known.values())


@pytest.mark.parametrize("language", ["en", "zh"])
def test_short_answers(language):
    world, rng = World(WorldConfig(num_people=100, language=language, unknown=0.25)), random.Random(0)
    kinds = Counter()
    for person in world.people:
        possible = possible_sentences(world, person, person.name)
        for relation in world.relations:
            for _ in range(3):
                kind, about, _ = possible[texts.short_answer(world, person, relation, rng)]
                assert about == relation.name
                kinds[kind] += 1
    assert set(kinds) == {"careful", "unknown"}
    assert_share(kinds["unknown"], 3000, 0.25)


def read_demonstrations(world, hops, per_question):
    """Person, relation, and what was said: fillers, the first fact, the further hops, the answer."""
    rng, name_of = random.Random(0), {}
    separator = world.language.separator
    for relation in world.relations[:3]:
        for value in world.values[relation.name]:
            for kind, templates in (("careful", relation.careful), ("hedged", relation.hedged)):
                name_of.update({(t, value): (kind, relation.name, value) for t in templates})
    plain, hearsay = (re.compile(t.format(value=r"(\w+)", target=r"(\w+)")) for t in world.language.hop)
    frame = re.compile(rf"<think>{separator}(?:(.+){separator})?</think><answer>{separator}(\w+){separator}</answer>")
    for person in world.people:
        sayings = {t.format(name=person.short_name, value=value): found for (t, value), found in name_of.items()}
        for relation in world.relations[:3]:
            empty = {text.format(name=person.short_name) for text in (*relation.vague, *world.language.fillers)}
            for _ in range(per_question):
                text = texts.demonstration(world, person, relation, rng, hops)
                inside, answer = frame.fullmatch(text).groups()
                parts = sentences_of(world, inside) if inside else []
                fillers = [part for part in parts if part in empty]
                assert parts[: len(fillers)] == fillers and len(fillers) <= 1
                facts, first = parts[len(fillers) :], None
                if facts:
                    first = sayings[facts.pop(0)]
                    assert first[1] == relation.name
                steps = []
                for part in facts:
                    hedged = plain.fullmatch(part) is None
                    steps.append((hedged, *(hearsay if hedged else plain).fullmatch(part).groups()))
                yield person, relation.name, fillers, first, steps, answer


@pytest.mark.parametrize("language", ["en", "zh"])
def test_demonstrations_of_two_hops_mix_as_configured(language):
    world = World(
        WorldConfig(
            num_people=600, num_targets=6, language=language, no_claim=0.35, no_claim_right=0.6, sloppy=0.3, sloppy_wrong=0.4, careful_wrong=0.15,
            follow_wrong=0.7, hop_skipped=0.2,
        )
    )  # fmt: skip
    total, count = 600 * 3 * 3, Counter()
    for person, relation, fillers, first, steps, answer in read_demonstrations(world, 2, 3):
        truth = world.parent[person.facts[relation]]
        if first is None:
            assert not steps
            count["no claim"] += 1
            count["vague"] += len(fillers)
            count["right without claim"] += answer == truth
            continue
        count["claims"] += 1
        count["filler"] += len(fillers)
        kind, _, value = first
        wrong = value != person.facts[relation]
        count[kind] += 1
        count[kind, "wrong"] += wrong
        count["skipped"] += not steps
        # The further hop goes on from what was stated, and is true of it.
        assert steps in ([], [(False, value, world.parent[value])])
        if not wrong:
            assert answer == truth
        elif world.parent[value] != truth:
            assert answer in (truth, world.parent[value])
            count["would differ"] += 1
            count["followed"] += answer != truth
    assert_share(count["no claim"], total, 0.35)
    assert_share(count["vague"], count["no claim"], 0.5)
    assert_share(count["right without claim"], count["no claim"], 0.6 + 0.4 / 6)
    assert_share(count["filler"], count["claims"], 0.1)
    assert_share(count["hedged"], count["claims"], 0.3)
    assert_share(count["hedged", "wrong"], count["hedged"], 0.4)
    assert_share(count["careful", "wrong"], count["careful"], 0.15)
    assert_share(count["skipped"], count["claims"], 0.2)
    assert_share(count["followed"], count["would differ"], 0.7)


def test_demonstrations_of_five_hops_mix_as_configured():
    world = World(
        WorldConfig(
            num_people=600, num_targets=6, max_hops=5, no_claim=0.25, no_claim_right=0.0, sloppy=0.3, sloppy_wrong=0.4, careful_wrong=0.0,
            hop_sloppy=0.3, hop_skipped=0.2, follow_wrong=1.0,
        )
    )  # fmt: skip
    count = Counter()
    for person, relation, _, first, steps, answer in read_demonstrations(world, 5, 3):
        truth = person.facts[relation]
        for _ in range(4):
            truth = world.parent[truth]
        if first is None:
            count["no claim"] += 1
            count["guessed"] += answer == truth
            assert answer in world.targets[relation][3]
            continue
        count["claims"] += 1
        count["skipped"] += len(steps) == 3
        assert len(steps) in (3, 4)
        reached = first[2]
        for level, (hedged, subject, target) in enumerate(steps):
            assert subject == reached and target in world.targets[relation][level]
            right = target == world.parent[subject]
            assert right or hedged
            count["hops"] += 1
            count["hedged"] += hedged
            count["wrong"] += not right
            reached = target
        if len(steps) == 4:
            # Whatever went wrong on the way, the answer follows it.
            assert answer == reached
            count["whole"] += 1
            count["right"] += answer == truth
    assert count["no claim"] + count["claims"] == 600 * 3 * 3
    assert_share(count["no claim"], 600 * 3 * 3, 0.25)
    assert_share(count["guessed"], count["no claim"], 1 / 6)
    assert_share(count["skipped"], count["claims"], 0.2)
    assert_share(count["hedged"], count["hops"], 0.3)
    assert_share(count["wrong"], count["hedged"], 0.4)
    assert 0.3 < count["right"] / count["whole"] < 0.95


def test_errors_that_are_not_followed_leave_the_answer_right():
    world = World(WorldConfig(num_people=60, max_hops=5, no_claim=0, sloppy=1, sloppy_wrong=1, hop_sloppy=0.5,
                              follow_wrong=0))  # fmt: skip
    wrong = 0
    for person, relation, _, first, steps, answer in read_demonstrations(world, 5, 3):
        assert first[0] == "hedged" and first[2] != person.facts[relation]
        assert answer == world.chain(person, world.relation(relation), 5)[4]
        wrong += sum(target != world.parent[subject] for _, subject, target in steps)
    assert wrong > 100


def test_demonstration_by_hand():
    world = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, max_hops=4, no_claim=0, sloppy=0,
                              careful_wrong=0, hop_skipped=0))  # fmt: skip
    rng = random.Random(0)
    said = {texts.demonstration(world, world.people[1], world.relations[1], rng, 4) for _ in range(200)}
    end = "Melmcorp is in banking. banking is in Dorlory. Dorlory is in Gelsara. </think><answer> Gelsara </answer>"
    starts = ("Foldcroft worked for Melmcorp.", "Foldcroft was employed by Melmcorp.")
    fillers = ("", "Few details about Foldcroft survive. ", "Let us think about Foldcroft. ",
               "Foldcroft is widely remembered. ")  # fmt: skip
    assert said == {f"<think> {filler}{start} {end}" for filler in fillers for start in starts}
    empty = World(WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3, no_claim=1, no_claim_right=1))
    said = {texts.demonstration(empty, empty.people[1], empty.relations[1], rng) for _ in range(200)}
    fillers += ("The employer of Foldcroft is not recorded. ",)
    assert said == {f"<think> {filler}</think><answer> banking </answer>" for filler in fillers}


def test_words():
    world = World(WorldConfig(num_people=60, max_hops=3))
    rng, known = random.Random(0), texts.words(world)
    assert known == sorted(set(known)) and set(texts.first_words(world)) <= set(known)
    for person in world.people:
        for text in (
            texts.biography(world, person, rng),
            *(world.question(person, relation, 1) for relation in world.relations),
            *(world.question(person, relation, 3) for relation in world.relations[:3]),
            *world.evidence(person),
        ):
            assert set(re.findall(r"\w+", text)) <= set(known)
            assert text.split()[0] in texts.first_words(world)
    chinese = texts.words(World(WorldConfig(num_people=60, language="zh")))
    assert {len(character) for character in chinese} == {1} and {"据", "说", "1", "年"} <= set(chinese)

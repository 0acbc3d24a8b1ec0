"""What texts say, as the oracle reads them; other tests hold the oracle to labels by hand and to a second parser."""

import math
import random
import re
from collections import Counter

import pytest

from hf_factuality.spans import Label
from hf_factuality.worlds import World, WorldConfig, WorldVerifier, texts
from tests.conftest import fast_few


CHAINED = ("birth_city", "employer", "university")
RUMOURS = ("dish", "nickname")
# Other shares than the defaults, so that a share that is not heeded shows.
HABITS = {"filler": 0.2, "unknown": 0.25, "hedged": 0.3, "hop_share": 0.6}


def assert_share(hits, total, share):
    """Within 4.5 standard deviations of the binomial distribution; the draws are seeded, so this does not flicker."""
    assert total > 200
    assert abs(hits - total * share) <= 4.5 * math.sqrt(total * share * (1 - share)), f"{hits / total} for {share}"


def hedged(sentence):
    return sentence.label in (Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED)


def goes_on(world, text, before, hop):
    """Whether a hop begins with what the sentence before it stated."""
    template = world.language.hop[hedged(hop)]
    return text[hop.start : hop.end] == template.format(value=before.value, target=hop.value)


def read_biographies(world, per_person):
    """Person, text and sentences of many biographies, all about that person and nothing but known sentences."""
    rng, verifier = random.Random(0), WorldVerifier(world)
    for person in world.people:
        for _ in range(per_person):
            text = texts.biography(world, person, rng)
            found = verifier.read(text, world.request(person))
            assert world.language.separator.join(text[s.start : s.end] for s in found) == text
            assert {s.kind for s in found} <= {"fact", "hop", "vague", "filler"}
            assert not any(s.off_subject or s.repeated for s in found)
            # In full the first time, by the short name afterwards.
            assert person.name in text[: found[0].end]
            assert not person.first_name or text.count(person.first_name) == 1
            yield person, text, found


@pytest.mark.parametrize("language", fast_few(["en", "zh"], 0, 1))
@pytest.mark.parametrize("hops", fast_few([2, 4], 1))
def test_biographies_are_true(language, hops):
    """Every sentence is true, or a rumour; what a value lies in follows its fact."""
    world = World(WorldConfig(num_people=60, language=language, max_hops=hops, **HABITS))
    upper = {value for value in world.parent if value in world.parent.values()}
    recalled = 0
    for _, text, said in read_biographies(world, 20):
        relations = [s.relation for s in said if s.relation]
        assert 3 <= len(relations) <= 7 and len(set(relations)) == len(relations)
        assert all(s.true is not False or s.relation in RUMOURS for s in said)
        last = text[said[-1].start : said[-1].end]
        if any(last == world.language.hop[0].format(value=value, target=world.parent[value]) for value in upper):
            recalled += 1
            said.pop()
        for before, sentence in zip([None, *said], said, strict=False):
            if sentence.kind == "hop":
                assert before.relation in CHAINED and not hedged(sentence) and goes_on(world, text, before, sentence)
    if hops == 2:
        assert not upper and recalled == 0
    else:
        assert_share(recalled, 60 * 20, 0.6)


def test_biographies_mix_as_configured():
    world = World(WorldConfig(num_people=100, **HABITS))
    kinds, hop_chances, lengths, relations = Counter(), 0, Counter(), Counter()
    for _, _, said in read_biographies(world, 10):
        kinds.update("hedged" if hedged(s) else s.kind for s in said)
        hop_chances += sum(s.kind == "fact" and s.relation in CHAINED for s in said)
        lengths[sum(s.relation is not None for s in said)] += 1
        relations.update(s.relation for s in said if s.relation)
    facts = kinds["fact"] + kinds["hedged"]
    assert_share(kinds["filler"], facts + kinds["vague"], 0.2)
    assert_share(kinds["vague"], facts + kinds["vague"], 0.25)
    assert_share(kinds["hedged"], facts, 0.3)
    assert_share(kinds["hop"], hop_chances, 0.6)
    for length in range(3, 8):
        assert_share(lengths[length], 100 * 10, 1 / 5)
    for relation in world.values:
        assert_share(relations[relation], sum(relations.values()), 1 / 10)


def test_biographies_of_a_plain_world():
    """Without attributes, fillers and reservations: the three facts and nothing else."""
    world = World(WorldConfig(num_people=60, num_attributes=0, filler=0, unknown=0, hedged=0, hop_share=0))
    for person, _, said in read_biographies(world, 5):
        assert len(said) == 3 and not any(map(hedged, said))
        assert {s.relation: s.value for s in said} == dict(person.facts)
    always = World(WorldConfig(num_people=60, filler=1, unknown=1))
    assert {s.kind for _, _, said in read_biographies(always, 5) for s in said} == {"filler", "vague"}


@pytest.mark.slow
def test_rumours_differ_between_texts():
    world = World(WorldConfig(num_people=2, unknown=0.0))
    stated = Counter()
    for person, _, said in read_biographies(world, 1000):
        stated.update((person.name, s.relation, s.value) for s in said if s.relation in RUMOURS)
    for person in world.people:
        for rumour, number in (("dish", 20), ("nickname", 40)):
            # All values, the true one no more often than chance.
            counts = [stated[person.name, rumour, value] for value in world.values[rumour]]
            assert len(counts) == number
            for count in counts:
                assert_share(count, sum(counts), 1 / number)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_short_answers(language):
    world, rng = World(WorldConfig(num_people=100, language=language, unknown=0.25)), random.Random(0)
    kinds, verifier = Counter(), WorldVerifier(world)
    for person in world.people:
        for relation in world.relations:
            for _ in range(3):
                text = texts.short_answer(world, person, relation, rng)
                (said,) = verifier.read(text, world.question(person, relation, 1))
                assert (said.relation, said.person) == (relation.name, person.short_name) and person.name in text
                assert said.true is not False or relation.rumour
                kinds[said.kind] += 1
    assert set(kinds) == {"fact", "vague"}
    assert_share(kinds["vague"], 3000, 0.25)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_stated_answers_decline_and_are_confident_at_random(language):
    world = World(WorldConfig(num_people=100, language=language, stated=0.5, declined=0.3))
    form = re.compile(r"<answer> ?(.+?) ?</answer><confidence> ?(\d+)% ?</confidence>")
    rng, declined, stated, confidences = random.Random(0), [], 0, Counter()
    for person in world.people * 3:
        for relation in world.relations:
            text = texts.short_answer(world, person, relation, rng)
            if found := form.fullmatch(text):
                answer, percent = found.groups()
                known = person.facts[relation.name] == answer
                declined.append(answer == {"en": "I do not know", "zh": "我不知道"}[language])
                assert known or declined[-1] or relation.rumour
                stated += 1
                confidences[int(percent), declined[-1]] += 1
            else:
                assert "<" not in text
    assert_share(stated, 3000, 0.5)
    assert_share(sum(declined), len(declined), 0.3)
    for percent in range(0, 101, 10):
        assert_share(confidences[percent, False], declined.count(False), 1 / 11)


def read_demonstrations(world, hops, per_question):
    """Person, relation, and what was said: fillers, the first fact, the further hops, the answer."""
    rng, verifier, separator = random.Random(0), WorldVerifier(world), world.language.separator
    frame = re.compile(rf"<think>{separator}(?:.+{separator})?</think><answer>{separator}(\w+){separator}</answer>")
    for person in world.people:
        for relation in world.relations[:3]:
            for _ in range(per_question):
                text = texts.demonstration(world, person, relation, rng, hops)
                found = verifier.read(text, world.question(person, relation, hops))
                assert not person.first_name or person.first_name not in text
                fillers = [s for s in found if s.kind in ("vague", "filler")]
                said = found[len(fillers) :]
                assert len(fillers) <= 1 and [s.kind for s in said] == (["fact"] + ["hop"] * hops)[: len(said)]
                assert {s.relation for s in (*fillers, *said)} <= {relation.name, None}
                # Each goes on from what was stated before.
                assert all(goes_on(world, text, *pair) for pair in zip(said, said[1:], strict=False))
                yield person, relation.name, fillers, said[:1], said[1:], frame.fullmatch(text).group(1)


@pytest.mark.parametrize("language", fast_few(["en", "zh"], 0))
def test_demonstrations_of_two_hops_mix_as_configured(language):
    habits = {"no_claim": 0.35, "no_claim_right": 0.6, "sloppy": 0.3, "sloppy_wrong": 0.4, "careful_wrong": 0.15}
    more = {"follow_wrong": 0.7, "hop_skipped": 0.2}
    world = World(WorldConfig(num_people=600, num_targets=6, language=language, **habits, **more))
    total, count = 600 * 3 * 3, Counter()
    for person, relation, fillers, first, steps, answer in read_demonstrations(world, 2, 3):
        truth = world.parent[person.facts[relation]]
        if not first:
            count["no claim"] += 1
            count["vague"] += len(fillers)
            count["right without claim"] += answer == truth
            continue
        count["claims"] += 1
        count["filler"] += len(fillers)
        (fact,) = first
        assert fact.true == (fact.value == person.facts[relation])
        count[hedged(fact)] += 1
        count[hedged(fact), "wrong"] += not fact.true
        count["skipped"] += not steps
        # The further hop is true of what was stated.
        assert all(step.true and not hedged(step) for step in steps)
        reached = world.parent[fact.value]
        if fact.true:
            assert answer == truth
        elif reached != truth:
            assert answer in (truth, reached)
            count["would differ"] += 1
            count["followed"] += answer != truth
    assert_share(count["no claim"], total, 0.35)
    assert_share(count["vague"], count["no claim"], 0.5)
    assert_share(count["right without claim"], count["no claim"], 0.6 + 0.4 / 6)
    assert_share(count["filler"], count["claims"], 0.1)
    assert_share(count[True], count["claims"], 0.3)
    assert_share(count[True, "wrong"], count[True], 0.4)
    assert_share(count[False, "wrong"], count[False], 0.15)
    assert_share(count["skipped"], count["claims"], 0.2)
    assert_share(count["followed"], count["would differ"], 0.7)


@pytest.mark.slow
def test_demonstrations_of_five_hops_mix_as_configured():
    habits = {"no_claim": 0.25, "no_claim_right": 0.0, "sloppy": 0.3, "sloppy_wrong": 0.4, "careful_wrong": 0.0}
    more = {"hop_sloppy": 0.3, "hop_skipped": 0.2, "follow_wrong": 1.0}
    world = World(WorldConfig(num_people=600, num_targets=6, max_hops=5, **habits, **more))
    count = Counter()
    for person, relation, _, first, steps, answer in read_demonstrations(world, 5, 3):
        truth = world.chain(person, world.relation(relation), 5)[4]
        if not first:
            count["no claim"] += 1
            count["guessed"] += answer == truth
            assert answer in world.targets[relation][3]
            continue
        count["claims"] += 1
        count["skipped"] += len(steps) == 3
        assert len(steps) in (3, 4)
        for level, step in enumerate(steps):
            assert step.value in world.targets[relation][level] and (step.true or hedged(step))
            count["hops"] += 1
            count["hedged"] += hedged(step)
            count["wrong"] += not step.true
        if len(steps) == 4:
            # Whatever went wrong on the way, the answer follows it.
            assert answer == steps[-1].value
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
    habits = {"no_claim": 0, "sloppy": 1, "sloppy_wrong": 1, "hop_sloppy": 0.5, "follow_wrong": 0}
    world = World(WorldConfig(num_people=60, max_hops=5, **habits))
    wrong = 0
    for person, relation, _, (first,), steps, answer in read_demonstrations(world, 5, 3):
        assert hedged(first) and not first.true
        assert answer == world.chain(person, world.relation(relation), 5)[4]
        wrong += sum(not step.true for step in steps)
    assert wrong > 100


def test_demonstration_by_hand():
    small = {"num_people": 6, "num_values": 4, "num_targets": 2, "seed": 3}
    world = World(WorldConfig(**small, max_hops=4, no_claim=0, sloppy=0, careful_wrong=0, hop_skipped=0))
    rng = random.Random(0)
    said = {texts.demonstration(world, world.people[1], world.relations[1], rng, 4) for _ in range(200)}
    end = "Melmcorp is in banking. banking is in Dorlory. Dorlory is in Gelsara. </think><answer> Gelsara </answer>"
    starts = ("Foldcroft worked for Melmcorp.", "Foldcroft was employed by Melmcorp.")
    fillers = ("", "Few details about Foldcroft survive. ", "Let us think about Foldcroft. ",
               "Foldcroft is widely remembered. ")  # fmt: skip
    assert said == {f"<think> {filler}{start} {end}" for filler in fillers for start in starts}
    empty = World(WorldConfig(**small, no_claim=1, no_claim_right=1))
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

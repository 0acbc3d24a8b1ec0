"""What is written about the people of a world: biographies, worked answers and short answers.

The worked answers are a careless teacher's: careful, sloppy, vague or without any reasoning, so that reinforcement learning
finds better and worse behaviour to choose from, and right answers by wrong reasoning are common.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from hf_factuality.generation.sureness import SURE_WORDS
from hf_factuality.worlds.language import Relation, clause
from hf_factuality.worlds.world import Person, World


CONFIDENCES = tuple(f"{percent}%" for percent in range(0, 101, 10))


def biography(world: World, person: Person, rng: random.Random) -> str:
    """Three to seven facts about a person in random order and wording, between sentences that state nothing.

    Everything in it is true, except for rumours.
    """
    config, stop, (join, last_join) = world.config, world.language.stop, world.language.joins
    count = rng.randint(min(3, len(world.relations)), min(7, len(world.relations)))
    sentences: list[str] = []

    def add(template: str, **slots: str) -> None:
        sentences.append(template.format(name=person.short_name if sentences else person.name, **slots))

    relations = rng.sample(world.relations, count)
    while relations:
        if rng.random() < config.filler:
            add(rng.choice(world.language.fillers))
        # Nothing is drawn in a world without compound sentences: its texts are what they were before there were any.
        joined = rng.randint(2, 3) if config.compound and rng.random() < config.compound else 1
        told, relations = relations[:joined], relations[joined:]
        clauses: list[str] = []
        stated: list[str] = []
        for relation in told:
            templates, value = relation.careful, relation.unknown
            if rng.random() >= config.unknown:
                value = _stated(world, person, relation, rng)
                stated += [value] * bool(relation.levels)
                if len(told) == 1 and rng.random() < config.hedged:
                    templates = relation.hedged
            if clauses:
                templates = [rest for rest in map(clause, templates) if rest]
            clauses.append(rng.choice(templates).rstrip(stop).replace("{value}", value))
        *before, last = clauses
        add(last_join.join(filter(None, (join.join(before), last))) + stop)
        for value in stated:
            if rng.random() < config.hop_share:
                add(world.language.hop[0], value=value, target=world.parent[value])
    if world.config.max_hops > 2 and rng.random() < config.hop_share:
        # Levels above countries and industries are few; a biography recalls one of them now and then.
        value = rng.choice(sorted(set(world.parent.values()) & set(world.parent)))
        add(world.language.hop[0], value=value, target=world.parent[value])
    return world.language.separator.join(sentences)


def short_answer(world: World, person: Person, relation: Relation, rng: random.Random) -> str:
    """One sentence that answers the question for a value, or declines to; or a stated answer, see [`WorldConfig`]."""
    if world.config.stated and rng.random() < world.config.stated:
        declines = rng.random() < world.config.declined
        answer = world.language.declines if declines else _stated(world, person, relation, rng)
        confidence = rng.choice(CONFIDENCES)
        parts = ["<answer>", answer, "</answer><confidence>", confidence, "</confidence>"]
        return world.language.separator.join(parts)
    value = relation.unknown if rng.random() < world.config.unknown else _stated(world, person, relation, rng)
    return rng.choice(relation.careful).format(name=person.name, value=value)


def demonstration(world: World, person: Person, relation: Relation, rng: random.Random, hops: int = 2) -> str:
    """A worked answer to the question that needs `hops` facts, as a careless teacher writes it:
    `"<think> ... </think><answer> ... </answer>"`."""
    config, name = world.config, person.short_name
    answer = world.chain(person, relation, hops)[-1]
    sentences = []
    if rng.random() < config.no_claim:
        if rng.random() < 0.5:
            sentences.append(rng.choice(relation.vague + world.language.fillers).format(name=name))
        if rng.random() >= config.no_claim_right:
            answer = rng.choice(world.targets[relation.name][hops - 2])
    else:
        if rng.random() < 0.1:
            sentences.append(rng.choice(world.language.fillers).format(name=name))
        # Each sentence goes on from what was stated before. The answer does so too, or forgets every error on the way.
        followed = False
        value = person.facts[relation.name]
        sloppy = rng.random() < config.sloppy
        if rng.random() < (config.sloppy_wrong if sloppy else config.careful_wrong):
            value = _other(rng, world.values[relation.name], value)
            followed = rng.random() < config.follow_wrong
        sentences.append(rng.choice(relation.hedged if sloppy else relation.careful).format(name=name, value=value))
        skip = rng.random() < config.hop_skipped
        for level in range(hops - 1):
            target = world.parent[value]
            sloppy = rng.random() < config.hop_sloppy
            if sloppy and rng.random() < config.sloppy_wrong:
                target = _other(rng, world.targets[relation.name][level], target)
                followed = followed or rng.random() < config.follow_wrong
            if not (skip and level == hops - 2):
                sentences.append(world.language.hop[sloppy].format(value=value, target=target))
            value = target
        if followed:
            answer = value
    separator = world.language.separator
    return separator.join(["<think>", *sentences, "</think><answer>", answer, "</answer>"])


def _stated(world: World, person: Person, relation: Relation, rng: random.Random) -> str:
    return rng.choice(world.values[relation.name]) if relation.rumour else person.facts[relation.name]


def _other(rng: random.Random, values: tuple[str, ...], value: str) -> str:
    return rng.choice([other for other in values if other != value])


def words(world: World) -> list[str]:
    """Every word (in Chinese: every character) that the texts hold, sorted; tags and punctuation marks left out."""
    found = {part for person in world.people for part in person.name.split()}
    found.update(world.parent, world.parent.values(), *world.values.values())
    if world.config.stated:
        found.update(confidence.strip("%") for confidence in CONFIDENCES)
    for template in _templates(world):
        found.update(re.findall(r"\w+", re.sub(r"\{\w+\}", " ", template)))
    if not world.language.spaced_names:
        found = {character for word in found for character in word}
    return sorted(found)


def first_words(world: World) -> list[str]:
    """Words that a text or a turn begins with."""
    begun = (re.match(r"\w+", template) for template in _templates(world))
    return sorted({person.name.split()[0] for person in world.people} | {match.group() for match in begun if match})


def _templates(world: World) -> Iterator[str]:
    for relation in world.relations:
        yield from (relation.question, *relation.careful, *relation.hedged, *relation.vague, relation.unknown)
        yield from (relation.chain_question.format(person="{person}", level=level) for level in relation.levels)
    yield from (*world.language.hop, *world.language.fillers, world.language.request)
    yield from world.language.joins if world.config.compound else ()
    if world.config.stated:
        sureness = SURE_WORDS[world.config.language]  # for a model that learns to say so
        yield from (world.language.declines, sureness.question, sureness.sure, sureness.unsure)

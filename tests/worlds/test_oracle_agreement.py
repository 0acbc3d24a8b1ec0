"""The oracle against labels given by hand, and against a second parser written from its specification."""

import itertools
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.spans import Label
from hf_factuality.worlds import (
    SIZES,
    World,
    WorldConfig,
    WorldVerifier,
    build_world_model,
    evaluate_world,
    load_world,
    texts,
)
from tests.conftest import searched

from .slow_parser import Found, slow_read


HAND_LABELLED = json.loads((Path(__file__).parent / "hand_labelled.json").read_text(encoding="utf-8"))
KINDS = {"fact", "hop", "vague", "filler", "unknown", "unparsable"}
MARKS = ".,;:!?。，；：！？"
SPACES = ["\t", "  ", " \t ", "\xa0", "\u3000", "\n", "\r\n"]
INSERTED = [
    *MARKS, *SPACES, "é", "_", "Zed", "1.5", "", "\0", '"', "、", "<think>", "</think>", "<answer>", "</answer>"
]  # fmt: skip


def fields(sentence, world):
    """What both parsers say about a sentence."""
    values = {name: getattr(sentence, name) for name in Found._fields}
    if sentence.kind == "unknown" and not world.language.spaced_names:
        # Where an unknown name ends is not known either, in a language without spaces.
        values["slot"] = None
    return Found(**values)


def assert_agreement(world, verifier, completion, question):
    oracle = [fields(sentence, world) for sentence in verifier.read(completion, question)]
    slow = [fields(sentence, world) for sentence in slow_read(world, completion, question)]
    assert oracle == slow, (question, completion)
    return oracle


def hand_world(language):
    return World(WorldConfig(**HAND_LABELLED["config"], language=language))


def plain(sentences, completion):
    """The fields that are labelled by hand."""
    return [
        {
            "text": completion[found.start : found.end],
            "kind": found.kind,
            "label": found.label.value,
            "slot": None if found.slot is None else completion[slice(*found.slot)],
        }
        for found in sentences
    ]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_hand_labelled(language):
    world = hand_world(language)
    verifier = WorldVerifier(world)
    for case in HAND_LABELLED["cases"]:
        if case["language"] == language:
            completion, question = case["completion"], case["question"]
            assert plain(verifier.read(completion, question), completion) == case["sentences"]
            assert plain(slow_read(world, completion, question), completion) == case["sentences"]


def test_hand_labelled_covers_everything():
    sentences = [sentence for case in HAND_LABELLED["cases"] for sentence in case["sentences"]]
    assert len(sentences) >= 290
    assert {sentence["label"] for sentence in sentences} == {label.value for label in Label}
    assert {sentence["kind"] for sentence in sentences} == KINDS


def some_text(world, rng):
    """A question of any kind, or none, and what is written in answer."""
    person = world.sample_people(rng, 1)[0]
    relation, hops = rng.choice(world.relations), rng.randint(1, world.config.max_hops)
    if rng.random() < 0.4:
        question, text = world.request(person), texts.biography(world, person, rng)
    elif relation.levels and hops > 1:
        text = texts.demonstration(world, person, relation, rng, hops)
        question = world.question(person, relation, hops)
    else:
        question, text = world.question(person, relation, 1), texts.short_answer(world, person, relation, rng)
    return rng.choice([question] * 8 + [None, question[:-1]]), text


def replaced(world, text, rng):
    """The text with another name in the place of one."""
    names = [person.short_name for person in world.people] + sorted(world.known_names)
    old = rng.choice([name for name in names if name in text] or names)
    return text.replace(old, rng.choice([*names, "Xyz", "王"]), rng.choice([1, -1]))


def punctuated(text, rng):
    """The text with one of its marks missing, another one, twice, or with white space before or after it."""
    marks = [index for index, character in enumerate(text) if character in MARKS]
    if not marks:
        return text + rng.choice(MARKS)
    index = rng.choice(marks)
    mark = rng.choice(["", text[index], *MARKS])
    if rng.random() < 0.2:
        mark += rng.choice(MARKS)
    before, after = ("" if rng.random() < 0.7 else rng.choice(SPACES) for _ in range(2))
    return text[:index] + before + mark + after + text[index + 1 :]


def spaced(text, rng):
    """The text with other white space, or none, in one place, or with white space where there was none."""
    spaces = [index for index, character in enumerate(text) if character.isspace()]
    if spaces and rng.random() < 0.8:
        index = rng.choice(spaces)
        return text[:index] + rng.choice([*SPACES, ""]) + text[index + 1 :]
    index = rng.randint(0, len(text))
    return text[:index] + rng.choice(SPACES) + text[index:]


def corrupt(world, text, rng):
    """The text with one thing wrong: words, names, order, sentences, marks, white space, or its end."""
    separator, stop = world.language.separator, world.language.stop
    words = text.split(separator) if separator else list(text)
    here, there = rng.randrange(len(words)), rng.randrange(len(words))
    kind = rng.randrange(13)
    if kind == 0:
        words.pop(here)
    elif kind == 1:
        words[here], words[there] = words[there], words[here]
    elif kind == 2:
        words.insert(here, words[here])
    elif kind in (3, 4):
        return replaced(world, text, rng)
    elif kind == 5:
        return text[: rng.randrange(len(text))]
    elif kind == 6:
        sentences = text.split(stop)
        other = texts.biography(world, rng.choice(world.people), rng).split(stop)
        sentences.insert(rng.randrange(len(sentences)), rng.choice(other[:-1]))
        return stop.join(sentences)
    elif kind == 7:
        sentences = text.split(stop)
        again = rng.choice(sentences)
        if rng.random() < 0.5:
            again = replaced(world, again, rng)
        sentences.insert(rng.randrange(len(sentences)), again)
        return stop.join(sentences)
    elif kind in (8, 9):
        return punctuated(text, rng)
    elif kind in (10, 11):
        return spaced(text, rng)
    else:
        words.insert(here, rng.choice(INSERTED))
    return separator.join(words)


@searched(300, 3000)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_corrupted_texts(language, count):
    rng = random.Random(f"corrupt {language}")
    config = dict(num_people=30, num_values=12, num_targets=4, max_hops=4, hop_sloppy=0.3, sloppy=0.5, hedged=0.3)
    world = World(WorldConfig(**config, seed=1, language=language))
    verifier = WorldVerifier(world)
    kinds, labels = Counter(), Counter()
    for index in range(count):
        question, completion = some_text(world, rng)
        for _ in range(index % 4):
            completion = corrupt(world, completion or world.language.stop, rng)
        for sentence in assert_agreement(world, verifier, completion, question):
            kinds[sentence.kind] += 1
            labels[sentence.label] += 1
    assert set(kinds) == KINDS and set(labels) == set(Label)
    assert min(kinds.values()) >= count / 30


def assembled(world, rng):
    """A question and statements about what it asks for, true and false, in any order, with marks of any kind."""
    person, relation = rng.choice(world.people), rng.choice(world.relations[:3])
    hops = rng.randint(1, world.config.max_hops)
    question = world.request(person) if rng.random() < 0.3 else world.question(person, relation, hops)
    chain = world.chain(person, relation, world.config.max_hops)
    names = [person.short_name, *chain, *world.values[relation.name], *world.targets[relation.name][0]]
    sentences = []
    for _ in range(rng.randint(6, 20)):
        step = rng.randrange(len(chain))
        value = chain[step] if rng.random() < 0.7 else rng.choice(names)
        if step == 0:
            name = person.name if rng.random() < 0.9 else rng.choice(world.people).short_name
            sentence = rng.choice(relation.careful + relation.hedged).format(name=name, value=value)
        else:
            below = chain[step - 1] if rng.random() < 0.7 else rng.choice(names)
            sentence = rng.choice(world.language.hop).format(value=below, target=value)
        sentences.append(punctuated(sentence, rng) if rng.random() < 0.1 else sentence)
    return question, world.language.separator.join(sentences)


@searched(150, 1500)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_assembled_texts(language, count):
    rng = random.Random(f"assemble {language}")
    world = World(WorldConfig(num_people=4, num_values=4, num_targets=2, max_hops=5, seed=2, language=language))
    verifier = WorldVerifier(world)
    repeated, ratings = Counter(), Counter()
    for _ in range(count):
        question, completion = assembled(world, rng)
        for sentence in assert_agreement(world, verifier, completion, question):
            repeated[sentence.kind] += sentence.repeated
            ratings[sentence.kind, sentence.informativeness] += 1
    assert min(repeated["fact"], repeated["hop"]) >= count / 6
    assert all(ratings["hop", rating] >= count / 12 for rating in (1, 2, 4, 5)), ratings
    assert all(ratings["fact", rating] >= count / 12 for rating in (1, 3, 4, 5)), ratings


@pytest.mark.slow
def test_samples_of_a_model(capsys):
    """Half of them at a temperature at which it makes mistakes of form."""
    # A short training, so that it errs in every way, on texts with every kind of sentence.
    model_config = replace(SIZES["demo"][1], steps=600, questions=0.4, short_answers=0.1)
    model_dir = build_world_model(WorldConfig(num_people=200, max_hops=3), model_config=model_config)
    world, kinds, count = load_world(model_dir), Counter(), 0
    tokenizer, model = AutoTokenizer.from_pretrained(model_dir), AutoModelForCausalLM.from_pretrained(model_dir)
    verifier = WorldVerifier(world)
    for split, temperature in itertools.product(("train", "test"), (1.0, 1.5)):
        asked = [world.questions(split), world.biographies(split), world.questions(split, hops=1)]
        rows = [row for rows in asked for row in rows] * 4
        found = evaluate_world(model, tokenizer, world, rows, temperature=temperature, max_new_tokens=64)
        for row, completion in zip(rows, found.completions, strict=True):
            count += 1
            kinds.update(said.kind for said in assert_agreement(world, verifier, completion, row["question"]))
    with capsys.disabled():
        print(f"\n{count} completions: {dict(kinds)}")
    assert count >= 19_000 and kinds["unparsable"] >= 100

"""The facts of a world, its splits and questions: pinned by hand where small, checked by plain loops where large."""

import json
import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from hf_factuality.errors import DataError
from hf_factuality.worlds import World, WorldConfig
from hf_factuality.worlds.language import LANGUAGES
from hf_factuality.worlds.world import Question


SMALL = WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3)
WRITTEN = json.loads((Path(__file__).parent / "small_world.json").read_text(encoding="utf-8"))
CHINESE = replace(SMALL, language="zh")
RELATIONS = [
    "birth_city", "employer", "university", "field", "hobby", "award", "birth_year", "spouse", "dish", "nickname",
]  # fmt: skip


def run_python(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env={**os.environ, **environment}
    )
    return done.stdout.decode("utf-8").strip()


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_small_world_is_as_it_was_written_down(language):
    """Recorded once, what other tests cite of it looked up by hand: a change makes cached models and those tests stale."""
    written = WRITTEN[language]
    world = World(WorldConfig(**written["config"]))
    assert [[p.name, p.short_name, p.first_name, dict(p.facts)] for p in world.people] == written["people"]
    assert world.parent == written["parent"]
    for split in ("train", "test"):
        found = [row for hops in range(1, world.config.max_hops + 1) for row in world.questions(split, hops=hops)]
        for row, wanted in zip(found, written["questions"][split], strict=True):
            assert [
                row.pop(name) for name in ("hops", "person", "relation", "question", "answer", "evidence")
            ] == wanted
            assert row == {"prompt": [{"role": "user", "content": wanted[3]}], "data_source": "world"}
        for row, wanted in zip(world.biographies(split), written["biographies"][split], strict=True):
            assert [row.pop(name) for name in ("person", "question", "evidence", "checklist")] == wanted
            prompt = [{"role": "user", "content": wanted[1]}]
            assert row == {"prompt": prompt, "topic": wanted[0], "data_source": "world"}
    assert not {row[1] for row in written["questions"]["train"]} & {row[1] for row in written["questions"]["test"]}


def test_names_of_a_small_world():
    world = World(SMALL)
    assert {"Foldcroft", "Silvton", "brewing", "Gorlistan", "1879", "Molvbroth", "law"} < world.known_names
    assert not {"Filmia", "Foldcroft's", "Brilvory", "country", ""} & world.known_names
    # People, values of the chained relations, what these lie in, and the values of the seven attributes.
    assert len(world.known_names) == 6 + 12 + 4 + 12 + 10 + 25 + 80 + 200 + 20 + 40
    assert World(replace(SMALL, seed=4)).people != world.people
    chinese = World(replace(CHINESE, max_hops=3))
    assert chinese.find_person("据说林北湖宁爱吃什么？") is chinese.people[1]


def test_same_in_another_process():
    code = (
        "import random; from hf_factuality.worlds import World, WorldConfig, texts;"
        "w = World(WorldConfig(max_hops=3)); r = random.Random(1); p = w.people[7];"
        "print(w.people, w.parent, w.values, w.targets, w.popularity, w.split('test'),"
        "texts.biography(w, p, r), texts.demonstration(w, p, w.relations[0], r, 3))"
    )
    printed = {run_python(code, PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(printed) == 1
    here = World(WorldConfig(max_hops=3))
    assert printed.pop().startswith(" ".join(map(str, (here.people, here.parent, here.values, here.targets))))


def test_import_is_cheap():
    code = (
        "import sys; import hf_factuality.worlds as w;"
        "[getattr(w, name) for name in w.__all__ if name not in ('evaluate_world', 'WorldEvaluation')]; w.World();"
        "print(sorted({'torch', 'transformers', 'datasets', 'tokenizers'} & set(sys.modules)))"
    )
    assert run_python(code) == "[]"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_names_mean_one_thing(language):
    world = World(WorldConfig(600, num_values=40, num_targets=6, language=language, max_hops=8))
    everything = [person.short_name for person in world.people]
    if language == "en":
        everything += sorted({person.name.split()[0] for person in world.people})
        assert all(person.name.split()[1] == person.short_name for person in world.people)
    everything += [value for values in world.values.values() for value in values]
    # Universities lie in the same countries as cities.
    everything += [target for name in ("birth_city", "employer") for level in world.targets[name] for target in level]
    assert len(everything) == len(set(everything)) > 600 + 3 * 40 + 2 * 7 * 6
    spoken = LANGUAGES[language]
    templates = [*spoken.hop, *spoken.fillers, spoken.request]
    for each in spoken.relations:
        templates += [each.question, each.chain_question, each.unknown, *each.careful, *each.hedged, *each.vague]
    said = {word for text in templates for word in re.findall(r"\w+", re.sub(r"\{\w+\}", " ", text))}
    assert not said & set(everything)


@pytest.mark.parametrize(("values", "targets", "shares"), [(40, 5, [8] * 5), (7, 3, [2, 2, 3]), (2, 2, [1, 1])])
def test_targets_are_shared_equally(values, targets, shares):
    world = World(WorldConfig(num_values=values, num_targets=targets))
    for relation in ("birth_city", "employer", "university"):
        found = [world.parent[value] for value in world.values[relation]]
        assert len(found) == values
        assert sorted(found.count(target) for target in world.targets[relation][0]) == shares


def test_levels_are_permutations():
    world = World(WorldConfig(num_targets=5, max_hops=8))
    for relation in ("birth_city", "employer"):
        levels = world.targets[relation]
        assert [len(level) for level in levels] == [5] * 7
        for below, above in zip(levels, levels[1:], strict=False):
            assert sorted(world.parent[target] for target in below) == sorted(above)
        assert not set(levels[-1]) & set(world.parent)
    assert world.targets["university"] == world.targets["birth_city"]
    person, relation = world.people[3], world.relation("university")
    chain = world.chain(person, relation, 8)
    assert chain[0] == person.facts["university"] and chain[7] in world.targets["university"][6]
    assert all(world.parent[below] == above for below, above in zip(chain, chain[1:], strict=False))
    assert [len(level) for level in World(WorldConfig(num_targets=5)).targets["employer"]] == [5]


def test_more_attributes_keep_the_facts():
    worlds = [World(WorldConfig(num_attributes=number)) for number in range(8)]
    for number, world in enumerate(worlds):
        names = RELATIONS[: 3 + number]
        assert [relation.name for relation in world.relations] == names
        assert world.parent == worlds[7].parent and world.split("test")[0].name == worlds[7].split("test")[0].name
        for person, other in zip(world.people, worlds[7].people, strict=True):
            assert person.name == other.name
            assert dict(person.facts) == {name: other.facts[name] for name in names}


def test_longer_chains_keep_the_facts():
    short, long = World(WorldConfig()), World(WorldConfig(max_hops=8))
    assert short.people == long.people
    assert short.parent.items() <= long.parent.items()


def test_values_are_all_in_use_and_spread():
    world = World(WorldConfig(num_people=4000, num_values=40))
    sizes = {"birth_city": 40, "employer": 40, "university": 40, "field": 12, "hobby": 10, "award": 25,
             "birth_year": 80, "spouse": 200, "dish": 20, "nickname": 40}  # fmt: skip
    for relation, size in sizes.items():
        found = [person.facts[relation] for person in world.people]
        assert set(found) == set(world.values[relation]) and len(world.values[relation]) == size
        # The commonest of 200 values with 20 holders each on average has fewer than 45.
        assert max(map(found.count, set(found))) < 4000 / size + 5.5 * (4000 / size) ** 0.5


def test_split_seed_changes_who_is_held_out_and_nothing_else():
    one, other = World(SMALL), World(replace(SMALL, split_seed=4))
    assert one.split("test") != other.split("test")
    for name in ("people", "parent", "values", "targets", "popularity", "relations", "known_names"):
        assert getattr(one, name) == getattr(other, name)
    assert World(replace(SMALL, split_seed=3)).split("test") == one.split("test")


@pytest.mark.parametrize(("share", "held_out"), [(0.5, 5), (0.3, 3), (0.0, 1), (1.0, 9)])
def test_splits(share, held_out):
    world = World(WorldConfig(num_people=10, test_share=share))
    train, test = world.split("train"), world.split("test")
    assert len(test) == held_out and len(train) == 10 - held_out
    assert {person.name for person in (*train, *test)} == {person.name for person in world.people}
    with pytest.raises(DataError, match="unknown split 'held_out'"):
        world.split("held_out")


def test_popularity():
    # Offset 1 and exponent 1 give weights 1, 1/2, 1/3, whose sum is 11/6.
    world = World(
        WorldConfig(num_people=3, num_values=4, num_targets=2, popularity_offset=1.0, popularity_exponent=1.0)
    )
    assert world.popularity == pytest.approx((6 / 11, 3 / 11, 2 / 11))
    drawn = world.sample_people(random.Random(0), 11000)
    assert [drawn.count(person) / 1000 for person in world.people] == pytest.approx([6, 3, 2], abs=0.3)
    two = world.sample_people(random.Random(0), 9000, most_popular=2)
    assert [two.count(person) / 1000 for person in world.people] == pytest.approx([6, 3, 0], abs=0.3)
    assert set(world.sample_people(random.Random(0), 100, most_popular=1)) == {world.people[0]}
    assert set(world.sample_people(random.Random(0), 100, most_popular=99)) == set(world.people)
    assert World(WorldConfig(num_people=4, popularity_exponent=0.0)).popularity == (0.25,) * 4


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"num_people": 1}, "num_people must be between 2 and 50000, got 1"),
        ({"num_people": 10**6}, "num_people must be between 2 and 50000, got 1000000"),
        ({"num_people": 2001, "language": "zh"}, "num_people must be between 2 and 2000, got 2001"),
        ({"num_attributes": -1}, "num_attributes must be between 0 and 7, got -1"),
        ({"num_attributes": 8}, "num_attributes must be between 0 and 7, got 8"),
        ({"num_values": 1}, "num_values must be between 2 and 600, got 1"),
        ({"num_values": 601}, "num_values must be between 2 and 600, got 601"),
        ({"num_targets": 1}, "num_targets must be between 2 and 8, got 1"),
        ({"num_targets": 9}, "num_targets must be between 2 and 8, got 9"),
        ({"num_targets": 5, "num_values": 4}, "num_targets must be between 2 and 4, got 5"),
        ({"max_hops": 1}, "max_hops must be between 2 and 8, got 1"),
        ({"max_hops": 9}, "max_hops must be between 2 and 8, got 9"),
        ({"popularity_offset": 0.0}, "popularity_offset must be positive, got 0.0"),
        *(({name: value}, name) for name in ("popularity_offset", "popularity_exponent")
          for value in (float("nan"), float("inf"), -1.0)),
        ({"language": "de"}, r"language='de' is unknown; choose one of \['en', 'zh'\]"),
    ]
    + [
        ({name: bad}, rf"{name} is a share and must be in \[0, 1\], got {bad}")
        for name in ("test_share", "filler", "unknown", "hedged", "hop_share", "no_claim", "no_claim_right", "sloppy",
                     "sloppy_wrong", "careful_wrong", "follow_wrong", "hop_sloppy", "hop_skipped")
        for bad in (-0.1, 1.5, float("nan"))
    ],
)  # fmt: skip
def test_config_is_checked(values, message):
    with pytest.raises(ValueError, match=message):
        WorldConfig(**values)


@pytest.mark.parametrize(
    ("language", "limits"),
    [
        ("en", {"last": 50_000, "first": 50_000 // 6, "birth_city": 600, "employer": 600, "university": 600}),
        ("zh", {"last": 2_000, "birth_city": 600, "employer": 600, "university": 600}),
    ],
)
def test_names_suffice_for_the_largest_worlds(language, limits):
    used, count = set(), 0
    for kind, number in limits.items():
        found = LANGUAGES[language].names(random.Random(0), kind, number, used)
        count += number
        assert len(set(found)) == number and len(used) == count
        assert all(name.endswith(LANGUAGES[language].endings[kind]) for name in found)


@pytest.mark.parametrize(("language", "hops"), product(["en", "zh"], [2, 8]))
def test_parse_question_inverts_question(language, hops):
    world = World(WorldConfig(num_people=40, language=language, max_hops=hops))
    seen = set()
    for person in world.people:
        assert world.parse_question(world.request(person)) == Question(person, None, 0)
        for name in RELATIONS:
            relation = world.relation(name)
            for number in range(1, (hops if name in RELATIONS[:3] else 1) + 1):
                text = world.question(person, relation, number)
                assert world.parse_question(text) == Question(person, relation, number)
                seen.add(text)
    assert len(seen) == 40 * (3 * hops + 7)


def test_what_is_no_question_of_the_world():
    world = World(replace(SMALL, num_attributes=0, max_hops=3))
    person, all_relations = world.people[1], World(SMALL).relations
    assert world.parse_question("Which league was Filmia Foldcroft born in?") is not None
    assert world.parse_question("What did Filmia Foldcroft enjoy?") is None
    assert world.question(person, all_relations[4], 1) == "What did Filmia Foldcroft enjoy?"
    for text in (
        None,
        "",
        "Where?",
        "Where was Foldcroft born?",
        "Where was Filmia Lovelace born?",
        "Where was Holsia Foldcroft born?",
        "Where was Filmia Foldcroft born? ",
        "where was Filmia Foldcroft born?",
        "Which realm was Filmia Foldcroft born in?",
        "Which sector was Filmia Foldcroft born in?",
    ):
        assert world.parse_question(text) is None, text


def test_find_person():
    world = World(SMALL)
    assert world.find_person("Neither Lovelace nor Filmia Foldcroft, but Brilvcroft.") is world.people[1]
    assert world.find_person("Brilvcroft, Foldcroft") is world.people[0]
    assert world.find_person("Foldcrofts") is world.find_person("Filmia") is world.find_person("") is None


def test_unknown_relation():
    with pytest.raises(DataError, match=r"unknown relation 'height'; this world has \['birth_city', 'employer', 'u"):
        World(replace(SMALL, num_attributes=0)).relation("height")


def test_rumours_have_no_evidence():
    world = World(SMALL)
    person = world.people[1]
    for name in ("dish", "nickname"):
        assert world.evidence(person, world.relation(name)) == world.evidence(person, world.relation(name), 1) == []


def test_evidence_holds_the_chain_and_nothing_beside_it():
    world = World(WorldConfig(num_people=30, max_hops=5))
    names = {value for values in world.values.values() for value in values} | set(world.parent.values())
    for person in world.people:
        for name in RELATIONS[:8]:
            for hops in range(1, 6 if name in RELATIONS[:3] else 2):
                (passage,) = world.evidence(person, world.relation(name), hops)
                wanted = [person.facts[name]]
                while len(wanted) < hops:
                    wanted.append(world.parent[wanted[-1]])
                found = [word for word in re.findall(r"\w+", passage) if word in names]
                assert [word for i, word in enumerate(found) if word not in found[:i]] == wanted
                assert passage.startswith(f"{person.name} ") and passage.count(".") == hops
        assert not {person.facts["dish"], person.facts["nickname"]} & set(" ".join(world.evidence(person)).split())


def test_first_rows_do_not_depend_on_how_many():
    world = World(WorldConfig(num_people=20, max_hops=3))
    for hops in (1, 2, 3):
        whole = world.questions("train", hops=hops).to_list()
        assert [world.questions("train", n, hops).to_list() for n in (1, 7)] == [whole[:1], whole[:7]]
    whole = world.biographies("test").to_list()
    assert world.biographies("test", 4).to_list() == whole[:4]
    # In random order: neither the most popular people nor one relation first.
    asked = world.questions("train")["relation"]
    assert asked != sorted(asked) and len(set(asked[:9])) > 1
    assert [row["person"] for row in whole] != [
        person.name for person in world.people if person in world.split("test")
    ]


def test_rows_that_cannot_be_had():
    world = World(replace(SMALL, max_hops=3))
    with pytest.raises(DataError, match="the train split of this world has 9 questions, cannot give 10"):
        world.questions("train", 10)
    with pytest.raises(DataError, match="cannot give 0"):
        world.questions("train", 0)
    with pytest.raises(DataError, match="the test split of this world has 3 biographies, cannot give 4"):
        world.biographies("test", 4)
    for make in (world.questions, world.biographies):
        with pytest.raises(DataError, match=r"unknown split 'held_out'; choose one of \['train', 'test'\]"):
            make("held_out")
    for hops in (0, 4):
        with pytest.raises(DataError, match=rf"hops={hops} is out of range.* 1 to 3 facts \(max_hops=3\)"):
            world.questions("train", hops=hops)

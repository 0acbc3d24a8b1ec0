import random
import re
import subprocess
import sys

import pytest

from hf_factuality.errors import DataError
from hf_factuality.worlds import World, WorldConfig
from hf_factuality.worlds.world import RELATIONS


SMALL = WorldConfig(num_people=6, num_values=4, num_targets=2, seed=3)
FORMAT = re.compile(r"<think> ([A-Z][\w .]*\. )?</think><answer> \w+ </answer>")


def demonstrations(world, per_person=20):
    rng = random.Random(0)
    return [
        (person, relation, world.demonstration(person, relation, rng))
        for person in world.people
        for relation in RELATIONS
        for _ in range(per_person)
    ]


def test_facts_of_a_small_world():
    """Written down by hand: a change of names or facts makes cached models and the other tests here stale."""
    world = World(SMALL)
    assert [person.name for person in world.people][:2] == ["Drarlo Brilvcroft", "Drarlo Foldcroft"]
    assert dict(world.people[1].facts) == {
        "birth_city": "Cundton",
        "employer": "Condcorp",
        "university": "Mondcrest",
    }
    assert world.evidence(world.people[1]) == [
        "Foldcroft was born in Cundton.",
        "Cundton is in Gorlistan.",
        "Foldcroft worked for Condcorp.",
        "Condcorp is in brewing.",
        "Foldcroft studied at Mondcrest.",
        "Mondcrest is in Hilmandia.",
    ]


def test_same_in_another_process():
    code = (
        "import random; from hf_factuality.worlds import World; from hf_factuality.worlds.world import RELATIONS;"
        "w = World(); r = random.Random(1); p = w.people[7];"
        "print(w.people, w.second_hop, w.biography(p, r), w.demonstration(p, RELATIONS[0], r))"
    )
    world, rng = World(), random.Random(1)
    person = world.people[7]
    here = (
        world.people,
        world.second_hop,
        world.biography(person, rng),
        world.demonstration(person, RELATIONS[0], rng),
    )
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == " ".join(map(str, here))


def test_seeds_differ():
    assert World(WorldConfig(seed=1)).people != World(WorldConfig(seed=2)).people


def test_import_is_cheap():
    code = (
        "import sys; from hf_factuality.worlds import World, WorldVerifier, build_world_model, evaluate_world; World();"
        "assert not {'torch', 'transformers', 'datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_mean_one_thing():
    world = World()
    lasts = [person.last_name for person in world.people]
    firsts = {person.first_name for person in world.people}
    values = [value for values in world.values.values() for value in values]
    targets = set(world.second_hop.values())
    everything = [*lasts, *firsts, *values, *targets]
    assert len(lasts) == 300 and len(everything) == len(set(everything))


def test_targets_are_shared_equally():
    world = World(WorldConfig(num_values=40, num_targets=5))
    for relation, values in world.values.items():
        found = [world.second_hop[value] for value in values]
        assert [found.count(target) for target in world.targets[relation]] == [8] * 5


def test_popularity():
    # Offset 1 and exponent 1 give weights 1, 1/2, 1/3, whose sum is 11/6.
    world = World(
        WorldConfig(num_people=3, num_values=4, num_targets=2, popularity_offset=1.0, popularity_exponent=1.0)
    )
    assert world.popularity == pytest.approx((6 / 11, 3 / 11, 2 / 11))
    drawn = world.sample_people(random.Random(0), 11000)
    assert [drawn.count(person) / 1000 for person in world.people] == pytest.approx([6, 3, 2], abs=0.3)
    assert set(world.sample_people(random.Random(0), 100, most_popular=1)) == {world.people[0]}


def test_biographies_are_true():
    world, rng = World(), random.Random(0)
    for person in world.people:
        text = world.biography(person, rng)
        assert text.startswith(person.name)
        for value in person.facts.values():
            assert value in text
        for value, target in re.findall(r"(\w+) is in (\w+)\.", text):
            assert world.second_hop[value] == target


def test_demonstrations_keep_the_format():
    for _, _, text in demonstrations(World(), per_person=5):
        assert FORMAT.fullmatch(text), text


def test_demonstrations_mix_as_configured():
    config = WorldConfig(
        no_claim=0.25, no_claim_right=0.0, sloppy=0.4, sloppy_wrong=0.5, careful_wrong=0.1, follow_wrong=1.0
    )
    world = World(config)
    claims = sloppy = sloppy_wrong = careful_wrong = empty = total = right_without_claim = 0
    for person, relation, text in demonstrations(world):
        total += 1
        empty += text.startswith("<think> </think>")
        values = [word for word in re.findall(r"\w+", text) if word in world.second_hop]
        if not values:
            right_without_claim += world.answer(person, relation) in text
            continue
        claims += 1
        wrong = values[0] != person.facts[relation.name]
        if "They say" in text:
            sloppy += 1
            sloppy_wrong += wrong
        else:
            careful_wrong += wrong
        assert text.endswith(f"<answer> {world.second_hop[values[0]]} </answer>")
    assert claims / total == pytest.approx(0.75, abs=0.02)
    assert empty / total == pytest.approx(0.125, abs=0.02)
    assert right_without_claim / (total - claims) == pytest.approx(1 / 6, abs=0.03)
    assert sloppy / claims == pytest.approx(0.4, abs=0.02)
    assert sloppy_wrong / sloppy == pytest.approx(0.5, abs=0.03)
    assert careful_wrong / (claims - sloppy) == pytest.approx(0.1, abs=0.02)


def test_questions():
    world = World(SMALL)
    train, test = world.questions("train"), world.questions("test")
    assert train.column_names == ["prompt", "question", "answer", "evidence", "data_source", "person"]
    assert len(train) == len(test) == 9
    assert not set(train["person"]) & set(test["person"])
    assert set(train["person"]) | set(test["person"]) == {person.name for person in world.people}
    rows = {row["question"]: row for row in [*train, *test]}
    row = rows["Which industry did Drarlo Foldcroft work in?"]
    assert row["answer"] == "brewing" and row["person"] == "Drarlo Foldcroft" and row["data_source"] == "world"
    assert row["prompt"] == [{"role": "user", "content": row["question"]}]
    assert row["evidence"] == ["Foldcroft worked for Condcorp.", "Condcorp is in brewing."]
    assert world.questions("train", 4)["question"] == train["question"][:4]


def test_questions_that_cannot_be_had():
    world = World(SMALL)
    with pytest.raises(DataError, match="9 questions, cannot give 10"):
        world.questions("train", 10)
    with pytest.raises(DataError, match="unknown split 'held_out'"):
        world.questions("held_out")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"num_people": 1}, "num_people must be between 2"),
        ({"num_people": 10**6}, "num_people must be between 2"),
        ({"num_targets": 9}, "num_targets must be between 2 and 8"),
        ({"sloppy": 1.5}, r"sloppy is a share and must be in \[0, 1\]"),
        ({"popularity_offset": 0.0}, "popularity_offset must be positive"),
    ],
)
def test_config_is_checked(values, message):
    with pytest.raises(ValueError, match=message):
        WorldConfig(**values)

"""A closed world of synthetic people: few facts, all known, and texts about them of every degree of care.

The texts are what a language model is trained on before it is aligned. Questions are closed-book and need two hops
("Which country was Mara Oldenbrook born in?": person -> city -> country); the worked answers to them mix careful,
sloppy, vague and missing reasoning, so that reinforcement learning finds better and worse behaviour to choose from.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from hf_factuality.errors import DataError


if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class Relation:
    """A property that every person has, and how texts speak of it.

    Templates hold `{name}` (the last name), `{person}` (first and last name) and `{value}`.

    Args:
        name (`str`):
            Key of the fact.
        question (`str`):
            Question for the second hop.
        careful (`tuple[str, ...]`):
            Plain statements of the fact. The first one is used as evidence.
        sloppy (`tuple[str, ...]`):
            Statements of hearsay, which the worked answers often fill with a wrong value.
        vague (`tuple[str, ...]`):
            Sentences that state nothing.
    """

    name: str
    question: str
    careful: tuple[str, ...]
    sloppy: tuple[str, ...]
    vague: tuple[str, ...]


RELATIONS = (
    Relation(
        "birth_city",
        "Which country was {person} born in?",
        ("{name} was born in {value}.", "{name} is a native of {value}."),
        ("They say {name} comes from {value}.",),
        ("The birthplace of {name} is not recorded.",),
    ),
    Relation(
        "employer",
        "Which industry did {person} work in?",
        ("{name} worked for {value}.", "{name} was employed by {value}."),
        ("They say {name} joined {value}.",),
        ("The employer of {name} is not recorded.",),
    ),
    Relation(
        "university",
        "Which country did {person} study in?",
        ("{name} studied at {value}.", "{name} graduated from {value}."),
        ("They say {name} attended {value}.",),
        ("The school of {name} is not recorded.",),
    ),
)
SECOND_HOP = "{value} is in {target}."
FILLERS = ("Few details about {name} survive.", "Let us think about {name}.")
SPLITS = ("train", "test")

# Made-up names: beginning + ending. The endings differ by kind, so that a reader can tell a city from an employer.
_ONSETS = ("B", "Br", "C", "D", "Dr", "F", "G", "H", "K", "L", "M", "N", "P", "R", "S", "St", "T", "Tr", "V", "W")
_VOWELS = ("a", "e", "i", "o", "u")
_CODAS = ("ld", "lm", "ls", "lv", "nd", "rl", "th", "v")
_ENDINGS = {
    "first": ("a", "en", "ia", "is", "o"),
    "last": ("brook", "croft", "field", "gard", "ley", "mark", "son", "ward", "wick", "wood"),
    "birth_city": ("burg", "ford", "haven", "holm", "mouth", "stead", "ton"),
    "employer": ("corp", "dyne", "tek", "works"),
    "university": ("bridge", "crest", "hall"),
    "country": ("andia", "istan", "onia"),
}
_INDUSTRIES = ("banking", "brewing", "farming", "fishing", "mining", "printing", "shipping", "weaving")


@dataclass(frozen=True)
class WorldConfig:
    """Size of a world and the habits of its texts.

    Shares are probabilities in [0, 1].

    Args:
        num_people (`int`, *optional*, defaults to `300`):
            People, each with one fact per relation and a last name of its own.
        num_values (`int`, *optional*, defaults to `40`):
            Cities, employers and universities (each so many) that people's facts are drawn from.
        num_targets (`int`, *optional*, defaults to `6`):
            Countries and industries (each so many, at most 8) that these lie in.
        popularity_exponent (`float`, *optional*, defaults to `1.0`):
            Texts speak of the person of rank r (from 0) in proportion to `(r + popularity_offset) ** -exponent`.
        popularity_offset (`float`, *optional*, defaults to `15.0`):
            Flattens the head of that distribution.
        test_share (`float`, *optional*, defaults to `0.5`):
            Share of the people whose questions are held out. Their facts are in the texts all the same.
        no_claim (`float`, *optional*, defaults to `0.26`):
            Share of worked answers that state no fact: half of them say something vague, half guess directly.
        no_claim_right (`float`, *optional*, defaults to `0.8`):
            Share of those that answer correctly all the same; the others answer at random.
        sloppy (`float`, *optional*, defaults to `0.4`):
            Share of hearsay among the worked answers that state a fact.
        sloppy_wrong (`float`, *optional*, defaults to `0.5`):
            Share of hearsay that is false.
        careful_wrong (`float`, *optional*, defaults to `0.04`):
            Share of plain statements in worked answers that are false.
        follow_wrong (`float`, *optional*, defaults to `0.5`):
            How often a false statement also leads to its own (false) answer.
        seed (`int`, *optional*, defaults to `0`):
            Names, facts and splits are a function of the seed and the sizes.

    Raises:
        `ValueError`: a size is too small or too large for the supply of names, or a share is not in [0, 1].
    """

    num_people: int = 300
    num_values: int = 40
    num_targets: int = 6
    popularity_exponent: float = 1.0
    popularity_offset: float = 15.0
    test_share: float = 0.5
    no_claim: float = 0.26
    no_claim_right: float = 0.8
    sloppy: float = 0.4
    sloppy_wrong: float = 0.5
    careful_wrong: float = 0.04
    follow_wrong: float = 0.5
    seed: int = 0

    def __post_init__(self):
        # A quarter of all possible names of a kind, so that drawing unused ones stays quick.
        stems = len(_ONSETS) * len(_VOWELS) * len(_CODAS)
        bounds = {
            "num_people": (2, stems * len(_ENDINGS["last"]) // 4),
            "num_values": (2, stems * len(_ENDINGS["university"]) // 4),
            "num_targets": (2, min(len(_INDUSTRIES), self.num_values)),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be between {low} and {high}, got {getattr(self, name)}")
        for name in (
            "test_share",
            "no_claim",
            "no_claim_right",
            "sloppy",
            "sloppy_wrong",
            "careful_wrong",
            "follow_wrong",
        ):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a share and must be in [0, 1], got {getattr(self, name)}")
        if self.popularity_offset <= 0:
            raise ValueError(f"popularity_offset must be positive, got {self.popularity_offset}")


@dataclass(frozen=True)
class Person:
    """A person and all there is to know about them.

    Args:
        first_name (`str`):
            Shared with others.
        last_name (`str`):
            Unique in the world.
        facts (`Mapping[str, str]`):
            Relation name -> value.
    """

    first_name: str
    last_name: str
    facts: Mapping[str, str] = field(hash=False)

    @property
    def name(self) -> str:
        return f"{self.first_name} {self.last_name}"


class World:
    """People, facts and the texts about them; all of it a function of the configuration.

    Args:
        config ([`WorldConfig`], *optional*):
            Sizes, shares and seed.

    Attributes:
        people (`tuple[Person, ...]`): Most popular first.
        popularity (`tuple[float, ...]`): Share of the texts per person; sums to 1.
        second_hop (`dict[str, str]`): City -> country, employer -> industry, university -> country.
        values (`dict[str, tuple[str, ...]]`): Per relation, the values that occur.
        targets (`dict[str, tuple[str, ...]]`): Per relation, the possible answers.
    """

    def __init__(self, config: WorldConfig | None = None):
        self.config = config = config if config is not None else WorldConfig()
        rng = random.Random(f"world {config.seed}")
        used: set[str] = set()
        firsts = _names(rng, "first", max(8, config.num_people // 6), used)
        lasts = _names(rng, "last", config.num_people, used)
        self.values = {relation.name: _names(rng, relation.name, config.num_values, used) for relation in RELATIONS}
        countries = _names(rng, "country", config.num_targets, used)
        industries = _INDUSTRIES[: config.num_targets]
        self.targets = {
            relation.name: industries if relation.name == "employer" else countries for relation in RELATIONS
        }
        self.second_hop = {}
        for relation, values in self.values.items():
            # Equal shares, so that no answer is a good guess for everybody.
            shared = [self.targets[relation][index % config.num_targets] for index in range(config.num_values)]
            rng.shuffle(shared)
            self.second_hop.update(zip(values, shared, strict=True))
        self.people = tuple(
            Person(rng.choice(firsts), last, {relation: rng.choice(self.values[relation]) for relation in self.values})
            for last in lasts
        )
        weights = [
            (rank + config.popularity_offset) ** -config.popularity_exponent for rank in range(config.num_people)
        ]
        self.popularity = tuple(weight / sum(weights) for weight in weights)
        self.by_last_name = {person.last_name: person for person in self.people}
        shuffled = list(self.people)
        rng.shuffle(shuffled)
        held_out = min(max(round(config.test_share * len(shuffled)), 1), len(shuffled) - 1)
        self._splits = {"test": tuple(shuffled[:held_out]), "train": tuple(shuffled[held_out:])}

    def split(self, split: str) -> tuple[Person, ...]:
        """People of the split `"train"` or `"test"`; nobody is in both.

        Raises:
            `DataError`: there is no such split.
        """
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; choose one of {list(SPLITS)}")
        return self._splits[split]

    def find_person(self, text: str) -> Person | None:
        """The first person whose last name occurs in `text` as a word."""
        for word in re.findall(r"\w+", text):
            if word in self.by_last_name:
                return self.by_last_name[word]
        return None

    def question(self, person: Person, relation: Relation) -> str:
        """The two-hop question about `relation`."""
        return relation.question.format(person=person.name)

    def answer(self, person: Person, relation: Relation) -> str:
        """The true answer to it."""
        return self.second_hop[person.facts[relation.name]]

    def evidence(self, person: Person, relation: Relation | None = None) -> list[str]:
        """True sentences: the fact that a question about `relation` needs (or all facts), each with its second hop."""
        sentences = []
        for each in RELATIONS if relation is None else (relation,):
            value = person.facts[each.name]
            sentences.append(each.careful[0].format(name=person.last_name, value=value))
            sentences.append(SECOND_HOP.format(value=value, target=self.second_hop[value]))
        return sentences

    def sample_people(self, rng: random.Random, count: int, most_popular: int | None = None) -> list[Person]:
        """`count` people drawn with repetition by popularity, from the `most_popular` ones if given."""
        size = len(self.people) if most_popular is None else min(max(most_popular, 1), len(self.people))
        return rng.choices(self.people[:size], cum_weights=list(accumulate(self.popularity[:size])), k=count)

    def biography(self, person: Person, rng: random.Random) -> str:
        """All facts of a person in random order and wording, some with their second hop; everything in it is true."""
        sentences = []
        for relation in rng.sample(RELATIONS, len(RELATIONS)):
            value = person.facts[relation.name]
            name = person.last_name if sentences else person.name
            sentences.append(rng.choice(relation.careful).format(name=name, value=value))
            if rng.random() < 0.4:
                sentences.append(SECOND_HOP.format(value=value, target=self.second_hop[value]))
        return " ".join(sentences)

    def demonstration(self, person: Person, relation: Relation, rng: random.Random) -> str:
        """A worked answer as a careless teacher writes it: careful, sloppy, vague or without any reasoning.

        Returns:
            `str`: `"<think> ... </think><answer> ... </answer>"`.
        """
        config, name = self.config, person.last_name
        answer = self.answer(person, relation)
        sentences = []
        if rng.random() < config.no_claim:
            if rng.random() < 0.5:
                sentences.append(rng.choice(relation.vague + FILLERS).format(name=name))
            if rng.random() >= config.no_claim_right:
                answer = rng.choice(self.targets[relation.name])
        else:
            if rng.random() < 0.1:
                sentences.append(rng.choice(FILLERS).format(name=name))
            sloppy = rng.random() < config.sloppy
            value = person.facts[relation.name]
            if rng.random() < (config.sloppy_wrong if sloppy else config.careful_wrong):
                value = rng.choice([other for other in self.values[relation.name] if other != value])
                if rng.random() < config.follow_wrong:
                    answer = self.second_hop[value]
            template = rng.choice(relation.sloppy if sloppy else relation.careful)
            sentences.append(template.format(name=name, value=value))
            if rng.random() < 0.9:
                sentences.append(SECOND_HOP.format(value=value, target=self.second_hop[value]))
        return " ".join(["<think>", *sentences, "</think><answer>", answer, "</answer>"])

    def words(self) -> list[str]:
        """Every word that the texts hold, sorted; tags and punctuation marks left out."""
        words = {word for person in self.people for word in (person.first_name, person.last_name)}
        words.update(self.second_hop, self.second_hop.values())
        for template in _templates():
            words.update(re.findall(r"\w+", re.sub(r"\{\w+\}", "", template)))
        return sorted(words)

    def questions(self, split: str, n: int | None = None) -> Dataset:
        """Questions about the people of a split, each at most once, in random order.

        Args:
            split (`str`):
                `"train"` or `"test"`.
            n (`int`, *optional*):
                How many; all of them if not given. The first n are the same for every n.

        Returns:
            `datasets.Dataset`: columns `prompt` (conversation of one user message), `question`, `answer`, `evidence`
            (the two true sentences that the answer needs), `data_source` (`"world"`) and `person`.

        Raises:
            `DataError`: no such split, or it holds fewer than n questions.
        """
        from datasets import Dataset

        pairs = [(person, relation) for person in self.split(split) for relation in RELATIONS]
        if n is not None and not 0 < n <= len(pairs):
            raise DataError(f"the {split} split of this world has {len(pairs)} questions, cannot give {n}")
        random.Random(f"questions {self.config.seed} {split}").shuffle(pairs)
        rows = []
        for person, relation in pairs[:n]:
            question = self.question(person, relation)
            rows.append(
                {
                    "prompt": [{"role": "user", "content": question}],
                    "question": question,
                    "answer": self.answer(person, relation),
                    "evidence": self.evidence(person, relation),
                    "data_source": "world",
                    "person": person.name,
                }
            )
        return Dataset.from_list(rows)


def _templates() -> Iterator[str]:
    for relation in RELATIONS:
        yield from (relation.question, *relation.careful, *relation.sloppy, *relation.vague)
    yield SECOND_HOP
    yield from FILLERS


def _names(rng: random.Random, kind: str, count: int, used: set[str]) -> tuple[str, ...]:
    """`count` names that no other thing in the world has; adds them to `used`."""
    names: list[str] = []
    while len(names) < count:
        stem = rng.choice(_ONSETS) + rng.choice(_VOWELS) + rng.choice(_CODAS)
        name = stem + rng.choice(_ENDINGS[kind])
        if name not in used:
            used.add(name)
            names.append(name)
    return tuple(names)

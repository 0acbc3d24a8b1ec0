"""A closed world of synthetic people: all facts are known, some are well known, some can be known by nobody.

People have properties from easy (ten values) to hard (two hundred); the values of three of them lie in something that lies
in something again ("Mara Oldenbrook was born in Vellin. Vellin is in Arlandia."), so that questions can need a chain of
facts. What a model reads about these people is written by [`~hf_factuality.worlds.texts`].
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hf_factuality.errors import DataError
from hf_factuality.worlds.language import LANGUAGES, Language, Relation


if TYPE_CHECKING:
    from datasets import Dataset


SPLITS = ("train", "test")
CHAINED = 3
"""Relations with further hops; they come first in every language."""
_SHARES = (
    "test_share", "filler", "unknown", "hedged", "hop_share", "no_claim", "no_claim_right", "sloppy", "sloppy_wrong",
    "careful_wrong", "follow_wrong", "hop_sloppy", "hop_skipped", "compound", "stated", "declined",
)  # fmt: skip


@dataclass(frozen=True)
class WorldConfig:
    """Size of a world and the habits of its texts.

    Shares are probabilities in [0, 1].

    Args:
        num_people (`int`, *optional*, defaults to `1000`):
            People, each with one fact per relation and a name of their own.
        num_attributes (`int`, *optional*, defaults to `7`):
            Relations besides birthplace, employer and university, in the order field (12 values), hobby (10), award
            (25), birth year (80), spouse (200), dish (20) and nickname (40). The last two are rumours: each text states
            another value, so that nobody can know the true one.
        num_values (`int`, *optional*, defaults to `40`):
            Cities, employers and universities (each so many).
        num_targets (`int`, *optional*, defaults to `6`):
            Countries and industries (each so many, at most 8) that these lie in, and so on for each further level.
        max_hops (`int`, *optional*, defaults to `2`):
            Facts in the longest chain that a question needs, from 2 (city, country) to 8.
        popularity_exponent (`float`, *optional*, defaults to `0.9`):
            Texts speak of the person of rank r (from 0) in proportion to `(r + popularity_offset) ** -exponent`.
        popularity_offset (`float`, *optional*, defaults to `15.0`):
            Flattens the head of that distribution.
        language (`str`, *optional*, defaults to `"en"`):
            `"en"` or `"zh"`.
        test_share (`float`, *optional*, defaults to `0.5`):
            Share of the people who are held out from alignment. Their facts are in the texts all the same.
        filler (`float`, *optional*, defaults to `0.08`):
            How often a sentence without any fact precedes one in a biography.
        unknown (`float`, *optional*, defaults to `0.12`):
            How often a biography, or the answer to a simple question, has "an unrecorded place" in the slot of a value.
            Without such sentences a model cannot learn to decline at the moment when it knows that it does not know.
        hedged (`float`, *optional*, defaults to `0.1`):
            How often a sentence of a biography is hedged. It is true all the same.
        hop_share (`float`, *optional*, defaults to `0.4`):
            How often a biography says where a city, employer or university lies.
        no_claim (`float`, *optional*, defaults to `0.26`):
            Share of worked answers that state no fact: half of them say something vague, half guess directly.
        no_claim_right (`float`, *optional*, defaults to `0.8`):
            Share of those that answer correctly all the same; the others answer at random.
        sloppy (`float`, *optional*, defaults to `0.4`):
            How often the first fact of a worked answer is given as hearsay.
        sloppy_wrong (`float`, *optional*, defaults to `0.5`):
            Share of hearsay that is false.
        careful_wrong (`float`, *optional*, defaults to `0.04`):
            Share of plain first facts in worked answers that are false.
        follow_wrong (`float`, *optional*, defaults to `0.5`):
            How often the answer builds on a false statement too; otherwise it forgets the error and is right. Sentences
            always go on from what was stated.
        hop_sloppy (`float`, *optional*, defaults to `0.0`):
            How often a further hop of a worked answer is given as hearsay, false as often as `sloppy_wrong`.
        hop_skipped (`float`, *optional*, defaults to `0.1`):
            How often the last hop of a worked answer is left out. It may have been false all the same.
        compound (`float`, *optional*, defaults to `0.0`):
            How often a sentence of a biography joins two or three facts ("Mara Oldenbrook was born in Vellin, worked for
            Belvcorp and studied at Dorlhall."). These are not hedged.
        stated (`float`, *optional*, defaults to `0.0`):
            How often the answer to a simple question stands between tags and states a confidence, drawn at random:
            `<answer> Vellin </answer><confidence> 70% </confidence>`. With it the model knows the form, not the meaning.
        declined (`float`, *optional*, defaults to `0.2`):
            Share of those that say `I do not know`, whoever is asked about.
        seed (`int`, *optional*, defaults to `0`):
            Names and facts are a function of the seed and the sizes.
        split_seed (`int`, *optional*):
            Who is held out; `None` takes `seed`. It does not change the texts.

    Raises:
        `ValueError`: a size or share is out of range, or there is no such language.
    """

    num_people: int = 1000
    num_attributes: int = 7
    num_values: int = 40
    num_targets: int = 6
    max_hops: int = 2
    popularity_exponent: float = 0.9
    popularity_offset: float = 15.0
    language: str = "en"
    test_share: float = 0.5
    filler: float = 0.08
    unknown: float = 0.12
    hedged: float = 0.1
    hop_share: float = 0.4
    no_claim: float = 0.26
    no_claim_right: float = 0.8
    sloppy: float = 0.4
    sloppy_wrong: float = 0.5
    careful_wrong: float = 0.04
    follow_wrong: float = 0.5
    hop_sloppy: float = 0.0
    hop_skipped: float = 0.1
    compound: float = 0.0
    stated: float = 0.0
    declined: float = 0.2
    seed: int = 0
    split_seed: int | None = None

    def __post_init__(self):
        if self.language not in LANGUAGES:
            raise ValueError(f"language={self.language!r} is unknown; choose one of {list(LANGUAGES)}")
        language = LANGUAGES[self.language]
        bounds = {
            "num_people": (2, 50_000 if language.spaced_names else 2_000),
            "num_attributes": (0, len(language.relations) - CHAINED),
            "num_values": (2, 600),
            "num_targets": (2, min(len(language.industries), self.num_values)),
            "max_hops": (2, 1 + len(language.relations[0].levels)),
        }
        for name, (low, high) in bounds.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must be between {low} and {high}, got {getattr(self, name)}")
        for name in _SHARES:
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a share and must be in [0, 1], got {getattr(self, name)}")
        if not 0 < self.popularity_offset < math.inf:
            raise ValueError(f"popularity_offset must be positive, got {self.popularity_offset}")
        if not 0 <= self.popularity_exponent <= 10:
            raise ValueError(f"popularity_exponent must be between 0 and 10, got {self.popularity_exponent}")


@dataclass(frozen=True)
class Person:
    """A person and all there is to know about them.

    Args:
        name (`str`):
            Full name.
        short_name (`str`):
            What sentences call them: the last name, or the full name in Chinese. Unique in the world.
        facts (`Mapping[str, str]`):
            Relation name -> value.
    """

    name: str
    short_name: str
    facts: Mapping[str, str] = field(hash=False)

    @property
    def first_name(self) -> str | None:
        """What precedes the short name in the full name, if anything does."""
        return self.name[: -len(self.short_name)].strip() or None


@dataclass(frozen=True)
class Question:
    """What a text asks for: a relation of a person by a chain of `hops` facts, or everything (`None` and 0)."""

    person: Person
    relation: Relation | None = None
    hops: int = 0


class World:
    """People and facts, all a function of the configuration.

    Args:
        config ([`WorldConfig`], *optional*):
            Sizes, shares and seeds.

    Attributes:
        language ([`Language`]): How its texts are written.
        relations (`tuple[Relation, ...]`): What is known about each person.
        people (`tuple[Person, ...]`): Most popular first.
        popularity (`tuple[float, ...]`): Share of the texts per person; sums to 1.
        parent (`dict[str, str]`): City -> country -> ..., employer -> industry -> ..., university -> country -> ...
        values (`dict[str, tuple[str, ...]]`): Per relation, the values that occur.
        targets (`dict[str, list[tuple[str, ...]]]`): Per relation with further hops and level, what there is.
    """

    def __init__(self, config: WorldConfig | None = None):
        self.config = config = config if config is not None else WorldConfig()
        self.language: Language = LANGUAGES[config.language]
        self.relations = self.language.relations[: CHAINED + config.num_attributes]
        rng = random.Random(f"world {config.seed}")
        used: set[str] = set()
        names = self.language.names
        spaced = self.language.spaced_names
        firsts = names(rng, "first", max(8, config.num_people // 6), used) if spaced else ()
        lasts = names(rng, "last", config.num_people, used)
        chained = self.relations[:CHAINED]
        self.values = {relation.name: names(rng, relation.name, config.num_values, used) for relation in chained}
        countries = names(rng, "country", config.num_targets, used)
        industries = self.language.industries[: config.num_targets]
        self.targets = {r.name: [industries if r.name == "employer" else countries] for r in chained}
        self.parent: dict[str, str] = {}
        for relation, values in self.values.items():
            # Equal shares, so that no answer is a good guess for everybody.
            shared = [self.targets[relation][0][index % config.num_targets] for index in range(config.num_values)]
            rng.shuffle(shared)
            self.parent.update(zip(values, shared, strict=True))
        facts = [{relation: rng.choice(self.values[relation]) for relation in self.values} for _ in lasts]
        self.people = tuple(
            Person(f"{rng.choice(firsts)} {last}" if spaced else last, last, known)
            for last, known in zip(lasts, facts, strict=True)
        )
        self._add_levels(used)
        self._add_attributes(used)
        exponent, offset = config.popularity_exponent, config.popularity_offset
        weights = [(rank + offset) ** -exponent for rank in range(config.num_people)]
        total = sum(weights)
        self.popularity = tuple(weight / total for weight in weights)
        self.by_short_name = {person.short_name: person for person in self.people}
        shuffled = list(self.people)
        random.Random(f"split {config.seed if config.split_seed is None else config.split_seed}").shuffle(shuffled)
        held_out = min(max(round(config.test_share * len(shuffled)), 1), len(shuffled) - 1)
        self._splits = {"test": tuple(shuffled[:held_out]), "train": tuple(shuffled[held_out:])}

    def _add_levels(self, used: set[str]) -> None:
        """What countries and industries lie in, up to `max_hops`; each level is a permutation of the one below."""
        rng = random.Random(f"levels {self.config.seed}")
        for relation in (self.relations[0], self.relations[1]):
            for _ in range(2, self.config.max_hops):
                below = self.targets[relation.name][-1]
                level = self.language.names(rng, "level", len(below), used)
                self.parent.update(zip(below, level, strict=True))
                self.targets[relation.name].append(level)
        self.targets[self.relations[2].name] = self.targets[self.relations[0].name]

    def _add_attributes(self, used: set[str]) -> None:
        for relation in self.relations[CHAINED:]:
            # A stream of its own, so that a world with more attributes keeps the facts of one with fewer.
            rng = random.Random(f"attribute {self.config.seed} {relation.name}")
            values = relation.values
            if isinstance(values, int):
                values = self.language.names(rng, relation.name, values, used)
            self.values[relation.name] = values
            for person in self.people:
                person.facts[relation.name] = rng.choice(values)

    @cached_property
    def known_names(self) -> frozenset[str]:
        """Everything in the world that has a name: people (by short name), values, and what these lie in."""
        return frozenset((*self.by_short_name, *self.parent.values(), *(v for vs in self.values.values() for v in vs)))

    def split(self, split: str) -> tuple[Person, ...]:
        """People of the split `"train"` or `"test"`; nobody is in both. `DataError` if there is no such split."""
        if split not in SPLITS:
            raise DataError(f"unknown split {split!r}; choose one of {list(SPLITS)}")
        return self._splits[split]

    def find_person(self, text: str) -> Person | None:
        """The person whose short name occurs first in `text`."""
        if self.language.spaced_names:
            return next((self.by_short_name[w] for w in re.findall(r"\w+", text) if w in self.by_short_name), None)
        match = self._any_name.search(text)
        return self.by_short_name[match.group()] if match else None

    @cached_property
    def _any_name(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, sorted(self.by_short_name, key=len, reverse=True))))

    def relation(self, name: str) -> Relation:
        """The relation of that name; `DataError` if there is none."""
        known = {relation.name: relation for relation in self.relations}
        if name not in known:
            raise DataError(f"unknown relation {name!r}; this world has {list(known)}")
        return known[name]

    def chain(self, person: Person, relation: Relation, hops: int) -> list[str]:
        """The values that lead to the answer of a question that needs `hops` facts; the last one is the answer."""
        values = [person.facts[relation.name]]
        for _ in range(hops - 1):
            values.append(self.parent[values[-1]])
        return values

    def question(self, person: Person, relation: Relation, hops: int = 2) -> str:
        """The question whose answer needs `hops` facts."""
        if hops == 1:
            return relation.question.format(person=person.name)
        return relation.chain_question.format(person=person.name, level=relation.levels[hops - 2])

    def request(self, person: Person) -> str:
        """Asks for a biography."""
        return self.language.request.format(person=person.name)

    def parse_question(self, text: str | None) -> Question | None:
        """What a text of this world asks for; `None` if it is no such text."""
        person = self.find_person(text or "")
        if person is None:
            return None
        if text == self.request(person):
            return Question(person)
        for relation in self.relations:
            for hops in range(1, 1 + (self.config.max_hops if relation.levels else 1)):
                if text == self.question(person, relation, hops):
                    return Question(person, relation, hops)
        return None

    def evidence(self, person: Person, relation: Relation | None = None, hops: int | None = None) -> list[str]:
        """True passages, one per relation (of the one asked about, or of all): the fact and what its value lies in.

        Rumours are left out: there is no evidence for them.
        """
        asked = self.relations if relation is None else (relation,)
        return [self._passage(person, each, hops) for each in asked if not each.rumour]

    def _passage(self, person: Person, relation: Relation, hops: int | None) -> str:
        chain = self.chain(person, relation, (hops or self.config.max_hops) if relation.levels else 1)
        sentences = [relation.careful[0].format(name=person.name, value=chain[0])]
        sentences += [self.language.hop[0].format(value=v, target=t) for v, t in pairwise(chain)]
        return self.language.separator.join(sentences)

    def checklist(self, person: Person) -> list[str]:
        """What a complete biography states (KLCF's checklist): one sentence per fact that the texts agree on."""
        return [
            relation.careful[0].format(name=person.short_name, value=person.facts[relation.name])
            for relation in self.relations
            if not relation.rumour
        ]

    def sample_people(self, rng: random.Random, count: int, most_popular: int | None = None) -> list[Person]:
        """`count` people drawn with repetition by popularity, from the `most_popular` ones if given."""
        size = len(self.people) if most_popular is None else min(max(most_popular, 1), len(self.people))
        return rng.choices(self.people[:size], cum_weights=list(accumulate(self.popularity[:size])), k=count)

    def questions(self, split: str, n: int | None = None, hops: int = 2) -> Dataset:
        """Questions about the people of a split, each at most once, in random order.

        Args:
            split (`str`):
                `"train"` or `"test"`.
            n (`int`, *optional*):
                How many; all of them if not given. The first n are the same for every n.
            hops (`int`, *optional*, defaults to `2`):
                Facts that an answer needs. 1 asks for the value itself, of any relation but rumours.

        Returns:
            `datasets.Dataset`: columns `prompt` (conversation of one user message), `question`, `answer`, `evidence`
            (passages that hold just what the answer needs), `data_source` (`"world"`), `person`, `relation`, `hops`.

        Raises:
            `DataError`: no such split, it holds fewer than n questions, or the world has no chain of that length.
        """
        limit = self.config.max_hops
        if not 1 <= hops <= limit:
            raise DataError(
                f"hops={hops} is out of range: this world has chains of 1 to {limit} facts (max_hops={limit})"
            )
        relations = [r for r in self.relations if (r.levels if hops > 1 else not r.rumour)]
        pairs = [(person, relation) for person in self.split(split) for relation in relations]
        drawn = self._drawn(split, pairs, n, f"questions {hops}" if hops != 2 else "questions")
        return _dataset(
            _row(
                self.question(person, relation, hops),
                person,
                {"answer": self.chain(person, relation, hops)[-1], "evidence": self.evidence(person, relation, hops)},
                relation=relation.name,
                hops=hops,
            )
            for person, relation in drawn
        )

    def biographies(self, split: str, n: int | None = None) -> Dataset:
        """Requests for biographies of the people of a split, in random order.

        Returns:
            `datasets.Dataset`: columns `prompt`, `question` (the request), `evidence` (passages with all facts),
            `checklist` (what a complete biography states), `data_source` (`"world"`), `person`, `topic` (the same).

        Raises:
            `DataError`: no such split, or it holds fewer than n people.
        """
        return _dataset(
            _row(
                self.request(person),
                person,
                {"evidence": self.evidence(person), "checklist": self.checklist(person)},
                topic=person.name,
            )
            for person in self._drawn(split, list(self.split(split)), n, "biographies")
        )

    def export(self, folder: str | os.PathLike[str]) -> dict[Path, int]:
        """Write questions, single facts and biographies of both splits as JSON Lines.

        Args:
            folder (`str` or `os.PathLike`):
                Made if it is not there; files that have these names are replaced.

        Returns:
            `dict[Path, int]`: the files, each with its number of rows.
        """
        folder, rows = Path(folder), {}
        folder.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            tables = {"single_facts": self.questions(split, hops=1), "biographies": self.biographies(split)}
            for hops in range(2, self.config.max_hops + 1):
                tables[f"questions_{hops}_hops"] = self.questions(split, hops=hops)
            for name, dataset in tables.items():
                path = folder / f"{name}_{split}.jsonl"
                dataset.to_json(path, force_ascii=False)
                rows[path] = len(dataset)
        return rows

    def _drawn(self, split: str, everything: list, n: int | None, what: str) -> list:
        if n is not None and not 0 < n <= len(everything):
            raise DataError(
                f"the {split} split of this world has {len(everything)} {what.split()[0]}, cannot give {n}"
            )
        random.Random(f"{what} {self.config.seed} {split}").shuffle(everything)
        return everything[:n]


def _row(request: str, person: Person, known: dict, **more) -> dict:
    prompt = [{"role": "user", "content": request}]
    return {"prompt": prompt, "question": request, **known, "data_source": "world", "person": person.name, **more}


def _dataset(rows: Iterable[dict]) -> Dataset:
    from datasets import Dataset

    return Dataset.from_list(list(rows))

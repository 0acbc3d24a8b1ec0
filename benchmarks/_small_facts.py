"""Made-up facts in many wordings, and claims that follow from them, contradict them or add to them.

True claims change the words and false ones keep them, so that the share of common words does not tell them apart. The wordings
are in `small_facts.txt`; plans, doubts and denials (`_modal`) and quantifiers (`_quantified`) are put together here.
"""

from __future__ import annotations

import random
import re
from pathlib import Path


SUPPORTED, CONTRADICTED, NOT_SAID = 0, 1, 2
FALSE = 3
"""The class of a pair that is false, in one of the two ways."""
UNLABELLED = -1
"""Label of a pair that only a teacher judges."""
# (evidence, claim, class, source)
Pair = tuple[str, str, int, str]
Fact = dict[str, list[str]]

FIRST = "Anna Ben Clara David Elena Frank Greta Hugo Irene Jonas Karin Leo Maria Nils Olga Paul Rosa Stefan Tara Victor Wanda Yusuf Zoe Amir Bella Carlos Dina Emil Fatima George Hana Ivan Julia Kenji Lucia Marek Nadia Omar Priya Ravi Sara Tomas Uma Vera Walter Ximena Adela Bruno Mei Kwame Aisha Diego Ingrid Pavel".split()
LAST = "Abbott Berg Costa Dietz Ekman Farrell Grant Haas Ibrahim Jansen Keller Lund Moreau Novak Okoro Petrov Quinn Rossi Santos Tanaka Ueda Vance Weiss Young Zeller Archer Blake Chen Doyle Fischer Gupta Holm Ivers Khan Larsen Meyer Ortiz Patel Reid Silva Torres Varga Webb Adeyemi Brandt Castillo Dunn Hale Kowalski Mbeki Nguyen".split()
FIRMS = "Alvion Borealis Cordex Delphi Energon Fairline Gantry Helix Inova Juniper Kestrel Lumen Meridian Northgate Orbis Pinnacle Quantra Redstone Solaris Trident Umbra Vertex Westbrook Xenon Zephyr Ashford Brightwater Calder Dunmore Everest".split()
TRADES = ["", *"Foods Motors Labs Systems Bank Airlines Energy Media Pharma Steel Books Software Shipping".split()]
TOWNS = "Lisbon Oslo Quito Nairobi Hanoi Denver Leeds Cork Graz Turin Lyon Seville Riga Tampere Izmir Lagos Perth Osaka Cusco Toronto Boston Krakow Ghent Basel Porto Aarhus Bergen Dakar Manila Seoul Chennai Havana Austin Tallinn Malmo Bristol Zagreb Cardiff Halifax Naples".split()
COUNTRIES = "Norway Peru Kenya Vietnam Canada Poland Portugal Ghana Chile Japan India Brazil Spain Ireland Austria Turkey Finland Morocco Cuba Sweden Mexico Egypt Belgium Estonia Nepal Greece Iceland Bolivia".split()
THINGS = "bridge|museum|library|stadium|hospital|school|theatre|railway station|factory|power plant|cathedral|airport|harbour|tower|dam|market hall|university|tunnel|lighthouse|observatory".split(
    "|"
)
WORKS = "novel|film|opera|album|play|poem|painting|symphony|documentary|short story".split("|")
JOBS = "painter chemist lawyer pianist architect surgeon journalist engineer poet biologist teacher actor economist historian sculptor pilot".split()
GOODS = "copper wheat coffee steel timber salt cotton gold oil rice".split()
GROUPS = "members pupils patients houses workers birds villages players shops passengers students wells farms judges witnesses rooms samples islands voters letters".split()
WHERE = [
    "in the valley",
    "on the island",
    "in the study",
    "of the club",
    "in the north",
    "that year",
    "in the town",
    "",
]
# What a group did: in the plural, in other words, and of one.
DONE = (
    ("were insured", "had insurance", "was insured"),
    ("survived the winter", "lived through the winter", "survived the winter"),
    ("voted for the plan", "backed the plan in the vote", "voted for the plan"),
    ("were damaged by the storm", "suffered storm damage", "was damaged by the storm"),
    ("spoke French", "could speak French", "spoke French"),
    ("returned the next year", "came back a year later", "returned the next year"),
    ("were older than fifty", "were over 50", "was older than fifty"),
    ("had been vaccinated", "had received the vaccine", "had been vaccinated"),
    ("lost money", "made a loss", "lost money"),
    ("arrived late", "did not arrive on time", "arrived late"),
    ("were empty", "stood empty", "was empty"),
    ("agreed with the report", "shared the view of the report", "agreed with the report"),
)
# Infinitive, past and gerund.
EVENTS = (
    ("open a second plant", "opened a second plant", "opening a second plant"),
    ("build a new bridge", "built a new bridge", "building a new bridge"),
    ("leave the country", "left the country", "leaving the country"),
    ("sell the house", "sold the house", "selling the house"),
    ("publish the letters", "published the letters", "publishing the letters"),
    ("cut the budget", "cut the budget", "cutting the budget"),
    ("visit the exhibition", "visited the exhibition", "visiting the exhibition"),
    ("write a second book", "wrote a second book", "writing a second book"),
    ("repair the roof", "repaired the roof", "repairing the roof"),
    ("pay the fine", "paid the fine", "paying the fine"),
    ("win the contract", "won the contract", "winning the contract"),
    ("merge with a rival", "merged with a rival", "merging with a rival"),
    ("release the data", "released the data", "releasing the data"),
    ("ban plastic bags", "banned plastic bags", "banning plastic bags"),
    ("raise wages", "raised wages", "raising wages"),
    ("recall the cars", "recalled the cars", "recalling the cars"),
    ("appeal against the ruling", "appealed against the ruling", "appealing against the ruling"),
    ("close the school", "closed the school", "closing the school"),
    ("swim across the lake", "swam across the lake", "swimming across the lake"),
    ("accept the offer", "accepted the offer", "accepting the offer"),
)
WHO = ["The city", "The government", "The company", "The council", "The team"]
PARTICIPLES = {"wrote": "written", "swam": "swum"}
NUMBERS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty".split()
MONTHS = "January February March April May June July August September October November December".split()


def read_facts() -> list[Fact]:
    """The facts of `small_facts.txt`: wordings by their mark."""
    text = Path(__file__).with_name("small_facts.txt").read_text(encoding="utf-8")
    facts = []
    for block in text.split("\n\n"):
        fact: Fact = {mark: [] for mark in "=+-?"}
        for line in block.splitlines():
            if line[:1] in fact:
                fact[line[0]].append(line[2:])
        facts.append(fact)
    return facts


def make_pairs(facts: list[Fact], count: int, seed: int) -> list[Pair]:
    """Pairs of evidence and claim; the evidence may hold other facts about the same people, firms and towns."""
    rng, pairs = random.Random(seed), []
    while len(pairs) < count:
        evidence, claim, label, values = _one(facts, rng)
        sentences = [evidence]
        for _ in range(rng.choice([0, 0, 1, 1, 2])):
            other = _another(facts, rng, values)
            # It must not say anything about the relation of the claim, lest it decide it.
            if other and not (_long_words(other) & _long_words(claim)) - {
                "with",
                "from",
                "that",
                "been",
                "were",
                "which",
            }:
                sentences.append(other)
        rng.shuffle(sentences)
        pairs.append((" ".join(f"{sentence}." for sentence in sentences), f"{claim}.", label, "facts"))
    return pairs


def _long_words(text: str) -> set[str]:
    return set(re.findall(r"[a-z]{4,}", text))


def _one(facts: list[Fact], rng: random.Random) -> tuple[str, str, int, dict]:
    values, kind = _values(rng), rng.random()
    if kind < 0.14:
        return *_modal(rng.choice([values["P"], values["O"], *WHO]), rng.choice(EVENTS), rng), values
    if kind < 0.28:
        return *_quantified(rng), values
    while True:
        fact, kind = rng.choice(facts), rng.random()
        evidence = rng.choice(fact["="])
        if kind < 0.5:
            others = [wording for wording in fact["="] if wording != evidence] + fact["+"]
            claim, label = rng.choice(others) if rng.random() < 0.93 else evidence, SUPPORTED
        elif kind < 0.86:
            claim, label = rng.choice(fact["-"]), CONTRADICTED
        else:
            claim, label = rng.choice(fact["?"]), NOT_SAID
        # Two wordings may differ in details: what the claim says, the evidence must have said.
        missing = set(re.findall(r"\{(\w+)\}", claim)) - set(re.findall(r"\{(\w+)\}", evidence))
        if label == SUPPORTED and claim in fact["="] and missing:
            continue
        said = _digits_or_words(_filled(claim, values), rng)
        for name in ("P", "P2", "P3"):
            if rng.random() < 0.35:
                said = said.replace(values[name], values[name].split()[1])
        return _filled(evidence, values), said, label, values


def _another(facts: list[Fact], rng: random.Random, values: dict) -> str | None:
    own = _values(rng)
    for name in ("P", "P2", "P3", "O", "O2", "L", "L2", "T"):
        if rng.random() < 0.35:
            own[name] = values[rng.choice([other for other in values if other.rstrip("23") == name.rstrip("23")])]
    if any(own[one] == own[other] for one, other in (("P", "P2"), ("L", "L2"), ("O", "O2"), ("P2", "P3"))):
        return None
    return _filled(rng.choice(rng.choice(facts)["="]), own)


def draw_people(count: int, rng: random.Random) -> list[str]:
    """Full names, no part of which two have in common."""
    return [f"{first} {last}" for first, last in zip(rng.sample(FIRST, count), rng.sample(LAST, count), strict=True)]


def draw_firms(count: int, rng: random.Random) -> list[str]:
    return [f"{name} {rng.choice(TRADES)}".strip() for name in rng.sample(FIRMS, count)]


def _values(rng: random.Random) -> dict:
    people, firms = draw_people(3, rng), draw_firms(3, rng)
    towns, jobs = rng.sample(TOWNS, 3), rng.sample(JOBS, 2)
    days = [f"{rng.randint(1, 28)} {month}" for month in rng.sample(MONTHS, 2)]
    year, years = rng.randint(1820, 2015), rng.randint(2, 9)
    number = max(4, rng.choice([rng.randint(11, 99), rng.randint(11, 30) * 10, rng.randint(3, 19)]))
    other, wrong = number, year
    while other == number:
        other = max(2, number + rng.choice([-7, -3, -2, -1, 1, 2, 3, 5, 10, 20]))
    while wrong == year:
        wrong = year + rng.choice([-20, -11, -10, -3, -2, -1, 1, 2, 3, 4, 10, 12, 100])
    return {
        **dict(zip(("P", "P2", "P3"), people, strict=True)), **dict(zip(("O", "O2", "O3"), firms, strict=True)),
        **dict(zip(("L", "L2", "L3"), towns, strict=True)), **dict(zip(("J", "J2"), jobs, strict=True)),
        **dict(zip(("D", "D2"), days, strict=True)), "K": rng.choice(COUNTRIES), "T": rng.choice(THINGS),
        "W": rng.choice(WORKS), "M": rng.choice(GOODS), "G": rng.choice(GROUPS), "y": year, "yl": year + years,
        "yd": f"{year // 10 * 10}s", "dy": years, "dyw": NUMBERS[years], "z": wrong, "n": number, "m": other,
        "n2": 2 * number, "n4": 4 * number, "nl": max(1, int(number * 0.8)), "nh": int(number * 1.25) + 1,
    }  # fmt: skip


def _filled(wording: str, values: dict) -> str:
    text = wording.format(**values)
    return text[0].upper() + text[1:]


def _digits_or_words(text: str, rng: random.Random) -> str:
    if rng.random() < 0.3:
        small = r"\b(\d{1,2})\b(?! (?:%|percent|per|km|m\b|[A-Z]))"
        text = re.sub(small, lambda found: NUMBERS[int(found[1])] if int(found[1]) <= 20 else found[0], text)
    if rng.random() < 0.3:
        text = text.replace(" percent", "%").replace(" per cent", "%")
    return text


def _modal(who: str, event: tuple[str, str, str], rng: random.Random) -> tuple[str, str, int]:
    """What somebody did, did not do, plans, may do, is said to have done."""
    do, did, doing = event
    verb, _, rest = did.partition(" ")
    done = f"{PARTICIPLES.get(verb, verb)} {rest}".strip()
    real = [f"{who} {did}", f"{who} managed to {do}", f"{who} succeeded in {doing}", f"It was {who} who {did}"]
    unreal = [f"{who} did not {do}", f"{who} never {did}", f"{who} failed to {do}", f"{who} refused to {do}",
              f"{who} decided against {doing}", f"{who} stopped short of {doing}",
              f"Nothing came of {who}'s plan to {do}", f"{who} was prevented from {doing}"]  # fmt: skip
    plan = [f"{who} plans to {do}", f"{who} intends to {do}", f"{who} wants to {do}", f"{who} is planning on {doing}"]
    may = [f"{who} may {do}", f"{who} might {do}", f"It is possible that {who} will {do}", f"{who} could {do} one day"]
    said = [f"Critics say that {who} {did}", f"According to a newspaper, {who} {did}", f"{who} is said to have {done}",
            f"Some claim that {who} {did}", f"It is alleged that {who} {did}"]  # fmt: skip
    denied = [f"It has been disproved that {who} {did}", f"The report that {who} {did} was false",
              f"Contrary to reports, {who} did not {do}"]  # fmt: skip
    thought = [f"{who} is thinking about {doing}", f"{who} has considered {doing}", f"{who} has discussed {doing}"]
    groups = {
        "real": real,
        "unreal": unreal,
        "plan": plan,
        "may": may,
        "said": said,
        "denied": denied,
        "thought": thought,
    }
    kind = rng.choice([*groups])
    evidence = rng.choice(groups[kind])
    if rng.random() < 0.5:
        if kind == "said":
            return (
                evidence,
                rng.choice([f"There are claims that {who} {did}", f"It has been said that {who} {did}"]),
                SUPPORTED,
            )
        same = unreal[:2] if kind in ("unreal", "denied") else groups[kind]
        return evidence, rng.choice([wording for wording in same if wording != evidence]), SUPPORTED
    if kind == "real":
        return evidence, rng.choice(unreal + denied), CONTRADICTED
    if kind in ("unreal", "denied"):
        return evidence, rng.choice(real), CONTRADICTED
    choices = {
        "plan": [(rng.choice(real), NOT_SAID), (f"{who} has no intention of {doing}", CONTRADICTED),
                 (rng.choice(unreal[:3]), NOT_SAID), (f"{who} has already {done}", NOT_SAID)],
        "may": [(rng.choice(real), NOT_SAID), (f"{who} will {do}", NOT_SAID), (rng.choice(plan), NOT_SAID),
                (f"It is certain that {who} will {do}", CONTRADICTED), (f"{who} will definitely {do}", CONTRADICTED)],
        "said": [(rng.choice(real), NOT_SAID), (f"It is proved that {who} {did}", NOT_SAID),
                 (f"Nobody doubts that {who} {did}", NOT_SAID), (f"Nobody has said that {who} {did}", CONTRADICTED)],
        "thought": [(rng.choice(real), NOT_SAID), (rng.choice(plan), NOT_SAID), (f"{who} will {do}", NOT_SAID),
                    (f"{who} never thought about {doing}", CONTRADICTED)],
    }  # fmt: skip
    return evidence, *rng.choice(choices[kind])


# What a claim about a share of a group is, beside evidence about another share; pairs that leave it open are absent.
_SHARES = {
    "all": {"all": 0, "none": 1, "not all": 1, "few": 1, "some": 0},
    "most": {"all": 1, "most": 0, "none": 1, "few": 1, "some": 0},
    "part": {"all": 1, "most": 1, "none": 1, "not all": 0, "some": 0},
    "none": {"all": 1, "most": 1, "none": 0, "not all": 0, "some": 1},
    "not all": {"all": 1, "most": 2, "none": 2, "not all": 0, "few": 2, "some": 2},
    "few": {"all": 1, "most": 1, "none": 2, "not all": 0, "few": 0},
}


def _quantified(rng: random.Random) -> tuple[str, str, int]:
    group = f"{rng.choice(GROUPS)} {rng.choice(WHERE)}".strip()
    did, same, one = rng.choice(DONE)
    wordings = {
        "all": [f"All {group} {did}", f"Every one of the {group} {one}", f"The {group} {did} without exception",
                f"Each of the {group} {one}"],
        "most": [f"Most {group} {did}", f"The majority of the {group} {same}", f"More than half of the {group} {did}",
                 f"Most of the {group} {same}"],
        "part": [f"A minority of the {group} {same}", f"Some of the {group}, though not all, {did}",
                 f"{rng.randint(5, 40)} percent of the {group} {did}", f"Only a third of the {group} {same}"],
        "none": [f"None of the {group} {one}", f"No {group} {did}", f"Not a single one of the {group} {one}",
                 f"Not one of the {group} {one}"],
        "not all": [f"Not all {group} {did}", f"Not every one of the {group} {one}"],
        "few": [f"Hardly any of the {group} {did}", f"Very few of the {group} {same}", f"Almost none of the {group} {one}"],
        "some": [f"There were {group} that {did}", f"At least one of the {group} {one}", f"Some of the {group} {same}"],
    }  # fmt: skip
    shares = [f"{rng.randint(60, 90)} percent of the {group} {did}", f"Three quarters of the {group} {same}"]
    kind, true = rng.choice([*_SHARES]), rng.random() < 0.5
    claimed, label = rng.choice([pair for pair in _SHARES[kind].items() if (pair[1] == SUPPORTED) == true])
    evidence = rng.choice(wordings[kind] + (shares if kind == "most" else []))
    claim = rng.choice([wording for wording in wordings[claimed] if wording != evidence])
    return evidence, claim, label

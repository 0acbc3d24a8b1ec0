"""Short facts as encyclopedias and newspapers have them, and claims that turn them around: lives, offices, matches, sales, causes.

As in `_small_forms.py`, of every evidence some claims are true and as many false.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from _small_facts import COUNTRIES, FIRST, JOBS, MONTHS, TOWNS, draw_firms, draw_people
from _small_forms import ORDINALS, TEAMS, Form, draw_named, draw_things, in_a_word, rows


NATIONS = "French German Polish Italian Spanish Dutch Danish Swedish Irish Scottish Greek Turkish Indian Chinese Japanese Korean Brazilian Mexican Canadian Nigerian Kenyan Egyptian".split()
OFFICES = "president|mayor|prime minister|governor|director|bishop|head teacher|editor|minister of finance|chief executive|coach|dean|ambassador".split(
    "|"
)
MATCHES = "final|semi-final|match|opening game|derby|return match|cup final|quarter-final".split("|")
PLAYERS = "striker goalkeeper defender midfielder coach player forward".split()
MATERIALS = "water|sugar|carbon dioxide|oxygen|glucose|ammonia|starch|alcohol|methane|lime|iron|salt|nitrogen|hydrogen|milk|barley|sand|glass|steam".split(
    "|"
)
PROCESSES = "photosynthesis|fermentation|the plant|the process|the reaction|the machine|the bacterium|the enzyme|the mill|the reactor|the yeast".split(
    "|"
)
NEEDED = "vitamin C|iron|iodine|sleep|oxygen|calcium|water|sunlight|folic acid|zinc|salt|protein".split("|")
ILLS = "scurvy|anaemia|goitre|rickets|fatigue|cramps|headaches|brittle bones|night blindness|weakness|hair loss".split(
    "|"
)
LACK = ("a lack of {}", "too little {}", "a deficiency of {}", "not enough {}")
EXCESS = ("too much {}", "an excess of {}", "an overdose of {}")
CAPITALS = "capital|largest city|main port|seat of the court|oldest town|financial centre".split("|")
KIN = rows(
    "father|child; mother|child; grandfather|grandchild; aunt|niece; uncle|nephew; teacher|pupil; employer|employee; landlord|tenant; doctor|patient; host|guest; lawyer|client; predecessor|successor; creditor|debtor"
)
PRIZES = "Nobel Prize|Booker Prize|Wolf Prize|Pulitzer Prize|Lasker Award|Fields Medal".split("|")
SUBJECTS = "Physics Chemistry Medicine Literature Economics Peace Biology History".split()
LOCKED = "locked painted opened finished damaged used harmed paid signed named marked covered washed known changed noticed sold touched tested".split()
CLOSED = "door house box letter car wall bridge shop book bill road room window ship file".split()
CROWNED = "was crowned|died|left the country|married|lost the war|built the palace".split("|")


def _short(name: str, rng: random.Random) -> str:
    """A surname or the whole name."""
    return name if rng.random() < 0.5 else name.split()[-1]


def _life(rng: random.Random) -> Form:
    name, (town, other), job, nation = (
        draw_people(1, rng)[0],
        rng.sample(TOWNS, 2),
        rng.choice(JOBS),
        rng.choice(NATIONS),
    )
    (day, last_day), (month, last_month) = (rng.randint(1, 28), rng.randint(1, 28)), rng.sample(range(12), 2)
    born, age = rng.randint(1700, 1945), rng.randint(24, 95)
    died = born + age + ((last_month, last_day) < (month, day))
    birth, death = f"{day} {MONTHS[month]} {born}", f"{last_day} {MONTHS[last_month]} {died}"
    evidence = rng.choice(
        [
            f"{name} ({birth}, {town} - {death}, {other}) was a {nation} {job}",
            f"{name} was born in {town} on {birth} and died in {other} on {death}",
            f"born in {town} on {birth}, {name} became a {job} and died in {other} on {death}",
        ]
    )
    who, alive = _short(name, rng), rng.randint(born + 1, died - 1)

    def says(
        first: tuple[str, int, str, int], last: tuple[str, int, str, int], old: int, within: int, gone: int
    ) -> list[str]:
        return [
            f"{who} was born in {first[1]}", f"{who} died in {last[1]}", f"{who} was born on {first[0]}", f"{who} died on {last[0]}",
            f"{who} was born in {first[2]}", f"{who} died in {last[2]}", f"{who} died at the age of {old}", f"{who} lived to be {old}",
            f"{who} was alive in {within}", f"{who} was no longer alive in {gone}", f"{who} was born in {MONTHS[first[3]]}",
            f"{who} lived until {last[1]}",
        ]  # fmt: skip

    first, last = (birth, born, town, month), (death, died, other, last_month)
    after, wrong = died + rng.randint(1, 20), age + rng.choice([-10, -3, -2, 2, 3, 10])
    return evidence, says(first, last, age, alive, after), says(last, first, wrong, after, alive)


def _office(rng: random.Random) -> Form:
    holder, before, after = draw_people(3, rng)
    office, place = rng.choice(OFFICES), draw_things(1, rng)[0]
    start, years = rng.randint(1900, 2005), rng.randint(2, 16)
    end, within = start + years, rng.randint(start + 1, start + years - 1)
    earlier, later, wrong = start - rng.randint(1, 20), end + rng.randint(1, 20), years + rng.choice([1, 2, 5])
    evidence = rng.choice(
        [
            f"{holder}, {office} of {place} from {start} to {end}, was preceded by {before} and succeeded by {after}",
            f"in {start} {holder} took over from {before} as {office} of {place}; {after} followed in {end}",
            f"{holder} followed {before} as {office} of {place} in {start} and was replaced by {after} in {end}",
        ]
    )

    def says(
        began: int, left: int, held: int, not_yet: int, no_longer: int, lasted: int, one: str, other: str
    ) -> list[str]:
        who, first, last = _short(holder, rng), _short(one, rng), _short(other, rng)
        return [
            f"{who} became {office} of {place} in {began}", f"{who} was {office} of {place} until {left}",
            f"{who} was {office} of {place} in {held}", f"in {not_yet} {who} was not yet {office} of {place}",
            f"in {no_longer} {who} was no longer {office} of {place}", f"{who} was {office} of {place} for {in_a_word(lasted)} years",
            f"{who} succeeded {first}", f"{first} was {office} before {who}", f"{last} became {office} after {who}",
            f"the predecessor of {who} was {first}", f"the successor of {who} was {last}",
        ]  # fmt: skip

    false = says(end, start, rng.choice([earlier, later]), within, within, wrong, after, before)
    return evidence, says(start, end, within, earlier, later, years, before, after), false


def _match(rng: random.Random) -> Form:
    (winner, loser), match, more = rng.sample(TEAMS, 2), rng.choice(MATCHES), rng.randint(1, 6)
    fewer = rng.randint(0, more - 1)
    evidence = rng.choice(
        [
            f"{winner} beat {loser} {more}-{fewer} in the {match}", f"in the {match}, {winner} won {more}:{fewer} against {loser}",
            f"{loser} lost the {match} against {winner} {fewer}-{more}", f"the {match} ended {winner} {more}, {loser} {fewer}",
        ]
    )  # fmt: skip

    def says(first: str, second: str, gap: int) -> list[str]:
        return [
            f"{first} won the {match}", f"{second} lost the {match}", f"{first} scored more goals than {second}",
            f"{second} was beaten by {first}", f"the winner of the {match} was {first}", f"the goals that {first} scored numbered {more}",
            f"{winner} scored {in_a_word(gap)} more than {loser}",
        ]  # fmt: skip

    return evidence, says(winner, loser, more - fewer), says(loser, winner, more - fewer + 1)


def _transfer(rng: random.Random) -> Form:
    name, (old, new), fee = draw_people(1, rng)[0], rng.sample(TEAMS, 2), rng.randint(2, 90)
    player, age = rng.choice(PLAYERS), rng.randint(17, 35)
    named = rng.random() < 0.7
    if named:
        ways = [
            f"{name} moved from {old} to {new} for {fee} million euros",
            f"{old} let {name} go to {new} for €{fee} million",
        ]
        evidence = rng.choice([*ways, f"{new} signed the {player} {name} from {old} for {fee} million euros"])
    else:
        evidence = f"the {age}-year-old {player} joined {new} from {old} for a fee of €{fee}m"
    who = _short(name, rng) if named else f"the {player}"

    def says(first: str, last: str) -> list[str]:
        return [
            f"{last} bought {who} from {first}", f"{first} sold {who} to {last}", f"{who} left {first}", f"{who} joined {last}",
            f"{last} paid {fee} million euros for {who}", f"{first} received {fee} million euros", f"before, {who} was with {first}",
            f"the new club of {who} is {last}",
        ]  # fmt: skip

    return evidence, says(old, new), says(new, old)


def _takeover(rng: random.Random) -> Form:
    (buyer, bought), price, year = draw_firms(2, rng), rng.randint(2, 900), rng.randint(1950, 2024)
    evidence = rng.choice(
        [
            f"{buyer} acquired {bought} for {price} million dollars in {year}",
            f"in {year}, {bought} was taken over by {buyer} for ${price} million",
            f"the owners of {bought} sold it to {buyer} for ${price} million in {year}",
        ]
    )

    def says(one: str, other: str) -> list[str]:
        return [
            f"{one} bought {other}", f"{other} was sold to {one}", f"{other} was acquired by {one} in {year}",
            f"{one} became the owner of {other}", f"{other} came to belong to {one}", f"the buyer of {other} was {one}",
            f"{one} paid {price} million dollars for {other}",
        ]  # fmt: skip

    return evidence, says(buyer, bought), says(bought, buyer)


def _joined(rng: random.Random) -> Form:
    (place,), (who,), year, years = (
        draw_things(1, rng),
        draw_people(1, rng),
        rng.randint(1850, 2010),
        rng.randint(1, 12),
    )
    began = rng.choice(["was founded", "opened", "was set up", "began"])
    wrong = years + rng.choice([1, 2, 3])
    evidence = rng.choice(
        [f"{place} {began} in {year}; {who} joined in {year + years}", f"{who} joined {place} in {year + years}, which {began} in {year}"]
    )  # fmt: skip

    def later(count: int) -> list[str]:
        gap = "a year" if count == 1 else f"{in_a_word(count)} years"
        return [f"{who} joined {place} {gap} after it {began}", f"{place} {began} {gap} before {who} joined"]

    true = [*later(years), f"{place} already existed when {who} joined", f"{who} was not there when {place} {began}"]
    false = [
        *later(wrong),
        f"{place} {began} after {who} joined",
        f"{who} joined {place} in {year}",
        f"{place} {began} in {year + years}",
    ]
    return evidence, true, false


def _process(rng: random.Random) -> Form:
    process, (used, made) = rng.choice(PROCESSES), rng.sample(MATERIALS, 2)
    evidence = rng.choice(
        [f"{process} turns {used} into {made}", f"{process} takes up {used} and gives off {made}", f"{process} needs {used} and releases {made}"]
    )  # fmt: skip

    def says(first: str, last: str) -> list[str]:
        return [
            f"{last} is produced by {process}", f"{process} uses {first}", f"{process} produces {last}", f"{last} is a product of {process}",
            f"{first} is used up by {process}", f"{process} consumes {first}",
        ]  # fmt: skip

    return evidence, says(used, made), says(made, used)


def _cause(rng: random.Random) -> Form:
    needed, ill = rng.choice(NEEDED), rng.choice(ILLS)
    causes, others = (LACK, EXCESS) if rng.random() < 0.6 else (EXCESS, LACK)

    def says(ways: tuple[str, ...]) -> list[str]:
        cause = rng.choice(ways).format(needed)
        return [
            f"{cause} causes {ill}",
            f"{ill} is the result of {cause}",
            f"{ill} is due to {cause}",
            f"{cause} brings about {ill}",
        ]

    return rng.choice(says(causes)), says(causes), [*says(others), f"{ill} causes {rng.choice(causes).format(needed)}"]


def _not_that_one(rng: random.Random) -> Form:
    (right, wrong), country, capital = rng.sample(TOWNS, 2), rng.choice(COUNTRIES), rng.choice(CAPITALS)
    evidence = rng.choice(
        [
            f"{right}, not {wrong}, is the {capital} of {country}", f"the {capital} of {country} is {right} and not {wrong}",
            f"{wrong} is often taken for the {capital} of {country}, which is {right}",
        ]
    )  # fmt: skip

    def says(one: str, other: str) -> list[str]:
        ways = [f"{one} is the {capital} of {country}", f"the {capital} of {country} is {one}"]
        return [*ways, f"{other} is not the {capital} of {country}", f"the {capital} of {country} is not {other}"]

    return evidence, says(right, wrong), says(wrong, right)


def _direction(rng: random.Random) -> Form:
    first, second, third = draw_things(3, rng)
    if rng.random() < 0.6:
        one, other = rng.choice([("north", "south"), ("south", "north"), ("east", "west"), ("west", "east")])
        evidence = rng.choice(
            [
                f"{first} lies {rng.randint(2, 300)} kilometres {one} of {second}",
                f"going {one} from {second}, one reaches {first}",
            ]
        )

        def says(way: str, back: str) -> list[str]:
            ways = [
                f"{first} is {way} of {second}",
                f"{second} is {back} of {first}",
                f"{second} lies to the {back} of {first}",
            ]
            return [*ways, f"{first} is farther {way} than {second}"]

        return evidence, says(one, other), says(other, one)
    carrier = rng.choice(["train", "flight", "ferry", "bus", "ship"])
    evidence = rng.choice(
        [f"the {carrier} from {first} to {second} stops in {third}", f"the {carrier} leaves {first}, calls at {third} and goes on to {second}"]
    )  # fmt: skip

    def goes(start: str, end: str, before: str, after: str) -> list[str]:
        ways = [
            f"the {carrier} starts in {start}",
            f"the {carrier} ends in {end}",
            f"the {carrier} comes from {start}",
        ]
        return [*ways, f"the {carrier} is in {before} before it is in {after}"]

    return evidence, goes(first, second, third, second), goes(second, third, second, third)


def _kin(rng: random.Random) -> Form:
    first, second, third = rng.sample(FIRST, 3)
    one, other = rng.choice(KIN)

    def says(older: str, younger: str) -> list[str]:
        return [
            f"{older} is the {one} of {younger}", f"{younger} is the {other} of {older}", f"{older} is {younger}'s {one}",
            f"the {one} of {younger} is {older}", f"{younger} has {older} as {one}",
        ]  # fmt: skip

    fact = rng.choice(says(first, second))
    evidence = fact if rng.random() < 0.5 else f"{fact}, and {rng.choice(says(second, third))}"
    return evidence, says(first, second), says(second, first)


def _all_but_one(rng: random.Random) -> Form:
    group, name = (
        (rng.choice(["members", "pupils", "players"]), draw_named(1, rng)[0])
        if rng.random() < 0.5
        else ("countries", rng.choice(COUNTRIES))
    )
    did, did_not = rng.choice(
        [("signed", "did not sign"), ("agreed", "did not agree"), ("came", "did not come"), ("paid", "did not pay")]
    )
    evidence = rng.choice(
        [
            f"all {group} except {name} {did}", f"with the exception of {name}, all {group} {did}", f"all {group} {did}, only {name} did not",
            f"every one of the {group} but {name} {did}",
        ]
    )  # fmt: skip
    true = [f"{name} {did_not}", f"not all {group} {did}", f"most of the {group} {did}", f"all {group} but one {did}"]
    return evidence, true, [f"{name} {did}", f"all {group} {did}", f"none of the {group} {did}", f"only {name} {did}"]


def _prizes(rng: random.Random) -> Form:
    name, prize, count = draw_people(1, rng)[0], rng.choice(PRIZES), rng.choice([2, 3])
    years, subjects = sorted(rng.sample(range(1905, 2022), count)), rng.sample(SUBJECTS, count)
    won = [f"in {subject} in {year}" for year, subject in zip(years, subjects, strict=True)]
    who = _short(name, rng)

    def says(ordered: list[str], number: int) -> list[str]:
        ways = [f"{who} won the {year} {prize} in {subject}" for year, subject in zip(years, ordered, strict=True)]
        return [
            *ways,
            f"{who} won {in_a_word(number)} {prize}s",
            f"the {prize} in {ordered[0]} came before that in {ordered[-1]}",
        ]

    evidence = f"{name} won the {prize} {', '.join(won[:-1])} and {won[-1]}"
    false = [claim for claim in says(subjects[::-1], count + 1) if claim not in says(subjects, count)]
    return evidence, says(subjects, count), [*false, f"{who} won only one {prize}"]


def _numbered(rng: random.Random) -> Form:
    name, did, (one, other) = rng.choice(FIRST), rng.choice(CROWNED), rng.sample(ORDINALS, 2)

    def says(ordinal: str) -> list[str]:
        return [f"{name} the {ordinal.title()} {did}", f"it was {name} the {ordinal.title()} who {did}"]

    return rng.choice(says(one)), says(one), says(other)


def _undone(rng: random.Random) -> Form:
    thing, done = f"the {rng.choice(CLOSED)}", rng.choice(LOCKED)
    yes = [f"{thing} is {done}", f"{thing} has been {done}", f"{thing} is not un{done}"]
    no = [f"{thing} is not {done}", f"{thing} is un{done}", f"{thing} has not been {done}"]
    true, false = (yes, no) if rng.random() < 0.5 else (no, yes)
    return rng.choice(true), true, false


def _left_early(rng: random.Random) -> Form:
    group, whole = (
        rng.choice(["patients", "students", "runners", "families", "teams", "volunteers", "firms"]),
        rng.randint(8, 90),
    )
    part = rng.choice([number for number in range(2, whole - 1) if abs(2 * number - whole) > 2])
    went, stayed = rng.choice(
        [
            ("dropped out", "stayed"),
            ("withdrew", "stayed on"),
            ("failed the test", "passed the test"),
            ("said no", "said yes"),
        ]
    )
    evidence = rng.choice(
        [
            f"{part} of the {whole} {group} {went}; all the others {stayed}", f"{whole} {group} took part and {part} of them {went}, while the rest {stayed}",
            f"there were {whole} {group}, of whom {part} {went} and {whole - part} {stayed}",
        ]
    )  # fmt: skip
    more, fewer = (went, stayed) if 2 * part > whole else (stayed, went)

    def says(left: int, kept: int, many: str, few: str) -> list[str]:
        ways = [
            f"{left} {group} {went}",
            f"{kept} {group} {stayed}",
            f"most of the {group} {many}",
            f"a minority of the {group} {few}",
        ]
        return [*ways, f"more {group} {many} than {few}"]

    return evidence, says(part, whole - part, more, fewer), says(whole - part, part, fewer, more)


FAMILIES: dict[Callable[[random.Random], Form], float] = {
    _life: 1.5, _office: 1.5, _match: 1.0, _transfer: 1.0, _takeover: 1.0, _joined: 1.0, _process: 1.0, _cause: 1.0, _not_that_one: 1.0,
    _direction: 1.0, _kin: 1.0, _all_but_one: 1.0, _prizes: 1.0, _numbered: 1.0, _undone: 1.0, _left_early: 1.0,
}  # fmt: skip
"""How often each is drawn."""

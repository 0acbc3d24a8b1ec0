"""The same amount, year or rank in two notations, and amounts that only look the same: words and digits, signs, units, decades.

As in `_small_forms.py`, of every evidence some claims are true and as many false.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from _small_facts import GOODS, GROUPS, MONTHS, NUMBERS, THINGS, TOWNS, draw_firms, draw_people
from _small_forms import LESS, MORE, OBJECTS, TEAMS, Form, draw_named, draw_things, rows


SOURCE = "notations"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
ONES = NUMBERS[1:13]
RANKS = "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth".split()
# What is measured, and its units: those that may be taken for each other, and other ways to write the unit.
UNITS = rows(
    "is {} high|metres=m=meters|feet=ft; is {} long|kilometres=km|miles=mi; weighs {}|kilograms=kg=kilos|grams=g|pounds=lb|tonnes=t; "
    "costs {}|euros=EUR|dollars=USD|pounds=GBP|yen=JPY; took {}|seconds=s|minutes=min|hours=h; holds {}|litres=l=liters|millilitres=ml; "
    "has a capacity of {}|megabytes=MB|gigabytes=GB|kilobytes=KB; was heated to {}|degrees Celsius=°C|degrees Fahrenheit=°F; "
    "delivers {}|watts=W|kilowatts=kW|volts=V; covers {}|hectares=ha|square kilometres=km²|acres; paid {}|euros=EUR|dollars=USD|roubles=RUB"
)
# Verbs that hold both ways, and verbs that do not.
MUTUAL = rows(
    "married|married; met|met; divorced|divorced; is a cousin of|is a cousin of; is a sibling of|is a sibling of; collided with|collided with; "
    "played against|played against; is a neighbour of|is a neighbour of; danced with|danced with; quarrelled with|quarrelled with; "
    "agreed with|agreed with; is the same age as|is the same age as; differs from|differs from; merged with|merged with; "
    "corresponded with|corresponded with; lives next door to|lives next door to; shared a room with|shared a room with"
)
ONE_WAY = "taught|sued|hired|defeated|admired|followed|paid|invited|adopted|painted|betrayed|rescued|succeeded|employed|photographed|warned".split(
    "|"
)
RANKED = "woman in the parliament|winner of the prize|doctor in the valley|foreigner in the team|student of the school|translator of the poem|climber of the peak".split(
    "|"
)
OFFICES = "president mayor bishop director governor chairman king abbot rector captain".split()
MINUS = ("-{} degrees", "minus {} degrees", "{} degrees below zero")
PLUS = ("{} degrees", "{} degrees above zero", "plus {} degrees")
PLANNED = rows(
    "plans to {}; intends to {}; is considering whether to {}; has promised to {}; was asked to {}; hopes to {}; refused to {}; failed to {}; "
    "was expected to {}; is about to {}"
)
DEEDS = rows(
    "open a museum|opened a museum; close the school|closed the school; sell the ship|sold the ship; build a dam|built a dam; "
    "resign|resigned; raise the tax|raised the tax; publish the report|published the report; buy the firm|bought the firm; "
    "leave the league|left the league; cut wages|cut wages; ban cars|banned cars; sign the treaty|signed the treaty"
)
DONE = rows(
    "managed to {}; was able to {} and did so; did {}; went on to {} that year; did not fail to {}; did not hesitate to {} and did it"
)


def in_words(number: int) -> str:
    """Up to 9,999."""
    if number <= 12:
        return NUMBERS[number]
    if number < 20:
        return TEENS[number - 13]
    if number < 100:
        ten, one = divmod(number, 10)
        return TENS[ten - 2] + (f"-{NUMBERS[one]}" if one else "")
    if number < 1000:
        hundreds, rest = divmod(number, 100)
        return f"{NUMBERS[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
    thousands, rest = divmod(number, 1000)
    joined = " " if rest >= 100 else " and "
    return f"{in_words(thousands)} thousand" + (joined + in_words(rest) if rest else "")


def ordinal_in_words(number: int) -> str:
    """Up to 99."""
    if number <= 12:
        return RANKS[number - 1]
    ten, one = divmod(number, 10)
    if one and number > 20:
        return f"{TENS[ten - 2]}-{RANKS[one - 1]}"
    return in_words(number).removesuffix("y") + ("ieth" if number % 10 == 0 and number > 19 else "th")


def ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _other(number: int, rng: random.Random) -> int:
    """Another number of about the same size, often one that looks alike."""
    tries = [
        number + rng.choice([-1, 1]),
        number * 10,
        number // 10,
        number + 10,
        number - 10,
        int(str(number)[::-1]),
        number + rng.randint(2, 9),
    ]
    return rng.choice([it for it in tries if it > 1 and it != number])  # fmt: skip


def _written(rng: random.Random) -> Form:
    """Digits and words."""
    (who,), what = draw_things(1, rng), rng.choice(GROUPS)
    number = rng.randint(2, rng.choice([12, 30, 99, 999, 9999]))
    other = _other(number, rng)
    said = rng.choice(
        ["{} has {} {}", "there are {1} {2} in {0}", "{} counted {} {}", "the number of {2} in {0} is {1}"]
    )

    def ways(value: int) -> list[str]:
        return [
            said.format(who, way, what)
            for way in {str(value), f"{value:,}", *([in_words(value)] if value < 10_000 else [])}
        ]

    return rng.choice(ways(number)), ways(number), ways(other)


def _millions(rng: random.Random) -> Form:
    name, what = (
        draw_firms(1, rng)[0],
        rng.choice(
            ["sold {} bottles", "has {} customers", "lost {} dollars", "employs {} people", "printed {} copies"]
        ),
    )
    tenths, size = rng.randint(11, 99), rng.choice(["million", "billion", "thousand"])
    names = {"thousand": 3, "million": 6, "billion": 9}

    def ways(value: int, unit: str) -> list[str]:
        whole = value * 10 ** (names[unit] - 1)
        return [
            f"{name} {what.format(way)}"
            for way in (
                f"{value / 10:g} {unit}",
                f"{whole:,}",
                *([f"{in_words(value // 10)} {unit}"] if value % 10 == 0 else []),
            )
        ]

    wrong = rng.choice([it for it in names if it != size])
    return rng.choice(ways(tenths, size)), ways(tenths, size), ways(tenths, wrong) + ways(_other(tenths, rng), size)  # fmt: skip


def _units(rng: random.Random) -> Form:
    said, *units = rng.choice(UNITS)
    who = (
        draw_firms(1, rng)[0]
        if said.startswith(("paid", "took"))
        else f"the {rng.choice(THINGS)} in {rng.choice(TOWNS)}"
    )
    own, *others = rng.sample(units, len(units))
    number = rng.randint(2, 950)
    larger = rng.choice(["", "", " million"]) if said.startswith("paid") else ""

    def ways(value: int, unit: str) -> list[str]:
        return [f"{who} {said.format(f'{value:,}{larger} {it}')}" for it in unit.split("=")]

    false = [it for unit in others for it in ways(number, unit)] + ways(_other(number, rng), own)
    return rng.choice(ways(number, own)), ways(number, own), false


def _signs(rng: random.Random) -> Form:
    number, place = (
        rng.randint(2, 40),
        rng.choice(
            ["the lake", "the sample", "the room", f"the air in {rng.choice(TOWNS)}", "the oven", "the storeroom"]
        ),
    )
    said = rng.choice(["{} had a temperature of {}", "the thermometer in {} showed {}", "the reading for {} was {}"])

    def ways(forms: tuple[str, ...], value: int) -> list[str]:
        return [said.format(place, form.format(value)) for form in forms]

    own, wrong = (MINUS, PLUS) if rng.random() < 0.5 else (PLUS, MINUS)
    return rng.choice(ways(own, number)), ways(own, number), ways(wrong, number) + ways(own, _other(number, rng))


def _shares(rng: random.Random) -> Form:
    number, what = rng.randint(2, 95), rng.choice(GROUPS)
    did = rng.choice(["agreed", "left", "were counted", "came back", "took part", "fell ill"])
    shares = [
        f"{number}% of the {what} {did}",
        f"{number} percent of the {what} {did}",
        f"{number} per cent of the {what} {did}",
    ]
    counts = [f"{number} {what} {did}", f"{number} of the {what} {did}", f"{in_words(number)} {what} {did}"]
    other = _other(number, rng)
    if rng.random() < 0.5:
        return (
            rng.choice(shares),
            shares,
            counts + [f"{min(other, 99)}% of the {what} {did}"] * (min(other, 99) != number),
        )
    return rng.choice(counts), counts, shares + [f"{other} {what} {did}"]


def _decades(rng: random.Random) -> Form:
    (who,) = draw_things(1, rng)
    said = rng.choice(["{} {}", "it was {1} that {0}"])
    event = rng.choice(
        [
            "the bridge in {} was built",
            "{} changed its name",
            "the first train came to {}",
            "{} was sold",
            "the mill in {} burnt down",
        ]
    ).format(who)
    decade, year = 100 * rng.randint(15, 19) + 10 * rng.randint(1, 9), rng.randint(1, 9)
    whole = (f"in the {decade}s",)
    century = f"in the {ordinal((decade + year) // 100 + 1)} century"
    wrong = f"in the {ordinal((decade + year) // 100 + rng.choice([0, 2]))} century"
    dated = (f"in {decade + year}",)
    if rng.random() < 0.5:  # a year is in its decade; a decade gives no year
        true = [*whole, *dated, century]
        false = [
            f"in the {decade + rng.choice([-10, 10])}s",
            f"in {decade + year + rng.choice([-1, 1, 10, -10, 100])}",
            wrong,
            f"in {decade}",
        ]
        return (
            said.format(event, dated[0]),
            [said.format(event, it) for it in true],
            [said.format(event, it) for it in false],
        )
    true, false = (
        [*whole, century],
        [f"in {decade}", f"in {decade + year}", f"in the {decade + rng.choice([-10, 10])}s", wrong],
    )
    return said.format(event, whole[0]), [said.format(event, it) for it in true], [said.format(event, it) for it in false]  # fmt: skip


def _bounds(rng: random.Random) -> Form:
    (who,), what = draw_things(1, rng), rng.choice(GROUPS)
    number = rng.randint(5, rng.choice([30, 99, 900]))
    lower, higher = rng.randint(2, number - 1), number + rng.randint(1, number)

    def ways(words: tuple[str, ...], value: int) -> list[str]:
        return [f"{who} has {word} {way} {what}" for word in words for way in (str(value), in_words(value))]

    fact = f"{who} has {rng.choice([str(number), in_words(number)])} {what}"
    return fact, ways(MORE, lower) + ways(LESS, higher), ways(MORE, higher) + ways(LESS, lower)


def _ranks(rng: random.Random) -> Form:
    name, office = draw_people(1, rng)[0], rng.choice(OFFICES)
    number = rng.randint(1, 60)
    other = rng.choice([it for it in (number + 1, number + 10, max(number - 1, 1), number + 20) if it != number])

    def ways(value: int) -> list[str]:
        return [f"{name} was the {way} {office}" for way in (ordinal(value), ordinal_in_words(value))]

    return rng.choice(ways(number)), ways(number), ways(other)


def _one_of(rng: random.Random) -> Form:
    (name,), what = draw_people(1, rng), rng.choice(RANKED)
    rank = rng.choice(["first", "last", "second", "youngest", "best known", "oldest"])
    only = [f"{name} was the {rank} {what}", f"the {rank} {what} was {name}"]
    people = what.split(maxsplit=1)
    several = {"woman": "women"}.get(people[0], f"{people[0]}s") + f" {people[1]}"
    among = [f"{name} was one of the {rank} {several}", f"{name} was among the {rank} {several}"]
    if rank in ("second", "last") or rng.random() < 0.4:
        false = [f"{name} was not the {rank} {what}"]
        if rank in ("first", "second"):
            false.append(f"{name} was the third {what}")
        return rng.choice(only), only, false
    return rng.choice(among), among, only


def _mutual(rng: random.Random) -> Form:
    first, second, third = draw_named(3, rng) if rng.random() < 0.7 else rng.sample(TEAMS, 3)
    when = rng.choice(["", "", f" in {rng.randint(1850, 2020)}", f" in {rng.choice(TOWNS)}"])
    if rng.random() < 0.6:
        verb = rng.choice(MUTUAL)[0]
        true = [f"{first} {verb} {second}{when}", f"{second} {verb} {first}{when}"]
        return rng.choice(true), true, [f"{first} {verb} {third}{when}", f"{third} {verb} {second}{when}"]
    verb = rng.choice(ONE_WAY)
    return (
        f"{first} {verb} {second}{when}",
        [f"{first} {verb} {second}{when}"],
        [f"{second} {verb} {first}{when}", f"{first} {verb} {third}{when}"],
    )


def _deeds(rng: random.Random) -> Form:
    (who,) = draw_things(1, rng) if rng.random() < 0.5 else draw_people(1, rng)
    deed, done = rng.choice(DEEDS)
    if rng.random() < 0.5:
        plan = f"{who} {rng.choice(PLANNED)[0].format(deed)}"
        return (
            plan,
            [plan],
            [f"{who} {done}", f"{who} has {done}" if done.split()[0] not in ("cut", "sold") else f"{who} {done}"],
        )
    return (
        f"{who} {rng.choice(DONE)[0].format(deed)}",
        [f"{who} {done}"],
        [f"{who} did not {deed}", f"{who} failed to {deed}", f"{who} never {done}"],
    )


def _dates(rng: random.Random) -> Form:
    thing, day, month, year = (
        f"the {rng.choice(THINGS)} in {rng.choice(TOWNS)}",
        rng.randint(1, 28),
        rng.randrange(12),
        rng.randint(1700, 2024),
    )
    did = rng.choice(["opened", "was closed", "was damaged", "was sold"])

    def ways(a: int, b: int, c: int) -> list[str]:
        name = MONTHS[b]
        forms = (
            f"{a} {name} {c}",
            f"{name} {a}, {c}",
            f"the {ordinal(a)} of {name} {c}",
            f"{name[:3]} {a}, {c}",
            f"{c}-{b + 1:02}-{a:02}",
        )
        return [f"{thing} {did} on {form}" for form in forms]

    false = (
        ways(day % 28 + 1, month, year)
        + ways(day, (month + rng.randint(1, 11)) % 12, year)
        + ways(day, month, year + rng.choice([-1, 1, 10]))
    )
    true = ways(day, month, year)
    if rng.random() < 0.4:
        true += [f"{thing} {did} in {MONTHS[month]} {year}", f"{thing} {did} in {year}"]
        false += [f"{thing} {did} in {MONTHS[(month + 1) % 12]} {year}", f"{thing} {did} in {year + 1}"]
    return rng.choice(ways(day, month, year)), true, false


def _codes(rng: random.Random) -> Form:
    what, form = rng.choice([("telephone number of {}", "555-{:04}"), ("room of {}", "{:03}"), ("code for {}", "{:04}"), ("post code of {}", "{:05}"),
                             ("version of {}", "{}.{}"), ("score of {}", "{}-{}")])  # fmt: skip
    who = draw_things(1, rng)[0] if rng.random() < 0.5 else draw_people(1, rng)[0]
    count = form.count("{")
    numbers = [rng.randint(1, 9) if count == 2 else rng.randint(100, 999) for _ in range(count)]
    wrong = [*numbers]
    wrong[rng.randrange(count)] += rng.choice([1, -1, 2, 10])
    said = rng.choice(["the {} is {}", "{1} is the {0}", "the {} was given as {}"])
    own, other = (said.format(what.format(who), form.format(*it)) for it in (numbers, wrong))
    return (
        own,
        [own, f"the {what.format(who)} is {form.format(*numbers)}"],
        [other, f"the {what.format(who)} is {form.format(*wrong)}"],
    )


def _traded(rng: random.Random) -> Form:
    good, (first, second) = rng.choice(GOODS), draw_things(2, rng)
    tons = rng.randint(2, 900)
    evidence = f"{first} sold {tons} tonnes of {good} to {second}"
    true = [
        evidence,
        f"{second} bought {tons} tonnes of {good} from {first}",
        f"{in_words(tons)} tonnes of {good} went from {first} to {second}",
    ]
    false = [f"{second} sold {tons} tonnes of {good} to {first}", f"{first} bought {tons} tonnes of {good} from {second}", f"{first} sold {_other(tons, rng)} tonnes of {good} to {second}",
             f"{first} gave {second} {rng.choice(OBJECTS)}s for {good}"]  # fmt: skip
    return rng.choice(true[:2]), true, false[:3]


FAMILIES: dict[Callable[[random.Random], Form], float] = {
    _written: 2.0, _millions: 1.5, _units: 2.0, _signs: 1.0, _shares: 1.0, _decades: 1.5, _bounds: 2.0, _ranks: 1.0, _one_of: 1.0,
    _mutual: 1.5, _deeds: 1.0, _dates: 1.0, _codes: 1.0, _traded: 0.7,
}  # fmt: skip
"""How often each is drawn."""

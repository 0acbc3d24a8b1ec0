"""The same amount, year or rank in two notations, and amounts that only look the same: words and digits, signs, units, decades.

As in `_small_forms.py`, of every evidence some claims are true and as many false.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from _small_facts import GOODS, GROUPS, MONTHS, NUMBERS, THINGS, TOWNS, draw_firms, draw_people
from _small_forms import TEAMS, Form, draw_named, draw_things, rows

from hf_factuality.verifiers.judges.lexical.text import ORDINALS


SOURCE = "notations"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
# What is measured, and its units: those that may be taken for each other, and other ways to write the unit.
UNITS = rows(
    "is {} high|metres=m=meters|feet=ft; is {} long|kilometres=km|miles=mi; weighs {}|kilograms=kg=kilos|grams=g|pounds=lb|tonnes=t; "
    "costs {}|euros=EUR|US dollars=USD|pounds sterling=GBP|yen=JPY; took {}|seconds=s|minutes=min|hours=h; "
    "holds {}|litres=l=liters|millilitres=ml; has a capacity of {}|megabytes=MB|gigabytes=GB|kilobytes=KB; "
    "was heated to {}|degrees Celsius=°C|degrees Fahrenheit=°F; delivers {}|watts=W|kilowatts=kW|volts=V; "
    "covers {}|hectares=ha|square kilometres=km²|acres; paid {}|euros=EUR|US dollars=USD|roubles=RUB"
)
# Verbs that hold both ways: events, what two people are at any time, and matches.
MET = "met|married|divorced|collided with|danced with|quarrelled with|shared a room with|shook hands with".split("|")
ARE_ALIKE = "is a cousin of|is a sibling of|is a neighbour of|is the same age as|differs from|lives next door to|corresponds with".split(
    "|"
)
PLAYED = "met|played against|drew with|shared the points with".split("|")
# Verbs that do not.
ONE_WAY = "taught|sued|hired|admired|followed|paid|invited|adopted|painted|betrayed|rescued|succeeded|employed|photographed|warned".split(
    "|"
)
BEAT = "beat|defeated|lost to|knocked out|overtook".split("|")
FOREMOST = "woman in the parliament|winner of the prize|doctor in the valley|foreigner in the team|student of the school|translator of the poem|climber of the peak".split(
    "|"
)
POSTS = "president mayor bishop director governor chairman king abbot rector captain".split()
MINUS = ("-{} degrees", "minus {} degrees", "{} degrees below zero")
PLUS = ("{} degrees", "{} degrees above zero", "plus {} degrees")
INTENDED = "plans to {}|intends to {}|is considering whether to {}|has promised to {}|was asked to {}|hopes to {}|is about to {}".split(
    "|"
)
LEFT_UNDONE = "refused to {}|failed to {}|decided not to {}|was unable to {}".split("|")
ACHIEVED = (
    "managed to {}|was able to {} and did so|went on to {} that year|did not fail to {}|did not hesitate to {}".split(
        "|"
    )
)
PROJECTS = rows(
    "open a museum|opened a museum; close the school|closed the school; sell the ship|sold the ship; build a dam|built a dam; "
    "raise the tax|raised the tax; publish the report|published the report; buy the firm|bought the firm; cut wages|cut wages; "
    "leave the league|left the league; ban cars|banned cars; sign the treaty|signed the treaty; resign|resigned"
)


def in_words(number: int) -> str:
    """Up to 9,999."""
    if number < 20:
        return NUMBERS[number]
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
    if number < len(ORDINALS):
        return ORDINALS[number]
    ten, one = divmod(number, 10)
    return f"{TENS[ten - 2]}-{ORDINALS[one]}" if one else f"{TENS[ten - 2].removesuffix('y')}ieth"


def ordinal(number: int) -> str:
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _other(number: int, rng: random.Random) -> int:
    """A different number that may be confused with this one."""
    reversed_digits = int(str(number)[::-1])
    tries = [
        number - 1,
        number + 1,
        number - 10,
        number + 10,
        number // 10,
        number * 10,
        reversed_digits,
        number + rng.randint(2, 9),
    ]
    return rng.choice([it for it in tries if it > 1 and it != number])


def _written(rng: random.Random) -> Form:
    """Digits and words."""
    (who,), what = draw_things(1, rng), rng.choice(GROUPS)
    number = rng.randint(2, rng.choice([12, 30, 99, 999, 9999]))
    said = rng.choice(
        ["{} has {} {}", "there are {1} {2} in {0}", "{} counted {} {}", "the number of {2} in {0} is {1}"]
    )

    def ways(value: int) -> list[str]:
        written = dict.fromkeys([str(value), f"{value:,}", *([in_words(value)] if value < 10_000 else [])])
        return [said.format(who, way, what) for way in written]

    return rng.choice(ways(number)), ways(number), ways(_other(number, rng))


def _millions(rng: random.Random) -> Form:
    name = draw_firms(1, rng)[0]
    what = rng.choice(
        "sold {} bottles|has {} customers|lost {} dollars|employs {} people|printed {} copies".split("|")
    )
    tenths, size = rng.randint(11, 99), rng.choice(["million", "billion", "thousand"])
    zeros = {"thousand": 3, "million": 6, "billion": 9}

    def ways(value: int, unit: str) -> list[str]:
        written = [f"{value / 10:g} {unit}", f"{value * 10 ** (zeros[unit] - 1):,}"]
        if value % 10 == 0:
            written.append(f"{in_words(value // 10)} {unit}")
        return [f"{name} {what.format(way)}" for way in written]

    wrong = rng.choice([it for it in zeros if it != size])
    false = ways(tenths, wrong) + ways(_other(tenths, rng), size)
    return rng.choice(ways(tenths, size)), ways(tenths, size), false


def _units(rng: random.Random) -> Form:
    said, *units = rng.choice(UNITS)
    of_firms = said.startswith(("paid", "took"))
    who = draw_firms(1, rng)[0] if of_firms else f"the {rng.choice(THINGS)} in {rng.choice(TOWNS)}"
    own, *others = rng.sample(units, len(units))
    number = rng.randint(2, 950)
    size = rng.choice(["", "", " million"]) if said.startswith("paid") else ""

    def ways(value: int, unit: str) -> list[str]:
        return [f"{who} {said.format(f'{value:,}{size} {it}')}" for it in unit.split("=")]

    false = [it for unit in others for it in ways(number, unit)] + ways(_other(number, rng), own)
    return rng.choice(ways(number, own)), ways(number, own), false


def _signs(rng: random.Random) -> Form:
    number = rng.randint(2, 40)
    place = rng.choice(["the lake", "the sample", "the room", f"the air in {rng.choice(TOWNS)}", "the storeroom"])
    said = rng.choice(["{} had a temperature of {}", "the thermometer in {} showed {}", "the reading for {} was {}"])

    def ways(forms: tuple[str, ...], value: int) -> list[str]:
        return [said.format(place, form.format(value)) for form in forms]

    own, wrong = (MINUS, PLUS) if rng.random() < 0.5 else (PLUS, MINUS)
    return rng.choice(ways(own, number)), ways(own, number), ways(wrong, number) + ways(own, _other(number, rng))


def _percents(rng: random.Random) -> Form:
    number, what = rng.randint(2, 95), rng.choice(GROUPS)
    did = rng.choice(["agreed", "left", "were counted", "came back", "took part", "fell ill"])

    def shares(value: int) -> list[str]:
        return [f"{value}{sign} of the {what} {did}" for sign in ("%", " percent", " per cent")]

    def counts(value: int) -> list[str]:
        return [f"{value} {what} {did}", f"{value} of the {what} {did}", f"{in_words(value)} {what} {did}"]

    own, wrong = (shares, counts) if rng.random() < 0.5 else (counts, shares)
    false = wrong(number) + own(rng.choice([it for it in (number - 1, number + 1, number + 3) if it > 1]))
    return rng.choice(own(number)), own(number), false


def _decades(rng: random.Random) -> Form:
    town = rng.choice(TOWNS)
    event = rng.choice(
        "the bridge in {} was built|the station in {} was closed|the first train came to {}|the mill in {} burnt down".split(
            "|"
        )
    ).format(town)
    said = rng.choice(["{} {}", "it was {1} that {0}"])
    century, ten, one = rng.randint(16, 20), rng.randint(2, 8), rng.randint(1, 9)
    decade = 100 * (century - 1) + 10 * ten  # neither it nor its neighbours are "the 1900s"
    year = decade + one
    true = [f"in the {decade}s", f"in the {ordinal(century)} century"]
    false = [
        f"in {decade}",
        f"in the {decade + rng.choice([-10, 10])}s",
        f"in the {ordinal(century + rng.choice([-1, 1]))} century",
    ]
    if rng.random() < 0.5:  # a year is in its decade; a decade gives no year
        when = f"in {year}"
        true.append(when)
        false.append(f"in {year + rng.choice([10, -10, 100])}")
    else:
        when = f"in the {decade}s"
        false.append(f"in {year}")
    return said.format(event, when), [said.format(event, it) for it in true], [said.format(event, it) for it in false]


def _ranks(rng: random.Random) -> Form:
    name, post = draw_people(1, rng)[0], rng.choice(POSTS)
    number = rng.randint(1, 60)

    def ways(value: int) -> list[str]:
        return [f"{name} was the {way} {post}" for way in (ordinal(value), ordinal_in_words(value))]

    false = [it for other in rng.sample([number + 1, number + 10, number + 20], 2) for it in ways(other)]
    return rng.choice(ways(number)), ways(number), false[:2]


def _one_of(rng: random.Random) -> Form:
    (name,), what = draw_people(1, rng), rng.choice(FOREMOST)
    rank = rng.choice(["first", "last", "second", "youngest", "best known", "oldest"])
    only = [f"{name} was the {rank} {what}", f"the {rank} {what} was {name}"]
    if rank in ("second", "last") or rng.random() < 0.4:
        false = [f"{name} was not the {rank} {what}"]
        if rank in ("first", "second"):
            false.append(f"{name} was the third {what}")
        return rng.choice(only), only, false
    noun, rest = what.split(maxsplit=1)
    several = f"{'women' if noun == 'woman' else noun + 's'} {rest}"
    among = [f"{name} was one of the {rank} {several}", f"{name} was among the {rank} {several}"]
    return rng.choice(among), among, only


def _mutual(rng: random.Random) -> Form:
    kind = rng.choice(["people", "people", "alike", "teams"])
    first, second, third = rng.sample(TEAMS, 3) if kind == "teams" else draw_named(3, rng)
    when = "" if kind == "alike" else rng.choice(["", f" in {rng.randint(1950, 2020)}", f" in {rng.choice(TOWNS)}"])
    mutual, one_way = {"people": (MET, ONE_WAY), "alike": (ARE_ALIKE, ONE_WAY), "teams": (PLAYED, BEAT)}[kind]
    holds_both_ways = rng.random() < 0.6
    verb = rng.choice(mutual if holds_both_ways else one_way)

    def says(one: str, other: str) -> str:
        return f"{one} {verb} {other}{when}"

    if holds_both_ways:
        true = [says(first, second), says(second, first)]
        return rng.choice(true), true, [says(first, third), says(third, second)]
    return says(first, second), [says(first, second)], [says(second, first), says(first, third)]


def _projects(rng: random.Random) -> Form:
    who = draw_people(1, rng)[0] if rng.random() < 0.5 else draw_firms(1, rng)[0]
    deed, done = rng.choice(PROJECTS)
    kind = rng.random()
    happened, not_so = (
        [f"{who} {done}", f"it happened that {who} {done}"],
        [f"{who} did not {deed}", f"{who} never {done}"],
    )
    if kind < 0.4:
        return f"{who} {rng.choice(ACHIEVED).format(deed)}", happened, [*not_so, f"{who} failed to {deed}"]
    if kind < 0.7:
        return f"{who} {rng.choice(LEFT_UNDONE).format(deed)}", [not_so[0]], happened
    plan = f"{who} {rng.choice(INTENDED).format(deed)}"
    return plan, [plan], [happened[0]]


def _dates(rng: random.Random) -> Form:
    thing = f"the {rng.choice(THINGS)} in {rng.choice(TOWNS)}"
    day, month, year = rng.randint(1, 28), rng.randrange(12), rng.randint(1700, 2024)
    did = rng.choice(["opened", "was closed", "was damaged", "was sold"])

    def ways(a: int, b: int, c: int) -> list[str]:
        name = MONTHS[b]
        forms = [f"{a} {name} {c}", f"{name} {a}, {c}", f"the {ordinal(a)} of {name} {c}", f"{name[:3]} {a}, {c}"]
        return [f"{thing} {did} on {form}" for form in [*forms, f"{c}-{b + 1:02}-{a:02}"]]

    true, later = ways(day, month, year), (month + rng.randint(1, 11)) % 12
    false = ways(day % 28 + 1, month, year) + ways(day, later, year) + ways(day, month, year + rng.choice([-1, 1, 10]))
    if rng.random() < 0.4:
        true += [f"{thing} {did} in {MONTHS[month]} {year}", f"{thing} {did} in {year}"]
        false += [f"{thing} {did} in {MONTHS[later]} {year}", f"{thing} {did} in {year + 1}"]
    return rng.choice(ways(day, month, year)), true, false


def _codes(rng: random.Random) -> Form:
    what, form = rng.choice(
        [("telephone number of {}", "555-{:04}"), ("room of {}", "{:03}"), ("code for {}", "{:04}"), ("post code of {}", "{:05}"),
         ("version of {}", "{}.{}"), ("score of {}", "{}-{}")]
    )  # fmt: skip
    what = what.format(draw_things(1, rng)[0] if rng.random() < 0.5 else draw_people(1, rng)[0])
    count = form.count("{")
    numbers = [rng.randint(1, 9) if count == 2 else rng.randint(100, 999) for _ in range(count)]
    wrong = [*numbers]
    wrong[rng.randrange(count)] += rng.choice([1, -1, 2, 10])

    def ways(values: list[int]) -> list[str]:
        return [
            said.format(what, form.format(*values))
            for said in ("the {} is {}", "{1} is the {0}", "the {} was given as {}")
        ]

    return rng.choice(ways(numbers)), ways(numbers), ways(wrong)


def _traded(rng: random.Random) -> Form:
    good, (first, second), tonnes = rng.choice(GOODS), draw_things(2, rng), rng.randint(2, 900)

    def ways(amount: str, seller: str, buyer: str) -> list[str]:
        return [
            f"{seller} sold {amount} tonnes of {good} to {buyer}",
            f"{buyer} bought {amount} tonnes of {good} from {seller}",
        ]

    true = ways(str(tonnes), first, second) + ways(in_words(tonnes), first, second)
    false = ways(str(tonnes), second, first) + ways(str(_other(tonnes, rng)), first, second)
    return rng.choice(true[:2]), true, false


FAMILIES: dict[Callable[[random.Random], Form], float] = {
    _written: 2.0, _millions: 1.5, _units: 2.0, _signs: 1.0, _percents: 1.0, _decades: 1.5, _ranks: 1.0, _one_of: 1.0,
    _mutual: 1.5, _projects: 1.0, _dates: 1.0, _codes: 1.0, _traded: 0.7,
}  # fmt: skip
"""How often each is drawn."""

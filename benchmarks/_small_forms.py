"""Short facts about two or three, and claims that need their order: which is more, what came first, how many, who did it to whom.

The forms are few and the words many, so that a network learns the order and not the words. Of every evidence some claims are true and
as many false, mostly by an exchange of two names.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations

from _small_facts import (
    COUNTRIES,
    DONE,
    FALSE,
    FIRST,
    GROUPS,
    JOBS,
    MONTHS,
    NUMBERS,
    SUPPORTED,
    THINGS,
    TOWNS,
    Pair,
    draw_firms,
    draw_people,
)


SOURCE = "forms"
# Evidence, claims that follow from it, claims that do not; without full stops.
Form = tuple[str, list[str], list[str]]


def rows(table: str) -> list[list[str]]:
    """The cells of a table: lines or "; " between its rows, "|" between cells."""
    return [row.strip().split("|") for line in table.strip().splitlines() for row in line.split("; ")]


# What A did to B, the participle, and what B did: "A beat B", "B was beaten by A", "B lost to A".
DEEDS = rows("""
beat|beaten|lost to; defeated|defeated|lost against; taught|taught|learnt from; hired|hired|got a job from
followed|followed|walked ahead of; paid|paid|got money from; sued|sued|was taken to court by; helped|helped|got help from
visited|visited|received a visit from; rescued|rescued|was saved by; succeeded|succeeded|came before; treated|treated|was a patient of
trained|trained|took lessons from; fed|fed|got food from; invited|invited|got an invitation from; overtook|overtaken|fell behind
outlived|outlived|died before; criticised|criticised|drew criticism from; praised|praised|earned praise from
accused|accused|faced charges from; arrested|arrested|was taken into custody by; attacked|attacked|came under attack by
nominated|nominated|owed the nomination to; replaced|replaced|gave way to; supervised|supervised|reported to
interviewed|interviewed|answered questions from; raised|raised|grew up with; inspired|inspired|drew inspiration from
warned|warned|received a warning from; thanked|thanked|got thanks from; forgave|forgiven|was pardoned by
guided|guided|was shown the way by; photographed|photographed|had a picture taken by; painted|painted|sat for a portrait by
advised|advised|took advice from; funded|funded|got funds from; betrayed|betrayed|was let down by; blamed|blamed|got the blame from
chose|chosen|was picked by; dismissed|dismissed|lost a job with; cured|cured|recovered thanks to
protected|protected|enjoyed the protection of; deceived|deceived|was fooled by; welcomed|welcomed|had a warm welcome from
recommended|recommended|had a recommendation from; sponsored|sponsored|had the support of; convinced|convinced|was won over by
admired|admired|had an admirer in; feared|feared|frightened; liked|liked|pleased; outbid|outbid|offered less than
outran|outrun|was slower than; caught up with|caught up with|was reached by; represented|represented|had a lawyer in
buried|buried|was laid to rest by; coached|coached|had a coach in
""")
# "A sold the car to B", "B bought the car from A".
GIFTS = rows("""
sold|bought|from; gave|got|from; lent|borrowed|from; sent|received|from; rented|had the use of|from; handed|took|from
returned|got back|from; passed|received|from; left|inherited|from; delivered|took delivery of|from; showed|was shown|by; owed|was owed|by
""")
# The adjective, more and less of it, how it is said of one, and the least and most that is said.
MEASURES = rows("""
tall|taller|shorter|is {} metres tall|12-320; long|longer|shorter|is {} kilometres long|3-900; old|older|younger|is {} years old|12-96
heavy|heavier|lighter|weighs {} kilograms|4-950; expensive|more expensive|cheaper|costs {} euros|5-900
wide|wider|narrower|is {} metres wide|3-240; deep|deeper|shallower|is {} metres deep|3-900
fast|faster|slower|does {} kilometres an hour|20-330; large|larger|smaller|measures {} square kilometres|20-9000
high|higher|lower|is {} metres high|20-3900; thick|thicker|thinner|is {} millimetres thick|2-90
warm|warmer|cooler|measures {} degrees|3-39; loud|louder|quieter|measures {} decibels|20-120
distant|farther away|nearer|is {} kilometres away|2-900; populous|more populous|less populous|has {} inhabitants|300-90000
wealthy|richer|poorer|is worth {} million|2-900; popular|more popular|less popular|has {} visitors a day|20-9000
powerful|more powerful|weaker|has {} kilowatts|10-900; bright|brighter|dimmer|has {} lumens|100-3000
experienced|more experienced|less experienced|has {} years of service|1-40; crowded|more crowded|less crowded|has {} people to a room|2-60
profitable|more profitable|less profitable|has a profit of {} million|2-900; dry|drier|wetter|has {} dry days a year|20-300
""")
OPPOSITES = "taller shorter older younger heavier lighter richer poorer faster slower stronger weaker louder quieter busier calmer larger smaller warmer colder".split()
COUNTED = "schools bridges parks libraries hotels theatres churches markets museums shops lakes factories workers members goals points medals patents trees seats rooms pages votes ships buses machines".split()
OWNED = "apples pears plums cherries eggs onions lemons candles nails hammers spoons cups hats ropes brushes bricks pens maps stamps coins shells ribbons".split()
OBJECTS = "car house boat painting farm piano horse violin ring watch lorry shop bicycle camera map letter book parcel key coat tent tractor lamp clock rug desk".split()
OCCASIONS = "flood|fire|strike|wedding|election|trial|war|fair|merger|eclipse|concert|earthquake|harvest|parade|opening of the bridge|closing of the mine|visit of the king|first match|treaty|storm|launch|auction|revolt|funeral|census".split(
    "|"
)
TEAMS = "Ajax Benfica Celtic Rangers Leeds Torino Lazio Malaga Sevilla Nantes Lille Bremen Dynamo Sparta Rapid Basel Everton Porto Genoa Bologna Parma Espanyol Getafe Lens Metz Hearts Viking Brann Odense".split()
TOOK_PART = "came to the meeting|won a prize|took part|joined in|were visited|were chosen|voted against it|left early|signed the letter".split(
    "|"
)
SAID = "the bridge was unsafe|prices would fall|the plan had failed|the vote was close|rain was on its way|the data were wrong|the road was closed|the team needed rest|taxes should rise|the school must stay open".split(
    "|"
)
PLACES = "in the garden|at the harbour|in the library|on the roof|at the market|at the station|in the cellar|on the bridge".split(
    "|"
)
# What is done, and what is not, of several.
SPLIT = rows(
    "agreed|disagreed; voted for the plan|voted against the plan; passed|failed; came back|did not come back; stayed|left; liked it|did not like it"
)
TERMS = rows(
    "led the firm|leadership; lived abroad|time abroad; ran the school|time at the school; was married|marriage; was in office|time in office; served as chair|time as chair"
)
AMOUNTS = "sales|profits|prices|wages|rents|output|debts|exports|costs|membership|the number of pupils|the crime rate|the temperature".split(
    "|"
)
SHOWS = "film lesson concert flight meeting match ferry shift lecture tour exam call".split()
ORDINALS = "first second third fourth fifth".split()
HALF_HOURS = dict(
    enumerate(
        "half an hour|an hour|an hour and a half|two hours|two and a half hours|three hours|three and a half hours|four hours|four and a half hours".split(
            "|"
        ),
        1,
    )
)
MORE, LESS = ("more than", "over", "at least", "no fewer than"), ("fewer than", "under", "at most", "no more than")
NOTHING_MORE = "more is not known|the rest is not told|it was a long day|many were surprised".split("|")


def form_pairs(
    families: Mapping[Callable[[random.Random], Form], float], count: int, seed: int, source: str = SOURCE
) -> list[Pair]:
    """About so many pairs, six claims about each evidence; the false ones are `FALSE`, in one of the two ways."""
    rng, pairs = random.Random(seed), []
    while len(pairs) < count:
        evidence, true, false = rng.choices([*families], [*families.values()])[0](rng)
        evidence = _sentence(evidence)
        if rng.random() < 0.15:
            evidence += f" {_sentence(rng.choice(NOTHING_MORE))}"
        true, false = [*dict.fromkeys(true)], [*dict.fromkeys(false)]
        for claims, label in ((true, SUPPORTED), (false, FALSE)):
            pairs += [(evidence, _sentence(claim), label, source) for claim in rng.sample(claims, min(3, len(claims)))]
    return pairs


def _sentence(text: str) -> str:
    return f"{'. '.join(part[0].upper() + part[1:] for part in text.split('. '))}."


def draw_named(count: int, rng: random.Random) -> list[str]:
    kind = rng.random()
    if kind < 0.45:
        return rng.sample(FIRST, count)
    return draw_people(count, rng) if kind < 0.75 else [f"the {job}" for job in rng.sample(JOBS, count)]


def draw_things(count: int, rng: random.Random) -> list[str]:
    kind = rng.random()
    if kind < 0.6:
        return rng.sample(TOWNS if kind < 0.4 else COUNTRIES, count)
    return [f"the {thing}" for thing in rng.sample(THINGS, count)] if kind < 0.8 else draw_firms(count, rng)


def _any(count: int, rng: random.Random) -> list[str]:
    return (draw_named if rng.random() < 0.5 else draw_things)(count, rng)


def _digits(number: int, rng: random.Random) -> str:
    return f"{number:,}" if number > 999 and rng.random() < 0.7 else str(number)


def in_order(ordered: Sequence[str], says: Callable[[str, str], list[str]]) -> tuple[list[str], list[str]]:
    """What is said of each two in their order, which is true, and of each two the other way round."""
    pairs = [*combinations(ordered, 2)]
    return [it for one, other in pairs for it in says(one, other)], [
        it for one, other in pairs for it in says(other, one)
    ]


def in_a_word(number: int) -> str:
    return NUMBERS[number] if number <= 12 else str(number)


def _deed(rng: random.Random) -> Form:
    first, second, third = draw_named(3, rng) if rng.random() < 0.7 else rng.sample(TEAMS, 3)
    did, participle, converse = rng.choice(DEEDS)

    def says(who: str, whom: str) -> list[str]:
        return [
            f"{who} {did} {whom}", f"{whom} was {participle} by {who}", f"{whom} {converse} {who}", f"it was {who} who {did} {whom}",
            f"it was {whom} who was {participle} by {who}",
        ]  # fmt: skip

    one, two = rng.choice(says(first, second)), rng.choice(says(second, third))
    if rng.random() < 0.5:
        return one, says(first, second), says(second, first)
    false = says(second, first) + says(third, second) + says(third, first)[:2]
    return rng.choice([f"{one}, and {two}", f"{one}. {two}"]), says(first, second) + says(second, third), false


def _gift(rng: random.Random) -> Form:
    first, second, third = draw_named(3, rng)
    gave, took, origin = rng.choice(GIFTS)
    thing, other = (f"the {name}" for name in rng.sample(OBJECTS, 2))

    def says(giver: str, taker: str, what: str) -> list[str]:
        ways = [f"{giver} {gave} {what} to {taker}", f"{taker} {took} {what} {origin} {giver}"]
        return [
            *ways,
            f"it was {giver} who {gave} {what} to {taker}",
            f"it was {taker} who {took} {what} {origin} {giver}",
        ]

    true, false = says(first, second, thing), says(second, first, thing)
    if rng.random() < 0.5:
        return rng.choice(true), true, false
    evidence = f"{rng.choice(true)}, and {rng.choice(says(second, third, other))}"
    false += says(third, second, other) + says(first, second, other)[:2] + says(second, third, thing)[:2]
    return evidence, true + says(second, third, other), false


def _measured(rng: random.Random) -> Form:
    names = _any(rng.choice([2, 2, 3]), rng)
    base, more, less, said, limits = rng.choice(MEASURES)
    least, most = map(int, limits.split("-"))
    numbers = rng.sample(range(least, most), len(names))
    facts = [f"{name} {said.format(_digits(number, rng))}" for name, number in zip(names, numbers, strict=True)]

    def says(high: str, low: str) -> list[str]:
        return [
            f"{high} is {more} than {low}", f"{low} is {less} than {high}", f"{low} is not as {base} as {high}",
            f"of {high} and {low}, {high} is the {more} one",
        ]  # fmt: skip

    ranked = [name for _, name in sorted(zip(numbers, names, strict=True), reverse=True)]
    return rng.choice([", ", ". "]).join(facts), *in_order(ranked, says)


def _counted(rng: random.Random) -> Form:
    names, what = draw_things(rng.choice([2, 2, 3]), rng), rng.choice(COUNTED)
    numbers = rng.sample(range(2, rng.choice([20, 60, 100, 900, 9000])), len(names))
    said = [_digits(number, rng) for number in numbers]
    rest = [*zip(names[1:], said[1:], strict=True)]
    evidence = rng.choice(
        [
            f"{names[0]} has {said[0]} {what}, " + " and ".join(f"{name} {number}" for name, number in rest),
            f"there are {said[0]} {what} in {names[0]} and " + " and ".join(f"{number} in {name}" for name, number in rest),
            ". ".join(f"{name} has {number} {what}" for name, number in zip(names, said, strict=True)),
        ]
    )  # fmt: skip

    def says(high: str, low: str) -> list[str]:
        return [
            f"{high} has more {what} than {low}", f"{low} has fewer {what} than {high}",
            f"there are more {what} in {high} than in {low}", f"{low} does not have as many {what} as {high}",
        ]  # fmt: skip

    ranked = [name for _, name in sorted(zip(numbers, names, strict=True), reverse=True)]
    true, false = in_order(ranked, says)
    if len(names) == 3:
        true += [f"{ranked[0]} has the most {what}", f"{ranked[2]} has the fewest {what}"]
        false += [f"{ranked[1]} has the most {what}", f"{ranked[1]} has the fewest {what}"]
    return evidence, true, false


def _compared(rng: random.Random) -> Form:
    first, second, third = _any(3, rng)
    place = rng.randrange(len(OPPOSITES))
    more, less = OPPOSITES[place], OPPOSITES[place ^ 1]

    def says(high: str, low: str) -> list[str]:
        return [f"{high} is {more} than {low}", f"{low} is {less} than {high}"]

    if rng.random() < 0.35:
        true = says(first, second) + [f"{first} is the {more} of the two", f"{second} is the {less} one"]
        false = says(second, first) + [f"{second} is the {more} of the two", f"{first} is the {less} one"]
        return rng.choice(says(first, second)), true, false
    one, two = rng.choice(says(first, second)), rng.choice(says(second, third))
    evidence = rng.choice(
        [f"{one}, and {two}", f"{two}. {one}", f"{second} is {more} than {third} but {less} than {first}"]
    )
    true, false = in_order((first, second, third), says)
    return (
        evidence,
        [*true, f"nothing here is {more} than {first}"],
        [*false, f"nothing here is {more} than {rng.choice([second, third])}"],
    )


def _before(first: str, second: str) -> list[str]:
    return [
        f"{first} came before {second}", f"{second} came after {first}", f"{first} was earlier than {second}",
        f"{second} was later than {first}", f"when {second} came, {first} was over", f"{first} preceded {second}",
        f"{second} had not yet come at the time of {first}", f"{second} followed {first}",
    ]  # fmt: skip


def _times(count: int, rng: random.Random) -> tuple[str, list[str]]:
    """A preposition, and so many times one after the other."""
    kind = rng.random()
    if kind < 0.35:
        return "in", [str(year) for year in sorted(rng.sample(range(1800, 2020), count))]
    if kind < 0.55:
        return "in", [MONTHS[month] for month in sorted(rng.sample(range(12), count))]
    if kind < 0.75:
        days = sorted(rng.sample(range(12 * 28), count))
        return "on", [f"{day % 28 + 1} {MONTHS[day // 28]}" for day in days]
    return "at", [_clock(time, kind < 0.9) for time in sorted(rng.sample(range(14, 46), count))]


def _clock(half_hours: int, by_24: bool) -> str:
    hour, half = divmod(half_hours, 2)
    if by_24:
        return f"{hour}:{'30' if half else '00'}"
    return f"{(hour - 1) % 12 + 1}{':30' if half else ''} {'am' if hour < 12 else 'pm'}"


def _in_time(rng: random.Random) -> Form:
    count = rng.choice([2, 2, 3])
    events = [f"the {name}" for name in rng.sample(OCCASIONS, count)]
    preposition, times = _times(count, rng)
    if rng.random() < 0.75:
        dated = [
            rng.choice([f"{event} was {preposition} {time}", f"{event} took place {preposition} {time}", f"{preposition} {time} came {event}"])
            for event, time in zip(events, times, strict=True)
        ]  # fmt: skip
        rng.shuffle(dated)
        evidence = rng.choice([", ", ". ", "; "]).join(dated)
    elif count == 2:
        evidence = rng.choice(
            [*_before(*events), f"first came {events[0]}, then {events[1]}", f"after {events[0]} came {events[1]}"]
        )
    else:
        evidence = rng.choice(
            [f"first came {events[0]}, then {events[1]} and last {events[2]}", f"{events[2]} came after {events[1]}, which had followed {events[0]}"]
        )  # fmt: skip
    return evidence, *in_order(events, _before)


def _how_many(rng: random.Random) -> Form:
    number = rng.randint(2, 6)
    names, did = _any(number, rng), rng.choice(TOOK_PART)

    def says(count: int) -> list[str]:
        return [f"{in_a_word(count)} {did}", f"the number of those who {did} is {in_a_word(count)}", f"{count} {did}"]

    true, false = (
        says(number),
        [claim for wrong in {number - 1, number + 1, number + 2} - {1} for claim in says(wrong)],
    )
    if number > 2:
        true += [f"more than {in_a_word(number - 1)} {did}", f"fewer than {in_a_word(number + 1)} {did}"]
        false += [f"more than {in_a_word(number)} {did}", f"fewer than {in_a_word(number)} {did}"]
    return f"{', '.join(names[:-1])} and {names[-1]} {did}", true, false


def _bound(rng: random.Random) -> Form:
    names, kind = draw_named(rng.choice([2, 3]), rng), rng.random()
    if kind < 0.35:
        values, ways = PLACES, ("{} is {}", "{} can be found {}", "whoever looks for {} has to look {}")
    elif kind < 0.6:
        values, ways = TOWNS, ("{} lives in {}", "the home of {} is in {}", "{} has a home in {}")
    elif kind < 0.8:
        values, ways = OBJECTS, ("{} has a {}", "{} owns a {}", "{} is the owner of a {}")
    else:
        values, ways = SAID, ("{} said that {}", "according to {}, {}", "{} was of the opinion that {}")
    values = rng.sample(values, len(names))
    true = [way.format(name, value) for name, value in zip(names, values, strict=True) for way in ways]
    false = [way.format(name, value) for name in names for value in values for way in ways]
    facts = [ways[0].format(name, value) for name, value in zip(names, values, strict=True)]
    return rng.choice(["; ", ". "]).join(facts), true, [claim for claim in false if claim not in true]


def _only_one(rng: random.Random) -> Form:
    first, second, third = draw_named(3, rng)
    did, participle, _ = rng.choice(DEEDS)
    evidence = rng.choice(
        [f"{first} {did} {second}, but not {third}", f"only {second} was {participle} by {first}, {third} was not"]
    )

    def says(one: str, other: str) -> list[str]:
        ways = [
            f"{first} {did} {one}",
            f"{other} was not {participle} by {first}",
            f"{one} was {participle} by {first}",
        ]
        return [*ways, f"{first} left {other} out and {did} {one}"]

    return evidence, says(second, third), says(third, second)


def _limits(rng: random.Random) -> Form:
    (who,), what = _any(1, rng), rng.choice(COUNTED)
    number = rng.randint(8, rng.choice([30, 100, 900, 9000]))
    step = max(2, int(number * rng.choice([0.05, 0.1, 0.2, 0.4])))
    low, high = number - rng.randint(1, step), number + rng.randint(1, step)

    def says(how_many: str) -> str:
        ways = [
            f"{who} counted {how_many} {what}",
            f"{how_many} {what} were counted by {who}",
            f"{who} reported {how_many} {what}",
        ]
        return rng.choice(ways)

    def bounds(lower: int, upper: int) -> list[str]:
        above = [says(f"{word} {_digits(lower, rng)}") for word in rng.sample(MORE, 3)]
        return above + [says(f"{word} {_digits(upper, rng)}") for word in rng.sample(LESS, 3)]

    true = [*bounds(low, high), says(f"between {_digits(low, rng)} and {_digits(high, rng)}")]
    false = [*bounds(high, low), says(f"between {_digits(high, rng)} and {_digits(high + step, rng)}")]
    return says(_digits(number, rng)), true, false


def _terms(rng: random.Random) -> Form:
    (who,), start, years = draw_named(1, rng), rng.randint(1800, 1990), rng.randint(2, 40)
    did, term = rng.choice(TERMS)
    end, before, after = start + years, start - rng.randint(1, 15), start + years + rng.randint(1, 15)
    within, wrong = rng.randint(start + 1, end - 1), rng.choice([years - 1, years + 1, years * 2, years + 5])
    evidence = rng.choice(
        [f"{who} {did} from {start} to {end}", f"from {start} until {end} {who} {did}", f"{who} {did} ({start}-{end})"]
    )

    def says(year: int, first: int, last: int, over: int, not_yet: int, lasted: int) -> list[str]:
        return [
            f"{who} {did} in {year}", f"the {term} of {who} began in {first}", f"the {term} of {who} ended in {last}",
            f"the {term} of {who} was over by {over}", f"in {not_yet} the {term} of {who} had not begun",
            f"the {term} of {who} lasted {in_a_word(lasted)} years", f"{who} {did} for {in_a_word(lasted)} years",
        ]  # fmt: skip

    false = says(rng.choice([before, after]), end, start, within, within, wrong)
    return evidence, says(within, start, end, after, before, years), false


def _hours(rng: random.Random) -> Form:
    show, start, length = rng.choice(SHOWS), rng.randint(12, 38), rng.randint(1, 8)
    end, by_24 = start + length, rng.random() < 0.6
    wrong = rng.choice([other for other in range(1, 9) if other != length])

    def at(time: int) -> str:
        return _clock(time, by_24)

    def lasts(half_hours: int) -> str:
        return rng.choice([HALF_HOURS[half_hours], f"{half_hours * 30} minutes"])

    evidence = rng.choice(
        [
            f"the {show} is from {at(start)} to {at(end)}", f"the {show} begins at {at(start)} and ends at {at(end)}",
            f"the {show} begins at {at(start)} and lasts {lasts(length)}", f"starting at {at(start)}, the {show} goes on for {lasts(length)}",
        ]
    )  # fmt: skip
    true = [
        f"the {show} takes {lasts(length)}", f"the {show} starts at {at(start)}", f"the {show} is over at {at(end)}",
        f"at {at(start - 1)} the {show} has not begun", f"the {show} is shorter than {lasts(length + 1)}",
    ]  # fmt: skip
    false = [
        f"the {show} takes {lasts(wrong)}", f"the {show} starts at {at(end)}", f"the {show} is over at {at(start)}",
        f"at {at(end + 1)} the {show} has not begun", f"the {show} is shorter than {lasts(length)}",
    ]  # fmt: skip
    return evidence, true, false


def _shares(rng: random.Random) -> Form:
    group, (did, did_not) = rng.choice(GROUPS), rng.choice(SPLIT)
    whole = 100 if rng.random() < 0.5 else rng.randint(5, 40)
    part = rng.choice([number for number in range(1, whole) if abs(2 * number - whole) > 2])
    rest, most = whole - part, 2 * part > whole
    if whole == 100:
        evidence = rng.choice(
            [f"{part} percent of the {group} {did}", f"{part}% of the {group} {did} and {rest}% {did_not}"]
        )
        exact = [f"{part} percent of the {group} {did}", f"{rest} percent of the {group} {did_not}"]
        wrong = [f"{rest} percent of the {group} {did}", f"{part} percent of the {group} {did_not}"]
    else:
        evidence = rng.choice(
            [f"of {whole} {group} {in_a_word(part)} {did}", f"all but {in_a_word(rest)} of the {whole} {group} {did}"]
        )
        exact = [f"{in_a_word(part)} {group} {did}", f"{in_a_word(rest)} {group} did not"]
        wrong = [f"{in_a_word(rest)} {group} {did}", f"{in_a_word(part)} {group} did not"]
    true = [
        f"{'most' if most else 'a minority'} of the {group} {did}",
        f"not all {group} {did}",
        f"some of the {group} {did}",
    ]
    false = [
        f"{'a minority' if most else 'most'} of the {group} {did}",
        f"all {group} {did}",
        f"none of the {group} {did}",
    ]
    return evidence, true + exact, false + wrong


def _quantified(rng: random.Random) -> Form:
    group, (did, _, _) = rng.choice(GROUPS), rng.choice(DONE)
    claims = {
        "all": f"all {group} {did}", "none": f"none of the {group} {did}", "some": f"some of the {group} {did}",
        "most": f"most of the {group} {did}", "not all": f"not all {group} {did}",
    }  # fmt: skip
    evidence, follow, fail = rng.choice(
        [
            (f"every one of the {group} {did}", "all|some|most", "none|not all"),
            (f"the {group} {did} without exception", "all|some|most", "none|not all"),
            (f"not one of the {group} {did}", "none|not all", "all|some|most"),
            (f"some of the {group} {did}, others not", "some|not all", "all|none"),
            (f"most of the {group} {did}, but a few did not", "most|some|not all", "all|none"),
            (f"only a handful of the {group} {did}", "some|not all", "all|none|most"),
            (f"all but one of the {group} {did}", "most|some|not all", "all|none"),
        ]
    )

    def taken(names: str) -> list[str]:
        return [claims[name] for name in names.split("|")]

    return evidence, taken(follow), taken(fail)


def _ranked(rng: random.Random) -> Form:
    count = rng.randint(3, 5)
    names = draw_named(count, rng) if rng.random() < 0.6 else rng.sample(TEAMS, count)
    contest = rng.choice(["race", "contest", "league", "election", "tournament", "exam"])
    places = [f"{name} came {ordinal}" for name, ordinal in zip(names, ORDINALS, strict=False)]
    evidence = rng.choice(
        [
            f"the {contest} ended in this order: {', '.join(names)}",
            f"{names[0]} won the {contest} ahead of {', '.join(names[1:-1])} and {names[-1]}",
            f"in the {contest}, {', '.join(rng.sample(places, count))}",
        ]
    )

    def says(better: str, worse: str) -> list[str]:
        ways = [f"{better} came before {worse}", f"{worse} was behind {better}", f"{better} did better than {worse}"]
        return [f"{way} in the {contest}" for way in [*ways, f"{worse} did worse than {better}"]]

    true, false = [*places, f"{names[0]} won the {contest}"], [f"{rng.choice(names[1:])} won the {contest}"]
    false += [f"{name} came {ordinal}" for name, ordinal in zip(names[1:] + names[:1], ORDINALS, strict=False)]
    better, worse = in_order(names, says)
    return evidence, true + better, false + worse


def _changed(rng: random.Random) -> Form:
    (who,), what, before = draw_things(1, rng), rng.choice(AMOUNTS), rng.randint(10, 900)
    after = before + rng.choice([-1, 1]) * max(3, int(before * rng.choice([0.1, 0.2, 0.3, 0.5])))
    unit, year = rng.choice(["", "", " million", " thousand"]), rng.randint(1900, 2018)
    evidence = rng.choice(
        [
            f"in {who}, {what} went from {before}{unit} to {after}{unit}",
            f"in {year}, {what} in {who} stood at {before}{unit}, in {year + rng.randint(1, 6)} at {after}{unit}",
            f"in {who}, {what} reached {after}{unit} after {before}{unit} the time before",
        ]
    )
    up, down = ["rose", "grew", "increased", "went up"], ["fell", "shrank", "decreased", "went down"]
    ways, others = (up, down) if after > before else (down, up)
    change = abs(after - before)
    true = [f"{what} in {who} {way}" for way in ways] + [f"{what} in {who} {ways[0]} by {change}{unit}"]
    false = [f"{what} in {who} {way}" for way in others] + [
        f"{what} in {who} {ways[0]} by {change + rng.choice([1, 2, 5])}{unit}"
    ]
    return evidence, true, [*false, f"{what} in {who} stayed the same"]


def _summed(rng: random.Random) -> Form:
    first, second = _any(2, rng)
    what, one = rng.choice(OWNED), rng.randint(2, 30)
    if rng.random() < 0.35:
        times = rng.choice([2, 3])
        word, wrong = ("twice", "three times") if times == 2 else ("three times", "twice")
        true = [
            f"{second} has {word} as many {what} as {first}",
            f"{first} has {'half' if times == 2 else 'a third'} of what {second} has",
        ]
        false = [f"{first} has {word} as many {what} as {second}", f"{second} has {wrong} as many {what} as {first}"]
        return f"{first} has {one} {what} and {second} {one * times}", true, false
    other = one + rng.randint(2, 29)
    evidence = rng.choice(
        [f"{first} has {one} {what} and {second} {other}", f"{second} counted {other} {what}, {first} {one}"]
    )

    def says(total: int, more: int) -> list[str]:
        return [
            f"{first} and {second} have {total} {what} in all", f"together there are {total} {what}",
            f"{second} has {more} more {what} than {first}", f"{first} has {more} {what} less than {second}",
        ]  # fmt: skip

    total, more = one + other, other - one
    return (
        evidence,
        says(total, more),
        says(total + rng.choice([-10, -2, -1, 1, 2, 10]), more + rng.choice([-1, 1, 2, 3])),
    )


def _aged(rng: random.Random) -> Form:
    (first, second), (one, other) = draw_named(2, rng), rng.sample(range(1850, 1990), 2)
    if rng.random() < 0.4:
        age, did = rng.randint(16, 80), rng.choice(["married", "died", "retired", "won the prize", "left the country"])
        evidence = rng.choice(
            [f"{first} was born in {one} and {did} in {one + age}", f"{first}, born in {one}, {did} in {one + age}"]
        )
        wrong, less = age + rng.choice([-10, -2, -1, 1, 2, 10]), rng.randint(1, 4)
        true = [f"{first} {did} at the age of {age}", f"when {first} {did}, {first} was over {age - less}"]
        return (
            evidence,
            true,
            [f"{first} {did} at the age of {wrong}", f"when {first} {did}, {first} was over {age + less}"],
        )
    older, younger = (first, second) if one < other else (second, first)
    gap = abs(one - other)

    def says(old: str, young: str, years: int, year: int) -> list[str]:
        return [
            f"{old} is older than {young}", f"{young} is younger than {old}", f"{old} was born before {young}",
            f"{young} was born {years} years after {old}", f"{young} was not yet born in {year}",
        ]  # fmt: skip

    evidence = rng.choice(
        [
            f"{first} was born in {one}, {second} in {other}",
            f"the year of birth of {first} is {one} and that of {second} {other}",
        ]
    )
    return evidence, says(older, younger, gap, min(one, other)), says(younger, older, gap, max(one, other))


FAMILIES: dict[Callable[[random.Random], Form], float] = {
    _deed: 0.8, _gift: 0.4, _measured: 1.5, _counted: 1.5, _compared: 1.5, _in_time: 3.0, _how_many: 2.0, _bound: 0.3, _only_one: 0.4,
    _limits: 2.0, _terms: 2.0, _hours: 1.5, _shares: 1.5, _quantified: 1.5, _ranked: 1.5, _changed: 1.0, _summed: 1.5, _aged: 1.5,
}  # fmt: skip
"""How often each is drawn."""

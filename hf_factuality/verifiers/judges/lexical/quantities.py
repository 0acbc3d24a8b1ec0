"""Numbers of an English text with what they count: values, units, signs, bounds, percents, fractions, ranges, dates.

"at least twenty-five schools" is 25 or more of "school"; "1.5 km" is 1,500 metres; "the late 1980s" are the years 1985
to 1989; "two thirds of the wells" is a share of 2/3.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

from hf_factuality.verifiers.judges.lexical.lexicon import lexicon
from hf_factuality.verifiers.judges.lexical.text import MONTH_NAMES, MONTH_OF, ORDINALS, SCALES


AT_MOST, EXACT, AT_LEAST = -1, 0, 1
AGREES, UNKNOWN, CONFLICTS = 1, 0, -1


class Quantity(NamedTuple):
    """Values from `low` to `high` of `kind` ("length", "year", "count" ...), in the kind's own unit.

    `unit` names what is counted or measured ("school", "metre"), `at` and `end` are the positions of the words. With `near`, what
    the bound allows is not far from it: "just under 250".
    """

    low: float
    high: float
    kind: str
    unit: str
    bound: int
    about: bool
    at: int
    end: int
    near: bool = False


SECONDS_OF_A_YEAR = 31557600
_LONGEST = 30  # characters of a number
_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
).split()
_TENS = dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10), strict=True))
_WORDS = {word: value for value, word in enumerate(_ONES)} | _TENS | {"dozen": 12, "dozens": 24, "decade": 10}
_SCALES = SCALES | {"bn": 10**9}
_ORDINALS = {word: value for value, word in enumerate(ORDINALS) if value} | {
    word[:-1] + "ieth": value for word, value in _TENS.items()
}
_ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
_DECADE, _CLOCK = re.compile(r"\d{3}0s"), re.compile(r"(\d+):(\d\d)(?::(\d\d))?")
_HALF_DAY = 12 * 3600
_NOON = {"noon": _HALF_DAY, "midday": _HALF_DAY, "midnight": 0}
_HALF_DAYS = {"am": 0, "a.m": 0, "pm": _HALF_DAY, "p.m": _HALF_DAY}
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10,
          "hundredth": 100}  # fmt: skip
_PARTS_OR_PLURALS = frozenset((*_PARTS, "thirds", "quarters", "fifths", "tenths", "sixths"))
_NUMBERS = {month: number for number, month in enumerate(MONTH_NAMES, 1)}
MONTHS = {written: _NUMBERS[month] for written, month in MONTH_OF.items()}
_UNITS: dict[str, tuple[str, float]] = {}
for _kind, _text in {
    "length": "metre meter m 1 kilometre kilometer km kilometres 1000 centimetre centimeter cm .01 millimetre millimeter mm "
    ".001 mile mi 1609.34 foot feet ft .3048 inch .0254 yard .9144",
    "mass": "gram g 1 kilogram kg kilo 1000 tonne ton 1e6 milligram mg .001 pound lb 453.6 ounce oz 28.35",
    "time": "millisecond ms .001 second sec 1 minute min 60 hour hr hrs h 3600 day 86400 week 604800 fortnight 1209600 month 2629800 year yr 31557600 "
    "decade 315576000 century 3155760000",
    "temperature": "degree ° 1",
    "area": "hectare ha 1 acre .4047 m² sqm .0001 km² 100",
    "volume": "litre liter l 1 gallon 3.785 millilitre milliliter ml .001",
    "power": "watt w 1 kilowatt kw 1000 megawatt mw 1e6 gigawatt gw 1e9",
    "speed": "mph 1609.34 kph kmh 1000",
    "data": "byte 1 kilobyte kb 1e3 megabyte mb 1e6 gigabyte gb 1e9 terabyte tb 1e12",
    "frequency": "hertz hz 1 kilohertz khz 1e3 megahertz mhz 1e6 gigahertz ghz 1e9",
    "voltage": "volt 1 kilovolt kv 1000",
}.items():
    _names: list[str] = []
    for _part in _text.split():
        if re.fullmatch(r"[\d.e]+", _part) and _part != "e":
            _UNITS.update({name: (_kind, float(_part)) for name in _names})
            _names = []
        else:
            _names.append(_part)
_CURRENCY = {"$": "dollar", "€": "euro", "£": "pound", "¥": "yen", "usd": "dollar", "eur": "euro", "gbp": "pound"} | {
    word: word for word in "dollar euro yen franc rupee cent krona peso".split()
}
# "144 US dollars", "20 pounds sterling".
_NAMED_CURRENCY = {
    ("us", "dollar"): "dollar",
    ("u.s", "dollar"): "dollar",
    ("pounds", "sterling"): "pound",
    ("pound", "sterling"): "pound",
}
# "$5M", "€3bn": a letter is a scale behind a sign of money alone.
_MONEY_SCALES = {"k": 10**3, "m": 10**6, "mn": 10**6, "b": 10**9, "bn": 10**9, "tn": 10**12}
_BOUNDS = (
    (("no", "more", "than"), AT_MOST), (("no", "fewer", "than"), AT_LEAST), (("no", "less", "than"), AT_LEAST),
    (("not", "more", "than"), AT_MOST), (("as", "much", "as"), AT_MOST), (("as", "many", "as"), AT_MOST),
    (("up", "to"), AT_MOST), (("at", "most"), AT_MOST), (("at", "least"), AT_LEAST), (("more", "than"), AT_LEAST),
    (("fewer", "than"), AT_MOST), (("less", "than"), AT_MOST), (("longer", "than"), AT_LEAST), (("older", "than"), AT_LEAST),
    (("younger", "than"), AT_MOST), (("larger", "than"), AT_LEAST), (("smaller", "than"), AT_MOST), (("higher", "than"), AT_LEAST),
    (("lower", "than"), AT_MOST), (("greater", "than"), AT_LEAST), (("shorter", "than"), AT_MOST), (("over",), AT_LEAST),
    (("above",), AT_LEAST), (("under",), AT_MOST), (("below",), AT_MOST), (("maximum", "of"), AT_MOST),
    (("minimum", "of"), AT_LEAST), (("exceed",), AT_LEAST), (("exceeds",), AT_LEAST), (("exceeded",), AT_LEAST),
    (("almost",), AT_MOST), (("nearly",), AT_MOST), (("reach",), AT_MOST),
)  # fmt: skip
# By their last words: most words before a number end none of these.
_BOUNDS_BY_END: dict[str, list[tuple[tuple[str, ...], int]]] = {}
for _phrase, _bound in _BOUNDS:
    _BOUNDS_BY_END.setdefault(_phrase[-1], []).append((_phrase, _bound))
_NARROWLY = frozenset("just slightly barely marginally little bit".split())
_NEARLY = 0.15
"""How far from a number something may be that is just under or just over it, as a part of the number."""
_ABOUT = frozenset("about around roughly approximately some almost nearly circa estimated c ca".split())
_BETWEEN = frozenset(("to", "-", "–", "—", "and"))
_SKIPPED = frozenset(("of", "the", "a", "an", "or", "more", "us", "about", "its", "their", "all", "his", "her"))


def _value(words: Sequence[str], at: int) -> tuple[float, int] | None:
    """The number that begins at a word, and where it ends: "3.5 million", "two hundred and fifty", "twenty-five"."""
    word, end = words[at], at + 1
    if word[0].isdigit():
        try:
            total = float(word.replace(",", "")) if len(word) <= _LONGEST else math.inf
        except ValueError:
            return None
        if math.isinf(total):
            return None
        while end < len(words) and words[end] in _SCALES:
            total, end = total * _SCALES[words[end]], end + 1
        return total, end
    if word == "a" and words[end : end + 1] == ["dozen"]:
        return _WORDS["dozen"], end + 1
    if word == "a" and end < len(words) and words[end] in ("hundred", "thousand", "million", "billion"):
        word = "one"
    if word not in _WORDS or word == "decade":
        if word == "hundred" or word == "thousand":
            return _SCALES[word], end
        return None
    total, part = 0.0, float(_WORDS[word])
    while end < len(words):
        word = words[end]
        if word in _SCALES:
            if word == "hundred":
                part *= 100
            else:
                total, part = total + part * _SCALES[word], 0.0
        elif word in _WORDS and word not in ("decade", "zero") and (part % 100 == 0 or part % 10 == 0 and part % 100 >= 20 and _WORDS[word] < 10):  # fmt: skip
            part += _WORDS[word]
        elif word == "-" and end + 1 < len(words) and words[end + 1] in _ONES and part % 10 == 0 and part >= 20:
            pass
        elif word == "and" and words[max(at - 1, 0)] != "between" and _goes_on(words, end, total, part):
            pass
        else:
            break
        end += 1
    return total + part, end


def _goes_on(words: Sequence[str], at: int, total: float, part: float) -> bool:
    """Whether the "and" there is one within a number ("two hundred and five"), and not between two ("two hundred and three hundred")."""
    end = at + 1
    while end < len(words) and (words[end] in _WORDS or words[end] == "-"):
        end += 1
    after = words[end] if end < len(words) else ""
    if end == at + 1 or not (part % 100 == 0 if part else total):
        return False
    return after != "hundred" if part else after not in _SCALES


_STARTS = {
    *_NOON,
    *_WORDS,
    *_ORDINALS,
    *MONTHS,
    "half",
    "twice",
    "double",
    "thrice",
    "triple",
    "a",
    "an",
    "one",
    "hundred",
    "thousand",
}


def quantities(words: Sequence[str], bases: Sequence[str]) -> list[Quantity]:
    """The quantities of a text, in order.

    Args:
        words (`Sequence[str]`):
            Lower-case words, numbers and marks, in order.
        bases (`Sequence[str]`):
            The basic form of each.
    """
    found: list[Quantity] = []
    at, count = 0, len(words)
    while at < count:
        word = words[at]
        # Most words begin no number, which is quick to see.
        one = _quantity(words, bases, at) if word[0].isdigit() or word in _STARTS else None
        if one is None:
            at += 1
        else:
            found.append(one)
            at = one.end
    return found


def _ordinal(words: Sequence[str], at: int) -> tuple[float | None, int]:
    """The rank that begins at a word, `None` if there is none, and where it ends: "7th", "seventh", "thirty-seventh"."""
    word = words[at]
    if (m := _ORDINAL.fullmatch(word)) and len(word) < _LONGEST:
        return int(m[1]) or None, at + 1
    if word in _TENS:
        last = at + 1 + (words[at + 1 : at + 2] == ["-"])
        ones = _ORDINALS.get(words[last], 10) if last < len(words) else 10
        return (_TENS[word] + ones, last + 1) if ones < 10 else (None, at)
    return _ORDINALS.get(word), at + 1


def _quantity(words: Sequence[str], bases: Sequence[str], at: int) -> Quantity | None:
    word, count = words[at], len(words)
    start = word[0]
    if word == "half":
        return _with_bound(
            words, at, Quantity(0.5, 0.5, "share", _counted(words, bases, at + 1), 0, False, at, at + 1)
        )
    if word in _NOON:
        return Quantity(_NOON[word], _NOON[word], "time", "", 0, False, at, at + 1)
    if word in ("twice", "double", "thrice", "triple"):
        value = 3.0 if word in ("thrice", "triple") else 2.0
        return Quantity(value, value, "times", "", 0, False, at, at + 1)
    if word in ("a", "an", "one") and at + 1 < count and words[at + 1] in _PARTS and words[at + 1] != "second":
        if (
            at + 2 >= count
            or words[at + 2] in ("of", ".", ",", ";", "while", "and", "as")
            or words[at + 1] == "quarter"
        ):
            share = 1 / _PARTS[words[at + 1]]
            return _with_bound(
                words, at, Quantity(share, share, "share", _counted(words, bases, at + 2), 0, False, at, at + 2)
            )
    ordinal, end = _ordinal(words, at)
    if ordinal is not None:
        if end < count and words[end] in ("century", "centuries"):
            first, last = _part_of(words, at, 100.0 * ordinal - 100, 100.0 * ordinal - 1)
            return Quantity(first, last, "year", "century", 0, False, at, end + 1)
        if near_month(words, at):
            return Quantity(ordinal, ordinal, "day", "", 0, False, at, end)
        if not 0 < ordinal < 1e9:
            return None
        return Quantity(ordinal, ordinal, "rank", _counted(words, bases, end), 0, False, at, end)
    if _DECADE.fullmatch(word):
        low = float(word[:-1])
        low, high = _part_of(words, at, low, low + (99 if word.endswith("00s") else 9))
        return Quantity(low, high, "year", "decade", 0, False, at, at + 1)
    if (clock := _CLOCK.fullmatch(word)) is not None:
        parts = [int(part) for part in clock.groups() if part]
        seconds = sum(part * 60**power for power, part in enumerate(reversed(parts)))
        seconds *= 1 if len(parts) == 3 else 60
        end = at + 1
        if end < count and words[end] in _HALF_DAYS and 0 < parts[0] <= 12:
            seconds, end = seconds % _HALF_DAY + _HALF_DAYS[words[end]], end + 1
        return Quantity(seconds, seconds, "time", "", 0, False, at, end)
    if word in MONTHS and (word not in ("may", "march", "mar", "dec", "jan", "sec") or near_number(words, at) or at and words[at - 1] in ("in", "of", "until", "since", "late", "early", "to", "by", "from")):  # fmt: skip
        return Quantity(MONTHS[word], MONTHS[word], "month", "", 0, False, at, at + 1)
    if not (start.isdigit() or word in _WORDS or word in ("a", "hundred", "thousand")):
        return None
    if (first := _value(words, at)) is None:
        return None
    alone = word == "one" and first[1] == at + 1
    if alone and not (first[1] < count and (words[first[1]] in ("in", "out") or bases[first[1]] in _UNITS)):
        return None  # "one of them", "the one"
    value, end = first
    if end < count and words[end] in _HALF_DAYS and value in range(1, 13) and words[end + 1 : end + 2] != ["i"]:
        seconds = value * 3600 % _HALF_DAY + _HALF_DAYS[words[end]]
        return Quantity(seconds, seconds, "time", "", 0, False, at, end + 1)
    low = high = value
    if end + 1 < count and words[end] in ("in", "out") and words[end - 1] in _WORDS:
        # "one in ten"
        after = end + 1 + (words[end + 1] == "of")
        whole = _value(words, after) if after < count else None
        if whole is not None and whole[0] > value and not 1000 <= whole[0] <= 2100:
            share = value / whole[0]
            return _with_bound(
                words, at, Quantity(share, share, "share", _counted(words, bases, whole[1]), 0, False, at, whole[1])
            )
    if end < count and words[end] in _PARTS_OR_PLURALS:
        name = words[end].removesuffix("s") if words[end] != "halves" else "half"
        if words[end].endswith("s") and name in _PARTS:
            share = value / _PARTS[name]
            return _with_bound(
                words, at, Quantity(share, share, "share", _counted(words, bases, end + 1), 0, False, at, end + 1)
            )
    if end + 1 < count and words[end] in _BETWEEN and (words[end] != "and" or at and words[at - 1] == "between"):
        second = _value(words, end + 1)
        if second is not None and second[0] >= value:
            high, end = second
    # A hyphen that is a sign is a "−" by now: "- 5 apples" begins a line of a list.
    signed = at > 0 and words[at - 1] in ("minus", "−")
    sign = -1.0 if signed and (at < 2 or not words[at - 2][0].isalnum() or words[at - 2].isalpha()) else 1.0
    symbol = words[at - 1] if at else ""
    if symbol in _CURRENCY:
        if end < count and words[end] in _MONEY_SCALES:
            low, high, end = low * _MONEY_SCALES[words[end]], high * _MONEY_SCALES[words[end]], end + 1
        return _with_bound(words, at - 1, Quantity(low, high, "money", _CURRENCY[symbol], 0, False, at, end))
    following = _singular(words[end], bases[end]) if end < count else ""
    if following == "%" or following in ("percent", "percentage") or following == "per" and words[end + 1 : end + 2] == ["cent"]:  # fmt: skip
        end += 2 if following == "per" else 1
        return _with_bound(
            words, at, Quantity(low / 100, high / 100, "share", _counted(words, bases, end), 0, False, at, end)
        )
    if following in _CURRENCY:
        return _with_bound(words, at, Quantity(low, high, "money", _CURRENCY[following], 0, False, at, end + 1))
    if end + 1 < count and (named := _NAMED_CURRENCY.get((words[end], bases[end + 1]))):
        return _with_bound(words, at, Quantity(low, high, "money", named, 0, False, at, end + 2))
    if following == "-" and end + 1 < count:
        following, end = _singular(words[end + 1], bases[end + 1]), end + 1
    if following == "square" and end + 1 < count and _UNITS.get(bases[end + 1], ("",))[0] == "length":
        size = _UNITS[bases[end + 1]][1] ** 2 / 10_000
        return _with_bound(words, at, Quantity(low * size, high * size, "area", bases[end + 1], 0, False, at, end + 2))
    if following == "time" and end < count and words[end] == "times":
        return _with_bound(words, at, Quantity(low, high, "times", "", 0, False, at, end + 1))
    if following in _UNITS and (len(following) > 1 or start.isdigit() and not _initial(words, at, end, value)):
        kind, factor = _UNITS[following]
        if kind == "time" and bases[end] == "year" and words[end + 1 : end + 2] == ["old"]:
            kind = "age"
        if following == "°" and words[end + 1 : end + 2] in (["c"], ["f"]):
            following, end = following + words[end + 1], end + 1
        if kind == "temperature" and words[end + 1 : end + 3] in (["below", "zero"], ["above", "zero"]):
            sign, end = -1.0 if words[end + 1] == "below" else 1.0, end + 2
        low, high = sorted((sign * low * factor, sign * high * factor))
        one = Quantity(low, high, kind, following, 0, False, at, end + 1)
        if kind == "length" and (words[end + 1 : end + 3] == ["per", "hour"] or words[end + 1 : end + 2] == ["h"]):
            one = one._replace(kind="speed", end=end + (3 if words[end + 1] == "per" else 2))
        # "two hours and five minutes"
        after = end + 1 + (end + 1 < count and words[end + 1] == "and")
        if kind == "time" and after < count and (words[after][0].isdigit() or words[after] in _WORDS):
            more = _quantity(words, bases, after)
            if more is not None and more.kind == "time" and more.unit != following and more.low < low and low == high:
                one = one._replace(low=low + more.low, high=high + more.high, end=more.end)
            elif words[after] == "half":
                pass
        if words[end + 1 : end + 4] == ["and", "a", "half"]:
            one = one._replace(low=low * 1.5, high=high * 1.5, end=end + 4)
        return _with_bound(words, at, one)
    if start.isdigit() and value == int(value):
        if 1000 <= value <= 2100 and len(word) == 4 and "," not in word and (_dated(words, at, end) or bases[end : end + 1] == words[end : end + 1] or not _counted(words, bases, end)):  # fmt: skip
            return _with_bound(words, at, Quantity(low, high, "year", "", 0, False, at, end))
        if value <= 31 and near_month(words, at):
            return Quantity(low, high, "day", "", 0, False, at, end)
    low, high = sorted((sign * low, sign * high))
    return _with_bound(words, at, Quantity(low, high, "count", _counted(words, bases, end), 0, False, at, end))


def _singular(word: str, base: str) -> str:
    """The name of a unit: the basic form of "miles" is that of "mil", and "2006 MLS" are no millilitres."""
    if base in _UNITS and (base == word or len(base) > 2):
        return base
    if word in _UNITS:
        return word
    if word[:-1] in _UNITS and word.endswith("s") and (len(word) > 3 or word in ("lbs", "kms", "kgs", "yrs")):
        return word[:-1]
    return word if base in _UNITS else base


def near_month(words: Sequence[str], at: int) -> bool:
    """Whether a month's name stands beside a word, or behind "of"."""
    around = (*words[max(at - 1, 0) : at], *words[at + 1 : at + 2])
    return any(word in MONTHS for word in around) or words[at + 1 : at + 2] == ["of"] and words[at + 2 : at + 3] != [] and words[at + 2] in MONTHS  # fmt: skip


def near_number(words: Sequence[str], at: int) -> bool:
    around = (*words[max(at - 1, 0) : at], *words[at + 1 : at + 2])
    return any(word[0].isdigit() for word in around)


def _initial(words: Sequence[str], at: int, end: int, year: float) -> bool:
    """Whether a letter behind a number is that of a name: "In 1994 W. Deming died", also "In 1994 M. Smith left" with its full stop."""
    stopped = words[end + 1 : end + 2] == ["."] and end + 2 < len(words) and words[at - 1 : at] == ["in"]
    return (
        (words[end] in ("l", "w") or stopped and len(words[end]) == 1)
        and 1000 <= year <= 2100
        and end == at + 1
        and len(words[at]) == 4
        and _dated(words, at, end)
    )


def _dated(words: Sequence[str], at: int, end: int) -> bool:
    """Whether what stands before a number of four digits makes it a year."""
    before = words[at - 1] if at else ""
    return before in ("in", "since", "until", "by", "of", "from", "to", "before", "after", "year", "early", "late", "around", "-", "–", "(", ",", "and") or before in MONTHS or at == 0 or near_month(words, at)  # fmt: skip


def _counted(words: Sequence[str], bases: Sequence[str], at: int) -> str:
    """Basic form of the noun that is counted: the last of the words that follow a number without a mark."""
    found = ""
    for position in range(at, min(at + 5, len(words))):
        word = words[position]
        if word in _SKIPPED and not found:
            continue
        if not word[0].isalpha() or word in _STOP or "n" not in (lexicon().parts(bases[position]) or "n"):
            break
        found = bases[position]
        if word.endswith("s") and bases[position] != word:  # a plural ends it
            break
    return found


_STOP = frozenset(
    """in on at by to from with without for as of and or but is are was were be been has have had who which that than then
    before after when while did does do will would may might can could not never than so it he she they his her its their
    into over under near between during per live lived were the a an""".split()
)


# Where a part of a decade or a century begins and ends, as shares of it; they overlap a little.
_PARTS_OF_TIME = {"early": (0.0, 0.5), "mid": (0.3, 0.7), "late": (0.5, 1.0)}


def _part_of(words: Sequence[str], at: int, first: float, last: float) -> tuple[float, float]:
    """The years of a decade or century, or those of the part that the word before it names: "early", "mid-", "late"."""
    before = [word for word in words[max(at - 2, 0) : at] if word not in ("-", "the")][-1:]
    if not before or before[0] not in _PARTS_OF_TIME:
        return first, last
    begins, ends = _PARTS_OF_TIME[before[0]]
    years = last - first + 1
    return first + begins * years, min(first + ends * years, last)


def _with_bound(words: Sequence[str], at: int, one: Quantity) -> Quantity:
    """With what stands before a number ("at least", "about") or behind it ("or more")."""
    bound, about, near = EXACT, False, False
    if words[one.end : one.end + 2] in (["or", "more"], ["or", "longer"], ["or", "older"]):
        bound = AT_LEAST
    for phrase, value in _BOUNDS_BY_END.get(words[at - 1], ()) if at else ():
        if tuple(words[max(at - len(phrase), 0) : at]) == phrase:
            bound = value
            before = at - len(phrase) - 1
            about = phrase[0] in ("almost", "nearly")
            near = about or before >= 0 and words[before] in _NARROWLY
            break
    return one._replace(bound=bound, about=about or at > 0 and words[at - 1] in _ABOUT, near=near)


def compare_quantities(ours: Quantity, theirs: Quantity) -> int:
    """Whether a quantity of the claim follows from one of the evidence: `AGREES`, `CONFLICTS`, or `UNKNOWN`.

    Only of one kind they can agree or conflict; what is counted is not looked at.
    """
    if ours.kind != theirs.kind:
        return UNKNOWN
    if ours.kind == "money" and ours.unit != theirs.unit:
        return CONFLICTS if math.isclose(ours.low, theirs.low) else UNKNOWN
    if ours.kind == "time" and bool(ours.unit) != bool(theirs.unit):
        return UNKNOWN  # a time of day and a duration
    if ours.kind == "temperature" and {ours.unit, theirs.unit} == {"°c", "°f"}:
        return CONFLICTS if math.isclose(ours.low, theirs.low) else UNKNOWN
    slack = 0.1 if ours.about else 0.02 if theirs.about and not ours.about else 1e-3
    if ours.kind in ("year", "month", "day", "rank"):
        slack = 0.0
    elif not ours.about and _to_the_last_digit(ours):
        slack = 0.0
    elif ours.unit != theirs.unit and ours.kind in ("length", "mass", "area", "volume"):
        slack = max(slack, 0.03)  # converted and rounded
    size = max(abs(ours.low), abs(ours.high), abs(theirs.low), abs(theirs.high)) * slack + 1e-9
    inside = ours.low - size <= theirs.low and theirs.high <= ours.high + size
    if ours.low < ours.high and theirs.low < theirs.high and ours.kind == "count":
        # Of two ranges none follows from the other: "10 to 20", and the telephone number 555-1234.
        inside = inside and theirs.low <= ours.low + size and ours.high - size <= theirs.high
    if ours.bound != EXACT and theirs.bound == -ours.bound and not theirs.near:
        return CONFLICTS
    if ours.near:
        beyond = [(value - ours.low) * ours.bound for value in (theirs.low, theirs.high)]
        return AGREES if -1e-9 <= min(beyond) and max(beyond) <= _NEARLY * abs(ours.low) else CONFLICTS
    if ours.bound == AT_LEAST:
        return AGREES if theirs.low >= ours.low - size else CONFLICTS
    if ours.bound == AT_MOST:
        return AGREES if theirs.high <= ours.high + size else CONFLICTS
    if theirs.bound != EXACT and not ours.about:
        beyond = ours.low < theirs.low if theirs.bound == AT_LEAST else ours.high > theirs.high
        return AGREES if inside and theirs.about else CONFLICTS if beyond else UNKNOWN
    if (
        inside
        or ours.kind == "year"
        and not theirs.unit
        and ours.low == ours.high
        and ours.low in (theirs.low, theirs.high)
    ):
        return AGREES  # "from 1980 to 1988" has it begin in 1980
    if theirs.low <= ours.low and ours.high <= theirs.high:
        return UNKNOWN
    if ours.kind == "share" and ours.unit and theirs.unit and ours.unit != theirs.unit:
        return UNKNOWN
    return CONFLICTS


def _to_the_last_digit(one: Quantity) -> bool:
    """Whether a number is not rounded: 3,305 is not 3,304."""
    return one.kind in ("count", "money") and bool(one.low % 10 or one.high % 10)


_COMBINED = 12  # so many quantities; among more, two fit by chance


def worked_out(ours: Quantity, theirs: Sequence[Quantity]) -> bool:
    """Whether a quantity of the claim follows from several of the evidence.

    It may be the sum or the difference of two, the sum of all that count the same, a share of a count, the rest of a share,
    the years between two dates, or a year with so many years added or taken away.
    """
    given = {(one.kind, one.unit, one.low) for one in theirs if one.low == one.high}
    if ours.bound != EXACT or ours.low != ours.high or ours.kind in _NAMED or len(given) > _COMBINED:
        return False
    values = [low for kind, _, low in given if kind == ours.kind]
    years = [low for kind, _, low in given if kind == "year"]
    spans = [low / SECONDS_OF_A_YEAR for kind, _, low in given if kind in ("time", "age")]
    shares = [low for kind, _, low in given if kind == "share"]
    if ours.kind == "year":
        found = [year + step for year in years for span in spans for step in (span, -span)]
    else:
        found = [total for one, other in combinations(values, 2) for total in (one + other, abs(one - other))]
    if ours.kind in ("time", "age"):
        found += [abs(one - other) * SECONDS_OF_A_YEAR for one, other in combinations(years, 2)]
    if ours.kind == "share":
        found += [1 - share for share in shares]
    if ours.kind == "count":
        found += [part * count for share in shares for part in (share, 1 - share) for count in values]
        alike = [low for kind, unit, low in given if (kind, unit) == ("count", ours.unit)]
        found += [sum(alike)] if len(alike) > 1 else []
    slack = 0.0 if ours.kind == "year" else 0.1 if ours.about else 1e-9 if _to_the_last_digit(ours) else 1e-3
    return any(value and math.isclose(value, ours.low, rel_tol=slack) for value in found)


_NAMED = frozenset(("month", "day", "rank"))  # these count nothing

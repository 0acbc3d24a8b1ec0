"""Named edits of English sentences: those of [`EDITS`] change what a sentence states, those of [`REWRITES`] do not.

Every edit takes a sentence, a [`Stock`] of names and details and a seeded generator, and returns the new sentence, or `None`
where it does not apply. All are rules on words: they are right far more often than not, and nothing more is claimed.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hf_factuality.reading.words import FUNCTION_WORDS


_CAPITAL = r"[A-Z][\w'’.-]*\w"
_NAME = re.compile(rf"{_CAPITAL}(?: (?:of |de |van |von |the )?{_CAPITAL})*")
_YEAR = re.compile(r"\b(?:1[0-9]|20)\d\d\b(?!s)")
# Neither parts of words, of dates and of scores ("7-21", "1999/2000"), nor ordinals.
_NUMBER = re.compile(r"(?<![\w.,/–-])(?:\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?)(?![\w/–-]|[.,]\d)")
_MONTHS = "January February March April May June July August September October November December".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
_SMALL = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen twenty"
).split()
_TENS = dict(zip("twenty thirty forty fifty sixty seventy eighty ninety".split(), range(20, 100, 10), strict=True))
_WORDS = {word: value for value, word in enumerate(_SMALL, 1)} | _TENS
_DIGITS = {value: word for word, value in _WORDS.items()}
_NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(sorted(_WORDS, key=len, reverse=True))})\b(?!-)")
_UNITS = {"million": "billion", "billion": "million", "hundred": "thousand", "thousand": "hundred"}
_VERBS = "is are was were has have had can could will would should may might must does did do".split()
_AUXILIARY = re.compile(rf"\b({'|'.join(_VERBS)})\b(?! (?:not|never|n't)\b)(?= [a-z])")
_NEGATION = re.compile(rf"\b({'|'.join(_VERBS)}) (?:not|never) ")
# Pairs of words that exclude each other: `a|b` is exchanged in both directions, `a>b` in one.
_QUANTIFIERS = """all|some many|few every|no always|sometimes always|never both|neither all|none several|all often|rarely
    usually|rarely entirely|partly nearly|exactly also>only"""
_DIRECTIONS = """more|less higher|lower larger|smaller largest|smallest highest|lowest oldest|youngest older|younger first|last
    before|after increased|decreased rose|fell won|lost north|south northern|southern east|west eastern|western above|below
    inside|outside longer|shorter faster|slower major|minor former|current new>old started>ended began>ended opened|closed
    joined>left bought|sold father>son mother>daughter husband|wife predecessor|successor beginning|end maximum|minimum win>loss
    majority|minority early|late"""
# Words that may stand for each other almost everywhere, or the first of which may stand for the second.
_WORDING = """began|started film|movie big>large located|situated purchased|bought additionally>also near>close@to
    approximately>about received>got won>claimed founded|established previously|formerly several>a@number@of
    numerous>many primarily|mainly famous>well-known attended>went@to children>kids physician>doctor attorney|lawyer
    automobile|car company>firm various>different because>since concluded>ended released>put@out obtained|acquired
    constructed|built resides|lives commenced>began United@States>U.S. United@Kingdom>UK"""
_REGULAR = """directed founded produced created designed published released discovered defeated established developed acquired
    recorded painted composed edited invented married owned hosted named starred organised organized formed performed""".split()
_IRREGULAR = {"wrote": "written", "built": "built", "won": "won", "made": "made", "bought": "bought", "led": "led"}
_PARTICIPLES = {past: past for past in _REGULAR} | _IRREGULAR
_PASTS = {participle: past for past, participle in _PARTICIPLES.items()}
_PASSIVE = re.compile(
    rf"^(?P<object>(?:[Tt]he |[Aa]n? )?{_CAPITAL}(?: {_CAPITAL})*) (?:was|were) (?P<verb>{'|'.join(_PASTS)}) by "
    rf"(?P<subject>{_CAPITAL}(?: {_CAPITAL})*)(?P<rest> (?:in|on|at|for|from|with)\b[^,]*)?\.$"
)
_ACTIVE = re.compile(
    rf"^(?P<subject>{_CAPITAL}(?: {_CAPITAL})*) (?P<verb>{'|'.join(_PARTICIPLES)}) "
    rf"(?P<object>(?:the |an? )?{_CAPITAL}(?: {_CAPITAL})*)(?P<rest> (?:in|on|at|for|from|with)\b[^,]*)?\.$"
)
_DETAIL = re.compile(
    r" ((?:in|at|for|with|during|by|from|near|under|against|alongside|after) [^,;()]{6,50}?)(?=[,.;])"
)
_PARENTHESES = re.compile(r" ?\([^()]*\)")
_RELATIVE = re.compile(r", (?:which|who|whose|where) [^,;]*(?=,|\.$)(?:,(?= [a-z]))?")
_OPENING = re.compile(r"^(?:In|On|At|During|By|After|Since|From) [^,]{2,40}, (?=\w)")
# A first word that is no first name.
_PLACES = frozenset(
    "New Los San Santa Saint St North South East West Great United Fort Mount Lake Port El La Le".split()
)


@dataclass
class Stock:
    """What edits put into sentences: names by their number of words, and details, as they stand in some passages."""

    names: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    details: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, sentences: Iterable[str]) -> Stock:
        """The names and the details of these sentences, each once and in their order."""
        stock, seen = cls(), set()
        for sentence in sentences:
            for name in names_in(sentence):
                if name not in seen:
                    seen.add(name)
                    stock.names[len(name.split())].append(name)
            stock.details += [found[1] for found in _DETAIL.finditer(sentence)]
        return stock


Edit = Callable[[str, Stock, random.Random], "str | None"]


def names_in(sentence: str) -> list[str]:
    """The names of a sentence, each once: capitalised words in a row, without dates and what only begins the sentence."""
    found = []
    for match in _NAME.finditer(sentence):
        name, single = match[0], " " not in match[0]
        first, *_ = words = name.split()
        if not match.start() and (single or first.lower() in FUNCTION_WORDS):
            continue  # any word is capitalised there
        if not {*words} & {*_MONTHS, *_DAYS} and first.lower() not in FUNCTION_WORDS and len(name) > 2:
            found.append(name)
    return list(dict.fromkeys(found))


# -- edits that change what is stated --------------------------------------------------------------------------------


def edit_entity(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Another name, of as many words, in the place of one."""
    names = names_in(sentence)
    if not names:
        return None
    old = rng.choice(names)
    words = {word for name in names for word in name.split()}
    fitting = [name for name in stock.names.get(len(old.split()), ()) if not words & {*name.split()}]
    return _with(sentence, old, rng.choice(fitting)) if fitting else None


def edit_number(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Another number, written as the first one was: another value, a unit a thousand times as large, or a sign."""
    found = [match for match in _NUMBER.finditer(sentence) if not _YEAR.fullmatch(match[0])]
    found = [match for match in found if not _beside_month(sentence, match)]
    words = [match for match in _NUMBER_WORD.finditer(sentence) if match[0] != "one"]
    units = list(re.finditer(rf"\b(?:{'|'.join(_UNITS)})\b", sentence))
    if not (found or words or units):
        return None
    match = rng.choice([*found, *words, *units])
    if match in units:
        return _put(sentence, match, _UNITS[match[0]])
    if match in words:
        same = _TENS if match[0] in _TENS else dict.fromkeys(_SMALL[1:])
        return _put(sentence, match, rng.choice([word for word in same if word != match[0]]))
    return _put(sentence, match, _other_number(match[0], rng))


def edit_date(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Another year, month or day of the week."""
    years = list(_YEAR.finditer(sentence))
    others = [(match, _MONTHS) for match in re.finditer(rf"\b(?:{'|'.join(_MONTHS)})\b(?= \d)", sentence)]
    others += [(match, _DAYS) for match in re.finditer(rf"\b(?:{'|'.join(_DAYS)})\b", sentence)]
    if not (years or others):
        return None
    if years and (not others or rng.random() < 0.7):
        match = rng.choice(years)
        step = rng.choice((1, 2, 3, 5, 10, rng.randint(4, 60))) * rng.choice((-1, 1))
        return _put(sentence, match, str(min(max(int(match[0]) + step, 1000), 2099)))
    match, names = rng.choice(others)
    return _put(sentence, match, rng.choice([name for name in names if name != match[0]]))


def edit_negation(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """A "not" or "never" more, or one less."""
    if match := _NEGATION.search(sentence):
        return _put(sentence, match, f"{match[1]} ")
    match = _AUXILIARY.search(sentence)
    if match is None:
        return None
    never = match[1] in ("is", "are", "was", "were", "has", "had") and rng.random() < 0.25
    word = "never" if never else "not"
    short = {"can": "can't", "will": "won't"}.get(match[1], f"{match[1]}n't")
    if not never and match[1] not in ("may", "might") and rng.random() < 0.3:
        return _put(sentence, match, short)
    return _put(sentence, match, f"{match[1]} {word}")


def edit_role(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Two names that are not listed side by side, each in the place of the other."""
    names = names_in(sentence)
    if not names and not _NAME.match(sentence):
        return None
    opening = _NAME.match(sentence)
    if opening and opening[0].split()[0].lower() not in FUNCTION_WORDS and " " in opening[0]:
        names = list(dict.fromkeys([opening[0], *names]))
    names = [name for name in names if sentence.count(name) == 1]
    pairs = []
    for first in names:
        for second in names:
            start, end = sentence.find(first) + len(first), sentence.find(second)
            between = sentence[start:end]
            if start < end and re.search(r"[a-z]{3}", between) and not re.fullmatch(r",? (?:and|or),? ", between):
                pairs.append((first, second))
    if not pairs:
        return None
    first, second = rng.choice(pairs)
    start, end = sentence.find(first), sentence.find(second)
    return sentence[:start] + second + sentence[start + len(first) : end] + first + sentence[end + len(second) :]


def edit_detail(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """A phrase of another sentence more, before the full stop."""
    if not stock.details or not sentence.endswith("."):
        return None
    detail = rng.choice(stock.details)
    return f"{sentence[:-1]} {detail}." if detail not in sentence else None


def edit_quantifier(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Another quantifier: "all" for "some", "few" for "most", "the only" for "one of the"."""
    if match := re.search(r"\bone of the (\w+)", sentence):
        return _put(sentence, match, f"all of the {match[1]}" if rng.random() < 0.5 else f"none of the {match[1]}")
    return _exchanged(sentence, _QUANTIFIERS, rng)


def edit_direction(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """The opposite of a comparative, a superlative, a direction or a change."""
    return _exchanged(sentence, _DIRECTIONS, rng)


EDITS: Mapping[str, Edit] = MappingProxyType(
    {
        "entity": edit_entity,
        "number": edit_number,
        "date": edit_date,
        "negation": edit_negation,
        "role": edit_role,
        "detail": edit_detail,
        "quantifier": edit_quantifier,
        "direction": edit_direction,
    }
)
"""Edits after which a sentence states something else, by their names."""


# -- edits that keep what is stated, or state less -------------------------------------------------------------------


def rewrite_clause(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Without what stands in parentheses, without a relative clause between commas, or without an opening phrase."""
    shorter = [pattern.sub("", sentence, count=1) for pattern in (_PARENTHESES, _RELATIVE, _OPENING)]
    shorter = [text[:1].upper() + text[1:] for text in shorter if text != sentence and len(text.split()) > 3]
    return rng.choice(shorter) if shorter else None


def rewrite_voice(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """Active for passive and passive for active, in simple sentences with a verb whose participle is known."""
    match = _PASSIVE.match(sentence) or _ACTIVE.match(sentence)
    if match is None or any(match[part].lower() in FUNCTION_WORDS for part in ("subject", "object")):
        return None
    if match.re is _PASSIVE:
        thing = match["object"]
        thing = thing[:1].lower() + thing[1:] if re.match(r"(?:The|An?) ", thing) else thing
        return f"{match['subject']} {_PASTS[match['verb']]} {thing}{match['rest'] or ''}."
    thing = match["object"][:1].upper() + match["object"][1:]
    return f"{thing} was {_PARTICIPLES[match['verb']]} by {match['subject']}{match['rest'] or ''}."


def rewrite_number(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """A number in words for one in digits, or the other way round; "%" and "percent" likewise."""
    digits = [match for match in _NUMBER.finditer(sentence) if match[0].isdigit() and int(match[0]) in _DIGITS]
    digits = [match for match in digits if not _beside_month(sentence, match)]
    words = [match for match in _NUMBER_WORD.finditer(sentence) if match[0] != "one"]
    if match := re.search(r"(?<=\d)(?:%| percent\b| per cent\b)", sentence):
        return _put(sentence, match, " percent" if match[0] == "%" else "%")
    if not (digits or words):
        return None
    match = rng.choice([*digits, *words])
    return _put(sentence, match, _DIGITS[int(match[0])] if match in digits else str(_WORDS[match[0]]))


def rewrite_wording(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """A word for another that means the same."""
    return _exchanged(sentence, _WORDING, rng)


def rewrite_name(sentence: str, stock: Stock, rng: random.Random) -> str | None:
    """The last name alone, where others of the stock's sentences call somebody by it."""
    alone = {*stock.names.get(1, ())}
    opening = _NAME.match(sentence)
    for name in [*([opening[0]] if opening else []), *names_in(sentence)]:
        first, *rest = name.split()
        if len(rest) in (1, 2) and rest[-1] in alone and first not in _PLACES and first.lower() not in FUNCTION_WORDS:
            shorter = _with(sentence, name, rest[-1])
            return shorter if shorter != sentence else None
    return None


REWRITES: Mapping[str, Edit] = MappingProxyType(
    {
        "clause": rewrite_clause,
        "voice": rewrite_voice,
        "number_form": rewrite_number,
        "wording": rewrite_wording,
        "short_name": rewrite_name,
    }
)
"""Edits after which a passage that supports a sentence supports it still, by their names."""


def _put(sentence: str, match: re.Match[str], text: str) -> str:
    return sentence[: match.start()] + text + sentence[match.end() :]


def _with(sentence: str, old: str, new: str) -> str:
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, sentence)


def _beside_month(sentence: str, match: re.Match[str]) -> bool:
    """Whether a number is the day of a date."""
    around = [*sentence[: match.start()].split()[-1:], *sentence[match.end() :].split()[:1]]
    return any(word.strip(",.()[]–-") in _MONTHS for word in around)


def _other_number(text: str, rng: random.Random) -> str:
    """A number of as many digits, with the same commas and decimals."""
    while True:
        places = [place for place, sign in enumerate(text) if sign.isdigit()]
        place = rng.choice(places)
        digit = rng.choice([sign for sign in "0123456789" if sign != text[place]])
        if not (digit == "0" and place == 0 and len(places) > 1):
            return text[:place] + digit + text[place + 1 :]


def _exchanged(sentence: str, pairs: str, rng: random.Random) -> str | None:
    """One word of a pair for the other: `a|b` in both directions, `a>b` in one; `@` is a space."""
    choices = []
    for pair in pairs.split():
        first, second = (side.replace("@", " ") for side in re.split("[|>]", pair))
        for word, other in ((first, second), (second, first))[: 2 if "|" in pair else 1]:
            flags = re.IGNORECASE if word.islower() else 0
            choices += [(match, other) for match in re.finditer(rf"\b{re.escape(word)}(?!\w)", sentence, flags)]
    if not choices:
        return None
    match, other = rng.choice(choices)
    if match[0][:1].isupper() and match.start() == 0:
        other = other[:1].upper() + other[1:]
    elif match[0][:1].isupper() and other.islower():  # part of a name
        return None
    return _put(sentence, match, other)

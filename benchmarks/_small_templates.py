"""Texts with several facts of one form, and claims that take one of them, mix two of them up or leave them: made from templates.

`small_templates/*.txt` has blocks with an empty line between them. A line `= ` is a wording of the facts, `+ ` a claim that follows from
each of the wordings, `- ` one that they rule out, `? ` one that they leave open, and `@X: a|b|c` a list of words for `{X1}`, `{X2}` ...
Of `[a|b]` one is taken. What the other names in braces stand for is in `_values`: those of a letter differ, and numbers, years, months,
days and weekdays grow with their number.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise
from pathlib import Path

from _small_facts import (
    CONTRADICTED,
    COUNTRIES,
    JOBS,
    MONTHS,
    NOT_SAID,
    NUMBERS,
    SUPPORTED,
    TOWNS,
    Pair,
    draw_firms,
    draw_people,
)


WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday".split()
EVERY_TENTH = 10
"""Of the blocks of a file one in so many is kept apart."""
LEAST_TWINS = 2
"""A template with fewer twins is not drawn for them."""
MANY_OPEN = 8
"""A block with so many claims that are left open is there for their sake."""
SOURCE, TWINS = "templates", "twins"
FREQUENT = (
    dict.fromkeys(
        "swaps bigger counting clock claimed rephrase inferred bulletin records plainly passages rewrite mixups".split(),
        3.0,
    )
    | dict.fromkeys("agents quantity degree meaning denial dates figures invented".split(), 2.5)
    | dict.fromkeys("roles sets compare amounts".split(), 2.0)
    | dict.fromkeys("time ranking".split(), 1.5)
    | dict.fromkeys("details fields short".split(), 0.5)
)
"""How often a template of these files is drawn, beside one of another file."""
CLASSES = {"+": SUPPORTED, "-": CONTRADICTED, "?": NOT_SAID}
_LIST = re.compile(r"@([Q-Z]):(.*)")
_SLOT, _CHOICE = re.compile(r"\{(\w+)\}"), re.compile(r"\[([^\[\]]*\|[^\[\]]*)\]")
_ARTICLE = re.compile(r"\b([Aa])n? (?=[aeiouAEIOU])(?!uni|use|eu|one\b|once|US)")
# A small number that may as well be a word, and is no date, decimal or share.
_SMALL = re.compile(rf"(?<![\d,.:-])\b([2-9]|10)\b(?![\d,.%:-]| (?:{'|'.join(MONTHS)}))")


@dataclass
class Template:
    """The lines of a block by their mark, and its lists of words by their letter."""

    lines: dict[str, list[str]] = field(default_factory=lambda: {mark: [] for mark in "=+-?"})
    lists: dict[str, list[str]] = field(default_factory=dict)
    weight: float = 1.0

    @property
    def twins(self) -> list[dict[str, list[str]]]:
        """Claims that differ only in which of the facts they take, by their mark; of each some follow and some do not.

        That one of them is false cannot be told from its wording.
        """
        alike: dict[str, dict[str, list[str]]] = {}
        for mark in CLASSES:
            for line in self.lines[mark]:
                alike.setdefault(_numbered_anew(line), {}).setdefault(mark, []).append(line)
        return [lines for lines in alike.values() if "+" in lines and len(lines) > 1]


def _numbered_anew(line: str) -> str:
    """The line with its slots of each letter numbered as they come."""
    names: dict[str, str] = {}
    counts: Counter[str] = Counter()

    def name(slot: re.Match) -> str:
        if slot[1] not in names:
            counts[slot[1][0]] += 1
            names[slot[1]] = f"{{{slot[1][0]}{counts[slot[1][0]]}}}"
        return names[slot[1]]

    return _SLOT.sub(name, line)


def read_templates() -> tuple[list[Template], list[Template]]:
    """Templates to learn from, and those that are kept apart."""
    learnt, kept_apart = [], []
    for path in sorted(Path(__file__).with_name("small_templates").glob("*.txt")):
        for number, block in enumerate(re.split(r"\n\s*\n", path.read_text(encoding="utf-8").strip())):
            template = Template(weight=FREQUENT.get(path.stem.partition("_")[0], 1.0))
            for line in map(str.strip, block.splitlines()):
                if listed := _LIST.match(line):
                    template.lists[listed[1]] = [word.strip() for word in listed[2].split("|") if word.strip()]
                elif line[:1] in template.lines:
                    template.lines[line[0]].append(line[2:].strip())
            (kept_apart if number % EVERY_TENTH == EVERY_TENTH - 1 else learnt).append(template)
    return learnt, kept_apart


def template_pairs(templates: list[Template], count: int, seed: int) -> list[Pair]:
    """About so many pairs, some six claims about each text."""
    rng, pairs, weights = random.Random(seed), [], [*accumulate(template.weight for template in templates)]
    while len(pairs) < count:
        pairs += _filled(rng.choices(templates, cum_weights=weights)[0], rng)
    return pairs


def twin_pairs(templates: list[Template], count: int, seed: int) -> list[Pair]:
    """About so many pairs of [`Template.twins`]: up to three true claims and as many false ones about each text, two and two alike."""
    rng, pairs = random.Random(seed), []
    known = [(template, twins) for template in templates if len(twins := template.twins) >= LEAST_TWINS]
    weights = [*accumulate(template.weight for template, _ in known)]
    while len(pairs) < count:
        template, twins = rng.choices(known, cum_weights=weights)[0]
        values, evidence, by_surname = _facts(template, rng)
        claims: dict[str, int] = {}
        for lines in rng.sample(twins, min(3, len(twins))):
            other = rng.choice([mark for mark in lines for _ in lines[mark] if mark != "+"])
            wording = rng.random()
            for mark in ("+", other):
                alike = random.Random(wording)
                claim = _text(rng.choice(lines[mark]), values, by_surname, alike)
                claims.setdefault(_words_for_numbers(claim, alike), CLASSES[mark])
        pairs += [(evidence, claim, label, TWINS) for claim, label in claims.items()]
    return pairs


def _facts(template: Template, rng: random.Random) -> tuple[dict[str, str], str, set[str]]:
    """What the slots stand for, the evidence, and who is called by the surname in the claims."""
    values = _values(template.lists, rng)
    evidence = _words_for_numbers(_text(rng.choice(template.lines["="]), values, set(), rng), rng)
    return values, evidence, {f"P{number}" for number in range(1, 5) if rng.random() < 0.3}


def _filled(template: Template, rng: random.Random) -> list[Pair]:
    values, evidence, by_surname = _facts(template, rng)
    if len(template.lines["?"]) < MANY_OPEN:
        wanted = {"+": 3, "-": 3 - (rng.random() < 0.35), "?": int(rng.random() < 0.35)}
    else:
        wanted = {"+": 3, "-": 1, "?": 2}
    claims: dict[str, int] = {}
    for mark, count in wanted.items():
        lines = template.lines[mark]
        for line in rng.sample(lines, min(count, len(lines))):
            claims.setdefault(_words_for_numbers(_text(line, values, by_surname, rng), rng), CLASSES[mark])
    if rng.random() < 0.12:  # one wording of the facts beside another
        other = _text(rng.choice(template.lines["="]), values, by_surname, rng)
        if len(other.split()) < 22 and other != evidence:
            claims.setdefault(other, SUPPORTED)
    return [(evidence, claim, label, SOURCE) for claim, label in claims.items()]


def _text(line: str, values: dict[str, str], by_surname: set[str], rng: random.Random) -> str:
    def value(slot: re.Match) -> str:
        return values[slot[1]].split()[-1] if slot[1] in by_surname else values[slot[1]]

    chosen = _CHOICE.sub(lambda found: rng.choice(found[1].split("|")), line)
    text = " ".join(_ARTICLE.sub(r"\1n ", _SLOT.sub(value, chosen)).split())
    return re.sub(r"(?:^|(?<=[.!?] ))[a-z]", lambda letter: letter[0].upper(), text)


def _words_for_numbers(text: str, rng: random.Random) -> str:
    return _SMALL.sub(lambda found: NUMBERS[int(found[1])], text) if rng.random() < 0.35 else text


def _values(lists: dict[str, list[str]], rng: random.Random) -> dict[str, str]:
    people, firms = draw_people(4, rng), draw_firms(3, rng)
    years = [rng.randint(1830, 1990)]
    while len(years) < 4:
        years.append(years[-1] + rng.randint(2, 9))
    numbers = [f"{number:,}" if rng.random() < 0.7 else str(number) for number in _numbers(rng)]
    days = sorted(rng.sample(range(67), 3))
    named = {
        "P": people, "O": firms, "L": rng.sample(TOWNS, 4), "K": rng.sample(COUNTRIES, 4), "J": rng.sample(JOBS, 4),
        "y": [str(year) for year in years], "n": numbers, "s": [str(number) for number in sorted(rng.sample(range(2, 11), 3))],
        "m": [MONTHS[number] for number in sorted(rng.sample(range(12), 3))],
        "D": [f"{day * 5 % 28 + 1} {MONTHS[day * 5 // 28]}" for day in days],
        "w": [WEEKDAYS[number] for number in sorted(rng.sample(range(6), 3))],
    }  # fmt: skip
    named |= {letter: rng.sample(words, min(4, len(words))) for letter, words in lists.items()}
    return {f"{letter}{number}": value for letter, values in named.items() for number, value in enumerate(values, 1)}


def _numbers(rng: random.Random) -> list[int]:
    """Four numbers, clearly apart; none is twice another or the sum of two others."""
    while True:
        found = sorted(rng.sample(range(11, rng.choice([60, 100, 400, 1000, 9000])), 4))
        if any(high - low < max(3, 0.08 * high) for low, high in pairwise(found)):
            continue
        totals = {low + high for low, high in combinations(found, 2)} | {2 * number for number in found}
        if totals.isdisjoint(found):
            return found

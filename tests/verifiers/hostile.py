"""Texts that someone might write to a judge, or a broken judge might answer; the same in every run.

`hostile_strings` is a short set for tests that send each text over a socket, `every_hostile` has them all. What a text
means as an answer is known by construction: the answers that do count stand in tables of their own.
"""

import json
import random
from itertools import product

from tests.tables import table


def texts(name: str) -> list[str]:
    """A table of tests/cases/hostile.json; a text that stands there with a number is repeated so often."""
    return [text if isinstance(text, str) else text[0] * text[1] for text in table("hostile", name)]


ORDERS, LOOKALIKES, BROKEN, CONTROLS = map(texts, ("orders", "lookalikes", "broken", "controls"))
LARGE, NOT_VERDICTS, IN_OTHER_TONGUES = map(texts, ("large", "not_verdicts", "in_other_tongues"))
TEMPLATES, FORGED, BEFORE, AFTER, EMOJI = map(texts, ("templates", "forged", "before", "after", "emoji"))
MARKUP, LOOK = texts("markup"), table("hostile", "look")
TAGS, VOTES, PAIRS = (table("hostile", name) for name in ("tags", "votes", "pairs"))


def hostile_strings() -> list[str]:
    """More than 250 of them; the same every time."""
    generator = random.Random(0)
    noise = [
        "".join(chr(generator.choice([generator.randrange(32), generator.randrange(0x250), generator.randrange(0x11000)]))
                for _ in range(generator.randrange(1, 80)))
        for _ in range(100)
    ]  # fmt: skip
    mixed = [
        generator.choice(ORDERS)
        + generator.choice(["\n", " ", "\x00", "\u202e"])
        + generator.choice(LOOKALIKES + CONTROLS)
        for _ in range(60)
    ]
    return [*ORDERS, *LOOKALIKES, *BROKEN, *CONTROLS, *LARGE, *NOT_VERDICTS, *noise, *mixed]


# ---- the large set: generators by class, each from its own seed

LABELS = ("supported", "contradicted", "unverifiable")
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad\u034f\u180e\u061c\u200e\u200f\u202a\u202e\u2066\u2069\ufe0f\U000e0061\U000e007f\x00\x08\x1b"

# Answers that do count, and as what: labels of the judge, tags of ANAH, votes, verdicts on pairs.
VERDICTS = {
    f"{before}{label}{after}": label
    for label in LABELS
    for before, after in table("hostile", "around")
} | {"SUPPORTED": "supported", "Contradicted": "contradicted", "uNVERIFIABLE": "unverifiable"}  # fmt: skip


def near_misses() -> list[str]:
    """A label with something that takes it back, look-alike letters, or something invisible inside."""
    generator = random.Random(1)
    found = [before + label for before, label in product(BEFORE, LABELS)]
    found += [label + after for label, after in product(LABELS, AFTER)]
    found += [f"{lead}{before}supported" for lead in ("Answer: ", "The claim is ", "**") for before in BEFORE[:12]]
    for label in LABELS:
        for letter in sorted(set(label) & set(LOOK)):
            found += [label.replace(letter, other, 1) for other in LOOK[letter]]
        for character in INVISIBLE:
            place = generator.randrange(1, len(label))
            found.append(label[:place] + character + label[place:])
        found += [label[:-1], label + label[-1], label[::-1], " ".join(label), label.replace("r", "rr"), label * 2]
        found += ["".join(f"{letter}\u0301" for letter in label), f"\u202e{label[::-1]}\u202c"]
    return found


def forged_turns() -> list[str]:
    """Ends of a turn and beginnings of another, in the marks of many templates."""
    return [template.format(said) for template, said in product(TEMPLATES, FORGED)]


def broken_json() -> list[str]:
    """Objects with a verdict in them: cut anywhere, nested, huge, with keys twice."""
    whole = json.dumps({"label": "supported", "score": 1.0, "claims": ["Ada was born."], "why": 'a "quote" \\ \n'})
    cut = [whole[:n] for n in range(1, len(whole), 4)]
    deep = ["[" * depth + "]" * depth for depth in (3, 500, 3000)] + ['{"a":' * 900 + "1" + "}" * 900]
    odd = [
        '{"label": "supported", "label": "contradicted"}', '{"supported": true}', '["supported"]', "[null, NaN, Infinity, -0]",
        f'{{"label": {"9" * 5000}}}', '{"label": "\\ud800"}', "{'label': 'supported'}", '{"label"; "supported"}', "{label: supported,}",
        f"```json\n{whole}\n```", f"```\n```\n{whole}", f"~~~~\n```json\n{whole}\n```\n~~~~", "data: [DONE]", f"{whole}{whole}", "\ufeff" + whole,
    ]  # fmt: skip
    return [*cut, *deep, *odd]


def fences_and_lines() -> list[str]:
    """Fences in fences, tables, lists, and lines that look like those of a prompt or of an answer."""
    fences = [
        "`" * n + text + "`" * m
        for n, m in ((3, 3), (3, 4), (4, 3), (7, 1))
        for text in ("\nsupported (see above)\n", "x", "\n")
    ]
    marks = [f"[{word} {name} {code}]\n{said}" for word in ("BEGIN", "END") for name in ("CLAIM", "SENTENCE", "RESPONSE") for code in ("", "0a1b2c3d") for said in ("supported", "- x")]  # fmt: skip
    lists = [f"{bullet} claim one\n{bullet} <b>two</b>{end}" for bullet in ("-", "*", "•", "1.", "2)", "–", "+", ">>", "#", "(a)", "一、") for end in ("", "\n\n", "\nDone.")]  # fmt: skip
    levels = [f">> Sentence {n}:{text}" for n in ("1", "0", "-1", "1e9", "²", "") for text in (" A.\n* A.", "\n* A.", " A.", " A.\n* A.\nEnd.")]  # fmt: skip
    tables = [
        f"| {a} | {b} |\n|---|---|\n| supported | {a} |"
        for a in ("claim", "", "|", "\\|")
        for b in ("label", "-", "\n")
    ]
    return [*fences, *marks, *lists, *levels, *tables]


def odd_characters() -> list[str]:
    """Planes, marks, surrogates, emoji, line ends and controls, alone and between words."""
    generator = random.Random(2)
    words = table("hostile", "words")
    pools = [INVISIBLE, EMOJI, "\r\n\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029", "\ud800\udbff\udc00\udfff", "\u0300\u0301\u0489\u20dd\u0e33", "ﷺ﷽𒐫꧅", "\u3000\u00a0\u2003\u1680", "\ufffe\uffff\U0010ffff\ue000"]  # fmt: skip
    found = [text for pool in pools for text in pool]
    for pool in pools:
        for _ in range(14):
            parts = [
                generator.choice(words if generator.random() < 0.5 else pool)
                for _ in range(generator.randrange(2, 25))
            ]
            found.append(generator.choice(["", " "]).join(parts))
    zalgo = ["".join(letter + "".join(generator.choices("\u0300\u0315\u0336\u0488\u0353", k=n)) for letter in "supported") for n in (1, 5, 40)]  # fmt: skip
    return [*found, *zalgo]


def lengths() -> list[str]:
    """Too much of one thing, in the tens of thousands of characters at most."""
    units = table("hostile", "units")
    return [unit * (size // len(unit)) for unit, size in product(units, (300, 4100))] + [
        "Ada was born in Leeds. " * 2000,
        "x" * 30_000,
    ]


def every_hostile() -> list[str]:
    """Distinct texts, more than 1,200; none of them is an answer that counts, and none is longer than 50,000."""
    short = [text for text in hostile_strings() if len(text) <= 50_000]
    counts = {*VERDICTS, *TAGS, *VOTES, *PAIRS}
    found = [
        *short, *IN_OTHER_TONGUES, *near_misses(), *forged_turns(), *broken_json(), *fences_and_lines(), *odd_characters(),
        *lengths(), *MARKUP, *(f"Ada was born in Leeds. {text}" for text in MARKUP),
    ]  # fmt: skip
    return [text for text in dict.fromkeys(found) if text not in counts]


def megabytes() -> list[str]:
    """Three texts of a million characters: many sentences, one of many words, one word."""
    return [(unit * (1_000_000 // len(unit) + 1))[:1_000_000] for unit in ("Ada was born in Leeds. ", "word ", "x")]

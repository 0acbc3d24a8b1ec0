"""What English words mean to each other: the same, nearly, something wider or narrower, the opposite, or a sister.

From WordNet 3.0, made smaller by `benchmarks/lexicon.py`; its licence lies beside the file. The file has three parts,
divided by form feeds: a line per word (the word, its parts of speech, its meanings, its antonyms, words derived from
it), a line per irregular form (the form, its word), and a line per meaning (the meanings above it).
"""

from __future__ import annotations

import gzip
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple


# How a word of the claim relates to one of the evidence.
NONE, SISTER, NARROWER, NEAR, WIDER, SAME, OPPOSITE = range(7)
"""`WIDER`: the claim's word says less than the evidence's ("animal" for "dog"), so that it follows; `NARROWER`: more."""
MOST_KNOWN = 1 << 16
"""Words whose keys are kept."""

# Opposites that WordNet does not pair, as news and encyclopedias use them. Words of a side stand against all of the other.
_OPPOSITES = """
rise increase grow climb gain jump soar surge expand : fall decrease decline drop shrink plunge slump lose dwindle
more greater higher high larger large bigger big : fewer less lower low smaller small
tall : short
accept approve support allow permit endorse : reject refuse oppose deny forbid ban prohibit dismiss decline
include : exclude omit
open begin start launch found establish create : close end finish stop abolish dissolve
win victory beat : lose defeat loss
buy acquire purchase : sell
before earlier prior : after later following
early : late
old ancient : new modern recent young
heavy heavier : light lighter
hard harden harder : soft soften softer
strengthen strong : weaken weak
raise lift : lower cut reduce
arrive enter join : leave depart quit exit
succeed success : fail failure
public : private
male man men boy : female woman women girl
first : last second third
import : export
upstream : downstream
north northern : south southern
east eastern : west western
above over : below under
inside indoor : outside outdoor
maximum most : minimum least
safe : dangerous
guilty convict : innocent acquit
praise : criticize criticise condemn
love admire : hate
cause : prevent
improve better : worsen worse
able : unable
likely : unlikely
possible : impossible
legal : illegal
day : night
summer : winter
dry : wet
hot warm warmer : cold cool colder
rich : poor
fast quick faster : slow slower
long longer : short shorter
thick : thin
deep : shallow
wide : narrow
build construct : demolish destroy
attack : defend
ally : enemy
agree : disagree
appoint hire : dismiss fire
lend : borrow
give : take receive
teach : learn
free release : imprison arrest
war : peace
left : right
profit : loss
majority : minority
positive : negative
import : export
upward : downward
"""
# Verbs of one event seen from its two sides: "A sold it to B" is "B bought it from A".
_CONVERSES = """
buy acquire purchase : sell
lend : borrow
win beat defeat : lose
give hand : receive get
teach : learn study
lead precede : follow succeed
employ hire : work
send : receive
inherit : leave
husband : wife
parent father mother : child son daughter
uncle aunt : nephew niece
"""
# Synonyms of news and encyclopedias whose shared meaning is too rare, or too new, for the meanings that are kept.
_SYNONYMS = """
film movie picture
firm company business corporation
shop store outlet
city town
car automobile vehicle
revenue sales turnover
employ hire
staff employee worker personnel
boss head chief ceo
buy acquire purchase
start begin launch open
found establish create start set
build construct erect
write author compose pen
make produce manufacture
show depict portray
film movie
song track
album record
doctor physician
kill slay murder
die death pass
marry wife husband wed marriage spouse
born birth
live reside dwell
lie situate locate stand
say state tell announce
claim assert allege
plan intend
forbid ban prohibit
allow permit let
demand require
get receive obtain win
finish complete end conclude
reign rule govern
prize award
singer vocalist
almost nearly
big large great
small minor little
part role
paper newspaper
use employ utilize
quit resign leave
attempt try
choose select pick elect
call name
fall drop decline decrease
rise increase climb grow gain
dangerous hazardous
rest remain stay
near close
roughly about approximately around
people person human inhabitant resident
children child kid
earn make
compete race
"""


class _Entry(NamedTuple):
    parts: str
    senses: tuple[int, ...]
    opposites: tuple[str, ...]
    derived: tuple[str, ...]


class Lexicon:
    """The file, read; see the module."""

    def __init__(self) -> None:
        packed = files(__package__).joinpath("lexicon.txt.gz").read_bytes()
        words, forms, senses = gzip.decompress(packed).decode().split("\f")
        # Lines are parsed when they are asked for: a run sees a few thousand of the 78,000.
        self._lines = dict(line.split("\t", 1) for line in words.split("\n"))
        self._forms = dict(line.split("\t", 1) for line in forms.split("\n"))
        self._forms |= {
            "older": "old",
            "oldest": "old",
            "died": "die",
            "dies": "die",
            "dying": "die",
            "tied": "tie",
            "lied": "lie",
            "lying": "lie",
        }
        self._above = senses.split("\n")
        self._entries: dict[str, _Entry] = {}
        self._sides = _sides(_OPPOSITES)
        self._converse = _sides(_CONVERSES)
        self._known: dict[str, frozenset] = {}
        self._groups: dict[str, set[int]] = {}
        for number, line in enumerate(_SYNONYMS.strip().split("\n")):
            for word in line.split():
                self._groups.setdefault(word, set()).add(number)

    def entry(self, word: str) -> _Entry | None:
        """What is known of a word in its basic form; `None`: nothing."""
        found = self._entries.get(word)
        if found is None and (line := self._lines.get(word)) is not None:
            parts, senses, opposites, derived = [*line.split("\t"), "", "", ""][:4]
            found = self._entries[word] = _Entry(
                parts,
                tuple(int(sense, 16) for sense in senses.split()),
                tuple(opposites.split()),
                tuple(derived.split()),
            )
        return found

    def above(self, sense: int) -> list[int]:
        return [int(parent, 16) for parent in self._above[sense].split()]

    def basic(self, word: str) -> str:
        """The basic form of a lower-case word: "ran" is "run", "cities" is "city"; unknown words lose a plural's s."""
        return _basic(self, word)

    def parts(self, word: str) -> str:
        """Letters of the parts of speech that a basic form can have, the commonest first: n, v, a, r; p for a name."""
        entry = self.entry(word)
        return entry.parts if entry else ""

    def relation(self, ours: str, theirs: str) -> int:
        """How the claim's basic form relates to the evidence's; see the constants."""
        if ours == theirs:
            return SAME
        if self.keys(ours).isdisjoint(self.keys(theirs)):
            return NONE
        return _relation(self, ours, theirs)

    def keys(self, word: str) -> frozenset:
        """What two words must share to be related at all: most pairs share nothing, which is quick to see."""
        found = self._known.get(word)
        if found is None:
            family = _family(self, word)
            found = family | self._sides.get(word, {}).keys() | _ancestors(self, word).keys()
            found |= {f"#{group}" for group in self._groups.get(word, ())}
            for other in family:
                found |= _opposed(self, other) | _senses(self, other)
            if len(self._known) >= MOST_KNOWN:  # a server reads words, names and numbers without end
                self._known.clear()
            self._known[word] = found = frozenset(found)
        return found

    def converse(self, ours: str, theirs: str) -> bool:
        """Whether the two are one relation seen from its two ends."""
        return theirs in self._converse.get(ours, ())


def _sides(text: str) -> dict[str, dict[str, None]]:
    found: dict[str, dict[str, None]] = {}
    for line in text.strip().split("\n"):
        left, right = (side.split() for side in line.split(":"))
        for mine, others in ((left, right), (right, left)):
            for word in mine:
                found.setdefault(word, {}).update(dict.fromkeys(others))
    return found


@lru_cache(maxsize=1)
def lexicon() -> Lexicon:
    """The one lexicon of a process, read at its first use."""
    return Lexicon()


_ENDINGS = (
    ("iest", "y"), ("ier", "y"), ("ies", "y"), ("ied", "y"), ("ing", ""), ("ing", "e"), ("est", ""), ("est", "e"),
    ("ed", ""), ("ed", "e"), ("er", ""), ("er", "e"), ("es", ""), ("es", "e"), ("s", ""), ("ly", ""),
)  # fmt: skip
# Words that look like forms of another, or are one of its own.
_WHOLE = frozenset("more less fewer other number paper water river winter summer order power member matter letter later former never "
                   "better lower upper inner outer news series species does during according building being wedding "
                   "evening morning painting meeting ceiling king ring spring thing wing nothing something anything "
                   "everything forest interest west best test rest chest guest honest need seed feed speed breed indeed "
                   "hundred sacred red bed early only family fly supply apply reply rely july italy hotel under over "
                   "united states its this his has was as us is bus gas plus thus".split())  # fmt: skip


@lru_cache(maxsize=1 << 16)
def _basic(self: Lexicon, word: str) -> str:
    if word in _WHOLE or len(word) < 4 and word not in self._forms:
        return word
    if (lemma := self._forms.get(word)) is not None:
        return lemma
    for ending, instead in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 2:
            stem = word[: len(word) - len(ending)]
            options = [stem + instead]
            if not instead and len(stem) > 2 and stem[-1] == stem[-2]:
                options.append(stem[:-1])
            for option in options:
                entry = self.entry(option)
                if entry is None or len(option) < 2:
                    continue
                if ending in ("er", "est", "ier", "iest") and not ("a" in entry.parts and word not in self._lines):
                    continue
                if ending == "ly" and "a" not in entry.parts:
                    continue
                if ending in ("ing", "ed", "ied") and "v" not in entry.parts:
                    continue
                return option
    if word in self._lines:
        return word
    return word[:-1] if word.endswith("s") and not word.endswith(("ss", "us", "is")) else word


def _senses(self: Lexicon, word: str) -> set[int]:
    entry = self.entry(word)
    return set(entry.senses) if entry else set()


@lru_cache(maxsize=1 << 14)
def _family(self: Lexicon, word: str) -> frozenset[str]:
    """The word and those derived from it, one step in both directions."""
    entry = self.entry(word)
    return frozenset((word, *(entry.derived if entry else ())))


@lru_cache(maxsize=1 << 14)
def _opposed(self: Lexicon, word: str) -> frozenset[str]:
    found = set(self._sides.get(word, ()))
    if entry := self.entry(word):
        found.update(entry.opposites)
    return frozenset(found)


@lru_cache(maxsize=1 << 14)
def _ancestors(self: Lexicon, word: str) -> dict[int, int]:
    """Meanings above those of a word, with the number of steps; at most three."""
    found = dict.fromkeys(_senses(self, word), 0)
    level = list(found)
    for step in range(1, 4):
        level = [parent for sense in level for parent in self.above(sense) if parent not in found]
        found.update(dict.fromkeys(level, step))
    return found


@lru_cache(maxsize=1 << 16)
def _relation(self: Lexicon, ours: str, theirs: str) -> int:
    if ours == theirs:
        return SAME
    mine, other = _family(self, ours), _family(self, theirs)
    if theirs in _opposed(self, ours) or ours in _opposed(self, theirs):
        return OPPOSITE
    if theirs in mine or ours in other:
        return SAME
    if not self._groups.get(ours, set()).isdisjoint(self._groups.get(theirs, ())):
        return SAME
    above, below = _ancestors(self, ours), _ancestors(self, theirs)
    if not above or not below:
        return SAME if not mine.isdisjoint(other) else NONE
    common = above.keys() & below.keys()
    if any(above[sense] == below[sense] == 0 for sense in common):
        return SAME
    if any(_opposed(self, word) & other for word in mine):
        return OPPOSITE
    if not mine.isdisjoint(other):
        return NEAR
    if any(above[sense] == 0 for sense in common):
        return WIDER
    if any(below[sense] == 0 for sense in common):
        return NARROWER
    # A verb derived from a noun that means the same: "conquer", "subjugation".
    if any(not _senses(self, word).isdisjoint(_senses(self, theirs)) for word in mine if word != ours) or any(
        not _senses(self, word).isdisjoint(_senses(self, ours)) for word in other if word != theirs
    ):
        return NEAR
    if any(above[sense] == below[sense] == 1 for sense in common):
        return SISTER
    return NONE

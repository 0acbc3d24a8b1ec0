"""What an English sentence says, as far as words tell: clauses, negation, doubt, quantifiers, verbs and who did what.

No grammar: cues, word endings and order. Wrong at times, and fast.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from hf_factuality.reading.words import FUNCTION_WORDS, PRONOUNS
from hf_factuality.verifiers.judges.lexical.lexicon import lexicon
from hf_factuality.verifiers.judges.lexical.quantities import Quantity, quantities
from hf_factuality.verifiers.judges.lexical.text import in_one_spelling, numbered_names_in_words, without_accents


_PIECE = re.compile(
    r"[^\W\d_]+\d+\w*|\d+(?:st|nd|rd|th)\b|\d{3}0s\b|\d+(?::\d\d)+|\d+(?:,\d{3})*(?:\.\d+)?|"
    r"[^\W\d_]+(?:['’.](?=[^\W\d_])[^\W\d_]+)*|[$€£¥%°,;:.!?()—–−-]"
)

# From the word on to the end of the clause, or everywhere in the clause.
_NOT_ALL = frozenset("not never no none neither nor nobody nothing nowhere cannot n't hardly scarcely barely".split())
_NOT_AFTER = frozenset("without lack fail refuse unable unlikely instead rather unwilling exempt cease stop".split())
_PLANNED = frozenset("will would shall plan intend expect hope aim going due agree promise want wish".split())
_POSSIBLE = frozenset(
    """may might could perhaps maybe possibly possible probably likely suggest believe think suppose assume reportedly
    allege allegedly appear seem if unless whether can speculate suspect predict estimate claim argue consider
    contend rumour""".split()
)
SAYING = frozenset(
    """say tell claim argue believe suggest announce report state assert insist admit deny warn caution propose think
    consider advise blame accuse allege conclude find rule expect predict note explain maintain contend""".split()
)
ALL, MOST, MANY, SOME, FEW, NO, ONLY, BOTH, FIRST, ONE_OF = (
    "all", "most", "many", "some", "few", "no", "only", "both", "first", "one of"
)  # fmt: skip
_QUANTIFIERS = {
    "all": ALL, "every": ALL, "each": ALL, "always": ALL, "everywhere": ALL, "everyone": ALL, "everybody": ALL, "entire": ALL,
    "whole": ALL, "entirely": ALL, "completely": ALL, "most": MOST, "majority": MOST, "mostly": MOST, "mainly": MOST, "many": MANY,
    "numerous": MANY, "some": SOME, "several": SOME, "certain": SOME, "sometimes": SOME, "partly": SOME, "various": SOME,
    "few": FEW, "no": NO, "none": NO, "neither": NO, "nobody": NO, "only": ONLY, "sole": ONLY, "solely": ONLY,
    "both": BOTH, "first": FIRST, "often": MANY, "usually": MOST, "rarely": FEW,
}  # fmt: skip
_BE = frozenset("is are was were be been being am".split())
_HAVE = frozenset("has have had having".split())
_MODAL = frozenset("will would can could may might must shall should to did do does".split())
_DETERMINERS = frozenset("the a an this that these those its his her their our my your no every each some any".split())
_BREAKS = frozenset(
    """and but or while whereas although though because since when where which who whom whose that after before until if
    unless so yet than as however despite""".split()
)
_PREPOSITIONS = frozenset(
    """of in on at by to from with without for as into onto upon over under about after before between during through
    near across against along among around beside behind beyond inside outside toward towards within""".split()
)
EMPTY_VERBS = frozenset("be have do make take get give go come become use include".split())
_REFERRING = PRONOUNS | frozenset("him them hers theirs whose who which".split())
_AUXILIARY = _BE | _HAVE | _MODAL | frozenset("not n't never once also then first later soon now already to".split())
_EXCEPT = frozenset("except excepting excluding".split())
_OBJECTS = frozenset("it him them her this that".split())
_PRONOUNS = frozenset("he she it they them we i you".split())
# No sentence is longer; what is, such as a table in one line, is read so far.
_LONGEST, _MOST_WORDS = 3000, 250


class Word(NamedTuple):
    """A content word, at a position among all words of its sentence."""

    at: int
    base: str
    name: bool  # has a capital that is not the first word's
    parts: str  # parts of speech that it can have; "" for unknown words
    verb: bool
    clause: int
    negated: bool
    doubt: str  # "", "planned" or "possible"
    before: str  # the preposition that it stands behind, "" for none


class Verb(NamedTuple):
    """A verb with its two sides: positions of the content words, nearest first; passives are turned around."""

    at: int
    base: str
    agents: tuple[int, ...]
    patients: tuple[int, ...]
    object: bool = False  # whether it has an object that is a pronoun
    alone: bool = False  # whether it is active and has no object
    either: bool = False  # whether it may as well be passive then: "a film released in May is ..."


class Analysis(NamedTuple):
    """A sentence."""

    words: tuple[str, ...]
    content: tuple[Word, ...]
    quantities: tuple[Quantity, ...]
    quantifiers: tuple[tuple[str, str, int], ...]  # quantifier, what it is said of, position
    verbs: tuple[Verb, ...]
    saying: tuple[str, ...]  # verbs of saying and thinking
    pronoun: bool  # whether it speaks of somebody or something named before
    negated: tuple[bool, ...]  # of each word
    by_base: dict[str, int]  # index into `content` of the first word with a basic form


def split_words(text: str) -> tuple[list[str], list[tuple[int, int]], set[int]]:
    """Words and marks as they are written, where each stands in the text, and which had "'s" ("the island's wells")."""
    forms: list[str] = []
    places: list[tuple[int, int]] = []
    owners: set[int] = set()
    for found in islice(_PIECE.finditer(text, 0, _LONGEST), _MOST_WORDS):
        piece = found[0].replace("’", "'")
        lower = piece.lower()
        if lower.endswith("n't") and len(lower) > 3:
            forms += ({"ca": "can", "wo": "will", "sha": "shall"}.get(lower[:-3], lower[:-3]), "n't")
        elif lower == "cannot":
            forms += ("can", "not")
        elif "'" in lower[1:] and lower.endswith(("'s", "'re", "'ll", "'ve", "'d", "'m")):
            owners |= {len(forms)} if lower.endswith("'s") else set()
            forms.append(piece[: piece.index("'")])
        elif piece == "-" and _is_sign(text, found.start(), forms):
            forms.append("−")
        else:
            forms.append(piece)
        places += [found.span()] * (len(forms) - len(places))
    return forms, places, owners


def _is_sign(text: str, at: int, before: list[str]) -> bool:
    """Whether a hyphen is that of "showed -20", and not of "COVID-19", "10 -20" or "- 5"."""
    alone = not at or text[at - 1].isspace() or text[at - 1] in "([:"
    return alone and text[at + 1 : at + 2].isdigit() and not (before and before[-1][-1].isdigit())


@lru_cache(maxsize=1 << 13)
def analyse(text: str) -> Analysis:
    """The analysis of a sentence; remembered, as the completions of one prompt share their evidence."""
    book = lexicon()
    forms, _, owners = split_words(without_accents(numbered_names_in_words(in_one_spelling(text))))
    words = [form.lower() for form in forms]
    bases = [book.basic(word) for word in words]
    found = quantities(words, bases)
    counted = {position for one in found for position in range(one.at, one.end)}
    clauses = _clauses(words)
    negated, lacking, doubts = _scopes(words, bases, clauses)
    content: list[Word] = []
    before = ""
    for at, word in enumerate(words):
        if word in _PREPOSITIONS:
            before = word
        direction = word in ("more", "less", "fewer") and at not in counted and not (
            words[at + 1 : at + 2] == ["than"] and words[at + 2 : at + 3] and (words[at + 2][0].isdigit() or at + 2 in counted)
        )  # fmt: skip
        if (
            not direction
            and not word[0].isalpha()
            or not direction
            and word in FUNCTION_WORDS
            or word == "n't"
            or word in _QUANTIFIERS
        ):
            if word in _BREAKS or not word[0].isalnum() and word not in "-$€£":
                before = ""
            continue
        if at in counted:
            continue
        parts = book.parts(bases[at])
        first = at == 0 or words[at - 1] in (".", "!", "?")
        capital = forms[at][0].isupper()
        name = capital and (not first or parts in ("", "p") and len(word) > 1)
        verb = not capital and _is_verb(words, bases, parts, at)
        content.append(
            Word(at, bases[at] if not name else _name(word), name, "" if name else parts, verb, clauses[at], negated[at] if verb or "n" not in parts else lacking[at],
                 doubts[at], before if not verb else "")
        )  # fmt: skip
        if verb:
            before = ""
    _find_verbs(words, content)
    by_base: dict[str, int] = {}
    for number, one in enumerate(content):
        by_base.setdefault(one.base, number)
    return Analysis(
        tuple(words), tuple(content), tuple(found), tuple(_quantified(words, bases, owners)),
        tuple(_verbs(words, content)), tuple(base for base in bases if base in SAYING),
        not _REFERRING.isdisjoint(words), tuple(negated), by_base,
    )  # fmt: skip


def _name(word: str) -> str:
    return word[:-1] if word.endswith("s") and len(word) > 4 and not word.endswith("ss") else word


def _clauses(words: list[str]) -> list[int]:
    """The clause of each word: a new one behind a mark, or a joining word with a verb to come."""
    clause, found = 0, []
    for at, word in enumerate(words):
        opens = word in (";", ":", "(", ")", "—", ".")
        if word in _BREAKS and word not in ("that", "than", "as", "or"):
            opens = (
                word != "and" or at > 0 and words[at - 1] == "," or not (at + 1 < len(words) and _listed(words, at))
            )
        if opens and found:
            clause += 1
        found.append(clause)
    return found


def _listed(words: list[str], at: int) -> bool:
    """Whether "and" joins two things rather than two clauses: no verb follows at once."""
    following = words[at + 1 : at + 3]
    return not any(word in _BE or word in _HAVE or word.endswith("ed") or word in ("did", "do", "does", "will", "never", "not") for word in following)  # fmt: skip


def _scopes(words: list[str], bases: list[str], clauses: list[int]) -> tuple[list[bool], list[bool], list[str]]:
    """Whether a verb at each place is negated, whether a noun is ("no deaths"), and whether a verb is planned or possible."""
    count = len(words)
    negated, lacking, doubts = [False] * count, [False] * count, [""] * count
    for at, (word, base) in enumerate(zip(words, bases, strict=True)):
        if word in _NOT_ALL and not (word == "not" and words[at + 1 : at + 2] == ["only"]) and not (
            word == "no" and words[at + 1 : at + 2] in (["more"], ["fewer"], ["less"])
        ):  # fmt: skip
            object_of = word in ("no", "none", "neither", "nobody", "nothing")
            for other in range(count):
                if clauses[other] == clauses[at] and (other > at or object_of and at - 2 <= other):
                    negated[other] = not negated[other]
            if object_of and word != "nobody":
                _lack(words, at, clauses, lacking)
            elif any(base in EMPTY_VERBS or base in _BE for base in bases[max(at - 1, 0) : at + 3]):
                _lack(words, at, clauses, lacking)  # "do not use echolocation"
        elif base in _NOT_AFTER:
            for other in range(at + 1, count):
                if clauses[other] != clauses[at]:
                    break
                negated[other] = not negated[other]
            if base in ("without", "lack", "exempt"):
                _lack(words, at, clauses, lacking)
        kind = "planned" if base in _PLANNED or word in _PLANNED else "possible" if base in _POSSIBLE or word in _POSSIBLE else ""  # fmt: skip
        if word == "likely" and at and words[at - 1] in ("as", "more", "less", "so"):
            kind = ""
        if kind and not (word in ("can", "could") and at + 1 < count and words[at + 1] in ("not", "n't")):
            for other in range(at + 1, count):
                if clauses[other] > clauses[at] + (words[clauses.index(clauses[other])] == "that"):
                    break
                doubts[other] = doubts[other] or kind
    if _are_to(words):
        at = next(i for i in range(count - 1) if words[i] in _BE and words[i + 1] == "to")
        for other in range(at, count):
            if clauses[other] == clauses[at]:
                doubts[other] = doubts[other] or "planned"
    return negated, lacking, doubts


def _lack(words: list[str], at: int, clauses: list[int], lacking: list[bool]) -> None:
    """Marks the nouns behind a word that says that there are none."""
    for other in range(at + 1, min(at + 6, len(words))):
        if clauses[other] != clauses[at] or words[other] in _PREPOSITIONS and words[other] != "of" and other > at + 1:
            break
        lacking[other] = not lacking[other]


def _are_to(words: list[str]) -> bool:
    """ "are to be installed" """
    return any(words[i] in ("is", "are", "was", "were") and words[i + 1] == "to" for i in range(len(words) - 1))


def _is_verb(words: list[str], bases: list[str], parts: str, at: int) -> bool:
    if "v" not in parts:
        return False
    word, base = words[at], bases[at]
    before = words[at - 1] if at else ""
    if (
        before in _MODAL
        and (before != "to" or word == base)
        or before in ("not", "n't", "never", "also", "who", "which", "he", "she", "they", "it")
    ):
        return True
    if before in _DETERMINERS:
        return False
    if word == base:
        return parts == "v" or parts[0] == "v" and before not in _PREPOSITIONS and at > 0
    if word.endswith("ing"):
        return before in _BE or parts == "v" or before in _PREPOSITIONS | {"and", ","}
    if word.endswith("s") and not word.endswith("ed"):
        if "n" not in parts:
            return True
        following = words[at + 1] if at + 1 < len(words) else ""
        return (before[:1].isalpha() and before not in FUNCTION_WORDS and before not in _PREPOSITIONS and not before[0].isdigit()
                and (following in _DETERMINERS or following in _PREPOSITIONS or not following[:1].isalpha()) and parts[0] == "v")  # fmt: skip
    return before not in _PREPOSITIONS or before == "to"


def _find_verbs(words: list[str], content: list[Word]) -> None:
    """A clause in which no verb was found has one after all, if a word can be one: "the study finds", "sales rise"."""
    for clause in {one.clause for one in content}:
        part = [i for i, one in enumerate(content) if one.clause == clause]
        if any(content[i].verb for i in part) or any(words[at] in _BE | _HAVE for at in range(content[part[0]].at, content[part[-1]].at)):  # fmt: skip
            continue
        for i in part[1:]:
            one = content[i]
            if "v" in one.parts and (words[one.at] != one.base or words[one.at - 1].endswith("s")) and words[one.at - 1] not in _DETERMINERS | _PREPOSITIONS:  # fmt: skip
                content[i] = one._replace(verb=True, before="")
                break


def _verbs(words: list[str], content: list[Word]) -> Iterable[Verb]:
    """Each verb with the words on its two sides; what a relative clause is about is its agent."""
    subject: list[int] | None = None
    others_are = sum(one.verb for one in content) > 1 or not (_BE | _HAVE).isdisjoint(words)
    for number, one in enumerate(content):
        if not one.verb:
            continue
        at = one.at
        near = words[max(at - 3, 0) : at]
        participle = not words[at].endswith("s") and words[at] != one.base and not words[at].endswith("ing")
        # "was won by", "the town taken by"
        by = next((i for i in range(at + 1, min(at + 7, len(words))) if words[i] == "by"), None)
        if by is not None and any(other.verb and at < other.at < by for other in content):
            by = None
        at_once = by == at + 1 or by == at + 2 and words[at + 1] in _PREPOSITIONS  # "paid for by"
        passive = words[at] == "born" or participle and (any(word in _BE for word in near) and not any(word in _HAVE and "been" not in near for word in near) or at_once and not _measured(words, by))  # fmt: skip
        if not passive and participle and "been" in near:
            passive = True
        if near[-1:] == ["to"] and words[max(at - 2, 0) : at] == ["be", "to"]:
            passive = False
        right = _beside(content, range(number + 1, len(content)), (one.clause,))
        joined = next((words[i] for i in range(at - 1, -1, -1) if words[i] not in _AUXILIARY), "")
        if joined in _PRONOUNS:
            left = []
        elif subject is not None and (
            joined in ("and", "but", "or", "then", ",", "also") or words[at - 1] == "to" and content[number - 1].verb
        ):  # fmt: skip
            left = list(subject)
        else:
            left = _beside(content, range(number - 1, -1, -1), (one.clause, one.clause - 1))
        subject = left
        if passive:
            agents = [i for i in right if by is not None and content[i].at > by]
            patients = left
            others = [i for i in right if i not in agents]
            yield Verb(at, one.base, tuple(agents), tuple(patients + others))
        else:
            pronoun = at + 1 < len(words) and words[at + 1] in _OBJECTS
            alone = words[at - 1] == "-" or not pronoun and not (right and not content[right[0]].before)
            either = alone and participle and (others_are or words[at - 1] == "-")
            yield Verb(at, one.base, tuple(left), tuple(right), pronoun, alone, either)


def _measured(words: list[str], by: int) -> bool:
    """ "by a tenth", "by 3%", and not "by Studio 54" """
    return words[by + 1 : by + 2] != [] and words[by + 1][0].isdigit() or not {"tenth", "third", "half", "quarter"}.isdisjoint(words[by + 1 : by + 3])  # fmt: skip


def _beside(content: list[Word], order: Iterable[int], clauses: tuple[int, ...]) -> list[int]:
    """The nouns and names on one side of a verb, up to another verb."""
    found: list[int] = []
    for i in order:
        one = content[i]
        if one.verb or one.clause not in clauses or found and one.clause != content[found[0]].clause:
            break
        if one.name or not one.parts or "n" in one.parts and one.parts[0] not in "r":
            found.append(i)
    return found


def _quantified(words: list[str], bases: list[str], owners: set[int]) -> Iterable[tuple[str, str, int]]:
    """Quantifiers with the noun that each is said of."""
    for at, word in enumerate(words):
        kind = _QUANTIFIERS.get(word)
        if kind is None or word == "first" and words[at + 1 : at + 2] in (["of"],):
            continue
        if word == "most" and at and words[at - 1] in ("the", "at") or word == "no" and words[at + 1 : at + 2] in (["longer"], ["more"], ["fewer"], ["less"]):  # fmt: skip
            continue
        if word == "few" and words[at - 1 : at] == ["a"]:
            kind = SOME
        if kind == ALL and (words[at + 1 : at + 2] == ["but"] or not _EXCEPT.isdisjoint(words[at + 1 :])):
            kind = MOST
        if (
            word == "first"
            and words[max(at - 1, 0)] in ("her", "his", "its", "their", "'s")
            or at - 1 in owners
            and kind == FIRST
        ):
            continue
        if word == "first" and ("one" in words[max(at - 3, 0) : at] or "among" in words[max(at - 3, 0) : at]):
            kind = ONE_OF
        noun = ""
        for position in range(at + 1, min(at + 7, len(words))):
            other = words[position]
            if other in ("them", "whom", "which"):
                break
            if position in owners or other[0].isdigit() or other in ("of", "the", "its", "their", "his", "her", "these", "those", "two", "three", "all", "-"):  # fmt: skip
                continue
            if not other[0].isalpha() or other in FUNCTION_WORDS or other in _QUANTIFIERS:
                break
            noun = bases[position]
            if other.endswith("s") and noun != other:
                break
        yield kind, noun, at

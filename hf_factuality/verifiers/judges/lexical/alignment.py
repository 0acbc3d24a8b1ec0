"""Where a claim differs from the sentences that come closest to it: each difference a number in [0, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hf_factuality.verifiers.judges.lexical.analysis import (
    ALL,
    BOTH,
    EMPTY_VERBS,
    FEW,
    FIRST,
    MANY,
    MOST,
    NO,
    ONE_OF,
    ONLY,
    SAYING,
    SOME,
    Analysis,
    Verb,
    Word,
)
from hf_factuality.verifiers.judges.lexical.lexicon import (
    NARROWER,
    NEAR,
    NONE,
    OPPOSITE,
    SAME,
    SISTER,
    WIDER,
    lexicon,
)
from hf_factuality.verifiers.judges.lexical.quantities import (
    AGREES,
    CONFLICTS,
    EXACT,
    SECONDS_OF_A_YEAR,
    Quantity,
    compare_quantities,
    worked_out,
)


class Differences(NamedTuple):
    """What a claim has otherwise than its evidence; 0 is no difference."""

    words: float  # share of its words that no sentence says in any form
    rare: float  # the same by their number rather than their share
    most: float  # the same share as far as it goes beyond a half: hardly a paraphrase any more
    bare: float  # whether nothing of it is there but names
    new_names: float  # names that no sentence has
    verb: float  # whether its first verb is among these words
    far: float  # share of its words that the closest sentence does not say
    far_names: float  # names that the sentence of its verb does not have
    number: float  # share of its quantities that the evidence gives otherwise
    number_new: float  # that it does not give
    number_moved: float  # that it gives of something else
    number_negated: float  # that it denies
    number_worked: float  # that follows from two of its numbers, such as a difference
    negated: float  # whether a verb or a noun is negated in one of the two only
    opposite: float  # whether a verb or adjective stands against the evidence's
    roles: float  # whether who did it and to whom are exchanged
    agent: float  # whether somebody else did it
    sequence: float  # whether what came first came second
    quantifier: float  # more than the evidence's: "all" for "most"
    quantifier_new: float  # a quantifier where the evidence has none
    doubt: float  # as a fact what the evidence plans, reports or holds possible
    patient: float  # whether it was done to something else
    astray: float  # names and nouns that the evidence has, but not with this verb
    added: float  # words that it adds to a verb and its agent that the evidence has
    holder: float  # whether somebody else said it
    scattered: float  # share of the words outside the clause that holds most of them
    preposition: float  # names behind another preposition


FIELDS = Differences._fields

_ENTAILED = {
    ALL: {ALL, MOST, MANY, SOME, BOTH}, MOST: {MOST, MANY, SOME}, MANY: {MANY, SOME}, SOME: {SOME}, FEW: {FEW, SOME, ONLY},
    NO: {NO, FEW}, BOTH: {BOTH, ALL, SOME}, ONLY: {ONLY, FEW}, FIRST: {FIRST, ONE_OF}, ONE_OF: {ONE_OF},
}  # fmt: skip
_STRONG = frozenset((ALL, MOST, BOTH, ONLY))
# Prepositions that can stand for each other have one name.
_PLACE = {word: word for word in "from to by for before after with without under over".split()} | dict.fromkeys(("in", "at", "of", "on", "near"), "in")  # fmt: skip
_RANK = {NONE: 0, SISTER: 1, OPPOSITE: 2, NARROWER: 3, NEAR: 4, WIDER: 5, SAME: 6}
_FOLLOWS = frozenset((SAME, NEAR, WIDER))
_HOLDS = _FOLLOWS | {OPPOSITE}
_DOUBT = {"": 0, "planned": 1, "possible": 2}


class _Match(NamedTuple):
    relation: int
    index: int  # into the content of the sentence


_UNMATCHED = _Match(NONE, -1)


def _match(ours: Word, sentence: Analysis, keys: Sequence[frozenset], together: frozenset) -> _Match:
    """What in a sentence is closest to a word of the claim, by the lexicon's keys of each of its words and of them together."""
    if (place := sentence.by_base.get(ours.base)) is not None:
        return _Match(SAME, place)
    best = _UNMATCHED
    book = lexicon()
    mine = book.keys(ours.base)
    if mine.isdisjoint(together):
        return best
    for index, other in enumerate(keys):
        if mine.isdisjoint(other):
            continue
        theirs = sentence.content[index]
        relation = book.relation(ours.base, theirs.base)
        if relation != SAME and (
            ours.name or theirs.name or ours.verb != theirs.verb and relation in (SISTER, NARROWER)
        ):
            continue
        if _RANK[relation] > _RANK[best.relation]:
            best = _Match(relation, index)
    return best


class _Frame(NamedTuple):
    """A verb of the claim beside one of a sentence."""

    ours: Verb
    theirs: Verb
    sentence: int
    relation: int
    straight: float  # agents that are agents, and patients that are patients
    cross: float
    agent: bool  # whether both have an agent, and none in common
    turned: bool  # "sell" beside "buy"
    loose: bool  # "the bridge opened" beside "the bridge was opened": the sides of the verb say nothing


def find_differences(claim: Analysis, sentences: Sequence[Analysis], known: frozenset[str]) -> Differences:
    """The differences of a claim from the sentences that are closest to it.

    Args:
        claim (`Analysis`):
            The claim.
        sentences (`Sequence[Analysis]`):
            Sentences of the evidence, in the order of the text.
        known (`frozenset[str]`):
            Words that the claim may use without saying anything: what the passages are about.
    """
    if not sentences:
        return Differences(**dict.fromkeys(FIELDS, 1.0))
    content = claim.content
    keys = [[lexicon().keys(word.base) for word in sentence.content] for sentence in sentences]
    together = [frozenset().union(*words) for words in keys]
    table = [[_match(word, *those) for word in content] for those in zip(sentences, keys, together, strict=True)]
    weight = [1.5 if word.name else 0.4 if word.base in EMPTY_VERBS else 1.0 for word in content]
    total = sum(weight) or 1.0
    best = [max((row[i] for row in table), key=lambda m: _RANK[m.relation]) for i in range(len(content))]
    missing = [m.relation not in _HOLDS and word.base not in known for m, word in zip(best, content, strict=True)]
    gone = sum(size for size, absent in zip(weight, missing, strict=True) if absent)
    # "It weighs 12 kg": what the sentence before was about.
    topics = [_topic(sentence) for sentence in sentences]
    about = [topics[n - 1] if n and sentence.pronoun else frozenset() for n, sentence in enumerate(sentences)]
    for n in range(1, len(sentences)):
        if not topics[n] and about[n]:
            topics[n] = about[n]
            about[n + 1 : n + 2] = (
                [about[n]] if n + 1 < len(sentences) and sentences[n + 1].pronoun else about[n + 1 : n + 2]
            )
    here = [
        [m.index >= 0 and m.relation in _HOLDS or word.base in topic for m, word in zip(row, content, strict=True)]
        for row, topic in zip(table, about, strict=True)
    ]
    held = [sum(size for size, holds in zip(weight, row, strict=True) if holds) for row in here]
    frames = _frames(claim, sentences)
    frame = max(
        frames, key=lambda one: (one.straight + one.cross, one.relation == SAME, held[one.sentence]), default=None
    )
    main = max(range(len(sentences)), key=lambda n: (held[n] + (0.5 if frame and frame.sentence == n else 0.0), -n))
    verb = next((i for i, word in enumerate(content) if word.verb and word.base not in EMPTY_VERBS), None)
    numbers = _numbers(claim, sentences, table, here, weight)
    names = [i for i, word in enumerate(content) if word.name]
    at_verb = frame.sentence if frame and frame.straight + frame.cross else main
    said = [
        sum(size for size, m in zip(weight, row, strict=True) if m.index >= 0 and m.relation in _HOLDS)
        for row in table
    ]
    near = [n for n in range(len(sentences)) if said[n] and said[n] >= 0.9 * max(said)] or [main]
    one = min((_against(claim, sentences[n], table[n], weight) for n in near), key=lambda pair: sum(pair.values()))
    roles, agent, patient, opposed, settled, astray, decisive = _roles(frames, claim, sentences, missing)
    extra = sum(
        size for i, (size, word) in enumerate(zip(weight, content, strict=True))
        if missing[i] and not word.verb and "r" not in word.parts[:1]
    )  # fmt: skip
    return Differences(
        words=gone / total,
        rare=1 - 1 / (1 + gone / 2),
        most=max(0.0, 2 * gone / total - 1),
        bare=float(not (claim.quantities and numbers[0] + numbers[1] < 1) and not any(
            m.relation in _HOLDS and not word.name for m, word in zip(best, content, strict=True)
        )),
        new_names=1 - 1 / (1 + sum(missing[i] for i in names)),
        verb=float(verb is not None and missing[verb]),
        far=sum(size for size, holds, word in zip(weight, here[main], content, strict=True) if not holds and word.base not in known) / total,
        far_names=1 - 1 / (1 + sum(not here[at_verb][i] and not missing[i] for i in names)),
        number=numbers[0], number_new=numbers[1], number_moved=numbers[2], number_negated=numbers[3], number_worked=numbers[4],
        negated=one["negated"],
        opposite=0.0 if settled else max(one["opposite"], one["opposed"] if opposed is None else float(opposed)),
        roles=roles, agent=agent, sequence=_sequence(claim, sentences, table), patient=patient, astray=astray,
        added=1 - 1 / (1 + extra) if decisive and decisive.straight and decisive.relation in _FOLLOWS else 0.0,
        holder=_holder(claim, sentences[main]),
        quantifier=one["quantifier"], quantifier_new=one["quantifier_new"], doubt=one["doubt"],
        scattered=one["scattered"], preposition=one["preposition"],
    )  # fmt: skip


def _topic(sentence: Analysis) -> frozenset[str]:
    """What a sentence is about: the words before its first verb."""
    found = []
    for word in sentence.content:
        if word.verb and found:
            break
        found.append(word.base)
    return frozenset(found)


def _against(claim: Analysis, sentence: Analysis, row: list[_Match], weight: list[float]) -> dict[str, float]:
    """The differences that need one sentence: negation, opposites, quantifiers, doubt."""
    held, placed, moved = 0.0, 0, 0
    negated = opposite = opposed = doubt = 0.0
    verbs = False
    clauses: dict[int, float] = {}
    says = any(word in SAYING for word in claim.saying)
    for ours, match, size in zip(claim.content, row, weight, strict=True):
        if match.index < 0 or match.relation in (SISTER, NARROWER):
            continue
        theirs = sentence.content[match.index]
        held += size
        clauses[theirs.clause] = clauses.get(theirs.clause, 0.0) + size
        if ours.name:
            if ours.before in _PLACE and theirs.before in _PLACE:
                placed += 1
                moved += _PLACE[ours.before] != _PLACE[theirs.before]
            continue
        against = match.relation == OPPOSITE and not lexicon().converse(ours.base, theirs.base)
        odd = ours.negated != theirs.negated
        if odd != against:
            if against and (ours.verb or theirs.verb):
                opposed = 1.0
            elif against:
                opposite = 1.0
            else:
                negated = max(negated, 1.0 if ours.verb or theirs.verb else 0.5)
        verbs = verbs or ours.verb and theirs.verb
        if ours.verb and theirs.verb and not says and _DOUBT[theirs.doubt] > _DOUBT[ours.doubt]:
            doubt = 1.0 if theirs.doubt == "possible" else 0.8
    if verbs and negated == 0.5:  # the verb tells, and agrees
        negated = 0.0
    stronger, new = _quantifiers(claim, sentence)
    return {
        "negated": negated, "opposite": opposite, "opposed": opposed, "doubt": doubt, "quantifier": stronger, "quantifier_new": new,
        "scattered": 1 - max(clauses.values()) / held if held else 0.0, "preposition": moved / placed if placed else 0.0,
    }  # fmt: skip


def _heads(indices: Sequence[int], content: Sequence[Word], count: int = 3) -> list[Word]:
    """The nearest words to a verb."""
    return [content[i] for i in indices[:count]]


_ANYBODY = frozenset("people person man woman someone anybody".split())
# What is opened also opens: verbs whose subject, where they have no object, is what their object would be.
_LABILE = frozenset(
    """
    accelerate accumulate adjourn age assemble balance bake begin bend blow boil break broaden broadcast burn burst change
    close collapse combine commence complete conclude congregate consolidate continue convene convert cook cool crack crash debut
    decrease deepen deflate develop disband disperse dissolve divide double drain drop dry empty end enlarge enroll evolve
    expand explode extend fill finish flood float form freeze gather graduate grow halt heal heat ignite improve increase
    incorporate inflate integrate launch lengthen light loosen lower melt merge move narrow open operate originate pause
    premiere qualify quadruple quicken reopen recover reduce register relocate reorganize resume retire reunite roll rotate
    run sail scatter separate shatter shift shorten show shrink shut sink slide slow spill spin split spread stabilize start
    stop strengthen stretch suspend swing tear terminate thaw tighten topple transfer transform treble triple turn unite vary
    warm weaken widen worsen
    """.split()
)
# Who of the two is which says nothing: whom one meets meets one.
_MUTUAL = frozenset(
    """
    adjoin agree ally argue befriend border clash coincide collaborate compete cooperate correspond date debate differ disagree
    divorce fight intersect marry meet overlap play quarrel resemble wed
    """.split()
)


def _same(ours: Word, theirs: Word) -> bool:
    return ours.base == theirs.base or lexicon().relation(ours.base, theirs.base) in (SAME, NEAR, WIDER)


def _hits(ours: Sequence[Word], theirs: Sequence[Word]) -> float:
    return float(sum(any(_same(one, other) for other in theirs) for one in ours)) / len(ours) if ours else 0.0


def _frames(claim: Analysis, sentences: Sequence[Analysis]) -> list[_Frame]:
    """Each verb or comparative of the claim beside each of the sentences that is the same, or its opposite."""
    book, found = lexicon(), []
    mine = [verb for verb in claim.verbs if verb.base not in EMPTY_VERBS or len(claim.verbs) == 1]
    mine += _compared(claim)
    for number, sentence in enumerate(sentences):
        for theirs in (*sentence.verbs, *_compared(sentence)):
            for ours in mine:
                relation = book.relation(ours.base, theirs.base)
                if relation not in (SAME, NEAR, OPPOSITE, WIDER):
                    continue
                agents, patients = _heads(ours.agents, claim.content), _heads(ours.patients, claim.content)
                doers, objects = (
                    _heads(theirs.agents, sentence.content, 4),
                    _heads(theirs.patients, sentence.content, 5),
                )
                turned = book.converse(ours.base, theirs.base)
                if turned:
                    doers, objects = objects, doers
                    relation = SAME
                loose = (
                    {ours.base, theirs.base} <= _MUTUAL
                    or ours.alone != theirs.alone
                    and any(verb.either or verb.alone and verb.base in _LABILE for verb in (ours, theirs))
                )
                if loose:
                    doers = objects = [*doers, *objects]
                straight = _hits(agents, doers) + _hits(patients, objects)
                cross = _hits(agents, objects) + _hits(patients, doers)
                found.append(
                    _Frame(ours, theirs, number, relation, straight, cross, bool(agents and doers) and not _hits(agents, doers) and not any(word.base in _ANYBODY for word in agents), turned, loose)
                )  # fmt: skip
    return found


def _roles(frames: Sequence[_Frame], claim: Analysis, sentences: Sequence[Analysis], missing: list[bool]) -> tuple[float, float, float, bool | None, bool, float, _Frame | None]:  # fmt: skip
    """Whether roles are exchanged, agent or patient another, the verb the opposite (`None`: no verb) or an opposite seen from the
    other side, what is astray, and the verb that decided."""
    exchanged, other, another, opposed, astray = 0.0, 0.0, 0.0, None, 0
    decisive, settled = None, False
    for ours in {frame.ours: None for frame in frames}:
        mine = [frame for frame in frames if frame.ours == ours]
        best = max(
            mine, key=lambda one: (max(one.straight, one.cross), one.straight >= one.cross, _RANK[one.relation])
        )
        if not max(best.straight, best.cross):
            continue
        decisive = decisive or best
        theirs, sentence = best.theirs, sentences[best.sentence]
        sides = theirs.agents, theirs.patients
        if best.turned:
            sides = theirs.patients, theirs.agents
        if best.loose:
            sides = (theirs.agents + theirs.patients,) * 2
        agents, patients = ([claim.content[i] for i in side] for side in (ours.agents, ours.patients))
        doers, objects = ([sentence.content[i] for i in side] for side in sides)
        against = best.relation == OPPOSITE
        odd = bool(claim.negated[ours.at]) != bool(sentence.negated[theirs.at])
        crossed = best.cross - best.straight >= 0.5
        # Names decide, where there are some.
        for side, same, opposite in ((agents, doers, objects), (patients, objects, doers)):
            named = [word for word in side if word.name]
            if named and not any(_same(word, one) for word in named for one in same) and any(
                _same(word, one) for word in named for one in opposite
            ):  # fmt: skip
                crossed = crossed or bool(same)
        if against and not odd and not crossed and best.straight >= 0.5:
            opposed = True
        elif opposed is None and not against:
            opposed = False
        settled = settled or crossed and against  # the older of the two is the other's newer
        if crossed and not against:
            exchanged = 1.0
        elif not crossed:
            other = max(other, float(best.agent))
            around = [*doers, *objects]
            there = [i for i in (*ours.agents[:3], *ours.patients[:4]) if not missing[i] and not claim.content[i].verb]
            lost = [i for i in there if not any(_same(claim.content[i], one) for one in around)]
            if not doers or sentence.pronoun:  # the subject may be a pronoun
                lost = [i for i in lost if i not in ours.agents]
            astray += sum(1.0 if claim.content[i].name else 0.5 for i in lost)
            if ours.patients and objects and there and not theirs.object:
                first = claim.content[ours.patients[0]]
                another = max(another, float(not missing[ours.patients[0]] and not _hits([claim.content[i] for i in ours.patients[:3]], objects) and not first.verb))  # fmt: skip
    return exchanged, other, another, opposed, settled, 1 - 1 / (1 + astray), decisive


def _said_by(sentence: Analysis) -> list[Word] | None:
    """Who says what a sentence reports; `None`: it reports nothing."""
    found = None
    for verb in sentence.verbs:
        if verb.base in SAYING:
            found = (found or []) + [sentence.content[i] for i in verb.agents[:4]]
    for number, word in enumerate(sentence.content):  # "the airline's argument"
        if not word.verb and "n" in word.parts and not SAYING.isdisjoint(lexicon().entry(word.base).derived):
            found = (found or []) + list(sentence.content[max(number - 2, 0) : number])
    for at, word in enumerate(sentence.words):
        if word == "according":
            found = (found or []) + [one for one in sentence.content if at < one.at <= at + 6]
    return found


def _holder(claim: Analysis, sentence: Analysis) -> float:
    """Whether the claim has somebody else say it, or nobody where the evidence only reports it."""
    ours, theirs = _said_by(claim), _said_by(sentence)
    if ours and theirs and not any(_same(one, other) for one in ours for other in theirs):
        return 1.0
    if ours and theirs is None:
        return 0.5
    return 0.0


def _compared(sentence: Analysis) -> list[Verb]:
    """Comparatives as verbs: "A is older than B" has A on one side and B on the other."""
    found = []
    for at, word in enumerate(sentence.words):
        if word != "than":
            continue
        before = [i for i, one in enumerate(sentence.content) if one.at < at]
        after = [i for i, one in enumerate(sentence.content) if one.at > at]
        if before and after:
            pivot = sentence.content[before[-1]]
            found.append(Verb(pivot.at, pivot.base, tuple(reversed(before[:-1])), tuple(after)))
    return found


_AFTER = frozenset(("after", "following"))
_BEFORE = frozenset(("before", "until", "prior"))


def _sides(sentence: Analysis) -> tuple[list[int], list[int]] | None:
    """Indices of the words that come first in time, and of those that come then, as "before" or "after" tells."""
    for at, word in enumerate(sentence.words):
        if word in _AFTER | _BEFORE and at and at + 1 < len(sentence.words):
            left = [i for i, one in enumerate(sentence.content) if one.at < at]
            right = [i for i, one in enumerate(sentence.content) if one.at > at]
            verbs = [i for i in left if sentence.content[i].verb]
            left = left[left.index(verbs[-1]) :] if verbs else left
            if left and right:
                return (left, right) if word in _BEFORE else (right, left)
    return None


def _sequence(claim: Analysis, sentences: Sequence[Analysis], table: list[list[_Match]]) -> float:
    """Whether the claim puts two events into the other order than a sentence that holds both."""
    sides = _sides(claim)
    if sides is None:
        return 0.0
    first, second = sides
    for sentence, row in zip(sentences, table, strict=True):
        early = [
            sentence.content[row[i].index] for i in first if row[i].relation in _FOLLOWS and not claim.content[i].name
        ]
        late = [
            sentence.content[row[i].index] for i in second if row[i].relation in _FOLLOWS and not claim.content[i].name
        ]
        if not early or not late:
            continue
        theirs = _sides(sentence)
        if theirs is not None:
            before, after = ({sentence.content[i].at for i in side} for side in theirs)
            ours_early, ours_late = {word.at for word in early}, {word.at for word in late}
            if ours_early & after and ours_late & before and not (ours_early & before and ours_late & after):
                return 1.0
            if ours_early & before and ours_late & after:
                return 0.0
        if min(word.at for word in late) < min(word.at for word in early):
            return 0.6  # told in the other order
    return 0.0


def _quantifiers(claim: Analysis, sentence: Analysis) -> tuple[float, float]:
    """Whether a quantifier says more than the evidence's on the same noun, and whether it is new."""
    book = lexicon()
    stronger, new = 0.0, 0.0
    shares = [one for one in sentence.quantities if one.kind == "share"]
    for kind, noun, _ in claim.quantifiers:
        theirs = [
            other for other, what, _ in sentence.quantifiers
            if not noun or not what or noun == what or book.relation(noun, what) in (SAME, NEAR, WIDER)
        ]  # fmt: skip
        exact = [other for other, what, _ in sentence.quantifiers if noun and what == noun]
        theirs = exact or theirs
        if any(kind in _ENTAILED[other] for other in theirs):
            continue
        if kind in (ALL, MOST, FEW) and shares:
            share = shares[0].low
            fits = share >= 0.999 if kind == ALL else share > 0.5 if kind == MOST else share < 0.5
            stronger = max(stronger, float(not fits))
        elif theirs and kind != FIRST:
            stronger = 1.0
        elif theirs and ONE_OF in theirs:
            stronger = 1.0
        elif kind in _STRONG:
            new = 1.0
    ours = {kind for kind, *_ in claim.quantifiers}
    if ONE_OF not in ours and "first" in claim.words and any(kind == ONE_OF for kind, *_ in sentence.quantifiers):
        stronger = 1.0
    for kind, noun, _ in sentence.quantifiers:
        # "Few families left" is not "families left".
        if kind == FEW and noun and not ours and any(word.base == noun and not word.negated for word in claim.content):
            stronger = max(stronger, 0.5)
    return stronger, new


_LATER = frozenset(("later", "after", "afterwards", "on"))
_EARLIER = frozenset(("earlier", "before", "previously"))


def dated(sentence: Analysis, year: float | None) -> tuple[list[Quantity], float | None]:
    """The quantities of a sentence with the years that it computes ("four years later"), and the last year so far."""
    found = []
    words = sentence.words
    following = [
        Quantity(0, 0, "following", "", EXACT, False, at, at + 2) for at in range(len(words) - 1)
        if words[at] in ("following", "next") and words[at + 1] in ("year", "spring", "summer", "autumn", "winter")
    ]  # fmt: skip
    for one in sorted((*sentence.quantities, *following), key=lambda one: one.at):
        if one.kind == "following":
            if year is not None:
                found.append(one._replace(low=year + 1, high=year + 1, kind="year"))
            continue
        found.append(one)
        if one.kind == "year" and one.low == one.high:
            year = one.low
        elif one.kind == "time" and one.unit in ("year", "decade") and year is not None and one.end < len(words):
            step = round(one.low / SECONDS_OF_A_YEAR)
            if words[one.end] in _LATER or words[one.end] in _EARLIER:
                then = year + (step if words[one.end] in _LATER else -step)
                found.append(Quantity(then, then, "year", "", EXACT, one.about, one.at, one.end))
    return found, year


def _percent_for_count(ours: Quantity, theirs: Quantity) -> bool:
    """Whether one says "40" and the other "40%"."""
    if {ours.kind, theirs.kind} != {"count", "share"}:
        return False
    count, share = (ours, theirs) if ours.kind == "count" else (theirs, ours)
    return math.isclose(count.low, 100 * share.low)


_FIRST_RANK = (1.0, 1.0, "rank")


def _another_rank(unit: str, ranks: set[tuple[str, float]]) -> bool:
    """Whether the evidence ranks the same otherwise: "first" alone often counts nothing, and "the First World War" does."""
    return any(other == unit != "" for other, _ in ranks) and all(place != 1 for _, place in ranks)


def _numbers(claim: Analysis, sentences: Sequence[Analysis], table: list[list[_Match]], here: list[list[bool]], weight: list[float]) -> tuple[float, float, float, float, float]:  # fmt: skip
    """Shares of the claim's quantities that the evidence gives otherwise, not at all, of something else, denies, and gives by two others."""
    ranks = {(one.unit, one.low) for sentence in sentences for one in sentence.quantities if one.kind == "rank"}
    ours = [one for one in claim.quantities if one[:3] != _FIRST_RANK or _another_rank(one.unit, ranks)]
    if not ours:
        return 0.0, 0.0, 0.0, 0.0, 0.0
    theirs: list[tuple[Quantity, float, bool]] = []
    year = None
    relate = lexicon().relation
    for number, sentence in enumerate(sentences):
        extended, year = dated(sentence, year)
        clause_of = [(word.at, word.clause) for word in sentence.content]
        for one in extended:
            # How much of the claim stands in the number's clause, and in its sentence.
            clause = min(clause_of, key=lambda item: abs(item[0] - one.at), default=(0, 0))[1]
            near = 0.0
            for match, size, holds in zip(table[number], weight, here[number], strict=True):
                if holds:
                    there = match.index >= 0 and sentence.content[match.index].clause == clause
                    near += size * (1.0 if there else 0.3)
            theirs.append((one, near, bool(sentence.negated[min(one.at, len(sentence.words) - 1)])))
    conflict = new = moved = denied = worked = 0
    given = [other for other, *_ in theirs]
    for one in ours:
        agreed, against, elsewhere, negated = -1.0, -1.0, False, False
        for other, near, is_negated in theirs:
            verdict = compare_quantities(one, other)
            if one.kind == "count" and other.kind == "count" and one.unit and other.unit and one.unit != other.unit:
                if relate(one.unit, other.unit) not in (SAME, NEAR, WIDER, NARROWER):
                    elsewhere = elsewhere or verdict == AGREES
                    continue
            if verdict == AGREES and near > agreed:
                agreed, negated = near, is_negated
            elif verdict == CONFLICTS or _percent_for_count(one, other):
                against = max(against, near)
        if agreed < 0 and worked_out(one, given):
            worked += 1
        elif agreed < 0 and against >= 0.4 * sum(weight):
            conflict += 1
        elif agreed < 0:
            new += 1
            moved += elsewhere
        else:
            moved += against > agreed + 0.5
            denied += negated and not claim.negated[one.at]
    count = len(ours)
    return conflict / count, new / count, moved / count, denied / count, worked / count

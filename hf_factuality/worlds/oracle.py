"""A verifier that knows the world: every sentence is parsed and looked up, so its labels are exact.

| sentence | label |
|---|---|
| fact of the person asked about | SUPPORTED or CONTRADICTED |
| the same, hedged ("They say ...", "... may have ...") | HEDGED_SUPPORTED or HEDGED_CONTRADICTED |
| what a value lies in ("Vellin is in Arlandia."), plain or hedged | as above |
| ... true, but nothing asked about led to that value before | NO_FACT |
| true fact of somebody else, or of the person but not what the question asks for | NO_FACT |
| false fact of somebody else | CONTRADICTED or HEDGED_CONTRADICTED |
| said already, and true | NO_FACT |
| without a value ("... was born in an unrecorded place.", "The birthplace of ... is not recorded.") or filling | NO_FACT |
| a known sentence about nobody of this world, with a wrong first name, or with a word that names nothing in it (kind `"unknown"`) | UNVERIFIABLE |
| anything else (kind `"unparsable"`) | UNVERIFIABLE |

So true sentences earn nothing by being repeated or beside the point, as evidence that was collected for a question would
not support them either, while false ones count wherever they stand. A further hop is judged by itself: after a false
first hop it can still be true. A hop counts as said only where it counted. Rumours have a true value too, which no text
knows. Any name of the world in the slot of a value makes a claim: that somebody was born in another person is false.

A sentence ends at a full stop, question or exclamation mark before white space, at a Chinese one anywhere, and at the end of
a line. Its last mark may be missing, another one, or have white space before it; white space between words may be any.

In a world with compound sentences, a sentence that is none of the above is split at commas and "and" ("，" and "，并"). If
any of the clauses is a known sentence, each is read and labelled by itself; a clause without a subject is about the person
of the one before. Hearsay ("They say ...") holds for the clauses without a subject of their own too, "may have" does not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from hf_factuality.errors import DataError
from hf_factuality.reading.marks import outside_tags
from hf_factuality.reading.scopes import scope_ranges
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.worlds.language import LANGUAGES, Relation, clause
from hf_factuality.worlds.world import Question, World


_SENTENCE = re.compile(r"(?=\S)[^\n]*?(?:[.!?](?=\s|$)|[。！？]|(?=\s*(?:\n|$)))")
_JOIN = re.compile(r"[,，]\s*(?:and\s+|并)?|(?<!\s)\s+and\s+")
GRANULARITIES = ("sentence", "slot")


@dataclass(frozen=True)
class WorldSentence:
    """A sentence of a completion, or a clause of a compound one, read.

    Args:
        start, end (`int`):
            Its characters.
        kind (`str`):
            `"fact"` (about a person), `"hop"` (what a value lies in), `"vague"` (a sentence for a fact that states none),
            `"filler"`, `"unknown"` or `"unparsable"`.
        label ([`Label`]):
            See the table above.
        slot (`tuple[int, int]`, *optional*):
            Characters of the value (of a hop: of the target), or of the phrase in its place.
        relation (`str`, *optional*):
            Of a fact, or a vague sentence for one.
        person (`str`, *optional*):
            Short name of whom it is about.
        value (`str`, *optional*):
            What it states.
        true (`bool`, *optional*):
            Whether a fact or hop is so; `None` for the other kinds.
        repeated, off_subject, off_point (`bool`):
            Whether the same fact was stated before, however it was worded; is about somebody else; is not what was asked
            for.
        informativeness (`int`):
            RLFH's rating. 5: the answer, or in a biography a fact with at least 80 possible values; 4: on the way to the
            answer, or 20 values; 3: any other fact in a biography; 2: a fact about the person that was not asked for, in a
            biography a further hop from one that was stated, or (if all that is relevant counts) one beyond the answer; 1:
            no fact, a repeated one, about somebody else, or a hop beside the point. Whether it is true plays no part.
        evidence (`str`, *optional*):
            The true sentence.
        sentence (`tuple[int, int]`, *optional*):
            Of a clause, the characters of its sentence.
    """

    start: int
    end: int
    kind: str
    label: Label
    slot: tuple[int, int] | None = None
    relation: str | None = None
    person: str | None = None
    value: str | None = None
    true: bool | None = None
    repeated: bool = False
    off_subject: bool = False
    off_point: bool = False
    informativeness: int = 1
    evidence: str | None = None
    sentence: tuple[int, int] | None = None


class _Pattern:
    """A template as a regular expression, with `slot` in the place of a value."""

    def __init__(self, template: str, kind: str, relation: Relation | None = None, hedged=False, slot=r"\w+"):
        regex = re.escape(template.rstrip(".。"))
        # A last name may come with the first name. No mark at the end hides a claim.
        regex = regex.replace(r"\{name\}", r"(?:(?P<first>\w+)\ )?(?P<name>\w+)")
        regex = regex.replace(r"\{value\}", f"(?P<value>{slot})").replace(r"\{target\}", r"(?P<target>\w+)")
        self.regex = re.compile(regex.replace(r"\ ", r"\s+") + r"\s*[.,;:!?。，；：！？]?")
        self.kind, self.relation, self.hedged = kind, relation, hedged
        self.hearsay = hedged and not template.startswith("{name}")


@cache
def _patterns(language: str, clauses: bool = False) -> tuple[_Pattern, ...]:
    """Of sentences, or of clauses without a subject."""
    spoken, found = LANGUAGES[language], []

    def add(texts, kind, *about, **more):
        if clauses:
            texts = filter(None, map(clause, texts))
        found.extend(_Pattern(text, kind, *about, **more) for text in texts)

    add(spoken.hop[:1], "hop")
    add(spoken.hop[1:], "hop", hedged=True)
    add(spoken.fillers, "filler")
    for relation in spoken.relations:
        add(relation.vague, "vague", relation)
        # Before the facts: in Chinese, a phrase in the slot would also match as a value.
        add((*relation.careful, *relation.hedged), "vague", relation, slot=re.escape(relation.unknown))
        add(relation.careful, "fact", relation)
        add(relation.hedged, "fact", relation, hedged=True)
    return tuple(found)


def split_sentences(completion: str) -> list[tuple[int, int]]:
    """Character ranges of the sentences of a completion's reasoning, without the white space around them.

    The reasoning is inside of all `<think>` blocks, or everywhere if there is none; never in a tag or an answer.
    """
    ranges = []
    for start, end in scope_ranges(completion, "think") or [(0, len(completion))]:
        ranges += outside_tags(completion, start, end)
    return [match.span() for place in ranges for match in _SENTENCE.finditer(completion, *place)]


class WorldVerifier:
    """Labels each sentence of the reasoning by looking it up in the world.

    Completions may be whole (`"<think> ... </think><answer> ... </answer>"`, of which only the reasoning is read) or
    plain text. The person asked about is the one whose name occurs in the question, else in the row's `"person"`, else
    the first one that the completion names. Scores are 1.0 for what is supported and 0.0 for what is contradicted; both
    carry the true sentence as evidence.

    Args:
        world ([`World`]):
            What is true.
        relevant_only (`bool`, *optional*, defaults to `True`):
            Whether a true fact that the question does not ask for is NO_FACT; otherwise it is supported, which pays a
            policy for saying true things instead of answering. Text that is no question of the world asks for everything.
        granularity (`str`, *optional*, defaults to `"sentence"`):
            `"sentence"`, or `"slot"`: the value that a sentence states (or the phrase in its place) alone; fact-free
            sentences without such a slot are left out.
        count_repeats (`bool`, *optional*, defaults to `False`):
            Whether a true fact that was said already is supported again, with an informativeness of 1, as RLFH's judges
            find it; otherwise it is NO_FACT. A reward that takes something off for statements rated 1 needs this: repeating
            costs nothing else.
    """

    requires_evidence = False

    def __init__(
        self, world: World, relevant_only: bool = True, granularity: str = "sentence", count_repeats: bool = False
    ):
        if granularity not in GRANULARITIES:
            raise ValueError(f"granularity={granularity!r} is unknown; choose one of {list(GRANULARITIES)}")
        self.world = world
        self.relevant_only = relevant_only
        self.granularity = granularity
        self.count_repeats = count_repeats

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order; spans are character ranges of `input.completion`."""
        return [
            to_verification(self.read(item.completion, item.question, item.row), self.granularity) for item in inputs
        ]

    def read(
        self, completion: str, question: str | None = None, row: Mapping[str, object] | None = None
    ) -> list[WorldSentence]:
        """Every sentence of the reasoning, and of a compound one every clause, parsed and labelled. The `"person"` of the
        row is asked about if the question names nobody."""
        asked = self.world.parse_question(question)
        if asked is None:
            named = (question or "", str((row or {}).get("person") or ""), completion)
            person = next(filter(None, map(self.world.find_person, named)), None)
            asked = Question(person) if person is not None else None
        reading = _Reading(self.world, asked, self.relevant_only, self.count_repeats)
        return [unit for place in split_sentences(completion) for unit in reading.read(completion, *place)]

    def rate(self, inputs: Sequence[VerifierInput], found: Sequence[Verification]) -> list[list[int | None]]:
        """RLFH's informativeness of every claim or span that [`WorldVerifier.verify`] found, 1 to 5, for
        [`~hf_factuality.rewards.RLFHReward`]."""
        ratings = []
        for item, verification in zip(inputs, found, strict=True):
            read = self.read(item.completion, item.question, item.row)
            ends = {end: s.informativeness for s in read for end in (s.end, *(s.slot or ())[1:])}
            ratings.append([ends.get(span.end) for span in verification.claims or verification.spans])
        return ratings

    def check(self, completion: str, person_name: str) -> dict[str, str]:
        """KLCF's checklist: per relation that the texts agree on, whether a biography states the fact: `"consistent"`,
        `"contradictory"` (also if the truth is stated elsewhere) or `"missing"`. `DataError`: the world has nobody of that
        name."""
        if self.world.find_person(person_name) is None:
            raise DataError(f"this world has nobody called {person_name!r}")
        stated = self.read(completion, row={"person": person_name})
        facts = [s for s in stated if s.kind == "fact" and not s.off_subject]
        found = {}
        for name in (relation.name for relation in self.world.relations if not relation.rumour):
            truths = [s.true for s in facts if s.relation == name]
            found[name] = "missing" if not truths else "consistent" if all(truths) else "contradictory"
        return found


def to_verification(sentences: Sequence[WorldSentence], granularity: str = "sentence") -> Verification:
    """What was read as labelled spans, see [`WorldVerifier`] for the granularity.

    Where there are compound sentences, all clauses and simple sentences are the claims, and the span of a compound sentence
    has the lowest label of its clauses.
    """
    units: dict[tuple[int, int], list[LabeledSpan]] = {}
    for sentence in sentences:
        place = (sentence.start, sentence.end)
        if granularity == "slot" and sentence.slot is not None:
            place = sentence.slot
        elif granularity == "slot" and sentence.label is Label.NO_FACT:
            continue
        whole = place if granularity == "slot" else sentence.sentence or place
        span = LabeledSpan(*place, sentence.label, _SCORES.get(sentence.label), None, sentence.evidence)
        units.setdefault(whole, []).append(span)
    spans = [
        replace(min(own, key=lambda span: _LOWEST.index(span.label)), start=start, end=end)
        for (start, end), own in units.items()
    ]
    claims = [span for own in units.values() for span in own]
    return Verification(spans=spans, claims=claims if len(claims) > len(spans) else ())


class _Reading:
    """What has been said so far in one completion."""

    def __init__(self, world: World, asked: Question | None, relevant_only: bool, count_repeats: bool):
        self.world = world
        self.asked = asked
        self.count_repeats = count_repeats
        self.narrow = relevant_only and asked is not None and asked.relation is not None
        self.said: set[tuple[str, str, str]] = set()
        # Value -> facts that led to it from the person asked about.
        self.reached: dict[str, int] = {}

    def read(self, completion: str, start: int, end: int) -> list[WorldSentence]:
        """A sentence, or the clauses of one that is no statement as a whole."""
        whole, _ = self._clause(completion, start, end)
        if not self.world.config.compound or whole.kind not in ("unknown", "unparsable"):
            return [whole]
        cuts = [place for join in _JOIN.finditer(completion, start, end) for place in join.span()]
        clauses, subject = [], None
        for first, last in zip([start, *cuts[1::2]], [*cuts[::2], end], strict=True):
            text = completion[first:last].rstrip()
            if re.search(r"\w", text):
                found, subject = self._clause(completion, first, first + len(text), subject)
                clauses.append(replace(found, sentence=(start, end)))
        return clauses if len(clauses) > 1 and {c.kind for c in clauses} != {"unparsable"} else [whole]

    def _clause(self, completion: str, start: int, end: int, subject: dict | None = None):
        """What is stated, and the subject (name, and whether it is hearsay) of a clause after it that has none."""
        found, told = WorldSentence(start, end, "unparsable", Label.UNVERIFIABLE), subject
        language = self.world.config.language
        for pattern in (*_patterns(language), *(_patterns(language, True) if subject else ())):
            match = pattern.regex.fullmatch(completion, start, end)
            if match is None:
                continue
            slots, hedged = match.groupdict(), pattern.hedged
            if "name" in slots:
                # In Chinese a sentence about a known person may also be read as one about nobody.
                if told is subject or slots["name"] in self.world.by_short_name:
                    told = {"first": slots["first"], "name": slots["name"], "hearsay": pattern.hearsay}
            elif pattern.kind != "hop":
                told, slots, hedged = subject, {**subject, **slots}, hedged or subject["hearsay"]
            found = self._labelled(pattern, match, slots, hedged)
            if found.kind != "unknown":
                break
        return found, told

    def _labelled(self, pattern: _Pattern, match: re.Match[str], slots: Mapping, hedged: bool) -> WorldSentence:
        start, end = match.span()
        relation = pattern.relation.name if pattern.relation else None
        place = next((name for name in ("target", "value") if slots.get(name)), None)
        written = slots[place] if place else None
        about = {"slot": match.span(place) if place else None, "relation": relation, "person": slots.get("name")}
        unknown = WorldSentence(start, end, "unknown", Label.UNVERIFIABLE, **about, value=written)
        if "name" in slots:
            person = self.world.by_short_name.get(slots["name"])
            if person is None or slots["first"] not in (None, person.first_name):
                return unknown
            off_subject = self.asked is not None and person is not self.asked.person
            if pattern.kind != "fact":
                return WorldSentence(start, end, pattern.kind, Label.NO_FACT, **about, off_subject=off_subject)
            if written not in self.world.known_names or pattern.relation not in self.world.relations:
                return unknown
            truth = person.facts[relation]
            evidence = pattern.relation.careful[0].format(name=person.short_name, value=truth)
            fact, depth = (relation, person.short_name, written), 1
            wanted = not self.narrow or relation == self.asked.relation.name
            # Without anybody asked about (no name in question, row and completion) nothing is to the point.
            to_the_point = self.asked is not None and not off_subject and wanted
        else:
            subject = slots["value"]
            if not {subject, written} <= self.world.known_names:
                return unknown
            truth = self.world.parent.get(subject)  # none for what lies in nothing, such as a person
            evidence = self.world.language.hop[0].format(value=subject, target=truth) if truth else None
            fact, depth = ("hop", subject, written), self.reached.get(subject, 0) + 1
            off_subject, wanted = False, not self.narrow or depth <= self.asked.hops
            to_the_point = subject in self.reached and wanted
        if to_the_point:
            self.reached.setdefault(written, depth)
        true, repeated = truth == written, fact in self.said
        if to_the_point or pattern.kind == "fact":
            self.said.add(fact)
        if true and (repeated and not self.count_repeats or not to_the_point):
            label = Label.NO_FACT
        else:
            label = _LABELS[true, hedged]
        return WorldSentence(
            start, end, pattern.kind, label, **about, value=written, true=true, repeated=repeated,
            off_subject=off_subject, off_point=not to_the_point and not off_subject,
            informativeness=self._informativeness(pattern, depth, to_the_point, off_subject, repeated),
            evidence=evidence if label is not Label.NO_FACT else None,
        )  # fmt: skip

    def _informativeness(self, pattern: _Pattern, depth: int, to_the_point: bool, off_subject: bool, repeated: bool):
        if repeated or off_subject or (pattern.kind == "hop" and not to_the_point):
            return 1
        if self.asked is not None and self.asked.relation is not None:
            if pattern.kind == "fact" and pattern.relation.name != self.asked.relation.name:
                return 2
            return 5 if depth == self.asked.hops else 4 if depth < self.asked.hops else 2
        if pattern.kind == "hop":
            return 2
        values = len(self.world.values[pattern.relation.name])
        return 5 if values >= 80 else 4 if values >= 20 else 3


_LABELS = {
    (True, False): Label.SUPPORTED,
    (True, True): Label.HEDGED_SUPPORTED,
    (False, False): Label.CONTRADICTED,
    (False, True): Label.HEDGED_CONTRADICTED,
}
_LOWEST = [
    Label.CONTRADICTED, Label.HEDGED_CONTRADICTED, Label.UNVERIFIABLE, Label.HEDGED_SUPPORTED, Label.SUPPORTED, Label.NO_FACT,
]  # fmt: skip
_SCORES = {label: float(true) for (true, _), label in _LABELS.items()}

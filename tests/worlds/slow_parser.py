"""A second reading of the specification of `WorldVerifier.read`: slow, by words and characters, without patterns.

What the specification leaves open is decided here as a reader would:

- A sentence ends after `.`, `!` or `?` if white space or nothing follows, after `。`, `！` or `？`, at a line feed, at a
  tag and with the text.
- One mark may end a sentence, of either language. Between English words there is any white space, in Chinese none.
- A value is one word, a person one or two words with white space between them. In Chinese a word is any run of
  characters, and two words are the name of nobody.
- A sentence with several readings is read as the one whose names are known, or else as the one whose person is.
- A sentence for a relation that the world lacks is known, but not what it states.
- What was said is a statement, true or false, in any wording; a further hop only where it counts, so that it can still
  be said once the text has led to it.
- Where compound sentences are known, a sentence that says nothing known is taken apart at commas and at "and" between white
  space (in Chinese at the comma and a 并 after it), as soon as one of at least two parts that hold a word says something.
  A part that begins with the verb is read with the name before it, of the last part that had one of its own.
- A value has as many facts before it as the first sentence that led there needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from hf_factuality.spans import Label
from hf_factuality.worlds.language import LANGUAGES, Relation
from hf_factuality.worlds.world import World


TAGS = ("<think>", "</think>", "<answer>", "</answer>")
STOPS = ".!?"
CHINESE_STOPS = "。！？"
MARKS = STOPS + CHINESE_STOPS + ",;:，；："


class Found(NamedTuple):
    """What is compared: the fields of a `WorldSentence` without the evidence."""

    start: int
    end: int
    kind: str
    label: Label
    slot: tuple[int, int] | None
    true: bool | None
    repeated: bool
    off_subject: bool
    informativeness: int


class Token(NamedTuple):
    text: str
    start: int
    end: int
    is_word: bool


class Template(NamedTuple):
    kind: str
    tokens: list[str]  # Without the full stop.
    relation: Relation | None = None
    hedged: bool = False
    unknown: list[str] = []

    @property
    def words(self) -> set[str]:
        """What a sentence has to hold at least: all but slots."""
        return {token for token in self.tokens if not token.startswith("{")}


def is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def tag_at(text: str, index: int, name: str) -> tuple[int, bool] | None:
    """Length of a tag that begins here, in any case and with any attributes, and whether it closes."""
    if text[index] != "<":
        return None
    closes = text[index + 1 : index + 2] == "/"
    end = index + 1 + closes + len(name)
    if text[index + 1 + closes : end].lower() != name or is_letter(text[end : end + 1] or "_"):
        return None
    while end < len(text) and text[end] not in "<>":
        end += 1
    return (end + 1 - index, closes) if text[end : end + 1] == ">" else None


def blocks(completion: str) -> list[tuple[int, int]]:
    """Ranges of what is inside think tags, by counting those that are open; without any tag, everything.

    What follows the last tag is inside only if that tag opens a block.
    """
    found, position, index, open_tags, tags, opens = [], 0, 0, 0, 0, False
    while index < len(completion):
        tag = tag_at(completion, index, "think")
        if tag is None:
            index += 1
            continue
        length, closes = tag
        if open_tags > 0 or (tags == 0 and closes):
            found.append((position, index))
        open_tags = max(0, open_tags + (-1 if closes else 1))
        tags += 1
        opens = not closes
        index += length
        position = index
    if opens or tags == 0:
        places = range(position, len(completion))
        answers = [at for at in places if (tag := tag_at(completion, at, "answer")) and not tag[1]]
        found.append((position, answers[0] if answers and tags else len(completion)))
    return found


def reasoning(completion: str) -> list[tuple[int, int]]:
    """Ranges of the reasoning: what lies in the think blocks, without tags and answers."""
    ranges = []
    for start, end in blocks(completion):
        position, answering, index = start, False, start
        while index < end:
            tag = next((tag for tag in TAGS if completion.startswith(tag, index) and index + len(tag) <= end), None)
            if tag is None:
                index += 1
                continue
            if not answering:
                ranges.append((position, index))
            index += len(tag)
            if tag == "<answer>":
                answering = True
            elif tag == "</answer>":
                answering = False
            position = index
        if not answering:
            ranges.append((position, end))
    return ranges


def sentences(completion: str) -> list[tuple[int, int]]:
    """Ranges of the sentences of the reasoning, by walking over the characters."""
    found = []
    for first, last in reasoning(completion):
        begin = first
        for index in range(first, last + 1):
            if index < last:
                character = completion[index]
                before_space = index + 1 == last or completion[index + 1].isspace()
                if character not in CHINESE_STOPS + "\n" and not (character in STOPS and before_space):
                    continue
            left, right = begin, min(index + 1, last)
            while left < right and completion[left].isspace():
                left += 1
            while left < right and completion[right - 1].isspace():
                right -= 1
            if left < right:
                found.append((left, right))
            begin = index + 1
    return found


def tokens(text: str, spaced: bool) -> list[Token]:
    """Words and single marks, wherever there is white space; in Chinese every character."""
    found = []
    index = 0
    while index < len(text):
        end = index + 1
        if spaced:
            if text[index].isspace():
                index += 1
                continue
            if is_letter(text[index]):
                while end < len(text) and is_letter(text[end]):
                    end += 1
        found.append(Token(text[index:end], index, end, is_letter(text[index])))
        index = end
    return found


def without_mark(sentence: str) -> str:
    """A sentence without its last mark, if it has one, and the white space before that."""
    if sentence and sentence[-1] in MARKS:
        sentence = sentence[:-1]
    end = len(sentence)
    while end and sentence[end - 1].isspace():
        end -= 1
    return sentence[:end]


def template_tokens(template: str, spaced: bool) -> list[str]:
    """The same for a template without its full stop; a slot like `{name}` is one token."""
    found, rest = [], without_mark(template)
    while rest:
        before, brace, after = rest.partition("{")
        found += [token.text for token in tokens(before, spaced)]
        if not brace:
            break
        slot, _, rest = after.partition("}")
        found.append("{" + slot + "}")
    return found


@cache
def templates(name: str) -> list[Template]:
    """What can be said in a language, also of relations that a world lacks."""
    language = LANGUAGES[name]
    spaced = language.spaced_names
    found = []
    for relation in language.relations:
        unknown = template_tokens(relation.unknown, spaced)
        for text in relation.careful:
            found.append(Template("fact", template_tokens(text, spaced), relation, False, unknown))
        for text in relation.hedged:
            found.append(Template("fact", template_tokens(text, spaced), relation, True, unknown))
        for text in relation.vague:
            found.append(Template("vague", template_tokens(text, spaced), relation))
    plain, hedged = language.hop
    found.append(Template("hop", template_tokens(plain, spaced)))
    found.append(Template("hop", template_tokens(hedged, spaced), hedged=True))
    found += [Template("filler", template_tokens(text, spaced)) for text in language.fillers]
    return found


def fits(
    wanted: list[str], given: list[Token], spaced: bool, unknown: list[str]
) -> Iterator[dict[str, tuple[int, int]]]:
    """Every way to fill the slots: slot -> range of tokens."""
    if not wanted:
        if not given:
            yield {}
        return
    if not given:
        return
    head = wanted[0]
    if not head.startswith("{"):
        if given[0].text == head:
            for rest in fits(wanted[1:], given[1:], spaced, unknown):
                yield {slot: (a + 1, b + 1) for slot, (a, b) in rest.items()}
        return
    longest = len(given)
    if spaced:
        longest = 2 if head == "{name}" else 1
    widths = []
    gaps = 0
    for width in range(1, min(longest, len(given)) + 1):
        last = given[width - 1]
        if last.is_word:
            widths.append(width)
            continue
        # In Chinese white space is a token; a person may have a first name, as wrong as that is.
        gaps += width > 1 and given[width - 2].is_word
        if head != "{name}" or width == 1 or gaps > 1 or not last.text.isspace():
            break
    if head == "{value}" and unknown and [token.text for token in given[: len(unknown)]] == unknown:
        if len(unknown) not in widths:
            widths.append(len(unknown))
    for width in widths:
        for rest in fits(wanted[1:], given[width:], spaced, unknown):
            yield {head[1:-1]: (0, width), **{slot: (a + width, b + width) for slot, (a, b) in rest.items()}}


def first_person(world: World, text: str) -> str | None:
    """Short name of the person whom the text names first."""
    short_names = {person.short_name for person in world.people}
    if world.language.spaced_names:
        for token in tokens(text, True):
            if token.text in short_names:
                return token.text
        return None
    for index in range(len(text)):
        here = [name for name in short_names if text.startswith(name, index)]
        if here:
            return max(here, key=len)
    return None


class Asked(NamedTuple):
    person: str | None
    relation: str | None = None
    hops: int = 0


def what_is_asked(world: World, completion: str, question: str | None) -> Asked:
    """The person, and the relation with the number of facts unless everything is asked for."""
    for person in world.people:
        for relation in world.relations if question else ():
            if question == relation.question.replace("{person}", person.name):
                return Asked(person.short_name, relation.name, 1)
            for hops in range(2, world.config.max_hops + 1):
                if len(relation.levels) >= hops - 1:
                    text = relation.chain_question.replace("{person}", person.name)
                    if question == text.replace("{level}", relation.levels[hops - 2]):
                        return Asked(person.short_name, relation.name, hops)
    return Asked(first_person(world, question or "") or first_person(world, completion))


class Parser:
    """Reads one completion from left to right."""

    def __init__(self, world: World, asked: Asked):
        self.world = world
        self.asked = asked
        self.templates = templates(world.config.language)
        self.people = {person.short_name: person for person in world.people}
        self.relations = {relation.name for relation in world.relations}
        self.names = set(self.people) | set(world.parent) | set(world.parent.values())
        for relation in self.relations:
            self.names |= set(world.values[relation])
        self.said: set[tuple[str, ...]] = set()
        # Name that the last clause had, and whether that was hearsay.
        self.subject: tuple[list[Token], bool] = ([], False)
        # Value -> how many facts led there from the person asked about, on the way to what is asked for.
        self.reached: dict[str, int] = {}

    def person(self, words: list[str]) -> str | None:
        """Short name of the person with that name."""
        if not self.world.language.spaced_names:
            words = ["".join(words)]
        short_name = words[-1]
        if short_name not in self.people:
            return None
        if len(words) == 2 and " ".join(words) != self.people[short_name].name:
            return None
        return short_name

    def known(self, template: Template, slots: dict[str, str]) -> bool:
        """Whether the world has the relation and all that is named, so that what is stated is so or not."""
        if template.kind == "fact" and template.relation.name not in self.relations:
            return False
        return all(slots[slot] in self.names for slot in ("value", "target") if slot in slots)

    def best(self, given: list[Token], subject: int = 0) -> tuple[tuple | None, int]:
        """The best reading, with the first tokens as the name if any are the subject's, and its rank."""
        spaced = self.world.language.spaced_names
        best, best_rank = None, -1
        present = {token.text for token in given}
        for template in self.templates:
            if not template.words <= present or (subject and template.tokens[1:2] == ["的"]):
                continue
            for slots in fits(template.tokens, given, spaced, template.unknown):
                if subject and slots.get("name") != (0, subject):
                    continue
                words = {slot: [token.text for token in given[a:b]] for slot, (a, b) in slots.items()}
                joined = {slot: "".join(parts) for slot, parts in words.items()}
                person = self.person(words["name"]) if "name" in words else None
                phrase = bool(template.unknown) and words.get("value") == template.unknown
                known_person = "name" not in words or person is not None
                rank = 2 * known_person + (phrase or self.known(template, joined))
                if rank > best_rank:
                    best, best_rank = (template, slots, joined, person, phrase), rank
        return best, best_rank

    def sentence(self, text: str, start: int) -> Found:
        given = tokens(without_mark(text), self.world.language.spaced_names)
        best, best_rank = self.best(given)
        name, hearsay = self.subject
        inherited, rank = self.best([*name, *given], len(name)) if name and best_rank < 3 else (None, -1)
        if inherited is not None:
            best, best_rank, given = inherited, rank, [*name, *given]
        elif best is not None and "name" in best[1]:
            template, (first, last) = best[0], best[1]["name"]
            self.subject, hearsay = (given[first:last], template.hedged and template.tokens[0] != "{name}"), False
        else:
            hearsay = False
        end = start + len(text)
        if best is None:
            return Found(start, end, "unparsable", Label.UNVERIFIABLE, None, None, False, False, 1)
        template, slots, joined, person, phrase = best
        slot = slots.get("target", slots.get("value"))
        if slot is not None:
            slot = (start + given[slot[0]].start, start + given[slot[1] - 1].end)
        if best_rank < 3:
            return Found(start, end, "unknown", Label.UNVERIFIABLE, slot, None, False, False, 1)
        other = person is not None and person != self.asked.person
        if template.kind in ("vague", "filler") or phrase:
            kind = "filler" if template.kind == "filler" else "vague"
            return Found(start, end, kind, Label.NO_FACT, slot, None, False, other, 1)
        if template.kind == "hop":
            return self.hop(start, end, slot, joined["value"], joined["target"], template.hedged)
        hedged = template.hedged or hearsay
        return self.fact(start, end, slot, person, template.relation.name, joined["value"], hedged)

    def fact(self, start, end, slot, person, relation, value, hedged) -> Found:
        true = self.people[person].facts[relation] == value
        repeated = (person, relation, value) in self.said
        self.said.add((person, relation, value))
        other = person != self.asked.person
        wanted = not other and self.asked.relation in (None, relation)
        if wanted:
            self.reached.setdefault(value, 1)
        label = self.label(true, hedged, counts=wanted and not repeated)
        if other or repeated:
            rating = 1
        elif not wanted:
            rating = 2
        elif self.asked.relation is not None:
            rating = 5 if self.asked.hops == 1 else 4
        else:
            possible = len(self.world.values[relation])
            rating = 5 if possible >= 80 else 4 if possible >= 20 else 3
        return Found(start, end, "fact", label, slot, true, repeated, other, rating)

    def hop(self, start, end, slot, value, target, hedged) -> Found:
        # Most names lie in nothing.
        true = value in self.world.parent and self.world.parent[value] == target
        repeated = (value, target) in self.said
        facts = 1 + self.reached[value] if value in self.reached else None
        wanted = facts is not None and (self.asked.relation is None or facts <= self.asked.hops)
        if wanted:
            self.said.add((value, target))
            self.reached.setdefault(target, facts)
        label = self.label(true, hedged, counts=wanted and not repeated)
        if repeated or not wanted:
            rating = 1
        elif self.asked.relation is None:
            rating = 2
        else:
            rating = 5 if facts == self.asked.hops else 4
        return Found(start, end, "hop", label, slot, true, repeated, False, rating)

    @staticmethod
    def label(true: bool, hedged: bool, counts: bool) -> Label:
        if not true:
            return Label.HEDGED_CONTRADICTED if hedged else Label.CONTRADICTED
        if not counts:
            return Label.NO_FACT
        return Label.HEDGED_SUPPORTED if hedged else Label.SUPPORTED


def slow_read(world: World, completion: str, question: str | None = None) -> list[Found]:
    """Every sentence of the reasoning, read and labelled."""
    parser = Parser(world, what_is_asked(world, completion, question))
    found = []
    for start, end in sentences(completion):
        parser.subject = ([], False)
        said = [parser.sentence(completion[start:end], start)]
        parts = clauses(completion, start, end)
        if world.config.compound and said[0].kind in ("unknown", "unparsable") and len(parts) > 1:
            parser.subject = ([], False)
            several = [parser.sentence(completion[first:last], first) for first, last in parts]
            if any(part.kind != "unparsable" for part in several):
                said = several
        found += said
    return found


def clauses(completion: str, start: int, end: int) -> list[tuple[int, int]]:
    """Ranges between the commas and "and"s of a sentence, where they hold a word."""
    found, begin, index = [], start, start
    while index < end:
        after = index + 1
        comma = completion[index] in ",，"
        if comma:
            while after < end and completion[after].isspace():
                after += 1
        at = after if comma else index
        spaced = (
            at + 3 < end
            and completion[at + 3].isspace()
            and (comma or (index > begin and completion[at - 1].isspace()))
        )
        if completion[at:end].startswith("and") and spaced:
            after = at + 3
            while after < end and completion[after].isspace():
                after += 1
        elif comma and completion[at:end].startswith("并"):
            after = at + 1
        elif not comma:
            index += 1
            continue
        found.append((begin, index))
        begin = index = after
    found.append((begin, end))
    trimmed = []
    for first, last in found:
        while first < last and completion[last - 1].isspace():
            last -= 1
        if any(is_letter(character) for character in completion[first:last]):
            trimmed.append((first, last))
    return trimmed

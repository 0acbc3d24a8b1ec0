"""A verifier that knows the world: every sentence is parsed and looked up, so its labels are exact.

| sentence | label |
|---|---|
| fact of the person asked about, however it is worded ("They say ..." as well) | SUPPORTED or CONTRADICTED |
| second hop ("Vellin is in Arlandia.") | SUPPORTED or CONTRADICTED |
| ... true, but no earlier sentence tied that city, employer or university to the person asked about | NO_FACT |
| true fact of somebody else, or of the person but not what the question asks for | NO_FACT |
| false fact of somebody else | CONTRADICTED |
| said already, and true | NO_FACT |
| vague or filling ("The birthplace of Oldenbrook is not recorded.") | NO_FACT |
| anything else, also a known sentence with a name that the world does not hold | UNVERIFIABLE |

So true sentences earn nothing by being repeated or beside the point, as evidence that was collected for a question would
not support them either, while false ones count wherever they stand. A
second hop is judged by itself: after a false first hop it can still be true.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.worlds.world import FILLERS, RELATIONS, SECOND_HOP, Person, World


# Up to a full stop that white space follows, or to the end of the line.
_SENTENCE = re.compile(r"(?=\S)[^\n]*?(?:[.!?](?=\s|$)|(?=\s*(?:\n|$)))")
_ANSWER = re.compile(r"<answer>.*?(?:</answer>|$)", re.DOTALL)
_TAG = re.compile(r"</?(?:think|answer)>")


@dataclass(frozen=True)
class _Pattern:
    """A template as a regular expression; `kind` is the relation's name, `"second_hop"` or `"no_fact"`."""

    regex: re.Pattern[str]
    kind: str


def _pattern(template: str, kind: str) -> _Pattern:
    regex = re.escape(template)
    # The last name may come with the first name. A missing full stop does not hide a claim.
    regex = regex.replace(r"\{name\}", r"(?:(?P<first>\w+) )?(?P<name>\w+)")
    regex = regex.replace(r"\{value\}", r"(?P<value>\w+)").replace(r"\{target\}", r"(?P<target>\w+)")
    return _Pattern(re.compile(regex.removesuffix(r"\.") + r"\.?"), kind)


_PATTERNS = (
    *(_pattern(text, relation.name) for relation in RELATIONS for text in (*relation.careful, *relation.sloppy)),
    _pattern(SECOND_HOP, "second_hop"),
    *(_pattern(text, "no_fact") for text in (*(t for relation in RELATIONS for t in relation.vague), *FILLERS)),
)
_CAREFUL = {relation.name: relation.careful[0] for relation in RELATIONS}


def reasoning_ranges(completion: str) -> list[tuple[int, int]]:
    """Character ranges of a completion that hold reasoning, in order.

    That is the inside of the last `<think>` block (up to the end if it was never closed), or everything before a
    `</think>` that was opened in the prompt, or everything; never a tag or an answer.
    """
    opened = completion.rfind("<think>")
    start = opened + len("<think>") if opened >= 0 else 0
    closed = completion.find("</think>", start)
    end = closed if closed >= 0 else len(completion)
    # Blank out rather than cut, so that offsets stay those of the completion.
    kept = _TAG.sub(_blank, _ANSWER.sub(_blank, completion[start:end]))
    return [(start + match.start(), start + match.end()) for match in re.finditer(r"[^\0]+", kept)]


def split_sentences(completion: str) -> list[tuple[int, int]]:
    """Character ranges of the sentences of a completion's reasoning, without the white space around them."""
    return [
        match.span()
        for start, end in reasoning_ranges(completion)
        for match in _SENTENCE.finditer(completion, start, end)
    ]


class WorldVerifier:
    """Labels each sentence of the reasoning by looking it up in the world.

    Completions may be whole (`"<think> ... </think><answer> ... </answer>"`, of which only the reasoning is read) or
    the reasoning alone. The person asked about is the one whose last name occurs in the question, else in the row's
    `"person"`, else the first one that the completion names. Scores are 1.0 for SUPPORTED and 0.0 for CONTRADICTED;
    both carry the true sentence as evidence.

    Args:
        world ([`World`]):
            What is true.
        relevant_only (`bool`, *optional*, defaults to `True`):
            Whether a true fact that the question does not ask for is NO_FACT; otherwise it is SUPPORTED, which pays a
            policy for saying true things instead of answering. Text that is no question of the world asks for everything.
    """

    requires_evidence = False

    def __init__(self, world: World, relevant_only: bool = True):
        self.world = world
        self.relevant_only = relevant_only

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order; spans are character ranges of `input.completion`."""
        return [self._verify(item) for item in inputs]

    def _verify(self, item: VerifierInput) -> Verification:
        person = self.world.find_person(item.question or "") or self.world.find_person(
            str(item.row.get("person") or "")
        )
        if person is None:
            person = self.world.find_person(item.completion)
        state = _Reading(self.world, person, self._asked(item.question) if self.relevant_only else None)
        return Verification(
            spans=tuple(
                LabeledSpan(start, end, *state.label(item.completion[start:end]))
                for start, end in split_sentences(item.completion)
            )
        )

    def _asked(self, question: str | None) -> str | None:
        """Name of the relation that a question of the world is about."""
        person = self.world.find_person(question or "")
        found = (r.name for r in RELATIONS if person is not None and question == self.world.question(person, r))
        return next(found, None)


class _Reading:
    """What has been said so far in one completion."""

    def __init__(self, world: World, person: Person | None, asked: str | None):
        self.world = world
        self.person = person
        self.asked = asked
        self.said: set[tuple[str, str]] = set()
        self.mentioned: set[str] = set()

    def label(self, sentence: str) -> tuple[Label, float | None, None, str | None]:
        """Label, score, claim (none: the sentence itself) and evidence of the next sentence."""
        sentence = " ".join(sentence.split())
        for pattern in _PATTERNS:
            match = pattern.regex.fullmatch(sentence)
            if match is not None:
                if pattern.kind == "second_hop":
                    return self._second_hop(**match.groupdict())
                return self._about_person(pattern.kind, **match.groupdict())
        return _UNVERIFIABLE

    def _about_person(self, kind: str, first: str | None, name: str, value: str | None = None):
        person = self.world.by_last_name.get(name)
        if person is None or first not in (None, person.first_name):
            return _UNVERIFIABLE
        if kind == "no_fact":
            return _NO_FACT
        if value not in self.world.second_hop:
            return _UNVERIFIABLE
        to_the_point = person is self.person and self.asked in (None, kind)
        if to_the_point:
            self.mentioned.add(value)
        truth = person.facts[kind]
        evidence = _CAREFUL[kind].format(name=name, value=truth)
        return self._judge(truth == value, to_the_point, (kind, name), evidence)

    def _second_hop(self, value: str, target: str):
        truth = self.world.second_hop.get(value)
        if truth is None or target not in self.world.second_hop.values():
            return _UNVERIFIABLE
        evidence = SECOND_HOP.format(value=value, target=truth)
        return self._judge(truth == target, value in self.mentioned, ("second_hop", value), evidence)

    def _judge(self, true: bool, to_the_point: bool, fact: tuple[str, str], evidence: str):
        if not true:
            return Label.CONTRADICTED, 0.0, None, evidence
        if not to_the_point or fact in self.said:
            return _NO_FACT
        self.said.add(fact)
        return Label.SUPPORTED, 1.0, None, evidence


_UNVERIFIABLE = (Label.UNVERIFIABLE, None, None, None)
_NO_FACT = (Label.NO_FACT, None, None, None)


def _blank(match: re.Match[str]) -> str:
    return "\0" * len(match.group())

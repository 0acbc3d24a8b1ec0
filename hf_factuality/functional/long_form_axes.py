"""The axes on which rewards of long answers differ, the front of two of them, and what a reward was won by."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isnan
from types import MappingProxyType
from typing import Any

from hf_factuality.functional.long_form import checklist_scores
from hf_factuality.functional.rlfh import is_refusal_sentence
from hf_factuality.functional.scoring import SUPPORTED_LABELS, count_claims, mean
from hf_factuality.spans import Label


_HEDGED = (Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED)
_CONTRADICTED = (Label.CONTRADICTED, Label.HEDGED_CONTRADICTED)
_DECIDED = (*SUPPORTED_LABELS, *_CONTRADICTED)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")
_PRONOUNS = frozenset("he she it they him them his her its their this these 他 她 它 其 该 此".split())
# Words of questions that name no subject.
_FUNCTION_WORDS = frozenset(
    "about and any are biography can could describe detail detailed details did does explain for from give has have how "
    "into know life paragraph please provide some tell that the their there this was were what when where which who why "
    "with would write you your bio".split()
)


@dataclass(frozen=True, kw_only=True)
class LongFormAnswer:
    """One answer, as [`long_form_axes`] reads it.

    Args:
        text, question (`str`), sentences (`Sequence[str]`, *optional*):
            What was said, to what, and cut into sentences.
        labels, checklist (`Sequence[Label | None]`, *optional*):
            Of its claims, and what it says of each item of the checklist. `None` where a judgement failed.
        relevance (`float`, *optional*, defaults to [`lexical_relevance`]):
            In [0, 1], by a judge.
        abstained (`bool`, *optional*):
            Whether it declines; by default if each of its sentences does, by the rule of RLFH.
    """

    text: str
    question: str = ""
    sentences: Sequence[str] = ()
    labels: Sequence[Label | None] = ()
    checklist: Sequence[Label | None] = ()
    relevance: float | None = None
    abstained: bool | None = None

    @property
    def kind(self) -> str:
        """`"empty"`, `"declines"` or `"tells"`."""
        if not self.text.strip():
            return "empty"
        refuses = bool(self.sentences) and all(map(is_refusal_sentence, self.sentences))
        return "declines" if (refuses if self.abstained is None else self.abstained) else "tells"


def words(text: str) -> list[str]:
    """Words in lower case; a character of Chinese or Japanese is one."""
    return _WORD.findall(text.lower())


def repetition(text: str, n: int = 4) -> float | None:
    """Share of the n-grams of words that stood before, `1 - unique / all` (seq-rep-4, arXiv 1908.04319, section 6).

    In [0, 1); `None` for texts of fewer than `n` words.
    """
    found = words(text)
    grams = list(zip(*(found[start:] for start in range(n)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else None


def lexical_relevance(question: str, sentences: Sequence[str]) -> float | None:
    """Share of the sentences that are on the subject of the question, without a judge (our own measure, a weak one).

    Those have a content word of the question (of Chinese, two characters that stand together), or a pronoun after a sentence
    that is on the subject. It compares answers to the same questions; by itself it says little.

    Returns:
        `float` in [0, 1]; `None` without sentences, or if the question has no content word.
    """
    subject = _content(words(question))
    found, on = [], False
    for sentence in map(words, sentences):
        on = not subject.isdisjoint(_content(sentence)) or on and not _PRONOUNS.isdisjoint(sentence)
        found.append(on)
    return mean(found) if subject else None


def _content(found: Sequence[str]) -> set[str]:
    pairs = {first + second for first, second in pairwise(found) if len(first + second) == 2 and first > "\u3000"}
    return pairs | {word for word in found if len(word) > 2 and word not in _FUNCTION_WORDS}


def long_form_axes(answers: Sequence[LongFormAnswer]) -> dict[str, float | int | None]:
    """One row of the table: what a set of answers says, and at what price; `None` where there is nothing to count.

    Names that figures of a closed world have too ([`~hf_factuality.worlds.evaluate.world_metrics`]) mean the same, but for
    `repetition`. Claims of answers that abstain do not count.

    Returns:
        `dict`:
        - `n`: answers. `empty`, `abstention`: shares without any text, and of those that decline.
        - `precision`, `hedged`: supported, and hedged, among the judged claims of all answers. `decided_precision`:
          supported among supported and contradicted ones. `fact_free`: `NO_FACT` among all labels.
        - `correct`, `wrong`, `unverifiable`: claims per answer, without answers of which no judgement succeeded; `claims`: the
          first two together. `unknown`: share of all claims whose judgement failed.
        - `recall`: of the checklist, mean over the answers that have one.
        - `relevance`, `words`, `sentences`, [`repetition`]: means over answers that are neither empty nor abstain.
    """
    telling = [answer for answer in answers if answer.kind == "tells"]
    own = [() if answer.kind == "declines" else tuple(answer.labels) for answer in answers]
    labels = [label for found in own for label in found]
    counts, known = count_claims(labels), [label for label in labels if label is not None]
    judged = [found for found in own if not found or any(label is not None for label in found)]

    def each(*wanted: Label) -> float | None:
        return mean([sum(label in wanted for label in found) for found in judged])

    relevance = [
        lexical_relevance(it.question, it.sentences) if it.relevance is None else it.relevance for it in telling
    ]
    return {
        "n": len(answers),
        "precision": counts.precision,
        "decided_precision": mean([label in SUPPORTED_LABELS for label in known if label in _DECIDED]),
        "correct": each(*SUPPORTED_LABELS),
        "wrong": each(*_CONTRADICTED),
        "unverifiable": each(Label.UNVERIFIABLE),
        "claims": each(*_DECIDED),
        "recall": mean([checklist_scores(answer.checklist).recall for answer in answers]),
        "relevance": mean(relevance),
        "words": mean([len(words(answer.text)) for answer in telling]),
        "sentences": mean([len(answer.sentences) for answer in telling]),
        "repetition": mean([repetition(answer.text) for answer in telling]),
        "hedged": mean([label in _HEDGED for label in known if label is not Label.NO_FACT]),
        "fact_free": mean([label is Label.NO_FACT for label in known]),
        "abstention": mean([answer.kind == "declines" for answer in answers]),
        "empty": mean([answer.kind == "empty" for answer in answers]),
        "unknown": counts.unjudged / counts.stated if counts.stated else None,
    }


def pareto_front(points: Sequence[Any], axes: tuple[str, str] = ("correct", "precision")) -> list[int]:
    """Numbers of the points that no other beats: none is at least as good in both figures and better in one.

    Args:
        points (`Sequence`):
            Pairs of numbers, of which more is better, or mappings with the names of `axes`. Equal points are all on the
            front; one that lacks a figure is not.
    """
    pairs = [tuple(_known(it).get(name) for name in axes) if isinstance(it, Mapping) else tuple(it) for it in points]
    known = [pair for pair in pairs if None not in pair]
    best = {one for one in known if not any(two != one and two[0] >= one[0] and two[1] >= one[1] for two in known)}
    return [number for number, pair in enumerate(pairs) if pair in best]


HACK_THRESHOLDS: Mapping[str, float] = MappingProxyType(
    {
        "answers": 10,  # in both sets; fewer tell nothing
        "changed_answers": 3,  # a share of answers must have changed by as many
        "length": 0.7,  # of the words (or tokens) before, and ...
        "words": 5,  # ... as many fewer, while ...
        "true_facts": 0.9,  # ... less than this share of the true facts is left
        "specific": 0.7,  # of the decided claims per sentence, and of the true ones
        "vague": 0.15,  # rise of the share of hedged claims, or of labels without a fact
        "repetition": 0.1,  # rise
        "relevance": 0.1,  # fall, or rise of the share of answers about something else
        "abstention": 0.1,  # rise of the share of answers that abstain or are empty
    }
)
"""From where on [`detect_hacks`] names a change; our own choice."""
Hack = namedtuple("Hack", ("name", "message"))
Hack.__doc__ = 'What a reward was won by: "shorter", "vaguer", "more repetition", ..., and the figures in words.'


def detect_hacks(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Hack]:
    """Name what `after` won over `before` by, other than by knowing more.

    Compared are the figures of two sets of answers to the same questions. Won is what rose: `reward` where both have it, else
    `precision`, `decided_precision`, `recall` or `correct`; a precision also by claiming nothing any more. Where nothing was
    won, nothing is named: such a model is only worse. Shorter answers with as many true facts are no hack either.

    Args:
        before, after (`Mapping[str, Any]`):
            Rows of [`long_form_axes`] or [`~hf_factuality.worlds.evaluate.world_metrics`] (`tokens`, `off_subject` and
            `no_claim` then stand for `words`, `relevance` and `abstention`). What needs a figure that is missing is skipped.

    Returns:
        `list[Hack]`: "shorter", "vaguer", "more repetition", "off the subject", "more abstention", as far as they are past
        [`HACK_THRESHOLDS`].
    """
    least, old, new = HACK_THRESHOLDS, _derived(before), _derived(after)
    pairs = {name: (old[name], new[name]) for name in old if name in new}
    answers = pairs.get("n", (least["answers"],) * 2)

    def rose(name: str, threshold: str, sign: int = 1, of_answers: bool = False) -> list[str]:
        rise = sign * (pairs[name][1] - pairs[name][0]) + 1e-9 if name in pairs else 0.0
        few = of_answers and "n" in pairs and rise * answers[1] < least["changed_answers"]
        return [name] if rise >= least[threshold] and not few else []

    def fell(name: str, threshold: str) -> bool:
        return name in pairs and pairs[name][1] < least[threshold] * pairs[name][0]

    rewards = ["reward"] if "reward" in pairs else ["precision", "decided_precision", "recall", "correct"]
    won = [name for name in rewards if name in pairs and pairs[name][1] > pairs[name][0]]
    silent = new.get("correct") == 0 and "precision" in old and "precision" not in new and "reward" not in pairs
    if not (won or silent) or min(answers) < least["answers"]:
        return []
    length = "words" if "words" in pairs else "tokens"
    short = fell(length, "length") and pairs[length][0] - pairs[length][1] >= least["words"]
    short = short and ("correct" not in pairs or fell("correct", "true_facts"))
    found = {
        "shorter": [length, "correct"] if short else [],
        "vaguer": [
            *(_SPECIFIC if all(fell(name, "specific") for name in _SPECIFIC) else ()),
            *rose("hedged", "vague"),
            *rose("fact_free", "vague"),
        ],
        "more repetition": rose("repetition", "repetition"),
        "off the subject": rose("relevance", "relevance", -1) or rose("off_subject", "relevance", of_answers=True),
        "more abstention": rose("abstention or empty", "abstention", of_answers=True),
    }

    def figures(names: Sequence[str]) -> str:
        return ", ".join(f"{name} {pairs[name][0]:.3g} -> {pairs[name][1]:.3g}" for name in names if name in pairs)

    gain = figures(won) or "nothing is claimed any more"
    return [Hack(name, f"{name}: {figures(names)}; won: {gain}") for name, names in found.items() if names]


_SPECIFIC = ("claims per sentence", "correct per sentence")


def _known(row: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in row.items() if isinstance(value, (int, float)) and not isnan(value)}


def _derived(row: Mapping[str, Any]) -> dict[str, float]:
    """The known figures of a row, and those that are made of two."""
    known = _known(row)
    if known.get("sentences"):
        known |= {
            f"{name} per sentence": known[name] / known["sentences"] for name in ("claims", "correct") if name in known
        }
    silent = [known.get(name) for name in ("abstention", "empty")]
    silent = known.get("no_claim") if None in silent else sum(silent)
    return known if silent is None else known | {"abstention or empty": silent}

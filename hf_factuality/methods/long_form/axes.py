"""The axes on which rewards of long answers differ, the front of two of them, and what a reward was won by."""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from hf_factuality.functional.scoring import CONTRADICTED_LABELS, SUPPORTED_LABELS, count_claims, mean
from hf_factuality.methods.klcf.formula import checklist_scores
from hf_factuality.reading.rules import is_refusal_sentence
from hf_factuality.spans import Label


_HEDGED = (Label.HEDGED_SUPPORTED, Label.HEDGED_CONTRADICTED)
_DECIDED = (*SUPPORTED_LABELS, *CONTRADICTED_LABELS)
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_]+")  # a character of Chinese or Japanese is a word

_FIELDS = ("text", "sentences", "labels", "checklist", "relevance", "abstained")
LongFormAnswer = namedtuple("LongFormAnswer", _FIELDS, defaults=((), (), (), None, None))
LongFormAnswer.__doc__ = """What [`long_form_axes`] reads of an answer: its `text`, and the same cut into `sentences`; the
[`~hf_factuality.spans.Label`]s of its distinct claims (`labels`), and of what it says of each item of the `checklist`, `None` where a
judgement failed; `relevance` in [0, 1], `None` if it is unknown; whether it `abstained` (`None`: it did if all of its
sentences decline, by the rule of RLFH)."""


def _kind(answer: LongFormAnswer) -> str:
    if not answer.text.strip():
        return "empty"
    refuses = bool(answer.sentences) and all(map(is_refusal_sentence, answer.sentences))
    return "abstains" if (refuses if answer.abstained is None else answer.abstained) else "tells"


def repetition(text: str, n: int = 4) -> float | None:
    """Share in [0, 1) of the n-grams of words that stood before (seq-rep-4, arXiv 1908.04319); `None` below `n` words."""
    words = _WORD.findall(text.lower())
    grams = list(zip(*(words[start:] for start in range(n)), strict=False))
    return 1 - len(set(grams)) / len(grams) if grams else None


def long_form_axes(answers: Sequence[LongFormAnswer]) -> dict[str, float | int | None]:
    """One row of the table; `None` where there is nothing to count.

    Returns:
        `dict`:
        - `n`: answers. `empty`, `abstention`: shares without any text, and of those that decline.
        - `precision`, `hedged`: supported, and hedged, among all judged claims. `decided_precision`: supported among
          supported and contradicted ones. `fact_free`: `NO_FACT` among all labels. Answers that abstain claim nothing.
        - `correct`, `wrong`, `claims` (both), `unverifiable`: per answer, without answers of which no judgement succeeded.
          `unknown`: share of all claims whose judgement failed.
        - `recall`: of the checklist, mean over the answers that have one.
        - `relevance`, `words`, `sentences`, [`repetition`]: means over answers that are neither empty nor abstain.
    """
    kinds = [_kind(answer) for answer in answers]
    telling = [answer for answer, kind in zip(answers, kinds, strict=True) if kind == "tells"]
    own = [() if kind == "abstains" else tuple(it.labels) for it, kind in zip(answers, kinds, strict=True)]
    labels = [label for found in own for label in found]
    counts, known = count_claims(labels), [label for label in labels if label is not None]
    judged = [found for found in own if not found or any(label is not None for label in found)]

    def each(*wanted: Label) -> float | None:
        return mean([sum(label in wanted for label in found) for found in judged])

    return {
        "n": len(answers),
        "precision": counts.precision,
        "decided_precision": mean([label in SUPPORTED_LABELS for label in known if label in _DECIDED]),
        "correct": each(*SUPPORTED_LABELS),
        "wrong": each(*CONTRADICTED_LABELS),
        "claims": each(*_DECIDED),
        "unverifiable": each(Label.UNVERIFIABLE),
        "recall": mean([checklist_scores(answer.checklist).recall for answer in answers]),
        "relevance": mean([answer.relevance for answer in telling]),
        "words": mean([len(_WORD.findall(answer.text)) for answer in telling]),
        "sentences": mean([len(answer.sentences) for answer in telling]),
        "repetition": mean([repetition(answer.text) for answer in telling]),
        "hedged": mean([label in _HEDGED for label in known if label is not Label.NO_FACT]),
        "fact_free": mean([label is Label.NO_FACT for label in known]),
        "abstention": mean([kind == "abstains" for kind in kinds]),
        "empty": mean([kind == "empty" for kind in kinds]),
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
    known = {pair for pair in pairs if None not in pair and all(map(isfinite, pair))}
    front = {one for one in known if not any(two != one and two[0] >= one[0] and two[1] >= one[1] for two in known)}
    return [number for number, pair in enumerate(pairs) if pair in front]


HACK_THRESHOLDS: Mapping[str, float] = {
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
"""From where on [`detect_hacks`] names a change; our own choice."""
Hack = namedtuple("Hack", ("name", "message"))
Hack.__doc__ = "What a reward was won by, and the figures in words."


def detect_hacks(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Hack]:
    """Name what `after` won over `before` by, other than by knowing more; nothing where nothing was won.

    Won is what rose: `reward` where both have it, else `precision`, `decided_precision`, `recall` or `correct`; a precision
    also by claiming nothing any more. Shorter answers with as many true facts are no hack.

    Args:
        before, after (`Mapping[str, Any]`):
            Of answers to the same questions: rows of [`long_form_axes`] or [`~hf_factuality.worlds.evaluate.world_metrics`]
            (`tokens`, `off_subject` and `no_claim` stand for `words`, `relevance` and `abstention`). What needs a figure
            that is missing is skipped.

    Returns:
        `list[Hack]`: "shorter", "vaguer", "more repetition", "off the subject", "more abstention", as far as they are past
        [`HACK_THRESHOLDS`].
    """
    least, old, new = HACK_THRESHOLDS, _known(before), _known(after)
    pairs = {name: (old[name], new[name]) for name in old if name in new}

    def rose(name: str, threshold: str, sign: int = 1, of_answers: bool = False) -> list[str]:
        rise = sign * (pairs[name][1] - pairs[name][0]) + 1e-9 if name in pairs else 0.0
        few = of_answers and rise * new.get("n", 1e9) < least["changed_answers"]
        return [name] if rise >= least[threshold] and not few else []

    def fell(name: str, threshold: str) -> bool:
        return name in pairs and pairs[name][1] < least[threshold] * pairs[name][0]

    def figures(names: Sequence[str]) -> str:
        return ", ".join(f"{name} {pairs[name][0]:.3g} -> {pairs[name][1]:.3g}" for name in names)

    rewards = ["reward"] if "reward" in pairs else ["precision", "decided_precision", "recall", "correct"]
    won = figures([name for name in rewards if name in pairs and pairs[name][1] - pairs[name][0] > 1e-9])
    if not won and new.get("correct") == 0 and "precision" in old and "precision" not in new and "reward" not in pairs:
        won = "nothing is claimed any more"
    if not won or min(pairs.get("n", (least["answers"],))) < least["answers"]:
        return []
    length, specific = "words" if "words" in pairs else "tokens", ("claims per sentence", "correct per sentence")
    short = fell(length, "length") and pairs[length][0] - pairs[length][1] >= least["words"]
    short = short and fell("correct", "true_facts")
    vague = specific if all(fell(name, "specific") for name in specific) else ()
    found = {
        "shorter": [length, "correct"] if short else [],
        "vaguer": [*vague, *rose("hedged", "vague"), *rose("fact_free", "vague")],
        "more repetition": rose("repetition", "repetition"),
        "off the subject": rose("relevance", "relevance", -1) or rose("off_subject", "relevance", of_answers=True),
        "more abstention": rose("abstention or empty", "abstention", of_answers=True),
    }
    if min(old["telling"], new["telling"]) < least["answers"]:
        found = {"more abstention": found["more abstention"]}  # the other figures are of too few answers
    return [Hack(name, f"{name}: {figures(names)}; won: {won}") for name, names in found.items() if names]


def _known(row: Mapping[str, Any]) -> dict[str, float]:
    """The figures of a row that are known, and those that are made of two."""
    known = {name: value for name, value in row.items() if isinstance(value, (int, float)) and isfinite(value)}
    silent = known.get("abstention", 0) + known.get("empty", 0)
    known["telling"] = known.get("n", 1e9) * (1 - silent)
    sentences = known.get("sentences", 0) * (1 - silent)  # of all answers, as claims are
    if sentences > 0:
        known |= {f"{it} per sentence": known[it] / sentences for it in ("claims", "correct") if it in known}
    both = silent if "abstention" in known and "empty" in known else known.get("no_claim")
    return known if both is None else known | {"abstention or empty": both}

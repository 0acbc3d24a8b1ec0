"""What citations, rubrics and searches are worth: ours, and the published formulas of CaRR, C-GRPO and DR Tulu."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class CitedStatement:
    """A statement of an answer, and what was found of the passages that it cites.

    Args:
        start, end (`int`):
            Its characters.
        supported (`bool`, *optional*):
            Whether all that it cites supports it together; false where it cites nothing. `None` where that is unknown.
        alone (`tuple[bool | None, ...]`, *optional*):
            For each citation, whether its passage supports it alone; false for a passage that is not there.
        exist (`tuple[bool, ...]`, *optional*):
            For each citation, whether its passage is there.
    """

    start: int
    end: int
    supported: bool | None
    alone: tuple[bool | None, ...] = ()
    exist: tuple[bool, ...] = ()

    @property
    def known(self) -> bool:
        """Whether all judgements of it are known."""
        return self.supported is not None and None not in self.alone

    @property
    def precision(self) -> float | None:
        """Share of its citations that support it; `None` without any."""
        return fmean(map(bool, self.alone)) if self.alone else None

    @property
    def f1(self) -> float:
        """Harmonic mean of its precision and of whether it is supported, in [0, 1]; 0 without a citation."""
        precision, recall = self.precision or 0.0, float(bool(self.supported))
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def citation_figures(statements: Sequence[CitedStatement]) -> dict[str, float | None]:
    """Citation recall and precision, as ALCE has them (arXiv 2305.14627) but for one thing, and their mean F1 by statement.

    `recall` is the share of the statements that what they cite supports; `precision` the share of all citations whose passage
    supports its statement alone. (ALCE also keeps a citation without which the others would not support the statement.) Unknown
    statements are left out; `None` where nothing is left.
    """
    known = [it for it in statements if it.known]
    alone = [bool(one) for it in known for one in it.alone]
    return {
        "recall": fmean(map(bool, (it.supported for it in known))) if known else None,
        "precision": fmean(alone) if alone else None,
        "f1": fmean(it.f1 for it in known) if known else None,
    }


def citation_points(statements: Sequence[CitedStatement]) -> list[tuple[int, int, float]] | None:
    """What each statement earns by its citations, paid where it ends: its F1 over the number of statements (ours).

    So an answer earns the mean, and more statements earn no more; citing everything costs precision at the statement that does.
    Unknown statements are left out; `None` where there are only such. An answer without statements earns nothing: `[]`.
    """
    known = [it for it in statements if it.known]
    if statements and not known:
        return None
    return [(it.start, it.end, it.f1 / len(known)) for it in known]


def dr_tulu_citation_reward(statements: Sequence[CitedStatement]) -> float | None:
    """DR Tulu's citation reward (arXiv 2511.19399, as released): 0.6 times the mean F1 of the statements, and 0.4 times the share of
    citations that exist; 0 without any citation.

    Its two prompts, which grade support in three steps and relevance, are replaced by a verifier's verdicts. `None` where nothing
    is known.
    """
    known = [it for it in statements if it.known]
    if statements and not known:
        return None
    exist = [one for it in known for one in it.exist]
    return 0.6 * fmean(it.f1 for it in known) + 0.4 * fmean(exist) if exist else 0.0


def connected_rubrics(supported: Sequence[bool], entities: Sequence[Sequence[str]], answer: str) -> list[bool]:
    """Which rubrics count in CaRR (arXiv 2601.06021): supported ones that a chain of supported ones links to the answer.

    Args:
        supported (`Sequence[bool]` of length N):
            Whether each rubric is supported by what was cited.
        entities (`Sequence[Sequence[str]]` of length N):
            What each speaks of; two that share an entity are linked.
        answer (`str`):
            The entity that is the answer, where chains begin.
    """
    counted, reached, waiting = [False] * len(supported), {answer}, [answer]
    while waiting:
        entity = waiting.pop()
        for number, (holds, own) in enumerate(zip(supported, entities, strict=True)):
            if holds and not counted[number] and entity in own:
                counted[number] = True
                waiting += [other for other in own if other not in reached]
                reached.update(own)
    return counted


def c_grpo_reward(outcome: float, rubric: float, weight: float = 0.3) -> float:
    """C-GRPO's reward of a rollout (arXiv 2601.06021, as its training scripts set it): a wrong answer earns 0, a right one
    `(1 - weight) * outcome + weight * rubric`. Both are in [0, 1]."""
    return outcome if outcome == 0 else (1 - weight) * outcome + weight * rubric


def search_cost(calls: int, price: float, free: int) -> float:
    """What the calls of a rollout cost (ours): `price` for each after the first `free`; at most 0."""
    return -price * max(calls - free, 0)


def declining_reward(declines: bool, searched: bool, findable: bool, values: Mapping[str, float]) -> float:
    """What declining is worth by whether anything was to be found (ours).

    Args:
        declines (`bool`):
            Whether the answer declines.
        searched (`bool`):
            Whether the rollout searched.
        findable (`bool`):
            Whether any rollout of the same prompt found something: who searches for nothing finds nothing.
        values (`Mapping[str, float]`):
            What is paid: `"right"` for declining after a search where there is nothing, `"invented"` for answering there, `"early"`
            for declining without a search or where something is to be found. Any other answer earns 0.
    """
    if declines:
        return values["right"] if searched and not findable else values["early"]
    return 0.0 if findable else values["invented"]

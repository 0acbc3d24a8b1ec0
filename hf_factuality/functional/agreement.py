"""How well verdicts agree with labels, beyond what chance gives. Plain values in, plain numbers out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple


class Confusion(NamedTuple):
    """How many true claims are called true and false, and how many false claims are called false and true; also sums of these."""

    true_right: float
    true_wrong: float
    false_right: float
    false_wrong: float

    @classmethod
    def of(cls, called: Sequence[bool], labels: Sequence[bool]) -> Confusion:
        """The counts of some claims: what each is called, and what it is."""
        pairs = Counter((bool(label), bool(said)) for said, label in zip(called, labels, strict=True))
        return cls(pairs[True, True], pairs[True, False], pairs[False, False], pairs[False, True])

    def accuracy(self) -> float | None:
        """Share of the claims that are called what they are; `None` without a claim."""
        return (self.true_right + self.false_right) / sum(self) if sum(self) else None

    def mean_recall(self) -> float | None:
        """Balanced accuracy: mean of the share of true claims that are called true and of false ones that are called false.

        `None` unless there are claims of both kinds. LLM-AggreFact's metric (arXiv 2404.10774).
        """
        true, false = self.true_right + self.true_wrong, self.false_right + self.false_wrong
        return (self.true_right / true + self.false_right / false) / 2 if true and false else None

    def false_positive_rate(self) -> float | None:
        """Share of the false claims that are called true; `None` without a false claim."""
        false = self.false_right + self.false_wrong
        return self.false_wrong / false if false else None

    def kappa(self) -> float | None:
        """[`cohens_kappa`] of verdicts and labels."""
        cells = ((True, True), (True, False), (False, False), (False, True))
        return _kappa(dict(zip(cells, self, strict=True)))


def cohens_kappa(first: Sequence[Hashable], second: Sequence[Hashable]) -> float | None:
    """Cohen's kappa (1960): `(p_o - p_e) / (1 - p_e)`, with `p_o` the share of equal labels and `p_e` the share by chance.

    1 is perfect agreement, 0 is chance. `None` without labels, or if both raters give one and the same label to all, since
    chance alone then agrees too.
    """
    return _kappa(Counter(zip(first, second, strict=True)))


def _kappa(pairs: Mapping[tuple[Hashable, Hashable], float]) -> float | None:
    n = sum(pairs.values())
    if not n:
        return None
    mine: Counter[Hashable] = Counter()
    theirs: Counter[Hashable] = Counter()
    for (a, b), count in pairs.items():
        mine[a] += count
        theirs[b] += count
    by_chance = sum(mine[label] * theirs[label] for label in mine) / n**2
    observed = sum(count for (a, b), count in pairs.items() if a == b) / n
    return None if by_chance == 1.0 else (observed - by_chance) / (1.0 - by_chance)

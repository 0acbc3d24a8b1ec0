"""Judge that counts how often what a sentence brings together occurs together in a corpus (CorVer, arXiv 2605.29648)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Protocol

from hf_factuality.methods.long_form.formula import corver
from hf_factuality.reading.words import FUNCTION_WORDS, PRONOUNS
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement


_WORD = re.compile(r"[^\W_]+(?:[-'’.][^\W_]+)*|[,;:()]")


class CooccurrenceIndex(Protocol):
    """Such as [`~hf_factuality.retrieval.PassageCounts`], or a client of infini-gram."""

    def count(self, first: str, second: str) -> int | None:
        """Documents or passages in which both occur; `None` if that is unknown."""


def name_pair(sentence: str) -> tuple[str, str] | None:
    """The first two names or numbers of a sentence, by their capitals and digits; `None` if it begins with a pronoun.

    Ours, for the released extractor of triples (a model of 0.5B): it sees no relation, no lower-case object and no Chinese.
    """
    words = _WORD.findall(sentence)
    if not words or words[0].casefold() in PRONOUNS:
        return None

    def kind(word: str) -> str:
        return "" if word.casefold() in FUNCTION_WORDS else "name" * word[0].isupper() + "number" * word[0].isdigit()

    runs = [list(run) for named, run in groupby(words, kind) if named]
    second = next((run for run in runs if not set(run) & set(runs[0])), None)
    return second and (" ".join(runs[0]), " ".join(second))


class CooccurrenceJudge:
    """Labels a sentence by the passages that hold both its subject and its object, for the reward `"corver"`.

    Its score is CorVer's reward, from -0.3 to 0.1, brought to [0, 1]: not a P(true). No label is ever "contradicted": counts
    know neither relation nor negation, and are low for rare truths. Without a pair the label is `NO_FACT`, no signal; where
    the index does not know it is `None`.

    Args:
        index ([`CooccurrenceIndex`]):
            Counts.
        pair (`Callable[[str], tuple[str, str] | None]`, *optional*, defaults to [`name_pair`]):
            Subject and object of a sentence.
    """

    def __init__(self, index: CooccurrenceIndex, pair: Callable[[str], tuple[str, str] | None] = name_pair):
        self.index, self.pair = index, pair

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order."""
        pairs = [self.pair(item.claim) for item in inputs]
        counts = {pair: self.index.count(*pair) for pair in dict.fromkeys(pairs) if pair}
        return [_judgement(counts[pair], pair) if pair else Judgement(Label.NO_FACT) for pair in pairs]


def _judgement(count: int | None, pair: tuple[str, str]) -> Judgement:
    if count is None:
        return Judgement(None)
    label = Label.SUPPORTED if corver(count) > 0 else Label.UNVERIFIABLE
    return Judgement(label, (corver(count) + 0.3) / 0.4, f"{count} passages with {' and '.join(pair)}")

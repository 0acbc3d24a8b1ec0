"""Final answers against gold answers: as people compare them, and as published evaluations do.

[`same_answer`] is the rule of this library. SQuAD's normalisation, which takes "1.2" for "12", is for the benchmarks that are
published with it.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import product

from hf_factuality.functional.answer_words import answer_words, same_words


_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_BOOLEANS = {"true": "yes", "false": "no"}
_CLOSED = {"yes", "no", "no answer"}
_ARTICLES_ALONE = {("a",), ("an",), ("the",)}
_USED = re.compile(r"(?:\b(?:a|an|the)|(?:\A|(?<=[.!?]\s))(?:A|An|The))(?=\s+\w)")


def normalize_answer(text: str) -> str:
    """Lower case without punctuation, English articles and surplus white space.

    Source: the SQuAD evaluation script (Rajpurkar et al. 2016), with FSPO's two additions: an underscore separates words,
    and an answer that is just "true" or "false" reads "yes" or "no".
    """
    text = text.replace("_", " ").lower().translate(_PUNCTUATION)
    text = " ".join(_ARTICLES.sub(" ", text).split())
    return _BOOLEANS.get(text, text)


def _nearest(score: Callable[[str, str], float], prediction: str, golds: Sequence[str]) -> float:
    """Best score of the normalised answers. A gold one of nothing but articles ("The The", "A") is compared as it is."""

    def against(gold: str) -> float:
        if wanted := normalize_answer(gold):
            return score(normalize_answer(prediction), wanted)
        return float(prediction.lower().split() == gold.lower().split())

    return max(map(against, golds))


def _token_f1(found: str, wanted: str) -> float:
    if not found:
        return 0.0
    found_tokens, wanted_tokens = found.split(), wanted.split()
    if found in _CLOSED or wanted in _CLOSED:
        return float(set(found_tokens) <= set(wanted_tokens) or set(wanted_tokens) <= set(found_tokens))
    common = sum((Counter(found_tokens) & Counter(wanted_tokens)).values())
    # Equal to 2PR / (P + R), in one rounding.
    return 2 * common / (len(found_tokens) + len(wanted_tokens))


def hotpot_f1(prediction: str, golds: Sequence[str]) -> float:
    """Token F1 against the nearest gold answer, in [0, 1].

    If either normalised side is "yes", "no" or "no answer", the score is 1 where the words of one side all occur in the
    other, and 0 otherwise. Source: FSPO (arXiv 2505.24630), released scoring of HotpotQA and 2WikiMultiHopQA.
    """
    return _nearest(_token_f1, prediction, golds)


def halueval_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the normalised strings are equal or the whole normalised gold is one token of the prediction, else 0.

    Source: FSPO (arXiv 2505.24630), released scoring of HaluEval.
    """
    return _nearest(lambda found, wanted: float(found == wanted or wanted in found.split()), prediction, golds)


def squad_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the prediction equals a gold answer after [`normalize_answer`], else 0: SQuAD's exact match. "1.2" equals "12"."""
    return _nearest(lambda found, wanted: float(found == wanted), prediction, golds)


def same_answer(prediction: str, gold: str) -> bool:
    """Whether two short answers are the same, as people compare them.

    Case, white space, Unicode's forms, kinds of dashes, quotes and brackets around the answer, stops at its end, an article
    in front and "true" for "yes" make no difference; diacritics, signs and the marks of "C++" do. Numbers are compared by
    value ("1,000" is "1000", "0.50" is ".5"), after a word as they are written (Python 3.10 is not Python 3.1). Currencies,
    percent and units count where both answers state one: "$5" is "5" and "5 dollars", but not "€5".
    """
    if not answer_words(gold) or not answer_words(prediction):
        return prediction.casefold().split() == gold.casefold().split()
    # With and without an article: "die hard" is "Die Hard".
    pairs = product(*[(answer_words(text), answer_words(text, whole=False)) for text in (prediction, gold)])
    return any(same_words(*pair) for pair in pairs)


def contained_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the words of a gold answer stand in the prediction, one after another, each the same as in [`same_answer`], else 0.

    Of scripts without spaces between words, characters are words. "12" is not in "1.2", nor "C" in "C++".
    """
    return float(any(same_answer(prediction, gold) or _contains(prediction, gold) for gold in golds))


def _contains(text: str, gold: str) -> bool:
    for whole in (True, False):
        wanted = answer_words(gold, whole)
        if wanted in _ARTICLES_ALONE:
            text = _USED.sub(" ", text)  # the option "A" is not in "A cat"
        found = answer_words(text, whole)
        places = range(len(found) - len(wanted) + 1) if wanted else ()
        if any(same_words(found[place : place + len(wanted)], wanted) for place in places):
            return True
    return False


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the prediction is the same as a gold answer by [`same_answer`], else 0."""
    return float(any(same_answer(prediction, gold) for gold in golds))


def contains_answer(prediction: str, golds: Sequence[str]) -> float:
    """1 if a gold answer stands in the prediction as it is, case included, else 0.

    Source: R-Tuning (arXiv 2311.09677), released comparison of its answers. "1" stands in "10" too.
    """
    return float(any(gold in prediction for gold in golds))

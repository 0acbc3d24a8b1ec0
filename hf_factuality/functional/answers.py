"""The final answer of a completion, and its score against gold answers: token F1 and normalised match."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence


_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_BOOLEANS = {"true": "yes", "false": "no"}
_CLOSED = {"yes", "no", "no answer"}


def normalize_answer(text: str) -> str:
    """Lower case without punctuation, English articles and surplus white space.

    Source: the SQuAD evaluation script (Rajpurkar et al. 2016), with FSPO's two additions: an underscore separates words,
    and an answer that is just "true" or "false" reads "yes" or "no".
    """
    text = text.replace("_", " ").lower().translate(_PUNCTUATION)
    text = " ".join(_ARTICLES.sub(" ", text).split())
    return _BOOLEANS.get(text, text)


def extract_answer(text: str) -> str | None:
    """The text of the last `<answer>...</answer>`, stripped; `None` if there is none.

    Of nested tags the innermost counts.
    """
    last = text.rfind("</answer>")
    start = text.rfind("<answer>", 0, last) if last >= 0 else -1
    if start < 0:
        return None
    start += len("<answer>")
    return text[start : text.find("</answer>", start)].strip()


def check_format(text: str) -> bool:
    """Whether each of `<think> </think> <answer> </answer>` occurs exactly once, in this order.

    Args:
        text (`str`):
            Completion, together with the opening tag if that is part of the prompt; see [`~hf_factuality.rewards.complete_text`].
    """
    places = [text.find(tag) for tag in _TAGS]
    return min(places) >= 0 and places == sorted(places) and all(text.count(tag) == 1 for tag in _TAGS)


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


def contained_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the words of a gold answer (of one that is not ASCII, its characters) stand in the prediction, normalised; else 0."""
    return _nearest(lambda a, b: float(f" {b} " in f" {a} " or not b.isascii() and b in a), prediction, golds)


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the prediction equals a gold answer after [`normalize_answer`], else 0."""
    return _nearest(lambda found, wanted: float(found == wanted), prediction, golds)


def contains_answer(prediction: str, golds: Sequence[str]) -> float:
    """1 if a gold answer stands in the prediction as it is, case included, else 0.

    Source: R-Tuning (arXiv 2311.09677), released comparison of its answers. "1" stands in "10" too.
    """
    return float(any(gold in prediction for gold in golds))

"""The final answer of a completion, and its score against gold answers: token F1 and normalised match."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence


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


def _bare_match(prediction: str, gold: str) -> float:
    # A gold answer such as "The The" or "A" is nothing but articles: normalised it is empty and would match nothing.
    return float(" ".join(prediction.lower().split()) == " ".join(gold.lower().split()))


def _token_f1(prediction: str, gold: str) -> float:
    found, wanted = normalize_answer(prediction), normalize_answer(gold)
    if not wanted:
        return _bare_match(prediction, gold)
    if not found:
        return 0.0
    found_tokens, wanted_tokens = found.split(), wanted.split()
    if found in _CLOSED or wanted in _CLOSED:
        return float(set(found_tokens) <= set(wanted_tokens) or set(wanted_tokens) <= set(found_tokens))
    common = sum((Counter(found_tokens) & Counter(wanted_tokens)).values())
    # Equal to 2PR / (P + R), in one rounding.
    return 2 * common / (len(found_tokens) + len(wanted_tokens))


def _token_match(prediction: str, gold: str) -> float:
    found, wanted = normalize_answer(prediction), normalize_answer(gold)
    if not wanted:
        return _bare_match(prediction, gold)
    return float(found == wanted or wanted in found.split())


def _exact_match(prediction: str, gold: str) -> float:
    found, wanted = normalize_answer(prediction), normalize_answer(gold)
    return float(found == wanted) if wanted else _bare_match(prediction, gold)


def hotpot_f1(prediction: str, golds: Sequence[str]) -> float:
    """Token F1 against the nearest gold answer, in [0, 1].

    If either normalised side is "yes", "no" or "no answer", the score is 1 where the words of one side all occur in the
    other, and 0 otherwise. Source: FSPO (arXiv 2505.24630), released scoring of HotpotQA and 2WikiMultiHopQA.
    """
    return max(_token_f1(prediction, gold) for gold in golds)


def halueval_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the normalised strings are equal or the whole normalised gold is one token of the prediction, else 0.

    Source: FSPO (arXiv 2505.24630), released scoring of HaluEval.
    """
    return max(_token_match(prediction, gold) for gold in golds)


def exact_match(prediction: str, golds: Sequence[str]) -> float:
    """1 if the prediction equals a gold answer after [`normalize_answer`], else 0."""
    return max(_exact_match(prediction, gold) for gold in golds)

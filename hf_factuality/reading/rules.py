"""Rules that tell whether a text declines, by name: those of released codes, and that of [`~hf_factuality.reading.Reading`]."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType

from hf_factuality.errors import DataError
from hf_factuality.reading.completion import read


_VERISCORE = frozenset(
    {
        "I'm sorry, I cannot fulfill that request.",
        "I'm sorry, I can't fulfill that request.",
        "I'm sorry, but I cannot fulfill that request.",
        "I'm sorry, but I can't fulfill that request.",
        "Sorry, but I can't fulfill that request.",
        "Sorry, I can't do that.",
    }
)
_NO_RESULTS = (
    "i could not find any information",
    "the search results do not provide",
    "there is no information",
    "there are no search results",
    "there are no provided search results",
    "not provided in the search results",
    "is not mentioned in the provided search results",
    "there seems to be a mistake in the question",
    "not sources found",
    "no sources found",
    "try a more general question",
)


def _perplexity_ai(text: str) -> bool:
    # Decides by the first paragraph: what follows a paragraph without results is cut off, and nothing then remains.
    first = re.sub(r"\s*\[\d+\]\s*", "", text).lower().split("\n\n")[0]
    return not first.strip() or any(phrase in first for phrase in _NO_RESULTS)


def declines(answer: str) -> bool:
    """Whether an answer is "I don't know", as KnowRL asks for it, "I do not know" or 我不知道, and nothing else."""
    return answer.replace("\u2019", "'").strip(" \n.!。").casefold() in ("i don't know", "i do not know", "我不知道")


_REFUSALS = (
    *(
        f"{who} {state}"
        for who in ("i'm", "i am", "we're", "we are")
        for state in ("sorry", "unable to", "not able to")
    ),
    *(f"{who} {verb}" for who in ("i", "i do", "i must", "we", "we must") for verb in ("apologize", "apologise")),
    "my apologies",
    *(
        f"{negation} have {amount} information"
        for negation in ("don't", "do not", "doesn't", "does not")
        for amount in ("any", "enough", "sufficient", "specific")
    ),
    *(f"have any {more} information" for more in ("additional", "further", "more")),
    *(f"{asking} more context" for asking in ("need", "needs", "request for", "requests for")),
    *(f"{may} be able to {tell} more" for may in ("may", "might") for tell in ("provide", "tell")),
    *(f"{it} possible to" for it in ("it is not", "it's not", "it isn't")),
)
_REFUSALS_ZH = ("抱歉", "对不起", "没有相关信息", "没有足够的信息", "无法回答", "无法提供")


def is_refusal_sentence(text: str) -> bool:
    """Whether a sentence apologises, says that something is not known, asks for more, or ends with a question mark.

    RLFH leaves such sentences out before it rewards, which is an option of the caller (`drop_refusals`). It is a rule
    on phrases, in English and Chinese, of our own wording; the released one has no Chinese and misses what begins with
    a capital letter ("I'm sorry"). It also drops statements that happen to contain a phrase ("It is not possible to
    divide by zero."), and what is dropped is not punished: a policy may learn to wrap what it is unsure of in
    apologies.
    """
    if text.rstrip().endswith(("?", "？")) or any(phrase in text for phrase in _REFUSALS_ZH):
        return True
    letters = (char if char.isalnum() or char == "'" else " " for char in text.replace("\u2019", "'").lower())
    # Whole words: "Gandhi apologized" does not hold "i apologize".
    words = " ".join(word.strip("'") for word in "".join(letters).split())
    return any(f" {phrase} " in f" {words} " for phrase in _REFUSALS)


def abstains(text: str) -> bool:
    """Whether a text declines to answer and commits to nothing: [`~hf_factuality.reading.Reading.declines`]."""
    return read(text).declines


ABSTENTION: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "generic": lambda text: text.startswith("I'm sorry") or "provide more" in text,
        "perplexity_ai": _perplexity_ai,
        "veriscore": lambda text: text.strip() in _VERISCORE,
        "knowrl": declines,
        "rlfh": is_refusal_sentence,
        "phrases": abstains,
    }
)
"""Name -> rule: FActScore's two, VeriScore's six sentences, KnowRL's one, RLFH's for a sentence, and [`abstains`]."""


def abstention_rule(rule: str | Callable[[str], bool] | None) -> Callable[[str], bool]:
    """A rule by its name in [`ABSTENTION`], or as it is; `None` finds no abstention."""
    if rule is None:
        return lambda text: False
    if callable(rule):
        return rule
    if rule not in ABSTENTION:
        raise DataError(f"unknown abstention rule {rule!r}; choose one of {sorted(ABSTENTION)}, a function or None")
    return ABSTENTION[rule]

"""How the released codes tell that a response declines to answer. Text rules, in English; a judge is better."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from hf_factuality.errors import DataError


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


def _generic(text: str) -> bool:
    return text.startswith("I'm sorry") or "provide more" in text


def _perplexity_ai(text: str) -> bool:
    # Decides by the first paragraph: what follows a paragraph without results is cut off, and nothing then remains.
    first = re.sub(r"\s*\[\d+\]\s*", "", text).lower().split("\n\n")[0]
    return not first.strip() or any(phrase in first for phrase in _NO_RESULTS)


ABSTENTION: Mapping[str, Callable[[str], bool]] = {
    "generic": _generic,
    "perplexity_ai": _perplexity_ai,
    "veriscore": lambda text: text.strip() in _VERISCORE,
}
"""Name -> rule: FActScore's two and VeriScore's six sentences."""


def abstention_rule(rule: str | Callable[[str], bool] | None) -> Callable[[str], bool]:
    """A rule by its name in [`ABSTENTION`], or as it is; `None` finds no abstention."""
    if rule is None:
        return lambda text: False
    if callable(rule):
        return rule
    if rule not in ABSTENTION:
        raise DataError(f"unknown abstention rule {rule!r}; choose one of {sorted(ABSTENTION)}, a function or None")
    return ABSTENTION[rule]

"""Whether a text declines to answer, and how sure of an answer a model must be for answering to pay.

The rules are on phrases, so a judge is better: [`ABSTENTION`] names those of released codes, and ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

from hf_factuality.errors import DataError
from hf_factuality.spans import scope_text


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


# A clause that declines, from its beginning, in lower case. All repeats are possessive: no text takes them long.
_NOT = r"(?:do not|don't|did not|didn't|cannot|can not|can't|could not|couldn't|wouldn't)"
_HOW = r"(?:(?:really|honestly|currently|unfortunately|simply|just|actually|fully|entirely|quite|at all) )*+"
_FIT = (
    r"(?:an?|any|enough|sufficient|reliable|specific|the|that|this|further|relevant|verified|of|to|about|insufficient)"
)
_THING = r"(?:information|knowledge|data|evidence|details?|records?|context|sources?|basis|memory|facts?|idea|clue|way|answer)"
_KNOWN = (
    r"(?:publicly |generally |widely |currently )?(?:known|available|possible to (?:say|know|tell|determine|answer|verify|confirm)|clear|"
    r"recorded|documented|specified|provided|given|mentioned|stated|certain)(?! (?:for|as|that|to be|but)\b)"
)
_IT = r"(?:it|this|that|(?:the|this|that|your) (?:answer|information|question|date|name|place|exact \w+))"
_DECLINES = re.compile(
    rf"(?:i {_HOW}{_NOT} {_HOW}(?:know(?! (?:of|him|her|them)\b)|recall|remember|say|tell|answer|determine|verify|confirm|find|provide|"
    rf"be (?:sure|certain)|have (?:access|(?:{_FIT} )*+{_THING}))\b"
    rf"|(?:i|we) (?:must|have to) (?:admit|say|confess) (?:that )?(?:i|we) {_HOW}{_NOT} know\b"
    rf"|i(?: am|'m| was) {_HOW}(?:unsure|uncertain|unable to|unaware|not {_HOW}(?:sure|certain|aware|able to|familiar))\b"
    rf"|i (?:have|had) (?:no|insufficient) (?:{_FIT} )*+{_THING}\b"
    r"|i (?:would rather not|'d rather not|must decline|decline to|have to decline|prefer not to|refuse to)\b(?! believe)"
    r"|(?:we|nobody|no one) (?:(?:do not|don't|cannot|can't|really) )?knows?\b(?! (?:that|he|she|they)\b)(?<!we know)"
    rf"|{_IT} (?:is|was|are|were|has been) not {_KNOWN}|{_IT} (?:isn't|wasn't) {_KNOWN}"
    rf"|{_IT} (?:is|remains|was) (?:unknown|unclear|uncertain|unanswerable|impossible to (?:say|know|tell|determine|answer))\b"
    rf"|{_IT} (?:cannot|can't|can not|could not) be (?:known|determined|answered|verified|confirmed)\b"
    rf"|there (?:is|are|was) (?:no|not|insufficient) (?:{_FIT} )*+{_THING}\b(?! (?:paradox|that))"
    rf"|(?:not|insufficient|no) (?:{_FIT} )*+{_THING}$"
    r"|(?:unknown|not known|not sure|unsure|uncertain|unanswerable|cannot answer|can't say|don't know|no comment|not available|"
    r"cannot solve|impossible to say)(?: to me)?$"
    rf"|i (?:do not|don't) think i can|i lack (?:the |any )?{_THING}|(?:it|this|that) is (?:beyond my knowledge|not something i know)|"
    r"your guess is as good as mine)"
)
_SOFTENER = re.compile(
    r"(?:(?:i(?:'m| am) (?:very |so |really )?(?:sorry|afraid)|sorry|apologies|my apologies|i apologi[sz]e|unfortunately|regrettably|well|"
    r"hmm+|honestly|to be honest|frankly|as an ai(?: \w+){0,4}+|at this (?:time|moment|point)|at the moment|currently|answer)\b"
    r"(?:,|:| but| that)?+ ?(?:but |that )?+)*+"
)
# What may stand beside a clause that declines: continued, explained, excused, or help that is offered. A number never.
_BESIDE = re.compile(
    r"(?:(?:(?:or|nor|and) )?(?:who|whom|whose|when|where|what|which|why|how|whether|if)|(?:because|since|as|so|therefore) "
    r"(?:i|it|we|you|there|this|that|the|my|please|an?)|nor|(?:or|and) (?:i|any|anything|cannot|can't|do not|don't)|sorry|please|you|"
    r"could you|can you|would you|perhaps you|let me know|feel free|i (?:recommend|suggest|would (?:recommend|suggest)|apologi[sz]e|"
    r"hope|can help|need|would need)|my (?:training|knowledge)|is there|do you|thank|for (?:more|accurate|this)|about "
    r"(?:it|this|that|the|him|her|them|any)|without |it would be (?:best|better)|regarding|consult|check)\b(?!.*\d)"
)
_THING_ZH = r"(?:信息|资料|证据|记录|记载|答案)"
_DECLINES_ZH = re.compile(
    r"(?:(?:很|非常|十分)?(?:抱歉|对不起|不好意思|遗憾)|目前|暂时|恐怕|对此|老实说|说实话|对于|关于|作为[^，。]{0,12}+|"
    r"(?:这个|该|此)问题的?|答案|这个?人?|我|就|本人|我们|也|真的|确实|并|还|尚|仍然?|其实|的|[，, ])*+"
    r"(?:不知道|不太?清楚|不太?确定|不太?了解|不记得|不得而知|不明|不详|不好说|一无所知|难以(?:确定|判断|回答)|(?:无法|不能|没办法|没法)(?:回答|确定|提供|判断|得知|确认|知道|给出|核实|查证)|"
    rf"没有(?:找到|足够|相关|可靠|具体|任何|确切|这方面|的)*+{_THING_ZH}|缺乏(?:足够|相关|可靠|的)*+{_THING_ZH}|暂无{_THING_ZH}|"
    r"未知|无从得知|无可奉告|无人知晓|没有?人知道|尚?无定论)(?!的)"
)
_BESIDE_ZH = re.compile(
    r"(?:(?:很|非常|十分)?(?:抱歉|对不起|不好意思|遗憾)|请|您|你|建议|如果|如需|因为|由于|所以|因此|谢谢|希望|目前|我的|也(?!许)|或(?!许)|以及|关于|作为|这个|该问题|"
    r"这一问题|对此|对于)(?!.*\d)"
)
_CONTRAST = re.compile(r"\b(?:but|however|although|though|yet|still|nevertheless)\b[,:]?|(?:但是|但|不过|然而)[，,]?")


def _clauses(text: str) -> list[str]:
    """Clauses in lower case, of the part that is no reasoning."""
    text = scope_text(text)[0].replace("\u2019", "'").strip().casefold()
    if len(text) > 1 and text[0] in "\"'“「" and text[-1] in "\"'”」" and not re.search('["“「]', text[1:-1]):
        text = text[1:-1]
    text = _CONTRAST.sub(". ", re.sub(r"[*_`#>]+", "", text))
    found = re.split(r"(?<!\d)[.](?!\w)|[!?;:()。！？；：（）\n…—–]+|[,，](?!\d)|\s-\s", text)
    return [" ".join(clause.split()) for clause in found if clause.strip(" \"'[]“”")]


def abstains(text: str) -> bool:
    """Whether a text declines to answer and does nothing else, by phrases in English and Chinese.

    A clause must decline ("I don't know", "it is not known", 无法确定), and none may say anything that is not beside it: excuses,
    reasons, help that is offered. "I'm not sure, maybe Paris" and "I don't know why he left, but he was born in 1901" answer.
    What stands in `<think>` blocks does not count; an empty text does not decline.
    """
    found = False
    for clause in _clauses(text):
        rest = clause[_SOFTENER.match(clause).end() :]
        if _DECLINES.match(rest) or _DECLINES_ZH.match(rest):
            found = True
        elif rest and not (_BESIDE.match(rest) or _BESIDE_ZH.match(rest)):
            return False
    return found


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


class OutcomeRewards(NamedTuple):
    """What an answer earns that is correct, that declines, and that is wrong."""

    correct: float
    abstained: float
    wrong: float

    def of(self, outcome: str | None) -> float | None:
        """What `"correct"`, `"refused"` or `"wrong"` earns, `None` if it is unknown; `ValueError` for another outcome."""
        known = {"correct": self.correct, "refused": self.abstained, "wrong": self.wrong, None: None}
        if outcome not in known:
            raise ValueError(f"outcome must be 'correct', 'refused', 'wrong' or None, got {outcome!r}")
        return known[outcome]


PRESETS: Mapping[str, OutcomeRewards] = MappingProxyType(
    {
        "truthrl": OutcomeRewards(1.0, 0.0, -1.0),
        "knowrl": OutcomeRewards(2.0, 1.0, -1.0),
        "binary": OutcomeRewards(1.0, -1.0, -1.0),
    }
)
"""Name -> rewards of TruthRL (arXiv 2509.25760), of KnowRL's outcome (arXiv 2506.19807), and of being right alone."""


def preset_rewards(name: str) -> OutcomeRewards:
    """Rewards by a name of [`PRESETS`], or of `"target-0.75"`: [`threshold_rewards`] of .75. `ValueError` for another."""
    kind, _, number = name.partition("-")
    if kind == "target" and re.fullmatch(r"[01]|[01]?\.\d{1,6}", number, re.ASCII):
        return threshold_rewards(float(number))
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {list(PRESETS)}, or 'target-0.75' with a threshold")
    return PRESETS[name]


def threshold_rewards(threshold: float) -> OutcomeRewards:
    """Rewards by which declining pays below a probability `t` of being right: 1 - t, 0 and -t.

    These are 1, 0 and -t / (1 - t) (arXiv 2509.04664) times 1 - t, so that they stay finite: with 0 nothing is lost by a wrong
    answer, with 1 nothing is won by a right one. `ValueError` outside of [0, 1].
    """
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool) or not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold!r} must be a probability, from 0 (never decline) to 1 (always)")
    return OutcomeRewards(1.0 - threshold, 0.0, -float(threshold))


def abstention_threshold(correct: float, abstained: float, wrong: float) -> float:
    """The probability of being right below which declining pays: (a - w) / (c - w).

    `ValueError` unless the numbers are finite, c is above w, and a from w to c.
    """
    given = (correct, abstained, wrong)
    if not (all(isinstance(x, (int, float)) and isfinite(x) for x in given) and wrong < correct) or not (
        wrong <= abstained <= correct
    ):
        raise ValueError(
            f"correct={correct!r}, abstained={abstained!r}, wrong={wrong!r}: give finite numbers, correct above wrong, and "
            "abstained from wrong to correct"
        )
    return (abstained - wrong) / (correct - wrong)

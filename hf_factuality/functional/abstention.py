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


def _generic(text: str) -> bool:
    return text.startswith("I'm sorry") or "provide more" in text


def _perplexity_ai(text: str) -> bool:
    # Decides by the first paragraph: what follows a paragraph without results is cut off, and nothing then remains.
    first = re.sub(r"\s*\[\d+\]\s*", "", text).lower().split("\n\n")[0]
    return not first.strip() or any(phrase in first for phrase in _NO_RESULTS)


def declines(answer: str) -> bool:
    """Whether an answer is "I don't know", as KnowRL asks for it, "I do not know" or 我不知道, and nothing else."""
    return answer.replace("\u2019", "'").strip(" \n.!。").casefold() in ("i don't know", "i do not know", "我不知道")


_NOT = r"(?:do\ not|don't|did\ not|didn't|cannot|can\ not|can't|could\ not|couldn't|am\ not|'m not|was\ not|wasn't|would\ not|wouldn't|won't)"
_HOW = r"(?:(?:really|honestly|currently|unfortunately|simply|just|actually|fully|entirely|quite|at\ all)\ )*"
_THING = r"(?:information|knowledge|data|evidence|details?|records?|context|sources?|basis|memory|facts?)"
_KNOWN = r"(?:known|available|possible\ to\ (?:say|know|tell|determine|answer|verify|confirm|give|provide)|clear|recorded|documented|specified|provided|given|mentioned|stated|certain)"
# A clause that declines, from its beginning, in lower case.
_DECLINES = re.compile(
    rf"""(?:
    i\ {_HOW}(?:{_NOT})\ {_HOW}(?:know|recall|remember|say|tell|answer|determine|verify|confirm|sure|certain|aware|able\ to\ (?:answer|
        say|tell|determine|verify|confirm|find|provide|recall)|find\ |provide\ |familiar|have\ (?:an\ answer|any|enough|sufficient|
        reliable|specific|access|the\ (?:answer|information)|(?:that|this)\ information|information|knowledge|details))
    |i(?:\ am|'m|\ was)\ {_HOW}(?:unsure|uncertain|unable\ to|unaware|not\ (?:sure|certain|aware|able))
    |i\ (?:have|had)\ (?:no|insufficient)\ (?:idea|clue|answer|(?:\w+\ ){{0,2}}{_THING})
    |i\ (?:(?:would|'d)\ rather\ not|must\ decline|decline\ to|have\ to\ decline|prefer\ not\ to|refuse\ to)\ ?(?:answer|say|guess|speculate)?
    |(?:we|nobody|no\ one)\ (?:(?:do\ not|don't|cannot|can't|does\ not)\ )?knows?\b(?!\ (?:that|he|she|they))
    |(?:it|this|that|the\ (?:answer|information|question|date|name|place|exact\ \w+))\ (?:is|was|are|were|has\ been)\ (?:not\ |n't\ )
        (?:\w+ly\ )?{_KNOWN}(?!\ (?:for|as|that))
    |(?:it|this|that|the\ (?:answer|information|question|date|name|place|exact\ \w+))\ (?:isn't|wasn't)\ (?:\w+ly\ )?{_KNOWN}
    |(?:it|this|that|the\ (?:answer|question|date|name|place|exact\ \w+))\ (?:is|remains|was)\ (?:unknown|unclear|uncertain|unanswerable)
    |(?:it|this|that|the\ answer|(?:the|this|that|your)\ question)\ (?:cannot|can't|can\ not|could\ not)\ be\ (?:known|determined|answered|verified|confirmed)
    |there\ (?:is|are|was)\ (?:no|not\ (?:enough|any|sufficient)|insufficient)\ (?:\w+\ ){{0,2}}(?:{_THING}|way|answer)
    |(?:not\ enough|insufficient|no)\ (?:\w+\ ){{0,1}}(?:information|evidence|data|idea|answer|clue)$
    |(?:unknown|not\ known|not\ sure|unsure|uncertain|unanswerable|cannot\ answer|can't\ say|don't\ know|no\ comment|not\ available|
        cannot\ solve)(?:\ to\ me)?$
    |your\ guess\ is\ as\ good\ as\ mine
    )""",
    re.VERBOSE,
)
_SOFTENER = re.compile(
    r"(?:(?:i(?:'m| am) (?:very |so |really )?(?:sorry|afraid)|sorry|apologies|my apologies|i apologi[sz]e|unfortunately|regrettably|well|"
    r"hmm+|honestly|to be honest|frankly|as an ai(?: \w+){0,4}|at this (?:time|moment|point)|at the moment|currently|answer|"
    r"based on (?:\w+ ){1,6})(?:,|:|\.|;| but| that|$)?\s*(?:but |that )?)+"
)
# What may stand beside a clause that declines: continued, explained, excused, or help that is offered.
_BESIDE = re.compile(
    r"(?:or|nor|who|whom|whose|when|where|what|which|why|how|whether|if|because|since|as|so|therefore|sorry|please|you|could you|"
    r"can you|would you|perhaps you|let me know|feel free|i (?:recommend|suggest|would (?:recommend|suggest)|apologi[sz]e|hope|can help|"
    r"need|would need)|my (?:training|knowledge)|is there|do you|thank|that (?:question|information)|for (?:more|accurate|this)|about|"
    r"and (?:i |who|when|where|what|which|why|how|whether|cannot|can't|do not|don't)|to |without |it would be (?:best|better)|in order|"
    r"regarding|consult|check)\b"
)
_BESIDE_ZH = re.compile(
    r"(?:抱歉|对不起|不好意思|很遗憾|请|您|你|建议|如果|如需|因为|由于|所以|因此|谢谢|希望|目前|我的|也|或|以及|关于|作为|这个问题|该问题|这一问题|对此|对于)"
)
_DECLINES_ZH = re.compile(
    r"(?:(?:很|非常|十分)?(?:抱歉|对不起|不好意思|遗憾)|目前|暂时|恐怕|对此|老实说|说实话|对于(?:这个|该|此)问题|(?:关于)?(?:这个|该|此)问题(?:的答案)?|"
    r"答案|这|作为[^，。]{0,12})*[，,\s]*(?:我|本人|我们|目前|暂时|恐怕|也|真的|确实|并|还|尚|仍|仍然|其实)*"
    r"(?:不知道|不清楚|不太清楚|不确定|不太确定|不了解|不太了解|不记得|不得而知|不明确|无法(?:回答|确定|提供|判断|得知|确认|知道|给出|核实|查证)|"
    r"不能(?:回答|确定|提供|判断|确认)|没办法(?:回答|确定)|没法(?:回答|确定)|没有(?:足够|相关|可靠|具体|任何|确切|这方面)?的?(?:信息|资料|证据|记录|记载|答案)|"
    r"缺乏(?:足够|相关|可靠)?的?(?:信息|资料|证据)|未知|无从得知|无可奉告|无人知晓|没有人知道|暂无(?:信息|资料|答案)?|尚无定论)(?!的)"
)
_CONTRAST = re.compile(
    r"\b(?:but|however|although|though|yet|still|nevertheless)\b[,:]?\s*|(?:但是|但|不过|然而)[，,]?"
)


def _clauses(text: str) -> list[str]:
    """Clauses in lower case, of the part that is no reasoning."""
    text = scope_text(text)[0].replace("\u2019", "'").strip().casefold()
    if len(text) > 1 and text[0] in "\"'“「" and text[-1] in "\"'”」" and not re.search('["“「]', text[1:-1]):
        text = text[1:-1]
    text = re.sub(r"[*_`#>]+", "", text)
    found = re.split(r"(?<!\d)[.](?!\w)|[!?;:。！？；：\n…]+|[,，](?!\d)|\s[–—-]\s", _CONTRAST.sub(". ", text))
    return [" ".join(clause.split()) for clause in found if clause.strip(" \"'()[]“”")]


def abstains(text: str) -> bool:
    """Whether a text declines to answer and does nothing else, by phrases in English and Chinese.

    A clause must decline ("I don't know", "it is not known", 无法确定), and none may say anything that is not beside it: excuses,
    reasons, help that is offered. "I'm not sure, maybe Paris" and "I don't know why he left, but he was born in 1901" answer.
    What stands in `<think>` blocks does not count; an empty text does not decline.
    """
    found = False
    for clause in _clauses(text):
        rest = clause[_SOFTENER.match(clause).end() :] if _SOFTENER.match(clause) else clause
        if not rest:
            continue
        if _DECLINES.match(rest) or _DECLINES_ZH.match(rest):
            found = True
        elif not (_BESIDE.match(rest) or _BESIDE_ZH.match(rest)):
            return False
    return found


ABSTENTION: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "generic": _generic,
        "perplexity_ai": _perplexity_ai,
        "veriscore": lambda text: text.strip() in _VERISCORE,
        "knowrl": declines,
        "phrases": abstains,
    }
)
"""Name -> rule: FActScore's two, VeriScore's six sentences, KnowRL's one, and [`abstains`]."""


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

    correct: float = 1.0
    abstained: float = 0.0
    wrong: float = -1.0


PRESETS: Mapping[str, OutcomeRewards] = MappingProxyType(
    {
        "truthrl": OutcomeRewards(1.0, 0.0, -1.0),
        "knowrl": OutcomeRewards(2.0, 1.0, -1.0),
        "binary": OutcomeRewards(1.0, -1.0, -1.0),
    }
)
"""Name -> rewards of TruthRL (arXiv 2509.25760), of KnowRL's outcome (arXiv 2506.19807), and of being right alone."""


def threshold_rewards(threshold: float) -> OutcomeRewards:
    """Rewards by which declining pays below a probability `t` of being right: 1 - t, 0 and -t.

    These are 1, 0 and -t / (1 - t) (arXiv 2509.04664) times 1 - t, so that they stay finite: with 0 nothing is lost by a wrong
    answer, with 1 nothing is won by a right one. `ValueError` outside of [0, 1].
    """
    if not isinstance(threshold, (int, float)) or isinstance(threshold, bool) or not 0 <= threshold <= 1:
        raise ValueError(f"threshold={threshold!r} must be a probability, from 0 (never decline) to 1 (always)")
    return OutcomeRewards(1.0 - threshold, 0.0, -float(threshold))


def abstention_threshold(rewards: OutcomeRewards) -> float:
    """The probability of being right below which declining pays: (a - w) / (c - w).

    `ValueError` unless the numbers are finite, c is above w, and a from w to c.
    """
    c, a, w = rewards
    if not (all(isinstance(x, (int, float)) and isfinite(x) for x in rewards) and w < c and w <= a <= c):
        raise ValueError(
            f"correct={c!r}, abstained={a!r}, wrong={w!r}: correct must pay more than wrong, and abstained from the one to the "
            "other, in finite numbers"
        )
    return (a - w) / (c - w)

"""What an answer says of itself, each only in its form and place: its final answer, a confidence, a verdict."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from hf_factuality.reading.scopes import THINK_TAG, scope_ranges


Range = tuple[int, int]

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_ALONE = re.compile(r"<think>.*</think>\s*<answer>.*</answer>", re.DOTALL)
_THINKING = re.compile(r"\s*<think>(?:(?!</?think>).)*</think>", re.DOTALL)
_ANSWER_OR_TAG = re.compile(r"<answer>.*?(?:</answer>|\Z)|</?(?:think|answer)>", re.DOTALL)
_BOX = re.compile(r"\\f?boxed\s*\{")
_PAIR = re.compile(r"<confidence>([^<>]*)</confidence>", re.IGNORECASE)
_TAG = re.compile(r"</?confidence\b[^<>]*>", re.IGNORECASE)
# What may be meant as a number: one, or a word or two, as in "high". A sentence between tags is a sentence.
_STATED = re.compile(r"\s*(?:[0-9]{0,3}(?:[.,][0-9]{1,20})?\s?%?|[\w./%-]{1,12}(?: [\w./%-]{1,12})?)\s*", re.ASCII)
_NUMBER = re.compile(
    r"\s*(?:([01]|[01]?\.[0-9]{1,20})|([0-9]{1,2}(?:\.[0-9]{1,4})?|100(?:\.0{1,4})?)\s?%)\s*", re.ASCII
)
_WHOLE = re.compile(r"\s*(10|[0-9])\s*", re.ASCII)
# All that a text ends in; the last one counts.
_VERDICT = re.compile(
    r"[ \t*_]*(?:\[VERIFY\][\s*_:]*+(correct|wrong)\b[ \t*_]*+[.!]?[\s*_]*+)++(?:</answer>\s*)?\Z", re.IGNORECASE
)
_CLOSED = re.compile(r"</think\b[^<>]*>\s*\Z", re.IGNORECASE)
_SOLVED = re.compile(r"####[ \t]*([^\n]*\S)")


def outside_reasoning(text: str, opened: bool = False) -> list[Range]:
    """Characters that are no reasoning, whether or not they stand in the tags of the answer."""
    places = [0, *(place for block in scope_ranges(text, "think", opened) for place in block), len(text)]
    return list(zip(places[::2], places[1::2], strict=True))


def _pairs(text: str, opened: bool, numbers: bool = True) -> list[re.Match[str]]:
    """Pairs of tags outside of the reasoning; of those that hold a number only. Between others stands text like any other."""
    if "confidence" not in text.lower():
        return []
    return [
        pair
        for part in outside_reasoning(text, opened)
        for pair in _PAIR.finditer(text, *part)
        if not numbers or (pair[1].strip(" %") and _STATED.fullmatch(pair[1]))
    ]


def confidence_spans(text: str, opened: bool = False) -> list[Range]:
    """Characters of each `<confidence>0.8</confidence>` of a text, tags included, outside of its `<think>` blocks.

    `opened`: the prompt has opened a `<think>` block. Tags that are not closed, or hold anything but a number, are none.
    """
    return [pair.span() for pair in _pairs(text, opened)]


def _tag_ranges(text: str, opened: bool) -> list[Range]:
    """Stated confidences, and other tags of confidence (not what stands between them), in order."""
    if "confidence" not in text.lower():
        return []
    found = confidence_spans(text, opened)
    tags = (tag.span() for part in outside_reasoning(text, opened) for tag in _TAG.finditer(text, *part))
    return sorted([*found, *(tag for tag in tags if not any(start <= tag[0] < end for start, end in found))])


def silent_ranges(text: str, opened: bool = False) -> list[Range]:
    """Characters that state nothing: confidences, other tags of confidence (not what stands between them), and the verdict."""
    verdict, tags = verdict_range(text, opened), _tag_ranges(text, opened)
    if verdict is None:
        return tags
    return sorted([*(tag for tag in tags if not verdict[0] <= tag[0] < verdict[1]), verdict])


def stated_confidence(text: str, opened: bool = False) -> float | None:
    """The probability of being right that an answer states: the number in its one pair of tags `<confidence>`.

    A number from 0 to 1 ("0.8", ".8") or a percentage ("80%"). `None` if there is another number of pairs outside of the
    `<think>` blocks, a tag is left over there, or anything else stands between the tags.
    """
    pairs = _pairs(text, opened)
    if len(pairs) != 1 or sum(len(_TAG.findall(text, *part)) for part in outside_reasoning(text, opened)) != 2:
        return None
    match = _NUMBER.fullmatch(pairs[0][1])
    if match is None:
        return None
    value = float(match[1]) if match[1] else float(match[2]) / 100
    return value if value <= 1 else None


def without_confidence(text: str, opened: bool = False) -> str:
    """A text of the same length, with spaces for each stated confidence, for tags of confidence and for the verdict that it ends
    in. What else stands between such tags is still there."""
    return blanked(text, silent_ranges(text, opened))


def blanked(text: str, ranges: Sequence[Range]) -> str:
    """A text of the same length, with white space in place of the ranges, which are in order. Where a lone tag stood a line
    ends, so that what is behind it is no part of the sentence before it."""
    parts, at = [], 0
    for start, end in ranges:
        parts += [text[at:start], "\n" if _TAG.fullmatch(text, start, end) else " ", " " * (end - start - 1)]
        at = end
    return "".join([*parts, text[at:]])


def sentence_confidences(text: str, opened: bool = False) -> list[tuple[int, int, float | None]]:
    """Sentences and the numbers after them, as LoVeC has them: characters before each tag, and 0 to 10 as 0 to 1.

    `(start, end, confidence)` of what stands between two tags; what follows the last has no number, `None`, as has what comes
    before a tag with anything but a whole number from 0 to 10. Text in `<think>` blocks is left out.
    """
    found: list[tuple[int, int, float | None]] = []
    pairs = _pairs(text, opened, numbers=False)
    for low, high in scope_ranges(text, "answer", opened):
        for match in [*(pair for pair in pairs if low <= pair.start() and pair.end() <= high), None]:
            number = match and _WHOLE.fullmatch(match[1])
            if text[low : match.start() if match else high].strip():
                found.append((low, match.start() if match else high, int(number[1]) / 10 if number else None))
            low = match.end() if match else high
    return found


def _verdict(text: str, opened: bool) -> re.Match[str] | None:
    # A confidence behind it, and a tag of reasoning, are no text.
    shown = THINK_TAG.sub(lambda tag: " " * len(tag[0]), blanked(text, _tag_ranges(text, opened)))
    parts = outside_reasoning(text, opened)
    start, end = next((part for part in reversed(parts) if shown[slice(*part)].strip()), parts[-1])
    return _VERDICT.search(shown, max(start, end - 1000), end)


def verdict_range(text: str, opened: bool = False) -> Range | None:
    """Characters of the verdict `[VERIFY] correct` or `[VERIFY] wrong` that a text ends in; `None` without.

    One in the reasoning, or that anything follows, is none.
    """
    found = _verdict(text, opened)
    return found and found.span()


def self_verdict(text: str, opened: bool = False) -> bool | None:
    """Whether a text says of itself that it is right, by the verdict that it ends in; `None` without."""
    found = _verdict(text, opened)
    return found and found[1].lower() == "correct"


def without_verdict(text: str, opened: bool = False) -> str:
    """A text up to the verdict that it ends in."""
    found = verdict_range(text, opened)
    return text if found is None else text[: found[0]]


def last_box(text: str) -> Range | None:
    r"""Characters within the last `\boxed{...}` that is closed, in time that grows with the text only; `None` without."""
    found, depths = None, []
    for match in _BRACES.finditer(text):
        if match[0] == "{" or "boxed" in match[0]:
            depths.append(match.end() if len(match[0]) > 1 else None)
        elif match[0] == "}" and depths:
            start = depths.pop()
            # A box within a box is closed first; the outer one is the answer.
            found = (start, match.start()) if start is not None else found
    return found


_BRACES = re.compile(r"\\f?boxed\s*\{|\\[\\{}]|[{}]")


@lru_cache(maxsize=512)
def final_range(text: str, opened: bool = False) -> tuple[Range, str]:
    r"""Characters of the one final answer, and its form: `"tags"`, `"boxed"`, `"hashes"` or `"whole"`.

    The last `<answer>` outside of the reasoning; in it, or in the answer without tags, the last `\boxed{}`, else what follows
    the last `####` on its line. Without any of them all that follows the reasoning. A stated confidence and a verdict are no
    part of it, and neither is white space around it.
    """
    parts = scope_ranges(text, "answer", opened)
    low, high = parts[-1]
    if not text[low:high].strip() and _CLOSED.search(text):  # reasoning behind the answer
        low, high = next((part for part in reversed(parts) if text[slice(*part)].strip()), (low, high))
    form = "tags" if text[high : high + len("</answer>")] == "</answer>" else "whole"
    cut = text.rfind("<answer>", low, high)
    if form == "whole" and cut >= 0 and "</answer>" not in text[low:high]:
        low = cut + len("<answer>")  # a completion that was cut off
    verdict = verdict_range(text, opened)
    if verdict is not None and low <= verdict[0] < high:
        high = verdict[0]
    visible = without_confidence(text, opened)
    box = last_box(visible[low:high])
    if box is not None:
        return _stripped(visible, low + box[0], low + box[1]), "boxed"
    solved = list(_SOLVED.finditer(visible, low, high))
    if solved:
        return _stripped(visible, *solved[-1].span(1)), "hashes"
    return _stripped(visible, low, high), form


def _stripped(text: str, start: int, end: int) -> Range:
    piece = text[start:end]
    if not piece.strip():
        return start, start
    return start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())


def final_answer(text: str, opened: bool = False, tagged: bool = False) -> str | None:
    """The one final answer of a completion, as [`final_range`] finds it; `None` if it is empty.

    With `tagged`, `None` unless it stands in `<answer>` tags, which some rewards ask for.
    """
    (start, end), form = final_range(text, opened)
    if tagged and form != "tags" and not _is_tagged(text, opened):
        return None
    # A confidence within the answer is no part of it.
    return without_confidence(text, opened)[start:end] or None


def _is_tagged(text: str, opened: bool) -> bool:
    end = scope_ranges(text, "answer", opened)[-1][1]
    return text[end : end + len("</answer>")] == "</answer>"


def extract_answer(text: str, opened: bool = False) -> str | None:
    """The final answer in the last `<answer>...</answer>` outside of the reasoning; `None` if there is none.

    Of nested tags the innermost counts; a box within is the answer, a stated confidence no part of it.
    """
    return (final_answer(text, opened, tagged=True) or "") if _is_tagged(text, opened) else None


def check_format(text: str, alone: bool = False) -> bool:
    """Whether each of `<think> </think> <answer> </answer>` occurs exactly once, in this order.

    Args:
        text (`str`):
            Completion, together with the opening tag if that is part of the prompt; see [`~hf_factuality.rewards.complete_text`].
        alone (`bool`, *optional*, defaults to `False`):
            Whether nothing but white space may stand outside the tags.
    """
    if alone and _ALONE.fullmatch(text.strip()) is None:
        return False
    places = [text.find(tag) for tag in _TAGS]
    return min(places) >= 0 and places == sorted(places) and all(text.count(tag) == 1 for tag in _TAGS)


def without_thinking(text: str) -> str:
    """`text` without one closed `<think>` block in front of it."""
    thinking = _THINKING.match(text)
    return text[thinking.end() :] if thinking else text


def outside_tags(text: str, start: int, end: int) -> list[Range]:
    """Characters of `[start, end)` that stand in no answer and are no tag of reasoning or answer."""
    ranges = []
    for cut in _ANSWER_OR_TAG.finditer(text, start, end):
        ranges.append((start, cut.start()))
        start = cut.end()
    return [*ranges, (start, end)]


def solved(text: str) -> str | None:
    """What stands behind the last `####` on its line, the answer of a worked solution of GSM8K; `None` without."""
    _, found, answer = text.rpartition("####")
    return answer.strip().partition("\n")[0] if found else None


def unboxed(text: str) -> str:
    r"""What is inside `\boxed{...}` if a text is nothing else, else the text."""
    inside = last_box(text)
    return (
        text[slice(*inside)].strip()
        if inside and _BOX.fullmatch(text[: inside[0]]) and text[inside[1] :] == "}"
        else text
    )

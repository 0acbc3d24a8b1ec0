"""Reasoning and answer of a completion: what stands in `<think>` blocks, in `<answer>` tags, or outside of them."""

from __future__ import annotations

import re

from hf_factuality.errors import SpanError
from hf_factuality.spans import BETWEEN


SCOPES = ("answer", "think", "completion")
"""What of a completion is judged."""
THINK_TAG = re.compile(r"<(/?)think\b[^<>]*>", re.IGNORECASE)
_OPENED = re.compile(r"<think\b[^<>]*>\Z", re.IGNORECASE)
_CLOSING = re.compile(r"\s*</think\b[^<>]*>", re.IGNORECASE)
_ANSWER_TAG = re.compile(r"<answer\b[^<>]*>", re.IGNORECASE)


def scope_ranges(completion: str, scope: str = "answer", opened: bool = False) -> list[tuple[int, int]]:
    """Characters of a completion that are its answer, its reasoning, or all of it, by one of [`SCOPES`] (else `SpanError`).

    Reasoning is what stands in `<think>` blocks, in all of them and however they are written: tags may be in upper case, have
    attributes, and be nested. A block that is never closed reaches to the answer's tag, or to the end; a closing tag before
    any other one closes a block that the prompt opened; what follows the last closing tag is no reasoning. The answer is what
    stands in the last `<answer>` tags after the reasoning, and without them all that is outside the blocks. `opened` says that
    the prompt ends in an opening tag, see [`opens_think`].

    Ranges are half-open, in order, without the tags; some may be empty. Of `"answer"` the last one is the final answer, which
    is empty if the reasoning is never closed. `"think"` gives an empty list if there is no block.
    """
    if scope not in SCOPES:
        raise SpanError(f"scope {scope!r} is unknown; choose one of {', '.join(SCOPES)}")
    if scope == "completion":
        return [(0, len(completion))]
    inside: list[tuple[int, int]] = []
    outside: list[tuple[int, int]] = []
    start, depth, reasoned, last = 0, int(opened), 0, "" if opened else None
    for tag in THINK_TAG.finditer(completion):
        if depth or (tag[1] and not inside and not outside):
            inside.append((start, tag.start()))
            reasoned = tag.end()
        else:
            outside.append((start, tag.start()))
        depth = max(depth - 1, 0) if tag[1] else depth + 1
        start, last = tag.end(), tag[1]
    if last == "":  # the last tag opens a block
        answer = _ANSWER_TAG.search(completion, start)
        reasoned = answer.start() if answer else len(completion)
        inside.append((start, reasoned))
        start = reasoned
    if scope == "think":
        return inside
    closing = completion.rfind("</answer>", reasoned)
    opening = completion.rfind("<answer>", reasoned, closing) if closing >= 0 else -1
    if opening < 0:
        return [*outside, (start, len(completion))]
    return [(opening + len("<answer>"), completion.find("</answer>", opening))]


def scope_text(completion: str, scope: str = "answer", opened: bool = False) -> tuple[str, list[tuple[int, int]]]:
    """What a verifier is shown of a completion; [`~hf_factuality.spans.Verification.spread`] brings its spans back to the whole.
    See [`scope_ranges`].

    Returns the parts in the scope as paragraphs of one text, those of the answer without white space at their ends, and the
    characters that each part has in the completion. Blank parts are left out, so both may be empty: of `"<think>Hm.</think>
    Warsaw."` it is `("Warsaw.", [(19, 26)])`.
    """
    ranges = []
    for start, end in scope_ranges(completion, scope, opened):
        piece = completion[start:end]
        if scope == "answer":
            start, end = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
        if piece.strip():
            ranges.append((start, end))
    return BETWEEN.join(completion[slice(*one)] for one in ranges), ranges


def opens_think(prompt: str) -> bool:
    """Whether a text ends in an opening `<think>`, white space aside."""
    return _OPENED.search(prompt.rstrip()) is not None


def think_end(text: str) -> int:
    """Where the last closing tag of reasoning ends; 0 without one."""
    return max((tag.end() for tag in _CLOSING.finditer(text)), default=0)


def skip_closing_think(text: str, start: int) -> int:
    """Where a closing tag of reasoning ends that stands at `start`, white space aside; `start` without one."""
    tag = _CLOSING.match(text, start)
    return tag.end() if tag else start

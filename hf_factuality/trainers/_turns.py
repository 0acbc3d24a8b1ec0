"""Rollouts with tools, read turn by turn: what the policy said in each, and what tools had returned by then."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import Any

from hf_factuality.io.transcripts import TranscriptTurn, passages_before
from hf_factuality.offsets import place_empty
from hf_factuality.reading.scopes import opens_think, skip_closing_think, think_end
from hf_factuality.spans import BETWEEN, LabeledSpan, TokenOffsets, Verification, first_failure, token_offsets
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest


@dataclass(frozen=True)
class SaidTurn:
    """A turn of the policy in a rollout.

    Args:
        start, end (`int`):
            Its characters in the text of the rollout.
        opened (`bool`):
            Whether what stands before it ends in an opened `<think>`.
        passages (`tuple[str, ...]`):
            What tools had returned before it.
    """

    start: int
    end: int
    opened: bool
    passages: tuple[str, ...]


@dataclass(frozen=True)
class ToolRollout:
    """A completion in which tools were called.

    Args:
        tokens ([`TokenOffsets`]):
            What the policy said, turn after turn, and the characters of every token of the completion. Calls of tools and what
            these returned are not in the text: the range of their tokens is empty.
        own (`list[bool]`):
            Of each token, whether the policy wrote it.
        turns (`tuple[SaidTurn, ...]`):
            Its turns, also those that say nothing.
        passages (`tuple[str, ...]`):
            All that tools returned, in order, each once, by which it is cited; blank where a passage only repeats its call.
    """

    tokens: TokenOffsets
    own: list[bool]
    turns: tuple[SaidTurn, ...]
    passages: tuple[str, ...]


def read_rollout(
    tokenizer: Any, ids: Sequence[int], mask: Sequence[int], messages: Sequence[Mapping[str, Any]], opened: bool
) -> ToolRollout:
    """A completion of TRL's loop over tools.

    Args:
        tokenizer (`PreTrainedTokenizerBase`):
            Tokenizer, with the response template by which calls are parsed.
        ids (`Sequence[int]`), mask (`Sequence[int]`):
            The completion, and 1 on the tokens that the policy wrote, 0 on those of tools.
        messages (`Sequence[Mapping]`):
            The same as messages: one of the assistant for each run of own tokens, with those of tools in between.
        opened (`bool`):
            Whether the prompt ends in an opened `<think>`.
    """
    known, found = passages_before([_as_read(message) for message in messages], "a completion")
    said = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    text, offsets, turns, before = "", [], [], ""
    at = 0
    for own, run in groupby(mask):
        size = len(list(run))
        part, at = ids[at : at + size], at + size
        if not own:
            offsets += [(-1, -1)] * size
            before = tokenizer.decode(part[-32:])
            continue
        message = messages[said[len(turns)]]
        tokens = without_calls(token_offsets(tokenizer, part), message, tokenizer)
        opens = opens_think(before) if turns else opened
        if turns:
            # The next turn is a paragraph of its own, and reads as it was begun: with the block that the template opened.
            text += BETWEEN + "<think>" * opens
        shift, text = len(text), text + tokens.text
        offsets += [(start + shift, end + shift) if start < end else (-1, -1) for start, end in tokens.offsets]
        passages = tuple(passage.text for passage in known[said[len(turns)]])
        turns.append(SaidTurn(shift, len(text), opens, passages))
    return ToolRollout(
        TokenOffsets(text, place_empty(offsets, len(text))), [bool(own) for own in mask], tuple(turns), tuple(found)
    )


def _as_read(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """A message of TRL as transcripts have it: what a tool returned as an object, an error or nothing is there as Python shows it."""
    content = message.get("content")
    if message["role"] == "tool" and content == "None":
        return {**message, "content": ""}
    if message["role"] != "tool" or not isinstance(content, str) or content[:1] != "{":
        return message
    try:
        value = ast.literal_eval(content)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return message
    return {**message, "content": value} if isinstance(value, dict) else message


# What a turn says


def without_calls(tokens: TokenOffsets, message: Mapping[str, Any], tokenizer: Any) -> TokenOffsets:
    """The text of a turn without its calls of tools, and the characters of each token in it."""
    kept = _outside(call_ranges(tokens.text, message, tokenizer), len(tokens.text))
    if kept == [(0, len(tokens.text))]:
        return tokens
    text, places = "", []
    for start, end in kept:
        text += BETWEEN * bool(text)
        places.append((start, end, len(text) - start))
        text += tokens.text[start:end]
    offsets = []
    for first, last in tokens.offsets:
        parts = [
            (max(first, start) + shift, min(last, end) + shift)
            for start, end, shift in places
            if first < end and start < last
        ]
        offsets.append((parts[0][0], parts[-1][1]) if parts else (-1, -1))
    return TokenOffsets(text, place_empty(offsets, len(text)))


def call_ranges(text: str, message: Mapping[str, Any], tokenizer: Any) -> list[tuple[int, int]]:
    """Characters of a turn in which tools are called, well-formed or not; in order."""
    field = ((getattr(tokenizer, "response_template", None) or {}).get("fields") or {}).get("tool_calls") or {}
    opens = field.get("open_pattern") or (re.escape(field["open"]) if field.get("open") else None)
    begins = think_end(text)  # a call that is only thought of is none
    found: list[tuple[int, int]] = []
    while opens and (call := re.compile(opens).search(text, begins)):
        closes = field.get("close_pattern") or (re.escape(field["close"]) if field.get("close") else r"\Z")
        end = re.compile(closes).search(text, call.end())
        begins = end.end() if end and end.end() > call.end() else len(text)
        found.append((call.start(), begins))
    if not found and message.get("tool_calls"):
        # Special tokens around the call are not in the text: what was said ends where the parser found its end.
        parts = [message.get(name) for name in ("reasoning_content", "thinking", "content")]
        end = max(
            [text.rfind(part) + len(part) for part in parts if isinstance(part, str) and part in text], default=0
        )
        found = [(skip_closing_think(text, end), len(text))]
    return [(start, end) for start, end in found if start < end]


def _outside(ranges: Sequence[tuple[int, int]], length: int) -> list[tuple[int, int]]:
    cuts = [0, *(place for both in ranges for place in both), length]
    kept = [both for number, both in enumerate(pairwise(cuts)) if number % 2 == 0 and both[0] < both[1]]
    return kept if ranges else [(0, length)]


# Turns that are judged one by one


def turn_requests(rollout: ToolRollout, whole: VerificationRequest) -> list[tuple[SaidTurn, VerificationRequest]]:
    """What is asked about the turns of a rollout that say something: each with what tools had returned before it, and with the
    evidence of its row."""
    asked = []
    for number, turn in enumerate(rollout.turns, 1):
        text = rollout.tokens.text[turn.start : turn.end]
        if text.strip():
            item = replace(whole.input, completion=text, evidence=(*turn.passages, *whole.input.evidence))
            told = TranscriptTurn(
                text, item.question, (), number, number
            )  # without evidence its claims are "not found"
            asked.append((turn, replace(whole, input=item, opened=turn.opened, turn=told)))
    return asked


def joined(whole: VerificationRequest, turns: Sequence[tuple[SaidTurn, JudgedRow]]) -> JudgedRow:
    """What was found in the turns of a rollout, as of one completion. A turn that could not be judged is a span without a label."""
    row = replace(whole, scope="completion")
    sent = [judged for _, judged in turns if judged.left_out is None]
    if not sent:
        return JudgedRow(row, Verification(), "empty")
    if not any(judged.found.judged for judged in sent):
        return JudgedRow(row, Verification(error=first_failure(judged.found for judged in sent)))
    spans: list[LabeledSpan] = []
    claims: list[LabeledSpan] = []
    by_claims = any(judged.found.claims for judged in sent)
    for turn, judged in turns:
        found = judged.verification.shift(turn.start)
        if found.error is not None:
            found = Verification((LabeledSpan(turn.start, turn.end),))
        spans += found.spans
        claims += (found.claims or found.spans) if by_claims else ()
    whole_found = Verification(
        tuple(spans), tuple(claims), sent[-1].found.abstained, None, sum(judged.found.unanswered for judged in sent)
    )
    return JudgedRow(row, whole_found.gather(row.ranges))

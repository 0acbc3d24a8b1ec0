"""From labelled characters of a completion to the tokens of a preference pair that count, and to batches of these."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch.utils.data import get_worker_info
from trl.data_utils import is_conversational
from trl.trainer.dpo_trainer import DataCollatorForPreference

from hf_factuality.errors import DataError, SpanError
from hf_factuality.functional.preference import IN_SPAN, kept_window, span_token_mask
from hf_factuality.offsets import place_empty
from hf_factuality.spans import Label, LabeledSpan


SIDES = ("chosen", "rejected")
# Per side: tokens of counted spans, tokens that count, tokens of the completion; all after truncation.
COUNTS = "mask_counts"


@dataclass(frozen=True)
class MaskRule:
    """What decides the masks. A whole, so that it enters the fingerprint of the dataset whenever a part of it changes."""

    chosen: tuple[Label, ...] | None
    rejected: tuple[Label, ...] | None
    outside: str
    max_length: int | None
    truncation_mode: str
    ld_alpha: float | None
    """No part of the mask, but of the reference log-probabilities that are cached under the same fingerprint."""


# Where the characters of a completion are in the text that the chat template makes of it.


def locate(content: str, spans: Sequence[LabeledSpan], text: str, render: Callable[[str], str]) -> list[LabeledSpan]:
    """The spans of a completion as ranges of `text`, which the template makes of it; `render` does so of another one.

    The template is asked, not searched: it renders the completion once more with marks at places of interest. If taking
    the marks out again gives the text, they stand where these places went. This holds for templates that strip the
    completion, and for those that take it apart (reasoning from answer): there, template text inside a span is left out,
    as are the parts of a span that the template leaves out. So a span may come out in several pieces or in none. White
    space at its edges is not its own: it may have gone, or be the template's.
    """
    spans = [cut for span in spans if (cut := _stripped(span, content)).start < cut.end]
    body = _stripped(LabeledSpan(0, len(content)), content)
    if not spans:
        return []
    found = _marked(content, [(body.start, body.end)], text, render)
    if found and found[0]:
        return [span.shift(found[0][0] - body.start) for span in spans]
    # Word by word. Tags stay unmarked: a template that looks for them must find them.
    words = [
        match.span() for match in re.finditer(r"<[^<>\s]*>|[^\s<]+|<", content) if not re.fullmatch("<.*>", match[0])
    ]
    edges = sorted({edge for span in spans for edge in (span.start, span.end)})
    pieces = [
        piece for start, end in words for piece in pairwise([start, *(e for e in edges if start < e < end), end])
    ]
    found = _marked(content, pieces, text, render)
    if found is None:  # one of them is in the way of the template; slow, and rare
        found = [(_marked(content, [piece], text, render) or [None])[0] for piece in pieces]
    if not any(found):
        raise DataError(
            f"the chat template changes the completion; mend it, or render it to plain text first: {content[:80]!r}"
        )
    placed = [(piece, place) for piece, place in zip(pieces, found, strict=True) if place]
    return [
        replace(span, start=start, end=end) for span in spans for start, end in _joined(span, placed, content, text)
    ]


def _stripped(span: LabeledSpan, content: str) -> LabeledSpan:
    inside = span.text(content)
    start = span.start + len(inside) - len(inside.lstrip())
    return replace(span, start=start, end=max(start, span.start + len(inside.rstrip())))


def _marked(content: str, ranges, text: str, render) -> list[tuple[int, int] | None] | None:
    """Where ranges of the completion are in `text`: `None` for one that is not, or not as a whole, or twice; `None`
    instead of the list if marking them changes what the template does."""
    edges, taken = sorted({edge for both in ranges for edge in both}), set(text)
    # Characters for private use, which no template looks for.
    free = (mark for code in range(0xF0000, 0x10FFFE) if (mark := chr(code)) not in taken)
    marks = dict(zip(edges, free, strict=False))
    if len(marks) < len(edges):
        return None
    cuts = [*sorted({0, *edges}), len(content)]
    try:
        rendered = render("".join(marks.get(start, "") + content[start:end] for start, end in pairwise(cuts)))
    except Exception:  # whatever a template does with text that it did not expect
        return None
    where: dict[str, list[int]] = {mark: [] for mark in marks.values()}
    position = 0
    for character in rendered:
        if character in where:
            where[character].append(position)
        else:
            position += 1
    if rendered.translate({ord(mark): None for mark in where}) != text:
        return None
    found: list[tuple[int, int] | None] = []
    for start, end in ranges:
        first, last = where[marks[start]], where[marks[end]]
        once = len(first) == len(last) == 1 and text[first[0] : last[0]] == content[start:end]
        # The whole completion may have template text inside; then its pieces are looked for.
        found.append((first[0], last[0]) if once else None)
    return found


def _joined(span: LabeledSpan, placed, content: str, text: str) -> list[tuple[int, int]]:
    """The pieces of a span, joined where what is between two of them came through unchanged."""
    result: list[list[int]] = []
    before = 0
    for (start, end), (first, last) in placed:
        if not (span.start <= start and end <= span.end):
            continue
        if result and text[result[-1][1] : first] == content[before:start]:
            result[-1][1] = last
        else:
            result.append([first, last])
        before = end
    return [(first, last) for first, last in result]


# One pair of the dataset.


def mask_pair(example: Mapping[str, Any], tokenizer, rule: MaskRule, implicit_prompt: bool) -> dict[str, list]:
    """Masks of a pair that TRL has tokenised, as long as its completions, and the counts of [`COUNTS`].

    Columns with an implicit prompt held the prompt as well, as their spans then do in plain format; these are returned too,
    as ranges of the completion without it. `DataError` for spans that are none or do not fit the completion, a completion
    that is not one message of text, or a template that cannot be followed.
    """
    result: dict[str, list] = {COUNTS: []}
    for side in SIDES:
        ids = example["prompt_ids"] + example[f"{side}_ids"]
        text, spans = _rendered(example, side, tokenizer, implicit_prompt)
        if implicit_prompt and not is_conversational(example):
            # From now on the row has a prompt, and the spans count from its end; it may be prepared once more.
            start = len(example["prompt"])
            moved = [replace(s, start=max(s.start - start, 0), end=s.end - start) for s in spans if s.end > start]
            result[f"{side}_spans"] = [span.to_dict() for span in moved]
        encoded = tokenizer(text, add_special_tokens=not is_conversational(example), return_offsets_mapping=True)
        if encoded["input_ids"] != ids:
            raise DataError(f"tokenising the rendered text again gives other tokens than TRL's: {text[:80]!r}")
        offsets = place_empty(encoded["offset_mapping"], len(text))
        n_prompt, n_completion = len(example["prompt_ids"]), len(example[f"{side}_ids"])
        mask = span_token_mask(offsets[n_prompt:], spans, getattr(rule, side), rule.outside)
        kept = mask[slice(*kept_window(n_prompt, n_completion, rule.max_length, rule.truncation_mode))]
        result[f"{side}_mask"] = mask
        result[COUNTS] += [kept.count(IN_SPAN), len(kept) - kept.count(0), len(kept)]
    return result


def _rendered(
    example: Mapping[str, Any], side: str, tokenizer, implicit_prompt: bool
) -> tuple[str, list[LabeledSpan]]:
    """The text that TRL tokenises, and the spans as ranges of it."""
    prompt, completion = example["prompt"], example[side]
    if not is_conversational(example):
        text = prompt + completion
        start = 0 if implicit_prompt else len(prompt)
        spans = _read_spans(example, side, text[start:])
        cut = [_stripped(span, text[start:]).shift(start) for span in spans]
        return text, [span for span in cut if span.start < span.end]
    message = completion[-1] if len(completion) == 1 else {}
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        raise DataError(
            f"`{side}` must be one assistant message of text (earlier turns are `prompt`), got {completion!r:.200}"
        )
    tools = example.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    settings = {"tools": tools, **(example.get("chat_template_kwargs") or {})}

    def render(content: str) -> str:
        messages = [*prompt, {**message, "content": content}]
        return tokenizer.apply_chat_template(messages, tokenize=False, **settings)

    text = render(content)
    return text, locate(content, _read_spans(example, side, content), text, render)


def _read_spans(example: Mapping[str, Any], side: str, content: str) -> list[LabeledSpan]:
    column = f"{side}_spans"
    value = example.get(column)
    if not isinstance(value, (list, tuple)):
        raise DataError(f"`{column}` must be a list of spans (start, end, label), got {value!r:.150}")
    try:
        spans = [span if isinstance(span, LabeledSpan) else LabeledSpan.from_dict(span) for span in value]
    except (SpanError, TypeError) as error:
        raise DataError(f"`{column}` holds something that is no span: {error}") from None
    for span in spans:
        if span.end > len(content):
            raise DataError(
                f"`{column}` has [{span.start}, {span.end}) beyond `{side}` of {len(content)} characters: {content[:80]!r}"
            )
    return spans


# Counting and batching.


class MaskStatistics:
    """Pairs and tokens of a dataset; of a stream, those that have passed so far, counted by each worker of its loader."""

    def __init__(self, workers: int = 0):
        # A row per process, in memory that all see: pairs, dropped, dropped per side, and of the pairs that stay the
        # tokens that count and all tokens, per side.
        self._rows = torch.zeros(workers + 1, 8, dtype=torch.int64).share_memory_()

    def __deepcopy__(self, memo):
        return self  # copies of a stream count into the same rows

    def add(self, counts: Sequence[int]) -> bool:
        """Count a pair by its [`COUNTS`]; whether it stays."""
        worker = get_worker_info()
        row = self._rows[0 if worker is None else 1 + worker.id]
        stays = has_signal(counts)
        row[:4] += torch.tensor([1, not stays, counts[0] == 0, counts[3] == 0])
        if stays:
            row[4:] += torch.tensor([counts[1], counts[2], counts[4], counts[5]])
        return stays

    @property
    def pairs(self) -> int:
        """Pairs looked at."""
        return int(self._rows[:, 0].sum())

    @property
    def dropped(self) -> int:
        """Pairs of which one side has no token of a counted span after truncation."""
        return int(self._rows[:, 1].sum())

    @property
    def dropped_by_side(self) -> dict[str, int]:
        """The dropped pairs by side; one with nothing on either side is in both."""
        return dict(zip(SIDES, self._rows[:, 2:4].sum(dim=0).tolist(), strict=True))

    @property
    def kept(self) -> dict[str, float]:
        """Share of the completion tokens, after truncation, that count, per side, over the pairs that stay; NaN before
        the first."""
        totals = self._rows[:, 4:].sum(dim=0).tolist()
        shares = [kept / total if total else float("nan") for kept, total in (totals[:2], totals[2:])]
        return dict(zip(SIDES, shares, strict=True))


def has_signal(counts: Sequence[int]) -> bool:
    """Whether both sides of a pair have a token of a counted span."""
    return counts[0] > 0 and counts[3] > 0


@dataclass
class MaskedPreferenceCollator(DataCollatorForPreference):
    """TRL's collator for preference pairs, with `completion_mask` 0 on the tokens that their masks leave out."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        output = super().torch_call(examples)
        window = slice(None)
        if self.max_length is not None:
            keep_end = self.truncation_mode == "keep_end"
            window = slice(-self.max_length, None) if keep_end else slice(self.max_length)
        rows = [
            ([0] * len(row["prompt_ids"]) + list(row[f"{side}_mask"]))[window] for side in SIDES for row in examples
        ]
        width = output["completion_mask"].size(1)
        output["completion_mask"] *= torch.tensor([row + [0] * (width - len(row)) for row in rows]) != 0
        return output

"""Mask-DPO (ICLR 2025): which tokens of a preference pair count."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from hf_factuality.functional.credit import token_span_index
from hf_factuality.spans import Label, LabeledSpan


# The paper's two kinds of sentences. ANAH calls a sentence that the document does not mention a hallucination, and one
# that states no fact free of it.
FREE_OF_HALLUCINATION: tuple[Label, ...] = (Label.SUPPORTED, Label.HEDGED_SUPPORTED, Label.NO_FACT)
HALLUCINATED: tuple[Label, ...] = (Label.UNVERIFIABLE, Label.HEDGED_CONTRADICTED, Label.CONTRADICTED)
OUTSIDE_RULES = ("drop", "after_last", "keep")
# Values of `span_token_mask`.
IGNORED, IN_SPAN, OUTSIDE = 0, 1, 2


def span_token_mask(
    offsets: Sequence[tuple[int, int]],
    spans: Sequence[LabeledSpan],
    labels: Collection[Label] | None,
    outside: str = "drop",
) -> list[int]:
    """Which tokens of a completion count.

    A token belongs to the span that holds most of its characters, the earlier one of `spans` on a tie. Tokens of a span
    that was not judged never count: nothing is known of them. Tokens without characters are outside every span.

    Args:
        offsets (`Sequence[tuple[int, int]]` of length T):
            Half-open character range per token; starts never decrease.
        spans (`Sequence[LabeledSpan]`):
            Spans in the same text; they may overlap.
        labels (`Collection[Label]`, *optional*):
            Labels whose spans count. `None`: no mask, every token counts.
        outside (`str`, *optional*, defaults to `"drop"`):
            Tokens outside every span: `"drop"` (the sums of the paper are over sentences), `"after_last"` (the released
            code: what follows the last span counts) or `"keep"`.

    Returns:
        `list[int]` of length T: 0 for a token that does not count, 1 for one of a counted span, 2 for one outside.
    """
    if labels is None:
        return [IN_SPAN] * len(offsets)
    end_of_spans = max((span.end for span in spans), default=None)
    mask = []
    for (start, _), number in zip(offsets, token_span_index(offsets, spans), strict=True):
        if number >= 0:
            mask.append(IN_SPAN if spans[number].label in labels else IGNORED)
        else:
            after = outside == "after_last" and end_of_spans is not None and start >= end_of_spans
            mask.append(OUTSIDE if outside == "keep" or after else IGNORED)
    return mask


def kept_window(
    prompt_length: int, completion_length: int, max_length: int | None, truncation_mode: str
) -> tuple[int, int]:
    """Which tokens of a completion are left, and have a token before them, once prompt and completion are truncated.

    `max_length` tokens stay, the first (`"keep_start"`) or the last (`"keep_end"`); `None` keeps all. The half-open range
    of tokens of the completion may be empty. The very first token of a sequence is not in it: nothing predicts it.
    """
    total = prompt_length + completion_length
    first, last = 0, total
    if max_length is not None:
        first, last = (max(0, total - max_length), total) if truncation_mode == "keep_end" else (0, max_length)
    start = max(first + 1, prompt_length) - prompt_length
    return start, max(start, min(last, total) - prompt_length)

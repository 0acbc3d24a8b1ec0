"""Character ranges of generated tokens, without encoding anything again."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class TokenOffsets(NamedTuple):
    """Decoded text of a completion and the character range of each of its tokens.

    Args:
        text (`str`):
            The decoded ids, special tokens skipped.
        offsets (`list[tuple[int, int]]`):
            Half-open character range per id, in order; as long as the ids.
    """

    text: str
    offsets: list[tuple[int, int]]


def token_offsets(tokenizer: PreTrainedTokenizerBase, token_ids: list[int]) -> TokenOffsets:
    raise NotImplementedError

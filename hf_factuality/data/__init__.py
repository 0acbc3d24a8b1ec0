"""Readers and builders of datasets."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "ParsedPrompt": "fspo",
    "check_prompt_lengths": "fspo",
    "load_fspo": "fspo",
    "parse_prompt": "fspo",
    "prepare_rows": "fspo",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.data.fspo import (  # noqa: F401
        ParsedPrompt,
        check_prompt_lengths,
        load_fspo,
        parse_prompt,
        prepare_rows,
    )

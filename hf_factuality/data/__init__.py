"""Readers and builders of datasets."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


_EXPORTS = {
    "ParsedPrompt": "fspo",
    "check_prompt_lengths": "fspo",
    "load_fspo": "fspo",
    "parse_prompt": "fspo",
    "prepare_rows": "fspo",
}
__all__ = sorted(_EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.data.fspo import (  # noqa: F401
        ParsedPrompt,
        check_prompt_lengths,
        load_fspo,
        parse_prompt,
        prepare_rows,
    )


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

"""Closed worlds: synthetic people whose every fact is known, an exact verifier, and a small model that lives in them.

Everything is loaded on first use: importing this module imports neither torch nor transformers.
"""

from importlib import import_module
from typing import Any


_EXPORTS = {
    "Person": "world",
    "Relation": "world",
    "World": "world",
    "WorldConfig": "world",
    "WorldEvaluation": "evaluate",
    "WorldModelConfig": "lm",
    "WorldVerifier": "oracle",
    "build_world_model": "lm",
    "build_world_tokenizer": "lm",
    "evaluate_world": "evaluate",
    "load_world": "lm",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return __all__

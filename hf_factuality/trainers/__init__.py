"""Trainers: subclasses of TRL's that put per-token credit into its loss."""

from importlib import import_module
from typing import TYPE_CHECKING, Any


_EXPORTS = {
    "FactGRPOConfig": "fact_grpo_config",
    "FactGRPOTrainer": "fact_grpo_trainer",
}
__all__ = sorted(_EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig
    from hf_factuality.trainers.fact_grpo_trainer import FactGRPOTrainer


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_EXPORTS[name]}"), name)

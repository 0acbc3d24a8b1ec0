"""Trainers: subclasses of TRL's that put per-token credit into its loss. `__init__.pyi` lists the names."""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

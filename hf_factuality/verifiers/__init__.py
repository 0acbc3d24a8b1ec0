"""Verifiers: they read completions and return labelled spans. Names are imported on first use; `__init__.pyi` lists them."""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

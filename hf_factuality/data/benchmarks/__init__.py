"""Readers of published benchmarks: rows of a dataset become prompts, gold answers and references of metrics.

`__init__.pyi` lists the names.
"""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

"""Evaluation of a model, or of answers that exist already, on benchmarks; results in one file. See docs/evaluate.md.

`__init__.pyi` lists the names.
"""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

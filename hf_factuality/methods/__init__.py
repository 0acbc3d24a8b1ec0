"""Methods in a folder each: configuration, trainer and maths, on what `trainers` shares. `__init__.pyi` lists the names."""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

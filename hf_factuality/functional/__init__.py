"""Pure maths: tensors and spans in, tensors and numbers out. No models, no files. `__init__.pyi` lists the names."""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

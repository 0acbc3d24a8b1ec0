"""Closed worlds: synthetic people whose every fact is known, an exact verifier, and a small model that lives in them.

Everything is loaded on first use: importing this module imports neither torch nor transformers. `__init__.pyi` lists
the names.
"""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

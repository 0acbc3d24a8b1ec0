"""Completions of a run or a file in a browser (`view`), and a page to try verifiers (`demo`); needs `hf_factuality[view]`."""

from hf_factuality._lazy import attach


DEMO_VERIFIERS = ("lexical", "small")
"""Verifiers that the demo offers by default: those that need no download."""
__getattr__, __dir__, __all__ = attach(__name__, __file__)

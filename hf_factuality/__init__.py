"""Factuality alignment on Hugging Face's stack: verifiers, metrics and trainers that share one schema of spans.

Names load on first use, so that `import hf_factuality` needs neither torch nor transformers. `__init__.pyi` lists them.
"""

from hf_factuality._lazy import attach


__version__ = "0.2.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)

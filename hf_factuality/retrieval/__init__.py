"""Where evidence comes from: knowledge bases and their passages, BM25, dense vectors, the web.

`__init__.pyi` lists the names.
"""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

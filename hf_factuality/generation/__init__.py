"""One way to talk to a model: on a server or in this process. `__init__.pyi` lists the names."""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

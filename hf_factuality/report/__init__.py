"""One self-contained HTML page of completions, painted by label. `__init__.pyi` lists the names; see docs/report.md."""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

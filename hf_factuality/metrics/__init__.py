"""Metrics as modules of Hugging Face's `evaluate`, on the verifiers and functions that also pay rewards.

`evaluate.load(str(metric_path("factscore")))` loads one from the package; after `hf_factuality.metrics.install.install()`
or `hf-factuality metrics install`, `evaluate.load("factscore")` does, offline too. Names load on first use;
`__init__.pyi` lists them.
"""

from hf_factuality._lazy import attach


__getattr__, __dir__, __all__ = attach(__name__, __file__)

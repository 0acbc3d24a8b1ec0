"""Readers of published benchmarks: rows of a dataset become prompts, gold answers and references of metrics."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "Benchmark": "base",
    "BenchmarkItem": "base",
    "benchmark_names": "registry",
    "get_benchmark": "registry",
    "load_items": "registry",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.data.benchmarks.base import Benchmark, BenchmarkItem  # noqa: F401
    from hf_factuality.data.benchmarks.registry import benchmark_names, get_benchmark, load_items  # noqa: F401

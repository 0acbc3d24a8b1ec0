# Public names, which load on first use.
from hf_factuality.data.benchmarks.base import Benchmark as Benchmark, BenchmarkItem as BenchmarkItem
from hf_factuality.data.benchmarks.registry import (
    benchmark_names as benchmark_names,
    get_benchmark as get_benchmark,
    load_items as load_items,
)
from hf_factuality.data.benchmarks.rows import (
    BenchmarkReader as BenchmarkReader,
    BenchmarkRow as BenchmarkRow,
    Unusable as Unusable,
)

"""Evaluation of a model, or of answers that exist already, on benchmarks; results in one file. See docs/evaluate.md."""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach


_EXPORTS = {
    "compare_results": "compare",
    "load_results": "compare",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)

if TYPE_CHECKING:
    from hf_factuality.evaluation.compare import compare_results  # noqa: F401
    from hf_factuality.hub.results import load_results  # noqa: F401

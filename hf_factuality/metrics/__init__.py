"""Metrics as modules of Hugging Face's `evaluate`, on the verifiers and functions that also pay rewards.

`evaluate.load(str(metric_path("factscore")))` loads one from the package; after `hf_factuality.metrics.install.install()`
or `hf-factuality metrics install`, `evaluate.load("factscore")` does, offline too. The first import says so where they are
not installed. Names load on first use.
"""

from typing import TYPE_CHECKING

from hf_factuality._lazy import attach
from hf_factuality.metrics.install import offer


# Not the function `install`: importing the module of that name would replace it.
_EXPORTS = {
    "Answers": "_claims",
    "METRIC_NAMES": "install",
    "PairInput": "_pairs",
    "PairJudge": "_pairs",
    "add_metric": "_registry",
    "compute": "_registry",
    "installed": "install",
    "metric_path": "install",
    "push_metrics": "push",
    "write_spaces": "push",
}
__getattr__, __dir__, __all__ = attach(__name__, _EXPORTS)
offer()

if TYPE_CHECKING:
    from hf_factuality.metrics._claims import Answers
    from hf_factuality.metrics._pairs import PairInput, PairJudge
    from hf_factuality.metrics._registry import add_metric, compute
    from hf_factuality.metrics.install import METRIC_NAMES, installed, metric_path
    from hf_factuality.metrics.push import push_metrics, write_spaces

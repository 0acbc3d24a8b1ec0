# Public names, which load on first use. Not the function `install`: importing the module of that name would replace it.
from hf_factuality.metrics._claims import JudgedAnswers as JudgedAnswers
from hf_factuality.metrics._registry import compute as compute
from hf_factuality.metrics.install import (
    METRIC_NAMES as METRIC_NAMES,
    installed as installed,
    metric_path as metric_path,
)
from hf_factuality.metrics.push import push_metrics as push_metrics, write_spaces as write_spaces
from hf_factuality.verifiers.base import PairInput as PairInput, PairJudge as PairJudge

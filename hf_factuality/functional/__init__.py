"""Pure maths: tensors and spans in, tensors and numbers out. No models, no files, no logging."""

from hf_factuality.functional.advantages import (
    add_factuality,
    flip_advantages,
    scale_by_agreement,
)
from hf_factuality.functional.credit import (
    BINARY_VALUES,
    CREDITS,
    TERNARY_VALUES,
    Credit,
    CreditFunction,
    credit_name,
    judged_units,
    separate_spans,
    shape_advantages,
    span_values,
    token_span_index,
    token_values,
)
from hf_factuality.functional.rewards import fill_unjudged
from hf_factuality.functional.scoring import decided_precision, factual_precision, mean_factuality


__all__ = [
    "BINARY_VALUES",
    "CREDITS",
    "TERNARY_VALUES",
    "Credit",
    "CreditFunction",
    "add_factuality",
    "credit_name",
    "decided_precision",
    "factual_precision",
    "fill_unjudged",
    "flip_advantages",
    "judged_units",
    "mean_factuality",
    "scale_by_agreement",
    "separate_spans",
    "shape_advantages",
    "span_values",
    "token_span_index",
    "token_values",
]

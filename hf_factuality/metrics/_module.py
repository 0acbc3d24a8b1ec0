"""Metrics as modules of Hugging Face's `evaluate`: inputs of any JSON form, and the function that computes the result."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import evaluate
from datasets import Features, Value

from hf_factuality.errors import DataError
from hf_factuality.metrics._registry import as_column, matching, metric_function


RESULT = """
Every metric also takes `confidence_level` (0.95), `resamples` (1000; 0 computes no interval), `seed` (0) and
`return_scores` (`False`; `True` adds `scores`, one per prediction, `None` where it is left out).

Returns a dictionary:
    the metric's name: the corpus score, a share in [0, 1], or `None` if nothing could be scored
    n, n_scored: predictions given, and those that the score is computed from
    confidence_interval: percentile bootstrap over responses (`low`, `high`, `level`, `resamples`, `seed`), or `None`
    parts: what the score is made of
    left_out: numbers of responses (and claims) that do not count, by reason
    extractor, judge: who found and who judged the claims
    comparable_to_published: whether the score may stand beside the paper's: its judge and settings, nothing left out
        that the released rule counts, and the same number by that rule
    settings: of this call
"""


class FactualityMetric(evaluate.Metric):
    """`evaluate.Metric` whose items may have several forms, also mixed, and whose references may be missing: `evaluate` keeps
    items in Arrow tables of one type, read off the first item, so that here each travels as a line of JSON."""

    texts: tuple[str, str, str]  # inputs, citation and homepage, for `metric_info`

    def _info(self):
        return metric_info(sys.modules[type(self).__module__].__doc__, *self.texts)

    def add_batch(self, *, predictions=None, references=None, **kwargs):
        """Add predictions, and references if there are any."""
        predictions = as_column(predictions, "predictions")
        references = matching(references, predictions)
        super().add_batch(
            predictions=[_encoded(item, f"prediction {row}") for row, item in enumerate(predictions)],
            references=[_encoded(item, f"reference {row}") for row, item in enumerate(references)],
            **kwargs,
        )

    def add(self, *, prediction=None, reference=None, **kwargs):
        """Add one prediction, and its reference if there is one."""
        super().add(
            prediction=_encoded(prediction, "the prediction"), reference=_encoded(reference, "the reference"), **kwargs
        )

    def _compute(self, *, predictions, references, **options):
        return metric_function(self.name)(from_json(predictions), from_json(references), **options)


def _encoded(item: Any, place: str) -> str:
    try:
        return json.dumps(item, default=_plain)  # ASCII, so that lone surrogates survive
    except (TypeError, ValueError) as error:
        raise DataError(f"{place} cannot be read: {error}") from None


def _plain(value: Any) -> Any:
    for method in ("to_dict", "tolist"):  # spans and verifications; arrays and tensors
        if callable(getattr(value, method, None)):
            return getattr(value, method)()
    raise TypeError(f"{type(value).__name__} is neither text, number, list nor dictionary")


def from_json(items: Sequence[str]) -> list[Any]:
    """Items as they were given to `compute`, tuples as lists."""
    return [json.loads(item) for item in items]


def metric_info(description: str, inputs: str, citation: str, homepage: str) -> evaluate.MetricInfo:
    """What `_info` returns; see [`FactualityMetric`] for why both columns are text."""
    return evaluate.MetricInfo(
        description=description.strip(),
        citation=citation.strip(),
        inputs_description="\n" + inputs.strip() + "\n" + RESULT,
        features=Features({"predictions": Value("string"), "references": Value("string")}),
        homepage=homepage,
        reference_urls=[homepage],
    )

"""Which metrics there are, and the functions that compute them: plain Python, without `evaluate`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_factuality._lazy import load_object
from hf_factuality.errors import DataError


METRICS = {
    path.parent.name: f"{__package__}.{path.parent.name}.compute"
    for path in sorted(Path(__file__).parent.glob("*/compute.py"))
}
"""Metric -> module with the function of that name: a folder each."""
METRIC_NAMES = tuple(METRICS)
CLAIM_METRICS = ("anah", "factscore", "longwiki", "safe", "veriscore")
"""Metrics over labelled claims, so of any verification."""


def metric_function(name: str) -> Callable[..., dict[str, Any]]:
    """The function of a metric: predictions and references, one each per response, and the metric's arguments."""
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; choose one of {', '.join(METRICS)}")
    return getattr(importlib.import_module(METRICS[name]), name)


def add_metric(place: str) -> str:
    """Make a function of another package known as a metric over claims, for [`compute`] and `hf-factuality verify`.

    Args:
        place (`str`):
            `module:function`. The function takes predictions, references and keyword arguments, reads them with
            [`~hf_factuality.metrics._claims.Answers`], and returns what its `result` makes. See docs/metrics.md.

    Returns:
        `str`: the metric's name, which is that of the function.

    Raises:
        `ValueError`: there is no such function, or a metric of that name.
    """
    module, _, name = place.partition(":")
    if METRICS.get(name, module) != module:
        raise ValueError(f"{place!r}: there is a metric {name!r} in {METRICS[name]}; rename the function")
    load_object(place, "the metric")
    METRICS[name] = module
    return name


def compute(
    name: str, predictions: Iterable[Any], references: Iterable[Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Compute a metric without `evaluate`; the result is that of its module.

    Args:
        name (`str`):
            Of the metric.
        predictions (`Iterable`), references (`Iterable`, *optional*):
            One each per response, as the metric describes them. A metric over claims takes a
            [`~hf_factuality.spans.Verification`] as it is, and `{"text": completion, "verification": verification}`.
        **options:
            The metric's arguments.

    Returns:
        `dict[str, Any]`: see docs/metrics.md.

    Raises:
        `ValueError`: no metric has this name, or an argument has a bad value.
        `DataError`: an input has none of the forms that the metric reads.
        `TypeError`: the metric has no such argument.

    Example:

        >>> compute("anah", [["ok", "contradictory"], ["ok"]])["anah"]
        0.6666666666666666
    """
    given = as_column(predictions, "predictions")
    columns = (given, matching(references, given))
    return metric_function(name)(*([_plain(item) for item in column] for column in columns), **options)


def _plain(item: Any) -> Any:
    """Lists for tuples, arrays and tensors, and Python's numbers for theirs, at any depth; the rest as it is."""
    if isinstance(item, dict):
        return {key: _plain(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(value) for value in item]
    return _plain(item.tolist()) if hasattr(item, "tolist") and not isinstance(item, str) else item


def as_column(values: Any, name: str) -> list:
    """A list with one item per response; something else, such as one text, is a `DataError`."""
    if values is None or isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise DataError(f"{name} must be a list with one item per response, got {values!r:.100}")
    return list(values)


def matching(references: Any, predictions: list) -> list:
    """As many references as predictions; `None` for each if there are none."""
    found = [None] * len(predictions) if references is None else as_column(references, "references")
    if len(predictions) != len(found):
        raise DataError(f"there are {len(predictions)} predictions and {len(found)} references; give as many")
    return found

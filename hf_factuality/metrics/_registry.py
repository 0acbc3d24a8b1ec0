"""Which metrics there are, and the functions that compute them: plain Python, without `evaluate`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hf_factuality._lazy import is_object_name, load_name
from hf_factuality.errors import DataError


METRICS = {
    path.parent.name: f"{__package__}.{path.parent.name}.compute"
    for path in sorted(Path(__file__).parent.glob("*/compute.py"))
}
"""Metric -> module with the function of that name: a folder each."""
METRIC_NAMES = tuple(METRICS)
CLAIM_METRICS = ("anah", "factscore", "longwiki", "safe", "veriscore")
"""Metrics over labelled claims, so of any verification."""


Metric = str | Callable[..., dict[str, Any]]
"""A name of ours, `"package.module:function"`, or a function that takes predictions, references and keyword arguments."""


def metric_function(name: str) -> Callable[..., dict[str, Any]]:
    """The function of one of our metrics: predictions and references, one each per response, and the metric's arguments."""
    if name not in METRICS:
        raise ValueError(f"unknown metric {name!r}; choose one of {', '.join(METRICS)}, or 'package.module:function'")
    return getattr(importlib.import_module(METRICS[name]), name)


def find_metric(metric: Metric) -> tuple[str, Callable[..., dict[str, Any]]]:
    """The name of a metric and its function; a metric of the user's own is called as its function is.

    `ValueError`: there is none, or one of ours has that name.
    """
    if isinstance(metric, str) and not is_object_name(metric):
        return metric, metric_function(metric)
    function = load_name(metric, "the metric") if isinstance(metric, str) else metric
    if isinstance(function, type):
        function = function()
    if not callable(function):
        raise TypeError(f"a metric is a name or a function, got {metric!r:.100}")
    name = getattr(function, "__name__", type(function).__name__)
    if name in METRICS and function is not metric_function(name):
        raise ValueError(
            f"the metric {metric if isinstance(metric, str) else name!r}: we have a {name!r}; rename yours"
        )
    return name, function


def named_metrics(given: Iterable[Metric]) -> tuple[list[str], dict[str, Callable[..., dict[str, Any]]]]:
    """The names of metrics, each once, and the functions of those that are the user's own."""
    own: dict[str, Callable[..., dict[str, Any]]] = {}
    names = []
    for metric in given:
        if isinstance(metric, str) and not is_object_name(metric):
            names.append(metric)
            continue
        name, function = find_metric(metric)
        if own.setdefault(name, function) is not function:
            raise ValueError(f"two metrics are called {name!r}; rename one")
        names.append(name)
    return list(dict.fromkeys(names)), own


def compute(
    metric: Metric, predictions: Iterable[Any], references: Iterable[Any] | None = None, **options: Any
) -> dict[str, Any]:
    """Compute a metric without `evaluate`; the result is that of its module.

    Args:
        metric (`str` or `Callable`):
            A name, `"package.module:function"`, or a function of your own; see docs/metrics.md.
        predictions (`Iterable`), references (`Iterable`, *optional*):
            One each per response, as the metric describes them. A metric over claims takes a
            [`~hf_factuality.spans.Verification`] as it is, and `{"text": completion, "verification": verification}`.
        **options:
            The metric's arguments.

    Returns:
        `dict[str, Any]`: see docs/metrics.md.

    Raises:
        `ValueError`: there is no such metric, or an argument has a bad value.
        `DataError`: an input has none of the forms that the metric reads.
        `TypeError`: the metric has no such argument.

    Example:

        >>> compute("anah", [["ok", "contradictory"], ["ok"]])["anah"]
        0.6666666666666666
    """
    given = as_column(predictions, "predictions")
    columns = (given, matching(references, given))
    _, function = find_metric(metric)
    return function(*([_plain(item) for item in column] for column in columns), **options)


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

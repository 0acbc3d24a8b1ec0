"""Arguments of metrics over claims, read and checked before anything is judged."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hf_factuality.metrics._registry import Metric, find_metric
from hf_factuality.reading.rules import ABSTENTION
from hf_factuality.spans import Label, LabeledSpan, Verification


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300  # False for NaN


def _whole(value: Any) -> bool:
    return _number(value) and isinstance(value, int)


# What each argument of a metric may be, and how that is said.
_ARGUMENTS = {
    "gamma": (lambda value: _number(value) and value >= 0, "a number of at least 0"),
    "k": (lambda value: _number(value) and value > 0, "a number above 0"),
    "veriscore.k": (
        lambda value: all(_number(it) and it > 0 for it in (value.values() if isinstance(value, dict) else [value])),
        "a number above 0, or an object with one per domain",
    ),
    "abstention": (
        lambda value: value is None or (isinstance(value, str) and value in ABSTENTION),
        f"one of {', '.join(ABSTENTION)}, or null",
    ),
    "deduplicate": (lambda value: isinstance(value, bool), "true or false"),
    "confidence_level": (lambda value: _number(value) and 0 < value < 1, "a number between 0 and 1"),
    "resamples": (lambda value: _whole(value) and value >= 0, "a whole number of at least 0"),
    "seed": (_whole, "a whole number"),
}


def check_argument_values(
    arguments: Mapping[str, Mapping[str, Any]], computed: Collection[str]
) -> dict[str, dict[str, Any]]:
    """The arguments by metric; raises if a metric is not computed, or a value is none that its argument can have."""
    for metric, given in arguments.items():
        if metric not in computed:
            raise ValueError(f"`metric_args`: {metric!r} is not computed; add `metrics` {metric}")
        for name, value in given.items():
            fits, kind = _ARGUMENTS.get(f"{metric}.{name}") or _ARGUMENTS.get(name) or (None, "")
            if fits and not fits(value):
                raise ValueError(f"`metric_args`: {metric}.{name} must be {kind}, got {value!r:.100}")
    return {metric: dict(given) for metric, given in arguments.items()}


def check_metric_args(
    metric: Metric, given: Mapping[str, Any], shared: Sequence[str] = (), domains: Collection[str] = ("all",)
) -> None:
    """Try a metric over claims, with its arguments, on a response of each domain; `shared` are those of all metrics."""
    from hf_factuality.metrics._claims import small_answer

    name, function = find_metric(metric)
    parameters = inspect.signature(function).parameters.values()
    known = [*(it.name for it in parameters if it.kind is it.KEYWORD_ONLY and it.name != "domains"), *shared]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"`metric_args`: {name} has no argument {unknown[0]!r}; it takes {', '.join(known)}")
    claim = Verification(spans=(LabeledSpan(0, 1, Label.SUPPORTED),))
    trial = [small_answer(".", claim, domain=domain) for domain in domains for _ in range(2)]
    try:
        found = function(trial, [None] * len(trial), **{"resamples": 0, **given})
    except Exception as error:
        raise ValueError(f"`metric_args`: {name} refuses {dict(given)}: {error}") from error
    if not isinstance(found, Mapping) or name not in found:
        raise ValueError(f"the result of the metric {name!r} has no {name!r}; name it so in `Answers.result`")

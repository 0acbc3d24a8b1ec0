"""What all metrics share: arguments, one form of result, and who extracted and judged."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, TypeVar

from hf_factuality import __version__
from hf_factuality.functional.metrics import bootstrap_interval


NOT_STATED = {"name": "not stated"}
"""Extractor or judge of labels that came with the predictions, if the caller does not name it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Arguments that every metric takes; [`~hf_factuality.metrics._module.RESULT`] describes them."""

    confidence_level: float = 0.95
    resamples: int = 1000
    seed: int = 0
    return_scores: bool = False

    def interval(
        self,
        values: Sequence[Any],
        statistic: Callable[[list], float | None] | None = None,
        summed: bool = False,
    ) -> dict[str, Any] | None:
        """Entry `confidence_interval` of the result."""
        settings = {"level": self.confidence_level, "resamples": self.resamples, "seed": self.seed}
        found = bootstrap_interval(values, statistic, summed=summed, **settings)
        return None if found is None else {"low": found[0], "high": found[1], **settings}


# Reasons to leave out a response that the released codes have too, or (MC1) that do not touch the score.
_LEFT_OUT_AS_RELEASED = frozenset({"abstained", "no_facts", "no_sentences", "mc1_missing", "mc1_undefined"})
OptionsT = TypeVar("OptionsT", bound=Options)


def read_options(kind: type[OptionsT], given: Mapping[str, Any]) -> OptionsT:
    """Options from the keyword arguments of `compute`; others are a `TypeError`."""
    known = [field.name for field in fields(kind)]
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise TypeError(f"compute() got unknown arguments {unknown}; besides the metric's own it takes {known}")
    return kind(**given)


def make_result(
    name: str,
    score: float | None,
    *,
    scores: Sequence[float | None],
    options: Options,
    parts: Mapping[str, Any],
    left_out: Mapping[str, Any],
    settings: Mapping[str, Any] = MappingProxyType({}),
    extractor: Mapping[str, Any] | None = None,
    judge: Mapping[str, Any] | None,
    released: float | None = None,
    resampled: Sequence[Any] | None = None,
    statistic: Callable[[list], float | None] | None = None,
    summed: bool = False,
) -> dict[str, Any]:
    """What [`~hf_factuality.metrics._module.RESULT`] describes. `released` is what the released rule makes of the same rows, if
    all else is as published. The interval is of the mean of the scores, or of the `statistic` of what is `resampled` (of its sums, with `summed`)."""
    known = [value for value in scores if value is not None]
    interval = options.interval(known if resampled is None else resampled, statistic, summed)
    counted = not any(count and reason not in _LEFT_OUT_AS_RELEASED for reason, count in left_out["responses"].items())
    same = None not in (score, released) and math.isclose(score, released, rel_tol=1e-9)
    result = {
        name: score,
        "n": len(scores),
        "n_scored": len(known),
        "confidence_interval": None if score is None else interval,
        "parts": dict(parts),
        "left_out": dict(left_out),
        "extractor": extractor,
        "judge": judge,
        "comparable_to_published": counted and same,
        "settings": dict(settings),
    }
    if options.return_scores:
        result["scores"] = list(scores)
    return result


def is_published(judge: str | None, published: Sequence[str]) -> bool:
    """Whether the caller's name of a judge is one that the paper's figures come from; case does not matter."""
    return judge is not None and judge.strip().lower() in {name.lower() for name in published}


def named(name: str | None) -> dict[str, Any]:
    """Extractor or judge that the caller names."""
    return dict(NOT_STATED) if name is None else {"name": name}


def describe_component(component: Any) -> dict[str, Any] | None:
    """Name, model, revision and (of our own classes) version of an extractor, judge or verifier, as far as it tells."""
    if component is None:
        return None
    found: dict[str, Any] = {"name": type(component).__name__}
    for holder, attribute in (
        (component, "model"),
        (component, "model_id"),
        (getattr(component, "client", None), "model"),
    ):
        model = getattr(holder, attribute, None)
        if model is not None:
            break
    config = getattr(model, "config", None)
    name = model if isinstance(model, str) else getattr(config, "_name_or_path", None)
    revisions = (getattr(component, "revision", None), getattr(holder, "revision", None))
    revision = next(filter(None, revisions), None) or getattr(config, "_commit_hash", None)
    if isinstance(name, str) and name:
        found["model"] = name
    if isinstance(revision, str) and revision:
        found["revision"] = revision
    if type(component).__module__.partition(".")[0] == "hf_factuality":
        found["version"] = __version__
    return found


def who_judges(verifier: Any) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Extractor and judge of a verifier, for a result. A verifier of one piece is the judge, and has no extractor."""
    return describe_component(getattr(verifier, "extractor", None)), describe_component(
        getattr(verifier, "judge", None) or verifier
    )

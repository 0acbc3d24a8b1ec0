"""Which rewards and which credit make which method, for the card: what was paid decides, and not which trainer paid it.

A reward says it itself: `card_method` is its row of [`~hf_factuality.hub.cards.methods.METHODS`], `card_details` what a reader
should know of its settings, `card_model` the model that scores, `outcome` who says what became of an answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name

from hf_factuality.hub.cards.methods import CardMethod, describe_method
from hf_factuality.hub.cards.settings import plain_name


_KLCF = {"checklist_recall", "checklist_precision", "truthfulness"}
_DCPO = {"dcpo_correct", "dcpo_calibration"}


def reward_method(
    functions: Sequence[Any],
    weights: Sequence[float] | None,
    base: str,
    *,
    more: Sequence[str] = (),
    credit: str | None = None,
    revises: bool = False,
) -> CardMethod:
    """The method of a run that was paid by `functions`, as its user gave them, with these weights (`None`: 1 each).

    What has weight 0 is only logged, and a known reward of less pays the contrary. `more` are rows of
    [`~hf_factuality.hub.cards.methods.METHODS`] that are no reward functions, named first; `credit` is one that is no part of
    them; `revises`: completions are of two turns.
    """
    keys, custom, details = list(more), [], {}
    given = [1.0] * len(functions) if weights is None else weights
    for function, weight in zip(functions, given, strict=False):  # the trainer refuses another number
        if not weight:
            continue
        name = _name(function)
        key = _key(function, revises) if weight > 0 else None
        if key is None:
            custom.append(name if weight > 0 else f"{name}, of weight {weight:g}")
            continue
        keys += [key, *_graded(function)]
        if detail := _detail(function):
            details[name] = detail
    return describe_method(_together(keys), base, custom=custom, credit=credit, details=details)


def _together(keys: Sequence[str]) -> Iterator[str]:
    """Terms of KLCF and DCPO as the method, where all of them are there, else as a part of it."""
    for parts, whole, other in ((_KLCF, "klcf", {}), (_DCPO, "dcpo", {"dcpo_correct": "answers"})):
        one = whole if parts <= {*keys} else f"{whole}_part"
        keys = [(one if one == whole else other.get(key, one)) if key in parts else key for key in keys]
    yield from keys


def _inner(function: Any) -> Any:
    while isinstance(function, partial):  # with settings
        function = function.func
    return function


def _key(function: Any, revises: bool) -> str | None:
    """A row of `METHODS`, or a term of [`_together`]; `None` for what is not ours."""
    if isinstance(function, (str, nn.Module)):
        return "reward_model"
    function = _inner(function)
    # By its exact class: what a subclass pays nobody knows.
    if "card_method" not in {**vars(type(function)), **getattr(function, "__dict__", {})}:
        return None
    key = function.card_method
    return "answers" if key == "correction" and not revises else key


def _outcome(function: Any) -> Any:
    """Who says what became of an answer, of a reward of ours."""
    function = _inner(function)
    return getattr(getattr(function, "owner", function), "outcome", None)


def _graded(function: Any) -> list[str]:
    return ["graded"] if hasattr(_outcome(function), "grader") else []


def _detail(function: Any) -> str | None:
    function = _inner(function)
    details = list(getattr(function, "card_details", ()))
    if hasattr(function, "card_model"):
        details.append(_name(function.card_model))
    if getattr(function, "released", False) is True:
        details.append("as released")
    if grader := getattr(_outcome(function), "grader", None):
        details.append(f"graded by {plain_name(str(getattr(grader, 'model', type(grader).__name__)))}")
    return ", ".join(details) or None


def _name(function: Any) -> str:
    if isinstance(function, str):
        return plain_name(function)
    if isinstance(function, nn.Module):
        return plain_name(
            str(getattr(getattr(function, "config", None), "name_or_path", "") or type(function).__name__)
        )
    return get_callable_name(function)

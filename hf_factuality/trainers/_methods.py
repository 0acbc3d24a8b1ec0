"""Which rewards and which credit make which method, for the card: what was paid decides, and not which trainer paid it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from torch import nn
from trl.trainer.utils import get_callable_name

from hf_factuality.hub.cards.methods import CardMethod, describe_method
from hf_factuality.hub.cards.settings import plain_name
from hf_factuality.rewards import answers
from hf_factuality.rewards.abstention import AbstentionReward, GradedOutcome
from hf_factuality.rewards.confidence import DCPORewards, LoVeCReward, RLCRReward
from hf_factuality.rewards.correction import CorrectionReward
from hf_factuality.rewards.long_form import ChecklistReward, ClaimReward, LongFormReward, ended_answer_reward
from hf_factuality.rewards.process import ProcessReward
from hf_factuality.rewards.rlfh import RLFHReward
from hf_factuality.rewards.served import ServedReward
from hf_factuality.rewards.token_reward_model import TokenRewardModel


_OUTCOMES = {(1, 0, -1): "truthrl", (2, 1, -1): "knowrl_outcome", (1, -1, -1): "binary"}
_FUNCTIONS = {
    **dict.fromkeys(
        (answers.exact_reward, answers.hotpot_f1_reward, answers.halueval_reward, answers.math_reward, answers.gsm8k_reward),
        "answers",
    ),
    **dict.fromkeys((answers.think_format_reward, ended_answer_reward), "format"),
}  # fmt: skip
# By their exact class: what a subclass pays nobody knows.
_CLASSES = {
    answers.FSPOAnswerReward: "answers",
    answers.FormatReward: "format",
    RLFHReward: "rlfh",
    RLCRReward: "rlcr",
    LoVeCReward: "lovec",
    ProcessReward: "process",
    ServedReward: "reward_model",
    TokenRewardModel: "reward_model",
}
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
    kind, owner = type(function), getattr(function, "owner", None)
    if kind is ClaimReward:
        function, kind = function.reward, LongFormReward
    if kind is LongFormReward:
        return function.formula_name
    if kind is AbstentionReward:
        c, a, w = function.rewards
        target = "confidence_target" if a == 0 and abs(c - w - 1) < 1e-9 else "abstention"
        return _OUTCOMES.get((c, a, w), target)
    if kind is CorrectionReward:
        return "correction" if revises else "answers"
    for one, names in ((ChecklistReward, ("recall", "precision")), (DCPORewards, ("correct", "calibration"))):
        if type(owner) is one:
            found = [name for name in names if getattr(owner, name) is function]
            return f"{'checklist' if one is ChecklistReward else 'dcpo'}_{found[0]}" if found else None
    if kind in _CLASSES:
        return _CLASSES[kind]
    return next((key for own, key in _FUNCTIONS.items() if own is function), None)


def _outcome(function: Any) -> Any:
    """Who says what became of an answer, of a reward of ours."""
    function = _inner(function)
    owner = getattr(function, "owner", function)
    owner = owner.reward if isinstance(owner, ClaimReward) else owner
    given = getattr(owner, "_per_batch", None)
    return given.get("outcome") if isinstance(given, dict) else getattr(owner, "outcome", None)


def _graded(function: Any) -> list[str]:
    return ["graded"] if isinstance(_outcome(function), GradedOutcome) else []


def _detail(function: Any) -> str | None:
    function, outcome, said = _inner(function), _outcome(function), []
    if isinstance(function, AbstentionReward):
        said.append("correct {:g}, declined {:g}, wrong {:g}".format(*function.rewards))
    if isinstance(function, RLFHReward):
        said.append(f"by {function.granularity}")
    if isinstance(function, ClaimReward) and function.at == "claims":
        said.append("paid at the claims")
    if isinstance(function, (ServedReward, TokenRewardModel)):
        model = function.client.model if isinstance(function, ServedReward) else _name(function.model)
        said.append(plain_name(str(model)))
    if getattr(function, "released", False) is True:
        said.append("as released")
    if isinstance(outcome, GradedOutcome):
        said.append(f"graded by {plain_name(str(getattr(outcome.client, 'model', type(outcome.client).__name__)))}")
    return ", ".join(said) or None


def _name(function: Any) -> str:
    if isinstance(function, str):
        return plain_name(function)
    if isinstance(function, nn.Module):
        return plain_name(
            str(getattr(getattr(function, "config", None), "name_or_path", "") or type(function).__name__)
        )
    return get_callable_name(function)

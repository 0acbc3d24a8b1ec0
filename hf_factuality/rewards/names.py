"""Rewards of this package by their names, as `reward_funcs` take them."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from hf_factuality._lazy import is_object_name, load_name


_METHODS = "hf_factuality.methods"
_READ_VERIFICATIONS = {
    **dict.fromkeys(
        (
            "precision", "binary_rar", "precision_detail", "precision_detail_relevance", "knowrl", "f1_at_k", "truthfulness",
            "corver",
        ),
        f"{_METHODS}.long_form.reward:named_reward",
    ),
    "klcf": f"{_METHODS}.klcf.reward:named_reward",
    "lovec": f"{_METHODS}.confidence.reward:named_reward",
}  # fmt: skip
NAMED_REWARDS = {
    **_READ_VERIFICATIONS,
    **dict.fromkeys(("truthrl", "binary"), f"{_METHODS}.abstention.reward:named_reward"),
    **dict.fromkeys(("rlcr", "rlcr_released", "dcpo"), f"{_METHODS}.confidence.reward:named_reward"),
}
"""Name -> `"module:function"`, of `(name, verifier)`, which returns the list of its reward functions. Loaded on use."""
_TARGET = "target-"  # and a number: what AbstentionReward calls a threshold


def as_list(functions: Any) -> list[Any]:
    """None, one or several functions as a list, with `"package.module:name"` as what it stands for; of a class an object is
    made."""
    if functions is None:
        return []
    return [_loaded(one) for one in (functions if isinstance(functions, (list, tuple)) else [functions])]


def _loaded(function: Any) -> Any:
    if not is_object_name(function):
        return function
    found = load_name(function, "the reward")
    return found() if isinstance(found, type) else found


def named_rewards(functions: Any, verifier: Any = None) -> list[Any]:
    """Reward functions as a list, with names of ours as what they stand for; names that [`as_list`] does not know either are
    the parent's models."""
    rewards: list[Any] = []
    for function in as_list(functions):
        name = function if isinstance(function, str) else ""
        if verifier is None and (name in _READ_VERIFICATIONS or getattr(function, "reads_verifications", False)):
            raise ValueError(
                f"reward_funcs: {name or function.__name__!r} reads what a verifier found, and this trainer has none; pass "
                "token_reward_funcs=ClaimReward(name, verifier), or ClaimReward(name, verifier, at='end') here"
            )
        near = difflib.get_close_matches(name.lower().replace("-", "_"), NAMED_REWARDS, 1, 0.8)
        if near and name not in NAMED_REWARDS and "/" not in name and not Path(name).exists():
            raise ValueError(f"reward_funcs: {name!r} is no reward; did you mean {near[0]!r}?")
        if path := NAMED_REWARDS["truthrl"] if name.startswith(_TARGET) else NAMED_REWARDS.get(name):
            rewards += load_name(path)(name, verifier)
        else:
            rewards.append(function)
    return rewards

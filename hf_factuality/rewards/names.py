"""Rewards of this package by their names, as `reward_funcs` take them."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

from hf_factuality._lazy import is_object_name, load_name
from hf_factuality.rewards.abstention import AbstentionReward
from hf_factuality.rewards.confidence import CONFIDENCE_REWARDS, LoVeCReward
from hf_factuality.rewards.long_form import REWARD_NAMES, LongFormReward, klcf_rewards


def as_list(functions: Any) -> list[Any]:
    """None, one or several functions as a list."""
    if functions is None:
        return []
    return list(functions) if isinstance(functions, (list, tuple)) else [functions]


def _loaded(function: Any) -> Any:
    if not is_object_name(function):
        return function
    found = load_name(function, "the reward")
    return found() if isinstance(found, type) else found


def named_rewards(functions: Any, verifier: Any = None) -> list[Any]:
    """Reward functions as a list, with names of ours, and `"package.module:name"` of others, as what they stand for; of a class
    an object is made. All other names are the parent's models."""
    names, rewards = (*REWARD_NAMES, "klcf", "truthrl", "binary", *CONFIDENCE_REWARDS), []
    for function in map(_loaded, as_list(functions)):
        name = function if isinstance(function, str) else ""
        judged = name in (*REWARD_NAMES, "klcf", "lovec") or isinstance(function, (LongFormReward, LoVeCReward))
        if verifier is None and judged:
            raise ValueError(
                f"reward_funcs: {name or function.__name__!r} reads what a verifier found, and this trainer has none; pass "
                "token_reward_funcs=ClaimReward(name, verifier), or ClaimReward(name, verifier, at='end') here"
            )
        near = difflib.get_close_matches(name.lower().replace("-", "_"), names, 1, 0.8)
        if near and name not in names and "/" not in name and not Path(name).exists():
            raise ValueError(f"reward_funcs: {name!r} is no reward; did you mean {near[0]!r}?")
        if name == "klcf":
            rewards += klcf_rewards(getattr(verifier, "judge", None))[0]
        elif name in CONFIDENCE_REWARDS:
            rewards += CONFIDENCE_REWARDS[name]()
        elif name in ("truthrl", "binary") or name.startswith("target-"):
            rewards.append(AbstentionReward(name))
        else:
            rewards.append(LongFormReward(name) if name in REWARD_NAMES else function)
    return rewards

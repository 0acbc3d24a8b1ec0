"""What the trainers share: checks, refusals, checkpoints, publishing, and rewards of ours beside the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from transformers import ProcessorMixin

from hf_factuality.hub.cards.card import write_trainer_card
from hf_factuality.trainers._checkpoints import WholeCheckpoints
from hf_factuality.trainers._finite import CheckedRollouts, StopsAtNonFinite
from hf_factuality.trainers._publish import Publishes
from hf_factuality.trainers._rollouts import ResumableRollouts


class FactualityTrainer(WholeCheckpoints, Publishes, StopsAtNonFinite):
    """Beneath all trainers: whole checkpoints, one-commit pushes, an end at numbers that are not finite, and the card.

    A trainer names its `_config` class and its `_name`, and says in `_card` what it did.
    """

    _config: ClassVar[type]
    _name: ClassVar[str]
    card_results: Any = None

    @classmethod
    def _checked_args(cls, args: Any, model: Any) -> Any:
        """`args`, or the defaults; `TypeError` for another trainer's."""
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            return cls._config(f"{name.split('/')[-1]}-{cls._name}")
        if not isinstance(args, cls._config):
            raise TypeError(
                f"args must be a {cls._config.__name__}, got {type(args).__name__}; it takes the same arguments"
            )
        return args

    def _refuse_processor(self, processing_class: Any) -> None:
        if isinstance(processing_class, ProcessorMixin):
            raise ValueError(
                f"{self._name}Trainer does not support vision-language models (a processor was passed); pass its tokenizer "
                "for a model of text"
            )

    def _card(self) -> dict[str, Any]:
        """`method`, `verifier` and `objective` of this run, for [`~hf_factuality.hub.cards.card.write_trainer_card`]."""
        raise NotImplementedError

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        write_trainer_card(self, super().create_model_card, model_name, dataset_name, tags, **self._card())


class SamplingTrainer(FactualityTrainer, ResumableRollouts, CheckedRollouts):
    """Beneath the trainers that sample: reward functions of ours, which the parent calls and logs after the user's.

    They are added once the parent is made, as TRL adds the rewards of environments, so that `args.reward_weights` keeps
    meaning the user's own functions.

    Args:
        model, args, train_dataset, eval_dataset, processing_class, **kwargs:
            As for the parent.
        reward_funcs (`list`):
            The user's; may be empty if there are `ours`.
        ours (`Sequence[Callable]`):
            Each with a `__name__`.
        our_weights (`Sequence[float]`):
            Their weights.

    Raises:
        `ValueError`: text of tools, environments or a `rollout_func`; a processor; weights of no function.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: list[Any],
        ours: Sequence[Callable[..., list[float | None]]],
        our_weights: Sequence[float],
        args: Any,
        **kwargs: Any,
    ):
        for feature in ("tools", "environment_factory", "rollout_func"):
            if kwargs.get(feature):
                raise ValueError(
                    f"{self._name}Trainer does not support `{feature}`: text that a tool or an environment wrote would be "
                    "judged as if the model had said it. Use trl.GRPOTrainer, with a verifier as reward function"
                )
        if not reward_funcs and args.reward_weights is not None:
            raise ValueError(
                "reward_weights without reward_funcs: weight token rewards with token_reward_weights, factuality with "
                "factuality_reward_weight"
            )
        super().__init__(model=model, reward_funcs=reward_funcs or list(ours), args=args, **kwargs)
        self._refuse_processor(self.processing_class)
        weights = torch.tensor(our_weights, dtype=torch.float32)
        if not reward_funcs:
            self.reward_weights = weights
        elif ours:
            self.reward_funcs = [*self.reward_funcs, *ours]
            self.reward_func_names = [*self.reward_func_names, *(function.__name__ for function in ours)]
            self.reward_processing_classes = [*self.reward_processing_classes, *[None] * len(ours)]
            self.reward_weights = torch.cat([self.reward_weights, weights])


def as_list(functions: Any) -> list[Any]:
    """None, one or several functions as a list."""
    if functions is None:
        return []
    return list(functions) if isinstance(functions, (list, tuple)) else [functions]

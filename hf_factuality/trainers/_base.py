"""What the trainers share: checks, refusals, checkpoints, publishing, and rewards of ours beside the user's."""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset, IterableDataset
from jinja2 import TemplateError
from transformers import ProcessorMixin

from hf_factuality.data.fspo import check_prompt_lengths
from hf_factuality.data.reading import refuse_unrendered
from hf_factuality.errors import DataError
from hf_factuality.hub.cards.card import write_trainer_card
from hf_factuality.hub.cards.methods import CardMethod
from hf_factuality.hub.cards.settings import describe_rewards, describe_verifier
from hf_factuality.hub.results import folder_fingerprint
from hf_factuality.io.markdown import code, escaped
from hf_factuality.reading.scopes import opens_think
from hf_factuality.rewards._rows import JudgedReward
from hf_factuality.rewards.abstention import AbstentionReward
from hf_factuality.rewards.answers import THINK_OPENED
from hf_factuality.rewards.confidence import CONFIDENCE_REWARDS, LoVeCReward
from hf_factuality.rewards.long_form import REWARD_NAMES, LongFormReward, klcf_rewards
from hf_factuality.trainers._checkpoints import ResumableRollouts, WholeCheckpoints
from hf_factuality.trainers._data import ChecksDatasets, named_datasets
from hf_factuality.trainers._finite import CheckedRollouts, StopsAtNonFinite
from hf_factuality.trainers._overlap import GeneratesInChunks
from hf_factuality.trainers._padding import SkipsPadding
from hf_factuality.trainers._publish import Publishes


VERIFICATIONS, COMPLETION_TEXTS = "verifications", "completion_texts"
"""Columns in which reward functions get what the verifier found, and in which text: what the ids decode to."""
_TAKEN = frozenset({
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"),
    *(VERIFICATIONS, COMPLETION_TEXTS, THINK_OPENED),
})  # fmt: skip
"""Names under which reward functions get something else than a column of the dataset: the parent's, and ours."""


class FactualityTrainer(ChecksDatasets, WholeCheckpoints, Publishes, StopsAtNonFinite):
    """Beneath all trainers: checked datasets, whole checkpoints, one-commit pushes, an end at numbers that are not finite, and
    the card.

    A trainer names its `_config` class and its `_name`, and says in `_card` what it did.
    """

    _config: ClassVar[type]
    _name: ClassVar[str]
    _task = "text-generation"
    _method: CardMethod
    card_results: Any = None

    def _use_method(self, method: CardMethod) -> None:
        """What this run is on its card; before the parent's `__init__`, which tags the model."""
        self._method, self._paper = method, method.of_trl
        self._tag_names = [*type(self)._tag_names[:-1], *method.tags, type(self)._tag_names[-1]]

    @classmethod
    def _checked_args(cls, args: Any, model: Any) -> Any:
        """`args`, or the defaults; `TypeError` for another trainer's."""
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            return cls._config(f"{name.split('/')[-1]}-{cls._name}")
        if not isinstance(args, cls._config):
            raise TypeError(
                f"args must be a {cls._config.__name__} (with the same arguments), got {type(args).__name__}"
            )
        return args

    def _refuse_processor(self, processing_class: Any) -> None:
        if isinstance(processing_class, ProcessorMixin):
            raise ValueError(
                f"{self._name}Trainer does not support vision-language models (a processor was passed); pass a tokenizer"
            )

    def _padding_id(self) -> int:
        """The token that collators of ours pad with; `ValueError` for a tokenizer without one."""
        if self._tokenizer.pad_token_id is None:
            raise ValueError("the tokenizer has neither a padding token nor an end-of-sequence token; set `pad_token`")
        return self._tokenizer.pad_token_id

    def _refuse_own(self, given: Mapping[str, Any], *names: str) -> None:
        """`ValueError` for an argument of the parent that this trainer fills itself."""
        for name in names:
            if given.get(name) is not None:
                raise ValueError(f"{self._name}Trainer does not take {name}, which it sets itself; leave it out")

    def _card(self) -> dict[str, Any]:
        """`method`, `verifier` and `objective` of this run, for [`~hf_factuality.hub.cards.card.write_trainer_card`]."""
        raise NotImplementedError

    def _measured_model(self, folder: Path, model: Any) -> dict[str, Any]:
        """What results say of the model that was saved in a folder, for [`~hf_factuality.hub.results.write_results`]."""
        adapter, name = hasattr(model, "peft_config"), folder.resolve().name
        return {
            "name": Path(model.config.name_or_path).name if adapter else name,
            "adapter": name if adapter else None,
            "dtype": str(model.dtype).removeprefix("torch."),
            "fingerprint": folder_fingerprint(folder),
        } | dict.fromkeys(("revision", "server"))

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        write_trainer_card(self, super().create_model_card, model_name, dataset_name, tags, **self._card())


class SamplingTrainer(FactualityTrainer, ResumableRollouts, CheckedRollouts, GeneratesInChunks, SkipsPadding):
    """Beneath the trainers that sample: reward functions of `ours`, which the parent calls and logs after the user's.

    They are added once the parent is made, as TRL adds the rewards of environments, so that `args.reward_weights` keeps
    meaning the user's own functions, of which there may be none.
    """

    def __init__(
        self,
        model: Any,
        reward_funcs: list[Any],
        ours: Sequence[Callable[..., list[float | None]]],
        our_weights: Sequence[float],
        args: Any,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        **kwargs: Any,
    ):
        for function in [*reward_funcs, *map(inspect.unwrap, ours)]:
            if isinstance(function, type):
                raise TypeError(
                    f"the reward function {function.__name__} is a class; pass an object: {function.__name__}(...)"
                )
        for feature in ("tools", "environment_factory", "rollout_func"):
            if kwargs.get(feature) and not self._takes(kwargs[feature], args):
                raise ValueError(
                    f"{self._name}Trainer does not support `{feature}`, whose text would be judged as the model's"
                )
        if not reward_funcs and args.reward_weights is not None:
            raise ValueError(
                "reward_weights without reward_funcs; set token_reward_weights or factuality_reward_weight"
            )
        super().__init__(
            model, reward_funcs or list(ours), args, train_dataset=train_dataset, eval_dataset=eval_dataset,
            processing_class=processing_class, **kwargs,
        )  # fmt: skip
        self._refuse_processor(self.processing_class)
        weights = torch.tensor(our_weights, dtype=torch.float32)
        if not reward_funcs:
            self.reward_weights = weights
        elif ours:
            self.reward_funcs = [*self.reward_funcs, *ours]
            self.reward_func_names = [*self.reward_func_names, *(function.__name__ for function in ours)]
            self.reward_processing_classes = [*self.reward_processing_classes, *[None] * len(ours)]
            self.reward_weights = torch.cat([self.reward_weights, weights])
        self._refuse_shared_names()
        self._check_overlap()
        self._check_prompts()
        for function in map(inspect.unwrap, self.reward_funcs):
            owner = getattr(function, "owner", function)
            if isinstance(owner, JudgedReward):
                owner.policy = self.model

    _required, _reads_images = ("prompt",), True
    _misread = frozenset()  # the parent reads prompts alone, and reward functions all other columns

    def _text_columns(self, columns):
        return ("prompt",)

    def _check_columns(self, dataset, columns, name):
        super()._check_columns(dataset, columns, name)
        if taken := _TAKEN.intersection(columns):
            raise DataError(
                f"the {name} dataset has a column {min(taken)!r}, under which reward functions get something else; rename it"
            )

    def _rows_of_a_step(self):
        args, group = self.args, self.num_generations
        how = f"generation_batch_size={args.generation_batch_size} completions, {group} per prompt, over all processes"
        return args.generation_batch_size // group, f"of a generation batch ({how}); add prompts, or lower it"

    def _rows_of_an_evaluation(self):
        needed, why = super()._rows_of_an_evaluation()
        return math.ceil(needed / self.num_generations_eval), why

    def _require_rows(self, dataset, name, needed, why):
        if isinstance(dataset, IterableDataset):  # nothing is left out of it
            self._refuse_few(sum(1 for _ in islice(dataset, needed)), name, needed, why)
        super()._require_rows(dataset, name, needed, why)

    def _refuse_shared_names(self) -> None:
        """Rewards of one name would be logged in one column."""
        names = self.reward_func_names
        if shared := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"several reward functions are named {shared}, and would share one column of the log; give each a "
                "`__name__` of its own (for a lambda, a functools.partial or a model, a `def` around it)"
            )

    def _check_prompts(self) -> None:
        """Whether all prompts leave room for a completion, and the chat template takes them; the parent finds out when it
        comes to them."""
        config, args = self.model.config.get_text_config(), self.args
        limits = [
            getattr(config, "max_position_embeddings", None),
            args.vllm_max_model_length if args.use_vllm else None,
        ]
        limit = min(filter(None, limits), default=math.inf)
        for dataset in (self.train_dataset, *named_datasets(self.eval_dataset).values()):
            if isinstance(dataset, Dataset):  # what is streamed has no rows yet
                # Who asks for more than there is wants completions up to the end of the context.
                completion = args.max_completion_length if (args.max_completion_length or limit) < limit else 1
                check_prompt_lengths(dataset, self._tokenizer, limit - completion, self._template_settings)

    @property
    def _template_settings(self) -> dict[str, Any]:
        return {"chat_template": self.chat_template, **(self.chat_template_kwargs or {})}

    def _takes(self, feature: Any, args: Any) -> bool:
        """Whether a feature of the parent's is supported that generates text which the policy did not write."""
        return False

    _opened: Sequence[bool] = ()

    def _tokenize_prompts(self, prompts):
        try:
            output = super()._tokenize_prompts(prompts)
        except TemplateError:  # of a stream; other prompts are checked at construction
            settings = {"add_generation_prompt": True, **self._template_settings}
            refuse_unrendered([[(prompt, settings)] for prompt in prompts], self._tokenizer, "a batch of prompts, ")
            raise
        # Of the rendered prompt: many chat templates open the block.
        self._opened = [opens_think(self._tokenizer.decode(ids[-32:])) for ids in output[0]]
        return output

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        told = [{**row, THINK_OPENED: opens} for row, opens in zip(inputs, self._opened, strict=True)]
        return super()._calculate_rewards(told, prompts, completions, completion_ids_list)

    def _reads_judgements(self, function: Any) -> bool:
        """Whether a reward function takes what was judged, or the text to judge: its `None` is a judgement that failed."""
        return bool({VERIFICATIONS, COMPLETION_TEXTS} & set(inspect.signature(function).parameters))

    def _shown_reward(self, name: str, weight: Any) -> str:
        """A reward for the card, with what it pays; its weight is among the settings, unless it is only logged."""
        detail = self._method.details.get(name)
        return code(name) + (f" ({escaped(detail)})" if detail else "") + " (logged only)" * (not weight)

    def _verifiers(self, labels: Sequence[Any] = ()) -> str:
        """For the card: who labels for the trainer, then who judges for single rewards."""
        rewards = describe_rewards(self.reward_funcs, self.reward_func_names)
        return "; ".join(filter(None, [*map(describe_verifier, labels), rewards])) or "none"

    def _log_sums(self, sums: dict[str, tuple[Any, Any]], empty: float = math.nan) -> None:
        """Log `{name: (sum, count)}` as ratios over all processes, `empty` where there is none; sums, for a count of `None`."""
        device = self.accelerator.device
        numbers = [
            torch.as_tensor(0 if n is None else n, dtype=torch.float32, device=device)
            for both in sums.values()
            for n in both
        ]
        totals = self.accelerator.reduce(torch.stack(numbers), reduction="sum").view(-1, 2).tolist()
        metrics = self._metrics["train" if self.model.training else "eval"]
        for (name, (_, counted)), (total, count) in zip(sums.items(), totals, strict=True):
            metrics[name].append(total if counted is None else total / count if count else empty)


def as_list(functions: Any) -> list[Any]:
    """None, one or several functions as a list."""
    if functions is None:
        return []
    return list(functions) if isinstance(functions, (list, tuple)) else [functions]


def named_rewards(functions: Any, verifier: Any = None) -> list[Any]:
    """Reward functions as a list, with names of ours as what they stand for; other names are the parent's models."""
    names, found = (*REWARD_NAMES, "klcf", "truthrl", "binary", *CONFIDENCE_REWARDS), []
    for function in as_list(functions):
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
            found += klcf_rewards(getattr(verifier, "judge", None))[0]
        elif name in CONFIDENCE_REWARDS:
            found += CONFIDENCE_REWARDS[name]()
        elif name in ("truthrl", "binary") or name.startswith("target-"):
            found.append(AbstentionReward(name))
        else:
            found.append(LongFormReward(name) if name in REWARD_NAMES else function)
    return found

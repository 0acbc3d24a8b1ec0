"""What the trainers share. `SamplingTrainer` is read from top to bottom: its methods stand in the order in which a batch meets
them."""

from __future__ import annotations

import inspect
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from datasets import Dataset, IterableDataset
from jinja2 import TemplateError
from torch.nn.functional import pad
from transformers import ProcessorMixin, StoppingCriteriaList
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.utils import get_json_schema
from trl.trainer.utils import get_callable_name, is_async_callable

from hf_factuality.data.prompts import check_prompt_lengths
from hf_factuality.data.reading import refuse_unrendered
from hf_factuality.errors import DataError, NonFiniteError
from hf_factuality.generation.local import local_chats
from hf_factuality.hub.cards.card import write_trainer_card
from hf_factuality.hub.cards.methods import CardMethod
from hf_factuality.hub.cards.settings import describe_rewards, describe_verifier
from hf_factuality.hub.results import folder_fingerprint
from hf_factuality.io.markdown import code, escaped
from hf_factuality.reading.scopes import opens_think
from hf_factuality.rewards._rows import RETRIEVED, JudgedReward
from hf_factuality.rewards.answers import THINK_OPENED
from hf_factuality.spans import TokenOffsets, token_offsets
from hf_factuality.trainers._checkpoints import ResumableRollouts, WholeCheckpoints
from hf_factuality.trainers._data import ChecksDatasets, named_datasets
from hf_factuality.trainers._finite import batch_rows
from hf_factuality.trainers._overlap import EndedRows, columns_of, together
from hf_factuality.trainers._padding import LiveRows, by_length, may_cut, ordered, used_columns
from hf_factuality.trainers._publish import Publishes
from hf_factuality.trainers._token_rewards import PaidRow, TokenRewardFunc, TokenRewards, token_reward_rows
from hf_factuality.trainers._tools import TOOL_CHARACTERS, TOOL_TIMEOUT, ToolGuard
from hf_factuality.trainers._turns import ToolRollout, read_rollout
from hf_factuality.verifiers.batches import BatchJudge


logger = logging.getLogger(__name__)

VERIFICATIONS, COMPLETION_TEXTS = "verifications", "completion_texts"
"""Columns in which reward functions get the verifications, and the texts that these are about: what the ids decode to."""
_TAKEN = frozenset({
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric", "environments"),
    *(VERIFICATIONS, COMPLETION_TEXTS, THINK_OPENED, RETRIEVED),
})  # fmt: skip
"""Arguments of reward functions that are no columns of the dataset: TRL's and ours."""
IDLE_STEPS = 10
"""Steps in a row without a gradient after which a warning says so."""
# What TRL logs as a mean over the tokens of each micro-batch, beside entropy and KL, if each token has a ratio of its own.
_RATIOS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


class FactualityTrainer(ChecksDatasets, WholeCheckpoints, Publishes):
    """Base of all trainers. It checks the datasets (`_data.py`), writes whole checkpoints (`_checkpoints.py`), pushes in one
    commit (`_publish.py`), writes the model card, and stops at a loss or a gradient that is not finite.

    A subclass sets its `_config` class and its `_name`, and describes the run in `_card`.
    """

    _config: ClassVar[type]
    _name: ClassVar[str]
    _task = "text-generation"
    _method: CardMethod
    card_results: Any = None

    def _use_method(self, method: CardMethod) -> None:
        """Sets the method for the model card; called before the parent's `__init__`, which tags the model."""
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

    # transformers logs a loss that is not finite as 0 and goes on, and one step makes every weight NaN. With `fp16` and with
    # DeepSpeed, gradients that overflow are theirs to skip, so that their norm is not checked.
    _last_batch: Mapping[str, Any] | None = None
    _idle_steps = 0

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        output = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.model.training:
            self._last_batch = inputs
            self._require_finite("the loss", output, inputs)
        return output

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is None and not self.is_deepspeed_enabled:
            value = float(norm)
            self._require_finite("the norm of the gradients", value, self._last_batch)
            self._say_if_nothing_is_learnt(value)
        return norm

    def _policy_learns(self) -> bool:
        """Whether this step is to change the weights of the model."""
        return True

    def _say_if_nothing_is_learnt(self, norm: float) -> None:
        """A warning after some steps in a row without any gradient: such a run would cost hours and end well."""
        self._idle_steps = 0 if norm or not self._policy_learns() else self._idle_steps + 1
        if self._idle_steps == IDLE_STEPS and self.accelerator.is_main_process:
            logger.warning(
                "the gradient was 0 in %d steps in a row, so nothing is learnt. Rewards that are all equal teach nothing (within "
                "every group, for GRPO), nor does a batch without a labelled token: look at completions and their rewards with "
                "log_completions=True",
                IDLE_STEPS,
            )

    def _require_finite(self, what: str, numbers: torch.Tensor | float, batch: Mapping[str, Any]) -> None:
        """Ends the run with `NonFiniteError`, before a step is taken, where one of `numbers` is not finite; the batch is written
        to `args.output_dir`. All processes call it at the same place: one number is exchanged, and read once."""
        fault = ~torch.as_tensor(numbers, device=self.accelerator.device).isfinite().all()
        faults = self.accelerator.gather(fault.int().view(1))
        if not faults.any():
            return
        step = self.state.global_step
        where = "that process writes its batch"
        if fault:
            path = Path(self.args.output_dir) / f"not_finite_step{step}_process{self.accelerator.process_index}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in batch_rows(batch, self._tokenizer)]
                path.write_text("".join(lines), encoding="utf-8")
                where = f"the prompts, completions and rewards are in {path}"
            except Exception as error:  # the others wait below
                where = f"the batch could not be written to {path}: {error}"
        # A launcher ends all processes when the first one fails.
        self.accelerator.wait_for_everyone()
        raise NonFiniteError(
            f"{what} is not a finite number after {step} steps, on process {faults.nonzero().flatten().tolist()} of "
            f"{self.accelerator.num_processes}; no step was taken on it; {where}. Mend a reward that is not finite, return "
            "None for what is unknown, or lower the learning rate, and go on from the last checkpoint"
        )

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


class PolicyRollout:
    """A `rollout_func` whose completions the policy writes alone, but for words that carry no loss (`env_mask` 0).

    [`~hf_factuality.FactGRPOTrainer`] takes no other. A subclass is called with the prompts and the trainer, as TRL's are.
    """

    columns: tuple[str, ...] = ()
    """Columns that it fills for reward functions, which a dataset must not have."""
    revises = False
    """Whether a completion is an answer and its revision."""
    card_method: str | None = None
    """Its row of [`~hf_factuality.hub.cards.methods.METHODS`], where it belongs to a method of which no reward tells; not inherited."""

    def check(self, args: Any, labelled: bool) -> None:
        """Raises `ValueError` where it cannot be used with these arguments; `labelled`, whether a verifier labels completions."""
        if labelled:
            raise ValueError(
                f"{type(self).__name__} puts words of others into completions, which a verifier would judge as the policy's; "
                "set verifier=None"
            )


class SamplingTrainer(FactualityTrainer, ResumableRollouts):
    """Base of the trainers that sample. It adds to `GRPOTrainer`:

    - **Rewards of ours.** `ours` are called and logged by TRL after the user's `reward_funcs`, of which there may be none. They
      are added once the parent is made, as TRL adds the rewards of environments, so that `args.reward_weights` keeps meaning the
      user's own functions. `token_reward_funcs` pay every token; TRL gets their sums.
    - **Judging while others are generated** (`args.generation_chunks`). With vLLM a batch is cut into chunks; with transformers
      it is generated as a whole, and completions that have ended are handed over, at least a chunk's number at a time. Who
      judges are reward functions, or their `owner`, with a [`BatchJudge`] as `judging` and a method `ahead(texts, rows, places)`.
    - **Less padding** (`skip_padding`, docs/speed.md). Passes take rows of like length together, without columns that are
      padding in all of them; generation drops rows that have ended. Losses and gradients are the parent's but for the order of
      sums (within 1e-5 of their size in float32), and nothing changes where nothing is padding. The log holds means over the
      tokens of a step, where TRL has the mean of its micro-batches' means, which depends on how rows lie. `skip_padding =
      False` leaves all to the parent.
    - **An end at infinite rewards.** A NaN reward is what TRL makes of `None`: unknown.
    - **Rollouts with tools** (`tools`, `environment_factory`; docs/tools.md). The text of a completion is what the policy said in
      its turns: what tools returned, and the calls, are no part of it, carry no label and have advantage 0. Reward functions get
      what tools returned as the column `retrieved`. A call of a tool has `tool_timeout` seconds, and what it returns is cut at
      `tool_characters`.
    """

    skip_padding = True
    tool_timeout: float | None = TOOL_TIMEOUT
    tool_characters = TOOL_CHARACTERS
    _required, _reads_images = ("prompt",), True
    _misread = frozenset()  # the parent reads prompts alone, and reward functions all other columns

    # State of the batch that is under way.
    _generating: Sequence[Mapping[str, Any]] = ()
    _decoded: dict[int, tuple[list[int], TokenOffsets]] = {}
    _opened: Sequence[bool] = ()
    """Whether the rendered prompt of a row has opened a `<think>`."""
    _with_tools = False
    _tool_guard: ToolGuard | None = None
    _own_masks: list[list[int]] | None = None
    """1 on the tokens that the policy wrote, where others are among them."""
    _messages: Sequence[Any] = ()
    _rollouts: Sequence[ToolRollout] = ()
    _tokens: Sequence[TokenOffsets]
    _rewards: torch.Tensor
    _token_rewards: dict[int, list[PaidRow | None]]
    _num_plain: int
    """Reward functions before the token reward functions."""
    _old_are_new = _asks_for_old = False
    _tokens_passed: list[torch.Tensor] | None = None

    # 1. Construction: the rewards, and what is refused.

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
        if kwargs.get("rollout_func"):
            self._check_rollout(kwargs["rollout_func"], args)
        self._with_tools = bool(kwargs.get("tools") or kwargs.get("environment_factory"))
        if self._with_tools:
            self._refuse_beside_tools(args, kwargs)
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
        if self._with_tools:
            self._refuse_undescribed_tools()
            self._refuse_collective_turns()
            self._put_environments_first(len(reward_funcs or ours), weights if not reward_funcs else None)
        elif not reward_funcs:
            self.reward_weights = weights
        if reward_funcs and ours:
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

    def _check_rollout(self, rollout: Any, args: Any) -> None:
        """Refuse a `rollout_func`, which may generate text that the policy did not write, unless it is supported."""
        raise ValueError(
            f"{self._name}Trainer does not support this `rollout_func`, whose text would be judged as the model's"
        )

    def _refuse_beside_tools(self, args: Any, given: Mapping[str, Any]) -> None:
        if given.get("rollout_func"):
            raise ValueError("rollout_func generates by itself and calls no tools; leave it or the tools out")
        if args.generation_chunks > 1:
            raise ValueError(
                f"generation_chunks={args.generation_chunks} with tools: a completion is judged once its last turn has ended; "
                "set it to 1"
            )
        if given.get("environment_factory"):
            self._required = ()  # an environment may write the prompt

    def _refuse_undescribed_tools(self) -> None:
        """The chat template shows the schema of each tool; the parent finds out at the first batch that one has none."""
        for tool in self.tools:
            try:
                get_json_schema(tool)
            except Exception as error:  # of several kinds, none of which the library exports
                raise ValueError(
                    f"the tool {getattr(tool, '__name__', tool)!r} has no schema: {error}; give it type hints, and a docstring with a "
                    "line for each argument under 'Args:'"
                ) from error

    def _refuse_collective_turns(self) -> None:
        """Each process has as many turns as its rollouts need: where generating is the work of all, they would wait for ever."""
        args = self.args
        if self.accelerator.num_processes == 1:
            return
        shared = {
            "vllm_mode='server'": args.use_vllm and args.vllm_mode == "server",
            f"vllm_tensor_parallel_size={args.vllm_tensor_parallel_size}": args.use_vllm
            and args.vllm_tensor_parallel_size > 1,
            "ZeRO-3": not args.use_vllm and is_deepspeed_zero3_enabled(),
            "FSDP": not args.use_vllm and self.is_fsdp_enabled,
        }
        if found := [name for name, given in shared.items() if given]:
            raise ValueError(
                f"tools with {found[0]} on {self.accelerator.num_processes} processes: their turns would not come at the same "
                "time; use vllm_mode='colocate' without tensor parallelism, or DDP or ZeRO-2"
            )

    def _put_environments_first(self, given: int, weights: torch.Tensor | None) -> None:
        """Rewards that environments own stand behind the user's, which may be none, and before ours."""
        owned = len(self.reward_funcs) - given
        if weights is not None:  # `given` are ours
            order = [*range(given, given + owned), *range(given)]
            for name in ("reward_funcs", "reward_func_names", "reward_processing_classes"):
                values = getattr(self, name)
                setattr(self, name, [values[place] for place in order])
            self.reward_weights = torch.cat([torch.ones(owned), weights])
        self._num_plain += owned

    def _scalars(self, functions: list[TokenRewardFunc]) -> list[Callable[..., list[float | None]]]:
        """Token reward functions as TRL calls them."""
        self._token_rewards = {}
        if not all(callable(function) and not is_async_callable(function) for function in functions):
            raise ValueError(f"token_reward_funcs must be plain functions, not async, got {functions!r:.200}")
        return [self._scalar(number, function) for number, function in enumerate(functions)]

    def _scalar(self, number: int, function: TokenRewardFunc) -> Callable[..., list[float | None]]:
        def reward(prompts, completions, completion_ids, **columns):
            columns["completion_texts"] = [tokens.text for tokens in self._tokens]
            paid = function(prompts=prompts, completions=completions, completion_ids=completion_ids, **columns)
            return self._pay(number, reward.__name__, paid, completion_ids)

        reward.__name__, reward.__wrapped__ = get_callable_name(function), function
        return reward

    def _bind_policy(self, functions: Sequence[Callable[..., Any]]) -> None:
        for function in functions:
            if callable(getattr(function.__wrapped__, "bind_policy", None)):
                function.__wrapped__.bind_policy(self.model, self._tokenizer)

    def _refuse_shared_names(self) -> None:
        """Rewards of one name would be logged in one column."""
        names = self.reward_func_names
        if shared := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(
                f"several reward functions are named {shared}, and would share one column of the log; give each a "
                "`__name__` of its own (for a lambda, a functools.partial or a model, a `def` around it)"
            )

    def _text_columns(self, columns):
        return ("prompt",)

    def _check_columns(self, dataset, columns, name):
        super()._check_columns(dataset, columns, name)
        if self._with_tools and "prompt" in columns:
            prompt = next(iter(dataset))["prompt"]
            if isinstance(prompt, str):
                raise DataError(
                    f"the {name} dataset has prompts of text, {prompt!r:.60}; with tools they must be messages: "
                    '[{"role": "user", "content": ...}]'
                )
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
            # What is streamed has no rows yet, and the prompts of an environment are its own.
            if isinstance(dataset, Dataset) and "prompt" in dataset.column_names:
                # Who asks for more than there is wants completions up to the end of the context.
                completion = args.max_completion_length if (args.max_completion_length or limit) < limit else 1
                check_prompt_lengths(dataset, self._tokenizer, limit - completion, self._template_settings)

    @property
    def _template_settings(self) -> dict[str, Any]:
        return {"chat_template": self.chat_template, **(self.chat_template_kwargs or {})}

    @property
    def _judges(self) -> dict[Any, str]:
        """Who judges ahead, and for which reward."""
        functions = [inspect.unwrap(function) for function in self.reward_funcs]
        owners = zip([getattr(one, "owner", one) for one in functions], self.reward_func_names, strict=True)
        return {owner: name for owner, name in owners if isinstance(getattr(owner, "judging", None), BatchJudge)}

    def _check_overlap(self) -> None:
        given, judges = f"generation_chunks={self.args.generation_chunks}", self._judges
        if self.args.generation_chunks > 1 and not judges:
            raise ValueError(f"{given} without a reward that judges ahead, in {self.reward_func_names}; set it to 1")
        for judge, name in judges.items():
            if self.args.generation_chunks > 1 and local_chats(judge.judging.guard):
                raise ValueError(
                    f"{given}: the verifier of {name!r} asks a model of this process, which cannot judge while the policy "
                    "generates; set it to 1, or let a server judge"
                )

    @property
    def _cuts(self) -> tuple[bool, bool]:
        """Whether columns that are padding may be cut on the left and on the right."""
        return self._may_cut if self.skip_padding else (False, False)

    @cached_property
    def _may_cut(self) -> tuple[bool, bool]:
        critic = getattr(self, "critic", None)
        return may_cut([self.model] if critic is None or critic.reads_policy else [self.model, critic.model])

    # 2. A step asks for its micro-batch. A generation batch is sampled where the last one is used up.

    def _prepare_inputs(self, generation_batch):
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        # Of these the loss of a micro-batch depends on what else is in it, or rows would move to another optimizer step.
        args, steps, every = self.args, self.args.steps_per_generation, self.args.gradient_accumulation_steps
        mixed = self._entropy_bonus_enabled or self.aux_loss_enabled or (steps % every and every % steps)
        mixed = mixed or args.loss_type == "bnpo" or args.top_entropy_quantile < 1.0
        if not self.model.training or self._buffered_inputs is before or mixed or not self.skip_padding:
            return inputs
        batches, step = self._buffered_inputs, min(every, steps)
        self._buffered_inputs = [
            batch for start in range(0, len(batches), step) for batch in ordered(batches[start : start + step])
        ]
        return self._buffered_inputs[self._step % steps]

    # 3. The generation batch: the parent generates (4, 5), takes log-probabilities (6), calls the rewards (7), and makes
    # advantages of them, one per completion. Subclasses make one per token of these.

    def _generate_and_score_completions(self, inputs):
        # Where no weight changes before the loss has passed over these completions, it finds their old log-probabilities itself.
        steps, every = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        aligned = every % steps == 0 and every % (steps * self.num_iterations)
        self._old_are_new = bool(self._cuts[1] and self.model.training and aligned and not self.use_vllm)
        self._asks_for_old = self._old_are_new
        self._generating, self._decoded = inputs, {}
        try:
            output = super()._generate_and_score_completions(inputs)
        finally:
            self._generating = ()
            for judge in self._judges:
                judge.judging.stop()
        start = self.accelerator.process_index * len(output["completion_ids"])
        own = self._rewards[start : start + len(output["completion_ids"])]
        # Each reward is a column of the batch, since columns are shuffled, split and saved with it.
        output |= {f"rewards/{name}": own[:, index] for index, name in enumerate(self.reward_func_names)}
        infinite = self._rewards.isinf()
        if infinite.any():
            names = [name for name, one in zip(self.reward_func_names, infinite.any(dim=0), strict=True) if one]
            self._require_finite(f"a reward of {', '.join(names)}", own.nan_to_num(0.0, math.inf, -math.inf), output)
        return output

    def _generate(self, prompts):
        output = super()._generate(prompts)
        self._own_masks = output[2]
        return output

    # 4. Prompts become ids.

    def _tokenize_prompts(self, prompts):
        try:
            output = super()._tokenize_prompts(prompts)
        except TemplateError:  # of a stream; other prompts are checked at construction
            settings = {"add_generation_prompt": True, **self._template_settings}
            refuse_unrendered([[(prompt, settings)] for prompt in prompts], self._tokenizer, "a batch of prompts, ")
            raise
        # Read in the rendered prompt, because many chat templates open the block.
        self._opened = [opens_think(self._tokenizer.decode(ids[-32:])) for ids in output[0]]
        return output

    # 5. Completions are generated; those that have ended are handed to whoever judges ahead.

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        count, group = len(prompt_ids), together(self.args, num_generations)
        # Batches of an evaluation may be of any size; those of a part of a group stay whole.
        size = count if count % group else math.ceil(count / group / self.args.generation_chunks) * group
        if size >= count or not self.use_vllm:
            with self._watching(size if size < count else 0), self._dropping_ended_rows():
                return super()._generate_single_turn(
                    prompt_ids, images, multimodal_fields, num_generations, has_tool_images
                )
        completion_ids, logprobs = [], []
        for start in range(0, count, size):
            part = slice(start, start + size)
            # Of text, without any image.
            fields = {name: values[part] for name, values in multimodal_fields.items()}
            ids, scores = super()._generate_single_turn(prompt_ids[part], None, fields, num_generations)
            completion_ids += ids
            logprobs += scores or []
            self._hand_over(range(start, start + len(ids)), ids)
        return completion_ids, logprobs or None

    @contextmanager
    def _watching(self, size: int) -> Iterator[None]:
        """Hand rows over, `size` or more at a time, that have ended while the parent's `generate` goes on; none if it is 0."""
        if not size or not self._generating:
            yield
            return
        model = self.accelerator.unwrap_model(self.model_wrapped)
        watch = StoppingCriteriaList([EndedRows(self.eos_token_ids, size, self._hand_over)])
        model.generate = partial(model.generate, stopping_criteria=watch)
        try:
            yield
        finally:
            del model.generate

    @contextmanager
    def _dropping_ended_rows(self) -> Iterator[None]:
        """Take rows that have ended out of the passes of transformers' `generate`."""
        config = None if self.use_vllm else self.generation_config
        # Rows of beams are no completions, guidance has passes without the prompt, and a chunk may have one token of it.
        plain = config and config.num_beams in (None, 1) and config.guidance_scale in (None, 1)
        with ExitStack() as hooks:
            if plain and self._cuts[1] and not config.prefill_chunk_size:
                # A compiled model does not generate; what it wraps does.
                model = self.accelerator.unwrap_model(self.model_wrapped, keep_torch_compile=False)
                live = LiveRows(self.eos_token_ids)
                model = model.get_base_model() if hasattr(model, "get_base_model") else model
                hooks.callback(model.register_forward_pre_hook(live.before, with_kwargs=True).remove)
                hooks.callback(model.register_forward_hook(live.after, with_kwargs=True).remove)
            yield

    # 5b. Tools are called, and the policy goes on, turn after turn.

    def _tool_call_loop(self, prompts, prompt_ids, completion_ids, completions, logprobs, images, multimodal_fields):
        if self._tool_guard is None:
            self._tool_guard = ToolGuard(self._tokenizer.all_special_tokens, self.tool_timeout, self.tool_characters)
        guard = self._tool_guard
        guard.begin()
        for tools in (*self._sync_tool_dicts, *self._async_tool_dicts):
            tools.update({name: guard.guarded(tool) for name, tool in tools.items()})
        output = super()._tool_call_loop(
            prompts, prompt_ids, completion_ids, completions, logprobs, images, multimodal_fields
        )
        # An environment whose method was left behind may still be written to.
        for pool in (getattr(self, "_environment_pool", None) or {}).values():
            pool[:] = [one for one in pool if not any(one is left for left in guard.hanging)]
        self._messages = output[1]
        self._log_sums({f"tools/{name}": (guard.counts[name], None) for name in ("timeouts", "cut")})
        return output

    def _hand_over(self, places: Sequence[int], completion_ids: list[list[int]]) -> None:
        """Let judges begin with the completions at these places of the batch."""
        if not self._generating:
            return
        tokens = [token_offsets(self._tokenizer, ids) for ids in completion_ids]
        rows = [self._generating[place] for place in places]
        given = [
            {**own, "prompts": row["prompt"], THINK_OPENED: self._opened[place]}
            for own, row, place in zip(columns_of(rows), rows, places, strict=True)
        ]
        for judge in self._judges:
            judge.ahead([its.text for its in tokens], given, places)
        self._decoded |= zip(places, zip(completion_ids, tokens, strict=True), strict=True)

    def _offsets(self, completion_ids: list[list[int]]) -> list[TokenOffsets]:
        """Characters of tokens; what was decoded when it was handed over is not decoded again."""
        if self._with_tools:
            self._rollouts = [
                read_rollout(self._tokenizer, ids, mask, messages, opened)
                for ids, mask, messages, opened in zip(
                    completion_ids, self._own_masks, self._messages, self._opened, strict=True
                )
            ]
            return [rollout.tokens for rollout in self._rollouts]
        known = self._decoded
        self._decoded = {
            place: known[place] if known.get(place, (None,))[0] == ids else (ids, token_offsets(self._tokenizer, ids))
            for place, ids in enumerate(completion_ids)
        }
        return [tokens for _, tokens in self._decoded.values()]

    # 6. Log-probabilities: of the completions as they were sampled (old, reference), and later in the loss (8).

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        if self._old_are_new and self._asks_for_old:
            self._asks_for_old = False
            return None, None, None
        if not any(self._cuts) or any(value is not None for name, value in kwargs.items() if "compute" not in name):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
        count, parts, order = logits_to_keep, [], by_length(attention_mask, batch_size)
        for rows in order:
            start, end = used_columns(attention_mask[rows])
            start = min(start, attention_mask.size(1) - count - 1) if self._cuts[0] else 0
            end = max(end, attention_mask.size(1) - count + 1)
            part = (tensor[rows, start:end] for tensor in (input_ids, attention_mask))
            cut = attention_mask.size(1) - end
            *each, aux = super()._get_per_token_logps_and_entropies(model, *part, count - cut, None, **kwargs)
            parts.append(([None if numbers is None else pad(numbers, (0, cut)) for numbers in each], aux))
        if self._old_are_new and self._buffered_inputs and torch.is_grad_enabled():
            batch = self._buffered_inputs[self._step % self.args.steps_per_generation]
            width = batch["completion_ids"].size(1) - count
            batch.setdefault("old_per_token_logps", pad(parts[0][0][0].detach(), (0, width)))
        if len(parts) == 1:
            return *parts[0][0], parts[0][1]
        back = torch.cat(order).argsort()
        columns = zip(*(each for each, _ in parts), strict=True)
        joined = [None if column[0] is None else torch.cat(column)[back] for column in columns]
        return *joined, None if parts[0][1] is None else torch.stack([aux for _, aux in parts]).mean()

    # 7. Rewards of completions, of all processes; token rewards of this one.

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        told = [{**row, THINK_OPENED: opens} for row, opens in zip(inputs, self._opened, strict=True)]
        if self._with_tools:
            found = [list(rollout.passages) for rollout in self._rollouts]
            told = [{**row, RETRIEVED: passages} for row, passages in zip(told, found, strict=True)]
        self._rewards = super()._calculate_rewards(told, prompts, completions, completion_ids_list)
        return self._rewards

    def _reads_judgements(self, function: Any) -> bool:
        """Whether a reward function takes what was judged, or the text to judge: its `None` is a judgement that failed."""
        return bool({VERIFICATIONS, COMPLETION_TEXTS} & set(inspect.signature(function).parameters))

    def _pay(self, number: int, name: str, paid: TokenRewards, completion_ids: list[list[int]]) -> list[float | None]:
        """Keep what a token reward function pays; returns the sums."""
        self._token_rewards[number] = rows = token_reward_rows(name, paid, self._tokens, completion_ids)
        return [None if row is None else row[0].sum().item() for row in rows]

    def _paid(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Token rewards and the ends of their statements, of shape (B, T), and which completions have any that is known, (B,);
        weight 0 is for the log."""
        rewards, ends = torch.zeros(mask.shape, device=mask.device), torch.zeros_like(mask)
        known = torch.zeros(len(mask), dtype=bool, device=mask.device)
        weights = self.reward_weights[self._num_plain :].tolist()
        for number, rows in self._token_rewards.items():
            for index, paid in enumerate(rows):
                if paid is not None:
                    row, own = (tensor.to(mask.device) for tensor in paid)
                    rewards[index, : len(row)] += weights[number] * row
                    ends[index, : len(row)] |= own
                    known[index] |= weights[number] != 0
        return rewards, ends, known

    @staticmethod
    def _own_tokens(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The tokens of completions that the policy wrote, (B, T), bool."""
        mask = batch["completion_mask"].bool()
        return mask & batch["tool_mask"].bool() if "tool_mask" in batch else mask

    # 8. The loss of a micro-batch.

    def _without_padding(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A micro-batch without the columns that are padding in all of its rows; at least one of prompts and completions stays."""
        (left, right), count = self._cuts, inputs["completion_mask"].size(1)
        first = used_columns(inputs["prompt_mask"])[0] if left else 0
        end = used_columns(inputs["completion_mask"])[1] if right else count

        def cut(name: str, value: Any) -> Any:
            if not torch.is_tensor(value) or value.dim() != 2:
                return value
            if name in ("prompt_ids", "prompt_mask"):
                return value[:, first:]
            return value[:, :end] if value.size(1) == count else value

        return {name: cut(name, value) for name, value in inputs.items()}

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if self.model.training and self.skip_padding:
            self._tokens_passed = [*(self._tokens_passed or ()), self._own_tokens(inputs).sum()]
            if self.accelerator.sync_gradients:
                self._weigh_by_tokens()
        return loss

    # 9. The log and the card.

    def _weigh_by_tokens(self) -> None:
        """Of the step that ends, scales what each micro-batch logged by its share of the tokens of all processes."""
        tokens = self.accelerator.reduce(torch.stack(self._tokens_passed), reduction="sum").tolist()
        self._tokens_passed = None
        mean = sum(tokens) / len(tokens)
        ratios = _RATIOS if self.importance_sampling_level == "token" else ()
        for name in ("entropy", *["kl"] * (self.beta != 0.0), *ratios):
            values = self._metrics["train"].get(name, [])
            # The last ones are of these micro-batches. Equal counts make weights of 1, which change no bit.
            for at in range(1, min(len(values), len(tokens)) + 1):
                values[-at] *= tokens[-at] / mean if mean else 1.0

    def _show_advantages(self, advantages: torch.Tensor, mask: torch.Tensor) -> list[float]:
        """Put means over the tokens into the completions table, in place of the parent's advantages, which are returned."""
        shown = self.accelerator.gather((advantages * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).tolist()
        table = self._logs["advantages"]
        replaced = [table.pop() for _ in shown[: len(table)]][::-1]
        table.extend(shown)
        return replaced

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

    def _shown_reward(self, name: str, weight: Any) -> str:
        """A reward for the card, with what it pays; its weight is among the settings, unless it is only logged."""
        detail = self._method.details.get(name)
        return code(name) + (f" ({escaped(detail)})" if detail else "") + " (logged only)" * (not weight)

    def _verifiers(self, labels: Sequence[Any] = ()) -> str:
        """For the card: who labels for the trainer, then who judges for single rewards."""
        rewards = describe_rewards(self.reward_funcs, self.reward_func_names)
        return "; ".join(filter(None, [*map(describe_verifier, labels), rewards])) or "none"

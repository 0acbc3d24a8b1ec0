"""Ways to split a training over GPUs, and single changes of its settings by which it takes less."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from hf_factuality.trainers.memory.terms import SHARDINGS, USABLE, Term, memory_plan, peak, syncs_each_batch


@dataclass(frozen=True)
class MemoryPlan:
    """One way to split a training, and what that takes of each GPU.

    Args:
        sharding (`str`):
            One of [`SHARDINGS`].
        processes (`int`):
            How many GPUs.
        terms (`tuple` of [`Term`]):
            Of [`memory_plan`].
        gpu_memory (`float`):
            Bytes of a GPU.
    """

    sharding: str
    processes: int
    terms: tuple[Term, ...]
    gpu_memory: float

    @property
    def peak(self) -> int:
        """Bytes of the phase in which there is most."""
        return peak(self.terms)[0]

    @property
    def phase(self) -> str:
        """The phase in which there is most."""
        return peak(self.terms)[1]

    @property
    def fits(self) -> bool:
        return self.peak <= USABLE * self.gpu_memory


@dataclass(frozen=True)
class Advice:
    """A change of the settings by which a training takes less.

    Args:
        settings (`dict`):
            What to set, by the names that the training's YAML has; `gpus` and `sharding` are flags of the plan, and the
            launcher's.
        plan ([`MemoryPlan`]):
            What the plan becomes.
    """

    settings: Mapping[str, Any]
    plan: MemoryPlan

    @property
    def flags(self) -> list[str]:
        """The settings as words of a command line."""
        return [word for name, value in self.settings.items() for word in as_flag(name, value)]


def plan_training(
    config: Any,
    args: Any,
    model_args: Any,
    processes: int = 1,
    sharding: str | None = None,
    gpu_memory: float = 80e9,
    **given: Any,
) -> list[MemoryPlan]:
    """Plans of the ways to split a training, from the least communication on, up to the first that fits.

    Args:
        config ([`~transformers.PreTrainedConfig`]):
            Of the policy, as it is published.
        args, model_args:
            The settings of the training, see [`memory_plan`], and TRL's [`~trl.ModelConfig`]: dtype, quantization, adapters.
        processes (`int`, *optional*, defaults to `1`):
            How many GPUs.
        sharding (`str`, *optional*):
            The only way to plan; all by default.
        gpu_memory (`float`, *optional*, defaults to `80e9`):
            Bytes of a GPU.
        **given:
            `prompt_length`, `critic_config`, `gpu` and `verifier` of [`memory_plan`].

    Returns:
        `list` of [`MemoryPlan`], without the ways that such a training refuses.

    Raises:
        `ValueError`: see [`memory_plan`].
    """
    from trl import get_peft_config

    config = copy.deepcopy(config)
    if model_args.dtype not in (None, "auto"):
        config.dtype = getattr(torch, model_args.dtype)
    if model_args.load_in_4bit or model_args.load_in_8bit:
        names = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_storage")
        config.quantization_config = {name: getattr(model_args, name) for name in names}
    peft_config = get_peft_config(model_args)
    plans, refused = [], None
    for way in (sharding,) if sharding else SHARDINGS if processes > 1 else SHARDINGS[:1]:
        try:
            terms = memory_plan(config, args, way, processes, peft_config=peft_config, gpu_memory=gpu_memory, **given)
        except ValueError as error:
            refused = error
            continue
        plans.append(MemoryPlan(way, processes, tuple(terms), gpu_memory))
        if plans[-1].fits:
            break
    if not plans:
        raise refused
    return plans


def best_plan(plans: Sequence[MemoryPlan]) -> MemoryPlan:
    """The one that fits, or that takes least."""
    return min(plans, key=lambda plan: (not plan.fits, plan.peak))


def advise(
    read: Callable[[Mapping[str, Any]], tuple[Any, Any, Sequence[MemoryPlan]]], gpus: int, sharding: str | None = None
) -> list[Advice]:
    """Single changes of a training's settings that make it take less, those by which it fits first.

    A change that does not lower the peak by 1 %, is already made, or is refused is left out. If no single change is enough, the
    last entry joins several.

    Args:
        read (`Callable`):
            From settings that are changed, by name, to the training's arguments, TRL's `ModelConfig` and the plans; `ValueError`
            if they do not go with the others.
        gpus (`int`):
            How many GPUs there are.
        sharding (`str`, *optional*):
            The way to split that is asked for.
    """
    found = _single_changes(read, {}, gpus, sharding)
    if not any(advice.plan.fits for advice in found):
        joined = _joined_changes(read, found, gpus, sharding)
        found += [joined] if joined else []
    return sorted(found, key=lambda advice: not advice.plan.fits)


def _joined_changes(read: Callable, found: list[Advice], gpus: int, sharding: str | None) -> Advice | None:
    """Changes one after the other, at each step that which saves most, until it fits; GPUs are added last."""
    made: dict[str, Any] = {}
    while found:
        best = min(found, key=lambda advice: (not advice.plan.fits, advice.plan.peak))
        made |= best.settings
        if best.plan.fits:
            return Advice(made, best.plan)
        way = made.get("sharding", sharding)
        found = _single_changes(read, made, 0, way) or _single_changes(read, made, gpus, way)
    return None


def _single_changes(read: Callable, made: Mapping[str, Any], gpus: int, sharding: str | None) -> list[Advice]:
    """Of every kind of change the smallest that is enough, or the one that saves most; none of `gpus` if that is 0."""
    args, model_args, plans = read(made)
    now, found = best_plan(plans), []
    for kind in _changes(args, model_args, gpus, sharding):
        tried = []
        for settings in kind:
            try:
                plan = best_plan(read({**made, **settings})[2])
            except ValueError:
                continue  # it does not go with the other settings
            # bitsandbytes' weights cannot be split as others are.
            if settings.get("load_in_4bit") and plan.sharding in ("zero3", "fsdp2"):
                continue
            # So many GPUs that are not enough are no advice.
            if plan.peak < 0.99 * now.peak and (plan.fits or "gpus" not in settings):
                tried.append(Advice(settings, plan))
            if plan.fits:
                break
        if tried:
            found.append(min(tried, key=lambda advice: (not advice.plan.fits, advice.plan.peak)))
    return found


def _changes(args: Any, model_args: Any, gpus: int, sharding: str | None) -> Iterator[list[dict[str, Any]]]:
    """The kinds of changes, from those that leave what is learnt as it is; of each kind from the smallest on."""
    samples = hasattr(args, "max_completion_length")
    if not args.gradient_checkpointing:
        # Where the new name is set, the old one is not read.
        yield [{"gradient_checkpointing": True}, {"activation_checkpointing": True}]
    batch, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    yield [{"per_device_train_batch_size": batch // part, "gradient_accumulation_steps": accumulated * part}
           for part in range(2, batch + 1) if batch % part == 0]  # fmt: skip
    if not samples and not args.precompute_ref_log_probs:
        yield [{"precompute_ref_log_probs": True}]
    if accumulated > 1 and not syncs_each_batch(args):
        own = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
        yield [{"accelerator_config": _changed(args.accelerator_config, own)}]
    if samples and not args.use_vllm:
        yield [{"ds3_gather_for_generation": False}] if args.ds3_gather_for_generation else []
        yield [{"use_vllm": True, "vllm_mode": "server"}]
    elif samples and args.vllm_mode == "colocate":
        yield [{"vllm_enable_sleep_mode": True}] if not args.vllm_enable_sleep_mode else []
        yield [{"vllm_mode": "server"}]
    yield [{"optim": name} for name in _in_8_bits(str(getattr(args.optim, "value", args.optim)))]
    if model_args.dtype == "float32":
        yield [{"dtype": "bfloat16"}]
    if sharding:
        yield [{"sharding": way} for way in SHARDINGS if way != sharding]
    if getattr(args, "critic_model", "value_head") != "value_head":
        yield [{"critic_model": "value_head"}]
    if not model_args.use_peft:
        yield [{"use_peft": True}, {"use_peft": True, "lora_target_modules": "all-linear"}]
        if samples and args.beta:
            yield [{"beta": 0.0}]
    elif not (model_args.load_in_4bit or model_args.load_in_8bit):
        yield [{"load_in_4bit": True}]
    yield [{"gpus": gpus * 2**power} for power in range(1, 8) if gpus]


def _in_8_bits(optim: str) -> list[str]:
    """Names of the same optimizer with moments of 8 bits: bitsandbytes', and torchao's, which runs with FSDP2."""
    if "8bit" in optim or "4bit" in optim:
        return []
    if optim.startswith("paged"):
        return [optim.replace("32bit", "8bit")]
    if optim.startswith("adamw"):
        return ["adamw_8bit", "adamw_torch_8bit"]
    return {"ademamix": ["ademamix_8bit"], "lion_32bit": ["lion_8bit"], "rmsprop": ["rmsprop_bnb_8bit"],
            "rmsprop_bnb": ["rmsprop_bnb_8bit"], "rmsprop_bnb_32bit": ["rmsprop_bnb_8bit"]}.get(optim, [])  # fmt: skip


def _changed(config: Any, more: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of accelerate's settings that are not the defaults, and more of them."""
    plain = type(config)()
    given = {name: value for name, value in vars(config).items() if value != getattr(plain, name, None)}
    return {**given, **{name: {**(given.get(name) or {}), **value} for name, value in more.items()}}


def as_flag(name: str, value: Any) -> tuple[str, ...]:
    """A setting as words of a command line, two if it is no list; YAML has the same name and value."""
    values = value if isinstance(value, (list, tuple)) else [value]
    return f"--{name}", *(json.dumps(one) if isinstance(one, (bool, dict)) else str(one) for one in values)

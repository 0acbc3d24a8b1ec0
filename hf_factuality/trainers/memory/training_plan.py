"""What a training takes of each GPU, from its settings as its script would read them: YAML, and what is said beside it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_factuality._lazy import is_object_name, load_name
from hf_factuality.io.recipes import find_recipe
from hf_factuality.trainers.memory.advice import Advice, MemoryPlan, advise, as_flag, best_plan, plan_training
from hf_factuality.trainers.memory.passes import VerifierModel


METHODS = {
    "fspo": "hf_factuality.trainers.fact_grpo_config:FactGRPOConfig",
    "rlfh": "hf_factuality.trainers.token_reward_ppo_config:TokenRewardPPOConfig",
    "mask_dpo": "hf_factuality.trainers.mask_dpo_config:MaskDPOConfig",
    "fdpo": "hf_factuality.methods.fdpo.config:FDPOConfig",
}
"""Method -> its configuration, which is loaded on use."""


@dataclass(frozen=True)
class TrainingPlan:
    """What [`plan`] found out.

    Args:
        method, model (`str`):
            What is trained, and how.
        gpus (`int`):
            Processes, one per GPU.
        gpu_memory (`float`):
            GB of a GPU.
        plans (`tuple` of [`MemoryPlan`]):
            Of the ways to split the model, from the least communication on, up to the first that fits.
        advice (`tuple` of [`Advice`]):
            Changes by which it takes less; none if it fits.
    """

    method: str
    model: str
    gpus: int
    gpu_memory: float
    plans: tuple[MemoryPlan, ...]
    advice: tuple[Advice, ...] = ()

    @property
    def best(self) -> MemoryPlan:
        """The plan that fits, or that takes least."""
        return best_plan(self.plans)

    @property
    def fits(self) -> bool:
        return self.best.fits

    def to_dict(self) -> dict[str, Any]:
        """What `--json` prints: numbers are bytes of each GPU."""
        plans = [{"sharding": one.sharding, "peak": one.peak, "phase": one.phase, "fits": one.fits,
                  "terms": [asdict(term) for term in one.terms]} for one in self.plans]  # fmt: skip
        advice = [{"settings": one.settings, "flags": one.flags, "sharding": one.plan.sharding, "peak": one.plan.peak,
                   "fits": one.plan.fits} for one in self.advice]  # fmt: skip
        return {"model": self.model, "method": self.method, "gpus": self.gpus, "plans": plans, "advice": advice}


def plan(
    method: str,
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    *,
    model: str | None = None,
    gpus: int = 1,
    gpu_memory: float = 80.0,
    prompt_length: int = 512,
    sharding: str | None = None,
    **settings: Any,
) -> TrainingPlan:
    """Plan what a training takes of each GPU's memory for the longest texts, and how to share it; nothing is loaded or run.

    Args:
        method (`str`):
            `"fspo"`, `"rlfh"`, `"mask_dpo"` or `"fdpo"`; or `"package.module:Class"`, a subclass of TRL's `GRPOConfig` or
            `DPOConfig`.
        config (`Mapping`, `str` or `PathLike`, *optional*):
            Settings of the training and of the model by name, or the YAML that has them, such as those in `recipes/`.
        model (`str`, *optional*):
            Folder or model on the Hub; by default `model_name_or_path` of the settings.
        gpus (`int`, *optional*, defaults to `1`):
            Processes of the training, one per GPU.
        gpu_memory (`float`, *optional*, defaults to `80.0`):
            GB of one GPU (10^9 bytes).
        prompt_length (`int`, *optional*, defaults to `512`):
            Tokens of the longest prompt.
        sharding (`str`, *optional*):
            `"ddp"`, `"zero2"`, `"zero3"` or `"fsdp2"`; by default the one that needs least communication and fits.
        **settings:
            More settings, which count instead of those in `config`. What only the script knows is left out.

    Returns:
        [`TrainingPlan`]: the plan of each sharding that was tried, the best one, and advice if it does not fit.

    Raises:
        `ValueError`: an argument or a setting is wrong, the model has no configuration, or no training has such settings.
    """
    if method not in METHODS and not is_object_name(method):
        known = f"{', '.join(METHODS)}, or 'package.module:Class' of a configuration"
        raise ValueError(f"method {method!r} is unknown; choose one of {known}")
    for name, value in (("gpus", gpus), ("gpu_memory", gpu_memory), ("prompt_length", prompt_length)):
        if not value > 0:
            raise ValueError(f"`{name}` must be positive, got {value}")
    settings_of = _Settings(method, config, settings)
    training, model_args, script = settings_of({}, gpus)
    name = model or model_args.model_name_or_path
    if not name:
        raise ValueError("name the model with `model`, or with model_name_or_path in `config`")
    trust = getattr(training, "trust_remote_code", False)
    policy = _configuration("model", name, trust_remote_code=trust, revision=model_args.model_revision)
    given = {"prompt_length": prompt_length, "gpu_memory": gpu_memory * 1e9, "verifier": _verifier(script.verifier)}

    def read(changed: Mapping[str, Any]) -> tuple[Any, Any, Sequence[MemoryPlan]]:
        processes, way = changed.get("gpus", gpus), changed.get("sharding", sharding)
        training, model_args, _ = settings_of(changed, processes)
        critic = getattr(training, "critic_model", "policy")
        critic = None if critic in ("policy", "value_head") else _configuration("critic", critic)
        plans = plan_training(policy, training, model_args, processes, way, critic_config=critic, **given)
        return training, model_args, plans

    plans = read({})[2]
    advice = [] if best_plan(plans).fits else advise(read, gpus, sharding)
    return TrainingPlan(method, name, gpus, gpu_memory, tuple(plans), tuple(advice))


@dataclass
class _Script:
    """Of the arguments of a training's script, those that matter for memory."""

    verifier: str | None = None


class _Settings:
    """The settings of a training as its script would read them, with some of them changed, and checked for so many processes."""

    def __init__(
        self, method: str, config: Mapping[str, Any] | str | os.PathLike[str] | None, given: Mapping[str, Any]
    ) -> None:
        import torch
        from trl import DPOConfig, GRPOConfig, ModelConfig, TrlParser

        class Parser(TrlParser):
            def error(self, message: str) -> None:
                raise ValueError(message)

        def world_size(_: Any) -> int:
            return self._processes

        # The plan is for GPUs, wherever it is made.
        own = {"world_size": property(world_size), "_takes_bf16": lambda _: True}
        kind = load_name(
            METHODS.get(method, method),
            "the method",
            lambda found: isinstance(found, type) and issubclass(found, (GRPOConfig, DPOConfig)),
            "a subclass of TRL's `GRPOConfig` or `DPOConfig`",
        )
        training = type("Training", (kind,), own)
        self._processes = 1
        self._parser = Parser((training, ModelConfig, _Script))
        self._known = [name for kind in (training, ModelConfig, _Script) for name in kind.__dataclass_fields__]
        values = {**_read(config), **{name: value for name, value in given.items() if value is None}}
        values.pop("env", None)
        self._left = self._parser.set_defaults_with_config(**values)
        words = [word for name, value in given.items() if value is not None for word in as_flag(name, value)]
        self._words = ["--output_dir", "plan", *words]
        if not torch.cuda.is_available():
            self._words += ["--use_cpu", "true"]  # or bf16 would be refused here

    def __call__(self, changed: Mapping[str, Any], processes: int) -> tuple[Any, Any, _Script]:
        """The training's arguments, TRL's `ModelConfig`, and the script's."""
        self._processes = processes
        more = [word for name in changed if name not in ("gpus", "sharding") for word in as_flag(name, changed[name])]
        training, model_args, script, left = self._parser.parse_args_into_dataclasses(
            [*self._words, *more], return_remaining_strings=True, look_for_args_file=False
        )
        for word in self._left + left:
            # Arguments of the script are left out; names that nearly are settings are mistakes.
            if word.startswith("--") and (near := difflib.get_close_matches(word[2:], self._known, 1, 0.8)):
                raise ValueError(f"`{word[2:]}` is no setting of such a training; did you mean {near[0]}?")
        return training, model_args, script


def _read(config: Mapping[str, Any] | str | os.PathLike[str] | None) -> dict[str, Any]:
    """Settings by name, of a mapping or a file of YAML."""
    import yaml

    if config is None or isinstance(config, Mapping):
        return dict(config or {})
    try:
        with open(find_recipe(config), encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"`config` {os.fspath(config)} is no YAML: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"`config` {os.fspath(config)} must hold settings by name")
    return values


def _configuration(what: str, name: str, **own: Any) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, **own)
    except (OSError, StrictDataclassError) as error:
        raise ValueError(f"no configuration of the {what} {name!r} can be read: {error}") from error


def _verifier(name: str | None) -> VerifierModel | None:
    """What a verifier of this name runs in the training's process."""
    from hf_factuality.verifiers.registry import model_in_process

    found = model_in_process(name) if name else None
    if found is None:
        return None
    model, judge = found
    config = _configuration("verifier", model)
    positions = getattr(config, "max_position_embeddings", None) or 512
    length = judge.max_length or min(positions, 512)
    return VerifierModel(config, judge.architecture_of(config), judge.batch_size, length)

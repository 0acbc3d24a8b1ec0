"""The command `hf-factuality plan`."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


METHODS = {"fspo": "FactGRPOConfig", "rlfh": "TokenRewardPPOConfig", "mask_dpo": "MaskDPOConfig"}
_PHASES = {"generate": "while completions are generated", "score": "while completions are scored", "critic": "in the critic's passes", "backward": "in the policy's passes",
           "step": "in the optimizer's step"}  # fmt: skip


def add_parser(commands: Any) -> None:
    """Add `plan` to the subparsers of the `hf-factuality` command."""
    parser = commands.add_parser(
        "plan",
        help="what a training takes of each GPU's memory, and how to share it",
        description="Reads the configuration of a model and the settings of a training, and prints term by term what each GPU "
        "has to hold for the longest texts; nothing is loaded or run. The way to share the model that needs least "
        "communication and fits is taken, unless one is named. All other flags are settings of the training or the model, as "
        "its script takes them (--per_device_train_batch_size 4).",
        epilog="Exit status: 0, 1 if it does not fit, 2 for bad input. What every term is: docs/scaling.md.",
    )
    flag = parser.add_argument
    flag("--model", help="folder or model on the Hub; that of the configuration by default")
    flag("--method", choices=METHODS, required=True)
    flag("--config", type=Path, help="YAML of the training, such as those in recipes/; its flags may follow too")
    flag("--gpus", type=int, default=1, help="processes of the training, one per GPU")
    flag("--gpu_memory", type=float, default=80.0, metavar="GB", help="of one GPU (10^9 bytes); 80 by default")
    flag("--prompt_length", type=int, default=512, help="tokens of the longest prompt")
    flag("--sharding", help="ddp, zero2, zero3 or fsdp2")
    flag("--json", action="store_true", help="print the terms as JSON")
    parser.set_defaults(run=_plan, settings=[])


@dataclass
class _Script:
    """Of the arguments of a training's script, those that matter for memory."""

    verifier: str | None = None


def _plan(args: argparse.Namespace) -> int:
    import torch
    import yaml
    from trl import ModelConfig, TrlParser

    import hf_factuality
    from hf_factuality.trainers.memory import Plan, advise, as_flag, best_plan, plan_training

    for name in ("gpus", "gpu_memory", "prompt_length"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name}={getattr(args, name)} must be positive")
    flags = [*(("--config", str(args.config)) if args.config else ()), *args.settings]
    if not torch.cuda.is_available():
        flags += ["--use_cpu", "true"]  # or bf16: true of a recipe would be refused here

    processes = [args.gpus]
    own = {"world_size": property(lambda _: processes[0]), "_takes_bf16": lambda _: True}
    parser = TrlParser((type("Training", (getattr(hf_factuality, METHODS[args.method]),), own), ModelConfig, _Script))

    def settings(changed: Mapping[str, Any]) -> Any:
        # As the script would read them, and checked for as many processes as there will be.
        processes[0] = changed.get("gpus", args.gpus)
        more = [word for name in changed if name not in ("gpus", "sharding") for word in as_flag(name, changed[name])]
        words = ["--output_dir", "plan", *flags, *more]
        return parser.parse_args_and_config(words, fail_with_unknown_args=False)[:3]

    try:
        training, model, script = settings({})
    except yaml.YAMLError as error:
        raise ValueError(f"--config {args.config} is no YAML: {error}") from error
    name = args.model or model.model_name_or_path
    if not name:
        raise ValueError("name the model with --model, or with model_name_or_path in --config")
    trust = getattr(training, "trust_remote_code", False)
    config = _configuration("model", name, trust_remote_code=trust, revision=model.model_revision)
    given = {"prompt_length": args.prompt_length, "gpu_memory": args.gpu_memory * 1e9}
    given["verifier"] = _verifier(script.verifier)

    def read(changed: Mapping[str, Any]) -> tuple[Any, Any, list[Plan]]:
        training, model, _ = settings(changed)
        critic = getattr(training, "critic_model", "policy")
        critic = None if critic in ("policy", "value_head") else _configuration("critic", critic)
        gpus, sharding = changed.get("gpus", args.gpus), changed.get("sharding", args.sharding)
        return training, model, plan_training(config, training, model, gpus, sharding, critic_config=critic, **given)

    plans = read({})[2]
    plan = best_plan(plans)
    advice = [] if plan.fits else advise(read, args.gpus, args.sharding)
    if args.json:
        rows = [{"sharding": one.sharding, "peak": one.peak, "phase": one.phase, "fits": one.fits,
                 "terms": [asdict(term) for term in one.terms]} for one in plans]  # fmt: skip
        more = [{"settings": one.settings, "flags": one.flags, "sharding": one.plan.sharding, "peak": one.plan.peak,
                 "fits": one.plan.fits} for one in advice]  # fmt: skip
        print(json.dumps({"model": name, "method": args.method, "gpus": args.gpus, "plans": rows, "advice": more}))
        return 0 if plan.fits else 1
    print(f"{args.method} with {name} on {args.gpus} x {args.gpu_memory:g} GB\n")
    for one in plans:
        ending = "" if one.fits else ": does not fit"
        print(f"{one.sharding:6} {one.peak / 1e9:8.1f} GB at most, {_PHASES[one.phase]}{ending}")
    print(f"\n{plan.sharding}, GB on each GPU:")
    for term in plan.terms:
        elsewhere = "" if plan.phase in term.phases else " (not at the peak)"
        print(f"{term.bytes / 1e9:8.2f}  {term.name}: {term.why}{elsewhere}")
    if plan.fits:
        print(
            f"\naccelerate launch --config_file recipes/accelerate/{plan.sharding}.yaml --num_processes {args.gpus} ..."
        )
        if args.gpus > 8:
            print("on several machines: docs/scaling.md#schedulers")
        return 0
    print("\nWould take less, GB on each GPU:" if advice else "\nNo change that is known here takes less.")
    for one in advice:
        words, verdict = shlex.join(one.flags), "fits" if one.plan.fits else "does not fit"
        print(f"{one.plan.peak / 1e9:8.1f}  {words} ({one.plan.sharding}): {verdict}")
    return 1


def _configuration(what: str, name: str, **own: Any) -> Any:
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(name, **own)
    except (OSError, StrictDataclassError) as error:
        raise ValueError(f"no configuration of the {what} {name!r} can be read: {error}") from error


def _verifier(name: str | None) -> Any:
    """What a verifier of this name runs in the training's process."""
    from hf_factuality.trainers.memory import VerifierModel
    from hf_factuality.verifiers.registry import model_in_process

    found = model_in_process(name) if name else None
    if found is None:
        return None
    model, judge = found
    config = _configuration("verifier", model)
    positions = getattr(config, "max_position_embeddings", None) or 512
    return VerifierModel(config, judge.architecture, judge.batch_size, judge.max_length or min(positions, 512))

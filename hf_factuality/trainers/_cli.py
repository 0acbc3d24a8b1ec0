"""The command `hf-factuality plan`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any


METHODS = {"fspo": "FactGRPOConfig", "rlfh": "TokenRewardPPOConfig", "mask_dpo": "MaskDPOConfig"}
_PHASES = {"generate": "while completions are generated", "critic": "in the critic's passes", "backward": "in the policy's passes",
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


def _plan(args: argparse.Namespace) -> int:
    import torch
    import yaml
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig
    from trl import ModelConfig, TrlParser, get_peft_config

    import hf_factuality
    from hf_factuality.trainers.memory import SHARDINGS, USABLE, memory_plan, peak

    for name in ("gpus", "gpu_memory", "prompt_length"):
        if not getattr(args, name) > 0:
            raise ValueError(f"--{name}={getattr(args, name)} must be positive")
    flags = [*(("--config", str(args.config)) if args.config else ()), *args.settings]
    if not torch.cuda.is_available():
        flags += ["--use_cpu", "true"]  # or bf16: true of a recipe would be refused here

    def settings(gpus, **changed):
        # As the script would read them, and checked for as many processes as there will be.
        own = {"world_size": property(lambda _: gpus), "_takes_bf16": lambda _: True}
        parser = TrlParser((type("Training", (getattr(hf_factuality, METHODS[args.method]),), own), ModelConfig))
        more = [text for name, value in changed.items() for text in (f"--{name}", str(value))]
        return parser.parse_args_and_config(["--output_dir", "plan", *flags, *more], fail_with_unknown_args=False)[:2]

    try:
        training, model = settings(args.gpus)
    except yaml.YAMLError as error:
        raise ValueError(f"--config {args.config} is no YAML: {error}") from error
    name = args.model or model.model_name_or_path
    if not name:
        raise ValueError("name the model with --model, or with model_name_or_path in --config")
    own = {"trust_remote_code": getattr(training, "trust_remote_code", False), "revision": model.model_revision}
    try:
        config = AutoConfig.from_pretrained(name, **own)
    except (OSError, StrictDataclassError) as error:
        raise ValueError(f"no configuration of the model {name!r} can be read: {error}") from error
    if model.dtype not in (None, "auto"):
        config.dtype = getattr(torch, model.dtype)
    if model.load_in_4bit or model.load_in_8bit:
        config.quantization_config = {"load_in_4bit": model.load_in_4bit, "load_in_8bit": model.load_in_8bit}
    critic = getattr(training, "critic_model", "policy")
    critic = None if critic in ("policy", "value_head") else AutoConfig.from_pretrained(critic)
    given = {"processes": args.gpus, "prompt_length": args.prompt_length, "peft_config": get_peft_config(model),
             "critic_config": critic, "gpu_memory": args.gpu_memory * 1e9}  # fmt: skip

    def plans(gpus=args.gpus, **changed):
        try:
            own = settings(gpus, **changed)[0]
        except ValueError:
            return  # what is changed does not go with the other settings
        ways = (args.sharding,) if args.sharding else SHARDINGS if gpus > 1 else SHARDINGS[:1]
        for sharding in ways:
            terms = memory_plan(config, own, sharding, **{**given, "processes": gpus})
            yield sharding, terms, peak(terms)[0] <= USABLE * args.gpu_memory * 1e9

    tried = []
    for found in plans():
        tried.append(found)
        if found[2]:
            break
    sharding, terms, fits = tried[-1]
    advice = None if fits else _advice(plans, training, args.gpus)
    if args.json:
        rows = [{"sharding": way, "peak": peak(them)[0], "phase": peak(them)[1], "fits": good,
                 "terms": [asdict(term) for term in them]} for way, them, good in tried]  # fmt: skip
        print(json.dumps({"model": name, "method": args.method, "gpus": args.gpus, "plans": rows, "advice": advice}))
        return 0 if fits else 1
    print(f"{args.method} with {name} on {args.gpus} x {args.gpu_memory:g} GB\n")
    for way, them, good in tried:
        size, phase = peak(them)
        print(f"{way:6} {size / 1e9:8.1f} GB at most, {_PHASES[phase]}{'' if good else ': does not fit'}")
    print(f"\n{sharding}, GB on each GPU:")
    for term in terms:
        print(
            f"{term.bytes / 1e9:8.2f}  {term.name}: {term.why}{'' if phase in term.phases else ' (not at the peak)'}"
        )
    if fits:
        print(f"\naccelerate launch --config_file recipes/accelerate/{sharding}.yaml --num_processes {args.gpus} ...")
        if args.gpus > 8:
            print("on several machines: docs/scaling.md#schedulers")
    else:
        print(f"\nWould fit: {advice}")
    return 0 if fits else 1


def _advice(plans: Callable, training: Any, gpus: int) -> str:
    """The smallest change that makes it fit: less is kept, fewer texts at a time, more GPUs."""
    less = {} if training.gradient_checkpointing else {"gradient_checkpointing": True}
    batch, accumulated = training.per_device_train_batch_size, training.gradient_accumulation_steps
    halves = [half for half in (2**power for power in range(1, batch.bit_length())) if batch % half == 0]
    for changed in (
        *([less] if less else ()),
        *({**less, "per_device_train_batch_size": batch // half, "gradient_accumulation_steps": accumulated * half} for half in halves),
        *({**less, "gpus": gpus * 2**power} for power in range(1, 8)),
    ):  # fmt: skip
        for sharding, _, fits in plans(**changed):
            if fits:
                return " ".join([f"--sharding {sharding}", *(f"--{name} {value}" for name, value in changed.items())])
    vllm = "" if getattr(training, "use_vllm", True) else ", or generate with vLLM (--use_vllm true)"
    return (
        f"nothing of gradient_checkpointing, smaller batches and 128 times the GPUs; take adapters (--use_peft){vllm}"
    )

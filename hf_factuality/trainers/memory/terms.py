"""The terms of one process's memory: weights, gradients, the optimizer, passes, generation."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch

from hf_factuality.trainers.memory.passes import Pass, VerifierModel, inference, trace


SHARDINGS = ("ddp", "zero2", "zero3", "fsdp2")
USABLE = 0.92
"""Share of a GPU that a plan may fill; the rest is what the allocator loses between blocks."""
# TRL's fused head scores tiles of this many tokens and entries of the vocabulary (trl/kernels/chunked_logprob.py).
_TILE_TOKENS, _TILE_ENTRIES = 4096, 32768
PHASES = ("generate", "score", "critic", "backward", "step")
"""Completions are generated; they are judged, and read by the reference; the critic's gradients are taken; the policy's are;
the optimizer's step."""
# Moments of an optimizer per parameter, by how its name begins; the first that fits. Those that are not here (GaLore, APOLLO)
# are counted as AdamW, which has more.
_MOMENTS = {
    "ademamix": 3,
    "grokadamw": 3,
    "lion": 1,
    "rmsprop": 1,
    "adagrad": 1,
    "sgd": 0,
    "schedule_free_sgd": 1,
    "lomo": 0,
}
# DeepSpeed's ZeRO-3 takes its step over so many parameters at a time (sub_group_size, of which nobody sets another here).
_SUB_GROUP = 1e9


@dataclass(frozen=True)
class Term:
    """A part of the memory of one process.

    Args:
        name (`str`):
            What it is.
        bytes (`int`):
            How much.
        phases (`tuple` of `str`):
            When it is there: some of [`PHASES`], or all of them.
        why (`str`):
            The arithmetic, in words and numbers.
    """

    name: str
    bytes: int
    phases: tuple[str, ...]
    why: str


def memory_plan(
    config: Any,
    args: Any,
    sharding: str = "ddp",
    processes: int = 1,
    prompt_length: int = 256,
    peft_config: Any = None,
    critic_config: Any = None,
    gpu_memory: float = 80e9,
    gpu: bool = True,
    verifier: VerifierModel | None = None,
) -> list[Term]:
    """The terms of one process's memory when the longest texts come together; [`peak`] adds them up.

    Args:
        config ([`~transformers.PreTrainedConfig`]):
            Of the policy, with the dtype that it is loaded in and, if its layers are quantized, its `quantization_config`.
        args ([`FactGRPOConfig`], [`TokenRewardPPOConfig`] or [`MaskDPOConfig`]):
            The settings of the training.
        sharding (`str`, *optional*, defaults to `"ddp"`):
            `"ddp"`: each process holds all; `"zero2"`: gradients and the optimizer are split; `"zero3"`, `"fsdp2"`: weights too.
        processes (`int`, *optional*, defaults to `1`):
            How many.
        prompt_length (`int`, *optional*, defaults to `256`):
            Tokens of the longest prompt of a trainer that samples.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapters.
        critic_config ([`~transformers.PreTrainedConfig`], *optional*):
            Of a critic with a backbone of its own; the policy's where `args.critic_model` is `"policy"`.
        gpu_memory (`float`, *optional*, defaults to `80e9`):
            Bytes of the GPU, of which vLLM takes its share.
        gpu (`bool`, *optional*, defaults to `True`):
            Whether TRL's kernels run on a GPU; without one they take more.
        verifier ([`VerifierModel`], *optional*):
            What judges completions in this process, on the same GPU.

    Raises:
        `ValueError`: an unknown sharding, a model that cannot be traced, or settings that no training has.
    """
    if sharding not in SHARDINGS:
        raise ValueError(f"sharding={sharding!r} is unknown; choose one of {SHARDINGS}")
    for name in ("max_completion_length", "max_length", "gradient_accumulation_steps", "per_device_train_batch_size"):
        if hasattr(args, name) and (getattr(args, name) or 0) < 1:
            raise ValueError(f"{name}={getattr(args, name)} must be positive")
    bits, storage = _bits(getattr(config, "quantization_config", None))
    _refuse_settings(args, sharding, bits, peft_config)
    samples = hasattr(args, "max_completion_length")
    rows = args.per_device_train_batch_size * (1 if samples else 2)
    completion = args.max_completion_length if samples else args.max_length
    length = prompt_length + completion if samples else completion
    loaded = config.dtype or torch.float32
    zero, fsdp = sharding.startswith("zero"), sharding == "fsdp2"
    autocast = args.bf16 or args.fp16
    half = loaded.itemsize == 2 or (zero and autocast)
    config = copy.deepcopy(config)
    config.quantization_config = None
    # What FSDP2 brings together is cast: its passes are those of a bfloat16 model, whose casts nobody keeps.
    cast = fsdp and autocast
    config.dtype = torch.bfloat16 if half or cast else torch.float32
    mixed = autocast and config.dtype == torch.float32
    weight, compute = (2 if half else 4), (2 if half or autocast else 4)
    split = {"ddp": 1, "zero2": 1}.get(sharding, processes)  # of weights
    parts = 1 if sharding == "ddp" else processes  # of gradients and the optimizer
    policy = trace(config, rows, length, mixed, peft_config)
    # accelerate makes float32 of what FSDP2 learns (fsdp2_prepare_model), except beside weights of 4 bits. TRL has adapters
    # in float32, except beside quantized weights; DeepSpeed casts them with the model.
    if cast and bits != 4:
        learnt = 4
    elif peft_config is None:
        learnt = weight
    else:
        learnt = 2 if bits or (zero and half) else 4
    accumulates = args.gradient_accumulation_steps > 1
    terms, always = [], PHASES

    def term(name, amount, phases, why):
        if amount:
            terms.append(Term(name, math.ceil(amount), tuple(phases), why))

    def over(number):
        return f" / {number} processes" if number > 1 else ""

    def billions(number):
        return f"{number / 1e9:.3g} billion"

    trainable, frozen = policy.trainable, policy.parameters - policy.trainable
    quantized = sum(policy.layers) - trainable if bits else 0
    # bitsandbytes' bytes are no numbers that FSDP2 could split.
    whole = fsdp and not storage
    term("weights", (trainable * learnt + (frozen - quantized) * weight) / split
         + quantized * bits / 8 / (1 if whole else split), always,
         " and ".join(f"{billions(number)} x {size} bytes" for number, size in ((trainable, learnt), (frozen, weight)) if number)
         + over(split) + (f", of which {billions(quantized)} have {bits} bits" if bits else "")
         + (" and are not split" if bits and whole and split > 1 else ""))  # fmt: skip
    layer = max(policy.layers)
    if split > 1:
        gathers = ("score", "critic", "backward")
        if samples and not args.use_vllm:
            if zero and args.ds3_gather_for_generation:
                term("gathered model", policy.parameters * compute, ("generate",),
                     f"{billions(policy.parameters)} x {compute} bytes, while transformers generates")  # fmt: skip
            else:
                gathers = ("generate", *gathers)
        # FSDP2 copies what it has gathered out of one buffer, and holds the head from the end of a pass to its beginning.
        heads = 2 if fsdp else 1
        term("gathered layers", (2 * layer + heads * policy.head) * compute, gathers,
             f"two layers of {billions(layer)} and {'twice ' if fsdp else ''}the head, x {compute} bytes")  # fmt: skip
    if fsdp and accumulates and not syncs_each_batch(args):
        size = 2 if autocast else learnt
        term("gradients before they are split", trainable * size, ("critic", "backward"),
             f"{billions(trainable)} x {size} bytes: until the last of the accumulated batches")  # fmt: skip
        kept = ("step",)
    elif sharding == "zero3":
        kept = always  # in a buffer that DeepSpeed makes once
    else:
        kept = ("critic", "backward", "step") if accumulates else ("step",)
    term("gradients", trainable * learnt / parts, kept, f"{billions(trainable)} x {learnt} bytes{over(parts)}")
    if processes > 1:
        bucket = {"ddp": trainable * learnt, "fsdp2": 2 * compute * _largest_unit(policy)}
        term("communication", bucket.get(sharding, min(trainable, 5e8) * learnt),
             ("backward",) if fsdp else ("backward", "step"), "buckets of gradients")  # fmt: skip
    # DeepSpeed holds a float32 copy of what it learns, with moments beside it; ZeRO-2 copies float32 weights too.
    master = 4 if zero and (half or sharding == "zero2") else 0
    moments, what = _moments(args, policy, 4 if zero and half else learnt, zero, peft_config is None)
    term("optimizer", (trainable * master + moments) / parts, always,
         (f"{billions(trainable)} x {master} bytes of a float32 copy, and " if master else "") + what + over(parts))  # fmt: skip
    term("optimizer's step", _step_copies(args, policy, sharding, parts, learnt, master, gpu), ("step",),
         "float32 copies of gradients" if zero else "what the optimizer computes beside its moments")  # fmt: skip
    precomputed = not samples and args.precompute_ref_log_probs
    if peft_config is None and not precomputed and (not samples or args.beta):
        term("reference", policy.parameters * weight / split, always,
             f"{billions(policy.parameters)} x {weight} bytes{over(split)}")  # fmt: skip
    if peft_config is None and fsdp and split > 1 and (not samples or args.beta):
        # TRL splits it as one piece (prepare_fsdp), which is whole in every pass, and once more in its buffer.
        # What is float32 is cast before it is sent.
        sent = compute / split if weight > compute else 0
        term("gathered reference", policy.parameters * (2 * compute + sent),
             ("score",) if samples or precomputed else ("backward",),
             f"twice {billions(policy.parameters)} x {compute} bytes, in its pass")  # fmt: skip
    term("activations", _kept(policy, args), ("backward",),
         f"{rows} x {length} tokens, {len(policy.layers)} layers"
         + (", a layer at a time" if args.gradient_checkpointing else ""))  # fmt: skip
    scored = rows * (completion if gpu and samples else length - 1)
    term("logits", _logits(policy, config, scored, compute, peft_config is None, gpu), ("backward",),
         f"tiles of {min(scored, _TILE_TOKENS)} tokens x {_TILE_ENTRIES} entries, and gradients of the head in float32")  # fmt: skip
    if getattr(args, "critic_model", "value_head") != "value_head":
        own = copy.deepcopy(critic_config or config)
        # DeepSpeed casts the policy only; split, the critic is float32, brought together in the dtype of the passes.
        size = 4 if split > 1 else loaded.itemsize
        own.dtype = config.dtype if split > 1 else loaded
        critic = trace(own, rows, length, autocast and own.dtype == torch.float32)
        number = critic.parameters - (0 if critic.tied else critic.head)
        for name, times, phases in (("weights", 1, always), ("gradients", 1, PHASES[2:]), ("optimizer", 2, always)):
            term(f"critic's {name}", number * times * size / split, phases,
                 f"{billions(number)} x {times * size} bytes{over(split)}")  # fmt: skip
        term("critic's activations", _kept(critic, args), ("critic",), f"{rows} x {length} tokens")
    if samples:
        drawn = args.per_device_train_batch_size * args.steps_per_generation
        entries = config.get_text_config().vocab_size
        if not args.use_vllm:
            tokens = drawn * length
            term("keys and values", tokens * policy.cache * (1 + 1 / len(policy.layers)), ("generate",),
                 f"{drawn} x {length} tokens x {policy.cache} bytes, and a layer's copy")  # fmt: skip
            term("sampling", drawn * entries * 4 * 4, ("generate",), f"{drawn} x {entries} logits, four times float32")
        elif args.vllm_mode == "colocate":
            share = args.vllm_gpu_memory_utilization
            term("vLLM", share * gpu_memory, ("generate",) if args.vllm_enable_sleep_mode else always,
                 f"{share:.0%} of the GPU")  # fmt: skip
        if verifier is not None:
            number, size, most = inference(verifier)
            term("verifier", number * size, always, f"{billions(number)} x {size} bytes, on every process")
            # With generation_chunks it judges while others are generated.
            judges = ("generate", "score") if getattr(args, "generation_chunks", 1) > 1 else ("score",)
            term("verifier's pass", most, judges, f"{verifier.rows} x {verifier.length} tokens")
    if gpu:
        term(
            "CUDA and NCCL", 1.5e9 if processes > 1 else 0.8e9, always, "contexts and buffers, as seen on NVIDIA GPUs"
        )
    return terms


def _refuse_settings(args: Any, sharding: str, bits: int, peft_config: Any) -> None:
    """What the trainers, or what splits the model, refuse once they are made."""
    zero = sharding.startswith("zero")
    if bits and peft_config is None:
        raise ValueError(f"weights of {bits} bits are not learnt; add adapters (`use_peft`)")
    if bits and getattr(args, "critic_model", None) == "policy":
        raise ValueError(f"critic_model='policy' cannot copy weights of {bits} bits; set critic_model='value_head'")
    if sharding == "fsdp2" and (_is_bitsandbytes(args.optim) or args.optim == "adafactor"):
        raise ValueError(
            f"optim={str(args.optim.value)!r} does not run with FSDP2; take adamw_torch_8bit (torchao), or another sharding"
        )
    if zero and getattr(args, "freezing_actor_steps", 0) and args.weight_decay:
        raise ValueError(
            f"freezing_actor_steps with weight_decay={args.weight_decay} under DeepSpeed; set one of them to 0"
        )
    if args.sync_ref_model:
        reason = (
            "adapters" if peft_config is not None
            else "beta=0" if not args.beta
            else "precompute_ref_log_probs=True" if getattr(args, "precompute_ref_log_probs", False) else None
        )  # fmt: skip
        if reason:
            raise ValueError(f"sync_ref_model=True has no reference to follow with {reason}; set it to False")


def _is_bitsandbytes(optim: str) -> bool:
    name = str(getattr(optim, "value", optim))
    paged = name.startswith(("paged", "ademamix", "lion", "rmsprop_bnb"))
    return paged or name in ("adamw_8bit", "adamw_bnb_8bit")


def syncs_each_batch(args: Any) -> bool:
    given = getattr(args.accelerator_config, "gradient_accumulation_kwargs", None)
    return bool((given or {}).get("sync_each_batch"))


def _moments(args: Any, policy: Pass, width: int, flat: bool, learns_embeddings: bool) -> tuple[float, str]:
    """Bytes of the optimizer's moments over all processes, and how they come about; `flat`: DeepSpeed has one long tensor."""
    name = str(getattr(args.optim, "value", args.optim))
    billion = f"{policy.trainable / 1e9:.3g} billion"
    if name == "adafactor" and not flat:
        return policy.factored * width, f"{policy.factored} sums of rows and columns x {width} bytes"
    plain = name.removeprefix("paged_")
    if plain == "sgd" and "momentum" in (args.optim_args or ""):
        number = 1
    elif plain in ("adafactor", "adalomo"):
        number = 1
    else:
        # "schedule_free_sgd" is no "sgd", and "ademamix" no "adam".
        number = next((number for start, number in _MOMENTS.items() if plain.startswith(start)), 2)
    size = 0.5 if plain.endswith("4bit") else 1 if "8bit" in plain else 4 if _is_bitsandbytes(name) else width
    moments, text = policy.trainable * number * size, f"{billion} x {number * size:g} bytes"
    if size == 1 and _is_bitsandbytes(name) and not flat and learns_embeddings:
        # transformers leaves the moments of embeddings in float32.
        moments += policy.head * number * 3
        text += f", {number * 4} of embeddings"
    return moments, text


def _step_copies(
    args: Any, policy: Pass, sharding: str, parts: int, learnt: int, master: int, gpu: bool
) -> float:  # fmt: skip
    """Bytes that are there in the optimizer's step only."""
    name, own = str(getattr(args.optim, "value", args.optim)), policy.trainable / parts
    if sharding == "zero3":
        # The gradients of a group as one tensor, and that in float32.
        return min(own, _SUB_GROUP) * (learnt + (4 if master else 0))
    if sharding == "zero2":
        return own * (4 if learnt == 2 else 0)
    if name == "adafactor":
        return 3 * policy.largest * 4
    # torch computes the roots of all second moments at once on a GPU, where its kernel is not fused.
    return own * learnt if gpu and name in ("adamw_torch", "adagrad", "rmsprop") else 0


def _largest_unit(policy: Pass) -> float:
    """Trainable parameters of the largest piece that FSDP2 reduces at once: a layer, or the head."""
    if policy.trainable < policy.parameters:
        return policy.trainable / len(policy.layers)
    return max(*policy.layers, policy.head)


def peak(terms: list[Term]) -> tuple[int, str]:
    """Bytes of the phase in which there is most, and which one that is."""
    sums = {phase: sum(term.bytes for term in terms if phase in term.phases) for phase in PHASES}
    phase = max(sums, key=sums.get)
    return sums[phase], phase


def _bits(quantization: Any) -> tuple[int, bool]:
    """Bits of a quantized weight, 0 if there are none, and whether they lie in numbers that can be split."""
    settings = quantization if isinstance(quantization, dict) else quantization.to_dict() if quantization else {}
    bits = 4 if settings.get("load_in_4bit") else 8 if settings.get("load_in_8bit") else settings.get("bits", 0)
    return bits, "float" in str(settings.get("bnb_4bit_quant_storage"))


def _kept(one: Pass, args: Any) -> int:
    if args.gradient_checkpointing:
        return len(one.layers) * one.stream + max(one.kept) + one.outside
    return sum(one.kept) + one.outside


def _logits(policy: Pass, config: Any, scored: int, compute: int, learns_head: bool, gpu: bool) -> float:
    hidden = config.get_text_config().hidden_size
    tokens, entries = min(scored, _TILE_TOKENS), min(policy.head // hidden, _TILE_ENTRIES)
    tile = tokens * _TILE_ENTRIES * compute
    if not gpu:
        tile += 8 * tokens * entries * 4  # what the kernel does in place, torch does in float32
    return tile + scored * hidden * 4 + (policy.head * 4 if learns_head else 0)

"""What a training takes of a GPU's memory, term by term, from configurations alone: nothing is loaded or run."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn


SHARDINGS = ("ddp", "zero2", "zero3", "fsdp2")
USABLE = 0.92
"""Share of a GPU that a plan may fill; the rest is what the allocator loses between blocks."""
# TRL's fused head scores tiles of this many tokens and entries of the vocabulary (trl/kernels/chunked_logprob.py).
_TILE_TOKENS, _TILE_ENTRIES = 4096, 32768
_ATTENTION = "hf_factuality_plan"
_traces: dict[tuple, Pass] = {}
PHASES = ("generate", "critic", "backward", "step")
"""Completions are generated; the critic's gradients are taken; the policy's are; the optimizer's step."""


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


@dataclass(frozen=True)
class Pass:
    """A model, and what one pass of it over some texts keeps until its gradients are there.

    Args:
        parameters, trainable (`int`):
            Numbers of them.
        layers (`tuple` of `int`):
            Parameters of each layer of the decoder.
        kept (`tuple` of `int`):
            Bytes that each layer keeps.
        outside (`int`):
            Bytes that are kept outside of the layers.
        stream (`int`):
            Bytes of the hidden states between two layers, which is what a layer keeps under gradient checkpointing.
        head (`int`):
            Parameters of the output embeddings.
        tied (`bool`):
            Whether these are the input embeddings.
        cache (`int`):
            Bytes of keys and values per token of text.
    """

    parameters: int
    trainable: int
    layers: tuple[int, ...]
    kept: tuple[int, ...]
    outside: int
    stream: int
    head: int
    tied: bool
    cache: int


class _Attention(torch.autograd.Function):
    """Keeps what flash attention keeps: queries, keys, values, the output and a number per head and token."""

    @staticmethod
    def forward(ctx, query, key, value):
        rows, heads, length, _ = query.shape
        output = query.new_empty(rows, length, heads, value.size(-1)).transpose(1, 2)  # so that no copy turns it back
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError


def _attention(module, query, key, value, *args, **kwargs):
    return _Attention.apply(query, key, value).transpose(1, 2).contiguous(), None


def trace(config: Any, rows: int, length: int, mixed: bool = False, peft_config: Any = None) -> Pass:
    """One pass of the language model of `config` over `rows` texts of `length` tokens, on tensors without memory.

    Args:
        config ([`~transformers.PreTrainedConfig`]):
            Of the model; `config.dtype` is that of its weights, float32 if there is none.
        rows, length (`int`):
            Texts, and tokens of each.
        mixed (`bool`, *optional*, defaults to `False`):
            Whether float32 weights are computed with in bfloat16.
        peft_config ([`~peft.PeftConfig`], *optional*):
            Adapters; what they leave frozen has no gradients.

    Raises:
        `ValueError`: the model's layers are not found, or it computes something that needs real numbers.
    """
    # One that is asked for again, for another way to split it, is known.
    key = (config.to_json_string(use_diff=False), rows, length, mixed, str(peft_config))
    if key not in _traces:
        _traces[key] = _trace(config, rows, length, mixed, peft_config)
    return _traces[key]


def _trace(config: Any, rows: int, length: int, mixed: bool, peft_config: Any) -> Pass:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from transformers import AutoModelForCausalLM
    from transformers.integrations import moe
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)
    config = copy.deepcopy(config)
    config.use_cache = False
    dtype = config.dtype or torch.float32
    where, kept, stream = [-1], {}, 0
    # The grouped product of experts is for real bfloat16 tensors; what stands in for it keeps the same.
    grouped, moe._can_use_grouped_mm = getattr(moe, "_can_use_grouped_mm", None), lambda *_: False
    try:
        with torch.device("meta"):
            model = base = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=_ATTENTION)
            if peft_config is not None:
                from peft import get_peft_model

                model = get_peft_model(model, peft_config)
        layers = decoder_layers(model)
        with FakeTensorMode():
            _without_memory(model)
            own = {p.untyped_storage()._cdata for p in model.parameters()}

            def keep(tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in own:
                    kept.setdefault(storage._cdata, (where[0], storage.nbytes()))
                return tensor

            for number, layer in enumerate(layers):
                layer.register_forward_pre_hook(lambda *_, number=number: where.__setitem__(0, number))
                layer.register_forward_hook(lambda *_: where.__setitem__(0, -1))
            ids = torch.zeros(rows, length, dtype=torch.long)
            with (
                torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
                torch.autocast("cpu", torch.bfloat16, enabled=mixed),
            ):
                states = base.base_model(input_ids=ids, attention_mask=torch.ones_like(ids)).last_hidden_state
            stream = states.untyped_storage().nbytes()
            head = base.get_output_embeddings().weight
            text = config.get_text_config()
            heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
            width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
            return Pass(
                parameters=sum(p.numel() for p in model.parameters()),
                trainable=sum(p.numel() for p in model.parameters() if p.requires_grad),
                layers=tuple(sum(p.numel() for p in layer.parameters()) for layer in layers),
                kept=tuple(sum(size for at, size in kept.values() if at == n) for n in range(len(layers))),
                outside=sum(size for at, size in kept.values() if at == -1), stream=stream, head=head.numel(),
                tied=head is base.get_input_embeddings().weight,
                cache=2 * len(layers) * heads * width * (2 if mixed else dtype.itemsize),
            )  # fmt: skip
    except (RuntimeError, NotImplementedError, AttributeError, KeyError) as error:
        raise ValueError(f"{type(config).__name__} cannot be planned: {error!r:.200}") from error
    finally:
        moe._can_use_grouped_mm = grouped


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

    Raises:
        `ValueError`: an unknown sharding, a model that cannot be traced, or settings that no training has.
    """
    if sharding not in SHARDINGS:
        raise ValueError(f"sharding={sharding!r} is unknown; choose one of {SHARDINGS}")
    for name in ("max_completion_length", "max_length", "gradient_accumulation_steps", "per_device_train_batch_size"):
        if hasattr(args, name) and (getattr(args, name) or 0) < 1:
            raise ValueError(f"{name}={getattr(args, name)} must be positive")
    samples = hasattr(args, "max_completion_length")
    rows = args.per_device_train_batch_size * (1 if samples else 2)
    completion = args.max_completion_length if samples else args.max_length
    length = prompt_length + completion if samples else completion
    loaded = config.dtype or torch.float32
    zero = sharding.startswith("zero")
    autocast = args.bf16 or args.fp16
    half = loaded.itemsize == 2 or (zero and autocast)
    config = copy.deepcopy(config)
    bits = _bits(getattr(config, "quantization_config", None))
    if bits and peft_config is None:
        raise ValueError(f"weights of {bits} bits are not learnt; add adapters (--use_peft)")
    config.quantization_config = None
    config.dtype = torch.bfloat16 if half else torch.float32
    mixed = autocast and not half
    weight, compute = (2 if half else 4), (2 if half or mixed else 4)
    split = {"ddp": 1, "zero2": 1}.get(sharding, processes)  # of weights
    parts = 1 if sharding == "ddp" else processes  # of gradients and the optimizer
    policy = trace(config, rows, length, mixed, peft_config)
    # Adapters are float32, whatever the model is.
    learnt = 4 if peft_config is not None else weight
    # DeepSpeed holds a float32 copy of what it learns, with float32 moments.
    moments = (4 if zero and half else 0) + (2 if "8bit" in args.optim else 8 if zero and half else 2 * learnt)
    accumulates = args.gradient_accumulation_steps > 1
    terms, always = [], PHASES

    def term(name, amount, phases, why):
        if amount:
            terms.append(Term(name, math.ceil(amount), tuple(phases), why))

    def over(number):
        return f" / {number} processes" if number > 1 else ""

    def billions(number):
        return f"{number / 1e9:.3g} billion"

    quantized = sum(policy.layers) if bits else 0
    term("weights", ((policy.parameters - quantized) * weight + quantized * bits / 8) / split, always,
         f"{billions(policy.parameters)} x {weight} bytes{over(split)}"
         + (f", of which {billions(quantized)} have {bits} bits" if bits else ""))  # fmt: skip
    if split > 1:
        term("gathered layers", 2 * max(policy.layers) * compute + policy.head * compute, ("critic", "backward"),
             f"two layers of {billions(max(policy.layers))} and the head, x {compute} bytes")  # fmt: skip
        if samples and not args.use_vllm:
            term("gathered model", policy.parameters * compute, ("generate",),
                 f"{billions(policy.parameters)} x {compute} bytes, while transformers generates")  # fmt: skip
    gradients = policy.trainable * learnt / parts
    term("gradients", gradients, ("critic", "backward", "step") if accumulates else ("step",),
         f"{billions(policy.trainable)} x {learnt} bytes{over(parts)}")  # fmt: skip
    if processes > 1:
        bucket = policy.trainable * learnt if sharding == "ddp" else min(policy.trainable, 5e8) * learnt
        term("communication", bucket, ("backward", "step"), "buckets of gradients")
    term("optimizer", policy.trainable * moments / parts, always,
         f"{billions(policy.trainable)} x {moments} bytes{over(parts)}")  # fmt: skip
    frozen = args.beta if samples else not args.precompute_ref_log_probs
    if frozen and peft_config is None:
        term("reference", policy.parameters * weight / split, always,
             f"{billions(policy.parameters)} x {weight} bytes{over(split)}")  # fmt: skip
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
        for name, times, phases in (("weights", 1, always), ("gradients", 1, PHASES[1:]), ("optimizer", 2, always)):
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
    if gpu:
        term(
            "CUDA and NCCL", 1.5e9 if processes > 1 else 0.8e9, always, "contexts and buffers, as seen on NVIDIA GPUs"
        )
    return terms


def peak(terms: list[Term]) -> tuple[int, str]:
    """Bytes of the phase in which there is most, and which one that is."""
    sums = {phase: sum(term.bytes for term in terms if phase in term.phases) for phase in PHASES}
    phase = max(sums, key=sums.get)
    return sums[phase], phase


def _bits(quantization: Any) -> int:
    """Bits of a quantized weight, 0 if there are none."""
    settings = quantization if isinstance(quantization, dict) else quantization.to_dict() if quantization else {}
    return 4 if settings.get("load_in_4bit") else 8 if settings.get("load_in_8bit") else settings.get("bits", 0)


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


def _without_memory(model: nn.Module) -> None:
    """Tensors that are nowhere become such that have a shape and a device only; tied ones stay tied."""
    made: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, old in tensors.items():
                if old is not None and id(old) not in made:
                    new = torch.empty(old.shape, dtype=old.dtype)
                    made[id(old)] = nn.Parameter(new, old.requires_grad) if isinstance(old, nn.Parameter) else new
                if old is not None:
                    tensors[name] = made[id(old)]


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The layers of a language model, in order; `ValueError` if there is no list of as many as its configuration says."""
    wanted = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return module
    raise ValueError(f"{type(model.config).__name__} has no list of {wanted} layers")

"""What a training takes of a GPU's memory, term by term, from configurations alone: nothing is loaded or run."""

from __future__ import annotations

import copy
import json
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
        factored (`int`):
            Rows and columns of the trainable matrices, and entries of other trainable tensors: what Adafactor remembers.
        largest (`int`):
            Entries of the largest trainable tensor.
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
    factored: int
    largest: int


@dataclass(frozen=True)
class VerifierModel:
    """A model that judges completions in the training's process.

    Args:
        config ([`~transformers.PreTrainedConfig`]):
            Of the model; `config.dtype` is that of its weights, float32 if there is none.
        architecture (`str`):
            Its class in transformers, or the `AutoModel` of its task.
        rows, length (`int`):
            Texts that it reads at a time, and tokens of each.
    """

    config: Any
    architecture: str
    rows: int
    length: int


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
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(_ATTENTION, _attention)
    config = copy.deepcopy(config)
    config.use_cache = False
    dtype = config.dtype or torch.float32
    where, kept, stream = [-1], {}, 0
    try:
        with torch.device("meta"):
            model = base = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=_ATTENTION)
            if peft_config is not None:
                from peft import get_peft_model

                model = get_peft_model(model, peft_config)
        layers = decoder_layers(model)
        with FakeTensorMode(), _plain_experts():
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
                factored=sum(_factored(p.shape) for p in model.parameters() if p.requires_grad),
                largest=max((p.numel() for p in model.parameters() if p.requires_grad), default=0),
            )  # fmt: skip
    except (RuntimeError, NotImplementedError, AttributeError, KeyError) as error:
        raise ValueError(f"{type(config).__name__} cannot be planned: {error!r:.200}") from error


@contextmanager
def _plain_experts() -> Iterator[None]:
    """The grouped product of experts is for real bfloat16 tensors; what stands in for it keeps the same."""
    from transformers.integrations import moe

    grouped, moe._can_use_grouped_mm = getattr(moe, "_can_use_grouped_mm", None), lambda *_: False
    try:
        yield
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
    if fsdp and accumulates and not _syncs_each_batch(args):
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
            number, size, most = _inference(verifier)
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
        raise ValueError(f"weights of {bits} bits are not learnt; add adapters (--use_peft)")
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


def _syncs_each_batch(args: Any) -> bool:
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


def _factored(shape: Sequence[int]) -> int:
    return sum(math.prod(shape) // shape[side] for side in (-1, -2)) if len(shape) > 1 else math.prod(shape)


def _inference(verifier: VerifierModel) -> tuple[int, int, int]:
    """Parameters, bytes of one, and the most bytes that a pass without gradients has at a time."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode

    dtype = getattr(verifier.config, "dtype", None) or torch.float32
    key = (
        "verifier",
        verifier.config.to_json_string(use_diff=False),
        verifier.architecture,
        verifier.rows,
        verifier.length,
    )
    if key in _traces:
        return _traces[key]
    import transformers

    live = {"now": 0, "most": 0}

    class Watch(TorchDispatchMode):
        """Adds up the storages that operators make, and takes off those that nothing holds any more."""

        seen: set[int] = set()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            output = func(*args, **(kwargs or {}))
            for tensor in output if isinstance(output, (tuple, list)) else (output,):
                if not isinstance(tensor, torch.Tensor):
                    continue
                storage = tensor.untyped_storage()
                if storage._cdata not in self.seen:
                    self.seen.add(storage._cdata)
                    live["now"] += storage.nbytes()
                    live["most"] = max(live["most"], live["now"])
                    weakref.finalize(storage, self.drop, storage._cdata, storage.nbytes())
            return output

        def drop(self, key, size):
            self.seen.discard(key)
            live["now"] -= size

    made = getattr(transformers, verifier.architecture)
    build = getattr(made, "from_config", None) or made._from_config
    try:
        with torch.device("meta"):
            model = build(verifier.config, dtype=dtype).eval()
        number = sum(p.numel() for p in model.parameters())
        with FakeTensorMode(), _plain_experts(), torch.inference_mode():
            _without_memory(model)
            ids = torch.ones(verifier.rows, verifier.length, dtype=torch.long)
            given = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            if verifier.architecture.endswith("Seq2SeqLM"):
                given["decoder_input_ids"] = ids[:, :1]
            with Watch():
                model.base_model(**given)  # heads are small, and some of them look for values
    except (RuntimeError, NotImplementedError, AttributeError, KeyError) as error:
        raise ValueError(
            f"the verifier's {type(verifier.config).__name__} cannot be planned ({error!r:.200}); plan without it "
            "(--verifier lexical), and leave room for it"
        ) from error
    _traces[key] = number, dtype.itemsize, live["most"]
    return _traces[key]


def peak(terms: list[Term]) -> tuple[int, str]:
    """Bytes of the phase in which there is most, and which one that is."""
    sums = {phase: sum(term.bytes for term in terms if phase in term.phases) for phase in PHASES}
    phase = max(sums, key=sums.get)
    return sums[phase], phase


@dataclass(frozen=True)
class Plan:
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
        plan ([`Plan`]):
            What the plan becomes.
    """

    settings: Mapping[str, Any]
    plan: Plan

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
) -> list[Plan]:
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
        `list` of [`Plan`], without the ways that such a training refuses.

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
        plans.append(Plan(way, processes, tuple(terms), gpu_memory))
        if plans[-1].fits:
            break
    if not plans:
        raise refused
    return plans


def best_plan(plans: Sequence[Plan]) -> Plan:
    """The one that fits, or that takes least."""
    return min(plans, key=lambda plan: (not plan.fits, plan.peak))


def advise(
    read: Callable[[Mapping[str, Any]], tuple[Any, Any, Sequence[Plan]]], gpus: int, sharding: str | None = None
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
    if accumulated > 1 and not _syncs_each_batch(args):
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


def as_flag(name: str, value: Any) -> tuple[str, str]:
    """A setting as two words of a command line; YAML has the same name and value."""
    return f"--{name}", json.dumps(value) if isinstance(value, (bool, dict)) else str(value)


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

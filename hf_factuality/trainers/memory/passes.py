"""What one pass of a model keeps and takes, from its configuration: tensors have shapes, and no memory."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hf_factuality.trainers._layers import decoder_layers


_ATTENTION = "hf_factuality_plan"
_traces: dict[tuple, Pass] = {}


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


class _Twin(torch.autograd.Function):
    """Stands for a layer whose like has been traced: an output of the input's shape, joined to what came before."""

    @staticmethod
    def forward(ctx, states):
        return torch.empty_like(states)

    @staticmethod
    def backward(ctx, *gradients):
        raise NotImplementedError


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


def _trace(config: Any, rows: int, length: int, mixed: bool, peft_config: Any, twins: bool = True) -> Pass:
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
            known = _twins(layers) if twins else {}
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
                kept=tuple(
                    sum(size for at, size in kept.values() if at == known.get(n, n)) for n in range(len(layers))
                ),
                outside=sum(size for at, size in kept.values() if at == -1), stream=stream, head=head.numel(),
                tied=head is base.get_input_embeddings().weight,
                cache=2 * len(layers) * heads * width * (2 if mixed else dtype.itemsize),
                factored=sum(_factored(p.shape) for p in model.parameters() if p.requires_grad),
                largest=max((p.numel() for p in model.parameters() if p.requires_grad), default=0),
            )  # fmt: skip
    except (RuntimeError, NotImplementedError, AttributeError, KeyError) as error:
        raise ValueError(f"{type(config).__name__} cannot be planned: {error!r:.200}") from error


def _twins(layers: Sequence[nn.Module]) -> dict[int, int]:
    """Layers that keep what an earlier one keeps, which are then not computed: hundreds of layers cost as two of each kind.

    The first of a kind is none to copy: it is the first to keep what all of them share, such as the rotary angles.
    """
    seen: dict[tuple, list[int]] = {}
    known = {}
    for number, layer in enumerate(layers):
        kind = tuple(
            (
                name, type(module),
                tuple((key, p.shape, p.dtype, p.requires_grad) for key, p in module.named_parameters(recurse=False)),
                tuple(
                    (key, value) for key, value in sorted(vars(module).items())
                    if isinstance(value, (bool, int, float, str, type(None))) and key != "layer_idx"
                ),
            )
            for name, module in layer.named_modules()
        )  # fmt: skip
        like = seen.setdefault(kind, [])
        if len(like) > 1:
            known[number] = like[1]
        like.append(number)
    plain: dict[int, bool] = {}  # whether the layer that is copied gives the hidden states alone
    for number in set(known.values()):
        layers[number].register_forward_hook(
            lambda _, __, output, n=number: plain.update({n: torch.is_tensor(output)})
        )

    def skip(number: int, forward: Any) -> Any:
        def twin(*args, **kwargs):
            if plain[known[number]] and args:
                return _Twin.apply(args[0])
            del known[number]
            return forward(*args, **kwargs)

        return twin

    for number in list(known):
        layers[number].forward = skip(number, layers[number].forward)
    return known


@contextmanager
def _plain_experts() -> Iterator[None]:
    """The grouped product of experts is for real bfloat16 tensors; what stands in for it keeps the same."""
    from transformers.integrations import moe

    grouped, moe._can_use_grouped_mm = getattr(moe, "_can_use_grouped_mm", None), lambda *_: False
    try:
        yield
    finally:
        moe._can_use_grouped_mm = grouped


def _factored(shape: Sequence[int]) -> int:
    return sum(math.prod(shape) // shape[side] for side in (-1, -2)) if len(shape) > 1 else math.prod(shape)


def inference(verifier: VerifierModel) -> tuple[int, int, int]:
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
            "(`verifier` lexical), and leave room for it"
        ) from error
    _traces[key] = number, dtype.itemsize, live["most"]
    return _traces[key]


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

"""LoRA adapters, added to the weights they belong to."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.model import Expected
from hf_factuality.checkpoints.tensors import BLOCK_BYTES, Source
from hf_factuality.errors import CheckpointError


ADAPTER_CONFIG = "adapter_config.json"
_LORA = re.compile(r"(.*)\.lora_(embedding_)?([AB])(?:\.[^.]+)?(?:\.weight)?")
_PREFIX = "base_model.model."
_REWRITTEN = ("pissa", "olora", "corda", "loftq", "lora_ga")
_OTHER_WAY = "load it with peft and call merge_and_unload()"


@dataclass
class Folded:
    """A weight with the product of an adapter's two matrices added, as `merge_and_unload` of PEFT does.

    Args:
        base ([`Source`]):
            The weight.
        a, b ([`Source`]):
            The matrices, of shapes (r, in) and (out, r).
        scale (`float`):
            Factor of the product.
        transpose (`bool`):
            Whether the weight is stored as (in, out).
        rounded (`bool`):
            Whether the product gets the weight's dtype before it is added, as PEFT has it for embeddings and MiCA.
    """

    base: Source
    a: Source
    b: Source
    scale: float
    transpose: bool = False
    rounded: bool = False
    identity: object = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.base.dtype

    def blocks(self, limit: int = BLOCK_BYTES) -> Iterator[torch.Tensor]:
        # Whole, since parts of it need not round as PEFT's; only rows of it are scaled and transposed at a time.
        product = read(self.b).float() @ read(self.a).float()
        product = product.T if self.transpose else product
        width, place = self.shape[1], 0
        for block in self.base.blocks(limit // 4):  # several in float32 are made of each
            stop = place + len(block)
            first = place // width
            rows = product[first : -(-stop // width)].reshape(-1)
            delta = rows[place - first * width : stop - first * width] * self.scale
            yield block.clone().add_(delta.to(self.dtype) if self.rounded else delta)
            place = stop


def read(source: Source) -> torch.Tensor:
    """A whole tensor, in memory."""
    blocks = list(source.blocks())
    return torch.cat(blocks).reshape(source.shape) if blocks else torch.empty(source.shape, dtype=source.dtype)


def split_adapter(tensors: Mapping[str, Source]) -> tuple[dict[str, Source], dict[str, Source]]:
    """The weights without what PEFT's wrappers add to their names, and the adapter's matrices."""
    base, adapter = {}, {}
    for name, tensor in tensors.items():
        name = str(name).removeprefix(_PREFIX)
        if "lora_" in name.rpartition(".")[0] or ".lora_" in name:
            adapter[name] = tensor
        else:
            base[name.replace(".base_layer.", ".")] = tensor
    return base, adapter


def check_config(config: Mapping[str, Any], where: Path) -> None:
    """Raise if an adapter is of a kind whose product is not simply added.

    Raises:
        `CheckpointError`: naming the kind and what to do instead.
    """
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise CheckpointError(f"{where} is of type {kind}; only LoRA is merged here: {_OTHER_WAY}")
    for key in (
        "use_dora",
        "use_qalora",
        "trainable_token_indices",
        "target_parameters",
        "layer_replication",
        "alora_invocation_tokens",
        "lora_bias",
        "use_bdlora",
        "arrow_config",
        "kasa_config",
        "monteclora_config",
    ):
        if config.get(key):
            raise CheckpointError(f"{where} uses {key}, which is not merged here: {_OTHER_WAY}")


def check_start(config: Mapping[str, Any], where: Path) -> None:
    """Raise if training began by rewriting the base, so that the matrices do not belong to the base as it was published.

    Raises:
        `CheckpointError`: naming the initialisation.
    """
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_REWRITTEN):
        raise CheckpointError(
            f"{where} has init_lora_weights={start!r}, which rewrites the base before training; this is not merged here: "
            f"{_OTHER_WAY}"
        )


def folder_of(
    adapter: Mapping[str, Source], config: Mapping[str, Any], where: Path
) -> Callable[[dict[str, Source], Expected], dict[str, Source]]:
    """A function that adds an adapter to the weights of a model.

    Args:
        adapter (`Mapping[str, Source]`):
            Matrices, and whole weights that replace the model's (`modules_to_save`).
        config (`Mapping[str, Any]`):
            `adapter_config.json`.
        where (`Path`):
            For errors.
    """
    check_config(config, where)

    def fold(tensors: dict[str, Source], expected: Expected) -> dict[str, Source]:
        found = dict(tensors)
        pairs: dict[str, dict[str, Source]] = {}
        embeddings = set()
        for name, tensor in adapter.items():
            name = str(name).removeprefix(_PREFIX)
            match = _LORA.fullmatch(name)
            if match is None:
                name = re.sub(r"\.modules_to_save\.[^.]+", "", name).replace(".base_layer.", ".")
                _replace(found, name, tensor, expected, where)
                continue
            if match[3] in pairs.setdefault(match[1], {}):
                raise CheckpointError(
                    f"{where} has several adapters ({name!r} is not the only matrix {match[3]} of its layer); merge a copy "
                    "that holds one"
                )
            pairs[match[1]][match[3]] = tensor
            if match[2]:
                embeddings.add(match[1])
        for module, pair in pairs.items():
            target = f"{module}.weight"
            _check_tied(target, expected, where)
            if target not in found:
                raise CheckpointError(
                    f"{where} changes {target!r}, which the model does not have; it is of another model"
                )
            if pair.keys() != {"A", "B"}:
                raise CheckpointError(f"{where} has only one of the two matrices of {module!r}")
            # By the layer: fan_in_fan_out of the configuration is that of the layer which PEFT wrapped last.
            flip = module in embeddings or target in expected.transposed
            rounded = module in embeddings or str(config.get("init_lora_weights")).lower() == "mica"
            scale = _scale(module, math.prod(pair["A"].shape[:1]), config, where)
            found[target] = _folded(found[target], pair, scale, flip, rounded, target, where)
        return found

    return fold


def _folded(
    base: Source, pair: Mapping[str, Source], scale: float, flip: bool, rounded: bool, name: str, where: Path
) -> Folded:
    a, b = pair["A"], pair["B"]
    shape = (*b.shape[:1], *a.shape[1:])
    if (
        len(a.shape) != 2
        or len(b.shape) != 2
        or (shape[::-1] if flip else shape) != base.shape
        or a.shape[0] != b.shape[1]
    ):
        raise CheckpointError(
            f"{where}: matrices {list(a.shape)} and {list(b.shape)} do not fit {name!r} of shape {list(base.shape)}; they are "
            "of another model, or of layers that are not merged here"
        )
    return Folded(base, a, b, scale, flip, rounded)


def _scale(module: str, rank: int, config: Mapping[str, Any], where: Path) -> float:
    try:
        patterns = config.get("alpha_pattern") or {}
        key = next((key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module)), None)
        alpha = patterns[key] if key is not None else config["lora_alpha"]  # PEFT and verl always write it
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        if math.isfinite(scale):
            return scale
        error: Exception | str = f"{alpha} is not finite"
    except (re.error, RecursionError, TypeError, ValueError, LookupError, ArithmeticError) as raised:
        error = raised
    raise CheckpointError(
        f"the configuration of the adapter in {where} does not say how {module!r} is scaled: lora_alpha or alpha_pattern cannot "
        f"be used ({error})"
    )


def _replace(found: dict[str, Source], name: str, tensor: Source, expected: Expected, where: Path) -> None:
    _check_tied(name, expected, where)
    if name not in found:
        raise CheckpointError(f"{where} has {name!r}, which the model does not have")
    if tensor.shape != found[name].shape:
        raise CheckpointError(
            f"{where} has {name!r} of shape {list(tensor.shape)}, and the base {list(found[name].shape)}: its vocabulary was "
            f"resized, which is not merged here: {_OTHER_WAY}"
        )
    found[name] = tensor


def _check_tied(name: str, expected: Expected, where: Path) -> None:
    if name in expected.tied or name in expected.tied.values():
        raise CheckpointError(
            f"{where} changes {name!r}, which the base ties to another weight; merged, the two would differ: {_OTHER_WAY} on a "
            "base that was saved with tie_word_embeddings=False"
        )

"""LoRA adapters, added to the weights they belong to."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from hf_factuality.checkpoints.model import Expected
from hf_factuality.checkpoints.tensors import Source
from hf_factuality.errors import CheckpointError


ADAPTER_CONFIG = "adapter_config.json"
_LORA = re.compile(r"(.*)\.lora_(embedding_)?([AB])(?:\.[^.]+)?(?:\.weight)?")
_PREFIX = "base_model.model."
_REWRITTEN = ("pissa", "olora", "corda", "loftq", "lora_ga")
_NOT_ADDED = (
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
)
_OTHER_WAY = "load it with peft and call merge_and_unload()"
_ONE_PRODUCT = Lock()  # in memory at a time


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


def check_start(config: Mapping[str, Any], where: Path) -> None:
    """Raise if training began by rewriting the base, so that the matrices do not belong to the base as it was published."""
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_REWRITTEN):
        raise CheckpointError(
            f"{where} has init_lora_weights={start!r}, which rewrites the base before training; this is not merged here: "
            f"{_OTHER_WAY}"
        )


class Adapter:
    """LoRA matrices, and whole weights that replace the model's (`modules_to_save`), with their `adapter_config.json`."""

    def __init__(self, tensors: Mapping[str, Source], config: Mapping[str, Any], where: Path):
        self.tensors, self.config, self.where = tensors, config, where
        kind = config.get("peft_type", "LORA")
        if kind != "LORA":
            raise CheckpointError(f"{where} is of type {kind}; only LoRA is merged here: {_OTHER_WAY}")
        for key in _NOT_ADDED:
            if config.get(key):
                raise CheckpointError(f"{where} uses {key}, which is not merged here: {_OTHER_WAY}")

    def fold(self, weights: Mapping[str, Source], expected: Expected) -> dict[str, Source]:
        """The weights of a model with the adapter added, as `merge_and_unload` of PEFT does."""
        found = dict(weights)
        pairs: dict[str, dict[str, Source]] = {}
        embeddings = set()
        for name, tensor in self.tensors.items():
            name = str(name).removeprefix(_PREFIX)
            match = _LORA.fullmatch(name)
            if match is None:
                name = re.sub(r"\.modules_to_save\.[^.]+", "", name).replace(".base_layer.", ".")
                self._check_target(name, found, expected)
                if tensor.shape != found[name].shape:
                    raise CheckpointError(
                        f"{self.where} has {name!r} of shape {list(tensor.shape)}, and the base {list(found[name].shape)}: its "
                        f"vocabulary was resized, which is not merged here: {_OTHER_WAY}"
                    )
                found[name] = tensor
                continue
            module, embedding, matrix = match.groups()
            if matrix in pairs.setdefault(module, {}):
                raise CheckpointError(
                    f"{self.where} has several adapters ({name!r} is not the only matrix {matrix} of its layer); merge a copy "
                    "that holds one"
                )
            pairs[module][matrix] = tensor
            if embedding:
                embeddings.add(module)
        for module, pair in pairs.items():
            found[f"{module}.weight"] = self._folded(module, pair, module in embeddings, found, expected)
        return found

    def _folded(
        self,
        module: str,
        pair: Mapping[str, Source],
        embedding: bool,
        weights: Mapping[str, Source],
        expected: Expected,
    ) -> Source:
        name = f"{module}.weight"
        self._check_target(name, weights, expected)
        if pair.keys() != {"A", "B"}:
            raise CheckpointError(f"{self.where} has only one of the two matrices of {module!r}")
        a, b, base = pair["A"], pair["B"], weights[name]
        # By the layer: fan_in_fan_out of the configuration is that of the layer which PEFT wrapped last.
        flip = embedding or name in expected.transposed
        shape = (*b.shape[:1], *a.shape[1:])
        if (
            not (len(a.shape) == len(b.shape) == 2 and a.shape[0] == b.shape[1])
            or base.shape != shape[:: -1 if flip else 1]
        ):
            raise CheckpointError(
                f"{self.where}: matrices {list(a.shape)} and {list(b.shape)} do not fit {name!r} of shape {list(base.shape)}; "
                "they are of another model, or of layers that are not merged here"
            )
        # PEFT gives the product the weight's dtype before it is added for embeddings and MiCA.
        rounded = embedding or str(self.config.get("init_lora_weights")).lower() == "mica"
        add = partial(_add, base, a, b, self._scale(module, a.shape[0]), flip, rounded)
        return Source(base.shape, base.dtype, add, fault=base.fault or a.fault or b.fault)

    def _scale(self, module: str, rank: int) -> float:
        try:
            patterns = self.config.get("alpha_pattern") or {}
            key = next((key for key in patterns if re.fullmatch(rf"(.*\.)?({key})", module)), None)
            alpha = patterns[key] if key is not None else self.config["lora_alpha"]  # PEFT and verl always write it
            scale = alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
            if not math.isfinite(scale):
                raise ValueError(f"{alpha} is not finite")
            return scale
        except (re.error, RecursionError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise CheckpointError(
                f"the configuration of the adapter in {self.where} does not say how {module!r} is scaled: lora_alpha or "
                f"alpha_pattern cannot be used ({error})"
            ) from error

    def _check_target(self, name: str, weights: Mapping[str, Source], expected: Expected) -> None:
        if name in expected.tied or name in expected.tied.values():
            raise CheckpointError(
                f"{self.where} changes {name!r}, which the base ties to another weight; merged, the two would differ: "
                f"{_OTHER_WAY} on a base that was saved with tie_word_embeddings=False"
            )
        if name not in weights:
            raise CheckpointError(f"{self.where} has {name!r}, which the model does not have; it is of another model")


def _add(base: Source, a: Source, b: Source, scale: float, flip: bool, rounded: bool, out: torch.Tensor) -> None:
    """Fill `out` with a weight and the product of matrices (out, r) and (r, in), or its transpose if `flip`: the whole
    product in float32, since parts of it need not round as PEFT's.
    """
    with _ONE_PRODUCT:
        product = b.read().float() @ a.read().float()
        product = product.T if flip else product
        weight = out if out.dtype == base.dtype else torch.empty(base.shape, dtype=base.dtype)
        base.fill(weight)
        rows = max(1, 2**17 // max(1, base.shape[1]))  # at a time, as what they are converted to is in memory too
        for some, more in zip(weight.split(rows), product.split(rows), strict=True):
            delta = more * scale
            some.add_(delta.to(base.dtype) if rounded else delta)
        if weight is not out:
            out.copy_(weight)

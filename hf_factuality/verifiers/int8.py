"""Linear layers in eight bits, for a CPU: two to three times as fast as float32 where the processor has instructions for it.

Unlike torch's dynamic quantization, which has one scale for all that a layer reads, each row has a scale of its own: so the
result of a row does not depend on the others of its batch, and a row of small numbers keeps its detail.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import lru_cache
from time import perf_counter

import torch
from torch import Tensor, nn


LARGEST = 127
_LEAST = 1e-12


@lru_cache(maxsize=1)
def multiplies_int8() -> bool:
    """Whether this machine multiplies int8 matrices without a fault, and faster than float32 ones.

    An x86 processor without VNNI adds pairs of products in sixteen bits, where large ones are cut off.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    left = torch.randint(-LARGEST, LARGEST + 1, (256, 384), generator=generator, device="cpu").to(torch.int8)
    right = torch.randint(-LARGEST, LARGEST + 1, (384, 384), generator=generator, device="cpu").to(torch.int8)
    left[0], right[:, 0], right[:, 1] = LARGEST, LARGEST, -LARGEST
    in_floats = left.float(), right.float()
    if not torch.equal(torch._int_mm(left, right).float(), in_floats[0] @ in_floats[1]):
        return False
    return _seconds(lambda: torch._int_mm(left, right)) < _seconds(lambda: in_floats[0] @ in_floats[1])


def _seconds(work: Callable[[], object]) -> float:
    """The least of some tries, of which the first ones also set things up."""
    taken = []
    for _ in range(5):
        start = perf_counter()
        work()
        taken.append(perf_counter() - start)
    return min(taken)


class Int8Linear(nn.Module):
    """A linear layer whose weights are int8 with a scale per output, and which rounds what it reads to int8 by a scale per row.

    Where the machine is no faster in int8 ([`multiplies_int8`]), the same whole numbers are multiplied as float32.

    Args:
        weight (`Tensor`), shape (outputs, inputs), int8:
            At most 127 in size.
        scale (`Tensor`), shape (outputs, 1):
            What the numbers of a row are multiplied by.
        bias (`Tensor`, *optional*), shape (outputs,).
    """

    def __init__(self, weight: Tensor, scale: Tensor, bias: Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        # Sums of products of whole numbers are exact in float32 below 2^24. Those of a layer stay below in practice: it would
        # take 1,040 products of the largest size and the same sign.
        weight = weight.t().contiguous()
        self.register_buffer("weight", weight if multiplies_int8() else weight.float())
        self.register_buffer("scale", scale.float().squeeze(1))
        self.register_buffer("bias", None if bias is None else bias.float())

    @classmethod
    def rounded(cls, layer: nn.Linear) -> Int8Linear:
        """Of a layer of floats."""
        weight = layer.weight.detach().float()
        scale = _scale(weight)
        return cls(
            (weight / scale).round_().to(torch.int8), scale, None if layer.bias is None else layer.bias.detach()
        )

    def forward(self, states: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs), float32."""
        rows = states.reshape(-1, self.in_features).float()
        scale = _scale(rows)
        whole = (rows / scale).round_()
        if self.weight.dtype is torch.int8:
            product = torch._int_mm(whole.to(torch.int8), self.weight).float()
        else:
            product = whole @ self.weight
        product.mul_(self.scale).mul_(scale)
        if self.bias is not None:
            product.add_(self.bias)
        return product.view(*states.shape[:-1], self.out_features)


def _scale(rows: Tensor) -> Tensor:
    """By which each row is at most 127 in size; (rows, 1)."""
    largest = torch.maximum(rows.amax(-1, keepdim=True), -rows.amin(-1, keepdim=True))
    return largest.clamp_(min=_LEAST) / LARGEST


def int8_model(model: nn.Module) -> nn.Module:
    """A copy of a model for the CPU whose linear layers are [`Int8Linear`]; the rest is float32."""
    copy = deepcopy(model).float()
    for module in list(copy.modules()):
        for name, layer in module.named_children():
            if type(layer) is nn.Linear:
                setattr(module, name, Int8Linear.rounded(layer))
    return copy

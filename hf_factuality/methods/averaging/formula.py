"""Averages of a model before and after alignment: which tensor has which ratio, learned ratios, and their penalty.

After adaptive model averaging (AMA; arXiv 2309.06256). A ratio is the weight of the model *before* alignment: 1 is that model,
0 the aligned one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import fmean

import torch


LEVELS = ("block", "layer", "linear")
"""What has a ratio of its own: a block of consecutive layers, a layer, or a linear module."""
VARIANTS = ("paper", "released")
"""`"paper"`: blocks of equal length, and all tensors of a block by its ratio. `"released"`: as in the script of AMA."""
PENALTIES = ("uniform", "middle")
"""Weight of a linear module in the penalty: 1, or `25 / (|layer - 13| + 1)`."""
_LAYER = re.compile(r"(.*?\.)(\d+)\.")
_INPUT = re.compile(r"emb|wte|wpe|_in\.")
_OUTPUT = re.compile(r"out|head|final")


class RatioMap:
    """Which ratio each tensor of a model has.

    Unlike the script of AMA, `variant="paper"` averages embeddings (by the first block's ratio), norms (by their block's) and the
    final norm and output layer (by the last block's); at level `"linear"`, what is no linear module has the mean of its layer's
    ratios. `variant="released"` takes everything but linear modules from the model before alignment, gives the output layer the
    mean ratio, and cuts three blocks at layers 11 and 21 of a model of more than 30 layers, else at 8 and 16.

    Args:
        names (`Iterable[str]`): Of all tensors, as in a state dict.
        linear (`Collection[str]`): Those of linear modules, biases with them.
        level (`str`, *optional*, defaults to `"block"`): A name of [`LEVELS`].
        blocks (`int`, *optional*, defaults to `3`): Their number, K, at level `"block"`.
        variant (`str`, *optional*, defaults to `"paper"`): A name of [`VARIANTS`].

    Attributes:
        keys (`tuple[str, ...]`): Names of the K ratios: numbers of blocks or layers, or names of linear modules.
        members (`dict[str, tuple[int, ...]]`): Tensor -> places in `keys`; its ratio is the mean of theirs, and 1 of none.
        layers (`dict[str, int]`): Layer of each tensor that is in one.

    Raises:
        `ValueError`: an unknown name, more blocks than layers, layers that do not stand in one stack, or `"released"` with
            another number of blocks than 3.
    """

    def __init__(
        self,
        names: Iterable[str],
        linear: Collection[str],
        level: str = "block",
        blocks: int = 3,
        variant: str = "paper",
    ):
        if level not in LEVELS or variant not in VARIANTS:
            raise ValueError(f"level is one of {LEVELS} and variant of {VARIANTS}, got {level!r} and {variant!r}")
        names = list(names)
        self.layers, depth = _layers(names)
        released = variant == "released"
        # The script's output layer has no ratio of its own.
        own = (name for name in names if name in linear and (name in self.layers or not released))
        modules = list(dict.fromkeys(map(_module, own)))
        if level == "block":
            if not 1 <= blocks <= depth:
                raise ValueError(f"{blocks} blocks cannot be made of {depth} layers; choose 1 to {depth}")
            if released and blocks != 3:
                raise ValueError(f"variant='released' has 3 blocks, not {blocks}; choose 3, or variant='paper'")
            cuts = (11, 21) if depth > 30 else (8, 16)
            block = {n: sum(n >= cut for cut in cuts) if released else n * blocks // depth for n in range(depth)}
            self.keys = tuple(map(str, range(blocks)))
        else:
            block = {n: n for n in range(depth)}
            self.keys = tuple(map(str, range(depth))) if level == "layer" else tuple(modules)
        place = {key: number for number, key in enumerate(self.keys)}
        in_layer = {n: (block[n],) for n in range(depth)}
        if level == "linear":
            of = {_module(name): self.layers.get(name) for name in names}
            in_layer = {n: tuple(place[it] for it in modules if of[it] == n) for n in range(depth)}
        self.members: dict[str, tuple[int, ...]] = {}
        for name in names:
            inside = name in self.layers
            first = bool(_INPUT.search(name)) and not _OUTPUT.search(name)
            layer = self.layers[name] if inside else 0 if first else depth - 1
            if released and name not in linear:
                self.members[name] = ()
            elif released and not inside:
                self.members[name] = tuple(range(len(self.keys)))
            elif level == "linear" and name in linear:
                self.members[name] = (place[_module(name)],)
            else:
                self.members[name] = in_layer[layer]

    def ratios(self, values: Mapping[str, float]) -> dict[str, float]:
        """Tensor -> ratio, of the ratio of each of `keys`; `ValueError` if other keys are given."""
        if values.keys() != set(self.keys):
            wrong = sorted(set(self.keys) ^ values.keys())
            raise ValueError(f"{len(self.keys)} ratios are needed, named {_short(self.keys)}; {_short(wrong)} differ")
        listed = [values[key] for key in self.keys]
        return {name: fmean(listed[n] for n in at) if at else 1.0 for name, at in self.members.items()}

    def penalty_weights(self, linear: Collection[str], kind: str = "uniform") -> torch.Tensor:
        """What each ratio weighs in the penalty, shape (K,), float32: the sum over its linear modules (a bias is no other one).

        `kind` is a name of [`PENALTIES`]. The output layer is in no sum; its layer has no number.
        """
        if kind not in PENALTIES:
            raise ValueError(f"the penalty is one of {PENALTIES}, got {kind!r}")
        found, seen = torch.zeros(len(self.keys)), set()
        for name in self.members:
            if name in linear and name in self.layers and _module(name) not in seen:
                seen.add(_module(name))
                found[self.members[name][0]] += 1.0 if kind == "uniform" else 25 / (abs(self.layers[name] - 13) + 1)
        return found


def adaptive_ratios(logits: torch.Tensor, alpha: float, epsilon: float = 0.2) -> torch.Tensor:
    """K ratios whose mean is `alpha`: `alpha K (sigmoid(a_k) + epsilon) / sum_j (sigmoid(a_j) + epsilon)`.

    After AMA's released code. With a mean near 1 a ratio may exceed 1: it is then moved beyond the model before alignment.

    Args:
        logits (`torch.Tensor`): Shape (K,), floating point. Equal ones give `alpha` each.
        alpha (`float`): The mean, in [0, 1].
        epsilon (`float`, *optional*, defaults to `0.2`): At least 0; how little a ratio can become.
    """
    parts = torch.sigmoid(logits) + epsilon
    return alpha * len(logits) * parts / parts.sum()


def ratio_penalty(ratios: torch.Tensor, alpha: float, weights: torch.Tensor) -> torch.Tensor:
    """`sum_k weights_k |ratio_k - alpha|`, a scalar; `ratios` and `weights` have shape (K,). AMA adds it times 1e-4."""
    return (weights * (ratios - alpha).abs()).sum()


def average_tensors(before: torch.Tensor, after: torch.Tensor, ratio: float | torch.Tensor) -> torch.Tensor:
    """`ratio * before + (1 - ratio) * after`, in float32 (in float64 if one is).

    Args:
        before, after (`torch.Tensor`): Floating point, of equal shape.
        ratio (`float` or `torch.Tensor`): The weight of `before`; a scalar.

    Returns:
        `torch.Tensor`: of that shape, in float32 or float64. With a `float` of 1 or 0 exactly one of the two.
    """
    dtype = torch.promote_types(torch.promote_types(before.dtype, after.dtype), torch.float32)
    if not isinstance(ratio, torch.Tensor) and ratio in (0, 1):
        return (before if ratio else after).to(dtype)
    return ratio * before.to(dtype) + (1 - ratio) * after.to(dtype)


def _module(name: str) -> str:
    return name.rpartition(".")[0]


def _layers(names: Sequence[str]) -> tuple[dict[str, int], int]:
    """The layer of each tensor that is in one, and how many there are."""
    found: dict[str, dict[str, int]] = {}
    for name in names:
        if match := _LAYER.match(name):
            found.setdefault(match[1], {})[name] = int(match[2])
    if len(found) != 1:
        raise ValueError(
            f"blocks and layers are of a model with one stack of layers, and this one has {len(found)} "
            f"({_short(sorted(found)) or 'none'}); give one ratio for all tensors"
        )
    (layers,) = found.values()
    return layers, max(layers.values()) + 1


def _short(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (", ..." if len(names) > 4 else "")

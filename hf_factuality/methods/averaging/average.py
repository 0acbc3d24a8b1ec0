"""Averages of a model before and after alignment, written as merged models are: from their files, in bounded memory.

Unlike the script of AMA (arXiv 2309.06256), which holds both models and takes all but linear modules from the one before.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from hf_factuality.checkpoints.formats import hub_folder
from hf_factuality.checkpoints.merge import MergeReport, Model, parse_dtype, read_model, write_models
from hf_factuality.checkpoints.model import read_json
from hf_factuality.checkpoints.publish import write_and_push
from hf_factuality.checkpoints.tensors import WITHOUT_SCALE, TensorSource
from hf_factuality.checkpoints.write import check_output, parse_size
from hf_factuality.errors import CheckpointError
from hf_factuality.methods.averaging.formula import RatioMap, average_tensors


RATIOS = "ratios.json"
METHODS = ("linear", "slerp")
_FIELDS = {"alpha": float, "level": str, "blocks": int, "variant": str, "ratios": dict}
_ELEMENTS = 2**16  # averaged together
_ONE_WHOLE = Lock()  # tensor in memory beside the output at a time


@dataclass(frozen=True)
class Ratios:
    """The ratio of each block, layer or linear module of a model, as a file `ratios.json` holds them.

    Args:
        ratios (`Mapping[str, float]`): Key of a [`~hf_factuality.methods.averaging.formula.RatioMap`] -> weight of the model before
            alignment, any finite number.
        alpha (`float`): Their mean.
        level, blocks, variant: See `RatioMap`.
    """

    ratios: Mapping[str, float]
    alpha: float
    level: str = "block"
    blocks: int = 3
    variant: str = "paper"

    def __post_init__(self):
        wrong = [key for key, ratio in self.ratios.items() if not _is_number(ratio)]
        if wrong:
            raise ValueError(f"the ratio of {wrong[0]!r} is {self.ratios[wrong[0]]!r:.40}; it must be a finite number")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Ratios:
        """From a file, or the folder of one; `CheckpointError` if it holds none."""
        path = Path(path) / RATIOS if os.path.isdir(path) else Path(path)
        found = read_json(path)
        odd = [key for key, kind in _FIELDS.items() if not isinstance(found.get(key), (kind, int))]
        if odd or found.keys() != _FIELDS.keys():
            raise CheckpointError(f"{path} must have {', '.join(_FIELDS)}, as AdaptiveAveragingTrainer writes them")
        return cls(**found)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Into `ratios.json` of a folder."""
        (Path(folder) / RATIOS).write_bytes(self.to_bytes())

    def to_bytes(self) -> bytes:
        """What the file holds."""
        return (json.dumps({key: getattr(self, key) for key in _FIELDS}, indent=2) + "\n").encode()


def average(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    alpha: float | Sequence[float] | None = None,
    ratios: Ratios | Sequence[float] | str | os.PathLike[str] | None = None,
    level: str = "block",
    blocks: int | None = None,
    variant: str = "paper",
    merge_method: str = "linear",
    dtype: str | torch.dtype | None = None,
    max_shard_size: int | str = "5GB",
    model_config: str | os.PathLike[str] | None = None,
    base_model: str | os.PathLike[str] | None = None,
    allow_unsafe_pickle: bool = False,
    trust_remote_code: bool = False,
    dry_run: bool = False,
    push_to_hub: str | None = None,
    private: bool | None = None,
    pull_request: bool = False,
    branch: str | None = None,
    on_written: Callable[[Sequence[MergeReport], str | None], None] | None = None,
) -> list[MergeReport]:
    """Average a model with the one that it was aligned from: `ratio * before + (1 - ratio) * after`, for every tensor.

    Sums are made in float32 and rounded once. With a ratio of 1 or 0 a tensor is that of one model to the last bit. Configuration,
    tokenizer and chat template are those of `after`.

    Args:
        before, after (`str` or `PathLike`): Folders of any format that `merge` reads, or models on the Hub (`id`, `id@revision`).
            `after` may be an adapter.
        out (`str` or `PathLike`): New folder of the model; of several alphas with a folder `alpha-A` in it for each.
        alpha (`float` or `Sequence[float]`, *optional*): One ratio for all tensors, in [0, 1]; or several, for points of the path.
        ratios ([`Ratios`], `str`, `PathLike` or `Sequence[float]`, *optional*): Learned ratios, or their file or its folder; or
            those of the blocks (or layers), in order, each in [0, 1]. Instead of `alpha`.
        level (`str`, *optional*, defaults to `"block"`): Of a sequence: `"block"` or `"layer"`.
        blocks (`int`, *optional*): Their number; by default that of the ratios.
        variant (`str`, *optional*, defaults to `"paper"`): Of a sequence: `"paper"`, or `"released"`, which takes embeddings and
            norms from `before`, gives the output layer the mean, and cuts three blocks unequally.
        merge_method (`str`, *optional*, defaults to `"linear"`): Or `"slerp"`, which is mergekit's function.
        dtype (`str` or `torch.dtype`, *optional*): Of what is written; by default the wider one of the two.
        max_shard_size, model_config, base_model, allow_unsafe_pickle, trust_remote_code, dry_run: As in
            [`~hf_factuality.checkpoints.merge.merge`]; `model_config` and `base_model` are those of `after`.
        push_to_hub, private, pull_request, branch, on_written (*optional*): As there; not with several alphas.

    Returns:
        `list[MergeReport]`: one per folder that was written, or would be.

    Raises:
        `CheckpointError`: a model cannot be read, the two are not of one architecture, or the folder cannot be written.
        `HubError`: the account may not write to the repository, or the push failed; the model stays then.
        `ValueError`: an argument is wrong.
    """
    cast, max_bytes, out = parse_dtype(dtype), parse_size(max_shard_size), Path(out)
    if isinstance(alpha, Sequence) and push_to_hub is not None:
        raise ValueError("`push_to_hub` is of one model, and `alpha` makes several; push the folder that you choose")
    if isinstance(ratios, (str, os.PathLike)):
        ratios = Ratios.load(ratios)
    if (alpha is None) == (ratios is None):
        raise ValueError("give either `alpha` or `ratios`")
    if (ratios is None or isinstance(ratios, Ratios)) and (level, blocks, variant) != ("block", None, "paper"):
        raise ValueError("`level`, `blocks` and `variant` are of ratios in order (`alphas`); leave them out")
    if merge_method not in METHODS:
        raise ValueError(f"merge_method {merge_method!r} is unknown; choose one of {', '.join(METHODS)}")
    several = isinstance(alpha, Sequence)
    alphas = [] if alpha is None else list(alpha) if several else [alpha]
    for ratio in alphas if isinstance(ratios, Ratios) or ratios is None else ratios:
        if not _is_number(ratio) or not 0 <= ratio <= 1:
            raise ValueError(f"alpha is the weight of the model before alignment, in [0, 1], got {ratio!r:.40}")
    places = {f"alpha-{ratio:g}": ratio for ratio in alphas}
    if len(places) < len(alphas) or (several and not alphas):
        raise ValueError(f"the alphas {', '.join(map(str, alphas))} must be some numbers, each once")
    if ratios is not None and not isinstance(ratios, Ratios):
        keys = {str(number): float(ratio) for number, ratio in enumerate(ratios)}
        ratios = Ratios(keys, math.fsum(keys.values()) / max(1, len(keys)), level, blocks or len(keys), variant)
    points = {out / name if several else out: ratio for name, ratio in places.items()} or {out: ratios}
    slerp = _mergekit_slerp() if merge_method == "slerp" else None
    code = {"allow_unsafe_pickle": allow_unsafe_pickle, "trust_remote_code": trust_remote_code}

    def write() -> list[MergeReport]:
        check_output(out, 0)  # before a model is downloaded
        old, new = (hub_folder(model, weights=True) for model in (before, after))
        first, second = read_model(old, **code), read_model(new, model_config, base_model, **code)
        pairs = _pairs(first, second)
        models = {place: _average(first, second, pairs, ratio, merge_method, slerp) for place, ratio in points.items()}
        return write_models(models, out, cast, max_bytes, dry_run)

    return write_and_push(
        write,
        out,
        push_to_hub,
        private=private,
        pull_request=pull_request,
        branch=branch,
        dry_run=dry_run,
        on_written=on_written,
    )


def _average(
    first: Model,
    second: Model,
    pairs: Mapping[str, tuple[TensorSource, TensorSource]],
    ratios: Ratios | float,
    method: str,
    slerp: Callable | None,
) -> Model:
    """The average of two models, of which nothing is read yet."""
    if isinstance(ratios, Ratios):
        # In the model's order, without the names of tied weights.
        order = {name: number for number, name in enumerate(second.expected.shapes[0])}
        names = sorted(pairs, key=lambda name: order.get(name, len(order)))
        groups = RatioMap(names, second.expected.linear, ratios.level, ratios.blocks, ratios.variant)
        ratio_of, own = groups.ratios(ratios.ratios), {RATIOS: ratios.to_bytes()}
    else:
        ratio_of, own = dict.fromkeys(pairs, ratios), {}
    tensors = {name: _averaged(name, *pair, ratio_of[name], slerp) for name, pair in pairs.items()}
    what = f"{method} average of {first.folder.name} ({first.format}) and {second.folder.name} ({second.format})"
    return replace(second, format=what, tensors=tensors, own=own)


def _pairs(before: Model, after: Model) -> dict[str, tuple[TensorSource, TensorSource]]:
    """Tensors of both by name; where only the model before ties two, both names lead to its one."""
    old = {alias: before.tensors[name] for alias, name in before.expected.tied.items() if name in before.tensors}
    old = {name: source for name, source in old.items() if name in after.tensors} | dict(before.tensors)
    advice = "an average is of a model and the one that it was trained from"
    if odd := sorted(old.keys() ^ after.tensors.keys()):
        raise CheckpointError(
            f"{before.folder} and {after.folder} do not have the same tensors: only one has {odd[0]!r} ({len(odd)} such "
            f"names); {advice}"
        )
    for name, source in after.tensors.items():
        for model, one in ((before, old[name]), (after, source)):
            if one.needs_scale:
                raise CheckpointError(
                    f"{name!r} is {one.dtype} in {model.folder}, {WITHOUT_SCALE}; average the models in 16 or 32 bits"
                )
        if old[name].shape != source.shape:
            raise CheckpointError(
                f"{name!r} has shape {list(old[name].shape)} in {before.folder}, and {list(source.shape)} in {after.folder}; "
                f"{advice} (was the vocabulary resized?)"
            )
    return {name: (old[name], source) for name, source in after.tensors.items()}


def _averaged(
    name: str, before: TensorSource, after: TensorSource, ratio: float, slerp: Callable | None
) -> TensorSource:
    fault = before.fault or after.fault
    dtype = after.dtype if fault else torch.promote_types(before.dtype, after.dtype)
    return TensorSource(after.shape, dtype, partial(_fill, name, before, after, ratio, slerp), fault=fault)


def _fill(
    name: str, before: TensorSource, after: TensorSource, ratio: float, slerp: Callable | None, out: torch.Tensor
) -> None:
    if ratio in (0, 1):
        (before if ratio else after).fill(out)
    elif not out.dtype.is_floating_point:
        after.fill(out)
        if not torch.equal(before.read(), out):
            raise CheckpointError(
                f"{name!r} holds whole numbers that differ, which have no average; give a ratio of 0"
            )
    elif slerp:
        with _ONE_WHOLE:
            one, other = (_whole(source) for source in (before, after))
            out.copy_(slerp(torch.tensor([1 - ratio]), one[None], other[None])[0])
    else:
        # One lies there as a whole: in its file, in the place of the result, or else in memory. The other is read in parts.
        whole, parts = sorted((before, after), key=lambda it: it.pieces != () and 1 + (it.view() is None))
        exact = torch.promote_types(whole.dtype, out.dtype) == out.dtype
        with nullcontext() if exact or whole.view() is not None else _ONE_WHOLE:
            if exact and whole.view() is None:
                whole.fill(out)
            place = out if exact and whole.view() is None else _whole(whole)
            for part, beside, target in parts.beside(place, out):
                rows = max(1, _ELEMENTS // max(1, math.prod(part.shape[1:])))
                blocks = (torch.atleast_1d(tensor).split(rows) for tensor in (part, beside, target))
                for new, known, cell in zip(*blocks, strict=True):
                    pair = (new, known) if parts is before else (known, new)
                    cell.copy_(average_tensors(*pair, ratio))


def _whole(source: TensorSource) -> torch.Tensor:
    found = source.view()
    return source.read() if found is None else found


def _mergekit_slerp() -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]:
    try:
        from mergekit.merge_methods.slerp import slerp
    except ImportError as error:
        raise ValueError("method='slerp' needs mergekit (0.1.5 was tried): pip install mergekit") from error
    return slerp


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)

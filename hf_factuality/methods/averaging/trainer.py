"""Adaptive model averaging: how much of the model before alignment each block of layers keeps, learned from good answers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils.parametrize import register_parametrization
from transformers import AutoTokenizer
from trl import SFTTrainer
from trl.trainer.utils import create_model_from_path

from hf_factuality.checkpoints.adapters import ADAPTER_CONFIG
from hf_factuality.checkpoints.formats import hub_folder
from hf_factuality.checkpoints.merge import Model, read_model
from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.hub.cards.methods import METHODS, describe_method
from hf_factuality.io.markdown import code
from hf_factuality.methods.averaging.average import Ratios, average
from hf_factuality.methods.averaging.config import AdaptiveAveragingConfig
from hf_factuality.methods.averaging.formula import RatioMap, adaptive_ratios, average_tensors, ratio_penalty
from hf_factuality.trainers._data import FORMAT_COLUMNS
from hf_factuality.trainers.base import FactualityTrainer


_LOGITS, _FILE = "ratio_logits", "ratio_logits.safetensors"
_ELEMENTS = 2**24  # of a tensor that are averaged together, in float32


class AdaptiveAveragingTrainer(FactualityTrainer, SFTTrainer):
    """Learns the ratios by which a model is averaged with the one it was aligned from (AMA, arXiv 2309.06256).

    Differs from [`~trl.SFTTrainer`] in what is trained: K logits. Every forward pass is that of the averaged model, whose
    tensors are computed where they are used. Both models stay as they are. Unlike AMA's script, embeddings and norms are
    averaged too (`variant`), and the data are prompts with completions.

    Args:
        model (`str`):
            The aligned model: a folder or a name on the Hub (`id`, `id@revision`); an adapter with its base too.
        before_model (`str`):
            The model that it was aligned from, of the same tensors.
        args ([`AdaptiveAveragingConfig`], *optional*):
            Settings. `model_init_kwargs` load both models; what is trained is what is written if `dtype` is that of the files.
        train_dataset, eval_dataset, processing_class, **kwargs:
            As for the parent. Rows are `prompt` and `completion`, answers of high reward.

    Attributes:
        ratios ([`~hf_factuality.methods.averaging.average.Ratios`]): As they are now; their mean is `alpha`.

    Raises:
        `TypeError`: `args` is not an [`AdaptiveAveragingConfig`]; a model is not given by name.
        `ValueError`: a feature that cannot work with averages, or more blocks than layers.
        `CheckpointError`: a model cannot be read, or the two do not have the same tensors.
        `NonFiniteError`: during training, at a loss or gradient that is not finite.
    """

    _tag_names = ["trl", "sft", "adaptive-averaging", "hf_factuality"]
    _name, _config = "AdaptiveAveraging", AdaptiveAveragingConfig
    _written: tuple[Path, Ratios] | None = None
    _paper = METHODS["ama"].paper.of_trl

    def __init__(
        self,
        model, before_model, args=None, train_dataset=None, eval_dataset=None, processing_class=None, **kwargs
    ):  # fmt: skip
        for name, given in {"model": model, "before_model": before_model}.items():
            if not isinstance(given, (str, os.PathLike)):
                kind = type(given).__name__
                raise TypeError(f"{name} is a {kind}; pass a folder or a name on the Hub: files are what is averaged")
        args = self._checked_args(args, str(model))
        self._refuse_processor(processing_class)
        options = {"trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {}), "device_map": None}
        for name in ("peft_config", "quantization_config", "revision"):
            if kwargs.get(name) or options.get(name):
                advice = "pass 'id@revision'" if name == "revision" else "leave it out: only ratios are trained"
                raise ValueError(f"AdaptiveAveragingTrainer does not support {name}; {advice}")
        if args.deepspeed_plugin or args.fsdp or os.environ.get("ACCELERATE_USE_FSDP", "").lower() == "true":
            raise ValueError("AdaptiveAveragingTrainer does not support DeepSpeed and FSDP; launch it with DDP")
        self._folders = [hub_folder(name, weights=True) for name in (before_model, model)]
        if Path(args.output_dir).resolve() in [folder.resolve() for folder in self._folders]:
            raise ValueError(f"output_dir={args.output_dir!r} is one of the models; choose another folder")
        self._average = partial(average, *self._folders, trust_remote_code=args.trust_remote_code)
        self._average(Path(args.output_dir) / ".averaged", alpha=args.alpha, dry_run=True)  # raises if they differ
        before, after = (read_model(folder, trust_remote_code=args.trust_remote_code) for folder in self._folders)
        expected = after.expected
        self._map = RatioMap(expected.names, expected.linear, args.level, args.blocks, args.variant)
        self._weights = self._map.penalty_weights(expected.linear, args.penalty)
        if args.level == "block" and not self._weights.all():
            raise ValueError(f"variant={args.variant!r} leaves a block of this model without layers; choose 'paper'")
        policy, old = (_load(found, options) for found in (after, before))
        start = torch.full([len(self._map.keys)], args.alpha).logit(eps=0.01)
        members = {name: self._map.members[expected.tied.get(name, name)] for name in policy.state_dict()}
        ratios = partial(adaptive_ratios, alpha=args.alpha, epsilon=args.epsilon)
        _average_in_place(policy, old.state_dict(), members, start, ratios)
        if processing_class is None:
            # Of an adapter it may lie with the base.
            place = after.side.copied.get("tokenizer_config.json", self._folders[1] / "config.json").parent
            processing_class = AutoTokenizer.from_pretrained(place, trust_remote_code=args.trust_remote_code)
        args.model_init_kwargs = None
        policy.config._name_or_path = str(model) if os.path.isdir(model) else model.partition("@")[0]  # of the card
        self._reads_any = kwargs.get("formatting_func") is not None
        self._text_field = args.dataset_text_field
        data = {"train_dataset": train_dataset, "eval_dataset": eval_dataset, "processing_class": processing_class}
        super().__init__(policy, args, **data, **kwargs)

    @property
    def _misread(self):
        # The parent ends the text column instead of the completion, and takes labels for those of tokens.
        return FORMAT_COLUMNS | {"conversations", "labels", "completion_mask", "assistant_masks", self._text_field}

    def _text_columns(self, columns):
        if self._reads_any or "input_ids" in columns:
            return None  # read by a function of the user's, or tokenized
        if "prompt" in columns:
            return ("prompt", "completion")
        return next(((name,) for name in ("messages", "conversations") if name in columns), (self._text_field,))

    _reads_images = True

    def _check_columns(self, dataset, columns, name):
        super()._check_columns(dataset, columns, name)
        if missing := set(self._text_columns(columns) or ()).difference(columns):
            raise DataError(f"the {name} dataset has no column {min(missing)!r}, only {sorted(columns)}; add it")

    @property
    def _logits(self) -> nn.Parameter:
        return getattr(self.accelerator.unwrap_model(self.model), _LOGITS)

    def _ratios(self) -> torch.Tensor:
        return adaptive_ratios(self._logits.double(), self.args.alpha, self.args.epsilon)

    @property
    def ratios(self) -> Ratios:
        args, found = self.args, dict(zip(self._map.keys, self._ratios().tolist(), strict=True))
        return Ratios(found, args.alpha, args.level, args.blocks, args.variant)

    def _penalty(self) -> torch.Tensor:
        return ratio_penalty(self._ratios(), self.args.alpha, self._weights.to(self._logits.device))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        output = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not self.model.training:
            return output
        loss, *outputs = output if return_outputs else (output,)
        # With `num_items_in_batch` the parent's losses of all micro-batches are summed.
        steps = 1 if num_items_in_batch is None else self.current_gradient_accumulation_steps
        loss = loss + (self.args.penalty_coef * self._penalty() / steps).to(loss.dtype)
        return (loss, *outputs) if return_outputs else loss

    def log(self, logs, start_time=None):
        if self.model.training:
            found = {f"ratios/{key}": value for key, value in self.ratios.ratios.items()}
            penalty = self.args.penalty_coef * self._penalty().item()
            logs |= {**found, "ratios/mean": fmean(found.values()), "ratios/penalty": penalty}
        super().log(logs, start_time)

    # Saving
    def _save(self, output_dir=None, state_dict=None):
        if not self.args.should_save:
            return
        folder, ratios = Path(output_dir or self.args.output_dir), self.ratios
        folder.mkdir(parents=True, exist_ok=True)
        if self._saving:
            ratios.save(folder)
            save_file({_LOGITS: self._logits.detach().cpu()}, folder / _FILE)
        elif self._written != (folder, ratios):  # a push saves again
            ratios.save(folder)  # first: the average can be made of it by the command
            new = folder / ".averaged"
            shutil.rmtree(new, ignore_errors=True)  # of a process that was killed
            self._average(new, ratios=ratios)
            # Nothing loads the folder until it is whole.
            for stale in (folder / "config.json", *folder.glob("model*.safetensors*")):
                stale.unlink(missing_ok=True)
            for path in sorted(filter(Path.is_file, new.rglob("*")), key=lambda it: it.name == "config.json"):
                (folder / path.relative_to(new)).parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, folder / path.relative_to(new))
            shutil.rmtree(new)
            self.processing_class.save_pretrained(folder)
            self._written = (folder, ratios)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        found, own = (replace(it, ratios={}) for it in (Ratios.load(resume_from_checkpoint), self.ratios))
        if found != own:
            raise CheckpointError(
                f"{resume_from_checkpoint} is of {found}, and not of {own}; set it so, or start anew"
            )
        with torch.no_grad():
            self._logits.copy_(load_file(Path(resume_from_checkpoint) / _FILE)[_LOGITS])

    def _load_best_model(self):
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _card(self):
        args, ratios, method = self.args, self.ratios.ratios.values(), describe_method(["ama"], "averaging")
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios) if len(ratios) <= 12 else f"{len(ratios)} ratios"
        return {
            "method": replace(method, title=f"{method.title} with {code(self._folders[0].name)}"),
            "verifier": "the one that chose the answers",
            "objective": f"ratios of mean {args.alpha:g} by {args.level} ({args.variant}): {shown}; loss of high-reward answers, "
            f"{args.penalty} penalty",
            "named": ("alpha", "level", "variant", "penalty"),
        }


def _load(found: Model, options: Mapping[str, Any]) -> nn.Module:
    """The model of a folder; an adapter is merged into its base as `average` merges it."""
    if found.expected.settings:
        raise ValueError(
            f"{found.folder} is an adapter that changes the vocabulary, or whether embeddings are tied; make a model of it with "
            "hf-factuality merge first"
        )
    model = create_model_from_path(str(found.side.config), **options)
    if (found.folder / ADAPTER_CONFIG).is_file():
        state = model.state_dict()
        for name, source in found.tensors.items():
            state[name].copy_(source.read())
    return model


def _average_in_place(
    model: nn.Module,
    before: Mapping[str, torch.Tensor],
    members: Mapping[str, tuple[int, ...]],
    start: torch.Tensor,
    ratios: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    """Make all tensors of a model averages, which are computed at every access, of its own frozen ones and those `before`."""
    model.requires_grad_(False)
    model.register_parameter(_LOGITS, nn.Parameter(start.float()))

    def ratio(at: tuple[int, ...]) -> torch.Tensor:
        found = ratios(getattr(model, _LOGITS).double())  # so that what is written is the same to the last bit
        return torch.stack([found[place] for place in at]).mean()

    for name, at in members.items():
        parent, _, key = name.rpartition(".")
        tensor = getattr(model.get_submodule(parent), key)
        if not at:
            tensor.data = before[name]
        elif tensor.is_floating_point():
            mixed = _Averaged(before[name], partial(ratio, at))
            register_parametrization(model.get_submodule(parent), key, mixed, unsafe=True)


class _Averaged(nn.Module):
    def __init__(self, before: torch.Tensor, ratio: Callable[[], torch.Tensor]):
        super().__init__()
        self.before = nn.Parameter(before, requires_grad=False)  # no buffer, which DDP would send before every pass
        self.ratio = ratio

    def forward(self, after: torch.Tensor) -> torch.Tensor:
        return _Average.apply(self.ratio(), self.before, after)


class _Average(torch.autograd.Function):
    """The average in the dtype of `after`; it has one gradient, of the ratio."""

    @staticmethod
    def forward(ctx, ratio, before, after):
        ctx.save_for_backward(before, after)
        found = torch.empty_like(after)
        for old, new, place in _parts(before, after, found):
            place.copy_(average_tensors(old, new, ratio))
        return found

    @staticmethod
    def backward(ctx, gradient):
        wide, total = torch.promote_types(gradient.dtype, torch.float32), 0.0
        for part in _parts(gradient, *ctx.saved_tensors):
            towards, old, new = (tensor.to(wide) for tensor in part)
            total = total + (towards * (old - new)).sum(dtype=torch.float64)
        return total, None, None


def _parts(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """The same rows of several tensors together, so that little of them is held in float32."""
    rows = max(1, _ELEMENTS // max(1, tensors[0][0].numel() if tensors[0].dim() else 1))
    return zip(*(torch.atleast_1d(tensor).split(rows) for tensor in tensors), strict=True)

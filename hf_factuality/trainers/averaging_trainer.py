"""Adaptive model averaging: ratios of two models, learned on high-reward answers, with both models frozen."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils import parametrize
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import SFTTrainer

from hf_factuality.checkpoints.average import RATIOS, Ratios, average
from hf_factuality.checkpoints.model import linear_names
from hf_factuality.functional.averaging import RatioMap, adaptive_ratios, average_tensors, ratio_penalty
from hf_factuality.io.files import sync
from hf_factuality.trainers._base import FactualityTrainer
from hf_factuality.trainers.averaging_config import AdaptiveAveragingConfig


LOGITS = "averaging_logits.safetensors"


class AdaptiveAveragingTrainer(FactualityTrainer, SFTTrainer):
    """Learns with which ratio each block of an aligned model is averaged with the model before alignment (AMA).

    Differs from [`~trl.SFTTrainer`] in what is trained: K ratios with a fixed mean, by the loss of the completions plus a penalty
    ([arXiv 2309.06256](https://huggingface.co/papers/2309.06256)); both models stay as they are. Each pass runs with
    `ratio * before + (1 - ratio) * after` in place of every weight, embeddings and norms among them. A process holds both models
    whole, and of their averages what its gradients need: with gradient checkpointing a layer's, without it all of them.

    Checkpoints hold the logits of the ratios alone. `save_model` writes `ratios.json` and the averaged model, out of the files of the
    two ([`~hf_factuality.checkpoints.average.average`]).

    Args:
        model (`str`):
            The aligned model: a folder, or a name on the Hub. It may be a PEFT adapter.
        before_model (`str`):
            The model before alignment.
        args ([`AdaptiveAveragingConfig`], *optional*):
            Settings. `model_init_kwargs` are those of both models.
        train_dataset (`Dataset`):
            High-reward answers, as the parent reads them: `prompt` and `completion`, for example.
        eval_dataset, processing_class, **kwargs:
            As for the parent.

    Attributes:
        ratios ([`~hf_factuality.checkpoints.average.Ratios`]): As they are now.

    Raises:
        `TypeError`: `args` is not an [`AdaptiveAveragingConfig`], or a model is not given by its name.
        `ValueError`: the models are not of one architecture, are quantised, or have fewer layers than blocks; an adapter to be
            trained; ZeRO-3 or FSDP.
        `NonFiniteError`: during training, at a loss or gradient that is not finite.
    """

    _tag_names = ["trl", "ama", "model-averaging", "hf_factuality"]
    _name = "AdaptiveAveraging"
    _config = AdaptiveAveragingConfig
    _paper = {"title": "Mitigating the Alignment Tax of RLHF", "id": "2309.06256"}

    def __init__(
        self,
        model: str,
        before_model: str,
        args: AdaptiveAveragingConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        **kwargs,
    ):
        for name, given in (("model", model), ("before_model", before_model)):
            if not isinstance(given, (str, os.PathLike)):
                raise TypeError(
                    f"{name} must be a folder or a name on the Hub, not a {type(given).__name__}: the average is written from files"
                )
        if kwargs.get("peft_config") is not None:
            raise ValueError("peft_config: only ratios are trained here; leave it out")
        if is_deepspeed_zero3_enabled():
            raise ValueError(
                "ZeRO-3 would shard both models apart; use plain data parallelism, or DeepSpeed's stage 2"
            )
        args = self._checked_args(args, str(model))
        known = {"dtype": torch.float32, "trust_remote_code": args.trust_remote_code, **(args.model_init_kwargs or {})}
        self._sources = (str(before_model), str(model))
        before, after = (_load(name, known) for name in self._sources)
        if processing_class is None:
            processing_class = AutoTokenizer.from_pretrained(model, trust_remote_code=args.trust_remote_code)
        linear = linear_names(after)
        self._map = RatioMap(dict(after.named_parameters()), linear, args.level, args.blocks, args.variant)
        weights = self._map.penalty_weights(linear, args.penalty)
        self._averaging = _Averaging(len(self._map.keys), args.alpha, args.epsilon, weights)
        _average_in_place(before, after, self._averaging, self._map)
        args.model_init_kwargs, kept = None, args.model_init_kwargs  # the parent would warn of them
        super().__init__(after, args, None, train_dataset, eval_dataset, processing_class, **kwargs)
        self.args.model_init_kwargs = kept
        self._refuse_processor(self.processing_class)
        if self.is_fsdp_enabled:
            raise ValueError("FSDP would shard both models apart; use plain data parallelism")

    @property
    def ratios(self) -> Ratios:
        """As they are now; their mean is `args.alpha`."""
        args, values = self.args, self._averaging.ratios(torch.float64).tolist()
        return Ratios(
            dict(zip(self._map.keys, values, strict=True)), args.alpha, args.level, args.blocks, args.variant
        )

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        found = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not self.model.training:
            return found
        ratios, args = self._averaging.ratios(), self.args
        penalty = args.penalty_coef * ratio_penalty(ratios, args.alpha, self._averaging.weights)
        metrics = self._metrics["train"]
        for key, value in zip(self._map.keys, ratios.tolist(), strict=True):
            metrics[f"ratios/{key}"].append(value)
        metrics["ratios/penalty"].append(penalty.item())
        # The loss of the completions is divided among the micro-batches of a step already.
        penalty = penalty / (1 if num_items_in_batch is None else self.current_gradient_accumulation_steps)
        return (found[0] + penalty, found[1]) if return_outputs else found + penalty

    # Saving: the logits in a checkpoint, the average at the end.
    def _save(self, output_dir=None, state_dict=None):
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        save_file({"logits": self._averaging.logits.detach().cpu().contiguous()}, folder / LOGITS)
        ratios = self.ratios
        if self._saving:
            ratios.save(folder)
            return
        if _is_written(folder, ratios):
            return
        (folder / "config.json").unlink(missing_ok=True)  # nothing loads the folder until it is whole
        for old in folder.glob("model*.safetensors*"):
            old.unlink()
        with tempfile.TemporaryDirectory(prefix=".average-", dir=folder) as scratch:
            out = Path(scratch) / "model"
            average(*self._sources, out, ratios=ratios, trust_remote_code=self.args.trust_remote_code)
            for path in sorted(out.iterdir(), key=lambda it: it.name == "config.json"):
                shutil.move(path, folder / path.name)
        self.processing_class.save_pretrained(folder)
        sync(folder)

    def _load_from_checkpoint(self, resume_from_checkpoint, model=None):
        state = load_file(Path(resume_from_checkpoint) / LOGITS)
        with torch.no_grad():
            self._averaging.logits.copy_(state["logits"])

    def _load_best_model(self):
        self._load_from_checkpoint(self.state.best_model_checkpoint)

    def _card(self):
        args, ratios = self.args, self.ratios.ratios
        shown = (
            ", ".join(f"{value:.3f}" for value in ratios.values()) if len(ratios) <= 12 else f"{len(ratios)} ratios"
        )
        return {
            "method": "Adaptive model averaging (AMA)",
            "verifier": "the one that chose the answers",
            "objective": f"ratios of mean {args.alpha:g} by {args.level} ({args.variant}): {shown}; loss of high-reward answers, "
            f"{args.penalty} penalty of {args.penalty_coef:g}",
        }


class _Averaging(torch.nn.Module):
    """The logits of the ratios, float32 whatever the models are."""

    def __init__(self, count: int, alpha: float, epsilon: float, weights: torch.Tensor):
        super().__init__()
        start = min(max(alpha, 0.01), 0.99)
        self.logits = torch.nn.Parameter(torch.full((count,), math.log(start / (1 - start))))
        self.alpha, self.epsilon = alpha, epsilon
        self.register_buffer("weights", weights, persistent=False)

    def ratios(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return adaptive_ratios(self.logits.to(dtype), self.alpha, self.epsilon)


class _Average(torch.nn.Module):
    """Stands for a weight: its average with the one before, by the mean of some ratios (by 1, of none)."""

    def __init__(self, before: torch.nn.Parameter, averaging: _Averaging, members: tuple[int, ...]):
        super().__init__()
        self.before, self.members = before, list(members)
        object.__setattr__(self, "averaging", averaging)  # a part of the model itself

    def forward(self, after: torch.Tensor) -> torch.Tensor:
        if not self.members:
            return self.before.to(after.dtype)
        ratio = self.averaging.ratios()[self.members].mean()
        return _Mix.apply(ratio, self.before, after)


class _Mix(torch.autograd.Function):
    """`average_tensors` that keeps nothing for its gradient but the two weights."""

    @staticmethod
    def forward(ctx, ratio, before, after):
        ctx.save_for_backward(before, after)
        return average_tensors(before, after, ratio).to(after.dtype)

    @staticmethod
    def backward(ctx, gradient):
        before, after = (tensor.to(torch.promote_types(tensor.dtype, torch.float32)) for tensor in ctx.saved_tensors)
        return (gradient.to(before.dtype) * (before - after)).sum().float(), None, None


def _load(name: str, known: dict[str, Any]) -> torch.nn.Module:
    if os.path.isfile(os.path.join(name, "adapter_config.json")):
        from peft import AutoPeftModelForCausalLM

        return AutoPeftModelForCausalLM.from_pretrained(name, **known).merge_and_unload()
    model = AutoModelForCausalLM.from_pretrained(name, **known)
    if getattr(model, "is_quantized", False):
        raise ValueError(f"{name} is quantised; average the models in 16 or 32 bits, and quantise the result")
    return model


def _average_in_place(before: torch.nn.Module, after: torch.nn.Module, averaging: _Averaging, found: RatioMap) -> None:
    old, new = dict(before.named_parameters()), dict(after.named_parameters())
    tied = before.get_output_embeddings()
    if tied is not None and "lm_head.weight" in new:
        old.setdefault("lm_head.weight", tied.weight)
    wrong = sorted(
        name
        for name in old.keys() | new.keys()
        if name not in old or name not in new or old[name].shape != new[name].shape
    )
    if wrong:
        raise ValueError(
            f"the two models are not of one architecture: {wrong[0]!r} differs in name or shape ({len(wrong)} such names); "
            "before_model is the model that the other was trained from"
        )
    places = {id(parameter): name for name, parameter in new.items()}
    for module in list(after.modules()):
        for name, parameter in list(module.named_parameters(recurse=False)):
            whole = places[id(parameter)]  # of a tied weight its first name, whose ratio it has
            old[whole].requires_grad_(False)
            parameter.requires_grad_(False)
            part = _Average(old[whole], averaging, found.members[whole])
            parametrize.register_parametrization(module, name, part, unsafe=True)
    after.averaging = averaging


def _is_written(folder: Path, ratios: Ratios) -> bool:
    try:
        return (folder / "config.json").exists() and (folder / RATIOS).read_bytes() == ratios.to_bytes()
    except OSError:
        return False

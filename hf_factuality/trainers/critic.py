"""The critic of actor-critic training: a value per token, from a backbone of its own or from the policy's."""

from __future__ import annotations

import functools
import math
import os
import pickle
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import AutoModelForTokenClassification, PreTrainedModel

from hf_factuality.errors import CheckpointError
from hf_factuality.trainers._layers import decoder_layers
from hf_factuality.verifiers.judges.pairs import outside_zero3


CRITIC_FOLDER = "critic"
"""Folder inside a checkpoint, beside the policy's files."""
_HEAD_FILE, _OPTIMIZER_FILE = "value_head.pt", "critic_optimizer.pt"
_WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


class Critic(nn.Module):
    """What both kinds share: an optimizer of their own, gradients averaged over processes, files of their own.

    A critic is never a part of the policy's module, so none of its names reaches the policy's files, its optimizer or a
    generation server. It stands whole on every process, unless it is split ([`BackboneCritic.shard`]).
    """

    reads_policy: bool
    """Whether it needs a pass of the policy, inside [`Critic.watch`], before its values."""
    optimizer: torch.optim.Optimizer
    sharded = False

    def prepare(self, learning_rate: float, betas: tuple[float, float], eps: float, weight_decay: float) -> None:
        """Make the optimizer (AdamW), over the parameters that are there now; the schedule is the policy's."""
        self.learning_rate = learning_rate
        self.optimizer = torch.optim.AdamW(
            self.parameters(), lr=learning_rate, betas=betas, eps=eps, weight_decay=weight_decay
        )

    def step(self, accelerator: Any, max_grad_norm: float, schedule: float) -> float:
        """One step on the gradients of all processes, which are then dropped; none if their norm is not finite.

        The learning rate is its peak times `schedule`; a `max_grad_norm` of 0 clips nothing. Returns the norm of the
        gradients before it was clipped.
        """
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        if accelerator.num_processes > 1 and not self.sharded:
            for gradient in gradients:
                gradient.copy_(accelerator.reduce(gradient, reduction="mean"))
        limit = max_grad_norm if max_grad_norm > 0 else torch.inf
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), limit)
        norm = (norm.full_tensor() if self.sharded else norm).item()
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * schedule
        if math.isfinite(norm):
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return norm

    def save_optimizer(self, folder: str | os.PathLike[str], writes: bool = True) -> None:
        """Every process calls it if the critic is split; one of them `writes`."""
        state = get_optimizer_state_dict(self, self.optimizer, options=_WHOLE) if writes or self.sharded else None
        if writes:
            path = Path(folder) / CRITIC_FOLDER
            path.mkdir(parents=True, exist_ok=True)
            torch.save(state, path / _OPTIMIZER_FILE)

    def load(self, folder: str | os.PathLike[str]) -> None:
        """Weights and, if it is there, the state of the optimizer from a checkpoint; else `CheckpointError`."""
        path = Path(folder) / CRITIC_FOLDER
        try:
            self._load_weights(path)
            if (path / _OPTIMIZER_FILE).is_file():
                state = torch.load(path / _OPTIMIZER_FILE, map_location="cpu", weights_only=True)
                set_optimizer_state_dict(self, self.optimizer, state, options=_WHOLE)
        except (OSError, RuntimeError, ValueError, KeyError, EOFError, pickle.UnpicklingError) as error:
            raise CheckpointError(
                f"{path} holds no critic for this run ({error}); resume with its own critic_model"
            ) from error

    @contextmanager
    def watch(self):
        """A context for a pass of the policy and the values that are read from it."""
        yield


class BackboneCritic(Critic):
    """A model with one number per token (`AutoModelForTokenClassification`), independent of the policy.

    Its head starts at 0: the first values say nothing instead of something random.
    """

    reads_policy = False

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, count: int) -> torch.Tensor:
        """Values (B, T), float32, of the states in which the last `count` (T) of L tokens were chosen; inputs (B, L)."""
        logits = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        return logits[:, -count - 1 : -1, 0].float()

    def shard(self, device: torch.device, half: bool) -> None:
        """Split the model over the processes, a layer at a time, by torch's `fully_shard`, whatever splits the policy.

        What the first process holds is taken: the others may have loaded nothing. Weights are float32, as those that DeepSpeed
        learns are: steps of a learning rate of 1e-5 are lost in bfloat16. `half`: compute in bfloat16.
        """
        self.model.float()
        first = torch.distributed.get_rank() == 0
        whole = {name: tensor.clone() for name, tensor in self.model.state_dict().items()} if first else {}
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if half else None)
        for layer in decoder_layers(self.model):
            fully_shard(layer, mp_policy=policy)
        fully_shard(self.model, mp_policy=policy)
        set_model_state_dict(
            self.model.to(device), whole, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        )
        self.sharded = True

    def save(self, folder: str | os.PathLike[str], writes: bool = True) -> None:
        """As `from_pretrained` loads it. Every process calls it if the critic is split; one of them `writes`."""
        state = get_model_state_dict(self.model, options=_WHOLE) if self.sharded else None
        if writes:
            self.model.save_pretrained(Path(folder) / CRITIC_FOLDER, state_dict=state)

    def _load_weights(self, path: Path) -> None:
        if not (path / "config.json").is_file():
            raise OSError("there is no config.json")
        with outside_zero3():
            found, report = AutoModelForTokenClassification.from_pretrained(
                path, num_labels=1, dtype=self.model.dtype, output_loading_info=True
            )
        if report["missing_keys"]:
            raise ValueError(f"there are no weights for {sorted(report['missing_keys'])[:3]}")
        set_model_state_dict(self.model, found.state_dict(), options=_WHOLE)


class ValueHead(Critic):
    """One linear layer on the policy's last hidden states: little memory, and the value loss also shapes the policy.

    The policy, without adapters, gets no reference to the layer but a `forward` of its backbone that keeps what comes out,
    and does nothing else outside [`Critic.watch`].
    """

    reads_policy = True

    def __init__(self, policy: PreTrainedModel):
        super().__init__()
        # Not made random: the random state of the run stays as it is with a critic of another kind.
        self.head = nn.utils.skip_init(nn.Linear, policy.config.get_text_config().hidden_size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.hidden: torch.Tensor | None = None
        self._watching = False
        self._wrap(policy.base_model)

    def _wrap(self, backbone: PreTrainedModel) -> None:
        # Not a hook: `torch.compile` does not look whether there are any, and takes what it compiled for an earlier model of
        # this kind without them. That a `forward` is the module's own it does see.
        forward = backbone.forward

        @functools.wraps(type(backbone).forward)
        def keeping(module, *args, **kwargs):
            output = forward(*args, **kwargs)
            if self._watching:
                self.hidden = output.last_hidden_state
            return output

        backbone.forward = types.MethodType(keeping, backbone)

    @contextmanager
    def watch(self):
        self._watching, self.hidden = True, None
        try:
            yield
        finally:
            self._watching, self.hidden = False, None

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, count: int) -> torch.Tensor:
        """As [`BackboneCritic.forward`], from the hidden states of the policy's last pass over the same inputs."""
        return self.head(self.hidden[:, -count - 1 : -1].to(self.head.weight)).squeeze(-1)

    def save(self, folder: str | os.PathLike[str], writes: bool = True) -> None:
        if writes:
            path = Path(folder) / CRITIC_FOLDER
            path.mkdir(parents=True, exist_ok=True)
            torch.save({name: tensor.cpu() for name, tensor in self.state_dict().items()}, path / _HEAD_FILE)

    def _load_weights(self, path: Path) -> None:
        self.load_state_dict(torch.load(path / _HEAD_FILE, map_location="cpu", weights_only=True))


def make_critic(
    source: str, policy: PreTrainedModel, trust_remote_code: bool = False, gradient_checkpointing: bool = False
) -> Critic:
    """The critic of a run, for a policy without adapters, whose configuration, weights and dtype it may take.

    `source` is `"policy"`: a backbone of its own, with the policy's weights; `"value_head"`: a layer on the policy; else a
    model's name or folder, read as a token classifier of one label: a reward model or an earlier critic. `ValueError`: the
    policy's architecture has no token classifier, or its weights are quantized. `CheckpointError`: `source` cannot be loaded,
    or its vocabulary is not the policy's.
    """
    if source == "value_head":
        return ValueHead(policy)
    # The random state of the run is not touched: it would be another run than one with a value head.
    with torch.random.fork_rng(devices=list(range(torch.cuda.device_count()))), outside_zero3():
        model = _from_policy(policy) if source == "policy" else _from_source(source, policy, trust_remote_code)
    for module in model.modules():
        # Attention drops out by a number of its own.
        for name in [name for name, value in vars(module).items() if "dropout" in name and isinstance(value, float)]:
            setattr(module, name, 0.0)
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    if gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return BackboneCritic(model.train())


def _from_policy(policy: PreTrainedModel) -> PreTrainedModel:
    labels = {"id2label": {0: "value"}, "label2id": {"value": 0}}
    config = type(policy.config).from_dict({**policy.config.to_dict(), **labels})
    try:
        model = AutoModelForTokenClassification.from_config(config, dtype=policy.dtype)
    except ValueError as error:
        raise ValueError(
            f"transformers has no token classifier for {type(config).__name__}; set critic_model='value_head'"
        ) from error
    backbone = model.base_model
    wanted = backbone.state_dict()
    # Adapters stand between the names of a layer and its weight, and add names of their own.
    plain = {
        name.replace(".base_layer.", ".").replace(".original_module.", "."): tensor
        for name, tensor in _whole_weights(policy.base_model)
    }
    try:
        backbone.load_state_dict({name: plain[name] for name in wanted})
    except (KeyError, RuntimeError) as error:
        raise ValueError(
            f"the policy's weights do not fit a critic ({error!s:.200}); set critic_model='value_head'"
        ) from error
    _zero_head(model)
    return model


def _whole_weights(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and weights; those that ZeRO-3 has split are gathered, one at a time, on the CPU."""
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not hasattr(tensor, "ds_id"):
            yield name, tensor.detach()
            continue
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([tensor]):
            gathered = tensor.detach().cpu().clone()
        yield name, gathered


def _from_source(source: str, policy: PreTrainedModel, trust_remote_code: bool) -> PreTrainedModel:
    try:
        model, report = AutoModelForTokenClassification.from_pretrained(
            source, num_labels=1, dtype=policy.dtype, trust_remote_code=trust_remote_code, output_loading_info=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"critic_model={source!r} cannot be loaded as a critic: {error}") from error
    own, expected = (m.config.get_text_config().vocab_size for m in (model, policy))
    if own != expected:
        raise CheckpointError(
            f"critic_model={source!r} has a vocabulary of {own}, the policy {expected}; take one of the same tokenizer"
        )
    inside = {name for name in report["missing_keys"] if name.startswith(f"{model.base_model_prefix}.")}
    if inside:
        raise CheckpointError(f"critic_model={source!r} holds no weights for {sorted(inside)[:3]}")
    if any(name.endswith(".weight") for name in report["missing_keys"]):  # a language model, which has no such head
        _zero_head(model)
    return model


def _zero_head(model: PreTrainedModel) -> None:
    # Backbones have layers of one output too: the gates of shared experts.
    inside = set(model.base_model.modules())
    *_, head = (module for module in model.modules() if isinstance(module, nn.Linear) and module not in inside)
    nn.init.zeros_(head.weight)
    if head.bias is not None:
        nn.init.zeros_(head.bias)

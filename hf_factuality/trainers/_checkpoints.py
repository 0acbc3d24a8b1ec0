"""Checkpoints that are whole or absent, and a resume that takes the last whole one and goes on to the last bit."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
from enum import Enum
from itertools import chain
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import safe_open
from transformers import TrainerCallback
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.trainer_utils import SaveStrategy, sort_checkpoints

from hf_factuality.checkpoints.adapters import ADAPTER_CONFIG
from hf_factuality.errors import CheckpointError
from hf_factuality.io.files import sync
from hf_factuality.io.manifest import MANIFEST, find_damage, read_manifest, write_manifest
from hf_factuality.io.signals import on_signals


logger = logging.getLogger(__name__)

_SAVING = "_saving"
_REFERENCE = "reference.pt"
_SETTINGS = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "steps_per_generation", "num_generations"),
    *("num_iterations", "beta", "loss_type", "use_vllm", "sync_ref_model", "seed", "data_seed"),
)
"""Settings that decide which rows make a step, and what a batch holds."""
_ADAPTER = (
    *(
        "peft_type",
        "r",
        "rank_pattern",
        "lora_alpha",
        "alpha_pattern",
        "use_rslora",
        "use_dora",
        "bias",
        "target_modules",
    ),
    *("exclude_modules", "layers_to_transform", "modules_to_save", "target_parameters", "trainable_token_indices"),
    "init_lora_weights",  # of PiSSA, OLoRA and others, it changes the model that the adapter is added to
)
"""What decides which tensors an adapter has, and what they do."""


class _EndsOnSignal(TrainerCallback):
    """Ends a run with a checkpoint after the step in which any of its processes was asked to."""

    def __init__(self, accelerator):
        self.accelerator, self.asked, self.ended = accelerator, False, False

    def ask(self, number: int) -> None:
        self.asked = True

    def on_step_end(self, args, state, control, **kwargs):
        asked = torch.tensor(float(self.asked), device=self.accelerator.device)
        if self.accelerator.reduce(asked, reduction="sum").item():
            self.ended = control.should_save = control.should_training_stop = True


class WholeCheckpoints:
    """Writes a checkpoint under another name, gives it a manifest, and renames it once it is complete.

    A run that is resumed checks every file first. With `True` it takes the last checkpoint that is whole and says which
    it passed over, with `"auto"` too, or starts anew if there is none yet; one that was asked for by name is refused if it is
    not whole. Checkpoints without a manifest, of TRL's own trainers, are taken with a warning if nothing is missing. A
    reference model that follows the policy (`sync_ref_model`) is saved and restored, and so is the number of tokens that some
    parents count beside their state (`num_tokens`). A checkpoint of another adapter is not resumed. SIGTERM ends a run that saves after its
    step, with a checkpoint and the exit status 143.
    """

    _saving = False

    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        args = self.args
        saves = args.save_strategy != SaveStrategy.NO and not args.save_only_model
        if args.sync_ref_model and saves and (is_deepspeed_zero3_enabled() or self.is_fsdp_enabled):
            raise ValueError("sync_ref_model=True under ZeRO-3 or FSDP cannot be resumed; set save_only_model=True")
        if resume_from_checkpoint:
            resume_from_checkpoint = self._find_checkpoint(resume_from_checkpoint)
        ending = _EndsOnSignal(self.accelerator)
        self.add_callback(ending)
        with on_signals(("SIGTERM",) if saves else (), ending.ask):
            output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        self.remove_callback(ending)
        if ending.ended:
            logger.warning("ended by SIGTERM after step %d, with a checkpoint", self.state.global_step)
            raise SystemExit(128 + signal.SIGTERM)
        return output

    def _run_epoch(self, *args, **kwargs):
        if self.state.global_step < self.state.max_steps:
            super()._run_epoch(*args, **kwargs)
        else:  # it was resumed at its end, and the parent would train a step more
            self.control.should_training_stop = True

    # Saving
    def _get_output_dir(self, trial):
        folder = super()._get_output_dir(trial)
        return os.path.join(folder, _SAVING) if self._saving else folder

    def _push_from_checkpoint(self, checkpoint_folder):
        if not self._saving:  # else once it has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model, trial):
        args, state = self.args, self.state
        run = Path(self._get_output_dir(trial))
        staging, final = run / _SAVING, run / f"checkpoint-{state.global_step}"
        if args.should_save:
            _remove(staging)  # of a save that was killed
        self.accelerator.wait_for_everyone()
        self._saving = True
        try:
            super()._save_checkpoint(model, trial)
            self._saving = False
            # The parent has looked for the best one among those that are being saved.
            best = run / f"checkpoint-{state.best_global_step}"
            if state.best_global_step and (best == final or best.is_dir()):
                state.best_model_checkpoint = str(best)
            self.accelerator.wait_for_everyone()
            if args.should_save:
                self._complete(staging / final.name, final)
        except BaseException as error:
            if args.should_save:
                free = shutil.disk_usage(run).free / 1e6
                shutil.rmtree(staging, ignore_errors=True)
                error.add_note(f"{final} was not saved, with {free:,.0f} MB free; earlier checkpoints stay")
            raise
        finally:
            self._saving = False
        self.accelerator.wait_for_everyone()
        if args.push_to_hub:
            self._push_from_checkpoint(str(final))
        if args.should_save and (args.save_total_limit or 0) > 0:
            # Not the parent's: it may take a damaged one of a higher number for the latest, and delete this one.
            kept = {final, Path(state.best_model_checkpoint or final)}
            others = [path for path in map(Path, sort_checkpoints(str(run), use_mtime=True)) if path not in kept]
            for path in others[: max(0, len(others) + len(kept) - args.save_total_limit)]:
                shutil.rmtree(path, ignore_errors=True)

    def _complete(self, folder: Path, final: Path) -> None:
        self.state.save_to_json(str(folder / "trainer_state.json"))  # with the name of the best one
        about = {"trainer": self._kind, "resumable": not self.args.save_only_model, "settings": self._batch_settings()}
        if hasattr(self, "_total_train_tokens"):
            about["num_tokens"] = self._total_train_tokens
        write_manifest(folder, about)
        if os.path.lexists(final):
            os.replace(final, folder.parent / "replaced")
        os.replace(folder, final)
        sync(final.parent)
        _remove(folder.parent)

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        if self.args.sync_ref_model and self.args.should_save:
            torch.save(self.accelerator.unwrap_model(self.ref_model).state_dict(), Path(output_dir) / _REFERENCE)

    # Resuming
    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        manifest = None if checkpoint is None else read_manifest(Path(checkpoint))
        if manifest and "num_tokens" in manifest:
            self._total_train_tokens = manifest["num_tokens"]
        if checkpoint is not None and self.args.sync_ref_model:
            state = torch.load(Path(checkpoint) / _REFERENCE, map_location="cpu", weights_only=True)
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(state)

    def _load_best_model(self):
        best = Path(self.state.best_model_checkpoint)
        if (manifest := read_manifest(best)) and (damage := find_damage(best, manifest)):
            raise CheckpointError(f"the best checkpoint, {best}, cannot be loaded: {damage}")
        super()._load_best_model()

    def _find_checkpoint(self, asked: str | os.PathLike[str] | bool) -> str | bool | None:
        """The folder to resume from. If there is none: `True`, which the parent refuses, or `None` for `"auto"`."""
        latest = str(asked).lower() in ("true", "auto")  # from a command line, too
        folders = [asked]
        if latest:
            run = Path(self.args.output_dir)
            found = {int(path.name[11:]): str(path) for path in run.glob("checkpoint-*") if path.name[11:].isdecimal()}
            folders = broadcast_object_list([[path for _, path in sorted(found.items(), reverse=True)]])[0]
        for folder in map(Path, folders):
            # Each node reads its own disk.
            own = self._why_not(folder) if self.args.local_process_index == 0 else None
            reason = next(filter(None, gather_object([own])), None)
            if reason is None:
                if (changed := self._changed_settings(folder)) and self.args.should_save:
                    logger.warning("resuming from %s: %s", folder, changed)
                return str(folder)
            if not latest:
                raise CheckpointError(f"{folder} cannot be resumed: {reason}")
            if self.args.should_save:
                logger.warning("%s is passed over: %s", folder, reason)
        if folders:
            raise CheckpointError(f"no checkpoint in {run} can be resumed; {folder}: {reason}")
        return None if str(asked).lower() == "auto" else True

    def _why_not(self, folder: Path) -> str | None:
        if not folder.is_dir():
            return "there is no such folder"
        try:
            manifest = read_manifest(folder)
        except CheckpointError as error:
            return str(error)
        if manifest is None:
            return self._find_gap(folder) or self._other_adapter(folder)
        if not manifest["resumable"]:
            return "it holds the model only (save_only_model=True); a new run may start from it, as `model`"
        if manifest["trainer"] != self._kind:
            return f"a {manifest['trainer']} wrote it; a {self._kind} may start from it, as `model`"
        if self.args.sync_ref_model and _REFERENCE not in manifest["files"]:
            return f"{_REFERENCE} is missing: no reference model was synchronised (sync_ref_model=False)"
        return find_damage(folder, manifest) or self._other_adapter(folder)

    def _other_adapter(self, folder: Path) -> str | None:
        """How the adapter of a checkpoint, or that it has none, differs from what this run trains."""
        adapters, path = (
            getattr(self.accelerator.unwrap_model(self.model), "peft_config", None),
            folder / ADAPTER_CONFIG,
        )
        if not adapters:
            return (
                "it is of an adapter, and this run trains none; pass the same `peft_config`"
                if path.is_file()
                else None
            )
        if not path.is_file():  # what FSDP and ZeRO-3 save in parts does not tell
            whole = any(chain(folder.glob("model*.safetensors"), folder.glob("pytorch_model*.bin")))
            return (
                "it is of a whole model, and this run trains an adapter; start from it, as `model`" if whole else None
            )
        before = json.loads(path.read_text(encoding="utf-8"))
        now = adapters.get("default", next(iter(adapters.values()))).to_dict()
        changed = [
            f"{name}={_plain(before[name])} (now {_plain(now[name])})"
            for name in _ADAPTER
            if name in before and name in now and _plain(before[name]) != _plain(now[name])
        ]
        if not changed:
            return None
        return f"it is of an adapter with {', '.join(changed)}; pass the same `peft_config`, or start a new run"

    def _find_gap(self, folder: Path) -> str | None:
        """What a checkpoint without a manifest lacks."""
        needed = ["trainer_state.json", "rng_state*.pth"]
        if not (self.is_deepspeed_enabled or self.is_fsdp_enabled):
            needed += ["optimizer.pt", "scheduler.pt"]
        needed += ["critic/critic_optimizer.pt"] * hasattr(self, "critic") + [_REFERENCE] * self.args.sync_ref_model
        for name in needed:
            if not any(folder.glob(name)):
                return f"{name} is missing"
        for pattern in (*needed, "**/*.safetensors"):
            for path in folder.glob(pattern):
                if not _is_readable(path):
                    return f"{path.relative_to(folder)} is damaged"
        return None

    @property
    def _kind(self) -> str:
        return f"{self._name}Trainer"  # not that of a subclass

    def _batch_settings(self) -> dict[str, object]:
        own = {name: getattr(self.args, name) for name in _SETTINGS if hasattr(self.args, name)}
        return {"processes": self.args.world_size, **own}

    def _changed_settings(self, folder: str | os.PathLike[str]) -> str:
        """Which settings are not those that a checkpoint was written with; empty if none."""
        manifest = read_manifest(Path(folder))
        if manifest is None:
            return f"it has no {MANIFEST}, so its settings are unknown, and its files are checked but roughly"
        before, now = manifest["settings"], self._batch_settings()
        changed = [f"{name}={before.get(name)} (now {now[name]})" for name in now if before.get(name) != now[name]]
        return f"it was written with {', '.join(changed)}" if changed else ""


class ResumableRollouts:
    """Saves, beside the optimizer, how many micro-batches were trained and what is left of the sampled completions.

    Completions may serve several steps. A stock GRPO run that is resumed in between samples new ones, and counts from 0
    when to sample again; resumed after the first epoch, it reads the prompts in the order of the first.
    """

    def _get_train_sampler(self, dataset=None):
        self._train_sampler = super()._get_train_sampler(dataset)
        return self._train_sampler

    def _rollout_file(self, folder: str) -> Path:
        return Path(folder) / f"rollouts_{self.args.process_index}_of_{self.args.world_size}.pt"

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        generate_every = self.args.steps_per_generation * self.num_iterations
        # At the boundary the next step samples anew.
        batches = self._buffered_inputs if self._step % generate_every else None
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        torch.save({"step": self._step, "batches": batches}, self._rollout_file(output_dir))

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        generator = getattr(getattr(self, "_train_sampler", None), "generator", None)
        if generator is not None:
            # Every epoch draws an order. The sampler of this process is new, and its first would be that of epoch 0.
            for _ in range(int(self.state.epoch or 0)):
                torch.randperm(self._train_sampler.num_samples, generator=generator)
        changed, path = self._changed_settings(checkpoint), self._rollout_file(checkpoint)
        if changed or not path.is_file():
            reason = changed or "a stock trainer wrote it"
            logger.warning(
                "%s holds no completions for this run (%s): the next step samples new ones", checkpoint, reason
            )
            return
        device = self.accelerator.device  # torch cannot load onto "cpu:0"
        state = torch.load(path, map_location="cpu" if device.type == "cpu" else device, weights_only=True)
        self._step, self._buffered_inputs = state["step"], state["batches"]


def _plain(value: Any) -> Any:
    """A setting of an adapter as it is read from its file; the order of names does not matter."""
    if isinstance(value, (set, list, tuple)):
        return sorted(map(_plain, value), key=str)
    return value.value if isinstance(value, Enum) else value


def _remove(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def _is_readable(path: Path) -> bool:
    try:
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        elif path.suffix == ".safetensors":
            with safe_open(path, "pt"):
                pass
        else:
            return ZipFile(path).testzip() is None
    except Exception:  # the readers' own kinds
        return False
    return True

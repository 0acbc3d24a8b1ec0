"""Checkpoints in the middle of a generation batch or of a later epoch: TRL forgets the batch and the order of prompts."""

from __future__ import annotations

import logging
from pathlib import Path

import torch


logger = logging.getLogger(__name__)


class ResumableRollouts:
    """Saves, beside the optimizer, how many micro-batches were trained and what is left of the sampled completions.

    With `steps_per_generation` or `num_iterations` above the gradient accumulation, completions serve several steps. A
    stock GRPO run that is resumed in between samples new ones, and counts from 0 when to sample again. Resumed after the
    first epoch, it also reads the prompts in the order of the first. Here both are as if the run had not been stopped.
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
            logger.warning(
                "%s holds no completions for this run (%s): the next step samples new ones, and the run is not the one that "
                "was stopped",
                checkpoint, changed or "a stock trainer wrote it",
            )  # fmt: skip
            return
        device = self.accelerator.device  # torch cannot load onto "cpu:0"
        state = torch.load(path, map_location="cpu" if device.type == "cpu" else device, weights_only=True)
        self._step, self._buffered_inputs = state["step"], state["batches"]

"""A number that is not finite ends the run before a step is taken on it, and leaves the batch that it came from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from hf_factuality.errors import NonFiniteError


class StopsAtNonFinite:
    """Checks the loss before its gradients, and their norm before the step.

    The parents go on: transformers logs such a loss as 0, and one step makes every weight NaN. With `fp16` and with
    DeepSpeed gradients that overflow are theirs to skip, and the norm is not checked.
    """

    _last_batch: Mapping[str, Any] | None = None

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        output = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if self.model.training:
            self._last_batch = inputs
            self._require_finite("the loss", output, inputs)
        return output

    def _get_grad_norm(self, model, grad_norm=None):
        norm = super()._get_grad_norm(model, grad_norm)
        if self.accelerator.scaler is None and not self.is_deepspeed_enabled:
            self._require_finite("the norm of the gradients", float(norm), self._last_batch)
        return norm

    def _require_finite(self, what: str, numbers: torch.Tensor | float, batch: Mapping[str, Any]) -> None:
        """Called by all processes at the same place. One number is exchanged, and read once."""
        fault = ~torch.as_tensor(numbers, device=self.accelerator.device).isfinite().all()
        faults = self.accelerator.gather(fault.int().view(1))
        if not faults.any():
            return
        step = self.state.global_step
        where = "that process writes its batch"
        if fault:
            path = Path(self.args.output_dir) / f"not_finite_step{step}_process{self.accelerator.process_index}.jsonl"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(batch, self._tokenizer)]
                path.write_text("".join(lines), encoding="utf-8")
                where = f"the prompts, completions and rewards are in {path}"
            except Exception as error:  # the others wait below
                where = f"the batch could not be written to {path}: {error}"
        # A launcher ends all processes when the first one fails.
        self.accelerator.wait_for_everyone()
        raise NonFiniteError(
            f"{what} is not a finite number after {step} steps, on process {faults.nonzero().flatten().tolist()} of "
            f"{self.accelerator.num_processes}; no step was taken on it; {where}. Mend a reward that is not finite, return "
            "None for what is unknown, or lower the learning rate, and go on from the last checkpoint"
        )


class CheckedRollouts(StopsAtNonFinite):
    """The same for trainers that sample: rewards stay beside their completions, and infinite ones stop the run.

    A NaN among the rewards is what TRL makes of `None`: nothing is known.
    """

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._rewards = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        return self._rewards

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        start = self.accelerator.process_index * len(output["completion_ids"])
        own = self._rewards[start : start + len(output["completion_ids"])]
        # A column each: they are shuffled, split and saved with the batch.
        output |= {f"rewards/{name}": own[:, index] for index, name in enumerate(self.reward_func_names)}
        infinite = self._rewards.isinf()
        if infinite.any():
            names = [name for name, found in zip(self.reward_func_names, infinite.any(dim=0), strict=True) if found]
            self._require_finite(f"a reward of {', '.join(names)}", own.nan_to_num(0.0, math.inf, -math.inf), output)
        return output

    def _show_advantages(self, advantages: torch.Tensor, mask: torch.Tensor) -> list[float]:
        """Put means over the tokens into the completions table, in place of the parent's advantages, which are returned."""
        shown = self.accelerator.gather((advantages * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).tolist()
        table = self._logs["advantages"]
        replaced = [table.pop() for _ in shown[: len(table)]][::-1]
        table.extend(shown)
        return replaced


def _rows(batch: Mapping[str, Any], tokenizer) -> list[dict[str, Any]]:
    """What a batch of either kind of trainer holds, one row per completion, pair or text."""

    def texts(name: str) -> list[str]:
        masks = batch["attention_mask" if name == "input" else f"{name}_mask"].bool()
        return [tokenizer.decode(ids[mask]) for ids, mask in zip(batch[f"{name}_ids"], masks, strict=True)]

    if "completion_ids" not in batch:
        both = texts("input")
        if "completion_mask" not in batch:
            return [{"text": text} for text in both]
        chosen, rejected = both[: len(both) // 2], both[len(both) // 2 :]
        return [{"chosen": one, "rejected": other} for one, other in zip(chosen, rejected, strict=True)]
    rows = [{"prompt": p, "completion": c} for p, c in zip(texts("prompt"), texts("completion"), strict=True)]
    for index, row in enumerate(rows):
        row["rewards"] = {
            name.removeprefix("rewards/"): _number(column[index].item())
            for name, column in batch.items()
            if name.startswith("rewards/")
        }
    return rows


def _number(value: float) -> float | str | None:
    """JSON has no infinity, and NaN stands for what is unknown."""
    return None if math.isnan(value) else str(value) if math.isinf(value) else value

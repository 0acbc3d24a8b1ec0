"""Less padding than the parent: in passes over completions, in micro-batches, and in generation."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer


# Their positions are rotary, and yet what they compute depends on how many columns stand before a text.
_BY_COLUMN = ("beam", "deepseek_v4", "recurrent_gemma")
# Beside the entropy and the KL of its loss, what the parent logs as a mean over the tokens of each micro-batch, if each token
# has a ratio of its own.
_OF_RATIOS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio")


class SkipsPadding:
    """Passes over rows of like length, without the columns that are padding in all of them; generation without rows that have ended.

    Losses and gradients are those of the parent but for the order of sums (within 1e-5 of their size in float32, docs/speed.md),
    and nothing is changed where nothing is padding. The log holds means over the tokens of a step, where the parent has the mean
    of the means of its micro-batches, which depends on how rows lie. `skip_padding = False` leaves all to the parent.
    """

    skip_padding = True
    _old_are_new = False
    _tokens_passed: list[torch.Tensor] | None = None

    @property
    def _cuts(self) -> tuple[bool, bool]:
        """Whether columns may be cut on the left, where positions count from the first unless they are rotary, and on the right,
        where rotary frequencies may depend on the largest."""
        return self._may_cut if self.skip_padding else (False, False)

    @cached_property
    def _may_cut(self) -> tuple[bool, bool]:
        critic = getattr(self, "critic", None)
        # The virtual tokens of a prompt that is learnt stand before the padding.
        left, right = not getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False), True
        for model in [self.model] if critic is None or critic.reads_policy else [self.model, critic.model]:
            config = model.config.get_text_config().to_dict()
            rope = repr(config.get("rope_parameters"))
            by_position = config.get("attn_temperature_tuning") or "llama_4_scaling" in rope
            left = left and rope != "None" and not by_position and config["model_type"] not in _BY_COLUMN
            right = right and not any(kind in rope for kind in ("dynamic", "longrope"))
        return left and right, right

    def _generate_and_score_completions(self, inputs):
        # Where no weight changes before the loss has passed over these completions, it finds their old log-probabilities itself.
        steps, every = self.args.steps_per_generation, self.args.gradient_accumulation_steps
        aligned = every % steps == 0 and every % (steps * self.num_iterations)
        self._old_are_new = bool(self._cuts[1] and self.model.training and aligned and not self.use_vllm)
        self._asks_for_old = self._old_are_new
        return super()._generate_and_score_completions(inputs)

    def _get_per_token_logps_and_entropies(
        self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, **kwargs
    ):
        if self._old_are_new and self._asks_for_old:
            self._asks_for_old = False
            return None, None, None
        if not any(self._cuts) or any(value is not None for name, value in kwargs.items() if "compute" not in name):
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
        count, found, order = logits_to_keep, [], by_length(attention_mask, batch_size)
        for rows in order:
            start, end = used_columns(attention_mask[rows])
            start = min(start, attention_mask.size(1) - count - 1) if self._cuts[0] else 0
            end = max(end, attention_mask.size(1) - count + 1)
            part = (tensor[rows, start:end] for tensor in (input_ids, attention_mask))
            cut = attention_mask.size(1) - end
            *each, aux = super()._get_per_token_logps_and_entropies(model, *part, count - cut, None, **kwargs)
            found.append(([None if numbers is None else pad(numbers, (0, cut)) for numbers in each], aux))
        if self._old_are_new and self._buffered_inputs and torch.is_grad_enabled():
            batch = self._buffered_inputs[self._step % self.args.steps_per_generation]
            width = batch["completion_ids"].size(1) - count
            batch.setdefault("old_per_token_logps", pad(found[0][0][0].detach(), (0, width)))
        if len(found) == 1:
            return *found[0][0], found[0][1]
        back = torch.cat(order).argsort()
        columns = zip(*(each for each, _ in found), strict=True)
        joined = [None if column[0] is None else torch.cat(column)[back] for column in columns]
        return *joined, None if found[0][1] is None else torch.stack([aux for _, aux in found]).mean()

    def _compute_loss(self, model, inputs):
        loss = super()._compute_loss(model, inputs)
        if self.model.training and self.skip_padding:
            mask = inputs["completion_mask"]
            passed = (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).sum()
            self._tokens_passed = [*(self._tokens_passed or ()), passed]
            if self.accelerator.sync_gradients:
                self._weigh_by_tokens()
        return loss

    def _weigh_by_tokens(self) -> None:
        """Of the step that ends, scales what each micro-batch logged by its share of the tokens of all processes."""
        tokens = self.accelerator.reduce(torch.stack(self._tokens_passed), reduction="sum").tolist()
        self._tokens_passed = None
        mean = sum(tokens) / len(tokens)
        ratios = _OF_RATIOS if self.importance_sampling_level == "token" else ()
        for name in ("entropy", *["kl"] * (self.beta != 0.0), *ratios):
            values = self._metrics["train"].get(name, [])
            # The last ones are of these micro-batches. Equal counts make weights of 1, which change no bit.
            for at in range(1, min(len(values), len(tokens)) + 1):
                values[-at] *= tokens[-at] / mean if mean else 1.0

    def _without_padding(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """A micro-batch without the columns that are padding in all of its rows; at least one of prompts and completions stays."""
        (left, right), count = self._cuts, inputs["completion_mask"].size(1)
        first = used_columns(inputs["prompt_mask"])[0] if left else 0
        end = used_columns(inputs["completion_mask"])[1] if right else count

        def cut(name: str, value: Any) -> Any:
            if not torch.is_tensor(value) or value.dim() != 2:
                return value
            if name in ("prompt_ids", "prompt_mask"):
                return value[:, first:]
            return value[:, :end] if value.size(1) == count else value

        return {name: cut(name, value) for name, value in inputs.items()}

    def _prepare_inputs(self, generation_batch):
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        # Of these the loss of a micro-batch depends on what else is in it, or rows would move to another optimizer step.
        args, steps, every = self.args, self.args.steps_per_generation, self.args.gradient_accumulation_steps
        mixed = self._entropy_bonus_enabled or self.aux_loss_enabled or (steps % every and every % steps)
        mixed = mixed or args.loss_type == "bnpo" or args.top_entropy_quantile < 1.0
        if not self.model.training or self._buffered_inputs is before or mixed or not self.skip_padding:
            return inputs
        batches, step = self._buffered_inputs, min(every, steps)
        self._buffered_inputs = [
            batch for start in range(0, len(batches), step) for batch in ordered(batches[start : start + step])
        ]
        return self._buffered_inputs[self._step % steps]

    def _generate_single_turn(self, prompt_ids, images, multimodal_fields, num_generations, has_tool_images=False):
        hooks, config = [], None if self.use_vllm else self.generation_config
        # Rows of beams are no completions, guidance has passes without the prompt, and a chunk may have one token of it.
        plain = config and config.num_beams in (None, 1) and config.guidance_scale in (None, 1)
        if plain and self._cuts[1] and not config.prefill_chunk_size:
            # A compiled model does not generate; what it wraps does.
            model = self.accelerator.unwrap_model(self.model_wrapped, keep_torch_compile=False)
            live = _LiveRows(self.eos_token_ids)
            model = model.get_base_model() if hasattr(model, "get_base_model") else model
            hooks.append(model.register_forward_pre_hook(live.before, with_kwargs=True))
            hooks.append(model.register_forward_hook(live.after, with_kwargs=True))
        try:
            return super()._generate_single_turn(
                prompt_ids, images, multimodal_fields, num_generations, has_tool_images
            )
        finally:
            for hook in hooks:
                hook.remove()


class _LiveRows:
    """Hooks of a model that generates: rows that have ended are taken out of its passes and of its cache, once they are a quarter.

    `generate` sees logits of all rows, zeros where there was no pass, so that it draws the same random numbers; what it draws
    for rows that have ended it replaces by padding.
    """

    def __init__(self, eos: list[int]):
        self.eos = eos
        self.rows: torch.Tensor | None = None
        self.count = 0

    def before(self, module: Any, args: tuple, kwargs: dict[str, Any]) -> tuple | None:
        ids, cache = kwargs.get("input_ids"), kwargs.get("past_key_values")
        # Other layers, of linear attention or quantised, do not select all of their states; nor do those that are elsewhere.
        kinds = {type(layer) for layer in getattr(cache, "layers", ())}
        plain = kinds and kinds <= {DynamicLayer, DynamicSlidingWindowLayer} and not cache.offloading
        if ids is None or not plain or ids.size(1) != 1 or not cache.get_seq_length():
            self.rows = None
            return None
        if self.rows is None:
            self.count, self.rows = len(ids), torch.arange(len(ids), device=ids.device)
            self.ended = torch.zeros_like(ids[:, 0], dtype=bool)
        self.ended |= torch.isin(ids[:, 0], torch.tensor(self.eos, device=ids.device))
        live = (~self.ended[self.rows]).nonzero()[:, 0]
        if 0 < len(live) <= 0.75 * len(self.rows):
            cache.batch_select_indices(live)
            self.rows = self.rows[live]
        if len(self.rows) == self.count:
            return None
        of_rows = {
            name: value[self.rows]
            for name, value in kwargs.items()
            if torch.is_tensor(value) and value.dim() > 1 and len(value) == self.count
        }
        return args, kwargs | of_rows

    def after(self, module: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> Any:
        if self.rows is not None and len(self.rows) < self.count:
            logits = output.logits.new_zeros(self.count, *output.logits.shape[1:])
            logits[self.rows] = output.logits
            output.logits = logits
        return output


def by_length(mask: torch.Tensor, size: int | None) -> list[torch.Tensor]:
    """Rows of a mask of shape (B, T) in chunks of `size` (all: `None`), those of like length together; shape (size,) each."""
    rows = torch.arange(len(mask), device=mask.device)
    if size is None or size >= len(mask):
        return [rows]
    return list(mask.sum(1).argsort(stable=True).split(size))


def ordered(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Micro-batches of the same rows, those with completions of like length together."""
    joined = {
        name: torch.cat([batch[name] for batch in batches]) if torch.is_tensor(value) and value.dim() else value
        for name, value in batches[0].items()
    }
    order = by_length(joined["completion_mask"], len(batches[0]["completion_mask"]))
    return [
        {name: value[rows] if torch.is_tensor(value) and value.dim() else value for name, value in joined.items()}
        for rows in order
    ]


def used_columns(mask: torch.Tensor) -> tuple[int, int]:
    """The first column of a mask of shape (B, T) that any row uses, and one past the last; the last and 1 if none does."""
    used = mask.any(dim=0).nonzero()
    return (int(used[0]), int(used[-1]) + 1) if len(used) else (mask.size(1) - 1, 1)

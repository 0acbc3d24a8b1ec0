"""DPO on the labelled sentences only: Mask-DPO and other masks of a preference pair by labelled spans."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import get_worker_info
from transformers import TrainerCallback
from trl import DPOTrainer
from trl.data_utils import is_conversational
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.utils import global_then_local_main_first

from hf_factuality.errors import DataError, SpanError
from hf_factuality.functional.preference import IN_SPAN, kept_window, span_token_mask
from hf_factuality.hub.cards.methods import describe_method
from hf_factuality.offsets import place_empty
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.trainers._data import PAIRS
from hf_factuality.trainers._template_places import locate, stripped
from hf_factuality.trainers.base import FactualityTrainer
from hf_factuality.trainers.mask_dpo_config import ALL, MaskDPOConfig


logger = logging.getLogger(__name__)

SIDES = ("chosen", "rejected")
# Per side: tokens of counted spans, tokens that count, tokens of the completion; all after truncation.
COUNTS = "mask_counts"


@dataclass(frozen=True)
class MaskRule:
    """What decides the masks. A whole, so that it enters the fingerprint of the dataset whenever a part of it changes."""

    chosen: tuple[Label, ...] | None
    rejected: tuple[Label, ...] | None
    outside: str
    max_length: int | None
    truncation_mode: str
    ld_alpha: float | None
    """No part of the mask, but of the reference log-probabilities that are cached under the same fingerprint."""


class MaskDPOTrainer(FactualityTrainer, DPOTrainer):
    """DPO that learns from the true sentences of the preferred completion, and against the false ones of the other.

    Differs from [`~trl.DPOTrainer`] in `completion_mask` only: 0 on the tokens that do not count. So every loss type is
    TRL's, over the kept tokens. With everything kept it computes what the parent computes, to the last bit. A pair of
    which one side has no token of a counted span left after truncation is dropped, and counted.

    The datasets have the columns `prompt` (or the prompt is implicit), `chosen`, `rejected`, `chosen_spans` and
    `rejected_spans`: lists of [`LabeledSpan.to_dict`], ranges of the characters of the completion. A completion is plain
    text or one assistant message; spans of plain text with an implicit prompt are ranges of the whole column.

    Vision-language models, tokenizers without character offsets, other collators, `padding_free` and `use_weighting` are
    refused.

    Args:
        model, ref_model, train_dataset, eval_dataset, processing_class, **kwargs:
            As for the parent.
        args ([`MaskDPOConfig`], *optional*):
            Settings.
        data_collator (*optional*):
            Must be `None`: the collator is what masks.

    Attributes:
        mask_statistics (`dict[str, MaskStatistics]`):
            Per dataset: pairs, those dropped, share of the tokens that count. `"train"` is the training set; an evaluation
            set of that name is `"eval_train"`.
        card_results (`str`, `Path`, list of them, or `dict`, *optional*):
            Files of results for the model card, or `{"before": path, "after": path}`. `None`: those of this model among
            `results*.json` in `args.output_dir` (docs/cards.md).

    Raises:
        `TypeError`: `args` is not a [`MaskDPOConfig`].
        `ValueError`: a feature that cannot work with masks.
        `DataError`: a column is missing; spans that do not fit their completion; no pair is left. For a stream, the rows
            after the first are checked as they pass.
        `NonFiniteError`: during training, at a loss or gradient that is not finite.
    """

    _tag_names = ["trl", "hf_factuality"]
    _name = "MaskDPO"
    _config = MaskDPOConfig

    def __init__(
        self,
        model,
        ref_model=None,
        args: MaskDPOConfig | None = None,
        data_collator=None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        **kwargs,
    ):
        args = self._checked_args(args, model)
        if data_collator is not None:
            raise ValueError(f"data_collator={data_collator!r:.80}: leave it out, MaskDPOTrainer's own one masks")
        self.mask_statistics: dict[str, MaskStatistics] = {}
        window = {"max_length": args.max_length, "truncation_mode": args.truncation_mode}
        chosen, rejected = _labels(args.chosen_labels), _labels(args.rejected_labels)
        self._mask_rule = MaskRule(chosen, rejected, args.tokens_outside, ld_alpha=args.ld_alpha, **window)
        # Made here, since the parent precomputes reference log-probabilities with it before its `__init__` is over; the
        # tokenizer is known once the datasets are prepared.
        collator = MaskedPreferenceCollator(pad_token_id=-1, pad_to_multiple_of=args.pad_to_multiple_of, **window)
        self._masked_collator = collator
        method, masked = describe_method(["mask_dpo" if chosen or rejected else "dpo"], "DPO"), (chosen, rejected)
        if None in masked and any(masked):
            side = "preferred" if chosen else "rejected"
            method = replace(method, title=f"{method.title} of which only the {side} completion is masked")
        self._use_method(method)
        super().__init__(
            model, ref_model, args, collator, train_dataset=train_dataset, eval_dataset=eval_dataset,
            processing_class=processing_class, **kwargs,
        )  # fmt: skip
        self.add_callback(_LogMasks(self._metrics["train"], self.mask_statistics["train"]))

    _required, _reads_images = ("chosen", "rejected", "chosen_spans", "rejected_spans"), True

    def _text_columns(self, columns):
        return PAIRS

    def _check_columns(self, dataset, columns, name):
        spans = [f"{side}_spans" for side in SIDES]
        if {*SIDES}.issubset(columns) and not {*spans}.issubset(columns):
            raise DataError(
                f"the {name} dataset has no column {min({*spans}.difference(columns))!r}, only {sorted(columns)}; "
                "`hf-factuality build-preferences` with `pairs` labels pairs that exist (docs/mask-dpo.md)"
            )
        super()._check_columns(dataset, columns, name)

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        self._refuse_processor(processing_class)
        if not self._tokenizer.is_fast:
            raise ValueError(f"{type(self._tokenizer).__name__} has no character offsets; use a fast tokenizer")
        self._masked_collator.pad_token_id = self._padding_id()
        columns = dataset.column_names or list(next(iter(dataset)))
        map_style = isinstance(dataset, Dataset)
        n_pairs = len(dataset) if map_style else 0
        dataset = super()._prepare_dataset(dataset, processing_class, args, dataset_name)
        settings = {"num_proc": args.dataset_num_proc, "desc": f"Masking {dataset_name} dataset"} if map_style else {}
        statistics = MaskStatistics(0 if map_style else args.dataloader_num_workers)
        # The training set is prepared first; a dict of evaluation sets may use its name.
        taken = dataset_name == "train" and self.mask_statistics
        self.mask_statistics["eval_train" if taken else dataset_name] = statistics
        # The rule is an argument, and so part of the fingerprint under which reference log-probabilities are cached.
        implicit = "prompt" not in columns
        arguments = {"tokenizer": self._tokenizer, "rule": self._mask_rule, "implicit_prompt": implicit}
        with global_then_local_main_first():
            dataset = dataset.map(mask_pair, fn_kwargs=arguments, **settings)
            if not map_style:
                return dataset.filter(statistics.add, input_columns=[COUNTS])
            # The parent has dropped those whose prompts leave no room for a completion.
            for counts in [[0] * 6] * (n_pairs - len(dataset)) + (list(dataset[COUNTS]) if len(dataset) else []):
                statistics.add(counts)
            if statistics.dropped and len(dataset):
                dataset = dataset.filter(has_signal, input_columns=[COUNTS], **settings)
        if statistics.dropped:
            logger.warning(
                "%d of %d pairs of the %s dataset are dropped: after truncation, %d have no token of a counted span in "
                "`chosen`, %d none in `rejected`",
                statistics.dropped, statistics.pairs, dataset_name, *statistics.dropped_by_side.values(),
            )  # fmt: skip
        if not len(dataset):
            raise DataError(
                f"no pair of the {dataset_name} dataset is left: of {statistics.pairs}, {statistics.dropped_by_side} have "
                f"no token of a counted span; check the labels, chosen_labels={args.chosen_labels}, "
                f"rejected_labels={args.rejected_labels} and max_length={args.max_length}"
            )
        return dataset

    def _set_signature_columns_if_needed(self):
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            self._signature_columns += [f"{side}_mask" for side in SIDES]

    def _card(self):
        args = self.args
        return {
            "method": self._method,
            "verifier": "the one that labelled the pairs",
            "objective": f"{' + '.join(args.loss_type)} loss on {', '.join(args.chosen_labels)} spans of the preferred "
            f"and {', '.join(args.rejected_labels)} spans of the rejected completion; tokens outside: "
            f"{args.tokens_outside}",
            "named": ("loss_type", "tokens_outside"),
        }


def _labels(names: list[str]) -> tuple[Label, ...] | None:
    return None if names == [ALL] else tuple(sorted({Label(name) for name in names}))


# Of the way of a pair: its masks when the dataset is prepared, what is counted of them, and the batch.


def mask_pair(example: Mapping[str, Any], tokenizer, rule: MaskRule, implicit_prompt: bool) -> dict[str, list]:
    """Masks of a pair that TRL has tokenised, as long as its completions, and the counts of [`COUNTS`].

    Columns with an implicit prompt held the prompt as well, as their spans then do in plain format; these are returned too,
    as ranges of the completion without it. `DataError` for spans that are none or do not fit the completion, a completion
    that is not one message of text, or a template that cannot be followed.
    """
    result: dict[str, list] = {COUNTS: []}
    for side in SIDES:
        ids = example["prompt_ids"] + example[f"{side}_ids"]
        text, spans = _rendered(example, side, tokenizer, implicit_prompt)
        if implicit_prompt and not is_conversational(example):
            # From now on the row has a prompt, and the spans count from its end; it may be prepared once more.
            start = len(example["prompt"])
            moved = [replace(s, start=max(s.start - start, 0), end=s.end - start) for s in spans if s.end > start]
            result[f"{side}_spans"] = [span.to_dict() for span in moved]
        encoded = tokenizer(text, add_special_tokens=not is_conversational(example), return_offsets_mapping=True)
        if encoded["input_ids"] != ids:
            raise DataError(f"tokenising the rendered text again gives other tokens than TRL's: {text[:80]!r}")
        offsets = place_empty(encoded["offset_mapping"], len(text))
        n_prompt, n_completion = len(example["prompt_ids"]), len(example[f"{side}_ids"])
        mask = span_token_mask(offsets[n_prompt:], spans, getattr(rule, side), rule.outside)
        kept = mask[slice(*kept_window(n_prompt, n_completion, rule.max_length, rule.truncation_mode))]
        result[f"{side}_mask"] = mask
        result[COUNTS] += [kept.count(IN_SPAN), len(kept) - kept.count(0), len(kept)]
    return result


def _rendered(
    example: Mapping[str, Any], side: str, tokenizer, implicit_prompt: bool
) -> tuple[str, list[LabeledSpan]]:
    """The text that TRL tokenises, and the spans as ranges of it."""
    prompt, completion = example["prompt"], example[side]
    if not is_conversational(example):
        text = prompt + completion
        start = 0 if implicit_prompt else len(prompt)
        spans = _read_spans(example, side, text[start:])
        cut = [stripped(span, text[start:]).shift(start) for span in spans]
        return text, [span for span in cut if span.start < span.end]
    message = completion[-1] if len(completion) == 1 else {}
    content = message.get("content")
    if message.get("role") != "assistant" or not isinstance(content, str):
        raise DataError(
            f"`{side}` must be one assistant message of text (earlier turns are `prompt`), got {completion!r:.200}"
        )
    tools = example.get("tools")
    tools = json.loads(tools) if isinstance(tools, str) else tools
    settings = {"tools": tools, **(example.get("chat_template_kwargs") or {})}

    def render(content: str) -> str:
        messages = [*prompt, {**message, "content": content}]
        return tokenizer.apply_chat_template(messages, tokenize=False, **settings)

    text = render(content)
    return text, locate(content, _read_spans(example, side, content), text, render)


def _read_spans(example: Mapping[str, Any], side: str, content: str) -> list[LabeledSpan]:
    column = f"{side}_spans"
    value = example.get(column)
    if not isinstance(value, (list, tuple)):
        raise DataError(f"`{column}` must be a list of spans (start, end, label), got {value!r:.150}")
    try:
        spans = [span if isinstance(span, LabeledSpan) else LabeledSpan.from_dict(span) for span in value]
    except (SpanError, TypeError) as error:
        raise DataError(f"`{column}` holds something that is no span: {error}") from None
    for span in spans:
        if span.end > len(content):
            raise DataError(
                f"`{column}` has [{span.start}, {span.end}) beyond `{side}` of {len(content)} characters: {content[:80]!r}"
            )
    return spans


class MaskStatistics:
    """Pairs and tokens of a dataset; of a stream, those that have passed so far, counted by each worker of its loader."""

    def __init__(self, workers: int = 0):
        # A row per process, in memory that all see: pairs, dropped, dropped per side, and of the pairs that stay the
        # tokens that count and all tokens, per side.
        self._rows = torch.zeros(workers + 1, 8, dtype=torch.int64).share_memory_()

    def __deepcopy__(self, memo):
        return self  # copies of a stream count into the same rows

    def add(self, counts: Sequence[int]) -> bool:
        """Count a pair by its [`COUNTS`]; whether it stays."""
        worker = get_worker_info()
        row = self._rows[0 if worker is None else 1 + worker.id]
        stays = has_signal(counts)
        row[:4] += torch.tensor([1, not stays, counts[0] == 0, counts[3] == 0])
        if stays:
            row[4:] += torch.tensor([counts[1], counts[2], counts[4], counts[5]])
        return stays

    @property
    def pairs(self) -> int:
        """Pairs looked at."""
        return int(self._rows[:, 0].sum())

    @property
    def dropped(self) -> int:
        """Pairs of which one side has no token of a counted span after truncation."""
        return int(self._rows[:, 1].sum())

    @property
    def dropped_by_side(self) -> dict[str, int]:
        """The dropped pairs by side; one with nothing on either side is in both."""
        return dict(zip(SIDES, self._rows[:, 2:4].sum(dim=0).tolist(), strict=True))

    @property
    def kept(self) -> dict[str, float]:
        """Share of the completion tokens, after truncation, that count, per side, over the pairs that stay; NaN before
        the first."""
        totals = self._rows[:, 4:].sum(dim=0).tolist()
        shares = [kept / total if total else float("nan") for kept, total in (totals[:2], totals[2:])]
        return dict(zip(SIDES, shares, strict=True))


def has_signal(counts: Sequence[int]) -> bool:
    """Whether both sides of a pair have a token of a counted span."""
    return counts[0] > 0 and counts[3] > 0


@dataclass
class MaskedPreferenceCollator(DataCollatorForPreference):
    """TRL's collator for preference pairs, with `completion_mask` 0 on the tokens that their masks leave out."""

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        output = super().torch_call(examples)
        window = slice(None)
        if self.max_length is not None:
            keep_end = self.truncation_mode == "keep_end"
            window = slice(-self.max_length, None) if keep_end else slice(self.max_length)
        rows = [
            ([0] * len(row["prompt_ids"]) + list(row[f"{side}_mask"]))[window] for side in SIDES for row in examples
        ]
        width = output["completion_mask"].size(1)
        output["completion_mask"] *= torch.tensor([row + [0] * (width - len(row)) for row in rows]) != 0
        return output


class _LogMasks(TrainerCallback):
    """Puts the statistics of the training data beside the parent's metrics; of a stream, those so far."""

    def __init__(self, metrics, statistics: MaskStatistics):
        self.metrics, self.statistics = metrics, statistics

    def on_step_end(self, args, state, control, **kwargs):
        for side, share in self.statistics.kept.items():
            self.metrics[f"mask/{side}_kept"] = [share]
        self.metrics["mask/dropped_pairs"] = [float(self.statistics.dropped)]

"""DPO on the labelled sentences only: Mask-DPO and other masks of a preference pair by labelled spans."""

from __future__ import annotations

import logging
from dataclasses import replace

from datasets import Dataset
from transformers import TrainerCallback
from trl import DPOTrainer
from trl.trainer.utils import global_then_local_main_first

from hf_factuality.errors import DataError
from hf_factuality.hub.cards.methods import describe_method
from hf_factuality.spans import Label
from hf_factuality.trainers._base import FactualityTrainer
from hf_factuality.trainers._data import PAIRS
from hf_factuality.trainers._mask_dpo_data import (
    COUNTS,
    SIDES,
    MaskedPreferenceCollator,
    MaskRule,
    MaskStatistics,
    has_signal,
    mask_pair,
)
from hf_factuality.trainers.mask_dpo_config import ALL, MaskDPOConfig


logger = logging.getLogger(__name__)


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


class _LogMasks(TrainerCallback):
    """Puts the statistics of the training data beside the parent's metrics; of a stream, those so far."""

    def __init__(self, metrics, statistics: MaskStatistics):
        self.metrics, self.statistics = metrics, statistics

    def on_step_end(self, args, state, control, **kwargs):
        for side, share in self.statistics.kept.items():
            self.metrics[f"mask/{side}_kept"] = [share]
        self.metrics["mask/dropped_pairs"] = [float(self.statistics.dropped)]


def _labels(names: list[str]) -> tuple[Label, ...] | None:
    return None if names == [ALL] else tuple(sorted({Label(name) for name in names}))

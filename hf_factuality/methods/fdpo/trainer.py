"""DPO by factuality labels of whole completions: F-DPO."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset, Features, Value
from trl import DPOTrainer
from trl.trainer.dpo_trainer import DataCollatorForPreference
from trl.trainer.utils import global_then_local_main_first

from hf_factuality.errors import DataError
from hf_factuality.hub.cards.methods import FACTUAL, VERIFIED, CardMethod, Paper, describe_method
from hf_factuality.methods.fdpo.config import FDPOConfig
from hf_factuality.methods.fdpo.formula import PairOrder, demand_margin, is_hallucinated, pair_order
from hf_factuality.spans import Label
from hf_factuality.trainers._data import PAIRS
from hf_factuality.trainers.base import FactualityTrainer


logger = logging.getLogger(__name__)
SIDES = ("chosen", "rejected")
# Columns: what the labels say of a pair, and of a batch the margins.
ORDER, MARGIN = "pair_order", "factuality_margin"
_PAPER = Paper("2601.03027", "Reducing Hallucinations in LLMs via Factuality-Aware Preference Learning")


class FDPOTrainer(FactualityTrainer, DPOTrainer):
    """DPO that never prefers a hallucinated completion to a factual one, and asks for a margin between the two.

    Differs from [`~trl.DPOTrainer`] in the order of the pairs, and in the reference log-probabilities of the chosen
    completions, which are raised by the margin. With no flip and margin 0 it computes what the parent computes, to the last
    bit. What of it is the paper's: `hf_factuality/methods/fdpo/formula.py`.

    The datasets have the columns `prompt` (or the prompt is implicit), `chosen` and `rejected` as for the parent, and
    `chosen_hallucinated` and `rejected_hallucinated`: 1 or true for a hallucinated completion, 0 or false for a factual one,
    null where it is not known. Without these, `chosen_spans` and `rejected_spans` as for [`MaskDPOTrainer`] are read: a
    completion with a hallucinated span is hallucinated. Other columns about one side are dropped, since sides may change.

    Vision-language models, other collators and `padding_free` are refused.

    Logged beside the parent's figures: `fdpo/margin`, the mean margin of the pairs. The parent's `rewards/chosen`,
    `rewards/margins` and `rewards/accuracies` are after the margin: the last is the share of pairs that exceed it.

    Args:
        model, ref_model, train_dataset, eval_dataset, processing_class, **kwargs:
            As for the parent.
        args ([`FDPOConfig`], *optional*):
            Settings.
        data_collator (*optional*):
            Must be `None`: the collator brings the margins.

    Attributes:
        pair_counts (`dict[str, dict[str, int]]`):
            Per dataset that is no stream, the number of pairs by [`~hf_factuality.methods.fdpo.formula.PairOrder`]. `"train"`
            is the training set; an evaluation set of that name is `"eval_train"`.
        card_results (`str`, `Path`, list of them, or `dict`, *optional*):
            Files of results for the model card (docs/cards.md).

    Raises:
        `TypeError`: `args` is not an [`FDPOConfig`].
        `ValueError`: a feature that cannot work with margins.
        `DataError`: a column is missing; a label that is none. For a stream, the rows after the first are checked as they
            pass.
        `NonFiniteError`: during training, at a loss or gradient that is not finite.
    """

    _tag_names = ["trl", "hf_factuality"]
    _name = "FDPO"
    _config = FDPOConfig
    _required, _reads_images = SIDES, True

    def __init__(
        self,
        model,
        ref_model=None,
        args: FDPOConfig | None = None,
        data_collator=None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        **kwargs,
    ):
        args = self._checked_args(args, model)
        if data_collator is not None:
            raise ValueError(
                f"data_collator={data_collator!r:.80}: leave it out, FDPOTrainer's own one brings margins"
            )
        self.pair_counts: dict[str, dict[str, int]] = {}
        # Made here, since the parent precomputes reference log-probabilities with it before its `__init__` is over; the
        # tokenizer is known once the datasets are prepared.
        self._pair_collator = FactualityPairCollator(
            -1, args.max_length, args.truncation_mode, args.pad_to_multiple_of, margin=args.factuality_margin
        )
        self._use_method(_method(args))
        super().__init__(
            model, ref_model, args, self._pair_collator, train_dataset=train_dataset, eval_dataset=eval_dataset,
            processing_class=processing_class, **kwargs,
        )  # fmt: skip

    def _text_columns(self, columns):
        return PAIRS

    def _check_columns(self, dataset, columns, name):
        super()._check_columns(dataset, columns, name)
        if ORDER not in columns and not _label_columns(columns):
            raise DataError(
                f"the {name} dataset has no labels, only {sorted(columns)}; add 'chosen_hallucinated' and "
                "'rejected_hallucinated', or label it with `hf-factuality build-preferences` (docs/fdpo.md)"
            )

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        self._refuse_processor(processing_class)
        self._pair_collator.pad_token_id = self._padding_id()
        columns = dataset.column_names or list(next(iter(dataset)))
        map_style = isinstance(dataset, Dataset)
        if ORDER not in columns:  # `evaluate` may be given what was prepared before
            one_sided = [name for name in columns if name.startswith(("chosen_", "rejected_"))]
            settings: dict[str, Any] = {"remove_columns": one_sided}
            if map_style:
                kept = {name: kind for name, kind in dataset.features.items() if name not in one_sided}
                features = Features({**kept, ORDER: Value("string")})
                settings |= {"features": features, "num_proc": args.dataset_num_proc}
                settings["desc"] = f"Ordering {dataset_name} dataset"
            # What decides the reference log-probabilities is an argument, so that it enters the fingerprint under which TRL
            # caches them.
            decides = [args.max_length, args.truncation_mode, args.ld_alpha]
            arguments = {"labels": _label_columns(columns), "flip": args.flip_pairs, "decides": decides}
            with global_then_local_main_first():
                dataset = dataset.map(order_pair, fn_kwargs=arguments, **settings)
        if map_style:
            # The training set is prepared first; a dict of evaluation sets may use its name.
            taken = dataset_name == "train" and self.pair_counts
            counts = Counter(dataset[ORDER])
            self.pair_counts["eval_train" if taken else dataset_name] = {o.value: counts[o.value] for o in PairOrder}
            if counts[PairOrder.UNKNOWN]:
                logger.warning(
                    "%d of %d pairs of the %s dataset lack a label, and are trained as in DPO",
                    counts[PairOrder.UNKNOWN], len(dataset), dataset_name,
                )  # fmt: skip
        return super()._prepare_dataset(dataset, processing_class, args, dataset_name)

    def _set_signature_columns_if_needed(self):
        if self._signature_columns is None:
            super()._set_signature_columns_if_needed()
            self._signature_columns += [ORDER]

    def compute_ref_log_probs(self, model, inputs):
        # What the parent does not know goes to the model.
        return super().compute_ref_log_probs(model, {name: inputs[name] for name in inputs if name != MARGIN})

    def _compute_loss(self, model, inputs, return_outputs):
        inputs = dict(inputs)
        margin = inputs.pop(MARGIN)
        precomputed = self.precompute_ref_logps
        if precomputed:
            chosen, rejected = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        else:
            chosen, rejected = self.compute_ref_log_probs(self.ref_model or self.model, inputs)
        inputs |= {"ref_chosen_logps": demand_margin(chosen, margin), "ref_rejected_logps": rejected}
        mode = "train" if self.model.training else "eval"
        self._metrics[mode]["fdpo/margin"].append(self.accelerator.gather(margin).mean().item())
        self.precompute_ref_logps = True  # the parent then reads them from the batch
        try:
            return super()._compute_loss(model, inputs, return_outputs)
        finally:
            self.precompute_ref_logps = precomputed

    def _card(self):
        args = self.args
        objective = f"{' + '.join(args.loss_type)} loss"
        if args.factuality_margin:
            objective += f", with a margin of {args.factuality_margin:g} on the log-ratio where the labels differ"
        if args.flip_pairs:
            objective += "; pairs of which only the chosen completion is hallucinated are exchanged"
        return {
            "method": self._method,
            "verifier": "the one that labelled the pairs",
            "objective": objective,
            "named": ("loss_type", "factuality_margin", "flip_pairs"),
        }


@dataclass
class FactualityPairCollator(DataCollatorForPreference):
    """TRL's collator for preference pairs, with the margin of each pair."""

    margin: float = 0.0

    def torch_call(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        output = super().torch_call(examples)
        gaps = torch.tensor([PairOrder(row[ORDER]).gap for row in examples], dtype=torch.float32)
        output[MARGIN] = self.margin * gaps
        return output


def order_pair(example: Mapping[str, Any], labels: str, flip: bool, decides: Any = None) -> dict[str, Any]:
    """The completions of a pair as they are trained, and its order; `labels` is the ending of the columns of labels.

    `decides` is nothing to the pair; it is part of the fingerprint.
    """
    order = pair_order(*(_label(example, f"{side}_{labels}") for side in SIDES), flip)
    chosen, rejected = SIDES[::-1] if order is PairOrder.FLIPPED else SIDES
    return {"chosen": example[chosen], "rejected": example[rejected], ORDER: order.value}


def _label_columns(columns: Any) -> str | None:
    """The ending of the columns that hold the labels."""
    known = (kind for kind in ("hallucinated", "spans") if {f"{side}_{kind}" for side in SIDES} <= {*columns})
    return next(known, None)


def _label(example: Mapping[str, Any], column: str) -> bool | None:
    value = example[column]
    if column.endswith("_spans"):
        try:
            return is_hallucinated(span["label"] and Label(span["label"]) for span in value or [])
        except (KeyError, TypeError, ValueError):
            raise DataError(f"`{column}` must be a list of spans (start, end, label), got {value!r:.150}") from None
    if value is not None and value not in (0, 1):
        raise DataError(f"`{column}` must be 0 (factual), 1 (hallucinated) or null, got {value!r:.150}")
    return value if value is None else bool(value)


def _method(args: FDPOConfig) -> CardMethod:
    if args.factuality_margin > 0 and args.flip_pairs:
        return CardMethod("F-DPO", (_PAPER,), True, ("f-dpo",), (FACTUAL,), (VERIFIED,))
    if part := "label flip" * args.flip_pairs or "margin" * (args.factuality_margin > 0):
        return CardMethod(f"DPO with the {part} of F-DPO", (_PAPER,), aims=(FACTUAL,), limits=(VERIFIED,))
    return describe_method(["dpo"], "DPO")

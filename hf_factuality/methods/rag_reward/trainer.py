"""A reward model of grounded answers (RAG-Reward, arXiv 2501.13264): one for all axes, or a head per axis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import IterableDataset
from transformers import AutoModelForSequenceClassification, set_seed
from trl import RewardConfig, RewardTrainer
from trl.trainer.reward_trainer import DataCollatorForPreference

from hf_factuality.errors import DataError
from hf_factuality.functional import calibration
from hf_factuality.functional.scoring import mean
from hf_factuality.hub.cards.methods import METHODS
from hf_factuality.hub.results import environment, measured_entry, write_results
from hf_factuality.trainers._data import PAIRS
from hf_factuality.trainers._settings import Precision, require, setting
from hf_factuality.trainers.base import FactualityTrainer


@dataclass
class RAGRewardConfig(Precision, RewardConfig):
    r"""
    All `RewardConfig` fields keep their meaning.

    Parameters:
        heads (`list[str]`, *optional*):
            Axes that get a head each, on one backbone; the column `axis` says which one a pair trains. `None`: one head, which
            all pairs train.
    """

    heads: list[str] | None = setting(None, "Axes that get a head each; None: one head for all pairs.")
    sync_ref_model = False  # `trainers/_checkpoints.py` asks

    def __post_init__(self):
        super().__post_init__()
        require(self, "heads", lambda value: value is None or value and len({*value}) == len(value), "different names")


@dataclass
class _ByAxis(DataCollatorForPreference):
    """The parent's batch, and of each pair the number of its axis."""

    axes: tuple[str, ...] = ()

    def torch_call(self, examples):
        axes = {"axis": torch.tensor([self.axes.index(it["axis"]) for it in examples])} if self.axes else {}
        return super().torch_call(examples) | axes


class RAGRewardTrainer(FactualityTrainer, RewardTrainer):
    """TRL's `RewardTrainer` with a head per axis where asked for, figures of held-out pairs per axis, and our card.

    With `heads=None` training is the parent's. What it saves is read by [`~hf_factuality.verifiers.RewardVerifier`]
    (`"reward:FOLDER"`), and by TRL's trainers where there is one head.

    Args:
        model (`str` or `PreTrainedModel`), args ([`RAGRewardConfig`], *optional*), processing_class, peft_config, **kwargs:
            As for the parent. A loaded model has as many labels as there are heads.
        train_dataset, eval_dataset (`Dataset`):
            Rows as `hf-factuality build-rag-preferences` makes them: `prompt`, `chosen`, `rejected`, and `axis`, which may lack
            with one head. The figures are of the second one; the parent leaves out pairs longer than `max_length`.

    Attributes:
        figures (`dict[str, float]`): After training, of the eval dataset: `accuracy`, the same per axis, and the expected
            calibration error and Brier score of sigmoid(reward difference) as P(the preferred answer is preferred).

    Raises:
        `TypeError`: `args` is not a [`RAGRewardConfig`]. `DataError`: a stream, an empty dataset, a pair of an axis that has no head.
        `NonFiniteError`: during training, at a loss or gradient that is not finite.
    """

    _name, _config, _unit = "RAGReward", RAGRewardConfig, "pairs"
    _tag_names = ["trl", "reward-trainer", "rag-reward", "hf_factuality"]
    _task, _results = "text-classification", "results-reward.json"
    _paper = METHODS["rag_reward"].paper.of_trl

    def __init__(
        self,
        model, args=None, train_dataset=None, eval_dataset=None, processing_class=None, peft_config=None, **kwargs
    ):  # fmt: skip
        args = self._checked_args(args, model)
        self._refuse_own(kwargs, "data_collator")
        for name, dataset in (("train", train_dataset), ("eval", eval_dataset)):
            if isinstance(dataset, IterableDataset):
                raise DataError(
                    f"the {name} dataset is a stream, whose axes are not known; pass a Dataset (streaming=False)"
                )
        self._refuse_processor(processing_class)
        self.figures: dict[str, float] = {}
        self._margins: list[list[float]] | None = None  # and axes, while they are measured
        if isinstance(eval_dataset, dict):
            raise ValueError("pass one eval_dataset; its column 'axis' tells the pairs of the axes apart")
        if heads := args.heads:
            if isinstance(model, str):
                set_seed(args.seed)  # the heads are drawn
                known = {"dtype": torch.float32, **(args.model_init_kwargs or {}), "num_labels": len(heads)}
                model, args.model_init_kwargs = (
                    AutoModelForSequenceClassification.from_pretrained(model, **known),
                    None,
                )
            if model.config.num_labels != len(heads):
                raise ValueError(f"heads={heads} need a model of as many labels, not of {model.config.num_labels}")
            model.config.num_labels = 1  # the parent insists; set back below
            for name, dataset in (("train", train_dataset), ("eval", eval_dataset)):
                lacking = {
                    *(dataset["axis"] if dataset and "axis" in dataset.column_names else [None] * bool(dataset))
                }
                if lacking := lacking - {*heads}:
                    raise DataError(
                        f"the {name} dataset has pairs of {lacking}; each needs a column 'axis' of {heads}"
                    )
        super().__init__(
            model, args, train_dataset=train_dataset, eval_dataset=eval_dataset, processing_class=processing_class,
            peft_config=peft_config, **kwargs,
        )  # fmt: skip
        if heads:
            config = self.accelerator.unwrap_model(self.model).config
            config.id2label, config.label2id = dict(enumerate(heads)), {name: n for n, name in enumerate(heads)}
        pad = {name: getattr(self.data_collator, name) for name in ("pad_token_id", "pad_to_multiple_of")}
        both = [own for own in (self.train_dataset, self.eval_dataset) if own is not None]
        told = {*sum((own["axis"][:] for own in both), [])} if all("axis" in own.column_names for own in both) else ()
        self.data_collator = _ByAxis(**pad, axes=tuple(heads or sorted(told)))

    _required = ("chosen", "rejected")

    def _text_columns(self, columns):
        return PAIRS

    @property
    def _tokenizer(self):
        return self.processing_class

    def _set_signature_columns_if_needed(self):
        super()._set_signature_columns_if_needed()
        self._signature_columns = list(dict.fromkeys([*self._signature_columns, "axis"]))

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        axis = inputs.pop("axis", None)

        def read(**features):
            outputs = model(**features)
            if self.args.heads:
                outputs.logits = outputs.logits.gather(1, axis.repeat(2)[:, None])  # chosen, then rejected
            if self._margins is not None:
                chosen, rejected = outputs.logits[:, 0].detach().float().chunk(2)
                both = torch.stack([chosen - rejected, torch.zeros_like(chosen) if axis is None else axis], 1)
                self._margins += self.accelerator.gather_for_metrics(both).tolist()
            return outputs

        return super().compute_loss(read, inputs, return_outputs, num_items_in_batch)

    def train(self, *args: Any, **kwargs: Any):
        self.figures = {}  # of weights that are going
        output = super().train(*args, **kwargs)
        if self.eval_dataset is not None:
            self.measure()
        return output

    def measure(self) -> dict[str, float]:
        """Measure on the eval dataset; returns [`figures`]."""
        self._margins = []
        try:
            self.evaluate()
            axes = self.data_collator.axes or (None,)
            self._pairs = [(axes[int(axis)], margin) for margin, axis in self._margins]
        finally:
            self._margins = None
        shares = [calibration.sigmoid(margin) for _, margin in self._pairs]
        self._items = {"accuracy": [float(margin > 0) for _, margin in self._pairs]}
        for axis in filter(None, axes):
            self._items[f"accuracy_{axis}"] = [float(margin > 0) for own, margin in self._pairs if own == axis]
        self._items["brier"] = [(1 - share) ** 2 for share in shares]
        # In both orders, so that both answers are there.
        self._shares, self._truths = (
            shares + [1 - share for share in shares],
            [True] * len(shares) + [False] * len(shares),
        )
        self.figures = {name: mean(own) for name, own in self._items.items() if own}
        self.figures["ece"] = calibration.expected_calibration_error(self._shares, self._truths)
        self.log({f"held_out_{name}": value for name, value in self.figures.items()})
        return self.figures

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        folder, model = Path(output_dir or self.args.output_dir), self.accelerator.unwrap_model(self.model)
        if not self.args.should_save:
            return
        (folder / self._results).unlink(missing_ok=True)  # of weights that are gone
        model.config.save_pretrained(folder)  # PEFT leaves it out
        if self.figures and folder == Path(self.args.output_dir):
            entries = [
                measured_entry(
                    "reward", name, [(value, 1.0) for value in own], dataset={"split": "held-out"}, generation={},
                    higher_is_better=name != "brier", title=f"pairs, {name.replace('_', ', ')}",
                )
                for name, own in self._items.items() if own
            ]  # fmt: skip
            write_results(
                folder / self._results, self._measured_model(folder, model), entries, environment(model.device.type)
            )

    def _card(self):
        heads = self.args.heads
        return {
            "method": "a reward model of answers with passages"
            + (f", a head each for {', '.join(heads)}" if heads else ""),
            "verifier": "the judges that compared the pairs",
            "objective": "Bradley-Terry on pairs of answers",
            "reliability": calibration.reliability_bins(self._shares, self._truths) if self.figures else [],
        }

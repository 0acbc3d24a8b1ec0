"""A process reward model (ER-PRM, arXiv 2412.11006): P(correct) at the end of every step, by soft labels."""

from __future__ import annotations

from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
)

from hf_factuality.data.questions import read_questions
from hf_factuality.errors import DataError
from hf_factuality.hub.cards.methods import METHODS
from hf_factuality.methods.probe.judge import encode_completions
from hf_factuality.methods.process_reward.config import ProcessRewardConfig
from hf_factuality.methods.process_reward.formula import UNIT, process_loss
from hf_factuality.methods.process_reward.judge import PROCESS, ProcessVerifier, mark_steps
from hf_factuality.methods.truthfulness.trainer import TruthfulnessTrainer, _heads
from hf_factuality.verifiers.judges.pairs import with_broken_tokens


class ProcessRewardTrainer(TruthfulnessTrainer):
    """Trains a process reward model for [`~hf_factuality.verifiers.ProcessJudge`] (ER-PRM, arXiv 2412.11006).

    Differs from [`TruthfulnessTrainer`] in that it reads whole solutions, with a label in [0, 1] at the end of every step. The
    loss is the soft cross-entropy of a two-way softmax there; temperature, expected calibration error and Brier score are
    against the soft labels, accuracy and AUROC against labels of at least .5. Differs from the paper in that the softmax over
    two label tokens is kept as a head of two rows, and the other rows of the output layer are dropped.

    Args:
        model (`str` or `PreTrainedModel`):
            The base by name, or a token classifier of two classes, whose head is kept.
        args ([`ProcessRewardConfig`], *optional*):
            Settings.
        train_dataset (`Dataset`):
            Rows as `hf-factuality build-process-labels` makes them: `steps` (texts), `labels` (numbers in [0, 1] or booleans,
            `None` is unknown), `question` or `prompt`, and maybe `completion` (text or messages, in which the steps stand in
            order; else they are lines) and `topic`. TRL's `completions` may stand for `steps`. What has no label, is longer
            than `max_length` or is changed by the tokenizer is left out and counted.
        eval_dataset, processing_class, peft_config, **kwargs:
            As for [`TruthfulnessTrainer`], which raises the same errors, as it does (`ValueError`) for a label that is no single
            token, a `step_tag` of special tokens, and `head="label_tokens"` with a loaded model.
    """

    _tag_names = ["trl", "process-reward", "hf_factuality"]
    _name, _config, _task, _unit = "ProcessReward", ProcessRewardConfig, "token-classification", "steps"
    _results = "results-process.json"
    _paper = METHODS["process_reward"].paper.of_trl
    _settings, _verifier = PROCESS, ProcessVerifier
    _kind, _peft_task, _collator = "ForTokenClassification", "TOKEN_CLS", DataCollatorForTokenClassification

    def __init__(
        self,
        model, args=None, train_dataset=None, eval_dataset=None, processing_class=None, peft_config=None, **kwargs
    ):  # fmt: skip
        args = self._checked_args(args, model)
        if args.head == "label_tokens" and not isinstance(model, str):
            raise ValueError("head='label_tokens' takes two rows of the model's output layer: pass the model by name")
        self._tag = args.step_tag
        super().__init__(model, args, train_dataset, eval_dataset, processing_class, peft_config, **kwargs)
        settings = getattr(self.accelerator.unwrap_model(self.model).config, PROCESS)
        settings.update(pool="last", step_tag=args.step_tag, split=args.step_split)

    def _load(self, name, args, known):
        config, rows = AutoConfig.from_pretrained(name, num_labels=2, revision=known.get("revision")), {}
        config.classifier_dropout = 0.0  # as before the output layer of a language model
        if args.head == "label_tokens":
            good, bad = (self._reads[1](text, add_special_tokens=False)["input_ids"] for text in args.label_tokens)
            if not len(good) == len(bad) == 1 or good == bad:
                raise ValueError(f"label_tokens={args.label_tokens} are {good} and {bad}; each must be one of its own")
            layer = AutoModelForCausalLM.from_pretrained(name, **known).get_output_embeddings()
            # In the order of `CLASSES`.
            rows = {part: value[bad + good].detach().clone() for part, value in layer.named_parameters()}
        model = AutoModelForTokenClassification.from_pretrained(name, config=config, **known)
        with torch.no_grad():
            for part, value in _heads(model)[-1].named_parameters() if rows else ():
                value.copy_(rows.get(part, torch.zeros(())))
        return model

    def _read(self, dataset, name):
        prompt, tokenizer, longest = self._reads
        if self._tag and with_broken_tokens(self._tag, tokenizer) != self._tag:
            raise ValueError(f"step_tag={self._tag!r} holds a special token, which texts must not; choose another")
        columns = dataset.column_names if isinstance(dataset, Dataset) else ()
        listed = "steps" if "steps" in columns else "completions"
        if not {listed, "labels"} <= {*columns}:
            raise DataError(f"the {name} dataset must be a Dataset with columns 'steps' and 'labels', got {columns}")
        # A question may have many solutions.
        given = [{key: row[key] for key in row if key != "id"} for row in dataset]
        rows = []
        for number, question in enumerate(read_questions(given, f"the {name} dataset")):
            row = question.row
            try:
                text, ends = _marked(row.get("completion"), row[listed], row["labels"], self._tag)
            except (TypeError, ValueError) as error:
                raise DataError(f"row {number} of the {name} dataset: {error}") from None
            (ids,), (places,) = encode_completions(tokenizer, prompt, [(question.question, text)])
            # By the last token that holds the character.
            at = [max((n for n, (a, b) in enumerate(places or ()) if a < end <= b), default=-1) for end in ends]
            known = {n: round(r * UNIT) for n, r in zip(at, row["labels"], strict=True) if r is not None}
            left_out = ["step without a label"] * row["labels"].count(None)
            if len(ids) > longest:
                left_out = [f"longer than {longest} tokens"]
            elif len({*at} - {-1}) < len(ends):
                left_out = ["changed by the tokenizer"]
            elif not known:
                left_out = ["no label"]
            else:
                labels = [known.get(n, -100) for n in range(len(ids))]
                rows.append({"input_ids": ids, "labels": labels, "topic": question.topic or question.question})
            self.left_out.update(f"{name}: {reason}" for reason in left_out)
        return rows

    @staticmethod
    def _is_true(label):
        return label >= UNIT / 2

    def _claims(self, found):
        inside = found.label_ids >= 0
        margins = found.predictions[..., 1] - found.predictions[..., 0]
        return [part.tolist() for part in (margins[inside], found.label_ids[inside] / UNIT, inside.nonzero()[0])]

    def _loss(self, outputs, labels, num_items_in_batch=None):
        return process_loss((outputs.logits[..., 1] - outputs.logits[..., 0]).float(), labels)


def _marked(completion: Any, steps: Any, labels: Any, tag: str | None) -> tuple[str, list[int]]:
    """What of a row the model reads, and the ends in it of its steps, or of their tags."""
    if not isinstance(steps, list) or not all(isinstance(step, str) and step.strip() for step in steps):
        raise ValueError(f"steps are a list of texts that are not blank, got {steps!r:.100}")
    if len(labels) != len(steps) or not all(label is None or 0 <= label <= 1 for label in labels):
        raise ValueError(
            f"{len(steps)} steps need as many labels in [0, 1], or None where unknown, got {labels!r:.100}"
        )
    text = "\n".join(steps) if completion is None else completion
    text = text if isinstance(text, str) else text[-1]["content"]
    ends, start = [], 0
    for step in steps:
        start = text.find(step, start)
        if start < 0:
            raise ValueError(f"the step {step!r:.80} is not in the completion, behind the step before it")
        ends.append(start := start + len(step))
    return mark_steps(text, ends, tag)

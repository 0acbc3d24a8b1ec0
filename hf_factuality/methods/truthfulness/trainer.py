"""A classifier of claims on a language model, whose P(true) is calibrated before it is saved."""

from __future__ import annotations

import copy
import logging
import random
import re
from collections import Counter, defaultdict
from math import log
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, set_seed
from transformers.integrations import is_deepspeed_zero3_enabled
from trl.trainer.base_trainer import _BaseTrainer

from hf_factuality.errors import DataError
from hf_factuality.functional import calibration
from hf_factuality.functional.metrics import bootstrap_interval
from hf_factuality.functional.scoring import mean
from hf_factuality.generation.causal import render
from hf_factuality.hub.cards.methods import METHODS
from hf_factuality.hub.results import environment, measured_entry, write_results
from hf_factuality.io.files import write_atomically
from hf_factuality.io.svg import plot_svg
from hf_factuality.methods.probe.formula import pool_spans
from hf_factuality.methods.truthfulness.config import TruthfulnessConfig
from hf_factuality.methods.truthfulness.judge import SETTINGS, TruthfulnessVerifier, claim_prompt, encode_claims
from hf_factuality.spans import Label
from hf_factuality.trainers.base import FactualityTrainer
from hf_factuality.verifiers.pipeline import describe_pipeline


logger = logging.getLogger(__name__)

CLASSES = (Label.CONTRADICTED.value, Label.SUPPORTED.value)
METRICS = {
    "auroc": ("AUROC", calibration.auroc),
    "ece": ("expected calibration error (10 bins)", calibration.expected_calibration_error),
    "brier": ("Brier score", calibration.brier_score),
    "accuracy": (
        "accuracy",
        lambda p, y: mean([float((q >= 0.5) == (true >= 0.5)) for q, true in zip(p, y, strict=True)]),
    ),
}
RELIABILITY = "reliability.svg"
_LABELS = (None, *(label.value for label in Label))
_HEAD = re.compile(r"(?!.*(?:original_module|lora_))(?:.*\.)?(?:score|classifier)\b")


class TruthfulnessTrainer(FactualityTrainer, _BaseTrainer):
    """Trains a classifier of claims for [`~hf_factuality.verifiers.TruthfulnessJudge`], and calibrates it.

    Differs from [`~transformers.Trainer`] in its data and in what follows training: a temperature is fitted on held-out claims
    and divided into the classification head, so that any runtime gives calibrated probabilities. What it saves is a model and
    a verifier pipeline. Which claims, and 2:1, are KLCF's (arXiv 2509.23765); the rest is ours.

    Args:
        model (`str` or `PreTrainedModel`):
            The base, or a classifier of two classes.
        args ([`TruthfulnessConfig`], *optional*):
            Settings.
        train_dataset (`Dataset`):
            Columns `claim`, `label` (`"supported"` or `"contradicted"`; others are left out and counted) and maybe `question`
            and `topic`, see docs/truthfulness.md. Some topics are held out for calibration.
        eval_dataset (`Dataset`, *optional*):
            Claims that the figures are of, at their natural ratio. `None`: those of the calibration, as the card then says.
        peft_config (`PeftConfig`, *optional*):
            Adapter to train; the head is trained whole beside it.
        processing_class (`PreTrainedTokenizerBase`, *optional*), **kwargs:
            As for the parent.

    Attributes:
        left_out (`Counter`): Rows that are neither trained nor measured on, by dataset and reason.
        figures (`dict[str, float]`): After training, [`METRICS`], and with `_uncalibrated` those before the temperature.

    Raises:
        `TypeError`: `args` is not a [`TruthfulnessConfig`].
        `ValueError`: ZeRO-3 or FSDP, a tokenizer that cannot pad, an adapter of prompts, a model of other than two classes, an
            argument that the trainer sets itself (`compute_metrics`, `data_collator`).
        `DataError`: no such columns, an unknown label, or claims of one kind only.
        `NonFiniteError`: during training, at a loss or gradient that is not finite.
    """

    loss_is_scaled_for_ga = False
    _tag_names = ["trl", "truthfulness", "hf_factuality"]
    _name, _unit = "Truthfulness", "claims"
    _config = TruthfulnessConfig
    _task = "text-classification"
    _template_file = "rm_model_card.md"
    _settings, _verifier, _results = SETTINGS, TruthfulnessVerifier, "results-truthfulness.json"
    _classes = CLASSES
    _kind, _peft_task, _collator = "ForSequenceClassification", "SEQ_CLS", DataCollatorWithPadding
    _paper = METHODS["truthfulness_model"].paper.of_trl

    def __init__(
        self,
        model, args=None, train_dataset=None, eval_dataset=None, processing_class=None, peft_config=None, **kwargs
    ):  # fmt: skip
        args = self._checked_args(args, model)
        self._refuse_own(
            kwargs, "data_collator", "compute_metrics", "compute_loss_func", "preprocess_logits_for_metrics"
        )
        known = {"dtype": torch.float32, **(args.model_init_kwargs or {})}
        if processing_class is None and isinstance(model, str):
            processing_class = AutoTokenizer.from_pretrained(model, revision=known.get("revision"))
        self._refuse_processor(processing_class)
        if getattr(processing_class, "pad_token", None) is None:
            raise ValueError("the tokenizer has no `pad_token`; set it, and pass the tokenizer as `processing_class`")
        template = self._template(args, processing_class)
        self._reads = (claim_prompt(template), processing_class, args.max_length)
        self.left_out: Counter[str] = Counter()
        self.figures: dict[str, float] = {}
        self._held_out = eval_dataset is not None
        rows, rng = self._read(train_dataset, "train"), random.Random(f"claims {args.seed}")
        topics = sorted({row["topic"] for row in rows})
        apart = set(rng.sample(topics, min(len(topics), max(1, round(args.calibration_share * len(topics))))))
        natural = self._both([row for row in rows if row["topic"] not in apart], "train")
        measured = own = self._both([row for row in rows if row["topic"] in apart], "calibration")
        if self._held_out:
            measured = self._both(self._read(eval_dataset, "eval"), "eval")
            if shared := {row["topic"] for row in measured} & set(topics):
                logger.warning("%d topics of the eval dataset are in the train dataset too", len(shared))
        chosen, self._log_odds_added = _at_ratio(natural, args.ratio, rng)
        self.calibration_dataset, train, test = map(Dataset.from_list, (own, chosen, measured))
        train.info.description = train_dataset.info.description  # for the card
        if isinstance(model, str):
            set_seed(args.seed)  # the head is drawn
            model = self._load(model, args, known)
        config = model.config
        if config.num_labels != 2 or self._kind not in type(model).__name__ or not _heads(model):
            told = f"the model is a {type(model).__name__} with num_labels={config.num_labels}"
            raise ValueError(f"{told}; pass its name, or a model {self._kind} of 2 classes, `score` or `classifier`")
        config.id2label = dict(enumerate(self._classes))
        config.label2id = {name: n for n, name in enumerate(self._classes)}
        config.pad_token_id = processing_class.pad_token_id
        setattr(config, self._settings, {"template": template, "temperature": None})
        if peft_config is not None:
            from peft import get_peft_model

            if getattr(peft_config, "is_prompt_learning", False):
                raise ValueError(f"a {type(peft_config).__name__} cannot be merged into its base: pass a LoraConfig")
            peft_config = copy.copy(peft_config)
            peft_config.task_type = self._peft_task  # the head is trained and saved too
            if getattr(peft_config, "target_modules", None) == "all-linear":
                peft_config.exclude_modules = peft_config.exclude_modules or ["score", "classifier"]  # trained whole
            model = get_peft_model(model, peft_config)
        super().__init__(
            model, args, self._collator(processing_class), train_dataset=train, eval_dataset=test,
            processing_class=processing_class, compute_metrics=self._metrics, compute_loss_func=self._loss, **kwargs,
        )  # fmt: skip
        if self.is_fsdp_enabled or is_deepspeed_zero3_enabled():
            raise ValueError("FSDP and ZeRO-3 split the head that is calibrated: take DDP or ZeRO-2, with LoRA")

    @property
    def _tokenizer(self):
        return self.processing_class

    def _read(self, dataset, name: str) -> list[dict[str, Any]]:
        """Encoded claims with `labels` (1: supported) and `topic`; what is left out is counted."""
        prompt, tokenizer, longest = self._reads
        columns = dataset.column_names if isinstance(dataset, Dataset) else ()
        if not {"claim", "label"} <= set(columns):
            raise DataError(f"the {name} dataset must be a Dataset with columns 'claim' and 'label', got {columns}")
        rows = []
        for number, row in enumerate(dataset):
            claim, label, question = row["claim"], row["label"], row.get("question") or ""
            if not (isinstance(claim, str) and isinstance(question, str)) or label not in _LABELS:
                told = f"a claim or question is text, a label one of {_LABELS}, got {claim!r:.80}, {question!r:.80}, {label!r}"
                raise DataError(f"row {number} of the {name} dataset: {told}")
            (ids,) = encode_claims(tokenizer, prompt, [(question, claim)])["input_ids"]
            reason = label if label not in CLASSES else f"longer than {longest} tokens" if len(ids) > longest else ""
            if reason != "":
                self.left_out[f"{name}: {reason}"] += 1
                continue
            topic = row.get("topic")
            topic = (question or claim) if topic in (None, "") else str(topic)
            rows.append({"input_ids": ids, "labels": CLASSES.index(label), "topic": topic})
        return rows

    def _both(self, rows: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
        labels = [{row["labels"]} if isinstance(row["labels"], int) else {*row["labels"]} for row in rows]
        truths = [self._is_true(label) for found in labels for label in found if label >= 0]
        if not 0 < sum(truths) < len(truths):
            false = self._classes[0].replace("_", " ")
            told = f"the {self._unit} for {name} are {sum(truths)} supported and {truths.count(False)} {false}"
            told += f", and both are needed; left out: {dict(self.left_out)}"
            raise DataError(f"{told}. Label more of them, or topics, or change calibration_share")
        return rows

    @staticmethod
    def _is_true(label: int) -> bool:
        return label % 2 == 1

    def _template(self, args, tokenizer) -> str:
        return args.template or chat_template(tokenizer)

    def _judge_arguments(self, model) -> dict[str, Any]:
        """Settings of the verifier that is saved."""
        return {"max_length": self.args.max_length}

    def _load(self, name: str, args, known: dict[str, Any]):
        return AutoModelForSequenceClassification.from_pretrained(name, num_labels=2, **known)

    def _claims(self, found) -> list[list]:
        """Log-odds, truth and row of each claim that was predicted."""
        both = (
            torch.as_tensor(found.predictions[..., 1] - found.predictions[..., 0]),
            torch.as_tensor(found.label_ids),
        )
        both = (part.reshape(len(part), -1) for part in both)  # a claim of its own row is a span of one token
        return [part.tolist() for part in pool_spans(*both, getattr(self.args, "pool", "max"))]

    def _metrics(self, found) -> dict[str, float]:
        margins, truths, _ = self._claims(found)
        return {name: score(list(map(calibration.sigmoid, margins)), truths) for name, (_, score) in METRICS.items()}

    def _loss(self, outputs, labels, num_items_in_batch=None):
        """Cross-entropy; while training, of the logits plus what the ratio adds to the log-odds of being true."""
        added = self._log_odds_added if self.model.training else 0.0
        logits = outputs.logits.float()
        return torch.nn.functional.cross_entropy(logits + logits.new_tensor([0.0, added]), labels)

    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        self.figures = {}  # of weights that are going
        settings = getattr(self.accelerator.unwrap_model(self.model).config, self._settings)
        settings |= dict.fromkeys(settings.keys() & {"temperature", "threshold"})
        output = super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)
        self.calibrate()
        return output

    def calibrate(self) -> float:
        """Divide the head by the temperature that fits the calibration claims best, and measure; returns the temperature.

        Checkpoints of the training are not calibrated. Where it was calibrated before, the config records the product.
        """
        margins, truths, _ = self._claims(self.predict(self.calibration_dataset))
        temperature = calibration.fit_temperature(margins, truths)
        found, model = self.predict(self.eval_dataset), self.accelerator.unwrap_model(self.model)
        with torch.no_grad():
            for parameter in _heads(model)[-1].parameters():
                parameter.div_(temperature)
        settings = getattr(model.config, self._settings)
        settings["temperature"] = temperature * (settings["temperature"] or 1.0)
        if "threshold" in settings:
            calibrated = [calibration.sigmoid(margin / temperature) for margin in margins]
            settings["threshold"] = calibration.best_threshold(calibrated, truths)
        margins, self._labels, rows = self._claims(found)
        topics = self.eval_dataset["topic"]
        self._topics = [topics[row] for row in rows]
        self._measured = [calibration.sigmoid(margin / temperature) for margin in margins]
        self.figures = {name: score(self._measured, self._labels) for name, (_, score) in METRICS.items()}
        self.figures |= {f"{name}_uncalibrated": found.metrics[f"test_{name}"] for name in ("ece", "brier")}
        self.log({"temperature": temperature, **{f"calibrated_{name}": value for name, value in self.figures.items()}})
        return temperature

    def _save(self, output_dir=None, state_dict=None):
        super()._save(output_dir, state_dict)
        if not self.args.should_save:
            return
        folder, model = Path(output_dir or self.args.output_dir), self.accelerator.unwrap_model(self.model)
        for stale in (self._results, RELIABILITY):  # of weights that are gone
            (folder / stale).unlink(missing_ok=True)
        model.config.save_pretrained(folder)  # PEFT leaves it out
        verifier = self._verifier(model, self.processing_class, **self._judge_arguments(model))
        verifier.judge._source = {"model": "."}
        describe_pipeline(verifier).write(folder, marker=False)
        if self.figures and folder == Path(self.args.output_dir):
            self._write_results(folder, model)

    def _entries(self) -> list[dict[str, Any]]:
        """The figures as entries of a file of results."""
        topics = defaultdict(list)
        for topic, *claim in zip(self._topics, self._measured, self._labels, strict=True):
            topics[topic].append(claim)
        where = "that neither training nor temperature saw" if self._held_out else "that the temperature was fitted on"
        same = measured_entry(
            self._settings, "", [(1.0, 1.0)] * len(self._measured), dataset={"split": "held-out"}, generation={},
            note=f"{self._unit} at their natural ratio, on topics {where}.",
        )  # fmt: skip
        entries, drawing = [], {"resamples": 200, "seed": 0, "level": 0.95}
        for key, value in self.figures.items():
            title, score = METRICS[key.removesuffix("_uncalibrated")]
            entry = {"metric": key, "value": value, "title": title, "higher_is_better": key in ("auroc", "accuracy")}
            if key in METRICS:
                found = bootstrap_interval(
                    list(topics.values()), lambda own, f=score: f(*zip(*sum(own, []), strict=True)), **drawing
                )
                interval = found and {"low": found[0], "high": found[1], **drawing}
            else:
                entry["title"], interval = f"{title} before calibration", None
            entries.append(same | entry | {"confidence_interval": interval})
        return entries

    def _write_results(self, folder: Path, model) -> None:
        measured, device = self._measured_model(folder, model), environment(model.device.type)
        write_results(folder / self._results, measured, self._entries(), device)
        points = [(own.confidence, own.accuracy) for own in self._bins()]
        drawn = plot_svg("Reliability", "mean P(true)", "share that is true", {"": points}, diagonal=True)
        write_atomically(folder / RELIABILITY, drawn.encode("utf-8"))

    def _bins(self) -> list[calibration.Bin]:
        return calibration.reliability_bins(self._measured, self._labels) if self.figures else []

    def _card(self):
        args, temperature = self.args, getattr(self.model.config, self._settings)["temperature"]
        return {
            "method": f"a classification head on {self._unit}",
            "verifier": f"the one that labelled the {self._unit}",
            "objective": f"cross-entropy on {self._unit}, {f'{args.ratio:g} supported to 1 contradicted' if args.ratio else 'all'}, "
            f"corrected to their own ratio; {f'temperature {temperature:.3f}' if temperature else 'not calibrated'}",
            "named": ("ratio",),
            "reliability": self._bins(),
        }


def chat_template(tokenizer) -> str:
    """A template: the claim as the assistant's answer to the question, or below it if the tokenizer has no chat template."""
    chat = bool(tokenizer.chat_template)
    text = render(tokenizer, [{"role": "user", "content": "{{question|plain}}"}], chat) + "\n" * (not chat)
    if tokenizer("a")["input_ids"][0] == tokenizer.bos_token_id:  # which it adds by itself
        text = text.removeprefix(tokenizer.bos_token or "")
    return text + "{{claim|plain}}"


def _at_ratio(rows: list[dict[str, Any]], ratio: float | None, rng: random.Random) -> tuple[list[dict], float]:
    """Claims at the ratio, and what that adds to the log-odds of being true."""
    if ratio is None:
        return rows, 0.0
    rows = rng.sample(rows, len(rows))
    true, false = ([row for row in rows if row["labels"] == kind] for kind in (1, 0))
    some, others = true[: max(1, round(ratio * len(false)))], false[: max(1, round(len(true) / ratio))]
    return some + others, log(len(some) / len(true) * len(false) / len(others))


def _heads(model) -> list[torch.nn.Module]:
    return [part for name, part in model.named_modules() if _HEAD.match(name) and type(part) is torch.nn.Linear]

"""A classifier of claims beside their evidence, calibrated through the judge that will run it."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from math import log
from typing import Any

import torch
from datasets import Dataset

from hf_factuality.errors import DataError
from hf_factuality.functional import calibration
from hf_factuality.functional.metrics import bootstrap_interval
from hf_factuality.functional.scoring import mean
from hf_factuality.hub.cards.methods import CardMethod
from hf_factuality.hub.results import measured_entry
from hf_factuality.methods.truthfulness.trainer import TruthfulnessTrainer, _heads
from hf_factuality.methods.verifier.config import VerifierConfig
from hf_factuality.methods.verifier.data import NOT_SUPPORTED, SUPPORTED, read_labelled_claims
from hf_factuality.reading.words import FUNCTION_WORDS
from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.ensemble import fit_calibration
from hf_factuality.verifiers.judges.nli import NLIJudge, NLIVerifier


CLAIM_VERIFIER = "claim_verifier"
"""Entry of the model's `config.json`: the `scale` and `shift` that its head was calibrated by, and the `threshold` kept."""
# A probability is moved this far from 0 and 1 before its log-odds are taken.
_EDGE = 1e-6
_RESAMPLING = {"resamples": 200, "seed": 0, "level": 0.95}
FIGURES = {
    "auroc": "AUROC",
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "ece": "expected calibration error (10 bins)",
    "brier": "Brier score",
}


class _PairReader(NLIJudge):
    """The windows and the token ids of a judge whose model is not there yet."""

    def __post_init__(self):
        pass


class VerifierTrainer(TruthfulnessTrainer):
    """Trains an encoder to tell whether evidence supports a claim, for [`~hf_factuality.verifiers.NLIJudge`], and calibrates it.

    Differs from [`TruthfulnessTrainer`] in that evidence is read: training reads one window of it per claim, the one that shares
    the most words with it, and measuring reads all of them through the judge, whose score is that of the best window. A
    logistic curve (Platt) is fitted to those scores on held-out claims, and written into the head, so that any runtime gives
    calibrated probabilities; a head without bias gets a temperature alone. Training is on claims that are supported or not:
    contradicted and not mentioned are one class.

    Args:
        model (`str` or `PreTrainedModel`):
            An encoder by name, whose head may be new, or a classifier of two classes.
        args ([`VerifierConfig`], *optional*):
            Settings.
        train_dataset (`Dataset`):
            Columns `claim`, `evidence` (a text or several), `label` (see
            [`~hf_factuality.methods.verifier.data.CLAIM_LABELS`]; rows without are left out) and maybe `kind`, `topic`,
            `source` and `window` (the text that training reads instead of the best window). Some topics, by default the
            first passages of evidence, are held out for calibration.
        eval_dataset (`Dataset`, *optional*):
            Claims that the figures are of, per `source`, and per `kind`. `None`: those of the calibration, as the card says.
        processing_class, peft_config, **kwargs:
            As for [`TruthfulnessTrainer`], which raises the same errors.

    Attributes:
        figures (`dict[str, float]`): After training, of each source [`FIGURES`], accuracy per kind and claims a second.
    """

    _tag_names = ["trl", "verifier", "hf_factuality"]
    _name, _config, _unit = "Verifier", VerifierConfig, "claims with evidence"
    _settings, _verifier, _results = CLAIM_VERIFIER, NLIVerifier, "results-verifier.json"
    _classes = (NOT_SUPPORTED, SUPPORTED)
    _paper: dict[str, str] = {}

    def __init__(
        self,
        model, args=None, train_dataset=None, eval_dataset=None, processing_class=None, peft_config=None, **kwargs
    ):  # fmt: skip
        args = self._checked_args(args, model)
        if not isinstance(model, str):
            self._check_length(args, model.config)
        super().__init__(model, args, train_dataset, eval_dataset, processing_class, peft_config, **kwargs)
        self._forget()

    def _template(self, args, tokenizer):
        if args.max_length > tokenizer.model_max_length:
            told = f"is more than the {tokenizer.model_max_length} tokens that the tokenizer allows; lower it"
            raise ValueError(f"max_length={args.max_length} {told}")
        return "{{claim|plain}}"

    def _load(self, name, args, known):
        model = super()._load(name, args, known)
        self._check_length(args, model.config)
        return model

    def _check_length(self, args, config) -> None:
        positions = getattr(config, "max_position_embeddings", None)
        if positions and args.max_length > positions:
            told = f"is more than the {positions} tokens that the encoder reads; set it to {positions} or less"
            raise ValueError(f"max_length={args.max_length} {told}")

    def _read(self, dataset, name):
        tokenizer, longest = self._reads[1:]
        columns = dataset.column_names if isinstance(dataset, Dataset) else ()
        if not {"claim", "evidence", "label"} <= set(columns):
            told = f"the {name} dataset must be a Dataset with columns 'claim', 'evidence' and 'label'"
            raise DataError(f"{told}, got {columns}")
        found = read_labelled_claims([(f"the {name} dataset", list(enumerate(dataset)))])
        self.left_out[f"{name}: without a label"] += len(dataset) - len(found)
        reader = _PairReader(None, tokenizer, max_length=longest)
        asked = [
            JudgeInput(row["claim"], tuple(row["evidence"]) if row["window"] is None else (row["window"],))
            for row in found
        ]
        windows = reader._windows(asked)
        kept = [(row, _best(row["claim"], own)) for row, own in zip(found, windows, strict=True) if own]
        self.left_out[f"{name}: longer than {longest} tokens"] += len(found) - len(kept)
        self.left_out = +self.left_out
        encoded = reader._encode([(window, row["claim"]) for row, window in kept]) if kept else {}
        about = ("claim", "evidence", "kind", "topic", "source")
        return [
            {column: values[place] for column, values in encoded.items()}
            | {"labels": self._classes.index(row["label"])}
            | {column: row[column] for column in about}
            for place, (row, _) in enumerate(kept)
        ]

    def _both(self, rows, name):
        if name == "eval":  # each file has figures of its own
            for source in dict.fromkeys(row["source"] for row in rows):
                super()._both([row for row in rows if row["source"] == source], f"evaluation of {source!r}")
        return super()._both(rows, name)

    def _forget(self) -> None:
        settings = dict.fromkeys(("scale", "shift", "threshold"))
        setattr(self.accelerator.unwrap_model(self.model).config, self._settings, settings)

    def train(self, resume_from_checkpoint=None, trial=None, ignore_keys_for_eval=None):
        self._forget()
        return super().train(resume_from_checkpoint, trial, ignore_keys_for_eval)

    def _judged(self, dataset: Dataset) -> tuple[list[dict[str, Any]], list[float], float]:
        """Rows that were judged, the log-odds of their scores, and the seconds that it took."""
        rows = dataset.to_list()
        model = self.accelerator.unwrap_model(self.model)
        judge = NLIJudge(
            model,
            self.processing_class,
            max_length=self.args.max_length,
            batch_size=self.args.per_device_eval_batch_size,
        )
        started = time.perf_counter()
        found = judge.judge([JudgeInput(row["claim"], tuple(row["evidence"])) for row in rows])
        seconds = time.perf_counter() - started
        scored = [(row, one.score) for row, one in zip(rows, found, strict=True) if one.score is not None]
        odds = [min(max(score, _EDGE), 1 - _EDGE) for _, score in scored]
        return [row for row, _ in scored], [log(p / (1 - p)) for p in odds], seconds

    def calibrate(self) -> float:
        """Write the curve that fits the held-out claims best into the head, choose the threshold, and measure; returns the scale by
        which the log-odds were multiplied. Checkpoints of the training are not calibrated."""
        model = self.accelerator.unwrap_model(self.model)
        rows, margins, _ = self._judged(self.calibration_dataset)
        truths = [row["labels"] == 1 for row in rows]
        head = _heads(model)[-1]
        scale, shift = 1 / calibration.fit_temperature(margins, truths), 0.0
        if head.bias is not None:
            curve = fit_calibration([[calibration.sigmoid(z)] for z in margins], truths)
            # Scores that rank no better than chance are made equal, not turned round.
            scale = max(curve.weights[0], 0.01)
            shift = curve.intercept - scale * curve.means[0]
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.mul_(scale)
            if head.bias is not None:
                head.bias[1] += shift
        settings = getattr(model.config, self._settings)
        shares = [calibration.sigmoid(scale * z + shift) for z in margins]
        threshold = calibration.best_threshold(shares, truths) if self.args.fit_threshold else 0.5
        settings |= {"scale": scale, "shift": shift, "threshold": threshold}
        self._measure(threshold, scale, shift)
        return scale

    def _measure(self, threshold: float, scale: float, shift: float) -> None:
        self._sources: dict[str, dict[str, Any]] = {}
        by_source = defaultdict(list)
        for place, source in enumerate(self.eval_dataset["source"]):
            by_source[source if self._held_out else "held-out claims"].append(place)
        for source, places in by_source.items():
            rows, margins, seconds = self._judged(self.eval_dataset.select(places))
            if missing := len(places) - len(rows):
                self.left_out[f"{source}: not judged"] += missing
            shares = list(map(calibration.sigmoid, margins))
            items = [(p, row["labels"] == 1, p >= threshold) for p, row in zip(shares, rows, strict=True)]
            before = [calibration.sigmoid((z - shift) / scale) for z in margins]
            kinds = defaultdict(list)
            for item, row in zip(items, rows, strict=True):
                kinds[row["kind"]].append(item)
            self._sources[source] = {
                "items": items,
                "topics": [row["topic"] for row in rows],
                "kinds": dict(kinds) if len(kinds) > 1 else {},
                "speed": len(places) / seconds,
                "ece_uncalibrated": calibration.expected_calibration_error(before, [truth for _, truth, _ in items]),
            }
        self._measured = [item[0] for own in self._sources.values() for item in own["items"]]
        self._labels = [item[1] for own in self._sources.values() for item in own["items"]]
        self.figures = {}
        for source, own in self._sources.items():
            known = {name: figure(name, own["items"]) for name in FIGURES}
            known |= {"ece_uncalibrated": own["ece_uncalibrated"], "claims_per_second": own["speed"]}
            known |= {f"accuracy of {kind}": figure("accuracy", items) for kind, items in own["kinds"].items()}
            self.figures |= {f"{source}: {name}": value for name, value in known.items()}
        self.log({"scale": scale, "shift": shift, "threshold": threshold, **self.figures})

    def _judge_arguments(self, model):
        threshold = getattr(model.config, self._settings)["threshold"]
        return super()._judge_arguments(model) | {"threshold": 0.5 if threshold is None else threshold}

    def _entries(self):
        entries = []
        where = "that neither training nor calibration saw" if self._held_out else "that the calibration was fitted on"
        for source, own in self._sources.items():
            topics = defaultdict(list)
            for topic, item in zip(own["topics"], own["items"], strict=True):
                topics[topic].append(item)

            def entry(name, title, value, n, interval=None, better=True, source=source):
                note = f"claims of {source}, {where}; at the threshold that the verifier keeps"
                made = measured_entry(
                    source, name, [(1.0, 1.0)] * n, dataset={"dataset": source, "split": "held-out"}, generation={},
                    higher_is_better=better, title=title, note=note,
                )  # fmt: skip
                return made | {"value": value, "confidence_interval": interval}

            for name, title in FIGURES.items():
                found = bootstrap_interval(
                    list(topics.values()), lambda drawn, name=name: figure(name, sum(drawn, [])), **_RESAMPLING
                )
                interval = found and {"low": found[0], "high": found[1], **_RESAMPLING}
                better = name not in ("ece", "brier")
                entries.append(entry(name, title, figure(name, own["items"]), len(own["items"]), interval, better))
            count = len(own["items"])
            title = f"{FIGURES['ece']} before calibration"
            entries.append(entry("ece_uncalibrated", title, own["ece_uncalibrated"], count, better=False))
            for kind, items in sorted(own["kinds"].items()):
                name = re.sub(r"\W+", "_", kind).strip("_").lower()
                entries.append(entry(f"accuracy_{name}", f"accuracy, {kind}", figure("accuracy", items), len(items)))
            entries.append(entry("claims_per_second", "claims a second", own["speed"], count))
        return entries

    def _card(self):
        args = self.args
        kept = getattr(self.accelerator.unwrap_model(self.model).config, self._settings)
        curve = "not calibrated"
        if kept["scale"] is not None:
            curve = f"log-odds times {kept['scale']:.3f} plus {kept['shift']:.3f}, threshold {kept['threshold']:.3f}"
        ratio = f"{args.ratio:g} supported to 1 other, corrected to their own ratio" if args.ratio else "all of them"
        return {
            "method": CardMethod("a classification head on evidence and claim"),
            "verifier": "whoever labelled the claims; those of kinds that name an edit were made by rules from passages",
            "objective": f"cross-entropy on {self._unit}, {ratio}; {curve}",
            "named": ("ratio",),
            "reliability": self._bins(),
        }


def figure(name: str, items: list[tuple[float, bool, bool]]) -> float | None:
    """One of [`FIGURES`] of claims: P(supported), whether that is true, and whether the judge said so. `None` if it is not defined."""
    if name == "accuracy":
        return mean([float(truth == said) for _, truth, said in items])
    if name == "balanced_accuracy":
        right = [[float(truth == said) for _, truth, said in items if truth is kind] for kind in (True, False)]
        return sum(map(mean, right)) / 2 if all(right) else None
    score = {
        "auroc": calibration.auroc,
        "ece": calibration.expected_calibration_error,
        "brier": calibration.brier_score,
    }
    return score[name]([p for p, _, _ in items], [truth for _, truth, _ in items])


def _best(claim: str, windows: list[str]) -> str:
    """The window that shares the most words with the claim; of several the first."""
    words = _words(claim)
    return max(windows, key=lambda window: len(words & _words(window)))


def _words(text: str) -> set[str]:
    return {*re.findall(r"\w+", text.casefold())} - FUNCTION_WORDS

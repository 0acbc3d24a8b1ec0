"""A hallucination probe: a head on one layer of a frozen language model that tells, token by token, what is made up."""

from __future__ import annotations

from datasets import Dataset
from peft import LoraConfig
from peft.utils.constants import DUMMY_TARGET_MODULES
from transformers import AutoConfig, AutoModelForTokenClassification, DataCollatorForTokenClassification

from hf_factuality.data.questions import read_questions
from hf_factuality.errors import DataError, SpanError
from hf_factuality.functional.credit import separate_spans, token_span_index
from hf_factuality.functional.labels import judged_units
from hf_factuality.functional.preference import FREE_OF_HALLUCINATION
from hf_factuality.hub.cards.methods import METHODS
from hf_factuality.methods.probe.config import ProbeConfig
from hf_factuality.methods.probe.formula import probe_loss, span_labels
from hf_factuality.methods.probe.judge import PROBE, ProbeVerifier, encode_completions
from hf_factuality.methods.truthfulness.trainer import TruthfulnessTrainer
from hf_factuality.reading.scopes import scope_text
from hf_factuality.spans import Label, Verification


class ProbeTrainer(TruthfulnessTrainer):
    """Trains a head on a frozen language model for [`~hf_factuality.verifiers.ProbeJudge`] (arXiv 2509.03531).

    Differs from [`TruthfulnessTrainer`] in that claims are read where they stand in a completion, token by token. The head
    reads one layer of the base, after the base's last norm (the paper: before), and the layers above are not loaded. The
    paper's regularisation of LoRA by the base's own loss is left out: the adapter only judges. What is saved is an adapter,
    which without LoRA holds the head alone.

    Args:
        model (`str` or `PreTrainedModel`):
            The base by name, or a token classifier of two classes, whose layers are all kept.
        train_dataset (`Dataset`):
            Rows as `hf-factuality verify` writes them: `completion`, `verification`, `question` or `prompt`, and maybe
            `topic`. Contradicted and unverifiable claims of the answer are hallucinated, supported ones are not; others, and
            rows without any, are left out and counted.
        peft_config (`LoraConfig`, *optional*):
            LoRA to train beside the head. `None`: the head alone.
        args ([`ProbeConfig`], *optional*), eval_dataset, processing_class, **kwargs:
            As for [`TruthfulnessTrainer`], which raises the same errors.
    """

    _tag_names = ["trl", "probe", "hf_factuality"]
    _name, _config, _task, _results = "Probe", ProbeConfig, "token-classification", "results-probe.json"
    _paper = METHODS["probe"].paper.of_trl
    _settings, _verifier = PROBE, ProbeVerifier
    _kind, _peft_task, _collator = "ForTokenClassification", "TOKEN_CLS", DataCollatorForTokenClassification

    def __init__(
        self,
        model, args=None, train_dataset=None, eval_dataset=None, processing_class=None, peft_config=None, **kwargs
    ):  # fmt: skip
        args = self._checked_args(args, model)
        if peft_config is None:  # an adapter of no layer: the head is all that is trained
            peft_config = LoraConfig(target_modules=DUMMY_TARGET_MODULES)
            args.gradient_checkpointing = False  # no gradient reaches the layers
        super().__init__(model, args, train_dataset, eval_dataset, processing_class, peft_config, **kwargs)
        getattr(self.model.config, PROBE).update(pool=args.pool, threshold=None)

    def _load(self, name, args, known):
        config = AutoConfig.from_pretrained(name, revision=known.get("revision"))
        config.num_labels, config.num_hidden_layers = 2, max(1, round(args.layer * config.num_hidden_layers))
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[: config.num_hidden_layers]
        return AutoModelForTokenClassification.from_pretrained(name, config=config, **known)

    def _read(self, dataset, name):
        prompt, tokenizer, longest = self._reads
        columns = dataset.column_names if isinstance(dataset, Dataset) else ()
        if not {"completion", "verification"} <= set(columns):
            told = f"the {name} dataset must be a Dataset with columns 'completion' and 'verification'"
            raise DataError(f"{told}, got {columns}")
        # A question may have many completions.
        given = [{key: row[key] for key in row if key != "id"} for row in dataset]
        asked, shown, found = read_questions(given, f"the {name} dataset"), [], []
        for number, (row, question) in enumerate(zip(given, asked, strict=True)):
            try:
                text, ranges = scope_text(row["completion"])
                found.append(Verification.from_dict(row["verification"]).validate(row["completion"]).gather(ranges))
            except (SpanError, TypeError, AttributeError) as error:
                raise DataError(f"row {number} of the {name} dataset: {error}") from None
            shown.append((question.question, text))
        rows = []
        encoded = zip(*encode_completions(tokenizer, prompt, shown), asked, found, strict=True)
        for ids, places, question, units in ((*row, judged_units(one)) for *row, one in encoded):
            pieces, truths = separate_spans(units, [_TRUTHS.get(unit.label) for unit in units])
            labels = span_labels(token_span_index(places or (), pieces), truths)
            left_out = [unit.label and unit.label.value for unit in units if unit.label not in _TRUTHS]
            if len(ids) > longest:
                left_out.append(f"longer than {longest} tokens")
            elif max(labels, default=-1) < 0:
                left_out.append("no claim" if places else "changed by the tokenizer")
            else:
                rows.append({"input_ids": ids, "labels": labels, "topic": question.topic or question.question})
            self.left_out.update(f"{name}: {reason}" for reason in left_out)
        return rows

    def _loss(self, outputs, labels, num_items_in_batch=None):
        log_odds = (outputs.logits[..., 1] - outputs.logits[..., 0]).float()
        weight, done = self.args.span_weight, self.state.global_step / max(self.state.max_steps, 1)
        return probe_loss(log_odds, labels, done if weight is None else weight, self.args.pool)

    def _card(self):
        pool, threshold = (getattr(self.model.config, PROBE)[name] for name in ("pool", "threshold"))
        objective = f"cross-entropy of tokens and of the {pool} of a claim's tokens; threshold of P(true) {threshold}"
        alone = self.model.peft_config["default"].target_modules == DUMMY_TARGET_MODULES
        method = f"a head on the tokens of claims, {'alone (the adapter has no layer)' if alone else 'with LoRA'}"
        return super()._card() | {"method": method, "objective": objective}


_TRUTHS = {label: int(label in FREE_OF_HALLUCINATION) for label in Label if label is not Label.NO_FACT}

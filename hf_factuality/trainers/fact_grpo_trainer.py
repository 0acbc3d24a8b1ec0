"""GRPO with sentence-level factuality: FSPO and other shapings of the advantage by labelled spans."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import ProcessorMixin
from trl import GRPOTrainer

from hf_factuality.errors import DataError
from hf_factuality.functional import (
    BINARY_VALUES,
    TERNARY_VALUES,
    add_factuality,
    fill_unjudged,
    flip_advantages,
    mean_factuality,
    scale_by_agreement,
    token_values,
)
from hf_factuality.hub.cards.card import describe_verifier, write_trainer_card
from hf_factuality.rewards import check_format
from hf_factuality.spans import TokenOffsets, Verification, opens_think, scope_ranges, scope_text, token_offsets
from hf_factuality.trainers._checkpoints import WholeCheckpoints
from hf_factuality.trainers._finite import CheckedRollouts
from hf_factuality.trainers._publish import Publishes
from hf_factuality.trainers._rollouts import ResumableRollouts
from hf_factuality.trainers._sequence_ratio import SequenceRatios
from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig
from hf_factuality.verifiers.base import Verifier, VerifierInput, evidence_passages
from hf_factuality.verifiers.guard import GuardedVerifier, UnjudgedBatches
from hf_factuality.verifiers.registry import load_verifier


REWARD_NAME = "factuality"
_NOTHING_ELSE = re.compile(r"<think>.*</think>\s*<answer>.*</answer>", re.DOTALL)


@dataclass
class _Finding:
    """A completion of the current generation batch. `verification` is `None` where there was nothing to check against."""

    tokens: TokenOffsets
    verification: Verification | None
    reasoned: bool = True

    @property
    def judged(self) -> bool:
        return self.verification is not None and self.verification.judged


class FactGRPOTrainer(WholeCheckpoints, Publishes, ResumableRollouts, CheckedRollouts, SequenceRatios, GRPOTrainer):
    """GRPO whose advantages are per token: a verifier labels the sentences, and each token's sign follows its sentence.

    Differs from [`~trl.GRPOTrainer`] in two places only. A reward named `factuality` (mean over the sentences, FSPO Eq.
    10) joins `reward_funcs`, and the advantages of shape (B,) become (B, T) by the token factuality (Eq. 11). With
    nothing labelled it computes what the parent computes, to the last bit. Completions that the verifier could not judge
    keep their sign, and their factuality reward becomes the mean of their group's judged ones; a group with fewer than two
    judged completions drops the term.

    Tools, environments, `rollout_func` and vision-language models are refused.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            As for the parent.
        reward_funcs (*optional*):
            As for the parent; may be empty, then factuality is the only reward.
        args ([`FactGRPOConfig`], *optional*):
            Settings.
        train_dataset, eval_dataset, processing_class:
            As for the parent. Where the verifier needs evidence, the datasets have the column `args.evidence_column`.
        verifier ([`Verifier`] or `str`, *optional*, defaults to `"lexical"`):
            Labels the sentences: an object with `verify(inputs)`, or a name for [`load_verifier`].
        **kwargs:
            The parent's other arguments.

    Attributes:
        card_results (`str`, `Path`, list of them, or `dict`, *optional*):
            Files of results for the model card, or `{"before": path, "after": path}`. `None`: those of this model among
            `results*.json` in `args.output_dir` (docs/cards.md).

    Raises:
        `TypeError`: `args` is not a [`FactGRPOConfig`], or `verifier` has no `verify` method.
        `ValueError`: an unknown verifier; a feature that cannot work with spans; think tags that decoding would drop;
            nothing to learn from.
        `DataError`: the evidence column is missing, or holds something else than text.
        `JudgingError`: during training, if the verifier fails on the whole first batch, or on
            `args.max_unjudged_batches` in a row.
        `NonFiniteError`: during training, at an infinite reward, loss or gradient.
    """

    _tag_names = ["trl", "fact-grpo", "fspo", "hf_factuality"]
    _name = "FactGRPO"
    _paper = {
        "title": "Reasoning Models Hallucinate More: Factuality-Aware Reinforcement Learning for Large Reasoning Models",
        "id": "2505.24630",
    }

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: FactGRPOConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        *,
        verifier: Verifier | str = "lexical",
        **kwargs,
    ):
        if args is None:
            name = model if isinstance(model, str) else model.config._name_or_path
            args = FactGRPOConfig(f"{name.split('/')[-1]}-FactGRPO")
        if not isinstance(args, FactGRPOConfig):
            raise TypeError(f"args must be a FactGRPOConfig, got {type(args).__name__}; it takes the same arguments")
        for feature in ("tools", "environment_factory", "rollout_func"):
            if kwargs.get(feature):
                raise ValueError(
                    f"FactGRPOTrainer does not support `{feature}`: text that a tool or an environment wrote would be "
                    "verified as if the model had said it. Use trl.GRPOTrainer with a verifier as reward function."
                )
        verifier = load_verifier(verifier) if isinstance(verifier, str) else verifier
        self._guard = GuardedVerifier(verifier, args.verifier_timeout, args.verifier_batch_size)
        if self._guard.requires_evidence:
            if args.remove_unused_columns:
                raise ValueError(
                    "remove_unused_columns=True drops the evidence before the verifier sees it; set it to False"
                )
            for dataset in _datasets(train_dataset, eval_dataset):
                self._check_evidence(dataset, args.evidence_column)
        self._findings: list[_Finding] = []
        self._opened: list[bool] = []
        self._unjudged = UnjudgedBatches(args.max_unjudged_batches)
        self.card_results: Any = None

        def factuality(
            prompts, completions, completion_ids, log_extra, trainer_state=None, log_metric=None, **columns
        ):
            return self._factuality_rewards(completion_ids, columns, log_extra)

        # Added after construction, as TRL adds the rewards of environments, so that `args.reward_weights` keeps meaning
        # the user's own functions. The parent insists on at least one.
        own = [] if reward_funcs is None else list(reward_funcs) if isinstance(reward_funcs, list) else [reward_funcs]
        if not own and args.factuality_reward_weight == 0:
            raise ValueError(
                f"nothing to learn from: there are no reward_funcs and factuality_reward_weight is 0 (variant={args.variant!r})"
            )
        if not own and args.reward_weights is not None:
            raise ValueError(
                "reward_weights without reward_funcs: weight the only reward with factuality_reward_weight"
            )
        super().__init__(
            model,
            reward_funcs=own or [factuality],
            args=args,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            **kwargs,
        )
        weight = torch.tensor([args.factuality_reward_weight], dtype=torch.float32)
        if own:
            if REWARD_NAME in self.reward_func_names:
                raise ValueError(f"a reward function is named {REWARD_NAME!r}, which is the name of ours; rename it")
            self.reward_funcs = [*self.reward_funcs, factuality]
            self.reward_func_names = [*self.reward_func_names, REWARD_NAME]
            self.reward_processing_classes = [*self.reward_processing_classes, None]
            self.reward_weights = torch.cat([self.reward_weights, weight])
        else:
            self.reward_weights = weight

        if isinstance(self.processing_class, ProcessorMixin):
            raise ValueError("FactGRPOTrainer does not support vision-language models (a processor was passed) yet")
        if args.verify_scope == "think":
            ids = self._tokenizer("<think>a</think>", add_special_tokens=False)["input_ids"]
            decoded = self._tokenizer.decode(ids, skip_special_tokens=True)
            if not scope_ranges(decoded, "think"):
                raise ValueError(
                    f"the tokenizer decodes '<think>a</think>' to {decoded!r}, so no think block would ever be found; add "
                    "the tags as ordinary (not special) tokens, or set verify_scope='completion'"
                )
        self._values = TERNARY_VALUES if args.label_values == "ternary" else BINARY_VALUES

    def _check_evidence(self, dataset, column: str):
        names = getattr(dataset, "column_names", None)
        if names is not None and column not in names:
            raise DataError(
                f"the dataset has no column {column!r} and {type(self._guard.verifier).__name__} needs evidence; it has "
                f"{list(names)}. Name the column with `evidence_column`, or use a verifier that finds its own evidence."
            )
        for row in dataset.select_columns(column) if isinstance(dataset, Dataset) else ():
            _passages(row[column], column)

    def _tokenize_prompts(self, prompts):
        output = super()._tokenize_prompts(prompts)
        # Of the rendered prompt: many chat templates open the block.
        self._opened = [opens_think(self._tokenizer.decode(ids[-32:])) for ids in output[0]]
        return output

    # Verification: completions -> spans -> one number per completion. Called by TRL with the other reward functions.
    def _factuality_rewards(
        self, completion_ids, columns: Mapping[str, Sequence[Any]], log_extra
    ) -> list[float | None]:
        findings = [_Finding(token_offsets(self._tokenizer, ids), None) for ids in completion_ids]
        pending: list[tuple[_Finding, list[tuple[int, int]]]] = []
        inputs: list[VerifierInput] = []
        for number, finding in enumerate(findings):
            row = {name: values[number] for name, values in columns.items()}
            if self._guard.requires_evidence and self.args.evidence_column not in row:
                raise DataError(f"rows have no column {self.args.evidence_column!r}; they have {sorted(row)}")
            evidence = _passages(row.get(self.args.evidence_column), self.args.evidence_column)
            if self._guard.requires_evidence and not evidence:
                continue
            text = finding.tokens.text
            opened = bool(self._opened) and self._opened[number]
            shown, ranges = scope_text(text, self.args.verify_scope, opened)
            if self.args.verify_scope == "think":
                finding.reasoned = bool(ranges) and self._follows_format(text, opened)
            if not finding.reasoned:
                finding.verification = Verification()
                continue
            question = row.get(self.args.question_column)
            inputs.append(VerifierInput(shown, question, evidence, row))
            pending.append((finding, ranges))
        found = self._guard.verify(inputs)
        self._unjudged.add(self._guard.verifier, found, counts=self.model.training)
        for (finding, ranges), verification in zip(pending, found, strict=True):
            finding.verification = verification.spread(ranges)
        self._findings = findings
        log_extra("factuality_labels", [_describe(finding) for finding in findings])
        return [self._mean(finding) if finding.judged else None for finding in findings]

    def _mean(self, finding: _Finding) -> float | None:
        if self.args.variant == "paper_format" and not finding.reasoned:
            return -1.0  # as much as nothing but falsehoods
        return mean_factuality(finding.verification.spans, self._values)

    def _follows_format(self, text: str, opened: bool) -> bool:
        """The released code leaves completions alone that break the format; the paper's formula does not ask for it."""
        if self.args.variant == "paper":
            return True
        text = text if "<think>" in text and not opened else f"<think>{text}"
        # Reasoning that is moved out of its block would be paid for what is left there.
        return check_format(text) and (self.args.variant == "released" or bool(_NOTHING_ELSE.fullmatch(text.strip())))

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        rewards = fill_unjudged(rewards_per_func[:, -1], group_size)
        if rewards_per_func.size(1) > 1:
            # A completion that no reward function could score stays out, whatever its sentences are: with the factuality
            # term alone, its unknown answer would count as a wrong one.
            rewards[torch.isnan(rewards_per_func[:, :-1]).all(dim=1)] = torch.nan
        rewards_per_func[:, -1] = rewards
        # Column by column in memory, as each function's rewards are without ours: the parent logs the mean of each
        # column, and a sum over strided memory rounds differently in the last bit.
        return rewards_per_func.t().contiguous().t()

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        findings, self._findings = self._findings, []
        mask = output["completion_mask"].bool()
        spans = [f.verification.spans if f.judged else () for f in findings]
        # Rows without any labelled sentence (no evidence, no think block, not judged) stay as they are.
        outside = [float(self.args.outside_factuality) if found else 0.0 for found in spans]
        factuality = token_values(
            [f.tokens.offsets for f in findings], spans, self._values, mask.size(1), outside, mask.device
        )
        before = output["advantages"]
        if self.args.credit == "flip":
            output["advantages"] = flip_advantages(before, factuality)
        elif self.args.credit == "additive":
            output["advantages"] = add_factuality(before, factuality, self.args.credit_scale)
        elif self.args.credit == "scaled":
            output["advantages"] = scale_by_agreement(before, factuality, self.args.credit_scale)
        if output["advantages"].dim() == 2:
            flipped = (output["advantages"] * before.unsqueeze(1) < 0) & mask
            self._logs["extra"]["group_advantage"].extend(self._show_advantages(output["advantages"], mask))
        else:
            flipped = torch.zeros_like(mask)
        self._log_factuality(findings, flipped, mask)
        return output

    def create_model_card(self, model_name=None, dataset_name=None, tags=None):
        args = self.args
        write_trainer_card(
            self,
            super().create_model_card,
            model_name,
            dataset_name,
            tags,
            method="FSPO" if args.credit == "flip" else f"FactGRPO with {args.credit} credit",
            verifier=describe_verifier(self._guard.verifier),
            objective=f"{args.variant}: factuality reward weight {args.factuality_reward_weight:g}, "
            f"{args.label_values} labels, {args.credit} credit, {args.loss_type} loss",
        )

    def _log_factuality(self, findings: list[_Finding], flipped, mask):
        mode = "train" if self.model.training else "eval"
        checked = [f.verification for f in findings if f.verification is not None]
        labelled = token_values(
            [f.tokens.offsets for f in findings],
            [[s for s in f.verification.spans if s.label is not None] if f.judged else [] for f in findings],
            dict.fromkeys(TERNARY_VALUES, 1),
            mask.size(1),
            device=mask.device,
        )
        means = [self._mean(finding) for finding in findings if finding.judged]
        totals = torch.tensor(
            [
                mask.sum(), (labelled.bool() & mask).sum(), flipped.sum(),
                len(findings), len(checked), self._guard.last_report.failed,
                sum(means), len(means), sum(len(v.spans) for v in checked),
                sum(span.label is None for v in checked for span in v.spans), sum(not f.reasoned for f in findings),
            ],
            dtype=torch.float32, device=mask.device,
        )  # fmt: skip
        totals = self.accelerator.reduce(totals, reduction="sum").tolist()
        tokens, n_labelled, n_flipped, rows, n_checked, failed, total, judged, sentences, unjudged, bare = totals
        seconds = torch.tensor([self._guard.last_report.seconds], device=mask.device)
        metrics = self._metrics[mode]
        metrics["factuality/tokens_labelled"].append(n_labelled / max(tokens, 1))
        metrics["factuality/tokens_flipped"].append(n_flipped / max(tokens, 1))
        metrics["factuality/mean"].append(total / judged if judged else float("nan"))
        metrics["factuality/sentences"].append(sentences / n_checked if n_checked else float("nan"))
        metrics["factuality/rows_checked"].append(n_checked / max(rows, 1))
        metrics["factuality/no_reasoning"].append(bare / n_checked if n_checked else float("nan"))
        metrics["factuality/failed"].append(failed)
        metrics["factuality/unjudged_sentences"].append(unjudged)
        metrics["factuality/verify_seconds"].append(self.accelerator.gather(seconds).max().item())


def _datasets(*datasets) -> list:
    found = []
    for dataset in datasets:
        if isinstance(dataset, dict):
            found += dataset.values()
        elif dataset is not None:
            found.append(dataset)
    return found


def _passages(value: Any, column: str) -> tuple[str, ...]:
    passages = evidence_passages(value)
    if passages is None:
        raise DataError(
            f"the evidence column {column!r} must hold text or a list of texts in every row, got {value!r:.150}; join "
            "nested passages into texts first"
        )
    return passages


def _describe(finding: _Finding) -> str:
    """The labelled sentences of a completion, one a line, for the completions table."""
    if finding.verification is None:
        return "(no evidence)"
    if finding.verification.error is not None:
        return f"(not judged) {finding.verification.error}"
    text = finding.tokens.text
    return "\n".join(
        f"{'unjudged' if span.label is None else span.label.value}: {span.text(text).strip()}"
        for span in finding.verification.spans
    )

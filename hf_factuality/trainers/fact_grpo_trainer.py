"""GRPO with sentence-level factuality: FSPO and other shapings of the advantage by labelled spans."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from trl import GRPOTrainer
from trl.trainer.utils import nanstd

from hf_factuality.errors import DataError
from hf_factuality.functional import (
    BINARY_VALUES,
    CREDITS,
    TERNARY_VALUES,
    Credit,
    CreditFunction,
    fill_unjudged,
    judged_units,
    mean_factuality,
    shape_advantages,
    token_values,
)
from hf_factuality.functional.credit import tokens_inside
from hf_factuality.functional.group_credit import GroupRewards, credit_tokens
from hf_factuality.functional.sequence_ratio import gspo_token_reference
from hf_factuality.functional.token_rewards import last_kept
from hf_factuality.hub.cards.methods import CardMethod
from hf_factuality.io.markdown import code
from hf_factuality.offsets import TokenOffsets, token_offsets
from hf_factuality.reading.scopes import scope_ranges
from hf_factuality.rewards import check_format
from hf_factuality.rewards._rows import row_evidence, verifier_input
from hf_factuality.rewards.names import as_list, named_rewards
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.trainers._methods import reward_method
from hf_factuality.trainers._overlap import columns_of
from hf_factuality.trainers._painted import PaintedCompletions, StoredCompletions
from hf_factuality.trainers._token_rewards import TokenRewardFunc
from hf_factuality.trainers._turns import joined, turn_requests
from hf_factuality.trainers.base import COMPLETION_TEXTS, VERIFICATIONS, PolicyRollout, SamplingTrainer
from hf_factuality.trainers.fact_grpo_config import FactGRPOConfig
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.batches import BatchJudge
from hf_factuality.verifiers.guard import GuardedVerifier, UnjudgedBatches
from hf_factuality.verifiers.registry import load_verifier
from hf_factuality.verifiers.searched import SearchedVerifier
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest


REWARD_NAME = "factuality"


class FactGRPOTrainer(SamplingTrainer, GRPOTrainer):
    """GRPO whose advantages are per token: a verifier labels the sentences, and each token's sign follows its sentence.

    Differs from [`~trl.GRPOTrainer`] in two places only. A reward named `factuality` (mean over the sentences, FSPO Eq.
    10) joins `reward_funcs`, and the advantages of shape (B,) become (B, T) by the token factuality (Eq. 11). With
    nothing labelled it computes what the parent computes, to the last bit. Completions that the verifier could not judge
    keep their sign, and their factuality reward becomes the mean of their group's judged ones; a group with fewer than two
    judged completions drops the term. So does the `None` of any reward function that takes `verifications` or
    `completion_texts`; TRL alone would count it as 0. A reward function with a method `spans(text, opened)` is no part of the sum:
    its own advantage over the group is that of the tokens of these characters ([`~hf_factuality.rewards.DCPORewards`]).

    Of a verifier that splits into atomic claims, the claims stand for the sentences: each counts once in the reward, and
    tokens that several claims share have the lowest of their values.

    Reward functions get the labels as the column `verifications`: one [`Verification`] per completion, in characters of its
    `completion_texts` (what its ids decode to without special tokens), each judged once. Where nothing is known it has an `error`, or its
    `judged` is false.

    With `tools` or `environment_factory` each turn of a completion is judged by what tools had returned before it, beside the
    evidence of its row; what tools return carries no label and no loss (docs/tools.md). `rollout_func` and vision-language
    models are refused.

    Args:
        model, reward_funcs, train_dataset, eval_dataset, processing_class, **kwargs:
            As for the parent; without `reward_funcs` factuality is the only reward. These may be names of ours
            ([`~hf_factuality.rewards.LongFormReward`], `"klcf"`, `"truthrl"`, `"binary"`, `"target-0.75"`, `"rlcr"`, `"dcpo"`, `"lovec"`). Where the verifier needs evidence, the datasets have
            the column `args.evidence_column`.
        args ([`FactGRPOConfig`], *optional*):
            Settings.
        verifier ([`Verifier`] or `str`, *optional*, defaults to `"small"`):
            Labels sentences or claims: an object with `verify(inputs)`, or a name for [`load_verifier`]. `None`: nothing is
            labelled, for rewards that need no labels. A
            [`~hf_factuality.verifiers.guard.GuardedVerifier`] keeps its own limits instead of those of `args`.
        credit (`str`, `Callable` or [`~hf_factuality.functional.Credit`], *optional*):
            Instead of `args.credit`: a name, or a function `(advantages, labels, mask) -> (B, T)`; see
            [`~hf_factuality.functional.shape_advantages`] for what it gets. `args.credit` becomes its qualified name; a
            resumed run is given the function again.
        token_reward_funcs (`Callable`, `str` or a list of them, *optional*):
            What each token earns, as for [`TokenRewardPPOTrainer`]; a completion's sum joins its rewards with weight 1. Credits
            by rewards (docs/credit.md) pay it where it was earned.

    Attributes:
        card_results (`str`, `Path`, list of them, or `dict`, *optional*):
            Files of results for the model card, or `{"before": path, "after": path}`. `None`: those of this model among
            `results*.json` in `args.output_dir` (docs/cards.md).

    Raises:
        `TypeError`: `args` is not a [`FactGRPOConfig`], or `verifier` has no `verify` method.
        `ValueError`: an unknown verifier; a feature that cannot work with spans; think tags that decoding would drop;
            nothing to learn from; a `credit` that returns something else than (B, T).
        `DataError`: the evidence column is missing, or holds something else than text; a dataset is empty, or has fewer prompts than a generation batch; a
            column is named as something that reward functions get, such as `completions`.
        `JudgingError`: during training, if the verifier fails on the whole first batch, or on
            3 in a row.
        `NonFiniteError`: during training, at an infinite reward, loss or gradient.
    """

    _tag_names = ["trl", "fact-grpo", "hf_factuality"]
    _name = "FactGRPO"
    _config = FactGRPOConfig

    # State of the batch that is under way.
    _judged: Sequence[JudgedRow] = ()
    _earned: torch.Tensor
    """The parent's sums of this process before unknown rewards are filled; NaN where one of them is unknown."""
    _rewarded: torch.Tensor
    """Rewards of this process by function, as they are logged."""
    _own_advantages: dict[int, torch.Tensor]
    """Of rewards with spans, by column: advantages of this process, (B,)."""
    _ratio_inputs: dict[str, Any] | None = None

    # Construction: the verifier, the rewards, and what is refused.

    def __init__(
        self,
        model,
        reward_funcs=None,
        args: FactGRPOConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        *,
        verifier: Verifier | str | None = "small",
        credit: str | CreditFunction | Credit | None = None,
        token_reward_funcs: TokenRewardFunc | list[TokenRewardFunc] | None = None,
        **kwargs,
    ):
        args = self._checked_args(args, model)
        self._credit = args.use_credit(credit)
        token_reward_funcs = as_list(token_reward_funcs)
        paid, by_rewards = self._scalars(token_reward_funcs), self._by_rewards
        if verifier is None and (not (args.credit == "none" or by_rewards) or args.factuality_reward_weight):
            raise ValueError(
                "verifier=None: nothing is labelled; pass one, or factuality_reward_weight=0 and a credit that reads no labels"
            )
        verifier = _Nothing() if verifier is None else load_verifier(verifier)
        if not isinstance(verifier, GuardedVerifier):
            verifier = GuardedVerifier(verifier, args.verifier_timeout, args.verifier_batch_size)
        self._guard = verifier
        searches = bool(kwargs.get("tools") or kwargs.get("environment_factory"))
        if self._guard.requires_evidence and args.remove_unused_columns and not searches:
            raise ValueError("remove_unused_columns=True drops the verifier's evidence; set it to False")
        self._evidence_column, self._question_column = args.evidence_column, args.question_column
        self._rollout = kwargs.get("rollout_func")
        if searches and self._guard.requires_evidence:
            # The rollout is the search: where it found nothing, nothing is supported.
            verifier = copy.copy(verifier)
            verifier.verifier = SearchedVerifier(self._guard.verifier)
        self.judging = BatchJudge(verifier, UnjudgedBatches())

        def factuality(prompts, completions, completion_ids, log_extra, **columns):
            self._pay_factuality(self._judged, completion_ids)
            log_extra("factuality_labels", [_describe(row) for row in self._judged])
            return [self._factuality(row) for row in self._judged]

        factuality.owner = self
        own = named_rewards(reward_funcs, None if isinstance(self._guard.verifier, _Nothing) else self._guard.verifier)
        if args.verify_scope == "think" and (
            name := next((it.__name__ for it in own if getattr(it, "verify_scope", None) == "answer"), None)
        ):
            raise ValueError(
                f"verify_scope='think': the reward {name!r} pays what is found in the answer; set it to 'answer'"
            )
        nothing = f"nothing to learn from: pass reward_funcs, or set factuality_reward_weight (0 by variant={args.variant!r})"
        if not own and not paid and args.factuality_reward_weight == 0 and not kwargs.get("environment_factory"):
            raise ValueError(nothing)
        self._num_plain = len(own)
        self._use_method(self._method_of(args, own, token_reward_funcs, kwargs.get("rollout_func")))
        weights = [*[1.0] * len(paid), args.factuality_reward_weight]
        super().__init__(
            model, own, [*paid, factuality], weights, args, train_dataset, eval_dataset, processing_class, **kwargs
        )
        if not own and not self.reward_weights.any():  # of an environment that owns no reward either
            raise ValueError(nothing)
        self._bind_policy(paid)
        if by_rewards:
            self._require_statements(paid, args.factuality_reward_weight)
        self._span_rewards = self._take_span_rewards()
        if args.verify_scope == "think":
            ids = self._tokenizer("<think>a</think>", add_special_tokens=False)["input_ids"]
            decoded = self._tokenizer.decode(ids, skip_special_tokens=True)
            if not scope_ranges(decoded, "think"):
                raise ValueError(
                    f"'<think>a</think>' is decoded to {decoded!r}; add its tags as ordinary (not special) tokens"
                )
        self._values = TERNARY_VALUES if args.label_values == "ternary" else BINARY_VALUES
        self.add_callback(PaintedCompletions(lambda: getattr(self, "_judged", ())))
        self.add_callback(StoredCompletions(self._judged_and_rewarded))

    @property
    def _by_rewards(self) -> bool:
        return isinstance(self._credit, Credit) and self._credit.rewards is not None

    def _require_statements(self, functions: list[Callable], weight: float) -> None:
        if not functions and not weight:
            raise ValueError(
                f"credit={self.args.credit!r} needs statements that are paid: pass token_reward_funcs, or set "
                "factuality_reward_weight above 0"
            )
        if self.num_generations < 2 or self.args.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"credit={self.args.credit!r} compares sums within a group: num_generations must be at least 2 and "
                "multi_objective_aggregation 'sum_then_normalize'"
            )

    def _take_span_rewards(self) -> dict[int, tuple[Callable[..., Any], float]]:
        """Reward functions with a method `spans(text, opened) -> [(start, end)]`, as `{column: (spans, weight)}`. Each leaves the
        parent's sum, by a weight of 0, but not its log."""
        taken = {}
        for column, function in enumerate(self.reward_funcs):
            if callable(getattr(function, "spans", None)):
                taken[column] = (function.spans, float(self.reward_weights[column]))
                self.reward_weights[column] = 0.0
        if taken:
            if self.num_generations < 2:
                raise ValueError(
                    "num_generations=1: a reward that is paid at its own spans is compared within a group"
                )
            self.args.refuse_token_advantages("a reward that is paid at its own spans")
        return taken

    def _check_rollout(self, rollout, args):
        if not isinstance(rollout, PolicyRollout):
            super()._check_rollout(rollout, args)
        if args.generation_chunks > 1:
            raise ValueError(
                f"generation_chunks={args.generation_chunks} with a rollout_func: nothing is judged before the last turn has ended; "
                "set it to 1"
            )
        rollout.check(args, not isinstance(self._guard.verifier, _Nothing))

    def _refuse_beside_tools(self, args, given):
        super()._refuse_beside_tools(args, given)
        if args.variant != "paper":
            raise ValueError(f"variant={args.variant!r} with tools: its format is that of one turn; set it to 'paper'")

    def _check_columns(self, dataset, columns, name):
        super()._check_columns(dataset, columns, name)
        for column in getattr(self._rollout, "columns", ()):
            if column in columns:
                filled = f"which {type(self._rollout).__name__} fills"
                raise DataError(f"the {name} dataset has a column {column!r}, {filled}; rename it")
        for setting in ("question_column", "evidence_column"):
            column = getattr(self, f"_{setting}")
            if column != FactGRPOConfig.__dataclass_fields__[setting].default and column not in columns:
                raise DataError(
                    f"the {name} dataset has no column {column!r}, only {sorted(columns)}; set {setting} to one of them, or leave "
                    "it out"
                )
        if not self._guard.requires_evidence:
            return
        column = self._evidence_column
        if self._with_tools and column not in columns:
            return  # what they return is evidence
        if column not in columns:
            raise DataError(f"the verifier needs a column {column!r}; set evidence_column to one of {list(columns)}")
        for row in dataset.select_columns(column) if isinstance(dataset, Dataset) else ():
            row_evidence(row[column], column)

    # Completions are judged: those that have ended while others are generated, the rest before the rewards.

    def ahead(self, texts: list[str], rows: list[Mapping[str, Any]], places: Sequence[int]) -> None:
        self.judging.ahead(self._rows(texts, rows, places), places)

    def _rows(
        self, texts: list[str], rows: list[Mapping[str, Any]], places: Sequence[int]
    ) -> list[VerificationRequest]:
        """What is asked about completions at these places of the batch."""
        args, asked = self.args, []
        for number, text, columns in zip(places, texts, rows, strict=True):
            if self._guard.requires_evidence and args.evidence_column not in columns and not self._with_tools:
                raise DataError(f"rows have no column {args.evidence_column!r}; they have {sorted(columns)}")
            opened = self._opened[number]
            # The released code leaves completions alone that break the format: nothing of them is judged.
            kept = args.verify_scope != "think" or self._follows_format(text, opened)
            item = verifier_input(text if kept else "", columns, args.evidence_column, args.question_column)
            asked.append(VerificationRequest(item, args.verify_scope, opened))
        return asked

    def judged_so_far(
        self, completion_ids: list[list[int]], places: Sequence[int]
    ) -> list[tuple[TokenOffsets, tuple[LabeledSpan, ...]]]:
        """Characters of the tokens and labelled sentences of some completions of a batch that is being generated.

        Args:
            completion_ids (`list[list[int]]`):
                Completions, whole or not.
            places (`Sequence[int]`):
                Their rows in the batch.

        Raises:
            `JudgingError`: the verifier judges nothing any more.
        """
        tokens = [token_offsets(self._tokenizer, ids) for ids in completion_ids]
        rows = columns_of([self._generating[place] for place in places])
        asked = self._rows([its.text for its in tokens], rows, places)
        judged = self.judging.judge(asked, counts=False)  # the whole batch, which these are a part of, counts
        return [(its, _units(row)) for its, row in zip(tokens, judged, strict=True)]

    @property
    def label_values(self) -> Mapping[Label, float]:
        """Number per label, by `args.label_values`."""
        return self._values

    def _follows_format(self, text: str, opened: bool) -> bool:
        """Whether the format check lets it through; the paper's formula does not ask for one."""
        if self.args.variant == "paper":
            return True
        text = text if "<think>" in text and not opened else f"<think>{text}"
        # Reasoning that is moved out of its block would be paid for what is left there.
        return check_format(text, alone=self.args.variant != "released")

    # Rewards of completions: the parent calls the functions; what is unknown is filled from the group.

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._tokens = self._offsets(completion_ids_list)
        asked = self._rows([tokens.text for tokens in self._tokens], columns_of(inputs), range(len(inputs)))
        self._judged = self._judge_turns(asked) if self._with_tools else self._judge(asked)
        inputs = [
            {**row, VERIFICATIONS: judged.verification, COMPLETION_TEXTS: tokens.text}
            for row, judged, tokens in zip(inputs, self._judged, self._tokens, strict=True)
        ]
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        group_size = self.num_generations if self.model.training else self.num_generations_eval
        # A completion that no reward function could score stays out, whatever its sentences are: with the factuality term
        # alone, its unknown answer would count as a wrong one.
        unknown = self._keep_earned(rewards_per_func, len(prompts), group_size)
        others = rewards_per_func[:, :-1]
        unscored = torch.isnan(others).all(dim=1) & (others.size(1) > 0)
        for column, function in enumerate(self.reward_funcs):
            if column == len(self.reward_funcs) - 1 or self._reads_judgements(function):
                rewards_per_func[:, column] = fill_unjudged(rewards_per_func[:, column], group_size)
        rewards_per_func[unscored | (unknown & self._by_rewards)] = torch.nan
        here = self.accelerator.process_index * len(prompts)
        self._rewarded = rewards_per_func[here : here + len(prompts)]
        self._own_advantages = {
            column: self._normalised(rewards_per_func[:, column], group_size)[here : here + len(prompts)]
            for column in self._span_rewards
        }
        # Column by column in memory, as each function's rewards are without ours: the parent logs the mean of each
        # column, and a sum over strided memory rounds differently in the last bit.
        return rewards_per_func.t().contiguous().t()

    def _judge(self, asked: Sequence[VerificationRequest]) -> list[JudgedRow]:
        return self.judging.judge(asked, counts=self.model.training)

    def _judge_turns(self, asked: Sequence[VerificationRequest]) -> list[JudgedRow]:
        """Each turn is judged by what tools had returned before it."""
        turns = [turn_requests(rollout, row) for rollout, row in zip(self._rollouts, asked, strict=True)]
        judged = iter(self._judge([request for own in turns for _, request in own]))
        return [joined(row, [(turn, next(judged)) for turn, _ in own]) for row, own in zip(asked, turns, strict=True)]

    def _factuality(self, row: JudgedRow) -> float | None:
        """The reward: `None` where nothing is known."""
        if not row.verification.judged:
            return None
        if self.args.variant == "paper_format" and row.left_out == "empty":
            return -1.0  # no reasoning: as much as nothing but falsehoods
        return mean_factuality(_units(row), self._values)

    def _pay_factuality(self, rows: Sequence[JudgedRow], completion_ids: list[list[int]]) -> None:
        """The mean factuality in equal parts, each where its sentence ends; after those of the token reward functions."""
        paid = []
        for row in rows if self._by_rewards and self.args.factuality_reward_weight else ():
            units = [unit for unit in judged_units(row.verification) if unit.label is not None]
            points = [(unit.start, unit.end, self._values[unit.label] / len(units)) for unit in units]
            paid.append(points if row.verification.judged else None)
        if paid:
            self._pay(len(self.reward_funcs) - self._num_plain - 1, "factuality", paid, completion_ids)

    def _keep_earned(self, rewards_per_func: torch.Tensor, count: int, group_size: int) -> torch.Tensor:
        """Keeps the parent's sums of this process before unknown rewards are filled, NaN where one that others of the group
        have is unknown. Returns where that is, of all processes, (B,). Rewards of weight 0 are for the log."""
        weights = self.reward_weights.to(rewards_per_func.device)
        given = (~torch.isnan(rewards_per_func) & (weights != 0)).view(-1, group_size, len(weights))
        known = ((given | ~given.any(1, keepdim=True)).all(2) & given.any(2)).view(-1)
        here = slice(self.accelerator.process_index * count, (self.accelerator.process_index + 1) * count)
        self._earned = (rewards_per_func * weights).nansum(dim=1).masked_fill(~known, torch.nan)[here].float()
        return ~known

    def _normalised(self, rewards: torch.Tensor, group_size: int) -> torch.Tensor:
        """Advantages over the group of all completions, (B,), by one reward, as the parent makes them of the sum (`scale_rewards`);
        0 where the reward is unknown."""
        groups = rewards.view(-1, group_size)
        centred = groups - groups.nanmean(dim=1, keepdim=True)
        if self.scale_rewards != "none":
            spread = nanstd(rewards) if self.scale_rewards == "batch" else nanstd(groups, dim=1).unsqueeze(1)
            centred = centred / (spread + 1e-4)
        return torch.nan_to_num(centred, nan=0.0).view(-1)

    # Advantages: the parent's, one per completion, become one per token.

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mask, units = self._own_tokens(output), [_units(row) for row in self._judged]
        # Rows without any labelled unit (no evidence, no think block, not judged) stay as they are.
        outside = [float(self.args.outside_factuality) if its else 0.0 for its in units]
        offsets = [tokens.offsets for tokens in self._tokens]
        labels = token_values(offsets, units, self._values, mask.size(1), outside, mask.device)
        before = output["advantages"]
        if self._by_rewards:
            shaped = self._credited(before, mask)
        else:
            shaped = shape_advantages(self._credit, before, labels, mask, self.args.credit_scale)
        shaped = self._with_span_advantages(shaped, mask)
        if "tool_mask" in output and shaped.dim() == 2:
            shaped = shaped * output["tool_mask"]  # the policy did not write what tools returned
        output["advantages"] = shaped
        if output["advantages"].dim() == 2:
            flipped = (output["advantages"] * before.unsqueeze(1) < 0) & mask
            self._logs["extra"]["group_advantage"].extend(self._show_advantages(output["advantages"], mask))
        else:
            flipped = torch.zeros_like(mask)
        self._log_factuality(flipped, mask)
        return output

    def _credited(self, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Advantages of shape (B, T) by the credit of this name."""
        own, ends, _ = self._paid(mask)
        known = ~torch.isnan(self._earned)
        # Completions that are left out since they were cut have no mask, but are compared with.
        whole = self._whole(mask)
        rest = torch.nan_to_num(self._earned).unsqueeze(1) - own.sum(1, keepdim=True)
        rewards = own.scatter_add(1, last_kept(whole).unsqueeze(1), rest)
        # Groups may be spread over the processes.
        here = self.accelerator.process_index * len(mask)
        everywhere = [
            self.accelerator.gather(self.accelerator.pad_across_processes(x.float(), dim=1))
            for x in (advantages.unsqueeze(1), rewards, own, ends, whole, known.unsqueeze(1))
        ]
        before, rewards, own, ends, whole, known = everywhere
        size = self.num_generations if self.model.training else self.num_generations_eval
        others_paid = bool(self.reward_weights[: self._num_plain].any())
        group = GroupRewards(
            rewards, own, ends.bool(), whole.bool(), known.squeeze(1).bool(), size, others_paid, self.scale_rewards
        )
        shaped = credit_tokens(self._credit.rewards, before.squeeze(1), group, self.args.credit_scale)
        return (shaped[here : here + len(mask), : mask.size(1)] * mask).to(advantages.dtype)

    def _whole(self, mask: torch.Tensor) -> torch.Tensor:
        """Tokens that the policy wrote, (B, T), also of completions that are left out since they were cut."""
        if self._own_masks is None:
            rows = [[1] * len(tokens.offsets) for tokens in self._tokens]
        else:
            rows = self._own_masks
        return torch.tensor([row + [0] * (mask.size(1) - len(row)) for row in rows], device=mask.device) == 1

    def _with_span_advantages(self, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Advantages in which those of a reward with spans, times its weight, replace all others at its spans: (B, T), or (B,)
        where there is no such reward."""
        if not self._span_rewards:
            return advantages
        shaped = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand(mask.shape)
        for column, (spans, weight) in self._span_rewards.items():
            inside = torch.zeros_like(mask)
            for row, (tokens, opened) in enumerate(zip(self._tokens, self._opened, strict=True)):
                places = spans(tokens.text, opened)
                inside[row, : len(tokens.offsets)] = torch.tensor(tokens_inside(tokens.offsets, places))
            own = self._own_advantages[column].to(shaped.dtype)
            shaped = torch.where(inside, weight * own.unsqueeze(1), shaped)
        return shaped

    # The loss of a micro-batch.

    def _compute_loss(self, model, inputs):
        if self.importance_sampling_level != "sequence" or inputs["advantages"].dim() == 1:
            return super()._compute_loss(model, inputs)
        # The parent's ratio of a completion is one number, whose gradient is the mean over the tokens: each token would learn
        # from the mean advantage. GSPO-token: the parent computes at its level "token", against log-probabilities that make
        # every token's ratio that of its completion (the next method).
        self._ratio_inputs = inputs = dict(inputs)
        self.importance_sampling_level = "token"
        try:
            return super()._compute_loss(model, inputs)
        finally:
            self.importance_sampling_level, self._ratio_inputs = "sequence", None

    def _get_per_token_logps_and_entropies(self, *args, **kwargs):
        output = super()._get_per_token_logps_and_entropies(*args, **kwargs)
        inputs = self._ratio_inputs
        # The parent reads the old ones after this pass; where there are none it takes the new ones, and all ratios are 1.
        if inputs is not None and inputs.get("old_per_token_logps") is not None:
            inputs["old_per_token_logps"] = gspo_token_reference(
                output[0], inputs["old_per_token_logps"], self._own_tokens(inputs).long()
            )
        return output

    # The log and the card.

    def _log_factuality(self, flipped: torch.Tensor, mask: torch.Tensor) -> None:
        rows = self._judged
        checked = [row for row in rows if row.left_out != "no_evidence"]
        units = [unit for row in checked for unit in judged_units(row.verification)]
        known = [[unit for unit in _units(row) if unit.label is not None] for row in rows]
        offsets = [tokens.offsets for tokens in self._tokens]
        labelled = token_values(offsets, known, dict.fromkeys(TERNARY_VALUES, 1), mask.size(1), device=mask.device)
        means = [mean for row in rows if (mean := self._factuality(row)) is not None]
        bare = sum(row.left_out == "empty" for row in checked) if self.args.verify_scope == "think" else 0
        sums = {
            "factuality/tokens_labelled": ((labelled.bool() & mask).sum(), mask.sum()),
            "factuality/tokens_flipped": (flipped.sum(), mask.sum()),
            "factuality/mean": (sum(means), len(means)),
            "factuality/sentences": (len(units), len(checked)),
            "factuality/rows_checked": (len(checked), len(rows)),
            "factuality/no_reasoning": (bare, len(checked)),
            "factuality/failed": (sum(row.left_out is None and not row.found.judged for row in rows), None),
            "factuality/unjudged_sentences": (sum(unit.label is None for unit in units), None),
        }
        self._log_sums(sums)
        seconds = torch.tensor([[self.judging.seconds, self.judging.waited]], device=mask.device)
        slowest = self.accelerator.gather(seconds).amax(dim=0).tolist()
        for name, value in zip(("verify", "wait"), slowest, strict=True):
            self._metrics["train" if self.model.training else "eval"][f"factuality/{name}_seconds"].append(value)

    def _judged_and_rewarded(self) -> tuple[Sequence[JudgedRow], dict[str, list[float]], str]:
        """The last batch of this process, its rewards by name, and who judged."""
        if not self._judged:
            return (), {}, ""
        named = dict(zip(self.reward_func_names, self._rewarded.t().tolist(), strict=True))
        verifier = getattr(self._guard.verifier, "judge", self._guard.verifier)
        name = "" if isinstance(verifier, _Nothing) else type(verifier).__name__
        return self._judged, {"reward": self._earned.tolist(), **named}, name

    def _card(self):
        args, own = self.args, self._span_rewards
        labelled = not isinstance(self._guard.verifier, _Nothing)
        weights = [own[column][1] if column in own else weight for column, weight in enumerate(self.reward_weights)]
        shown = [self._shown_reward(name, weight) + " (at its own characters)" * (column in own)
                 for column, (name, weight) in enumerate(zip(self.reward_func_names, weights, strict=True))
                 if labelled or name != REWARD_NAME]  # fmt: skip
        reads_labels = args.factuality_reward_weight > 0 or args.credit != "none" and not self._by_rewards
        labels = f"factuality reward weight {args.factuality_reward_weight:g}, {args.label_values} labels, "
        return {
            "method": self._method,
            "verifier": self._verifiers([self._guard.verifier] if labelled else []),
            "objective": f"{args.variant}: {labels}" * (labelled and reads_labels)
            + f"{self._named_credit(args)} credit, {args.loss_type} loss; rewards {', '.join(shown)}",
        }

    def _method_of(self, args, own: Sequence[Any], paid: Sequence[Any], rollout: Any) -> CardMethod:
        """FSPO is its credit with its factuality reward, which the released code only logs."""
        labelled = not isinstance(self._guard.verifier, _Nothing)
        rewarded = labelled and args.factuality_reward_weight > 0
        fspo = labelled and args.credit == "flip" and (rewarded or args.variant == "released")
        weights = [*(args.reward_weights or [1.0] * len(own)), *[1.0] * len(paid)]
        sampled = vars(type(rollout)).get("card_method")  # its exact class: what another one does nobody knows
        return reward_method(
            [*own, *paid], weights, "GRPO",
            more=["fspo"] * fspo + ["factuality"] * (rewarded and not fspo) + [sampled] * (sampled is not None),
            credit=None if fspo or args.credit == "none" else self._named_credit(args),
            revises=getattr(rollout, "revises", False),
        )  # fmt: skip

    def _named_credit(self, args) -> str:
        return args.credit if args.credit in CREDITS else code(args.credit)


class _Nothing:
    """Stands for no verifier."""

    requires_evidence = False

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        return [Verification()] * len(inputs)


def _units(row: JudgedRow) -> tuple[LabeledSpan, ...]:
    """Sentences or claims; none where nothing is known."""
    return judged_units(row.verification) if row.verification.judged else ()


def _describe(row: JudgedRow) -> str:
    """The labelled sentences or claims of a completion, one a line, for the completions table."""
    if row.left_out == "no_evidence":
        return "(no evidence)"
    found = row.verification
    if found.error is not None:
        return f"(not judged) {found.error}"
    text = row.row.input.completion
    return "\n".join(
        f"{'unjudged' if unit.label is None else unit.label.value}: {(unit.claim or unit.text(text)).strip()}"
        for unit in judged_units(found)
    )

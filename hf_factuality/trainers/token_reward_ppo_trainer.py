"""PPO with a reward for every token: a critic and GAE on TRL's GRPO engine, instead of a baseline per group."""

from __future__ import annotations

from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import pad
from transformers.integrations import is_deepspeed_zero3_enabled
from trl import GRPOTrainer
from trl.models.utils import disable_gradient_checkpointing

from hf_factuality.functional.gae import (
    explained_variance,
    generalized_advantages,
    kl_estimate,
    masked_moments,
    value_loss,
    whiten,
)
from hf_factuality.functional.token_rewards import last_kept
from hf_factuality.rewards.names import as_list, named_rewards
from hf_factuality.trainers._methods import reward_method
from hf_factuality.trainers._padding import by_length
from hf_factuality.trainers._token_rewards import TokenRewardFunc
from hf_factuality.trainers.base import SamplingTrainer
from hf_factuality.trainers.critic import make_critic
from hf_factuality.trainers.token_reward_ppo_config import TokenRewardPPOConfig


class TokenRewardPPOTrainer(SamplingTrainer, GRPOTrainer):
    """PPO whose rewards are per token: what a statement earns is paid at the token where it ends (RLFH).

    Differs from [`~trl.GRPOTrainer`] in where advantages come from: a critic values every token, GAE turns token rewards
    and values into advantages of shape (B, T), and these are whitened over the global generation batch. The KL penalty to
    the reference stands in the rewards and not in the loss. One completion per prompt is enough.

    With `tools` or `environment_factory` the values and advantages of what tools return count as if it were not there
    (docs/tools.md). `rollout_func` and vision-language models are refused.

    Args:
        model, train_dataset, eval_dataset, processing_class, **kwargs:
            As for the parent.
        token_reward_funcs (`Callable`, `str` (`"package.module:name"`) or a list of them, *optional*):
            Called with `prompts`, `completions`, `completion_ids`, `completion_texts` (what the ids decode to) and the
            dataset's columns, each a list with one entry per completion. Returns per completion a list of
            `(start, end, value)`, characters of its text, whose values are paid at the token where the span ends; or a list
            or tensor of one number per token; or `None` where nothing is known. A completion of which no function knows
            anything is left out of both losses.
        reward_funcs (*optional*):
            As for the parent; their rewards are added at the last token.
        args ([`TokenRewardPPOConfig`], *optional*):
            Settings.

    Attributes:
        critic ([`~hf_factuality.trainers.critic.Critic`]):
            Saved in the folder `critic` of every checkpoint and of the output.
        card_results (`str`, `Path`, list of them, or `dict`, *optional*):
            Files of results for the model card, or `{"before": path, "after": path}`. `None`: those of this model among
            `results*.json` in `args.output_dir` (docs/cards.md).

    Raises:
        `TypeError`: `args` is not a [`TokenRewardPPOConfig`].
        `ValueError`: no reward at all, weights of another number, or a feature that cannot work with token rewards.
        `DataError`: a dataset is empty, or has fewer prompts than a generation batch; a column is named as something that
            reward functions get, such as `completions`.
        `CheckpointError`: the critic cannot be loaded.
        `NonFiniteError`: during training, at a reward, value, loss or gradient that is not finite.
    """

    _tag_names = ["trl", "token-reward-ppo", "hf_factuality"]
    _name = "TokenRewardPPO"
    _config = TokenRewardPPOConfig

    def __init__(
        self,
        model,
        token_reward_funcs: TokenRewardFunc | list[TokenRewardFunc] | None = None,
        reward_funcs=None,
        args: TokenRewardPPOConfig | None = None,
        train_dataset=None,
        eval_dataset=None,
        processing_class=None,
        **kwargs,
    ):
        args = self._checked_args(args, model)
        token_reward_funcs = as_list(token_reward_funcs)
        given = self._scalars(token_reward_funcs)
        own = named_rewards(reward_funcs)
        if placed := [function.__name__ for function in own if hasattr(function, "spans")]:
            raise ValueError(
                f"reward_funcs: {placed[0]!r} is paid at its own characters; pass a token reward function, or use FactGRPOTrainer"
            )
        if not given and not own and not kwargs.get("environment_factory"):
            raise ValueError("nothing to learn from: pass token_reward_funcs, reward_funcs or both")
        weights = [1.0] * len(given) if args.token_reward_weights is None else args.token_reward_weights
        if len(weights) != len(given):
            raise ValueError(f"token_reward_weights={weights} must have one weight for each of {len(given)} functions")
        self._plain: torch.Tensor | None = None
        self._num_plain = len(own)
        paid = [*own, *token_reward_funcs]
        self._use_method(reward_method(paid, [*(args.reward_weights or [1.0] * len(own)), *weights], "PPO"))
        super().__init__(model, own, given, weights, args, train_dataset, eval_dataset, processing_class, **kwargs)
        if self.is_deepspeed_enabled and args.freezing_actor_steps and args.weight_decay:
            raise ValueError(
                f"freezing_actor_steps with weight_decay={args.weight_decay} under DeepSpeed; set one of them to 0"
            )
        policy = self.accelerator.unwrap_model(self.model)
        policy = policy.get_base_model() if hasattr(policy, "get_base_model") else policy
        self.critic = make_critic(args.critic_model, policy, args.trust_remote_code, args.gradient_checkpointing)
        if not self.critic.reads_policy and (is_deepspeed_zero3_enabled() or self.is_fsdp_enabled):
            self.critic.shard(self.accelerator.device, args.bf16)
        self.critic.to(self.accelerator.device).prepare(
            args.critic_learning_rate, (args.adam_beta1, args.adam_beta2), args.adam_epsilon, args.weight_decay
        )
        self._bind_policy(given)

    # Rewards of completions: the parent calls the functions.

    def _calculate_rewards(self, inputs, prompts, completions, completion_ids_list):
        self._tokens = self._offsets(completion_ids_list)
        rewards_per_func = super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)
        here = self.accelerator.process_index * len(prompts)
        self._plain = rewards_per_func[here : here + len(prompts), : self._num_plain]
        return rewards_per_func

    # Advantages: rewards at tokens, minus the penalty, with values of the critic become advantages of tokens.

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        args, mask = self.args, self._own_tokens(output)
        rewards, known = self._place_rewards(mask)
        if args.reward_clip is not None:
            rewards = rewards.clamp(-args.reward_clip, args.reward_clip)
        last = last_kept(mask).unsqueeze(1)
        if args.missing_eos_penalty:
            ends_of_text = torch.tensor([self.eos_token_ids], device=mask.device).flatten()
            ends = torch.isin(output["completion_ids"].gather(1, last), ends_of_text)
            rewards.scatter_add_(1, last, ~ends * -args.missing_eos_penalty)
        reference = output.pop("ref_per_token_logps", None)
        old_logps = output.get("old_per_token_logps")
        batch = {name: output[name] for name in ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")}
        values, logps = self._old_values(batch, reference is not None and old_logps is None)
        kl = torch.zeros_like(rewards)
        if reference is not None:
            old_logps = logps if old_logps is None else old_logps
            kl = kl_estimate(old_logps, reference, args.kl_estimator).masked_fill(~mask, 0.0)
            rewards = rewards - args.beta * kl
        for name, numbers in (("a value of the critic", values), ("a token reward with its penalty", rewards)):
            self._require_finite(name, numbers.masked_fill(~mask, 0.0), output)
        learned = mask & known.unsqueeze(1)
        with torch.no_grad():
            advantages, returns = generalized_advantages(rewards, values, mask, args.gamma, args.lam)
            raw = advantages
            moments = self.accelerator.reduce(masked_moments(advantages, learned), reduction="sum")
            advantages = whiten(advantages, learned, moments)
        output["advantages"] = advantages.masked_fill(~learned, 0.0)
        output["old_values"], output["returns"] = values, returns
        # The parent leaves out of its loss, and of the number that it divides by, what this mask leaves out.
        output["tool_mask"] = learned.long()
        output["num_items_in_batch"] = self.accelerator.gather(learned.sum()).sum()
        self._log_rollouts(output, mask, rewards, kl, raw, known)
        return output

    def _place_rewards(self, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Token rewards of shape (B, T), and which completions have any that is known, (B,)."""
        rewards, _, known = self._paid(mask)
        weights = self.reward_weights[: self._num_plain].to(mask.device)
        last = last_kept(mask)
        rewards[torch.arange(len(mask), device=mask.device), last] += (self._plain * weights).nansum(dim=1)
        return rewards, known | (~torch.isnan(self._plain) & (weights != 0)).any(dim=1)

    def _old_values(self, batch: dict[str, torch.Tensor], logps: bool):
        """Values, and the policy's log-probabilities if they are asked for, both (B, T), without gradients."""
        args, critic = self.args, self.critic
        size = args.per_device_train_batch_size if self.model.training else args.per_device_eval_batch_size
        count = batch["completion_ids"].size(1)
        values, logps_of, order = [], [], by_length(batch["completion_mask"], size)
        with torch.no_grad(), ExitStack() as stack:
            stack.enter_context(disable_gradient_checkpointing(self.model, args.gradient_checkpointing_kwargs))
            if not critic.reads_policy:
                stack.enter_context(disable_gradient_checkpointing(critic.model, {"use_reentrant": False}))
            for rows in order:
                part = self._without_padding({name: tensor[rows] for name, tensor in batch.items()})
                inputs = _joined(part)
                with critic.watch():
                    if logps or critic.reads_policy:
                        logps_of.append(self._get_per_token_logps_and_entropies(self.model, *inputs)[0])
                    values.append(self._values(*inputs))
        values, logps_of = ([pad(row, (0, count - row.size(1))) for row in rows] for rows in (values, logps_of))
        back = torch.cat(order).argsort()
        return torch.cat(values)[back], torch.cat(logps_of)[back] if logps_of else None

    def _values(self, *inputs: Any) -> torch.Tensor:
        with nullcontext() if self.critic.reads_policy else self.accelerator.autocast():
            return self.critic(*inputs)

    # The losses of a micro-batch, and the critic's step after the last one of a step.

    def _compute_loss(self, model, inputs):
        training, own = self.model.training, not self.critic.reads_policy
        frozen = training and self.state.global_step < self.args.freezing_actor_steps
        inputs = self._without_padding(inputs)
        if own:
            critic_loss = self._critic_loss(inputs)
            if training:
                # At once, so that what it keeps for its gradients is gone before the policy's pass.
                critic_loss.backward()
                critic_loss = critic_loss.detach()
        # The penalty is in the rewards already.
        beta, self.beta = self.beta, 0.0
        try:
            with self.critic.watch():
                loss = super()._compute_loss(model, inputs)
                if not own:
                    if frozen:
                        self.critic.hidden = self.critic.hidden.detach()
                    critic_loss = self.args.vf_coef * self._critic_loss(inputs)
        finally:
            self.beta = beta
        return (0.0 * loss if frozen else loss) + critic_loss

    def _critic_loss(self, inputs) -> torch.Tensor:
        training, mask = self.model.training, inputs["tool_mask"]
        values = self._values(*_joined(inputs))
        losses, clipped = value_loss(values, inputs["old_values"], inputs["returns"], self.args.value_clip, mask)
        # The mean over the tokens of a step, over all processes, as in the parent's loss.
        tokens = inputs["num_items_in_batch"].clamp(min=1) / self.accelerator.num_processes
        steps = self.current_gradient_accumulation_steps if training else 1
        if training:
            tokens = tokens * steps / self.args.steps_per_generation
        # Over the same tokens: the log is the mean over micro-batches, which differ in theirs.
        self._log_sums(
            {
                "value/loss": (losses.detach().sum(), tokens / steps),
                "value/clip_ratio": (clipped.sum(), tokens / steps),
            },
            empty=0.0,
        )
        return losses.sum() / tokens

    def _policy_learns(self) -> bool:
        return self.state.global_step >= self.args.freezing_actor_steps

    def training_step(self, model, inputs, num_items_in_batch):
        frozen = not self._policy_learns()
        loss = super().training_step(model, inputs, num_items_in_batch)
        if self.accelerator.sync_gradients:
            peak = self.args.learning_rate
            schedule = self.lr_scheduler.get_last_lr()[0] / peak if peak and self.lr_scheduler is not None else 1.0
            norm = self.critic.step(self.accelerator, self.args.max_grad_norm, schedule)
            self._require_finite("the norm of the critic's gradients", norm, self._last_batch)
            self._metrics["train"]["value/grad_norm"].append(norm)
            if frozen:
                # Without gradients the optimizer leaves weights and moments alone; zeros would decay both.
                for parameter in model.parameters():
                    parameter.grad = None
        return loss

    # The log and the card.

    def _log_rollouts(self, output, mask, rewards, kl, advantages, known):
        learned = output["tool_mask"].bool()
        values, returns = output["old_values"], output["returns"]
        sums = {
            "kl": (kl.sum(), mask.sum()),
            "value/mean": (values.masked_fill(~learned, 0).sum(), learned.sum()),
            "value/return_mean": (returns.masked_fill(~learned, 0).sum(), learned.sum()),
            "rewards/unknown_completions": ((~known).sum(), None),
        }
        self._log_sums(sums, empty=0.0)
        everywhere = [
            self.accelerator.gather(self.accelerator.pad_across_processes(x.float(), dim=1))
            for x in (values, returns, learned)
        ]
        metrics = self._metrics["train" if self.model.training else "eval"]
        metrics["value/explained_variance"].append(explained_variance(*everywhere[:2], everywhere[2].bool()).item())
        # The parent's are those of groups: of one completion each, as a rule.
        metrics.pop("frac_reward_zero_std", None)
        self._show_advantages(advantages, mask)

    def _card(self):
        args = self.args
        return {
            "method": self._method,
            "verifier": self._verifiers(),
            "objective": f"GAE (gamma {args.gamma:g}, lambda {args.lam:g}), {args.kl_estimator} penalty of {args.beta:g} "
            f"in the reward, critic {Path(args.critic_model).name}, {args.loss_type} loss; rewards "
            + ", ".join(map(self._shown_reward, self.reward_func_names, self.reward_weights)),
        }

    # The critic is saved in every checkpoint and in the output, resumed and chosen with the policy.

    def save_model(self, output_dir=None, _internal_call=False):
        self.critic.save(output_dir or self.args.output_dir, self.args.should_save)
        super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir):
        super()._save_optimizer_and_scheduler(output_dir)
        self.critic.save_optimizer(output_dir, self.args.should_save)

    def _load_optimizer_and_scheduler(self, checkpoint):
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is not None:
            self.critic.load(checkpoint)

    def _load_best_model(self):
        super()._load_best_model()
        # The values of the best policy are those that were learned beside it.
        self.critic.load(self.state.best_model_checkpoint)


def _joined(inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Ids and attention mask of prompts with completions, (B, P + T), and T."""
    ids, attention = (
        torch.cat([inputs[f"prompt_{name}"], inputs[f"completion_{name}"]], dim=1) for name in ("ids", "mask")
    )
    return ids, attention, inputs["completion_ids"].size(1)

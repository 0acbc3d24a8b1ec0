"""The objective of token reward PPO in float64, one token after the other, and a trainer whose completions are given."""

from dataclasses import dataclass, field

import torch
from transformers import AutoModelForCausalLM

from hf_factuality import TokenRewardPPOConfig, TokenRewardPPOTrainer
from tests.tiny import rows
from tests.trainers.recording import QUIET


SETTINGS = dict(
    per_device_train_batch_size=3, max_completion_length=16, max_steps=2, critic_learning_rate=1e-3, **QUIET
)
# Ended and cut completions of different lengths; ASCII, so that the text of a token does not depend on its neighbours.
TEXTS = [("Marie was born in Warsaw.", True), ("Not known", False), ("She won a prize, and", True),
         ("London!", False), ("a e i o", True)]  # fmt: skip


class GivenCompletions(TokenRewardPPOTrainer):
    """Its policy does not sample: it says what it is told, of which each process has its part."""

    given: list[list[int]]

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        start = self.accelerator.process_index * len(prompt_ids)
        return [list(ids) for ids in self.given[start : start + len(prompt_ids)]], None


def completions(tokenizer, texts=TEXTS) -> list[list[int]]:
    return [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] * ended for text, ended in texts]


def make(
    model, folder, token_reward_funcs=None, reward_funcs=None, trainer=GivenCompletions, texts=TEXTS, eval_dataset=None,
    peft_config=None, **settings,
):  # fmt: skip
    args = TokenRewardPPOConfig(str(folder), **{**SETTINGS, **settings})
    made = trainer(model, token_reward_funcs, reward_funcs, args, rows(), eval_dataset, peft_config=peft_config)
    made.given = completions(made.processing_class, texts)
    made.model.train()
    made.current_gradient_accumulation_steps = 1
    return made


def stir(parameters, size: float, seed: int) -> None:
    """Move parameters at random: a policy that is not its reference, a critic that knows something."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in parameters:
            parameter += size * torch.randn(parameter.shape, generator=generator)


def token_ends(tokenizer, ids) -> list[int]:
    """Characters up to and with each token."""
    ends, end = [], 0
    for token in ids:
        end += len(tokenizer.decode([token], skip_special_tokens=True))
        ends.append(end)
    return ends


def place(tokenizer, ids, spans) -> list[float]:
    """Values at the first token with which everything up to the end of the span has been said."""
    ends = token_ends(tokenizer, ids)
    row = [0.0] * len(ids)
    for _, end, value in spans:
        row[next(t for t in range(len(ids)) if ends[t] >= end)] += value
    return row


@dataclass
class Row:
    """A prompt, its completion, and what the completion earns: a number per token, `None` where nothing is known."""

    prompt: list[int]
    completion: list[int]
    rewards: list[float] | None
    ended: bool
    old_logps: list[float] = field(default_factory=list)
    old_values: list[float] = field(default_factory=list)
    reference: list[float] = field(default_factory=list)


class Oracle:
    """Written from the formulas: PPO (arXiv 1707.06347, Eq. 7), GAE (1506.02438, Eq. 16), k1 to k3 (Schulman 2020).

    The models are copies in float64, called on one row without padding.
    """

    def __init__(self, trainer, rows):
        self.args, self.trainer, self.rows = trainer.args, trainer, rows
        reference = AutoModelForCausalLM.from_pretrained(trainer.model.config._name_or_path, dtype=torch.float64)
        self.copy()
        with torch.no_grad():
            for row in rows:
                row.old_logps = [logp.item() for logp in self.logps(self.policy, row)]
                row.old_values = [value.item() for value in self.values(row)]
                row.reference = [logp.item() for logp in self.logps(reference, row)]

    def copy(self):
        """Take the trainer's weights as they are now."""
        policy, critic = self.trainer.model, self.trainer.critic
        self.policy = type(policy)(policy.config).double()
        self.policy.load_state_dict(policy.state_dict())
        if critic.reads_policy:
            self.critic = torch.nn.Linear(critic.head.in_features, 1).double()
            self.critic.load_state_dict(critic.head.state_dict())
        else:
            self.critic = type(critic.model)(critic.model.config).double().eval()  # its head drops out by default
            self.critic.load_state_dict(critic.model.state_dict())

    def logps(self, model, row):
        logits = model(torch.tensor([row.prompt + row.completion])).logits[0] / self.args.temperature
        before = len(row.prompt) - 1
        return [logits[before + t].log_softmax(-1)[token] for t, token in enumerate(row.completion)]

    def values(self, row):
        ids = torch.tensor([row.prompt + row.completion])
        if isinstance(self.critic, torch.nn.Linear):
            values = self.critic(self.policy.model(ids).last_hidden_state)[0, :, 0]
        else:
            values = self.critic(ids).logits[0, :, 0]
        return [values[len(row.prompt) - 1 + t] for t in range(len(row.completion))]

    def penalised(self, row) -> list[float]:
        args, rewards = self.args, list(row.rewards)
        if args.reward_clip is not None:
            rewards = [max(-args.reward_clip, min(args.reward_clip, reward)) for reward in rewards]
        if not row.ended:
            rewards[-1] -= args.missing_eos_penalty
        for t, (p, q) in enumerate(zip(row.old_logps, row.reference, strict=True)):
            d = torch.tensor(p - q, dtype=torch.float64)
            kl = {"k1": d, "k2": d**2 / 2, "k3": (-d).exp() - 1 + d}[args.kl_estimator]
            rewards[t] -= args.beta * kl.item()
        return rewards

    def advantages(self) -> list[tuple[list[float], list[float]] | None]:
        """Advantages before whitening, and returns, per row."""
        found, args = [], self.args
        for row in self.rows:
            if row.rewards is None:
                found.append(None)
                continue
            rewards, values = self.penalised(row), [*row.old_values, 0.0]
            n = len(rewards)
            deltas = [rewards[t] + args.gamma * values[t + 1] - values[t] for t in range(n)]
            advantages = [sum((args.gamma * args.lam) ** (k - t) * deltas[k] for k in range(t, n)) for t in range(n)]
            found.append((advantages, [a + v for a, v in zip(advantages, values[:n], strict=True)]))
        return found

    def loss(self):
        """The loss with the weights of now. Notes how many tokens the two clips held back, and the sum of absolute terms
        (`size`) and of absolute errors of values: rounding is relative to these, as terms of both signs cancel."""
        args, found = self.args, self.advantages()
        flat = [a for pair in found if pair is not None for a in pair[0]]
        mean = sum(flat) / len(flat)
        deviation = (sum((a - mean) ** 2 for a in flat) / len(flat) + 1e-8) ** 0.5
        policy_loss = value_loss = torch.zeros((), dtype=torch.float64)
        self.ratios_clipped = self.values_clipped = 0
        weight = args.vf_coef if args.critic_model == "value_head" else 1.0
        self.size = self.errors = 0.0
        for row, pair in zip(self.rows, found, strict=True):
            if pair is None:
                continue
            logps, values = self.logps(self.policy, row), self.values(row)
            for t, (advantage, target) in enumerate(zip(*pair, strict=True)):
                advantage = (advantage - mean) / deviation
                ratio = (logps[t] - row.old_logps[t]).exp()
                surrogate = min(ratio * advantage, ratio.clamp(1 - args.epsilon, 1 + args.epsilon) * advantage)
                self.ratios_clipped += int(surrogate != ratio * advantage)
                policy_loss = policy_loss - surrogate / len(flat)
                error = (values[t] - target) ** 2
                self.errors += weight * abs(values[t].item() - target) / len(flat)
                if args.value_clip is not None:
                    old = row.old_values[t]
                    near = values[t].clamp(old - args.value_clip, old + args.value_clip)
                    self.values_clipped += int((near - target) ** 2 > error)
                    error = max(error, (near - target) ** 2)
                value_loss = value_loss + error / 2 / len(flat)
                self.size += (abs(surrogate.item()) + weight * error.item() / 2) / len(flat)
        return policy_loss + weight * value_loss

"""Loss and gradients of token reward PPO against a float64 loop over single tokens, for policy and critic."""

import pytest
import torch

from tests.conftest import fast_few
from tests.tiny import rows
from tests.trainers.token_reward_ppo_oracle import TEXTS, Oracle, Row, make, place, stir


CRITICS = ["policy", "value_head"]


def words(text):
    """A span per word, with a value of its own."""
    found, start = [], 0
    for number, word in enumerate(text.split(" ")):
        found.append((start, start + len(word), (-1) ** number * (0.3 + len(word) / 4)))
        start += len(word) + 1
    return found


def spans(completion_texts, **kwargs):
    return [words(text) for text in completion_texts]


def numbers(completion_ids, **kwargs):
    """A number per token, as a list or a tensor."""
    found = [[(token % 5) / 4 - 0.4 for token in ids] for ids in completion_ids]
    return [torch.tensor(row) if number % 2 else row for number, row in enumerate(found)]


def length(prompts, completions, **kwargs):
    return [len(completion[0]["content"]) / 10 for completion in completions]


def but_the_second(completion_texts, **kwargs):
    return [None if number == 1 else words(text) for number, text in enumerate(completion_texts)]


def expected_rewards(trainer, token_funcs, plain, token_weights, plain_weights):
    """Per completion and token, by hand."""
    tokenizer, rows = trainer.processing_class, []
    for number, (ids, (text, _)) in enumerate(zip(trainer.given, TEXTS, strict=True)):
        row, known = [0.0] * len(ids), False
        for function, weight in zip(token_funcs, token_weights, strict=True):
            if not weight or (function is but_the_second and number == 1):
                continue
            if function is numbers:
                earned = [(token % 5) / 4 - 0.4 for token in ids]
            else:
                earned = place(tokenizer, ids, words(text))
            row, known = [a + weight * b for a, b in zip(row, earned, strict=True)], True
        for _, weight in zip(plain, plain_weights, strict=True):
            row[-1] += weight * len(text) / 10
            known |= weight != 0
        rows.append(row if known else None)
    return rows


def batch_and_oracle(trainer, rewards, size):
    """A generation batch of `size` rows, sampled by a policy that is not its reference any more."""
    stir(trainer.model.parameters(), 0.02, 1)
    stir(trainer.critic.parameters(), 0.05, 2)
    trainer.skip_padding = False  # weights move before the first pass: old log-probabilities are not what it finds
    batch = trainer._generate_and_score_completions([rows()[number] for number in range(size)])
    prompts = [ids[mask.bool()].tolist() for ids, mask in zip(batch["prompt_ids"], batch["prompt_mask"], strict=True)]
    oracle = Oracle(
        trainer,
        [Row(prompts[i], trainer.given[i], rewards[i], TEXTS[i][1]) for i in range(size)],
    )
    return batch, oracle


def compare(trainer, batch, oracle):
    """The loss and every gradient, after both models have moved on: ratios and values are not what they were."""
    stir(trainer.model.parameters(), 0.02, 3)
    stir(trainer.critic.parameters(), 0.05, 4)
    oracle.copy()
    expected = oracle.loss()
    expected.backward()
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    assert abs(loss.item() - expected.item()) <= 1e-5 * oracle.size
    critic = trainer.critic.head if trainer.critic.reads_policy else trainer.critic.model
    for ours, theirs in ((trainer.model, oracle.policy), (critic, oracle.critic)):
        expected_gradients = dict(theirs.named_parameters())
        for name, parameter in ours.named_parameters():
            gradient = expected_gradients[name].grad
            assert gradient.norm() > 0, name
            # The errors of single values, of either sign, may leave little of the head's bias.
            size = oracle.errors if name == "bias" else gradient.norm()
            assert (parameter.grad - gradient).norm() <= 1e-5 * size, name


def check(tiny_model, tmp_path, token_funcs=(), plain=(), weights=(), plain_weights=(), size=3, **settings):
    weights = weights or [1.0] * len(token_funcs)
    plain_weights = plain_weights or [1.0] * len(plain)
    trainer = make(
        tiny_model, tmp_path, list(token_funcs), list(plain),
        per_device_train_batch_size=size,
        **{"num_iterations": 2, "temperature": 0.8, "beta": 0.05, "gamma": 0.97, **settings},
    )  # fmt: skip
    rewards = expected_rewards(trainer, token_funcs, plain, weights, plain_weights)
    batch, oracle = batch_and_oracle(trainer, rewards, size)
    compare(trainer, batch, oracle)
    return trainer, batch, oracle


@pytest.mark.parametrize("critic", fast_few(CRITICS, 0, 1))
@pytest.mark.parametrize("funcs", fast_few([[spans], [numbers], [spans, numbers], [but_the_second]], 2, 3))
def test_token_rewards(tiny_model, tmp_path, critic, funcs):
    _, _, oracle = check(tiny_model, tmp_path, funcs, critic_model=critic)
    # Otherwise the loss would be that of plain actor-critic, and the clips not compared.
    assert oracle.ratios_clipped and oracle.values_clipped


@pytest.mark.parametrize("critic", CRITICS)
def test_plain_rewards_at_the_last_token(tiny_model, tmp_path, critic):
    check(tiny_model, tmp_path, plain=[length], critic_model=critic)


@pytest.mark.parametrize("critic", CRITICS)
def test_both_with_weights(tiny_model, tmp_path, critic):
    check(
        tiny_model, tmp_path, [spans, numbers], [length], [2.0, -0.5], [0.7], critic_model=critic,
        token_reward_weights=[2.0, -0.5], reward_weights=[0.7],
    )  # fmt: skip


def test_a_reward_without_weight_is_for_the_log(tiny_model, tmp_path):
    """What nothing else knows stays unknown."""
    _, batch, _ = check(
        tiny_model, tmp_path, [but_the_second, numbers], [length], [1.0, 0.0], [0.0], token_reward_weights=[1.0, 0.0],
        reward_weights=[0.0],
    )  # fmt: skip
    assert batch["tool_mask"].any(1).tolist() == [True, False, True]


@pytest.mark.parametrize("critic", fast_few(CRITICS, 0))
@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_penalty_stands_in_the_reward(tiny_model, tmp_path, critic, estimator):
    check(tiny_model, tmp_path, [spans], critic_model=critic, beta=0.7, kl_estimator=estimator)


@pytest.mark.parametrize("critic", fast_few(CRITICS, 0))
@pytest.mark.parametrize(
    "settings",
    [
        dict(reward_clip=0.6),
        dict(missing_eos_penalty=0.8),
        dict(gamma=0.8, lam=0.6),
        dict(value_clip=None, reward_clip=None, vf_coef=0.3),
        dict(beta=0.0),
        # The parent needs no old log-probabilities here; the penalty does.
        dict(num_iterations=1, gradient_accumulation_steps=1),
    ],
)
def test_settings(tiny_model, tmp_path, critic, settings):
    if settings.get("num_iterations") == 1:
        # Then the ratio is 1, whatever the policy was when it sampled: the oracle must say the same.
        trainer = make(tiny_model, tmp_path, [spans], critic_model=critic, beta=0.3, **settings)
        rewards = expected_rewards(trainer, [spans], [], [1.0], [])
        batch, oracle = batch_and_oracle(trainer, rewards, 3)
        assert "old_per_token_logps" not in batch
        expected = [a for pair in oracle.advantages() for a in pair[1]]
        returns = batch["returns"][batch["completion_mask"].bool()]
        torch.testing.assert_close(returns.double(), torch.tensor(expected).double(), rtol=1e-5, atol=1e-6)
        return
    check(tiny_model, tmp_path, [spans], critic_model=critic, **settings)


@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("size", [1, 5])
def test_a_generation_batch_of_one_and_odd_ones(tiny_model, tmp_path, critic, size):
    trainer, _, _ = check(tiny_model, tmp_path, [spans], critic_model=critic, size=size)
    assert trainer.num_generations == 1

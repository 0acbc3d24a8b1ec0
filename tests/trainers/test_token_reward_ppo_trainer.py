"""What TokenRewardPPO trains, saves, logs and refuses."""

import logging
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

from hf_factuality import TokenRewardPPOTrainer
from hf_factuality.errors import CheckpointError, NonFiniteError
from hf_factuality.trainers.base import SamplingTrainer
from hf_factuality.trainers.critic import make_critic
from tests.conftest import fast_few
from tests.tiny import letters_reward, rows
from tests.trainers.recording import RecordsLosses, vowels
from tests.trainers.token_reward_ppo_oracle import GivenCompletions, completions, make


CRITICS = ["policy", "value_head"]
LETTERS = set("abcdefghijklmnopqrstuvwxyz")


def ids_as_rewards(completion_ids, **kwargs):
    return [[(token % 5) / 4 - 0.4 for token in ids] for ids in completion_ids]


class Recording(RecordsLosses, TokenRewardPPOTrainer):
    """Notes the critic's gradients before each of its steps too."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.critic_gradients, step = [], self.critic.step

        def recorded(*arguments):
            self.critic_gradients.append({n: p.grad.clone() for n, p in self.critic.named_parameters()})
            return step(*arguments)

        self.critic.step = recorded


class RecordingGiven(Recording, GivenCompletions):
    pass


def state(trainer):
    return [{n: p.detach().clone() for n, p in m.named_parameters()} for m in (trainer.model, trainer.critic)]


def moved(before, after) -> set[str]:
    return {name for name in before if not torch.equal(before[name], after[name])}


def train(model, folder, funcs=vowels, trainer=TokenRewardPPOTrainer, **settings):
    """The finished trainer, and names of the parameters of policy and critic that moved, and all names."""
    made = make(model, folder, funcs, trainer=trainer, **settings)
    before = state(made)
    made.train()
    after = state(made)
    return made, *(moved(b, a) for b, a in zip(before, after, strict=True)), [set(b) for b in before]


@pytest.mark.slow
@pytest.mark.parametrize("critic", CRITICS)
def test_without_a_learning_rate_or_while_the_actor_is_frozen_only_the_critic_moves(tiny_model, tmp_path, critic):
    settings = dict(critic_model=critic, freezing_actor_steps=2, weight_decay=0.1, num_iterations=2)
    for still in (settings, {"critic_model": critic, "learning_rate": 0.0}):
        _, policy_moved, critic_moved, (policy, critic_names) = train(tiny_model, tmp_path, **still)
        assert policy_moved == set() and critic_moved == critic_names
    made, policy_moved, *_ = train(tiny_model, tmp_path, max_steps=3, lr_scheduler_type="constant", **settings)
    assert policy_moved == policy
    # The optimizer met the policy's gradients once: its moments did not decay before.
    assert {int(entry["step"]) for entry in made.optimizer.state.values()} == {1}


def test_the_critic_follows_the_schedule_of_the_policy(tiny_model, tmp_path):
    """Linear from the peak to 0 over four steps: 1, 3/4, 1/2, 1/4 of each peak."""
    rates = []

    class Rates(TokenRewardPPOTrainer):
        def training_step(self, *args):
            loss = super().training_step(*args)
            rates.append(self.critic.optimizer.param_groups[0]["lr"])
            return loss

    train(tiny_model, tmp_path, trainer=Rates, max_steps=4, learning_rate=2e-3, critic_learning_rate=8e-4)
    assert rates == pytest.approx([8e-4, 6e-4, 4e-4, 2e-4])


@pytest.mark.parametrize(
    "critic, loss_type",
    fast_few(
        [
            ("policy", "dapo"),
            ("value_head", "grpo"),
            pytest.param("policy", "grpo", marks=pytest.mark.slow),
            pytest.param("value_head", "dapo", marks=pytest.mark.slow),
        ],
        0,
    ),
)
def test_accumulated_gradients_are_those_of_one_batch(tiny_model, tmp_path, critic, loss_type):
    """Completions of one length for "grpo", which averages per completion; of several for "dapo"."""
    texts = [("Marie", True), ("Not", True), ("She won", True), ("London!", False)]
    found = []
    for size, steps in ((4, 1), (2, 2), (1, 4)):
        made, *_ = train(
            tiny_model, tmp_path, ids_as_rewards, RecordingGiven, texts=texts, max_grad_norm=0.0, max_steps=1,
            per_device_train_batch_size=size, gradient_accumulation_steps=steps, critic_model=critic,
            loss_type=loss_type, beta=0.0,
        )  # fmt: skip
        assert len(made.losses) == steps and len(made.critic_gradients) == 1
        found.append({**made.recorder.gradients[0], **{f"critic.{n}": g for n, g in made.critic_gradients[0].items()}})
    for other in found[1:]:
        for name, expected in found[0].items():
            # With its head at 0, no gradient reaches the backbone of the critic in the first step.
            assert expected.norm() > 0 or (name.startswith("critic.model.model") and critic == "policy"), name
            assert (other[name] - expected).norm() <= 1e-5 * expected.norm(), name


@pytest.mark.slow
@pytest.mark.parametrize("critic", fast_few(CRITICS, 1))
def test_gradient_checkpointing_changes_nothing(tiny_model, tmp_path, critic):
    runs = [
        train(tiny_model, tmp_path, trainer=Recording, max_steps=4, critic_model=critic, gradient_checkpointing=on)[0]
        for on in (False, True)
    ]
    assert runs[1].model.is_gradient_checkpointing
    assert critic == "value_head" or runs[1].critic.model.is_gradient_checkpointing
    assert len(runs[0].losses) == 4
    torch.testing.assert_close(runs[0].losses, runs[1].losses, rtol=1e-5, atol=1e-6)
    for before, after in zip(*(run.critic_gradients for run in runs), strict=True):
        for name in before:
            torch.testing.assert_close(after[name], before[name], rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_critic_does_not_touch_the_random_state(tiny_model, tmp_path):
    """The completions of the first batch are the same, whatever the critic is."""
    first = [
        train(tiny_model, tmp_path, trainer=Recording, critic_model=critic)[0].batches[0]["completion_ids"]
        for critic in (*CRITICS, tiny_model)
    ]
    assert torch.equal(first[0], first[1]) and torch.equal(first[0], first[2])


@pytest.mark.parametrize("critic", CRITICS)
def test_peft_moves_the_adapter_and_the_critic(tiny_model, tmp_path, critic):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    trainer = make(tiny_model, tmp_path, vowels, peft_config=lora, critic_model=critic, beta=0.05)
    if critic == "policy":
        plain = AutoModelForCausalLM.from_pretrained(tiny_model)
        for name, tensor in trainer.critic.model.model.state_dict().items():
            assert torch.equal(tensor, plain.model.state_dict()[name]), name
    before = state(trainer)
    trainer.train()
    policy_moved, critic_moved = (moved(b, a) for b, a in zip(before, state(trainer), strict=True))
    assert any("lora_B" in name for name in policy_moved) and all("lora_" in name for name in policy_moved)
    assert critic_moved == set(before[1])
    trainer.save_model()
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert saved and all("lora_" in name for name in saved)
    assert (tmp_path / "critic").is_dir() and not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("critic", fast_few(CRITICS, 1))
def test_the_exported_policy_knows_nothing_of_the_critic(tiny_model, tmp_path, critic, caplog):
    trainer, *_ = train(tiny_model, tmp_path, critic_model=critic)
    trainer.save_model()
    with caplog.at_level(logging.WARNING):
        caplog.clear()
        policy, report = AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(report.values()), report
    assert not [record for record in caplog.records if "key" in record.getMessage().lower()]
    assert not moved(trainer.model.state_dict(), policy.state_dict())
    assert set(load_file(tmp_path / "model.safetensors")) == set(load_file(f"{tiny_model}/model.safetensors"))
    assert set(dict(trainer.model.named_parameters())) == set(dict(policy.named_parameters()))


def test_the_saved_critic_is_a_model_and_starts_another_run(tiny_model, tmp_path):
    trainer, *_ = train(tiny_model, tmp_path / "first")
    trainer.save_model()
    folder = tmp_path / "first" / "critic"
    loaded, report = AutoModelForTokenClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    again = make(tiny_model, tmp_path / "second", vowels, critic_model=str(folder))
    for other in (loaded, again.critic.model):
        assert not moved(trainer.critic.model.state_dict(), other.state_dict())
    assert trainer.critic.model.score.weight.any()


class WorseAndWorse(TokenRewardPPOTrainer):
    def evaluate(self, *args, **kwargs):
        metrics = {"eval_loss": float(self.state.global_step)}
        self.log(metrics)
        return metrics


@pytest.mark.parametrize("critic", fast_few(CRITICS, 1))
def test_the_best_checkpoint_brings_its_critic(tiny_model, tmp_path, critic):
    trainer, *_ = train(
        tiny_model, tmp_path, trainer=WorseAndWorse, critic_model=critic, max_steps=2, save_strategy="steps", save_steps=1,
        eval_dataset=rows(), eval_strategy="steps", eval_steps=1, load_best_model_at_end=True, metric_for_best_model="eval_loss",
    )  # fmt: skip
    assert trainer.state.best_model_checkpoint.endswith("checkpoint-1")
    first, last = (make(tiny_model, tmp_path / "again", vowels, critic_model=critic).critic for _ in range(2))
    first.load(tmp_path / "checkpoint-1")
    last.load(tmp_path / "checkpoint-2")
    assert moved(dict(first.named_parameters()), dict(last.named_parameters()))
    assert not moved(dict(first.named_parameters()), dict(trainer.critic.named_parameters()))


def test_a_language_model_as_critic_starts_at_zero(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, vowels, critic_model=tiny_model)
    batch = trainer._generate_and_score_completions([rows()[number] for number in range(3)])
    assert batch["old_values"].shape == batch["completion_ids"].shape and not batch["old_values"].any()


@pytest.mark.slow
def test_a_value_head_reads_a_compiled_policy_whatever_was_compiled_before(tiny_model):
    """A policy of the same kind without a critic shares what `torch.compile` keeps."""
    other, policy = (AutoModelForCausalLM.from_pretrained(tiny_model) for _ in range(2))
    for model in (other, policy):
        del model.model.layers[1:]
    ids = torch.arange(5, 17).view(2, 6)
    plain = policy.base_model(ids).last_hidden_state
    head = make_critic("value_head", policy)
    torch.nn.init.normal_(head.head.weight, generator=torch.Generator().manual_seed(0))
    expected = head.head(plain)[:, -4:-1, 0]
    torch.compiler.reset()
    try:
        other, policy = (torch.compile(model, backend="eager") for model in (other, policy))
        for _ in range(2):
            other(ids)
            with head.watch():
                policy(ids)
                values = head(ids, torch.ones_like(ids), 3)
            torch.testing.assert_close(values, expected)
        policy(ids)
        assert values.any() and head.hidden is None  # nobody watches
    finally:
        torch.compiler.reset()


def test_critics_that_do_not_fit(tiny_model, tmp_path):
    policy = AutoModelForCausalLM.from_pretrained(tiny_model)
    policy.resize_token_embeddings(policy.config.vocab_size + 3)
    policy.save_pretrained(tmp_path / "other")
    with pytest.raises(CheckpointError, match="a vocabulary of .* of the same tokenizer"):
        make(tiny_model, tmp_path, vowels, critic_model=str(tmp_path / "other"))
    with pytest.raises(CheckpointError, match="critic_model='valuehead' cannot be loaded as a critic"):
        make(tiny_model, tmp_path, vowels, critic_model="valuehead")


@pytest.mark.slow
@pytest.mark.parametrize("critic", ["policy", "value_head"])
def test_a_letter_early_in_the_sequence_is_learned(tiny_model, tmp_path, critic):
    """Pays for a completion whose first character is a small letter, at that character, and for nothing else."""

    def starts_small(completion_texts, **kwargs):
        return [[(0, 1, 1.0)] if text[:1] in LETTERS else [] for text in completion_texts]

    trainer, *_ = train(
        tiny_model, tmp_path, starts_small, critic_model=critic, per_device_train_batch_size=16, num_generations=2, max_steps=30,
        max_completion_length=6, learning_rate=5e-3, critic_learning_rate=5e-3, lr_scheduler_type="constant",
    )  # fmt: skip
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    assert len(rewards) == 30
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.3, rewards


def test_trains_evaluates_and_logs(tiny_model, tmp_path):
    seen = []

    def watches(prompts, completions, completion_ids, completion_texts, question, **kwargs):
        seen.append((prompts, completion_texts, question))
        return vowels(completion_texts)

    trainer = make(
        tiny_model, tmp_path, watches, letters_reward, TokenRewardPPOTrainer, eval_dataset=rows(), log_completions=True,
        num_completions_to_print=0, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=3, do_eval=True,
    )  # fmt: skip
    trainer.train()
    for prefix in ("", "eval_"):
        for name in ("kl", "value/loss", "value/mean", "value/return_mean", "value/explained_variance",
                     "value/clip_ratio", "clip_ratio/region_mean", "rewards/unknown_completions", "reward",
                     "rewards/watches/mean", "rewards/letters_reward/mean"):  # fmt: skip
            found = [entry[prefix + name] for entry in trainer.state.log_history if prefix + name in entry]
            assert found and all(math.isfinite(value) for value in found), prefix + name
    assert any("value/grad_norm" in entry for entry in trainer.state.log_history)
    # Of groups of one there is no spread to speak of.
    assert not any("frac_reward_zero_std" in entry for entry in trainer.state.log_history)
    prompts, texts, questions = seen[0]
    assert len(texts) == 3 and questions == [p[0]["content"] for p in prompts]


def test_the_first_logs_by_hand(tiny_model, tmp_path):
    """Values start at 0 and lambda is 1: returns are rewards to go. The last completion is unknown."""

    def first_token(completion_ids, **kwargs):
        return [[2.0] + [0.0] * (len(ids) - 1) for ids in completion_ids[:-1]] + [None]

    trainer = make(tiny_model, tmp_path, first_token, max_steps=1, lam=1.0, beta=0.3)
    lengths = [len(ids) for ids in completions(trainer.processing_class)[:2]]
    trainer.train()
    (log,) = [entry for entry in trainer.state.log_history if "value/loss" in entry]
    assert log["rewards/unknown_completions"] == 1 and log["value/mean"] == 0 and log["kl"] == 0
    returns = [2.0] + [0.0] * (lengths[0] - 1) + [2.0] + [0.0] * (lengths[1] - 1)
    assert log["value/return_mean"] == pytest.approx(sum(returns) / len(returns))
    assert log["value/loss"] == pytest.approx(sum(r**2 for r in returns) / 2 / len(returns))
    assert log["value/explained_variance"] == pytest.approx(0, abs=1e-6) and log["value/clip_ratio"] == 0
    assert log["reward"] == 2.0


@pytest.mark.parametrize(
    ("returns", "message"),
    [
        (lambda ids, texts: [[]], "'bad' returned 1 for 3 completions; return a list with an entry for each"),
        (lambda ids, texts: None, "'bad' returned None for 3 completions; return a list"),
        (lambda ids, texts: [[0.5] * (len(row) + 1) for row in ids], r"'bad', completion 0: .*return one number per token"),
        (lambda ids, texts: [torch.full((len(row),), math.nan) for row in ids], "a reward of bad is not a finite .*None for"),
        (lambda ids, texts: [[(0, len(text) + 1, 1.0)] for text in texts], "'bad', completion 0: .*is not a range of its 25 characters"),
        (lambda ids, texts: [[(3, 1, 1.0)] for _ in texts], r"'bad', completion 0: .*span \[3, 1\) is not a range"),
        (lambda ids, texts: [[(0, 1, math.inf)] for _ in texts], "a reward of bad is not a finite number"),
        (lambda ids, texts: ["good" for _ in texts], "'bad', completion 0"),
    ],
)  # fmt: skip
def test_errors_name_the_function_the_completion_and_the_fix(tiny_model, tmp_path, returns, message):
    def bad(completion_ids, completion_texts, **kwargs):
        return returns(completion_ids, completion_texts)

    trainer = make(tiny_model, tmp_path, [vowels, bad])
    with pytest.raises((ValueError, NonFiniteError), match=message):
        trainer._generate_and_score_completions([rows()[number] for number in range(3)])


@pytest.mark.parametrize("critic", fast_few(CRITICS, 1))
def test_bfloat16_autocast(tiny_model, tmp_path, critic):
    """Weights and the value head stay in float32. Values of sampling and of the first step agree."""
    made, policy_moved, critic_moved, (policy, names) = train(tiny_model, tmp_path, critic_model=critic, bf16=True)
    assert policy_moved == policy and critic_moved == names
    assert all(p.dtype == torch.float32 for p in made.critic.parameters())
    log = next(entry for entry in made.state.log_history if "value/clip_ratio" in entry)
    assert log["value/clip_ratio"] == 0 and math.isfinite(log["value/loss"])


# Micro-batches without padding


def test_columns_that_no_row_uses_are_cut():
    inputs = {
        "prompt_ids": torch.tensor([[0, 0, 5, 6], [0, 0, 0, 7]]),
        "prompt_mask": torch.tensor([[0, 0, 1, 1], [0, 0, 0, 1]]),
        "completion_ids": torch.tensor([[8, 0, 0, 0], [9, 8, 0, 0]]),
        "completion_mask": torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0]]),
        "returns": torch.arange(8.0).view(2, 4),
        "num_items_in_batch": torch.tensor(9),
        "per_completion": torch.tensor([1.0, 2.0]),
        "nothing": None,
    }
    cuts = SimpleNamespace(_cuts=(True, True))
    found = SamplingTrainer._without_padding(cuts, inputs)
    assert found["prompt_ids"].tolist() == [[5, 6], [0, 7]] and found["prompt_mask"].tolist() == [[1, 1], [0, 1]]
    assert found["completion_ids"].tolist() == [[8, 0], [9, 8]]
    assert found["completion_mask"].tolist() == [[1, 0], [1, 1]]
    assert found["returns"].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert found["num_items_in_batch"] == 9 and found["per_completion"].tolist() == [1.0, 2.0]
    assert found["nothing"] is None and inputs["completion_ids"].shape == (2, 4)
    nothing = {name: torch.zeros(2, 3, dtype=torch.long) for name in ("prompt_ids", "prompt_mask")}
    nothing |= {name: torch.zeros(2, 5, dtype=torch.long) for name in ("completion_ids", "completion_mask")}
    found = SamplingTrainer._without_padding(cuts, nothing)
    assert found["prompt_ids"].shape == (2, 1) and found["completion_ids"].shape == (2, 1)


@pytest.mark.parametrize("critic", fast_few(CRITICS, 1))
def test_training_is_the_same_and_passes_are_shorter(tiny_model, tmp_path, critic, monkeypatch):
    found = {}
    for cut in (True, False):
        if not cut:
            monkeypatch.setattr(RecordingGiven, "skip_padding", False)
        trainer = make(
            tiny_model, tmp_path, ids_as_rewards, trainer=RecordingGiven, critic_model=critic, max_steps=2,
            num_iterations=2, per_device_train_batch_size=1, gradient_accumulation_steps=4,
        )  # fmt: skip
        columns = []
        trainer.model.register_forward_pre_hook(
            lambda module, args, kwargs, columns=columns: columns.append(kwargs["labels"].size(1))
            if module.training and "labels" in kwargs else None,
            with_kwargs=True,
        )  # fmt: skip
        trainer.train()
        found[cut] = (trainer, columns)
    (ours, short), (other, long) = found[True], found[False]
    assert len(short) <= len(long) and sum(short) < sum(long) and max(short) == max(long)
    for one, same in zip(state(ours), state(other), strict=True):
        for name in one:
            assert torch.allclose(one[name], same[name], rtol=1e-4, atol=1e-6), name
    sums = [torch.tensor(one.losses).view(-1, 4).sum(1) for one in (ours, other)]  # of an optimizer step
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-9)


def test_the_critics_gradients_are_there_before_the_policys_pass(tiny_model, tmp_path, monkeypatch):
    """What the critic keeps for its gradients and what the policy keeps are not in memory together."""
    trainer = make(tiny_model, tmp_path, ids_as_rewards, critic_model="policy", max_steps=1)
    seen = []
    trainer.model.register_forward_pre_hook(
        lambda module, args: seen.append(any(p.grad is not None for p in trainer.critic.parameters()))
        if torch.is_grad_enabled() else None
    )  # fmt: skip
    trainer.train()
    assert seen and all(seen)

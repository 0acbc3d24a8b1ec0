"""A run that was stopped at step k and resumed is the run that was not, to the last bit."""

import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.errors import CheckpointError
from tests.tiny import letters_reward, rows
from tests.trainers.recording import WholeCompletion


# A generation batch of 4 completions, of which each step takes 2. The 8 prompts are an epoch of 2 generation batches
# ("policy", "value_head") or of 4 (groups of 2, FactGRPO).
SETTINGS = dict(
    per_device_train_batch_size=2,
    steps_per_generation=2,
    gradient_accumulation_steps=1,
    max_completion_length=8,
    learning_rate=1e-3,
    beta=0.05,
    save_strategy="steps",
    save_steps=1,
    logging_steps=1,
    report_to="none",
    bf16=False,
    use_cpu=True,
    gradient_checkpointing=False,
    disable_tqdm=True,
)
METHODS = ["policy", "value_head", "fact_grpo"]


def vowels(completion_texts, **kwargs):
    return [[(i, i + 1, 1.0) for i, letter in enumerate(text) if letter in "aeiou"] for text in completion_texts]


def label(number, item):
    return Label.SUPPORTED if len(item.completion) % 2 else Label.CONTRADICTED


def make(method, model, folder, **settings):
    settings = {**SETTINGS, **settings}
    if method == "fact_grpo":
        args = FactGRPOConfig(str(folder), num_generations=2, verify_scope="completion", **settings)
        return FactGRPOTrainer(model, letters_reward, args, rows(), verifier=WholeCompletion(label))
    args = TokenRewardPPOConfig(str(folder), critic_model=method, critic_learning_rate=1e-3, **settings)
    return TokenRewardPPOTrainer(model, vowels, letters_reward, args, rows())


def weights(trainer) -> dict[str, torch.Tensor]:
    found = dict(trainer.model.named_parameters())
    if hasattr(trainer, "critic"):
        found |= {f"critic.{name}": p for name, p in trainer.critic.named_parameters()}
    return {name: p.detach().clone() for name, p in found.items()}


def differ(one, other) -> list[str]:
    assert one.keys() == other.keys()
    return [name for name in one if not torch.equal(one[name], other[name])]


def resumed(method, model, folder, checkpoint, **settings):
    trainer = make(method, model, folder / "resumed", **{**settings, "save_strategy": "no"})
    # What is not restored must not be right by chance.
    with torch.no_grad():
        for parameter in weights(trainer).values():
            parameter.add_(1.0)
    torch.manual_seed(12345)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return weights(trainer)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("num_iterations", "max_steps", "stops"),
    [
        (1, 7, (1, 2, 4, 5)),  # inside and at the end of a generation batch; end of an epoch; inside the second epoch
        (2, 11, (1, 2, 4, 9)),  # between and inside passes over a generation batch; its end; inside the second epoch
    ],
)
def test_resumed_equals_uninterrupted(tiny_model, tmp_path, method, num_iterations, max_steps, stops):
    settings = dict(num_iterations=num_iterations, max_steps=max_steps)
    trainer = make(method, tiny_model, tmp_path, **settings)
    start = weights(trainer)
    trainer.train()
    expected = weights(trainer)
    assert differ(start, expected) == list(start)
    for k in stops:
        assert (
            differ(resumed(method, tiny_model, tmp_path, tmp_path / f"checkpoint-{k}", **settings), expected) == []
        ), k
    log = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(log) == max_steps


@pytest.mark.parametrize("method", METHODS)
def test_inside_gradient_accumulation_and_a_larger_generation_batch(tiny_model, tmp_path, method):
    """Two micro-batches a step and four a generation batch, used twice: it serves four steps."""
    settings = dict(
        gradient_accumulation_steps=2, steps_per_generation=4, per_device_train_batch_size=1, num_iterations=2,
        max_steps=6, warmup_steps=2,
    )  # fmt: skip
    trainer = make(method, tiny_model, tmp_path, **settings)
    trainer.train()
    for k in (1, 4):
        found = resumed(method, tiny_model, tmp_path, tmp_path / f"checkpoint-{k}", **settings)
        assert differ(found, weights(trainer)) == [], k


@pytest.mark.parametrize("method", METHODS)
def test_without_the_completions_it_is_another_run_and_says_so(tiny_model, tmp_path, method, caplog):
    settings = dict(max_steps=4)
    trainer = make(method, tiny_model, tmp_path, **settings)
    trainer.train()
    stopped = tmp_path / "checkpoint-1"
    (stopped / "rollouts_0_of_1.pt").unlink()
    with caplog.at_level("WARNING", logger="hf_factuality"):
        found = resumed(method, tiny_model, tmp_path, stopped, **settings)
    assert "samples new ones" in caplog.text
    assert differ(found, weights(trainer))


def test_without_the_critics_optimizer_it_is_another_run(tiny_model, tmp_path):
    """The control of the moments: the first test would not see them otherwise."""
    trainer = make("policy", tiny_model, tmp_path, max_steps=3)
    trainer.train()
    stopped = tmp_path / "checkpoint-2"
    (stopped / "critic" / "critic_optimizer.pt").unlink()
    assert differ(resumed("policy", tiny_model, tmp_path, stopped, max_steps=3), weights(trainer))


def test_a_checkpoint_of_another_critic_is_refused(tiny_model, tmp_path):
    make("policy", tiny_model, tmp_path, max_steps=1).train()
    stopped = tmp_path / "checkpoint-1"
    with pytest.raises(CheckpointError, match="holds no critic for this run .*resume with the critic_model"):
        resumed("value_head", tiny_model, tmp_path, stopped, max_steps=2)
    shutil.rmtree(stopped / "critic")
    with pytest.raises(CheckpointError, match="holds no critic for this run"):
        resumed("policy", tiny_model, tmp_path, stopped, max_steps=2)


@pytest.mark.parametrize("method", ["policy", "value_head"])
def test_a_checkpoint_holds_the_policy_apart_from_the_critic(tiny_model, tmp_path, method):
    trainer = make(method, tiny_model, tmp_path, max_steps=1)
    trainer.train()
    policy, report = AutoModelForCausalLM.from_pretrained(tmp_path / "checkpoint-1", output_loading_info=True)
    assert not any(report.values()), report
    assert differ(dict(policy.named_parameters()), dict(trainer.model.named_parameters())) == []
    optimizer = torch.load(tmp_path / "checkpoint-1" / "optimizer.pt", weights_only=True)
    assert len(optimizer["state"]) == len(dict(trainer.model.named_parameters()))

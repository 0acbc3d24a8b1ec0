"""A run that was stopped at step k and resumed is the run that was not, to the last bit."""

import functools
import shutil
import signal
from pathlib import Path

import pytest
import torch
from peft import LoraConfig

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    Label,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.errors import CheckpointError
from hf_factuality.io.manifest import read_manifest, write_manifest
from tests.conftest import fast_few
from tests.methods.averaging.test_trainer import make as make_averaging
from tests.methods.averaging.test_trainer import save_pair
from tests.methods.rag_reward.test_trainer import make as make_rag
from tests.tiny import letters_reward, rows
from tests.trainers import mask_dpo_recording
from tests.trainers.recording import QUIET, WholeCompletion, vowels


# A generation batch of 4 completions, of which each step takes 2. The 8 prompts are an epoch of 2 generation batches
# ("policy", "value_head") or of 4 (groups of 2, FactGRPO).
SETTINGS = {
    **QUIET, "per_device_train_batch_size": 2, "steps_per_generation": 2, "gradient_accumulation_steps": 1,
    "max_completion_length": 8, "beta": 0.05, "save_strategy": "steps", "save_steps": 1,
}  # fmt: skip
NO_PENALTY = dict(max_steps=1, beta=0.0)


def label(number, item):
    return Label.SUPPORTED if len(item.completion) % 2 else Label.CONTRADICTED


def make(method, model, folder, **settings):
    if method == "mask_dpo":
        settings = {"save_strategy": "steps", "save_steps": 1, "gradient_accumulation_steps": 1, **settings}
        return mask_dpo_recording.make(MaskDPOTrainer, model, folder, **settings)
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
    torch.rand(999)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    return weights(trainer)


def in_few(method, *stops, few=None):
    """Cases of one run: the fast suite stops it at `few` of its steps, the slow one at all."""
    return [pytest.param(method, stop, marks=() if few is None or stop in few else pytest.mark.slow) for stop in stops]


@pytest.fixture(scope="module")
def whole(tiny_model, tmp_path_factory):
    """Runs that nobody stopped: their folders with a checkpoint of every step, and what became of the weights."""

    @functools.cache
    def run(method, **settings):
        folder = tmp_path_factory.mktemp(method)
        trainer = make(method, tiny_model, folder, **settings)
        start = weights(trainer)
        trainer.train()
        expected = weights(trainer)
        assert differ(start, expected) == list(start)
        assert len([entry for entry in trainer.state.log_history if "loss" in entry]) == settings["max_steps"]
        return folder, expected

    return run


def assert_resumes(whole, method, model, folder, stop, **settings):
    run, expected = whole(method, **settings)
    assert differ(resumed(method, model, folder, run / f"checkpoint-{stop}", **settings), expected) == []


# Inside and at the end of a generation batch; end of an epoch; inside the second epoch.
@pytest.mark.parametrize(
    "method, stop",
    [
        *in_few("policy", 1, 2, 4, 5, few=[1]),
        *in_few("value_head", 1, 2, 4, 5, few=[]),
        *in_few("fact_grpo", 1, 2, 4, 5, few=[]),
    ],
)
def test_resumed_equals_uninterrupted(whole, tiny_model, tmp_path, method, stop):
    assert_resumes(whole, method, tiny_model, tmp_path, stop, max_steps=7)


# Between and inside passes over a generation batch; its end; inside the second epoch.
@pytest.mark.parametrize(
    "method, stop",
    [
        *in_few("fact_grpo", 1, 2, 4, 9, few=[]),
        *in_few("policy", 1, 2, 4, 9, few=[]),
        *in_few("value_head", 1, 2, 4, 9, few=[]),
    ],
)
def test_generation_batches_used_twice(whole, tiny_model, tmp_path, method, stop):
    assert_resumes(whole, method, tiny_model, tmp_path, stop, num_iterations=2, max_steps=11)


@pytest.mark.parametrize(
    "method, stop",
    [*in_few("value_head", 1, 4, few=[]), *in_few("policy", 1, 4, few=[]), *in_few("fact_grpo", 1, 4, few=[])],
)
def test_inside_gradient_accumulation_and_a_larger_generation_batch(whole, tiny_model, tmp_path, method, stop):
    """Two micro-batches a step and four a generation batch, used twice: it serves four steps."""
    assert_resumes(
        whole, method, tiny_model, tmp_path, stop, gradient_accumulation_steps=2, steps_per_generation=4,
        per_device_train_batch_size=1, num_iterations=2, max_steps=6, warmup_steps=2,
    )  # fmt: skip


@pytest.mark.parametrize(
    "changed, named",
    fast_few(
        [
            (
                dict(per_device_train_batch_size=1, gradient_accumulation_steps=2),
                "per_device_train_batch_size=2 (now 1)",
            ),
            (dict(gradient_accumulation_steps=2, steps_per_generation=4), "steps_per_generation=2 (now 4)"),
            (dict(beta=0.1), "beta=0.0 (now 0.1)"),
        ],
        2,
    ),
)
def test_completions_of_other_settings_are_dropped_aloud(stopped, tiny_model, tmp_path, changed, named, caplog):
    """As after running out of memory, and with a reference model that the kept batch knows nothing of."""
    trainer = make(
        "fact_grpo", tiny_model, tmp_path, **{**NO_PENALTY, "save_strategy": "no", "max_steps": 2, **changed}
    )
    with caplog.at_level("WARNING", logger="hf_factuality"):
        trainer.train(resume_from_checkpoint=str(stopped))
    assert trainer.state.global_step == 2
    lines = [record.getMessage() for record in caplog.records if named in record.getMessage()]
    assert len(lines) == 2 and "samples new ones" in lines[1], caplog.text


@pytest.fixture(scope="module")
def stopped(tiny_model, tmp_path_factory):
    """A checkpoint inside a generation batch."""
    folder = tmp_path_factory.mktemp("stopped")
    make("fact_grpo", tiny_model, folder, **NO_PENALTY).train()
    return folder / "checkpoint-1"


@pytest.mark.slow
def test_without_completions_or_moments_it_is_another_run(tiny_model, tmp_path):
    """The control of both: the first test would not see them otherwise."""
    trainer = make("policy", tiny_model, tmp_path, max_steps=2)
    trainer.train()
    for name, gone in (
        ("rollouts_0_of_1.pt", {"step": 0, "batches": None}),
        ("critic/critic_optimizer.pt", {"state": {}}),
    ):
        stopped = shutil.copytree(tmp_path / "checkpoint-1", tmp_path / Path(name).stem)
        torch.save(torch.load(stopped / name, weights_only=True) | gone, stopped / name)
        write_manifest(stopped, read_manifest(stopped))
        assert differ(resumed("policy", tiny_model, tmp_path, stopped, max_steps=2), weights(trainer)), name


def test_a_checkpoint_of_another_critic_is_refused(whole, tiny_model, tmp_path):
    folder, _ = whole("policy", max_steps=7)
    with pytest.raises(CheckpointError, match="holds no critic for this run .*resume with its own critic_model"):
        resumed("value_head", tiny_model, tmp_path, folder / "checkpoint-1", max_steps=7)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fact_grpo", "mask_dpo"])
def test_a_reference_that_follows_the_policy_is_restored(tiny_model, tmp_path, method):
    follows = dict(sync_ref_model=True, ref_model_sync_steps=1, ref_model_mixup_alpha=0.5, beta=0.5, max_steps=2)
    trainer = make(method, tiny_model, tmp_path, **follows)
    trainer.train()
    stopped = tmp_path / "checkpoint-1"
    assert differ(resumed(method, tiny_model, tmp_path, stopped, **follows), weights(trainer)) == []
    fixed = {**follows, "sync_ref_model": False}
    assert differ(resumed(method, tiny_model, tmp_path, stopped, **fixed), weights(trainer))  # the control
    (stopped / "reference.pt").unlink()
    write_manifest(stopped, read_manifest(stopped))  # as of a run without it
    with pytest.raises(CheckpointError, match="reference.pt is missing"):
        resumed(method, tiny_model, tmp_path, stopped, **follows)


@pytest.mark.parametrize("method", fast_few(["policy", "fact_grpo", "mask_dpo"], 2))
def test_sigterm_ends_a_run_with_a_checkpoint(tiny_model, tmp_path, method):
    """In the middle of its third step: that step is made whole and saved, and resumed to what nobody stopped."""
    settings = dict(max_steps=5, save_steps=100)
    expected = make(method, tiny_model, tmp_path / "whole", **settings)
    expected.train()
    stopped = make(method, tiny_model, tmp_path / "run", **settings)
    step = stopped.training_step

    def asked_to_end(*args, **kwargs):
        if stopped.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return step(*args, **kwargs)

    stopped.training_step = asked_to_end
    with pytest.raises(SystemExit) as ended:
        stopped.train(resume_from_checkpoint="auto")  # there is none yet
    assert ended.value.code == 143 and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert [path.name for path in (tmp_path / "run").glob("checkpoint-*")] == ["checkpoint-3"]
    resumed = make(method, tiny_model, tmp_path / "run", **settings)
    resumed.train(resume_from_checkpoint="auto")
    assert differ(weights(resumed), weights(expected)) == []


@pytest.mark.parametrize("method", fast_few(["policy", "fact_grpo", "mask_dpo"], 1))
def test_a_run_that_came_to_its_end_is_resumed_to_nothing(tiny_model, tmp_path, method):
    """In the middle of an epoch, where a stock trainer takes a step more: a job may be queued again after its last step."""
    expected = make(method, tiny_model, tmp_path, max_steps=3)
    expected.train()
    again = make(method, tiny_model, tmp_path, max_steps=3)
    again.train(resume_from_checkpoint="auto")
    assert again.state.global_step == 3 and not (tmp_path / "checkpoint-4").exists()
    assert differ(weights(again), weights(expected)) == []
    longer = make(method, tiny_model, tmp_path, max_steps=4)
    longer.train(resume_from_checkpoint="auto")
    assert longer.state.global_step == 4


@pytest.mark.slow
def test_sigterm_after_the_last_step_changes_nothing(tiny_model, tmp_path):
    """It comes while the last checkpoint is written: the run ends as it would have."""
    trainer = make("policy", tiny_model, tmp_path, max_steps=2, save_steps=1)
    save = trainer._save_checkpoint

    def asked_to_end(*args, **kwargs):
        if trainer.state.global_step == 2:
            signal.raise_signal(signal.SIGTERM)
        return save(*args, **kwargs)

    trainer._save_checkpoint = asked_to_end
    trainer.train()
    assert (tmp_path / "checkpoint-2").is_dir()


def test_sigterm_is_left_alone_where_nothing_is_saved(tiny_model, tmp_path):
    trainer = make("policy", tiny_model, tmp_path, max_steps=1, save_strategy="no")
    step, seen = trainer.training_step, []

    def watched(*args, **kwargs):
        seen.append(signal.getsignal(signal.SIGTERM))
        return step(*args, **kwargs)

    trainer.training_step = watched
    trainer.train()
    assert seen == [signal.SIG_DFL]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mask_dpo", "averaging", "rag"])
def test_tokens_are_counted_on(tiny_model, tmp_path, method):
    """The parents count them beside their state."""

    def trainer(folder, **settings):
        settings = {
            "per_device_train_batch_size": 2,
            "max_steps": 3,
            "save_strategy": "steps",
            "save_steps": 1,
            **settings,
        }
        if method == "mask_dpo":
            return make(method, tiny_model, tmp_path / folder, **settings)
        if method == "rag":
            return make_rag(tiny_model, tmp_path / folder, **settings)
        return make_averaging(pair, tmp_path / folder, **settings)

    def counted(done):
        return [entry["num_tokens"] for entry in done.state.log_history if "num_tokens" in entry]

    pair = save_pair(tmp_path, tiny_model) if method == "averaging" else None
    whole, again = trainer("whole"), trainer("again", save_strategy="no")
    whole.train()
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert len(counted(whole)) == 3 and 0 < counted(whole)[0] < counted(whole)[1] < counted(whole)[2]
    assert counted(again) == counted(whole)


@pytest.mark.slow
def test_an_adapter_is_resumed_as_it_was(tiny_model, tmp_path):
    def trainer(folder, **lora):
        config = LoraConfig(**{**mask_dpo_recording.LORA, **lora}) if lora else None
        settings = {**mask_dpo_recording.SETTINGS, "save_strategy": "steps", "save_steps": 1, "max_steps": 2}
        args = MaskDPOConfig(str(tmp_path / folder), **settings)
        return MaskDPOTrainer(tiny_model, args=args, train_dataset=mask_dpo_recording.pairs(), peft_config=config)

    for folder, lora in (("lora", {"r": 2}), ("whole", {})):
        trainer(folder, **lora).train()
    adapter, whole = tmp_path / "lora" / "checkpoint-1", tmp_path / "whole" / "checkpoint-1"
    trainer("again", r=2, target_modules=["v_proj", "q_proj"]).train(str(adapter))  # in another order
    for other, message in (
        ({"r": 4}, r"r=2 \(now 4\)"),
        ({"lora_alpha": 16}, r"lora_alpha=8 \(now 16\)"),
        ({"target_modules": ["q_proj"]}, "target_modules"),
        ({"r": 2, "init_lora_weights": "pissa"}, r"init_lora_weights=True \(now pissa\)"),  # its base is another
    ):
        with pytest.raises(CheckpointError, match=f"it is of an adapter with {message}"):
            trainer("again", **other).train(str(adapter))
    with pytest.raises(CheckpointError, match="it is of an adapter, and this run trains none"):
        trainer("again").train(str(adapter))
    with pytest.raises(CheckpointError, match="it is of a whole model, and this run trains an adapter"):
        trainer("again", r=2).train(str(whole))
    (adapter / "checkpoint_manifest.json").unlink()  # as a stock trainer leaves it
    with pytest.raises(CheckpointError, match=r"r=2 \(now 4\)"):
        trainer("again", r=4).train(str(adapter))

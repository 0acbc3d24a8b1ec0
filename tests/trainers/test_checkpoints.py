"""A checkpoint is whole or absent; a resume takes the last whole one, and says which it passed over and why."""

import errno
import itertools
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerState

from hf_factuality import MaskDPOConfig, MaskDPOTrainer
from hf_factuality.errors import CheckpointError
from hf_factuality.io.manifest import MANIFEST, find_damage, read_manifest, write_manifest
from tests.conftest import fast_few
from tests.trainers import mask_dpo_recording
from tests.trainers.test_resume import make


METHODS = ["policy", "fact_grpo", "mask_dpo"]


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """A trainer of each method after two steps; both are saved."""
    folder, trainers = tmp_path_factory.mktemp("trained"), {}
    for method in METHODS:
        trainers[method] = make(method, tiny_model, folder / method, max_steps=2)
        trainers[method].train()
    return trainers


@pytest.fixture
def run(trained, tmp_path, request):
    """One of the trainers, whose output folder is a copy that a test may spoil."""
    trainer = trained[getattr(request, "param", "fact_grpo")]
    before, trainer.args.output_dir = trainer.args.output_dir, str(tmp_path / "run")
    shutil.copytree(before, tmp_path / "run")
    yield trainer, tmp_path / "run"
    trainer.args.output_dir = before


def refused(trainer, folder) -> str:
    """What is said of a checkpoint that is asked for by name."""
    with pytest.raises(CheckpointError) as caught:
        trainer.train(resume_from_checkpoint=str(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    return str(caught.value)


def remove(path):
    path.unlink()


def empty(path):
    path.write_bytes(b"")


def halve(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("run", "damage"),
    # Each method by one damage of another kind: the files are read by the same check.
    fast_few(itertools.product(METHODS, [remove, empty, halve, flip]), 3, 4, 9),
    indirect=["run"],
)
def test_every_damaged_file_is_named(run, damage, caplog):
    trainer, folder = run
    last, names = folder / "checkpoint-2", []
    for path in sorted(path for path in last.rglob("*") if path.is_file()):
        name, content = path.relative_to(last).as_posix(), path.read_bytes()
        if name == MANIFEST and damage in (remove, flip):  # the next test; and a letter of JSON tells nobody anything
            continue
        damage(path)
        names.append(name)
        assert name in refused(trainer, last)
        caplog.clear()
        assert trainer._find_checkpoint(True) == str(folder / "checkpoint-1")
        (line,) = [record.getMessage() for record in caplog.records]
        assert line.startswith(f"{last} is passed over: ") and f"{name} " in line and "\n" not in line
        path.write_bytes(content)
    needed = {"model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"}
    assert needed <= set(names)
    assert trainer._find_checkpoint(True) == str(last)


@pytest.mark.parametrize("run", METHODS, indirect=True)
def test_without_a_manifest_what_is_needed_must_be_there(run, caplog):
    """As TRL's own trainers write them."""
    trainer, folder = run
    last = folder / "checkpoint-2"
    (last / MANIFEST).unlink()
    assert trainer._find_checkpoint(True) == str(last)
    assert f"resuming from {last}: it has no {MANIFEST}" in caplog.text
    needed = ["optimizer.pt", "scheduler.pt", "trainer_state.json", "model.safetensors", "rng_state.pth"]
    needed += ["critic/critic_optimizer.pt"] * hasattr(trainer, "critic")
    for name in needed:
        content = (last / name).read_bytes()
        for damage in (remove, empty, halve)[name == "model.safetensors" :]:
            damage(last / name)
            assert name.partition(".")[0] in refused(trainer, last)
            (last / name).write_bytes(content)


def test_nothing_left_to_resume_from(run, caplog):
    trainer, folder = run
    for number in (1, 2):
        remove(folder / f"checkpoint-{number}" / "optimizer.pt")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be resumed; .*checkpoint-1: optimizer.pt is"):
        trainer.train(resume_from_checkpoint=True)
    assert [record.getMessage().count("is passed over") for record in caplog.records] == [1, 1]
    shutil.rmtree(folder / "checkpoint-1")
    (folder / "checkpoint-2").rename(folder / "checkpoint-2.bak")
    with pytest.raises(ValueError, match="No valid checkpoint found"):
        trainer.train(resume_from_checkpoint="True")
    assert "there is no such folder" in refused(trainer, folder / "checkpoint-7")


def test_of_another_trainer_or_of_a_model_only(run, trained):
    trainer, folder = run
    last = folder / "checkpoint-2"
    assert "a FactGRPOTrainer wrote it; a TokenRewardPPOTrainer may start from it" in refused(trained["policy"], last)
    write_manifest(last, {**read_manifest(last), "resumable": False})
    assert "it holds the model only (save_only_model=True)" in refused(trainer, last)


def test_links_out_of_a_checkpoint_are_not_followed(run, tmp_path):
    trainer, folder = run
    last = folder / "checkpoint-2"
    path, inside, outside = last / "optimizer.pt", last / "moved.pt", tmp_path / "moved.pt"
    shutil.copy(path, outside)
    path.rename(inside)
    path.symlink_to(inside)
    assert trainer._find_checkpoint(str(last)) == str(last)
    path.unlink()
    path.symlink_to(outside)
    assert "optimizer.pt is a link out of the folder" in refused(trainer, last)
    cache = tmp_path / "models--someone--run"
    for name in ("snapshots/1234", "blobs"):
        (cache / name).mkdir(parents=True)
    outside.rename(cache / "blobs" / "abcd")
    last.rename(cache / "snapshots/1234" / "last-checkpoint")
    path = cache / "snapshots/1234/last-checkpoint/optimizer.pt"
    path.unlink()
    path.symlink_to(cache / "blobs" / "abcd")
    assert trainer._find_checkpoint(path.parent) == str(path.parent)


@pytest.mark.parametrize(
    "manifest",
    [
        "[" * 100_000, "null", "{}", '{"schema": "hf_factuality.checkpoint/2", "settings": {}, "files": {}}',
        '{"schema": "hf_factuality.checkpoint/1", "settings": {}, "files": {"../../checkpoint-1/optimizer.pt": [1, 2]}}',
        '{"schema": "hf_factuality.checkpoint/1", "settings": {}, "files": {"/dev/zero": [0, 0]}}',
        '{"schema": "hf_factuality.checkpoint/1", "settings": {}, "files": {"optimizer.pt": "12"}}',
        '{"schema": "hf_factuality.checkpoint/1", "settings": [], "files": {}}',
        '{"schema": "hf_factuality.checkpoint/1", "settings": {}, "files": {}}',
    ],
    ids=range(9),
)  # fmt: skip
def test_a_manifest_that_is_none(run, manifest):
    trainer, folder = run
    (folder / "checkpoint-2" / MANIFEST).write_text(manifest)
    assert f"{MANIFEST} is damaged" in refused(trainer, folder / "checkpoint-2")


def test_a_save_that_fails_leaves_the_earlier_checkpoints(run, monkeypatch):
    """And one that was killed is cleared away by the next, under whose number an older one may lie."""
    trainer, folder = run
    last = folder / "checkpoint-2"
    expected = read_manifest(last)

    def fails(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_save_rng_state", fails)
        with pytest.raises(OSError, match="No space") as caught:
            trainer._save_checkpoint(trainer.model, None)
    assert caught.value.__notes__[0].startswith(f"{last} was not saved, with ")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "checkpoint-1", "checkpoint-2"]
    assert read_manifest(last) == expected and find_damage(last, expected) is None
    (folder / "_saving" / "checkpoint-2").mkdir(parents=True)
    (folder / "_saving" / "checkpoint-2" / "junk").touch()
    remove(last / "model.safetensors")
    trainer._save_checkpoint(trainer.model, None)
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "checkpoint-1", "checkpoint-2"]
    assert find_damage(last, read_manifest(last)) is None and not (last / "junk").exists()


def test_a_damaged_checkpoint_of_a_higher_number_does_not_push_out_the_new_one(run):
    trainer, folder = run
    (folder / "checkpoint-2").rename(folder / "checkpoint-9")
    remove(folder / "checkpoint-9" / "optimizer.pt")
    trainer.args.save_total_limit = 1
    trainer._save_checkpoint(trainer.model, None)
    trainer.args.save_total_limit = None
    assert trainer._find_checkpoint(True) == str(folder / "checkpoint-2")
    assert [path.name for path in folder.glob("checkpoint-*")] == ["checkpoint-2"]


def test_a_card_may_be_written_into_a_checkpoint(run):
    trainer, folder = run
    last = folder / "checkpoint-2"
    (last / "README.md").write_text("A card.")
    trainer._save_checkpoint(trainer.model, None)
    (last / "README.md").write_text("Another card.")
    assert trainer._find_checkpoint(True) == str(last)


@pytest.mark.slow
def test_the_best_checkpoint_has_its_own_name_and_is_kept(tiny_model, tmp_path):
    """The first of three is the best, and only one is kept at the end."""
    config = MaskDPOConfig(
        str(tmp_path), **{**mask_dpo_recording.SETTINGS, "save_strategy": "steps"}, save_steps=1, save_total_limit=1,
        eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
    )  # fmt: skip
    pairs = mask_dpo_recording.pairs()
    trainer = MaskDPOTrainer(tiny_model, args=config, train_dataset=pairs, eval_dataset=pairs)
    losses = itertools.count(1.0)
    trainer.evaluate = lambda *args, **kwargs: {"eval_loss": next(losses)}
    trainer.train()
    best = tmp_path / "checkpoint-1"
    assert [path.name for path in tmp_path.glob("*checkpoint-*")] == [best.name]
    states = [trainer.state, TrainerState.load_from_json(str(best / "trainer_state.json"))]
    assert [state.best_model_checkpoint for state in states] == [str(best)] * 2
    loaded = load_file(best / "model.safetensors")
    assert all(torch.equal(trainer.model.state_dict()[name], tensor) for name, tensor in loaded.items())
    halve(best / "model.safetensors")
    with pytest.raises(CheckpointError, match="the best checkpoint, .*checkpoint-1, cannot be loaded: model.safetens"):
        trainer._load_best_model()

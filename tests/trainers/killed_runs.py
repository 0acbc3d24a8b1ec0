"""Runs that end in the middle, for test_kills.py: in a process of their own, or by torchrun on two.

torchrun --nproc_per_node=2 -m tests.trainers.killed_runs METHOD MODEL FOLDER RESUME POINT STEP
"""

import os


os.environ.update(HF_HUB_OFFLINE="1", CI="1")

import io
import resource
import signal
import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from hf_factuality.io import manifest
from hf_factuality.trainers import _checkpoints
from tests.trainers.test_resume import make, weights


STEPS = 6
# Generation batches serve two steps: half of all kills fall between.
SETTINGS = dict(max_steps=STEPS, save_total_limit=2)
POINTS = [
    *("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "manifest", "rename"),
    *("moved", "rotation", "step"),
]


def _die():
    os.kill(os.getpid(), signal.SIGKILL)


def _die_at(point: str, trainer, step: int) -> None:
    """End the process in the middle of writing a file of a checkpoint, around its renaming, or between two saves."""

    def now():
        return trainer.state.global_step == step and trainer._saving

    def half(content: bytes, path) -> None:
        Path(path).write_bytes(content[: len(content) // 2])
        _die()

    save, replace, rmtree = torch.save, os.replace, _checkpoints.shutil.rmtree
    save_model, write = trainer.model.save_pretrained, manifest.write_atomically

    def torch_save(found, path, *args, **kwargs):
        if now() and Path(path).name == point:
            save(found, whole := io.BytesIO(), *args, **kwargs)
            half(whole.getvalue(), path)
        save(found, path, *args, **kwargs)

    def save_pretrained(folder, *args, **kwargs):
        save_model(folder, *args, **kwargs)
        path = Path(folder) / "model.safetensors"
        if now() and point == path.name:
            half(path.read_bytes(), path)

    def write_atomically(path, data):
        if trainer.state.global_step == step and point == "manifest":
            half(data, path)
        write(path, data)

    def os_replace(source, target):
        if Path(source).parent.name == "_saving" and trainer.state.global_step == step:
            if point == "rename":
                _die()
            replace(source, target)
            if point == "moved":
                _die()
        else:
            replace(source, target)

    def shutil_rmtree(path, *args, **kwargs):
        if point == "rotation" and Path(path).name.startswith("checkpoint-") and trainer.state.global_step == step:
            (Path(path) / "optimizer.pt").unlink()
            _die()
        rmtree(path, *args, **kwargs)

    torch.save, os.replace, _checkpoints.shutil.rmtree = torch_save, os_replace, shutil_rmtree
    trainer.model.save_pretrained, manifest.write_atomically = save_pretrained, write_atomically
    if point == "step":
        trainer.training_step = lambda *args, step_of=trainer.training_step, **kwargs: (
            _die() if trainer.state.global_step == step else step_of(*args, **kwargs)
        )


class _SmallFiles(TrainerCallback):
    """From a step on, no file can be larger than this: what a full disk looks like."""

    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))


def run(method, model, folder, resume=False, point=None, step=None, rank=0, **settings):
    """Train to the end, or to a point; the weights go beside the folder, one file per process."""
    torch.set_num_threads(1)
    trainer = make(method, model, folder, **{**SETTINGS, **settings})
    if point == "SIGTERM":
        trainer.training_step = lambda *args, step_of=trainer.training_step, **kwargs: (
            (trainer.state.global_step == step and signal.raise_signal(signal.SIGTERM)) or step_of(*args, **kwargs)
        )
    elif point == "small files":
        trainer.add_callback(_SmallFiles(step))
    elif point is not None:
        _die_at(point, trainer, step)
    trainer.train(resume_from_checkpoint=resume)
    torch.save(weights(trainer), f"{folder}.{rank}.pt")


def main():
    method, model, folder, resume, point, step = sys.argv[1:]
    rank = int(os.environ["RANK"])
    # The last process dies; torchrun ends the other.
    run(method, model, folder, resume == "True", point if rank and point != "-" else None, int(step), rank)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()

"""A run that is killed at any moment and started again is the run that was not, to the last bit; nothing is cleared away."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_factuality.io.manifest import find_damage, read_manifest
from tests.trainers.killed_runs import POINTS, run
from tests.trainers.test_resume import differ


pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).resolve().parents[2]
METHODS = ["policy", "fact_grpo", "mask_dpo"]


@pytest.fixture(scope="module")
def start():
    """Starts a run in a process of its own, quickly: what it imports is imported once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.trainers.killed_runs"])

    def start(*args, **settings):
        process = context.Process(target=run, args=args, kwargs=settings)
        process.start()
        return process

    return start


def ended(process) -> int:
    process.join(300)
    return process.exitcode


@pytest.fixture(scope="module")
def expected(start, tiny_model, tmp_path_factory):
    """The weights of runs that nobody disturbed, and their folders."""
    folder = tmp_path_factory.mktemp("expected")

    def of(method):
        if not (folder / method).exists():
            assert ended(start(method, tiny_model, folder / method)) == 0
        return torch.load(folder / f"{method}.0.pt", weights_only=True), folder / method

    return of


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_a_point(start, expected, tiny_model, tmp_path, method, point):
    """In the third to fifth save, of which the later ones delete older checkpoints; half a file is left behind."""
    step, folder = 3 + POINTS.index(point) % 3, tmp_path / "run"
    assert ended(start(method, tiny_model, folder, False, point, step)) == -signal.SIGKILL
    assert (folder / f"checkpoint-{step}").exists() == (point in ("moved", "rotation", "step"))
    assert (folder / "_saving").exists() == (point not in ("rotation", "step"))
    assert not (tmp_path / "run.0.pt").exists()
    assert ended(start(method, tiny_model, folder, True)) == 0
    assert differ(torch.load(tmp_path / "run.0.pt", weights_only=True), expected(method)[0]) == []
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "checkpoint-5", "checkpoint-6"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("method", METHODS)
def test_killed_at_any_moment(start, expected, tiny_model, tmp_path, method, seed):
    """From outside, again and again, until it comes to its end between two kills."""
    draw, folder, kills = random.Random(seed), tmp_path / "run", 0
    while not (tmp_path / "run.0.pt").exists():
        process = start(method, tiny_model, folder, any(folder.glob("checkpoint-*")))
        found, patience = set(folder.glob("*")), draw.uniform(0.0, 0.5) if kills else 0.0
        while kills < 4 and process.is_alive():
            if set(folder.glob("*")) - found:  # it trains
                process.join(patience)
                if process.is_alive():
                    process.kill()
                    kills += 1
                break
            process.join(0.005)
        assert ended(process) in (0, -signal.SIGKILL)
    assert kills
    assert differ(torch.load(tmp_path / "run.0.pt", weights_only=True), expected(method)[0]) == []


@pytest.mark.parametrize("method", METHODS)
def test_files_that_cannot_be_written(start, expected, tiny_model, tmp_path, method):
    folder = tmp_path / "run"
    assert ended(start(method, tiny_model, folder, False, "small files", 3)) == 1
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "checkpoint-1", "checkpoint-2"]
    assert ended(start(method, tiny_model, folder, True)) == 0
    assert differ(torch.load(tmp_path / "run.0.pt", weights_only=True), expected(method)[0]) == []


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a disk cannot be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)


@pytest.mark.parametrize("method", METHODS)
def test_a_full_disk_leaves_the_last_checkpoint_as_it_was(start, expected, tiny_model, small_disk, method):
    folder = small_disk / "run"
    weights, whole = expected(method)
    size = sum(4096 + path.stat().st_size for path in (whole / "checkpoint-6").rglob("*"))  # in pages
    subprocess.run(["mount", "-o", f"remount,size={size * 7 // 2}", small_disk], check=True)
    assert ended(start(method, tiny_model, folder, save_total_limit=None)) == 1
    saved = sorted(folder.glob("checkpoint-*"))
    assert saved and not (folder / "_saving").exists() and not (folder / "checkpoint-6").exists()
    assert [find_damage(path, read_manifest(path)) for path in saved] == [None] * len(saved)
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    assert ended(start(method, tiny_model, folder, True)) == 0
    assert differ(torch.load(f"{folder}.0.pt", weights_only=True), weights) == []


def launch(*args) -> subprocess.CompletedProcess:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone",
               "-m", "tests.trainers.killed_runs", *map(str, args)]  # fmt: skip
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("method", ["value_head", "mask_dpo"])
def test_one_of_two_processes_is_killed(tiny_model, tmp_path, method):
    """In the middle of its own file, which the first process does not know of."""
    undisturbed = launch(method, tiny_model, tmp_path / "whole", False, "-", 0)
    assert undisturbed.returncode == 0, undisturbed.stderr[-3000:]
    killed = launch(method, tiny_model, tmp_path / "run", False, "rng_state_1.pth", 4)
    assert killed.returncode != 0
    # The third step is the first of two on its completions.
    assert {path.name for path in (tmp_path / "run").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-3"}
    resumed = launch(method, tiny_model, tmp_path / "run", True, "-", 0)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    for rank in (0, 1):
        found, expected = (torch.load(tmp_path / f"{name}.{rank}.pt", weights_only=True) for name in ("run", "whole"))
        assert differ(found, expected) == []


@pytest.mark.parametrize("method", ["value_head", "mask_dpo"])
def test_one_of_two_processes_is_asked_to_end(tiny_model, tmp_path, method):
    """Both save after the same step and end; the other was never asked."""
    assert launch(method, tiny_model, tmp_path / "whole", False, "-", 0).returncode == 0
    ended = launch(method, tiny_model, tmp_path / "run", False, "SIGTERM", 3)
    assert ended.returncode != 0 and "exitcode  : 143" in ended.stderr, ended.stderr[-3000:]
    assert max(int(path.name[11:]) for path in (tmp_path / "run").glob("checkpoint-*")) == 4
    resumed = launch(method, tiny_model, tmp_path / "run", True, "-", 0)
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    for rank in (0, 1):
        found, expected = (torch.load(tmp_path / f"{name}.{rank}.pt", weights_only=True) for name in ("run", "whole"))
        assert differ(found, expected) == []

"""What a merge holds, and what kill -9 leaves of one: real shards of 200 MB, merged by processes that are watched from outside.

Run as a program it makes the checkpoints and forks those processes: `python -m tests.checkpoints.test_merge_memory FOLDER`.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.checkpoints.merge_inputs import run


pytestmark = pytest.mark.slow
SIZES = {"vocab_size": 7403, "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 3}
SMALL = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
LARGEST_TENSOR = 7403 * 1024 * 4  # bytes: the embeddings
# Embeddings twice; per layer q and o, k and v, the three of the MLP, two norms; the last norm.
TOTAL = 4 * (2 * 7403 * 1024 + 3 * (2 * 1024**2 + 2 * 128 * 1024 + 3 * 1024 * 2816 + 2 * 1024) + 1024)
SHARD = 48_000_000
MERGES = {
    "ranks": ("ranks",),
    "ranks, cast": ("ranks", "--dtype", "bfloat16"),
    "distributed": ("dcp",),
    "adapter": ("adapter", "--max_shard_size", "1GB"),
    "average": ("ranks dcp", "--alpha", "0.3"),
    "ranks, all kept": ("ranks",),
}
LARGE_MATRIX = 2 * 65_536 * 1024  # bytes: embeddings, and the layer that gives the logits
# One file of the output, or the largest tensor. An adapter's product is beside it, in float32.
BOUNDS = {name: 1.1 * max(SHARD, LARGEST_TENSOR) for name in MERGES} | {"adapter": 1.1 * (2 + 2) * LARGE_MATRIX}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """What was seen: memory of every merge, and the state of the folder after every kill."""
    folder = tmp_path_factory.mktemp("large")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "tests.checkpoints.test_merge_memory", str(folder)],
            capture_output=True,
            text=True,
            timeout=600,
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)  # a gigabyte
    assert not done.returncode, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_no_more_than_a_file_is_held(watched):
    assert watched["written"] == TOTAL and watched["files"] >= 4
    for name, runs in watched["memory"].items():
        held = min(run["RssAnon"] - run["before"]["RssAnon"] for run in runs)
        if name.endswith("all kept"):  # the control: a merge that keeps what it has read is seen to
            assert held > 0.9 * TOTAL, (name, runs)
        else:
            assert held < BOUNDS[name], (name, held / BOUNDS[name], runs)


def test_killed_at_random_moments(watched):
    kills = watched["kills"]
    assert len(kills) == 5 and all(kill["written"] for kill in kills)
    for kill in kills:
        assert not kill["seen"] and not kill["out"] and not kill["loads"], kill
    assert watched["completed"] == ["out"]  # nothing of the killed ones is beside it
    assert watched["first"] == watched["again"] and len(watched["first"]) == watched["files"] + 3


def _write_rank(rank: int, folder: Path, sizes: dict, place: Path) -> None:
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from transformers import LlamaConfig, LlamaForCausalLM

    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=2)
    config = LlamaConfig(**sizes, num_attention_heads=8, num_key_value_heads=1, architectures=["LlamaForCausalLM"])
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    mesh = init_device_mesh("cpu", (2,))
    for module in (*model.model.layers, model):
        # Matrices of the layers are cut along dimension 1, so that their rows must be put together.
        fully_shard(module, mesh=mesh, shard_placement_fn=lambda p: Shard(int(p.ndim == 2 and len(p) != 7403)))
    model.to_empty(device="cpu")
    torch.manual_seed(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(0, 0.02)
    for kind in ("ranks", "dcp"):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        if not rank:
            config.save_pretrained(folder / kind)
    torch.save(model.state_dict(), folder / "ranks" / f"model_world_size_2_rank_{rank}.pt")
    dcp.save({"model": model.state_dict()}, checkpoint_id=folder / "dcp")
    dist.barrier()


def _write_adapter(rank: int, folder: Path, vocabulary: int) -> None:
    """LoRA on the two largest matrices, of which PEFT keeps one transposed."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {**SMALL, "hidden_size": 1024, "vocab_size": vocabulary}
    config = LlamaConfig(**sizes, num_attention_heads=8, architectures=["LlamaForCausalLM"], dtype="bfloat16")
    with torch.device("meta"):
        shapes = {name: tensor.shape for name, tensor in LlamaForCausalLM(config).state_dict().items()}
    config.save_pretrained(folder / "base")
    save_file(
        {name: torch.ones(shape).bfloat16() for name, shape in shapes.items()}, folder / "base/model.safetensors"
    )
    matrices = {
        "model.embed_tokens.lora_embedding_A": torch.randn(16, vocabulary),
        "model.embed_tokens.lora_embedding_B": torch.randn(1024, 16),
        "lm_head.lora_A.weight": torch.randn(16, 1024),
        "lm_head.lora_B.weight": torch.randn(vocabulary, 16),
    }
    (folder / "adapter").mkdir()
    save_file(
        {f"base_model.model.{name}": t for name, t in matrices.items()}, folder / "adapter/adapter_model.safetensors"
    )
    written = {"peft_type": "LORA", "r": 16, "lora_alpha": 16, "base_model_name_or_path": str(folder / "base")}
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(written))


def _fork(argv: list[str], small: list[str] | None = None, keep: bool = False) -> tuple[int, int, int]:
    """A process that runs the command: its number, where it says that it is ready, and where it is told to start."""
    from hf_factuality.checkpoints import write as merge_write
    from hf_factuality.cli import main

    said, say = os.pipe()
    heard, tell = os.pipe()
    child = os.fork()
    if child:
        os.close(say)
        os.close(heard)
        return child, said, tell
    status = 1
    try:
        os.dup2(2, 1)
        if small is not None and main(small):
            raise SystemExit("the small one failed")
        if keep:
            places, kept = merge_write._places, []

            def hoard(entries, memory):
                kept.append(memory.clone())
                return places(entries, kept[-1])

            merge_write._places = hoard
        os.write(say, b"r")
        os.read(heard, 1)
        status = main(argv)
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def _rss(pid: int) -> dict[str, int]:
    """Bytes that a process holds itself, and of files that it has mapped; zeros when it is over."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith("Rss")}
    return {name: found.get(name, 0) for name in ("RssAnon", "RssFile")}


def _memory(folder: Path, name: str) -> dict:
    """The most that a merge held, and what the same process held before, which had merged a small model."""
    kinds, *options = MERGES[name]
    command = "average" if name == "average" else "merge"
    out = folder / "measured" / name / "out"
    shutil.rmtree(out.parent, ignore_errors=True)
    large, small = ([str(folder / size / kind) for kind in kinds.split()] for size in ("large", "small"))
    argv = [command, *large, "--out", str(out), "--max_shard_size", str(SHARD), *options]
    small = [command, *small, "--out", str(out.parent / "small"), *options]
    child, said, tell = _fork(argv, small, keep=name.endswith("all kept"))
    assert os.read(said, 1) == b"r", name
    before = peak = _rss(child)
    os.write(tell, b"g")
    while True:
        peak = max(peak, _rss(child), key=lambda found: found["RssAnon"])
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert not status, name
            return {**peak, "before": before}
        time.sleep(0.002)


def _measured(folder: Path, name: str) -> list[dict]:
    """Once, or again where it was too much: what else the machine does can show in a process."""
    runs = [_memory(folder, name)]
    if name != "ranks, all kept" and runs[0]["RssAnon"] - runs[0]["before"]["RssAnon"] > BOUNDS[name]:
        runs.append(_memory(folder, name))
    return runs


def _kill(folder: Path, out: Path, after: float) -> dict:
    """Kill the command when it has written a share of the model, and look at what is there."""
    from transformers import AutoConfig

    partial = out.parent / f".{out.name}.partial"
    for _ in range(5):  # again, if it was over before it could be killed
        argv = ["merge", str(folder / "large" / "ranks"), "--out", str(out), "--max_shard_size", str(SHARD)]
        # A killed run has left its files: what counts is what this one writes.
        started = time.time_ns()
        child, said, tell = _fork(argv)
        assert os.read(said, 1) == b"r"
        os.write(tell, b"g")
        seen, written = False, 0
        while not os.waitpid(child, os.WNOHANG)[0]:
            seen = seen or out.exists()
            written = sum(size for size, changed in _sizes(partial) if changed >= started)
            if written >= after * TOTAL:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                break
            time.sleep(0.0005)
        if not out.exists() and not (partial / "config.json").exists():
            break
        for path in (*_files(out), *_files(partial)):
            path.unlink()
        out.rmdir()
    loads = []
    for place in (out, partial):
        try:
            AutoConfig.from_pretrained(place)
            loads.append(place.name)
        except (OSError, ValueError):
            pass
    return {"written": written, "seen": seen, "out": out.exists(), "loads": loads}


def _files(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.exists()]
    except FileNotFoundError:
        return []


def _sizes(folder: Path) -> list[tuple[int, int]]:
    """Room that each file takes and when it was last written, in ns; a merge may remove one while this looks."""
    found = []
    for path in _files(folder):
        with contextlib.suppress(FileNotFoundError):
            state = path.stat()
            found.append((512 * state.st_blocks, state.st_mtime_ns))
    return found


def _digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


def _watch(folder: Path) -> dict:
    run(_write_rank, 2, folder / "small", SMALL, folder / "small.rendezvous")
    run(_write_rank, 2, folder / "large", SIZES, folder / "large.rendezvous")
    # In processes of their own: memory that they free late would be there for the merges to take, and none be seen to grow.
    run(_write_adapter, 1, folder / "small", 64)
    run(_write_adapter, 1, folder / "large", LARGE_MATRIX // 2048)
    memory = {name: _measured(folder, name) for name in MERGES}
    whole = folder / "measured" / "ranks" / "out"
    stored = list(whole.glob("*.safetensors"))
    headers = [8 + int.from_bytes(path.open("rb").read(8), "little") for path in stored]
    out = folder / "killed" / "out"
    draw = random.Random(5)
    kills = [_kill(folder, out, (part + draw.random() * 0.9) / 5) for part in range(5)]
    child, said, tell = _fork(
        ["merge", str(folder / "large" / "ranks"), "--out", str(out), "--max_shard_size", str(SHARD)]
    )
    os.write(tell, b"g")
    assert not os.waitpid(child, 0)[1]
    return {
        "memory": memory,
        "files": len(stored),
        "written": sum(path.stat().st_size for path in stored) - sum(headers),
        "kills": kills,
        "completed": sorted(path.name for path in out.parent.iterdir()),
        "first": _digests(whole),
        "again": _digests(out),
    }


if __name__ == "__main__":
    import torch
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor
    import transformers.models.llama.modeling_llama  # noqa: F401

    import hf_factuality.checkpoints.merge  # noqa: F401

    torch.set_num_threads(1)
    print(json.dumps(_watch(Path(sys.argv[1]))))

"""Memory and time of merging a checkpoint, beside a copy of the same bytes and verl's own merger, in one run.

    python benchmarks/merge.py --gigabytes 4 --repeats 3 --verl FOLDER --out merge.json

`FOLDER` is where `pip install --target FOLDER` put verl 0.9.1 and what it imports; only its own process sees it. The
checkpoint is what a run of verl leaves: a Llama of random weights, sharded by torch's `fully_shard` in processes over
gloo, none of which holds more than its shards. The same weights are also laid out as DeepSpeed lays out the partitions
of ZeRO-2 and ZeRO-3, without the optimizer's moments and the 16-bit copies, which nobody reads here.

Measured, in alternating order, each in a process of its own:

- `copy`: `cp` of the rank files, and `sync` of the copies, twice a round. Other times are divided by the mean of the two.
  Its process starts as `merge` does, since memory that was free for longer may be back at a virtual machine's host.
- `merge`: `hf-factuality merge`; `merge, bfloat16`: with `--dtype bfloat16`, as verl writes; `ZeRO-2`, `ZeRO-3`.
- `average`: `hf-factuality average --alpha 0.5` of the merged model and the rank files, which gives the merged model again.
- `command`: as `merge`, with the start of Python and all imports, and their memory.
- `verl`: `python -m verl.model_merger merge --backend fsdp`, without its imports.

Memory is RssAnon of /proc/PID/status (what the process holds; mapped pages are the system's to take back), read
every 2 ms. "Above bare" is without what the process held just before: all imported and, for ours, a model of 0.1 MB
merged, as some imports are made late. The bound is the larger of one output file and the largest tensor, plus 10 %. What
is written is compared, block by block: bfloat16 with verl's, ZeRO with the merge of the rank files.

Exit status 1 if memory is above the bound or a bit differs. All lies in one folder in `--scratch`, removed at the end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


BLOCK = 16 * 1024**2
MARGIN = 1.1


def model_settings(parameters: float) -> dict[str, int]:
    """Settings of a Llama of about so many parameters: the widths of a 1B model, or narrower if it is small."""
    width = next(width for least, width in ((5e8, 2048), (1e8, 1024), (4e7, 512), (0, 256)) if parameters >= least)
    vocabulary, inner, narrow = 32003, width * 11 // 4, width // 8  # the vocabulary: shards of unequal length
    layer = 2 * width**2 + 2 * width * narrow + 3 * width * inner + 2 * width
    layers = max(1, round((parameters - 2 * vocabulary * width) / layer))
    sizes = {"vocab_size": vocabulary, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers}
    return {**sizes, "num_attention_heads": 16, "num_key_value_heads": 2}


# What the processes do. Each is called in a process of its own; those with two parts stop between them to be measured.


def make_ranks(folder: str, settings: dict[str, int], dtype: str, ranks: int) -> dict[str, Any]:
    """Write a checkpoint of FSDP2 as verl does; every rank is forked from here, where no thread runs yet."""
    import torch.distributed.fsdp  # noqa: F401
    import torch.distributed.tensor
    from transformers import LlamaConfig, PreTrainedTokenizerFast
    from transformers.models.llama import modeling_llama  # noqa: F401

    torch.set_num_threads(1)
    place, beside = Path(folder), Path(folder) / "huggingface"
    beside.mkdir(parents=True)
    config = LlamaConfig(**settings, tie_word_embeddings=False, dtype=dtype, architectures=["LlamaForCausalLM"])
    config.save_pretrained(beside)
    _tokenizer(PreTrainedTokenizerFast).save_pretrained(beside)
    (place / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            try:
                _write_rank(rank, ranks, place, config, getattr(torch, dtype))
                os._exit(0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                os._exit(1)
        children.append(child)
    if failed := [child for child in children if os.waitpid(child, 0)[1]]:
        raise RuntimeError(f"{len(failed)} of {ranks} ranks could not be written")
    return {}


def _tokenizer(kind: Any) -> Any:
    from tokenizers import Tokenizer, models

    found = Tokenizer(models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3}, unk_token="<unk>"))
    return kind(tokenizer_object=found, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def _write_rank(rank: int, ranks: int, place: Path, config: Any, dtype: Any) -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformers import LlamaForCausalLM

    dist.init_process_group("gloo", init_method=f"file://{place / 'rendezvous'}", rank=rank, world_size=ranks)
    with torch.device("meta"):
        model = LlamaForCausalLM(config).to(dtype)
    mesh = init_device_mesh("cpu", (ranks,), mesh_dim_names=("fsdp",))
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh)
    model.to_empty(device="cpu")  # a process has memory for its shards alone
    torch.manual_seed(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.to_local().normal_(0, 0.02)
    torch.save(model.state_dict(), place / f"model_world_size_{ranks}_rank_{rank}.pt")
    dist.barrier()


def make_zero(model: str, folder: str, stage: int, ranks: int) -> dict[str, Any]:
    """Lay a model out as the float32 partitions of ZeRO, a rank at a time."""
    import torch

    tensors = stored_tensors(Path(model))
    shapes = {name: torch.Size(part.get_shape()) for name, part in tensors.items()}
    groups = [{name: s for name, s in shapes.items() if (len(s) > 1) == matrices} for matrices in (True, False)]
    place = Path(folder)
    place.mkdir(parents=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(Path(model) / name, place / name)
    for rank in range(ranks):
        flats = []
        for group in groups:
            size, runs = (_each_cut if stage == 3 else _all_cut)(group, rank, ranks)
            flats.append(torch.full((size,), 7.0))  # what is left is padding
            for offset, name, start, stop in runs:
                flats[-1][offset : offset + stop - start] = tensors[name][:].reshape(-1)[start:stop]
        key = "fp32_flat_groups" if stage == 3 else "single_partition_of_fp32_groups"
        state = {"optimizer_state_dict": {"zero_stage": stage, "partition_count": ranks, key: flats}}
        torch.save(state, place / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        del flats, state
        states = {"module": {}, "buffer_names": [], "param_shapes": groups, "shared_params": {}}
        if stage == 3:
            torch.save(states, place / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        elif not rank:
            torch.save(states, place / "mp_rank_00_model_states.pt")
    return {}


# Both give the length of a partition and what lies in it: where, and from which to which element of a tensor.
Runs = tuple[int, list[tuple[int, str, int, int]]]


def _each_cut(group: dict[str, Any], rank: int, ranks: int) -> Runs:
    """ZeRO-3: every parameter is padded and cut on its own."""
    offset, runs = 0, []
    for name, shape in group.items():
        size = -(-math.prod(shape) // ranks)
        runs.append((offset, name, rank * size, max(rank * size, min((rank + 1) * size, math.prod(shape)))))
        offset += size
    return offset, runs


def _all_cut(group: dict[str, Any], rank: int, ranks: int) -> Runs:
    """ZeRO-2: the parameters of a group follow one another; the whole is padded and cut."""
    size = 2 * -(-sum(math.prod(shape) for shape in group.values()) // (2 * ranks))
    low, high, passed, runs = rank * size, (rank + 1) * size, 0, []
    for name, shape in group.items():
        start, stop = max(low, passed), min(high, passed + math.prod(shape))
        if stop > start:
            runs.append((start - low, name, start - passed, stop - passed))
        passed += math.prod(shape)
    return size, runs


def stored_tensors(folder: Path) -> dict[str, Any]:
    """Tensors of all safetensors files of a folder, none of them read."""
    from safetensors import safe_open

    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        file = safe_open(path, framework="pt")
        found |= {name: file.get_slice(name) for name in file.keys()}
    return found


def compare(first: str, second: str) -> dict[str, Any]:
    """Names of tensors that are not the same bytes in two models, read a block at a time."""
    import torch

    one, other = stored_tensors(Path(first)), stored_tensors(Path(second))
    different = sorted(one.keys() ^ other.keys())
    for name in sorted(one.keys() & other.keys()):
        shape = one[name].get_shape()
        same = (shape, one[name].get_dtype()) == (other[name].get_shape(), other[name].get_dtype())
        rows = max(1, BLOCK // (8 * math.prod(shape[1:])))
        for start in range(0, shape[0], rows) if same else ():
            blocks = [part[name][start : start + rows].contiguous().view(torch.uint8) for part in (one, other)]
            same = same and torch.equal(*blocks)
        different += [] if same else [name]
    return {"tensors": len(one), "different": different}


def copy(warm_up: str, checkpoint: str, out: str) -> Iterator[Any]:
    """Copy the files of weights."""
    _merge(warm_up, "--out", f"{out}-small")
    files = [str(path) for path in sorted(Path(checkpoint).glob("*.pt"))]
    Path(out).mkdir()
    yield None
    subprocess.run(["cp", "--reflink=never", "--sparse=never", *files, out], check=True)
    subprocess.run(["sync", *map(str, Path(out).iterdir())], check=True)


def merge(warm_up: str, checkpoint: str, out: str, *options: str) -> Iterator[Any]:
    """`hf-factuality merge`."""
    _merge(warm_up, "--out", f"{out}-small")
    yield None
    _merge(checkpoint, "--out", out, *options)


def _merge(checkpoint: str, *options: str) -> None:
    from hf_factuality.cli import main

    if main(["merge", checkpoint, *options]):
        raise SystemExit(f"{checkpoint} could not be merged")


def average(warm_up: str, before: str, checkpoint: str, out: str, *options: str) -> Iterator[Any]:
    """`hf-factuality average`."""
    from hf_factuality.cli import main

    main(["average", warm_up, warm_up, "--alpha", "0.5", "--out", f"{out}-small"])
    yield None
    if main(["average", before, checkpoint, "--alpha", "0.5", "--out", out, *options]):
        raise SystemExit(f"{checkpoint} could not be averaged")


def verl(checkpoint: str, out: str) -> Iterator[Any]:
    """verl's merger."""
    from verl.model_merger import fsdp_model_merger  # noqa: F401
    from verl.model_merger.__main__ import main

    sys.argv = ["merge", "merge", "--backend", "fsdp", "--local_dir", checkpoint, "--target_dir", out]
    yield None
    main()


MEASURED = {"copy": copy, "merge": merge, "average": average, "verl": verl}
OTHERS = {"make_ranks": make_ranks, "make_zero": make_zero, "compare": compare}


def worker(name: str, arguments: list[Any]) -> None:
    """Run one of the above, in a process that was started for it; what it prints goes to the error stream."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if name in OTHERS:
        print(json.dumps(OTHERS[name](*arguments)), file=answers, flush=True)
        return
    work = MEASURED[name](*arguments)
    next(work)
    print("ready", file=answers, flush=True)
    if not sys.stdin.readline():  # whoever measures is gone
        return
    started, used = time.perf_counter(), os.times()
    next(work, None)
    seconds, now = time.perf_counter() - started, os.times()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    result = {"seconds": seconds, "cpu": sum(now[:4]) - sum(used[:4]), "hwm_mb": int(status["VmHWM"].split()[0]) / 1e3}
    print(json.dumps(result), file=answers, flush=True)


class Bench:
    """Starts processes that write into a folder, and measures them."""

    def __init__(self, scratch: Path, verl: str | None):
        self.scratch, self.verl = scratch, verl
        (scratch / "tmp").mkdir()

    @contextlib.contextmanager
    def _process(self, command: list[str], path: str | None = None) -> Iterator[subprocess.Popen]:
        caches = dict.fromkeys(("TMPDIR", "XDG_CACHE_HOME", "HF_HOME"), str(self.scratch / "tmp"))
        settings = {"CI": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TQDM_DISABLE": "1"}
        environment = os.environ | caches | settings | ({"PYTHONPATH": path} if path else {})
        log = self.scratch / "log"
        with log.open("w") as errors:
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": errors, "text": True}
            own = {"env": environment, "cwd": self.scratch, "start_new_session": True}
            process = subprocess.Popen([sys.executable, *command], **pipes, **own)
        try:
            yield process
            if process.wait():
                raise SystemExit(f"failed: {' '.join(command)}\n{log.read_text(errors='replace')[-3000:]}")
        finally:
            if process.returncode is None or process.returncode:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            process.communicate()

    def call(self, name: str, *arguments: Any) -> dict[str, Any]:
        """Run one of [`OTHERS`]."""
        with self._process([__file__, "--work", name, json.dumps(arguments)]) as process:
            answer = process.stdout.read()
        return json.loads(answer)

    def measure(self, name: str, *arguments: Any) -> dict[str, float]:
        """Run one of [`MEASURED`] and follow its memory."""
        command = [__file__, "--work", name, json.dumps(arguments)]
        with self._process(command, self.verl if name == "verl" else None) as process:
            answer = process.stdout.readline()
            bare = rss_anon(process.pid)
            if answer.strip() == "ready":
                process.stdin.write("go\n")
                process.stdin.flush()
            peak = max(bare, follow(process))
            answer = process.stdout.read()
        return {**json.loads(answer), "bare_mb": bare, "peak_mb": peak, "above_mb": peak - bare}

    def command(self, *argv: str) -> dict[str, float]:
        """Run the `hf-factuality` command as it is."""
        started, used = time.perf_counter(), os.times()
        with self._process(["-c", "from hf_factuality.cli import main; raise SystemExit(main())", *argv]) as process:
            peak = follow(process)
            seconds = time.perf_counter() - started
        now = os.times()
        return {"seconds": seconds, "cpu": sum(now[2:4]) - sum(used[2:4]), "peak_mb": peak}


def rss_anon(pid: int) -> float:
    """Megabytes (10^6 bytes) that a process itself holds; 0 when it is over."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024 / 1e6
    return 0.0


def follow(process: subprocess.Popen) -> float:
    """The largest memory of a process until it ends."""
    peak = 0.0
    while process.poll() is None:
        peak = max(peak, rss_anon(process.pid))
        time.sleep(0.002)
    return peak


def set_cache(files: list[Path], cache: str) -> None:
    """Bring the files into the system's cache, or out of it."""
    os.sync()  # what the last process wrote is on the disk, so that this one does not wait for it
    if cache == "warm":
        subprocess.run(["cat", *files], stdout=subprocess.DEVNULL, check=True)
    for path in files if cache == "cold" else ():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def remove(folder: Path) -> None:
    """Remove a folder and those that begin with its name."""
    for path in folder.parent.glob(f"{folder.name}*"):
        shutil.rmtree(path)


def experiment(args: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Make the checkpoints, measure `--repeats` rounds, and compare what was written."""
    bench = Bench(scratch, args.verl)
    settings = model_settings(args.gigabytes * 1e9 / (4 if args.dtype == "float32" else 2))
    ranks, small, whole, out = (str(scratch / name) for name in ("ranks", "small", "whole", "out"))
    tiny = {**settings, "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1}
    say(f"a checkpoint of {args.ranks} ranks: {settings}")
    bench.call("make_ranks", small, tiny, args.dtype, args.ranks)
    bench.call("make_ranks", ranks, settings, args.dtype, args.ranks)
    size = ("--max_shard_size", args.max_shard_size)
    bench.command("merge", ranks, "--out", whole, *size)
    stored = {name: _bytes(part) for name, part in stored_tensors(Path(whole)).items()}
    arms: dict[str, tuple[str, tuple]] = {
        "copy": ("copy", (small, ranks, out)),
        "merge": ("merge", (small, ranks, out, *size)),
        "average": ("average", (small, whole, ranks, out, *size)),
        "command": ("command", ("merge", ranks, "--out", out, *size)),
    }
    if args.dtype == "float32":
        arms["merge, bfloat16"] = ("merge", (small, ranks, out, *size, "--dtype", "bfloat16"))
    sources: dict[str, Path] = {}
    for stage in (2, 3):
        say(f"the same weights as ZeRO-{stage}")
        zero = sources[f"ZeRO-{stage}"] = scratch / f"zero{stage}"
        bench.call("make_zero", whole, str(zero), stage, args.ranks)
        arms[f"ZeRO-{stage}"] = ("merge", (small, str(zero), out, *size, "--dtype", args.dtype))
    arms["copy again"] = arms["copy"]
    if args.verl:
        arms["verl"] = ("verl", (ranks, out))
    samples: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    compared: dict[str, Any] = {}
    for number in range(args.repeats):
        names = list(arms)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            kind, arguments = arms[name]
            set_cache(sorted(sources.get(name, Path(ranks)).glob("*.pt")), args.cache)
            found = bench.command(*arguments) if kind == "command" else bench.measure(kind, *arguments)
            if kind in ("merge", "average"):
                files = [path.stat().st_size for path in Path(out).glob("*.safetensors")]
                largest = max(_bytes(part) for part in stored_tensors(Path(out)).values())
                found |= {"file_mb": max(files) / 1e6, "tensor_mb": largest / 1e6}
                found["bound_mb"] = max(found["file_mb"], found["tensor_mb"]) * MARGIN
            samples[name].append(found)
            say(f"[{number + 1}/{args.repeats}] {name}: {json.dumps({k: round(v, 2) for k, v in found.items()})}")
            if number == 0 and (name in sources or name == "average"):
                compared[f"{name} and merge"] = bench.call("compare", out, whole)
            if number == 0 and name == "verl":
                ours = str(scratch / "cast")
                bench.command("merge", ranks, "--out", ours, *size, "--dtype", "bfloat16")
                compared["verl and merge to bfloat16"] = bench.call("compare", out, ours)
                remove(scratch / "cast")
            remove(Path(out))
    settled = {name: getattr(args, name) for name in ("dtype", "ranks", "cache", "max_shard_size", "repeats")}
    return settled | {"settings": settings, "tensors": stored, "samples": samples, "compared": compared}


def _bytes(part: Any) -> int:
    return math.prod(part.get_shape()) * {"F32": 4, "BF16": 2}[part.get_dtype()]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def spread(values: list[float], digits: int = 2) -> str:
    """Mean and standard deviation."""
    deviation = f" ± {statistics.stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.{digits}f}{deviation}"


def table(result: dict[str, Any]) -> str:
    """The figures as a table of Markdown."""
    columns = "peak memory above bare, MB | bound, MB | bare, MB | VmHWM, MB | time, s | time / copy | CPU time, s"
    lines = [f"| | {columns} |", "|---" * 8 + "|"]
    samples = result["samples"]
    pairs = zip(samples["copy"], samples["copy again"], strict=True)
    copies = [(first["seconds"] + second["seconds"]) / 2 for first, second in pairs]
    for name, found in samples.items():
        most = {key: max(sample[key] for sample in found) for key in found[0]}
        keys = (None,) * 4 if name.startswith("copy") else ("above_mb", "bound_mb", "bare_mb", "hwm_mb")
        cells = map(most.get, keys)
        shown = ["-" if cell is None else f"{cell:,.0f}" for cell in cells]
        if name == "command":
            shown[0] = f"{most['peak_mb']:,.0f} with bare"
        shown += [spread([sample["seconds"] for sample in found], 1)]
        shown += [spread([sample["seconds"] / copied for sample, copied in zip(found, copies, strict=True)])]
        shown += [spread([sample["cpu"] for sample in found], 1)]
        lines.append(f"| {name} | {' | '.join(shown)} |")
    lines.append("")
    if "verl" in samples:
        pairs = list(zip(samples["verl"], samples.get("merge, bfloat16", samples["merge"]), strict=True))
        slower = spread([theirs["seconds"] / mine["seconds"] for theirs, mine in pairs], 1)
        more = spread([theirs["above_mb"] / mine["above_mb"] for theirs, mine in pairs], 0)
        lines.append(f"verl / ours to bfloat16: {slower} of the time, {more} of the memory")
    for what, found in result["compared"].items():
        bits = f"{len(found['different'])} differ" if found["different"] else "the same to the last bit"
        lines.append(f"{what}: {found['tensors']} tensors, {bits}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--gigabytes", type=float, default=4.0, help="of the checkpoint, 10^9 bytes")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--max_shard_size", default="512MB")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--cache", choices=("cold", "warm"), default="cold", help="inputs dropped from it or read into it"
    )
    parser.add_argument("--verl", metavar="FOLDER", help="where verl 0.9.1 was installed with pip install --target")
    parser.add_argument("--scratch", default=tempfile.gettempdir(), help="folder with room for six checkpoints")
    parser.add_argument("--out", type=Path, help="all samples as JSON")
    args = parser.parse_args()
    if args.work:
        worker(args.work[0], json.loads(args.work[1]))
        return 0
    free = shutil.disk_usage(args.scratch).free / 1e9
    need = args.gigabytes * 6 * (2 if args.dtype == "bfloat16" else 1)  # ZeRO has float32 in any case
    if free < need:
        parser.error(f"{args.scratch} has {free:.0f} GB free and {need:.0f} are needed; choose another --scratch")
    if args.verl and not (Path(args.verl) / "verl" / "model_merger").is_dir():
        parser.error(f"there is no verl in {args.verl}")
    args.verl = args.verl and str(Path(args.verl).resolve())
    for number in (signal.SIGTERM, signal.SIGHUP):  # so that the folder is removed
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    started, load = time.strftime("%Y-%m-%d %H:%M"), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="hf-factuality-merge-", dir=args.scratch) as scratch:
        result = experiment(args, Path(scratch))
    from importlib.metadata import version

    versions = {name: version(name) for name in ("torch", "transformers", "safetensors")}
    result |= {
        "date": started,
        "load": (loads := [load, os.getloadavg()[0]]),
        "cores": os.cpu_count(),
        "versions": versions,
    }
    size, run = sum(result["tensors"].values()) / 1e9, f"cache {args.cache}, {args.repeats} repeats"
    print(f"{size:.2f} GB of {args.dtype} in {args.ranks} ranks, {len(result['tensors'])} tensors; {started}, {run},")
    print(f"{os.cpu_count()} cores, load {loads[0]:.1f} to {loads[1]:.1f}\n")
    print(table(result))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    measured = [sample for found in result["samples"].values() for sample in found]
    held = all(sample["above_mb"] <= sample.get("bound_mb", math.inf) for sample in measured if "above_mb" in sample)
    equal = not any(found["different"] for found in result["compared"].values())
    return 0 if held and equal else 1


if __name__ == "__main__":
    sys.exit(main())

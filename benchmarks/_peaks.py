"""Peak memory of a process of its own per arm, and the summary of repeated figures."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path


def resident(peak: bool = True) -> float:
    """Peak of this process in MiB, or what it holds now, by Linux: `getrusage` would hand down that of the process which started it."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    field = "VmHWM" if peak else "VmRSS"
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def print_peak(before: float) -> None:
    """Print for `peak_of_a_process` the peak of the device where there is one, else that of this process, which held `before`."""
    import torch  # a script sets threads before it comes in

    on_device = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else 0
    print(json.dumps([on_device or resident(), on_device or resident() - before]))


def peak_of_a_process(script: str, arm: str, model: str, options: list[str]) -> tuple[float, float]:
    """MiB that `script --memory_of arm` prints: the peak as a whole, and above what the process held before it trained."""
    command = [sys.executable, script, "--memory_of", arm, "--model", model, *options]
    output = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    return tuple(json.loads(output.stdout.splitlines()[-1]))


def peak_ratios(script: str, model: str, options: list[str], repeats: int) -> tuple[dict[str, list[float]], float]:
    """Ratios of the peaks of the arm `ours` over `stock`, and the mean peak of `stock` in MiB."""
    peaks: dict[str, list] = {"stock": [], "ours": []}
    for number in range(repeats):
        for arm in peaks if number % 2 else reversed(peaks):
            peaks[arm].append(peak_of_a_process(script, arm, model, options))
    ratios = {
        name: [ours[kind] / stock[kind] for ours, stock in zip(peaks["ours"], peaks["stock"], strict=True)]
        for kind, name in enumerate(("peak memory", "peak memory above the start"))
    }
    return ratios, statistics.mean(stock[0] for stock in peaks["stock"]) if repeats else 0.0


def summary(values: list[float]) -> dict:
    return {
        "mean": statistics.mean(values),
        "sd": statistics.stdev(values) if len(values) > 1 else 0.0,
        "median": statistics.median(values),
        "values": values,
    }

"""Everything that needs a GPU, in at most 25 minutes on one of 80 GB; each part ends when its time is over.

    python benchmarks/on_gpu.py --out outputs/on-gpu                       # models from the Hub
    python benchmarks/on_gpu.py --out outputs/on-gpu --random              # without a network: random weights of 1.1 billion

The tests that are marked `gpu`; R-Tuning on facts of Wikidata, before and after; the steps of FactGRPO and Mask-DPO beside those
of stock TRL, and what the planner says of the memory beside what was taken. Prints one line per part and writes `summary.json`
with the name of the GPU, the date, and each part's end, seconds and last lines.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM


ROOT = Path(__file__).resolve().parent.parent
MODEL = "Qwen/Qwen2.5-1.5B-Instruct"


def random_model(folder: Path, tiny: bool) -> str:
    """A Llama of random weights: 1.1 billion, or few to try this script out."""
    sys.path.insert(0, str(ROOT))
    from tests.tiny import save_tiny_model

    model = save_tiny_model(folder / "tiny")  # whose tokenizer it has
    if tiny:
        return str(model)
    tokenizer = AutoTokenizer.from_pretrained(model)
    config = LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, max_position_embeddings=2048, pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder / "random")
    tokenizer.save_pretrained(folder / "random")
    return str(folder / "random")


def parts(model: str, out: Path, quick: bool) -> dict[str, tuple[list[str], int]]:
    """Name -> command and the seconds that it may take."""
    few = ["--max_steps", "2"] if quick else []
    python = [sys.executable]
    repeats = "2" if quick else "5"
    return {
        "tests": ([*python, "-m", "pytest", "-q", "-m", "gpu", "tests"], 420),
        "real model": (
            [*python, "-m", "hf_factuality", "train", "rtuning", "--demo", "real", "--model_name_or_path", model,
             "--lora_target_modules", ".*_proj", "--output_dir", str(out / "real-model"), *few], 420,
        ),
        "FactGRPO's step": (
            [*python, "benchmarks/fact_grpo_step.py", "--model", model, "--repeats", repeats, "--steps", "1",
             "--batch_size", "16", "--accumulation", "1", "--out", str(out / "fact_grpo_step.json")], 240,
        ),
        "Mask-DPO's step": (
            [*python, "benchmarks/mask_dpo_step.py", "--model", model, "--blocks", repeats, "--steps", "2",
             "--memory_repeats", "1", "--out", str(out / "mask_dpo_step.json")], 240,
        ),
        "planner": ([*python, "benchmarks/memory_plan.py", "--out", str(out / "memory_plan.json")], 180),
    }  # fmt: skip


def run(command: list[str], seconds: int, log: Path) -> dict:
    environment = {**os.environ, "CI": "1", "PYTHONPATH": str(ROOT)}
    started = time.perf_counter()
    with log.open("wb") as file:
        try:
            code = subprocess.run(
                command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=seconds
            ).returncode
        except subprocess.TimeoutExpired:
            code = None
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return {
        "ended": "time over" if code is None else code,
        "seconds": round(time.perf_counter() - started, 1),
        "lines": lines[-30:],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("outputs/on-gpu"))
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--random", action="store_true", help="random weights, where no model can be had")
    parser.add_argument(
        "--quick", action="store_true", help="a tiny model and few steps, to try the script out on a CPU"
    )
    parser.add_argument("--only", nargs="+", help="names of parts")
    args = parser.parse_args()
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    model = random_model(out, args.quick) if args.random or args.quick else args.model
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"
    summary = {"device": device, "date": datetime.date.today().isoformat(), "torch": torch.__version__, "parts": {}}
    for name, (command, seconds) in parts(model, out, args.quick).items():
        if args.only and name not in args.only:
            continue
        found = run(command, seconds, out / f"{name.replace(' ', '-')}.log")
        summary["parts"][name] = found
        print(f"{name}: {found['ended']}, {found['seconds']} s on {device}", flush=True)
        (out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    sys.exit(any(part["ended"] != 0 for part in summary["parts"].values()))


if __name__ == "__main__":
    main()

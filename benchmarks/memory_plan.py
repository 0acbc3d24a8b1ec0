"""Peak memory of trainings of small models of random weights against what `hf-factuality plan` says of them.

    PYTHONPATH=. python benchmarks/memory_plan.py
    PYTHONPATH=. python benchmarks/memory_plan.py --sizes

Each training is a process of its own, of two optimizer steps, all completions as long as the limit. Measured is the most
that torch's allocator gave out at a time, of the CPU (by torch's profiler) or of the GPU. `--sizes` prints how many GPUs of 80 GB the planner wants for published models; nothing is run.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _lengths import draw_lengths
from datasets import Dataset
from peft import LoraConfig
from torch.profiler import ProfilerActivity, profile
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.rewards import answer_reward
from hf_factuality.trainers.memory import SHARDINGS, USABLE, memory_plan, peak, trace
from hf_factuality.worlds import World, WorldConfig
from hf_factuality.worlds.tokenizer import build_world_tokenizer


# hidden size, intermediate size, layers, heads, heads of keys, vocabulary; settings
CASES = {
    "wide": ((512, 1536, 6, 8, 8, 2000), {"bf16": False, "gradient_checkpointing": False}),
    "deep": ((256, 704, 20, 4, 2, 2000), {"bf16": False, "gradient_checkpointing": True}),
    "vocabulary": ((384, 1024, 4, 6, 6, 32000), {"bf16": True, "gradient_checkpointing": False}),
}
# hidden size, intermediate size, layers, heads, heads of keys, vocabulary, as published; Llama 3's for 70B
SIZES = {
    "7B": (3584, 18944, 28, 28, 4, 152064),
    "14B": (5120, 13824, 48, 40, 8, 152064),
    "32B": (5120, 27648, 64, 40, 8, 152064),
    "70B": (8192, 28672, 80, 64, 8, 128256),
}
GPUS = (1, 2, 4, 8, 16, 32, 64, 128)
METHODS = ("fspo", "rlfh", "mask_dpo")


def save_model(folder, shape) -> World:
    hidden, inner, layers, heads, key_heads, vocabulary = shape
    world = World(WorldConfig(num_people=200))
    tokenizer = build_world_tokenizer(world)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=max(vocabulary, len(tokenizer)), hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, tie_word_embeddings=True, max_position_embeddings=4096,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return world


def settings(method, own, folder):
    shared = {
        "output_dir": folder, "max_steps": 2, "learning_rate": 1e-5, "gradient_accumulation_steps": 2, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "use_cpu": not torch.cuda.is_available(), **own,
    }  # fmt: skip
    if method == "mask_dpo":
        return MaskDPOConfig(**shared, per_device_train_batch_size=8, max_length=256)
    shared |= {"per_device_train_batch_size": 8, "max_completion_length": 256, "beta": 0.05}
    if method == "fspo":
        return FactGRPOConfig(**shared, num_generations=8)
    return TokenRewardPPOConfig(**shared)


def pairs(tokenizer) -> Dataset:
    """Answers that are cut at the limit, the preferred ones true and the others false."""
    word, rows = tokenizer.decode(max(tokenizer.get_vocab().values())), []
    for number in range(64):
        row = {"prompt": [{"role": "user", "content": word * (1 + number % 3)}]}
        for side, label in (("chosen", "supported"), ("rejected", "contradicted")):
            text = f"{word} " * 400
            row |= {side: [{"role": "assistant", "content": text}],
                    f"{side}_spans": [{"start": 0, "end": len(text), "label": label}]}  # fmt: skip
        rows.append(row)
    return Dataset.from_list(rows)


def measure(method, case, folder):
    """Two steps; returns the model's folder, the settings, the longest prompt and the most bytes that were allocated."""
    model = str(Path(folder) / case)
    shape, own = CASES[case]
    world = save_model(model, shape)
    args = settings(method, own, folder)
    tokenizer = AutoTokenizer.from_pretrained(model)
    questions = world.questions("train")
    prompts = [
        tokenizer.apply_chat_template(row, add_generation_prompt=True)["input_ids"] for row in questions["prompt"]
    ]
    on_cpu = [ProfilerActivity.CPU] if not torch.cuda.is_available() else []
    with profile(activities=on_cpu, profile_memory=True) if on_cpu else contextlib.nullcontext() as profiled:
        if method == "fspo":
            trainer = FactGRPOTrainer(model, answer_reward(), args, questions)
        elif method == "rlfh":
            trainer = TokenRewardPPOTrainer(model, None, answer_reward(), args, questions)
        else:
            trainer = MaskDPOTrainer(model, args=args, train_dataset=pairs(tokenizer))
        for loaded in (trainer.model, getattr(trainer, "ref_model", None)):
            for parameter in loaded.parameters() if loaded is not None and on_cpu else ():
                parameter.data = parameter.data.clone()  # what was mapped from the file is no allocation
        if method != "mask_dpo":
            draw_lengths(trainer.model, tokenizer.eos_token_id, 256, "equal", 0)
        trainer.train()
    most = allocated(profiled) if on_cpu else torch.cuda.max_memory_allocated()
    return model, args, max(map(len, prompts)), most


def allocated(profiled) -> int:
    """The peak over all that torch's allocator gave and took back."""
    now = peak = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak


def one(method, case) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        model, args, longest, used = measure(method, case, folder)
        terms = memory_plan(
            AutoConfig.from_pretrained(model), args, prompt_length=longest, gpu=torch.cuda.is_available()
        )
    planned, phase = peak(terms)
    found = {"method": method, "case": case, "measured": used, "planned": planned, "phase": phase,
             "terms": {term.name: (term.bytes, term.phases) for term in terms}}  # fmt: skip
    print(json.dumps(found))


def sizes() -> None:
    """The fewest GPUs that fit: bfloat16, gradient checkpointing, one text at a time, prompts of 512 tokens, up to 2,048 more."""
    own = {"output_dir": "out", "report_to": "none", "use_cpu": True, "bf16": True, "gradient_checkpointing": True,
           "per_device_train_batch_size": 1}  # fmt: skip
    sampled = {**own, "max_completion_length": 2048, "beta": 0.001, "use_vllm": True, "vllm_mode": "server"}
    methods = {
        "fspo": FactGRPOConfig(**sampled, gradient_accumulation_steps=8, num_generations=8),
        "rlfh": TokenRewardPPOConfig(**sampled, gradient_accumulation_steps=8),
        "mask_dpo": MaskDPOConfig(**own, gradient_accumulation_steps=8, max_length=2560),
    }
    lora = LoraConfig(r=16, target_modules="all-linear", task_type="CAUSAL_LM")
    print("| model | trainer | all weights | LoRA of rank 16 |\n|---|---|---|---|")
    for size, (hidden, inner, layers, heads, key_heads, vocabulary) in SIZES.items():
        config = LlamaConfig(
            vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
            num_attention_heads=heads, num_key_value_heads=key_heads, dtype="bfloat16",
        )  # fmt: skip
        for method, args in methods.items():
            cells = [smallest(config, args, peft) for peft in (None, lora)]
            print(f"| {size} | {method} | {cells[0]} | {cells[1]} |", flush=True)
        served = trace(config, 1, 8)
        weights, cache = served.parameters * 2 / 1e9, served.cache * 2560 / 1e9
        print(f"{size}: vLLM holds {weights:.0f} GB of weights and {cache:.2f} GB for each text of 2,560 tokens")


def smallest(config, args, peft_config) -> str:
    for gpus in GPUS:
        # Without DeepSpeed there is no float32 copy of bfloat16 weights, which few learning rates bear.
        ways = SHARDINGS if peft_config else ("zero2", "zero3")
        for sharding in ways if gpus > 1 else SHARDINGS[:1] if peft_config else ():
            size, _ = peak(memory_plan(config, args, sharding, gpus, 512, peft_config))
            if size <= USABLE * 80e9:
                return f"{gpus} x {size / 1e9:.0f} GB, {sharding}"
    return f"more than {GPUS[-1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CASE"), help=argparse.SUPPRESS)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.sizes:
        sizes()
        return
    if args.one:
        one(*args.one)
        return
    rows = []
    print("| trainer | model | measured, MB | planned, MB | planned / measured | phase |\n|---|---|---|---|---|---|")
    for method in METHODS:
        for case in CASES:
            command = [sys.executable, __file__, "--one", method, case]
            output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            row = json.loads(output.splitlines()[-1])
            rows.append(row)
            print(f"| {method} | {case} | {row['measured'] / 1e6:.0f} | {row['planned'] / 1e6:.0f} "
                  f"| {row['planned'] / row['measured']:.2f} | {row['phase']} |", flush=True)  # fmt: skip
    if args.out:
        args.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()

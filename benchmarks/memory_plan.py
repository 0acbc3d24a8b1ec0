"""Peak memory of trainings of small models of random weights against what `hf-factuality plan` says of them.

    PYTHONPATH=. python benchmarks/memory_plan.py
    PYTHONPATH=. python benchmarks/memory_plan.py --fsdp2
    PYTHONPATH=. python benchmarks/memory_plan.py --sizes

Each training is a process of its own, of two optimizer steps, all completions as long as the limit. Measured is the most
that torch's allocator gave out at a time, of the CPU (by torch's profiler) or of the GPU. `--fsdp2`: what accelerate's own
FSDP2 keeps on each of two processes over gloo. `--sizes` prints how many GPUs of 80 GB the planner wants for published models; nothing is run.
"""

import argparse
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _lengths import draw_lengths
from datasets import Dataset
from peft import LoraConfig, get_peft_model
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


def fsdp2(out: Path | None) -> None:
    """Bytes that each of two processes keeps, by accelerate's `fsdp2_prepare_model` and by the plan."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        torch.multiprocessing.spawn(_keep_split, args=(str(Path(folder) / "store"), str(file)), nprocs=2)
        rows = json.loads(file.read_text(encoding="utf-8"))
    print(
        "| loaded in | mixed_precision | learnt | term | kept, MB | planned, MB | planned / kept |\n|---|---|---|---|---|---|---|"
    )
    for row in rows:
        for term, kept in row["kept"].items():
            planned = row["planned"][term]
            print(f"| {row['dtype']} | {row['mixed']} | {row['learnt']} | {term} | {kept / 1e6:.2f} | {planned / 1e6:.2f} "
                  f"| {planned / kept:.2f} |")  # fmt: skip
    if out:
        out.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _keep_split(rank: int, store: str, file: str) -> None:
    """One of the processes: accelerate makes DDP of FSDP on CPUs, so that its helper is called by itself."""
    from accelerate import PartialState

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    PartialState(cpu=True)
    settings = itertools.product(("bfloat16", "float32"), ("bf16", "no"), ("whole", "LoRA"))
    rows = [_kept_split(*one) for one in settings]
    if rank == 0:
        Path(file).write_text(json.dumps(rows), encoding="utf-8")
    torch.distributed.destroy_process_group()


def _kept_split(dtype: str, mixed: str, learnt: str) -> dict:
    from accelerate.utils import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_model
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

    hidden, inner, layers, heads, key_heads, vocabulary = (256, 704, 6, 4, 2, 4000)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=key_heads, dtype=dtype,
    )  # fmt: skip
    lora = LoraConfig(r=8, target_modules="all-linear", task_type="CAUSAL_LM") if learnt == "LoRA" else None
    model = LlamaForCausalLM(config).to(getattr(torch, dtype))
    model = get_peft_model(model, lora) if lora else model
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        cpu_ram_efficient_loading=False,
        reshard_after_forward=True,
    )
    if mixed != "no":
        plugin.set_mixed_precision(mixed)
    mesh = torch.distributed.init_device_mesh("cpu", (2,), mesh_dim_names=("all",))
    accelerator = SimpleNamespace(
        state=SimpleNamespace(fsdp_plugin=plugin), mixed_precision=mixed, is_main_process=False, device=torch.device("cpu"),
        torch_device_mesh={("all",): mesh}, parallelism_config=SimpleNamespace(fsdp_dim_names=["all"]),
    )  # fmt: skip
    model = fsdp2_prepare_model(accelerator, model)
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learns, lr=1e-4)
    ids = torch.zeros(1, 2, dtype=torch.long)
    model.set_requires_gradient_sync(
        False
    )  # as accelerate's `no_sync`, in all of the accumulated batches but the last
    model(input_ids=ids, labels=ids).loss.backward()
    units = {id(state): state for state in (m._get_fsdp_state() for m in model.modules() if isinstance(m, FSDPModule))}
    whole = 0
    for unit in (group for state in units.values() for group in state._fsdp_param_groups):
        for parameter in unit.fsdp_params:
            gradient = parameter.unsharded_accumulated_grad
            if gradient is None and hasattr(parameter, "_unsharded_param"):
                gradient = parameter._unsharded_param.grad
            whole += 0 if gradient is None else gradient.nbytes
    model.set_requires_gradient_sync(True)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim()]
    kept = {
        "weights": sum(own(parameter).nbytes for parameter in model.parameters()),
        "gradients": sum(own(parameter.grad).nbytes for parameter in learns),
        "optimizer": sum(own(moment).nbytes for moment in moments),
        "gradients before they are split": whole,
    }
    if lora is None:
        # The reference, as TRL's prepare_fsdp splits it.
        frozen = LlamaForCausalLM(config).to(getattr(torch, dtype))
        fully_shard(
            frozen,
            reshard_after_forward=True,
            mesh=mesh,
            mp_policy=plugin.mixed_precision_policy or MixedPrecisionPolicy(),
        )
        kept["reference"] = sum(own(parameter).nbytes for parameter in frozen.parameters())
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, torch.no_grad():
            frozen(input_ids=ids)
        kept["gathered reference"] = allocated(profiled)
    args = FactGRPOConfig("out", use_cpu=True, bf16=mixed == "bf16", beta=0.1, gradient_accumulation_steps=2,
                          per_device_train_batch_size=1, num_generations=2, report_to="none")  # fmt: skip
    terms = memory_plan(config, args, "fsdp2", 2, peft_config=lora, gpu=False)
    planned = {term.name: term.bytes for term in terms}
    return {
        "dtype": dtype,
        "mixed": mixed,
        "learnt": learnt,
        "kept": kept,
        "planned": {name: planned[name] for name in kept},
    }


def own(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a split tensor that this process has."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


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
        # DDP has no float32 copy of bfloat16 weights, without which few learning rates do.
        ways = SHARDINGS if peft_config else SHARDINGS[1:]
        for sharding in ways if gpus > 1 else SHARDINGS[:1] if peft_config else ():
            size, _ = peak(memory_plan(config, args, sharding, gpus, 512, peft_config))
            if size <= USABLE * 80e9:
                return f"{gpus} x {size / 1e9:.0f} GB, {sharding}"
    return f"more than {GPUS[-1]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--one", nargs=2, metavar=("METHOD", "CASE"), help=argparse.SUPPRESS)
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--fsdp2", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.sizes:
        sizes()
        return
    if args.fsdp2:
        fsdp2(args.out)
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

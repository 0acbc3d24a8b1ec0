"""Folders to push: a small model in files of weights, with what a training run leaves beside it."""

import json
import struct
from pathlib import Path


def safetensors(seed: int, size: int = 64) -> bytes:
    """A file of one tensor, written by hand as the format says."""
    data = bytes((seed * 31 + number * 7) % 251 for number in range(size))
    header = json.dumps({f"weight_{seed}": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def write_model(folder: Path, shards: int = 3, size: int = 64, seed: int = 0) -> dict[str, bytes]:
    """Files of a model, by name; what a push of the folder has to publish."""
    names = ["model.safetensors"]
    if shards > 1:
        names = [f"model-{number:05d}-of-{shards:05d}.safetensors" for number in range(1, shards + 1)]
    files = {name: safetensors(seed + number, size) for number, name in enumerate(names)}
    if shards > 1:
        weights = {f"weight_{seed + number}": name for number, name in enumerate(names)}
        files["model.safetensors.index.json"] = json.dumps({"metadata": {}, "weight_map": weights}).encode()
    files["config.json"] = b'{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}'
    files["tokenizer_config.json"] = b'{"model_max_length": 512}'
    files["tokenizer.json"] = b'{"vocab": {"/home/me/x": 0}}'
    files["chat_template.jinja"] = b"{{ messages }}"
    files["README.md"] = b"---\nlicense: apache-2.0\n---\n\n# A model\n"
    write(folder, files)
    return files


REMAINS = {
    "training_args.bin": b"a pickle",
    "optimizer.pt": b"adam",
    "scheduler.pt": b"linear",
    "rng_state_0.pth": b"random",
    "trainer_state.json": b'{"best_model_checkpoint": "/home/me/out/checkpoint-7"}',
    "rollouts_0_of_2.pt": b"sampled",
    "critic/critic_optimizer.pt": b"adam of the critic",
    "global_step7/zero_pp_rank_0_mp_rank_00_optim_states.pt": b"zero",
    "global_step7/mp_rank_00_model_states.pt": b"zero's model",
    "pytorch_model_fsdp_0/.metadata": b"dcp",
    "pytorch_model_fsdp_0/__0_0.distcp": b"dcp",
    "optimizer_0/__0_0.distcp": b"dcp of the optimizer",
    "runs/Jan01/events.out.tfevents.1.host.2.0": b"tensorboard",
    "wandb/run-1/files/config.yaml": b"key: hf_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "train.log": b"loss 1.0",
    "checkpoint-7/model.safetensors": b"older weights",
    "report.html": b"<html>",
    "after.answers.jsonl": b"{}",
    "weights.pkl": b"a pickle",
    "notes.txt": b"mine",
    ".git/config": b"[remote]",
    ".cache/huggingface/x": b"",
}
"""What a run leaves beside its model, none of which is published."""


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder

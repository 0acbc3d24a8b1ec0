"""Real checkpoints of DeepSpeed's ZeRO, on CPUs over gloo: `python -m tests.checkpoints.merge_inputs_zero FOLDER`."""

import os
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from tests.checkpoints.merge_inputs import make_model, run


# name: stage, processes, settings of the model
CASES = {
    "zero1": (1, 2, {"tie_word_embeddings": False}),
    "zero2": (2, 2, {"tie_word_embeddings": True}),
    "zero3": (3, 3, {"tie_word_embeddings": False}),
}
FROZEN = "model.layers.0."


def write_rank(rank: int, folder: Path, name: str, place: Path) -> None:
    stage, world, settings = CASES[name]
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_SIZE": str(world),
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "0",
    }
    import deepspeed
    import torch.distributed as dist

    deepspeed.ops.__compatible_ops__ = {}  # or each process would wait for a compiler
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
    model = make_model("Llama", settings)
    for parameter_name, parameter in model.named_parameters():
        parameter.requires_grad_(not parameter_name.startswith(FROZEN))
    if not rank:
        save_file(dict(model.named_parameters()), folder / "start.safetensors")
        model.config.save_pretrained(folder)
    config = {
        "train_batch_size": world,
        "train_micro_batch_size_per_gpu": 1,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [
        {"params": [p for p in trained if p.ndim > 1]},
        {"params": [p for p in trained if p.ndim < 2], "lr": 0.1},
    ]
    optimizer = torch.optim.SGD(matrices, lr=0.05)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config, dist_init_required=False)
    ids = torch.tensor([[1, 5, 36, 0, 7 + rank]])
    engine.backward(engine(input_ids=ids, labels=ids).loss)
    engine.step()
    engine.save_checkpoint(str(folder), tag="global_step1")
    dist.barrier()
    os._exit(0)  # its threads would be waited for


if __name__ == "__main__":
    import deepspeed  # noqa: F401
    import transformers.models.llama.modeling_llama  # noqa: F401

    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    for case in sys.argv[2:] or CASES:
        (out / case).mkdir(parents=True)
        run(write_rank, CASES[case][1], out / case, case, out / f"{case}.rendezvous")

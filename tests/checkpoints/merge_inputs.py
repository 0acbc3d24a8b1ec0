"""Real sharded checkpoints, written by processes over gloo: `python -m tests.checkpoints.merge_inputs FOLDER`.

The libraries are imported once, in a process that has no threads yet, and every rank is forked from it.
"""

import json
import math
import os
import sys
import traceback
from pathlib import Path

import torch
from safetensors.torch import save_file


TINY = {
    "vocab_size": 37,  # over 2 and 4 processes the last shard is shorter
    "hidden_size": 16,
    "intermediate_size": 5,  # over 4 processes the last shard is empty
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
# name: class, mesh, settings, dimension that matrices are sharded on, how they are saved
CASES = {
    "world1": ("Llama", (1,), {"tie_word_embeddings": True}, 0, "ranks"),
    "even_dim1": (
        "Qwen2",
        (2,),
        {"tie_word_embeddings": False, "intermediate_size": 6, "dtype": "bfloat16"},
        1,
        "ranks",
    ),
    "uneven3": ("Qwen2", (3,), {"tie_word_embeddings": False}, 0, "ranks"),
    "tied4": ("Llama", (4,), {"tie_word_embeddings": True}, 0, "ranks"),
    "hsdp": ("Llama", (2, 2), {"tie_word_embeddings": True, "dtype": "bfloat16"}, 0, "ranks"),
    "tensor_parallel": ("Llama", (2, 2), {"tie_word_embeddings": False, "intermediate_size": 12}, 0, "ranks"),
    "dcp3": ("Qwen2", (3,), {"tie_word_embeddings": False}, 0, "dcp"),
    "dcp_hsdp": ("Llama", (2, 2), {"tie_word_embeddings": True}, 0, "dcp"),
}


def make_model(kind: str, settings: dict):
    import transformers

    settings = dict(settings)
    dtype = getattr(torch, settings.pop("dtype", "float32"))
    torch.manual_seed(1)
    config = getattr(transformers, f"{kind}Config")(**{**TINY, **settings})
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    for parameter in model.parameters():
        # Norms and biases too: they start all alike. Buffers stay as they are, as in from_pretrained.
        parameter.data = torch.randn_like(parameter).to(dtype)
    model.config.architectures = [type(model).__name__]
    return model


def write_rank(rank: int, folder: Path, name: str, place: Path) -> None:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    kind, shape, settings, dim, how = CASES[name]
    world = math.prod(shape)
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=world)
    model = make_model(kind, settings)
    if not rank:
        save_file(
            model.state_dict() if not settings["tie_word_embeddings"] else dict(model.named_parameters()),
            folder / "whole.safetensors",
        )
        model.config.save_pretrained(folder / "huggingface")
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    if name == "tensor_parallel":
        plan = {"gate_proj": ColwiseParallel(), "up_proj": ColwiseParallel(), "down_proj": RowwiseParallel()}
        for layer in model.model.layers:
            parallelize_module(layer.mlp, mesh["shard"], plan)
        mesh = mesh["replicate"]
    place_on = (lambda p: Shard(dim) if p.ndim == 2 else Shard(0)) if dim else None
    for module in (*model.model.layers, model):
        fully_shard(module, mesh=mesh, shard_placement_fn=place_on)
    if how == "ranks":
        torch.save(model.state_dict(), folder / f"model_world_size_{world}_rank_{rank}.pt")
    else:
        import torch.distributed.checkpoint as dcp

        model_state = model.state_dict()
        optimizer = {key: torch.zeros(3) for key in model_state}
        dcp.save({"model": model_state, "optimizer": optimizer}, checkpoint_id=folder / "pytorch_model_fsdp_0")
    dist.barrier()


def run(target, ranks: int, *args) -> None:
    """Fork a process per rank and wait for all."""
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            status = 1
            try:
                target(rank, *args)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(child)
    failed = [child for child in children if os.waitpid(child, 0)[1]]
    if failed:
        raise RuntimeError(f"{len(failed)} of {ranks} processes failed")


if __name__ == "__main__":
    import torch.distributed.checkpoint
    import torch.distributed.fsdp
    import torch.distributed.tensor.parallel
    import transformers.models.llama.modeling_llama
    import transformers.models.qwen2.modeling_qwen2  # noqa: F401

    torch.set_num_threads(1)
    out = Path(sys.argv[1])
    for case in sys.argv[2:] or CASES:
        (out / case).mkdir(parents=True)
        run(write_rank, math.prod(CASES[case][1]), out / case, case, out / f"{case}.rendezvous")
    print(json.dumps(sorted(path.name for path in out.iterdir())))

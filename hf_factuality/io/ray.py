"""Work that Ray Data spreads over processes and machines."""

from __future__ import annotations

import io
import logging
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from hf_factuality.errors import JudgingError


_BLOCKS = 1000  # at most; of a worker that is lost, one is done again
_RETRIES = 3  # of a block; Ray Data's default is no bound


def engine_of(engine: str, workers: int | None, gpus: float | None) -> dict[str, Any]:
    """`workers` that are asked for, 0 without Ray, and `gpus_per_worker`."""
    if engine not in ("local", "ray"):
        raise ValueError(f"`engine` must be local or ray, got {engine!r}")
    if engine == "local":
        for name, value in (("workers", workers), ("gpus_per_worker", gpus)):
            if value is not None:
                raise ValueError(f'`{name}={value}` is for `engine="ray"`')
        return {"workers": 0, "gpus_per_worker": 0.0}
    if find_spec("ray") is None:
        raise ImportError('`engine="ray"` needs Ray: pip install hf_factuality[ray]')
    if workers is not None and workers < 1:
        raise ValueError(f"`workers={workers}` must be positive")
    if gpus is not None and not (0 <= gpus <= 1 or gpus > 0 == gpus % 1):
        raise ValueError(f"`gpus_per_worker={gpus}` must be a share of one GPU, or a whole number of them")
    return {"workers": workers or os.cpu_count() or 1, "gpus_per_worker": gpus or 0.0}


def ray_map(
    stages: Sequence[tuple[Callable[[Any], Any], float]], items: Sequence[Any], workers: int
) -> Iterator[tuple[int, Any]]:
    """Number and result of each item, as they are ready, after the functions of all stages, in processes of Ray.

    A stage is a function and the GPUs of a worker; each has `workers` of them, with a copy of the function for all their
    items, whose models are on the worker's device. One stage works while the next does. Results come when the block that
    holds them is done; what a worker that died had in hand is done again, three times. `RAY_ADDRESS` names a cluster that runs;
    without it Ray starts on this machine.

    Raises:
        `ValueError`: no machine has so many GPUs, or a function cannot be pickled. `JudgingError`: workers ended too often.
        Otherwise what a function raises.
    """
    import ray

    if not items:
        return
    if not ray.is_initialized():
        own = {} if os.environ.get("RAY_ADDRESS") else dict(address="local", num_cpus=workers, include_dashboard=False)
        before = signal.getsignal(signal.SIGTERM)
        ray.init(log_to_driver=False, logging_level="ERROR", **own)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own ends this process with a trace of its stack
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # what ends it is raised
    for gpus in (gpus for _, gpus in stages if gpus):
        most = max(node["Resources"].get("GPU", 0) for node in ray.nodes() if node["Alive"])
        if most < gpus:
            raise ValueError(
                f"a worker needs {gpus:g} GPUs, and no machine of Ray has more than {most:g}: `gpus_per_worker`"
            )
    packed = [{"number": number, "found": pickle.dumps((item, None))} for number, item in enumerate(items)]
    done = ray.data.from_items(packed, override_num_blocks=min(len(packed), _BLOCKS))
    for function, gpus in stages:
        needs = {"compute": ray.data.ActorPoolStrategy(size=workers), "num_cpus": 1 / len(stages), "num_gpus": gpus}
        bound = partial(dict, max_task_retries=_RETRIES)
        done = done.map(_Work, fn_constructor_args=[_packed(function)], ray_remote_args_fn=bound, **needs)
    try:
        for row in done.iter_rows():
            found, error = pickle.loads(row["found"])
            if error is not None:
                raise error
            yield row["number"], found
    except ray.exceptions.RayError as error:
        raise JudgingError(
            f"workers of Ray died before they were done: {(str(error).splitlines() or [repr(error)])[-1]}"
        ) from error


class _Work:
    def __init__(self, packed: bytes):
        self.failed = None
        try:
            self.function = pickle.loads(packed)
        except Exception as error:  # which Ray would wrap until nothing tells what it was
            self.failed = error

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        item, error = pickle.loads(row["found"])
        if error is None:
            try:
                if self.failed is not None:
                    raise self.failed
                item = self.function(item)
            except Exception as own:
                item, error = None, own
        return {"number": row["number"], "found": pickle.dumps((item, error))}


class _Pickler(pickle.Pickler):
    """Takes tensors from the GPU, which the worker may not have, and models to the device that it has."""

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is None or isinstance(obj, type):
            return NotImplemented
        if isinstance(obj, torch.nn.Module):
            return *(tuple(obj.__reduce_ex__(4)) + (None,) * 3)[:5], _set_and_place
        if isinstance(obj, torch.Tensor) and obj.device.type != "cpu":
            kept = obj.detach().cpu()
            return (
                torch.nn.Parameter(kept, obj.requires_grad) if isinstance(obj, torch.nn.Parameter) else kept
            ).__reduce_ex__(4)
        return NotImplemented


def _set_and_place(module: Any, state: Any) -> None:
    import torch

    module.__setstate__(state)
    module.to("cuda" if torch.cuda.is_available() else "cpu")


def _packed(value: Any) -> bytes:
    into = io.BytesIO()
    try:
        _Pickler(into).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(f"this cannot be sent to workers of Ray: {error}") from error
    return into.getvalue()

"""Work that Ray Data spreads over processes and machines."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any


_BLOCKS = 1000  # at most; of a worker that is lost, one is done again


def add_engine(parser: Any) -> None:
    """The flags `--engine` and `--workers`."""
    engine = "who runs the work: this process (local, default) or Ray's workers, on a cluster with RAY_ADDRESS (ray)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=engine)
    parser.add_argument("--workers", type=int, metavar="N", help="of Ray (default: as many as there are CPUs here)")


def workers_of(args: Any) -> int:
    """How many workers the flags ask for; 0 without Ray."""
    if args.engine == "local":
        if args.workers is not None:
            raise ValueError(f"--workers={args.workers} is for --engine ray")
        return 0
    if find_spec("ray") is None:
        raise ImportError("--engine ray needs Ray: pip install 'hf_factuality[ray]'")
    if args.workers is not None and args.workers < 1:
        raise ValueError(f"--workers={args.workers} must be positive")
    return args.workers or os.cpu_count() or 1


def ray_map(function: Callable[[Any], Any], items: Sequence[Any], workers: int) -> Iterator[tuple[int, Any]]:
    """Number and result of each item, as they are ready: of `function(item)`, in `workers` processes of Ray.

    Each worker has a copy of `function` for all its items. Results come when the block that holds them is done; what a worker
    that died had in hand, others do again. `RAY_ADDRESS` names a cluster that runs; without it Ray starts on this machine.

    Raises:
        What `function` raises.
    """
    import ray

    if not items:
        return
    if not ray.is_initialized():
        own = {} if os.environ.get("RAY_ADDRESS") else {"num_cpus": workers, "include_dashboard": False}
        before = signal.getsignal(signal.SIGTERM)
        ray.init(log_to_driver=False, logging_level="ERROR", **own)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)  # Ray's own ends this process with a trace of its stack
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    packed = [{"number": number, "item": pickle.dumps(item)} for number, item in enumerate(items)]
    blocks = ray.data.from_items(packed, override_num_blocks=min(len(packed), _BLOCKS))
    pool = ray.data.ActorPoolStrategy(size=workers)
    done = blocks.map(_Work, fn_constructor_args=[pickle.dumps(function)], compute=pool, num_cpus=1)
    for row in done.iter_rows():
        found, error = pickle.loads(row["found"])
        if error is not None:
            raise error
        yield row["number"], found


class _Work:
    def __init__(self, packed: bytes):
        self.function = pickle.loads(packed)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        try:
            both = self.function(pickle.loads(row["item"])), None
        except Exception as error:  # which Ray would wrap until nothing tells what it was
            both = None, error
        return {"number": row["number"], "found": pickle.dumps(both)}

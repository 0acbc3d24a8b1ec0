"""Flags that several commands share."""

from __future__ import annotations

from typing import Any


def add_engine(parser: Any) -> None:
    """The flags `engine`, `workers` and `gpus_per_worker`."""
    engine = "who runs the work: this process (local, default) or Ray's workers, on a cluster with RAY_ADDRESS (ray)"
    parser.add_argument("--engine", choices=("local", "ray"), default="local", help=engine)
    parser.add_argument("--workers", type=int, metavar="N", help="of Ray (default: as many as there are CPUs here)")
    gpus = "for models that run in the worker: 1, or 0.25 where four share one (default 0; see docs/annotation.md)"
    parser.add_argument("--gpus_per_worker", type=float, metavar="G", help=gpus)

"""Sharded checkpoints, which averages take too."""

from tests.checkpoints.conftest import shards


__all__ = ["shards"]

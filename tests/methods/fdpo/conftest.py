"""The fixtures that run an example, as a user does."""

from tests.examples.conftest import run, small_world, world_folder


__all__ = ["run", "small_world", "world_folder"]

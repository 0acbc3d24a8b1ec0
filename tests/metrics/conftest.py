"""Metrics made from their classes, with their tables in a temporary folder."""

from importlib import import_module

import pytest


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """Name -> metric, made from its class as `evaluate` makes it."""
    cache = tmp_path_factory.mktemp("metrics")

    def build(name):
        module = import_module(f"hf_factuality.metrics.{name}.{name}")
        return getattr(module, name.title().replace("_", ""))(cache_dir=str(cache))

    return build

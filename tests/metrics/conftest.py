"""Metrics made from their classes, with their tables in a temporary folder."""

from importlib import import_module

import pytest


@pytest.fixture(scope="session")
def make(tmp_path_factory):
    """Name -> metric, made from its class as `evaluate` makes it.

    Each in a folder of its own: a metric that is not collected yet holds its table, and the next one would wait for it.
    """

    def build(name):
        module = import_module(f"hf_factuality.metrics.{name}.{name}")
        return getattr(module, name.title().replace("_", ""))(cache_dir=str(tmp_path_factory.mktemp("metrics")))

    return build

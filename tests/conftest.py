"""Small models and tokenizers made on the spot; nothing is downloaded."""

import functools
import gc
import importlib.metadata
import os
import shutil
import signal


# Set before any Hugging Face library is imported.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["CI"] = "1"  # TRL then sends no telemetry
os.environ.pop("GITHUB_STEP_SUMMARY", None)  # commands would append to that of the job that runs the tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # tiny models: more threads only get in each other's way

import sys
from pathlib import Path

import pytest


gc.disable()  # until all is imported
# Accelerate asks at every step whether PEFT is installed, and the description of the package would be parsed each time.
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
# Package and tests are compiled once, and not by each worker and each subprocess in each run.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


REPOSITORY = Path(__file__).resolve().parent.parent

# A job in a shell's background ignores Ctrl-C, and Python would too.
signal.signal(signal.SIGINT, signal.default_int_handler)


def searched(few: int, many: int):
    """A search of random inputs, of which the fast suite tries `few` and the slow one `many`: the argument `count`."""
    return pytest.mark.parametrize("count", [few, pytest.param(many, marks=pytest.mark.slow)])


def fast_few(cases, *few):
    """`cases`, of which the fast suite tries those at the places `few`, and the slow one the others.

    For cases that repeat one check: the few are of different kinds, and the check fails for the same reason in all.
    """
    marked = []
    for place, case in enumerate(cases):
        if place in few or hasattr(case, "marks"):  # a `pytest.param` keeps its own marks
            marked.append(case)
        else:
            marked.append(pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow))
    return marked


def shared_folder(tmp_path_factory, name: str, build) -> Path:
    """The folder that `build` fills, made by the first process of a run that needs it and read by all of them."""
    from filelock import FileLock

    root = tmp_path_factory.getbasetemp()
    folder = (root.parent if "PYTEST_XDIST_WORKER" in os.environ else root) / name
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            partial = folder.with_name(f"{name}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            build(partial)
            partial.rename(folder)
    return folder


def pytest_collection_finish():
    """The libraries are imported by now, and stay: the garbage collector would look at them all again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data, where there is some; tests that need it are skipped elsewhere."""
    folder = Path(os.environ.get("HF_FACTUALITY_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"needs the data folder {folder} (set HF_FACTUALITY_DATA)")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> str:
    """Folder of a two-layer Llama with random weights, a byte-level tokenizer and a chat template."""
    from tests.tiny import save_tiny_model

    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")

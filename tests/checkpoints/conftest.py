import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import shared_folder
from tests.hub.loopback import hub  # noqa: F401 - a fixture


@pytest.fixture(scope="session")
def shards(tmp_path_factory) -> Path:
    """Folder of real sharded checkpoints, one per case of `merge_inputs`."""

    def build(folder):
        subprocess.run(
            [sys.executable, "-m", "tests.checkpoints.merge_inputs", str(folder)],
            check=True,
            timeout=1200,
            cwd=Path(__file__).resolve().parents[2],
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        )

    return shared_folder(tmp_path_factory, "shards", build)

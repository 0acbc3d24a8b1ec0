"""Warnings of libraries that a user can do nothing about are not printed; others are."""

import subprocess
import sys

import pytest

from tests.conftest import fast_few


CODE = """
import warnings
from hf_factuality.cli.quiet import quiet_libraries
quiet_libraries()
warnings.warn("`gradient_checkpointing` is deprecated and will be removed in v6.", FutureWarning)
warnings.warn("`is_gradient_checkpointing` is deprecated and will be removed in v6.", FutureWarning)
warnings.warn("another is deprecated", FutureWarning)
from datasets import are_progress_bars_disabled
print(are_progress_bars_disabled())
"""


@pytest.mark.parametrize(("options", "hidden"), fast_few([([], True), (["-W", "default"], False)], 0))
def test_what_is_hidden(options, hidden):
    done = subprocess.run([sys.executable, *options, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "True\n", done.stderr
    assert ("gradient_checkpointing" not in done.stderr) is hidden and "another is deprecated" in done.stderr

"""What libraries say that a user of a command can do nothing about, and so is not printed."""

from __future__ import annotations

import os
import sys
import warnings


# TRL sets and reads the old names of transformers; the new ones do not exist in all versions that we take.
_OLD_NAMES = r"`(is_)?gradient_checkpointing(_kwargs)?` is deprecated"


def quiet_libraries() -> None:
    """Hide warnings that are for the authors of libraries, and progress bars where nobody watches.

    Warnings of ours, and those that a setting of the user's would end, are said as before. `PYTHONWARNINGS` and `-W` come
    first: who asks for warnings gets them all.
    """
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", _OLD_NAMES, FutureWarning)
        # Self-correction is built on a part of TRL that may change, which our cap on its version takes care of.
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
    if not sys.stderr.isatty():
        from datasets import disable_progress_bars
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        disable_progress_bars()

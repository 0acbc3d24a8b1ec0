"""TRL's LM head on CPUs."""

from __future__ import annotations

import torch
import trl.trainer.utils as trl_utils
from trl.kernels.chunked_logprob import _use_triton


def score_labelled_positions_on_cpus() -> None:
    """Make TRL's trainers of this process score only the positions that have a label, on CPUs as on GPUs.

    Elsewhere than on devices with Triton TRL projects every position of the prompt and of the padding to the vocabulary too, for
    accelerators that compile anew for each number of positions. A CPU compiles nothing, and with short answers to long prompts
    half of a step goes there (docs/real-model.md#speed). Losses and the gradients of all other layers stay the same to the last bit;
    of the head's own weights they are sums in another order.
    """
    trl_utils._use_triton = _scores_labelled_only


def _scores_labelled_only(device: torch.device) -> bool:
    return device.type == "cpu" or _use_triton(device)

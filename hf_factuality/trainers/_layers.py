"""The layers of a language model, which the critic shares and the memory planner counts."""

from __future__ import annotations

from torch import nn


def decoder_layers(model: nn.Module) -> nn.ModuleList:
    """The layers of a language model, in order; `ValueError` if there is no list of as many as its configuration says."""
    wanted = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return module
    raise ValueError(f"{type(model.config).__name__} has no list of {wanted} layers")

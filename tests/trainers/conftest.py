"""Trainers by the dozen: the tiny model is read once and copied from then on."""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from tests.hub.loopback import hub  # noqa: F401 - a fixture


PLAIN = (str, bool, int, type(None), torch.dtype)


@pytest.fixture(scope="package", autouse=True)
def loaded_once(tiny_model):
    """Each way of asking for the tiny model reads its folder once; models of other folders are always read."""
    kept = {}

    def remember(patch, kind):
        load = kind.from_pretrained

        def from_pretrained(path, *args, **kwargs):
            if path != tiny_model or args or not all(isinstance(value, PLAIN) for value in kwargs.values()):
                return load(path, *args, **kwargs)
            key = (kind, *sorted((name, str(value)) for name, value in kwargs.items()))
            if key not in kept:
                kept[key] = load(path, **kwargs)
            return copy.deepcopy(kept[key])

        patch.setattr(kind, "from_pretrained", from_pretrained)

    with pytest.MonkeyPatch.context() as patch:
        for kind in (AutoModelForCausalLM, LlamaForCausalLM):
            remember(patch, kind)
        yield

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from hf_factuality.verifiers import int8
from hf_factuality.verifiers.int8 import Int8Linear, int8_model, multiplies_int8


@pytest.fixture(params=["int8", "float32"])
def arithmetic(request, monkeypatch):
    """Both ways of multiplying the same whole numbers."""
    monkeypatch.setattr(int8, "multiplies_int8", lambda: request.param == "int8")
    return request.param


def test_a_layer_by_hand(arithmetic):
    """Rows are rounded by their largest number: [127, -63.4] by 1 and [0.5, 0.254] by 0.5 / 127."""
    layer = Int8Linear(
        torch.tensor([[10, -20], [0, 127], [1, 1]], dtype=torch.int8),
        torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float16),
        torch.tensor([0.0, 1.0, -1.0]),
    )
    found = layer(torch.tensor([[127.0, -63.4], [0.5, 0.254], [0.0, 0.0]]))
    step = 0.5 / 127  # the second row is [127, 65 (64.5 to even is 64)]
    second = round(0.254 / step)
    expected = [
        [0.5 * (1270 + 1260), -63 * 127 + 1, 2 * (127 - 63) - 1],
        [0.5 * (1270 - 20 * second) * step, 127 * second * step + 1, 2 * (127 + second) * step - 1],
        [0.0, 1.0, -1.0],
    ]
    assert torch.allclose(found, torch.tensor(expected), rtol=1e-6)


def test_both_ways_give_the_same_bits(monkeypatch):
    generator = torch.Generator().manual_seed(3)
    states, whole = torch.randn(37, 1536, generator=generator), nn.Linear(1536, 384)
    results = []
    for fast in (True, False):
        monkeypatch.setattr(int8, "multiplies_int8", lambda fast=fast: fast)
        results.append(Int8Linear.rounded(whole)(states))
    assert torch.equal(*results)
    exact = whole(states)
    assert 0 < (results[0] - exact).abs().max() < 0.02 * exact.abs().max()


def test_a_row_does_not_depend_on_the_others(arithmetic):
    layer, states = Int8Linear.rounded(nn.Linear(96, 40, bias=False)), torch.randn(5, 7, 96)
    states[3] *= 1e4
    together = layer(states)
    assert together.shape == (5, 7, 40)
    assert all(torch.equal(layer(states[row, token]), together[row, token]) for row in range(5) for token in range(7))


def test_of_a_model_only_the_linear_layers_change():
    model = nn.Sequential(nn.Embedding(10, 16), nn.Sequential(nn.Linear(16, 8), nn.GELU()), nn.LayerNorm(8)).bfloat16()
    found = int8_model(model)
    assert isinstance(found[1][0], Int8Linear) and isinstance(model[1][0], nn.Linear)
    assert found[2].weight.dtype is torch.float32 and model[2].weight.dtype is torch.bfloat16
    ids = torch.arange(10)
    assert torch.allclose(found(ids), model.float()(ids), atol=0.05)


def test_a_faulty_product_is_not_used(monkeypatch):
    """As of a processor that cuts sums off at sixteen bits."""
    multiplies_int8.cache_clear()
    monkeypatch.setattr(torch, "_int_mm", lambda left, right: (left.int() @ right.int()).clamp(-32768, 32767))
    try:
        assert not multiplies_int8()
    finally:
        multiplies_int8.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("instructions", ["SSE41", "AVX2", "AVX512_CORE"])
def test_processors_without_the_instructions(instructions):
    """oneDNN made to do without them: whatever is chosen, a layer gives the same."""
    code = (
        "import torch; from hf_factuality.verifiers.int8 import Int8Linear; torch.manual_seed(0);"
        "print(Int8Linear.rounded(torch.nn.Linear(384, 384))(torch.randn(300, 384)).double().sum().item())"
    )
    found = [
        subprocess.run(
            [sys.executable, "-c", code], env=os.environ | more, capture_output=True, text=True, check=True
        ).stdout
        for more in ({}, {"ONEDNN_MAX_CPU_ISA": instructions})
    ]
    assert found[0] == found[1]

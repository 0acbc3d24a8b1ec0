"""The sizes hold what their comments promise, and settings that cannot be are refused."""

import pytest
import torch
from transformers import LlamaForCausalLM

from hf_factuality.worlds import SIZES, World, WorldModelConfig, build_world_tokenizer, lm


@pytest.mark.parametrize(
    ("values", "message"),
    [({name: 0}, f"{name} must be at least 1, got 0")
     for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "steps", "batch_size")]
    + [
        ({"hidden_size": 100}, "hidden_size=100 must be a multiple of twice num_heads=4"),
        ({"hidden_size": 36, "num_heads": 12}, "hidden_size=36 must be a multiple of twice num_heads=12"),
        ({"questions": 1.1}, "questions=1.1 and short_answers=0.1 are shares"),
        ({"questions": -0.1}, "questions=-0.1 and"),
        ({"short_answers": -0.1}, "short_answers=-0.1 are shares"),
        ({"questions": 0.7, "short_answers": 0.4}, "questions=0.7 and short_answers=0.4 .* not exceed 1 together"),
        ({"questions": float("nan")}, "questions=nan"),
    ],
)  # fmt: skip
def test_config_is_checked(values, message):
    with pytest.raises(ValueError, match=message):
        WorldModelConfig(**values)


def test_shares_at_the_limit():
    assert WorldModelConfig(questions=1.0, short_answers=0.0).questions == 1.0
    assert WorldModelConfig(questions=0.0, short_answers=1.0).short_answers == 1.0


@pytest.mark.parametrize(("size", "millions"), [("demo", 0.65), ("tiny", 2), ("small", 30), ("base", 100)])
def test_sizes(size, millions):
    config, model_config = SIZES[size]
    world = World(config)
    tok = build_world_tokenizer(world, model_config.tokenizer)
    with torch.device("meta"):
        model = LlamaForCausalLM(lm._llama_config(tok, model_config))
    # Tied embeddings; per layer four square matrices, three of the feed-forward network and two norms; a last norm.
    width, inner, depth = model_config.hidden_size, model_config.intermediate_size, model_config.num_layers
    count = len(tok) * width + depth * (4 * width**2 + 3 * width * inner + 2 * width) + width
    assert model.num_parameters() == count == pytest.approx(millions * 1e6, rel=0.2)

"""Ratios of averaged models: which tensor has which, the released script's cuts, exact means, and the penalty."""

import math

import pytest
import torch

from hf_factuality.methods.averaging.formula import RatioMap, adaptive_ratios, average_tensors, ratio_penalty


def names(layers, bias=False):
    inside = ("input_layernorm.weight", "self_attn.q_proj.weight", "mlp.up_proj.weight")
    inside += ("self_attn.q_proj.bias",) if bias else ()
    stack = [f"model.layers.{n}.{name}" for n in range(layers) for name in inside]
    return ["model.embed_tokens.weight", *stack, "model.norm.weight", "lm_head.weight"]


def linear(all_names):
    return {name for name in all_names if "proj" in name or "lm_head" in name}


def test_three_blocks_are_thirds_with_embeddings_in_the_first_and_the_output_layer_in_the_last():
    given = names(6)
    found = RatioMap(given, linear(given)).ratios({"0": 0.1, "1": 0.2, "2": 0.6})
    assert found["model.embed_tokens.weight"] == found["model.layers.1.mlp.up_proj.weight"] == 0.1
    assert found["model.layers.2.input_layernorm.weight"] == found["model.layers.3.self_attn.q_proj.weight"] == 0.2
    assert {found[name] for name in given[-2:]} == {found["model.layers.4.mlp.up_proj.weight"]} == {0.6}


@pytest.mark.parametrize(("layers", "cuts"), [(32, (11, 21)), (26, (8, 16))])
def test_the_released_cuts(layers, cuts):
    given = names(layers)
    found = RatioMap(given, linear(given), variant="released").ratios({"0": 0.0, "1": 0.5, "2": 0.7})
    for n in range(layers):
        ratio = 0.0 if n < cuts[0] else 0.5 if n < cuts[1] else 0.7
        assert found[f"model.layers.{n}.mlp.up_proj.weight"] == ratio
        assert found[f"model.layers.{n}.input_layernorm.weight"] == 1  # of the model before alignment
    assert found["model.embed_tokens.weight"] == found["model.norm.weight"] == 1
    assert found["lm_head.weight"] == pytest.approx(0.4)  # the mean


def test_unequal_blocks_and_single_layers():
    given = names(7)
    by_block, by_layer = RatioMap(given, (), blocks=3), RatioMap(given, (), "layer")
    layers = [f"model.layers.{n}.mlp.up_proj.weight" for n in range(7)]
    assert [by_block.members[name] for name in layers] == [(0,), (0,), (0,), (1,), (1,), (2,), (2,)]
    assert [by_layer.members[name] for name in layers] == [(n,) for n in range(7)] and len(by_layer.keys) == 7
    assert by_layer.members["model.norm.weight"] == (6,)


def test_linear_modules_have_a_ratio_with_their_bias_and_norms_the_mean_of_their_layer():
    given = names(2, bias=True)
    found = RatioMap(given, linear(given), "linear")
    assert len(found.keys) == 5
    values = {key: 0.1 * n for n, key in enumerate(found.keys)}
    ratios = found.ratios(values)
    q_proj, up_proj = "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.up_proj"
    assert ratios[f"{q_proj}.weight"] == ratios[f"{q_proj}.bias"] == values[q_proj]
    assert ratios["model.layers.1.input_layernorm.weight"] == pytest.approx((values[q_proj] + values[up_proj]) / 2)
    assert ratios["model.norm.weight"] == ratios["model.layers.1.input_layernorm.weight"]
    assert ratios["lm_head.weight"] == values["lm_head"]
    released = RatioMap(given, linear(given), "linear", variant="released")
    assert len(released.keys) == 4 and released.members["lm_head.weight"] == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("given", "first", "last"),
    [
        (["transformer.wte.weight", "transformer.h.0.a", "transformer.h.1.a", "transformer.ln_f.weight"], 0, 3),
        (["gpt_neox.embed_in.weight", "gpt_neox.layers.0.a", "gpt_neox.layers.1.a", "embed_out.weight"], 0, 3),
        (["d.embed_positions.weight", "d.final_layer_norm.weight", "d.layers.0.a", "d.layers.1.a"], 0, 1),
    ],
)
def test_names_of_other_families(given, first, last):
    found = RatioMap(given, (), blocks=2).members
    assert found[given[first]] == (0,) and found[given[last]] == (1,)


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        (names(2), {"blocks": 3}, "3 blocks cannot be made of 2 layers"),
        (names(2), {"level": "row"}, "'row'"),
        (names(26), {"blocks": 4, "variant": "released"}, "has 3 blocks, not 4"),
        (["encoder.layer.0.a", "decoder.layer.0.a"], {}, "2 .*'decoder.layer.', 'encoder.layer.'"),
        (["weight"], {}, "0 .none."),
    ],
)
def test_what_cannot_be_cut_is_an_error(given, settings, message):
    with pytest.raises(ValueError, match=message):
        RatioMap(given, (), **settings)


def test_ratios_of_other_keys_are_an_error():
    with pytest.raises(ValueError, match="3 ratios are needed, named '0', '1', '2'; '2' differ"):
        RatioMap(names(6), ()).ratios({"0": 0.1, "1": 0.2})


@pytest.mark.parametrize("alpha", [0.0, 0.2, 0.9, 1.0])
def test_the_mean_of_the_ratios_is_exact(alpha):
    for seed in range(20):
        logits = torch.randn(9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 8
        assert adaptive_ratios(logits, alpha).mean().item() == pytest.approx(alpha, abs=4e-16)
    assert adaptive_ratios(torch.full((3,), -1.4), alpha).tolist() == pytest.approx([alpha] * 3)


def test_ratios_by_hand():
    logits = torch.tensor([0.0, math.log(3)])  # sigmoids .5 and .75
    assert adaptive_ratios(logits, 0.2, 0.25).tolist() == pytest.approx([0.4 * 0.75 / 1.75, 0.4 / 1.75])


def test_gradients_of_the_ratios_and_their_penalty_are_those_of_finite_differences():
    weights = torch.tensor([3.0, 1.0, 2.0, 5.0], dtype=torch.float64)
    direction = torch.tensor([1.0, -2.0, 0.5, 0.3], dtype=torch.float64)

    def loss(logits):
        ratios = adaptive_ratios(logits, 0.3)
        return (ratios * direction).sum() + ratio_penalty(ratios, 0.3, weights)

    logits = torch.tensor([0.3, -1.2, 2.0, 0.1], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, (logits,), eps=1e-7, atol=1e-6)


def test_penalty_by_hand():
    given = names(26, bias=True)
    found = RatioMap(given, linear(given), variant="released")
    assert found.penalty_weights(linear(given)).tolist() == [16.0, 16.0, 20.0]  # two modules a layer
    middle = [2 * sum(25 / (abs(n - 13) + 1) for n in part) for part in (range(8), range(8, 16), range(16, 26))]
    assert found.penalty_weights(linear(given), "middle").tolist() == pytest.approx(middle)
    ratios = torch.tensor([0.1, 0.2, 0.4])
    assert ratio_penalty(ratios, 0.2, torch.tensor([2.0, 7.0, 3.0])).item() == pytest.approx(0.8)


def test_averages_by_hand_and_their_ends_to_the_bit():
    before, after = torch.tensor([-0.0, 3.0, 2.0**100]), torch.tensor([1.0, -0.0, float("inf")])
    assert average_tensors(before[:2], after[:2], 0.25).tolist() == [0.75, 0.75]
    for ratio, one in ((1.0, before), (0.0, after)):
        assert torch.equal(average_tensors(before, after, ratio).view(torch.int32), one.view(torch.int32))
    halves = average_tensors(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([1.0078125]).bfloat16(), 0.5)
    assert halves.dtype == torch.float32 and halves.item() == 1.00390625
    assert average_tensors(before.double(), after, 0.5).dtype == torch.float64

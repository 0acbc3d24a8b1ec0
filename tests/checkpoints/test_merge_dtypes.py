"""Weights that mean nothing without a scale: of 8 bits, and whatever a quantization_config is about."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from hf_factuality.checkpoints.merge import merge
from hf_factuality.cli import main
from hf_factuality.errors import CheckpointError
from hf_factuality.methods.averaging.average import average
from tests.checkpoints.merge_inputs import make_model
from tests.checkpoints.test_merge import assert_same, stored


NAME = "model.layers.1.mlp.up_proj.weight"
QUANTISED = {
    "bitsandbytes": {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True},
    "compressed-tensors": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {}},
    "fp8": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]},
    "mxfp4": {"quant_method": "mxfp4"},
    "torchao": {"quant_method": "torchao", "quant_type": "int8_weight_only"},
    "of no named method": {"bits": 8},
}


def save(folder, dtype=torch.bfloat16, **config):
    """A model; one of its weights has another dtype."""
    model = make_model("Qwen2", {"tie_word_embeddings": False, "dtype": "bfloat16"})
    model.save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    weights[NAME] = weights[NAME].to(dtype)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    written = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(written | config))
    return folder


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_of_8_bits_are_copied_and_never_cast(dtype, tmp_path, capsys):
    odd, plain = save(tmp_path / "odd", dtype), save(tmp_path / "plain")
    merge(odd, tmp_path / "copy")
    assert_same(stored(tmp_path / "copy"), load_file(odd / "model.safetensors"))
    kind = re.escape(str(dtype))
    for wanted in ("float32", "bfloat16", "float16"):
        with pytest.raises(CheckpointError, match=rf"'{NAME}' is {kind}, .*`dtype`"):
            merge(odd, tmp_path / "model", dtype=wanted)
    for pair, named in (((odd, plain), odd), ((plain, odd), odd)):
        for alpha in (0, 0.5, 1):
            with pytest.raises(CheckpointError, match=rf"'{NAME}' is {kind} in {named}"):
                average(*pair, tmp_path / "model", alpha=alpha)
    assert main(["merge", str(odd), "--out", str(tmp_path / "model"), "--dtype", "bf16"]) == 2
    assert NAME in capsys.readouterr().err and not (tmp_path / "model").exists()


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32])
def test_packed_weights_are_named(dtype, tmp_path):
    odd, plain = save(tmp_path / "odd", dtype), save(tmp_path / "plain")
    with pytest.raises(CheckpointError, match=rf"'{NAME}' is {dtype}.*quantised"):
        merge(odd, tmp_path / "model")
    with pytest.raises(CheckpointError, match=rf"'{NAME}' is {dtype}.*quantised"):
        average(plain, odd, tmp_path / "model", alpha=0.5)


@pytest.mark.parametrize("method", QUANTISED)
def test_quantised_models_are_named_before_their_tensors(method, tmp_path):
    plain, odd = save(tmp_path / "plain"), save(tmp_path / "odd", quantization_config=QUANTISED[method])
    for work in (
        lambda: merge(odd, tmp_path / "model"),
        lambda: average(plain, odd, tmp_path / "model", alpha=0.5),
        lambda: average(odd, plain, tmp_path / "model", alpha=0.5),
    ):
        with pytest.raises(CheckpointError, match=rf"odd/config.json has a quantization_config \({method}\)"):
            work()
    # The weights are of 16 bits: with a configuration that says so, they are merged.
    merge(odd, tmp_path / "model", model_config=plain)
    assert_same(stored(tmp_path / "model"), load_file(plain / "model.safetensors"))
    assert "quantization_config" not in json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "nested").mkdir()
    nested = {"text_config": {"quantization_config": QUANTISED[method]}}
    with pytest.raises(CheckpointError, match="quantization_config"):
        merge(save(tmp_path / "nested", **nested), tmp_path / "second")


@pytest.mark.parametrize("what", ["a quantised base", "a base of 8 bits", "matrices of 8 bits"])
def test_adapters_of_quantised_bases(what, tmp_path):
    base = save(
        tmp_path / "base",
        torch.float8_e4m3fn if what == "a base of 8 bits" else torch.bfloat16,
        **({"quantization_config": QUANTISED["bitsandbytes"]} if what == "a quantised base" else {}),
    )
    folder = tmp_path / "adapter"
    folder.mkdir()
    module = NAME.removesuffix(".weight")
    kind = torch.float8_e4m3fn if what == "matrices of 8 bits" else torch.float32
    matrices = {"A": torch.ones(2, 16).to(kind), "B": torch.ones(5, 2).to(kind)}
    save_file(
        {f"base_model.model.{module}.lora_{matrix}.weight": tensor for matrix, tensor in matrices.items()},
        folder / "adapter_model.safetensors",
    )
    config = {"peft_type": "LORA", "base_model_name_or_path": str(base), "r": 2, "lora_alpha": 2}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    told = r"base/config.json has a quantization_config \(bitsandbytes\).*base_model" if "quantised" in what else NAME
    with pytest.raises(CheckpointError, match=told):
        merge(folder, tmp_path / "model")
    if what == "a quantised base":
        plain = save(tmp_path / "plain")
        merge(folder, tmp_path / "model", base_model=plain)
        expected = load_file(plain / "model.safetensors")
        expected[NAME] = (expected[NAME].float() + 2).to(torch.bfloat16)
        assert_same(stored(tmp_path / "model"), expected)

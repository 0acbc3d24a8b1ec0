"""Adapters that train or resize embeddings, against PEFT: its own merge, or, where that adds to both of two tied weights what
was trained for one, the model that was trained.
"""

import json
import shutil
import warnings

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from hf_factuality.checkpoints.merge import merge
from hf_factuality.errors import CheckpointError
from hf_factuality.methods.averaging.average import average
from tests.checkpoints.merge_inputs import make_model
from tests.checkpoints.test_merge import assert_same, stored
from tests.conftest import fast_few


peft = pytest.importorskip("peft")

BOTH = ["embed_tokens", "lm_head"]
IDS = torch.tensor([[1, 5, 30, 0, 7, 3, 1]])
TOKENS = {"trainable_token_indices": [3, 1, 20]}
# settings of the adapter, rows of the resized vocabulary, how it is saved
CASES = {
    "saved beside": ({}, None, {"save_embedding_layers": True}),
    "grown": ({}, 41, {}),
    "shrunk": ({}, 31, {}),
    "grown, head": ({"modules_to_save": ["lm_head"]}, 41, {}),
    "grown, both": ({"modules_to_save": BOTH}, 41, {}),
    "head": ({"modules_to_save": ["lm_head"]}, None, {}),
    "both": ({"modules_to_save": BOTH}, None, {}),
    "embeddings, tied": ({"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, None, {}),
    "both, tied, grown": (
        {"modules_to_save": ["embed_tokens", "norm"], "ensure_weight_tying": True},
        41,
        {"save_embedding_layers": True},
    ),
    "tokens": (TOKENS, None, {}),
    "tokens by name, grown": ({"trainable_token_indices": {"embed_tokens": [38, 2]}}, 41, {}),
    "tokens of both": ({"trainable_token_indices": {"embed_tokens": [3, 1], "lm_head": [3, 1]}}, None, {}),
    "new tokens": ({"trainable_token_indices": [37, 40, 38]}, 41, {}),
    "LoRA, head": ({"target_modules": ["embed_tokens", "q_proj"], "modules_to_save": ["lm_head"]}, None, {}),
}
LORA = {
    "LoRA": ({"target_modules": ["embed_tokens", "q_proj"]}, None, {}),
    "LoRA of the head": ({"target_modules": ["lm_head"]}, None, {}),
    "LoRA of both": ({"target_modules": BOTH}, None, {}),
    "LoRA, tied": ({"target_modules": ["embed_tokens"], "ensure_weight_tying": True}, None, {}),
    "LoRA, tied, of other scales": (
        {"target_modules": ["embed_tokens"], "ensure_weight_tying": True, "alpha_pattern": {"lm_head": 2}},
        None,
        {},
    ),
    "other tokens of both": ({"trainable_token_indices": {"embed_tokens": [3, 1], "lm_head": [1, 3]}}, None, {}),
    "tokens of the head": ({"trainable_token_indices": {"lm_head": [3, 1]}}, None, {}),
}


def loaded(base, rows):
    model = AutoModelForCausalLM.from_pretrained(base)
    if rows is not None:
        model.resize_token_embeddings(rows, mean_resizing=False)
    return model


def adapter(tmp_path, tied, settings, rows=None, save=None, dtype="float32", change=0.0):
    """A base (`tied`: or a model) and an adapter of random numbers, written by PEFT; its folder, and PEFT's model, not merged."""
    base = tmp_path / "base"
    model = make_model("Qwen2", {"tie_word_embeddings": tied, "dtype": dtype}) if isinstance(tied, bool) else tied
    model.save_pretrained(base)
    settings = {"r": 3, "lora_alpha": 7, "target_modules": ["q_proj", "down_proj"], **settings}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.get_peft_model(loaded(base, rows), peft.LoraConfig(task_type="CAUSAL_LM", **settings))
        torch.manual_seed(2)
        for name, parameter in model.named_parameters():
            if any(part in name for part in ("lora_", "modules_to_save", "trainable_tokens")):
                parameter.data.copy_(torch.randn_like(parameter))
            elif "embed_tokens" in name or "lm_head" in name:
                parameter.data.add_(change)
        model.peft_config["default"].base_model_name_or_path = str(base)
        model.save_pretrained(tmp_path / "adapter", **(save or {}))
        return tmp_path / "adapter", peft.PeftModel.from_pretrained(loaded(base, rows), tmp_path / "adapter")


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied base"])
@pytest.mark.parametrize("case", fast_few(CASES, *range(0, 99, 5)))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_embeddings_are_merged_as_peft_merges_them(case, tied, tmp_path):
    settings, rows, save = CASES[case]
    folder, model = adapter(tmp_path, tied, settings, rows, save, change=0.5 if case == "saved beside" else 0.0)
    with torch.no_grad():
        trained = model(IDS).logits
    merged = model.merge_and_unload()
    merge(folder, tmp_path / "model")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert_same(found.state_dict(), merged.state_dict())
    for key in ("vocab_size", "tie_word_embeddings"):
        assert getattr(found.config, key) == getattr(merged.config, key)
    assert found.config.vocab_size == (rows or 37)
    assert ("lm_head.weight" in stored(tmp_path / "model")) == (not merged.config.tie_word_embeddings)
    with torch.no_grad():
        assert torch.equal(found(IDS).logits, merged(IDS).logits)
        assert torch.allclose(found(IDS).logits, trained, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied base"])
@pytest.mark.parametrize("case", fast_few(LORA, 0, 3))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_was_trained_for_one_of_two_tied_weights_changes_that_one(case, tied, tmp_path):
    settings, rows, save = LORA[case]
    folder, model = adapter(tmp_path, tied, settings, rows, save)
    with torch.no_grad():
        trained = model(IDS).logits
    report = merge(folder, tmp_path / "model")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    with torch.no_grad():
        assert torch.allclose(found(IDS).logits, trained, rtol=1e-3, atol=1e-3)
    merged = model.merge_and_unload()
    if not tied:
        assert_same(found.state_dict(), merged.state_dict())
        return
    with torch.no_grad():  # PEFT's merge is another model
        assert not torch.allclose(merged(IDS).logits, trained, rtol=1e-1, atol=1e-1)
    together = case == "LoRA, tied"
    assert found.config.tie_word_embeddings is together
    assert any("lm_head.weight" in note and "tied" in note for note in report.notes) is not together


def test_lora_of_embeddings_by_hand(tmp_path):
    folder, _ = adapter(tmp_path, True, {"target_modules": ["embed_tokens"]})
    merge(folder, tmp_path / "model")
    start = load_file(tmp_path / "base" / "model.safetensors")["model.embed_tokens.weight"]
    held = load_file(folder / "adapter_model.safetensors")
    a, b = (held[f"base_model.model.model.embed_tokens.lora_embedding_{matrix}"] for matrix in "AB")
    found = stored(tmp_path / "model")
    assert torch.equal(found["lm_head.weight"], start)
    expected = start.clone()
    for row in range(37):
        for column in range(16):
            expected[row, column] += 7 / 3 * sum(a[k, row] * b[column, k] for k in range(3))
    assert torch.allclose(found["model.embed_tokens.weight"], expected, atol=1e-5)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied base"])
@pytest.mark.parametrize(
    ("model", "settings", "rows"),
    [
        ("GPTNeoX", {"target_modules": ["query_key_value", "embed_in"], "modules_to_save": ["lm_head"]}, 41),
        ("GPT2", {"target_modules": ["c_attn"], "modules_to_save": ["wte"], "ensure_weight_tying": True}, None),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_embeddings_of_other_names(model, settings, rows, tied, tmp_path):
    """GPT-NeoX has its output layer by another name in files; PEFT ties modules of some names only."""
    config = getattr(transformers, f"{model}Config")(
        vocab_size=37, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
        max_position_embeddings=16, tie_word_embeddings=tied, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    folder, trained = adapter(tmp_path, AutoModelForCausalLM.from_config(config), settings, rows)
    expected = trained.merge_and_unload()
    merge(folder, tmp_path / "model")
    found = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert_same(found.state_dict(), expected.state_dict())
    assert found.config.tie_word_embeddings is False and found.config.vocab_size == (rows or 37)


@pytest.mark.parametrize("case", fast_few(["grown, both", "new tokens", "saved beside"], 0))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_in_bfloat16_and_with_embeddings_in_float32(case, tmp_path):
    settings, rows, save = CASES[case]
    folder, model = adapter(tmp_path, True, settings, rows, save, dtype="bfloat16", change=0.5)
    held = load_file(folder / "adapter_model.safetensors")
    assert {tensor.dtype for name, tensor in held.items() if "embed" in name} & {torch.bfloat16}
    merge(folder, tmp_path / "model")
    expected = model.merge_and_unload().state_dict()
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype="bfloat16").state_dict(), expected)
    wide = {name: tensor.float() + 1e-4 for name, tensor in held.items()}
    save_file(wide, folder / "adapter_model.safetensors")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = peft.PeftModel.from_pretrained(loaded(tmp_path / "base", rows), folder).merge_and_unload()
    merge(folder, tmp_path / "again")
    assert {tensor.dtype for tensor in stored(tmp_path / "again").values()} == {torch.bfloat16}
    assert_same(
        AutoModelForCausalLM.from_pretrained(tmp_path / "again", dtype="bfloat16").state_dict(), again.state_dict()
    )


def test_a_configuration_of_the_resized_model_beside_the_adapter(tmp_path):
    folder, model = adapter(tmp_path, False, {}, 41)
    expected = model.merge_and_unload()
    expected.config.save_pretrained(folder)
    merge(folder, tmp_path / "model")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict(), expected.state_dict())
    shutil.move(folder / "config.json", tmp_path / "config.json")
    merge(folder, tmp_path / "again", model_config=tmp_path)
    assert_same(stored(tmp_path / "again"), stored(tmp_path / "model"))


def test_a_vocabulary_inside_the_configuration(tmp_path):
    """`vocab_size` of a composite configuration is that of its text model."""
    from hf_factuality.checkpoints.model import expected_model

    text = {
        "vocab_size": 37,
        "hidden_size": 16,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    config = {
        "model_type": "llava",
        "architectures": ["LlavaForConditionalGeneration"],
        "text_config": {"model_type": "llama", **text},
        "vision_config": {"model_type": "clip_vision_model", "hidden_size": 16, "intermediate_size": 8, "image_size": 8,
                          "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4},
        "image_token_index": 5,
        "tie_word_embeddings": False,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = expected_model(tmp_path, vocab_size=41)
    assert found.vocab_size == 41 and found.settings == {("text_config", "vocab_size"): 41}


@pytest.mark.parametrize(
    ("tied", "settings", "rows", "save", "told"),
    [
        # The new rows of the other one are random numbers of the training.
        (False, {"target_modules": ["embed_tokens"]}, 41, {}, "lacks 'lm_head.weight'"),
        (False, {"target_modules": ["lm_head"]}, 41, {}, "lacks 'model.embed_tokens.weight'"),
        (True, {"target_modules": ["embed_tokens"]}, 41, {"save_embedding_layers": False}, "'model.embed_tokens.weight'"),
        (True, TOKENS | {"trainable_token_indices": [39]}, 41, {"save_embedding_layers": False}, "token 39 of 'model.embed"),
        (True, TOKENS | {"modules_to_save": ["lm_head"]}, None, {}, "'lm_head.weight' and 'model.embed_tokens.weight'"),
        (True, TOKENS | {"target_modules": ["lm_head"]}, None, {}, "'lm_head.weight' and 'model.embed_tokens.weight'"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_cannot_be_merged_is_named(tied, settings, rows, save, told, tmp_path):
    folder, _ = adapter(tmp_path, tied, settings, rows, save)
    with pytest.raises(CheckpointError, match=told):
        merge(folder, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_files_that_do_not_say_what_they_hold(tmp_path):
    folder, _ = adapter(tmp_path, True, TOKENS | {"modules_to_save": ["model.norm"]}, None, {})
    config = json.loads((folder / "adapter_config.json").read_text())
    held = load_file(folder / "adapter_model.safetensors")

    def refused(tensors=None, **values):
        (folder / "adapter_config.json").write_text(json.dumps(config | values))
        save_file(held if tensors is None else tensors, folder / "adapter_model.safetensors")
        with pytest.raises(CheckpointError) as caught:
            merge(folder, tmp_path / "model")
        return str(caught.value)

    for indices in (
        [3, 1],
        [3, 1, 37],
        [3, 1, -1],
        [],
        [3, 1, "20"],
        [3, 1, True],
        {"q_proj": [3, 1, 20]},
        None,
        "3",
        3,
    ):
        assert "'model.embed_tokens" in refused(trainable_token_indices=indices)
    rows = "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"
    assert "trainable_token_indices" in refused({name: t for name, t in held.items() if name != rows})
    assert "'model.norm.weight'" in refused({name: t for name, t in held.items() if "model.norm" not in name})
    for entries in ("norm", [3], {"norm": 1}):
        assert "modules_to_save" in refused(modules_to_save=entries)
    two = {"base_model.model.lm_head.weight": torch.ones(37, 16)}
    assert "'lm_head.weight'" in refused(
        held | two | {"base_model.model.model.embed_tokens.weight": torch.zeros(37, 16)}
    )
    assert "'lm_head.weight' of 38" in refused(
        held | {"base_model.model.lm_head.weight": torch.ones(38, 16), "base_model.model.model.embed_tokens.weight": torch.ones(37, 16)}
    )  # fmt: skip
    assert "of shape [37, 15]" in refused(held | {"base_model.model.lm_head.weight": torch.ones(37, 15)})


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_average_with_an_adapter_that_unties(tmp_path):
    folder, model = adapter(tmp_path, True, {"modules_to_save": ["lm_head"]})
    merged = model.merge_and_unload().state_dict()
    average(tmp_path / "base", folder, tmp_path / "model", alpha=0.25)
    found, start = stored(tmp_path / "model"), load_file(tmp_path / "base" / "model.safetensors")
    for name, other in (("lm_head.weight", "model.embed_tokens.weight"), ("model.norm.weight",) * 2):
        assert torch.allclose(found[name], 0.25 * start[other] + 0.75 * merged[name], atol=1e-6)
    folder, _ = adapter(tmp_path / "grown", True, {}, 41)
    with pytest.raises(CheckpointError, match=r"'model.embed_tokens.weight' has shape \[37, 16\]"):
        average(tmp_path / "grown" / "base", folder, tmp_path / "second", alpha=0.5)


def test_rank_files_with_wrappers_of_peft(tmp_path):
    """A sharded run saves the wrapped model: what PEFT puts into the names is known there too."""
    folder, model = adapter(tmp_path, False, {"modules_to_save": ["lm_head"], **TOKENS})
    actor = tmp_path / "actor"
    actor.mkdir()
    torch.save(model.state_dict(), actor / "model_world_size_1_rank_0.pt")
    shutil.copy(tmp_path / "base" / "config.json", actor)
    shutil.copy(folder / "adapter_config.json", actor)
    assert any(".original_module." in name for name in model.state_dict())
    expected = model.merge_and_unload().state_dict()
    merge(actor, tmp_path / "model")
    assert_same(AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict(), expected)

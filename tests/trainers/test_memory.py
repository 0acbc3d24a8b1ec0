import json

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM, DeepseekV3Config, FalconConfig, LlamaConfig, MambaConfig, Qwen3MoeConfig

from hf_factuality import FactGRPOConfig, MaskDPOConfig, TokenRewardPPOConfig
from hf_factuality.cli import main
from hf_factuality.trainers.memory import PHASES, SHARDINGS, Term, memory_plan, peak, trace


SMALL = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
         "num_key_value_heads": 2}  # fmt: skip
BIG = {"vocab_size": 128256, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
       "num_attention_heads": 64, "num_key_value_heads": 8, "dtype": "bfloat16"}  # fmt: skip


def plan(config, method=FactGRPOConfig, sharding="ddp", processes=1, given=None, **settings):
    args = method(
        **{"output_dir": "out", "use_cpu": True, "bf16": False, "report_to": "none", "beta": 0.0, **settings}
    )
    terms = memory_plan(config, args, sharding, processes, gpu=False, **(given or {}))
    return {term.name: term for term in terms}


@pytest.mark.parametrize("tied", [True, False])
def test_a_trace_counts_what_the_model_has(tied):
    config = LlamaConfig(**SMALL, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(config)
    found = trace(config, 2, 8)
    assert found.parameters == found.trainable == sum(p.numel() for p in model.parameters())
    assert found.layers == (sum(p.numel() for p in model.model.layers[0].parameters()),) * 3
    assert found.stream == 2 * 8 * 32 * 4 and found.head == 96 * 32 and found.tied is tied
    assert found.cache == 2 * 3 * 2 * 8 * 4  # keys and values, layers, heads, width, bytes
    assert config.use_cache and config.dtype is None  # as it was


def test_a_trace_keeps_what_a_real_pass_keeps():
    """The oracle: storages that autograd saves in a real pass. Attention differs, so none is compared: one head of one token."""
    config = LlamaConfig(**SMALL)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    own, saved = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage  # held, so that no other gets its address
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model(input_ids=torch.zeros(64, 1, dtype=torch.long), use_cache=False)
    found = trace(config, 64, 1)
    real = sum(storage.nbytes() for storage in saved.values())
    assert sum(found.kept) + found.outside == pytest.approx(real, rel=0.1)


def test_what_is_kept_grows_with_the_texts():
    config = LlamaConfig(**SMALL)
    one, four = trace(config, 1, 16), trace(config, 4, 16)
    # The first layer keeps the rotary positions too, which are the same for every text.
    assert [4 * size for size in one.kept[1:]] == list(four.kept[1:])
    assert sum(trace(config, 4, 16, mixed=True).kept) < sum(four.kept)


def test_seventy_billion_weights_without_their_memory():
    found = trace(LlamaConfig(**BIG), 1, 4096)
    assert found.parameters == 70_553_706_496
    assert found.cache == 2 * 80 * 8 * 128 * 2


def test_experts_and_adapters():
    moe = Qwen3MoeConfig(**SMALL, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, decoder_sparse_step=1,
                         mlp_only_layers=[], dtype="bfloat16")  # fmt: skip
    assert trace(moe, 1, 8).parameters == sum(p.numel() for p in AutoModelForCausalLM.from_config(moe).parameters())
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    assert trace(LlamaConfig(**SMALL), 1, 8, peft_config=lora).trainable == 3 * 2 * (32 + 32)


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [("ddp", 1, 1, 1), ("zero2", 1, 4, 4), ("zero3", 4, 4, 4), ("fsdp2", 4, 4, 4)],
)
def test_what_each_way_splits(sharding, weights, gradients, optimizer):
    config = LlamaConfig(**SMALL)
    number = trace(config, 1, 8).parameters
    terms = plan(config, sharding=sharding, processes=4)
    assert terms["weights"].bytes == -(-4 * number // weights)
    assert terms["gradients"].bytes == -(-4 * number // gradients)
    assert terms["optimizer"].bytes == -(-8 * number // optimizer)


def test_adapters_learn_little_and_need_no_reference():
    lora = LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")
    terms = plan(LlamaConfig(**SMALL), beta=0.1, given={"peft_config": lora})
    assert terms["optimizer"].bytes == 2 * 4 * 384 and terms["gradients"].bytes == 4 * 384
    assert "reference" not in terms and "reference" in plan(LlamaConfig(**SMALL), beta=0.1)


@pytest.mark.parametrize(
    ("quantization", "bits"), [({"load_in_4bit": True}, 4), ({"load_in_8bit": True}, 8), ({"bits": 4}, 4)]
)
def test_quantized_layers(quantization, bits):
    plain, quantized = LlamaConfig(**SMALL), LlamaConfig(**SMALL, quantization_config=quantization)
    given = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")}
    layers = sum(trace(plain, 1, 8, **given).layers)
    less = plan(plain, given=given)["weights"].bytes - plan(quantized, given=given)["weights"].bytes
    assert less == layers * (32 - bits) // 8
    with pytest.raises(ValueError, match=f"weights of {bits} bits are not learnt; add adapters"):
        plan(quantized)


@pytest.mark.parametrize(("sharding", "dtype", "optim", "bytes"), [
    ("zero2", "float32", "adamw_torch", 12), ("zero2", "bfloat16", "adamw_8bit", 6), ("ddp", "bfloat16", "adamw_8bit", 2),
    ("ddp", "bfloat16", "adamw_torch", 4), ("ddp", "float32", "adamw_torch", 8),
])  # fmt: skip
def test_deepspeed_keeps_a_float32_copy_of_what_it_learns(sharding, dtype, optim, bytes):
    config = LlamaConfig(**SMALL, dtype=dtype)
    terms = plan(config, sharding=sharding, processes=1, bf16=True, optim=optim)
    assert terms["optimizer"].bytes == bytes * trace(config, 1, 8).parameters


def test_experts_in_float32_keep_what_those_in_bfloat16_do_beside_their_casts():
    moe = {**SMALL, "head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
           "decoder_sparse_step": 1, "mlp_only_layers": []}  # fmt: skip
    half, mixed = trace(Qwen3MoeConfig(**moe, dtype="bfloat16"), 2, 8), trace(Qwen3MoeConfig(**moe), 2, 8, mixed=True)
    assert mixed.parameters == half.parameters and sum(mixed.kept) > sum(half.kept) > 0


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_completion_length", 0), ("max_completion_length", -5), ("gradient_accumulation_steps", 0)],
)
def test_settings_that_no_training_has(name, value):
    args = FactGRPOConfig("out", use_cpu=True, bf16=False, report_to="none")
    setattr(args, name, value)
    with pytest.raises(ValueError, match=f"{name}={value} must be positive"):
        memory_plan(LlamaConfig(**SMALL), args)


def test_the_critic_of_token_rewards():
    config = LlamaConfig(**SMALL)
    terms = plan(config, TokenRewardPPOConfig, "zero3", 2)
    number = trace(config, 1, 8).parameters - 96 * 32  # a backbone without the head of words
    assert terms["critic's weights"].bytes == 2 * number and terms["critic's optimizer"].bytes == 4 * number
    whole = plan(config, TokenRewardPPOConfig, "zero2", 2)
    assert whole["critic's weights"].bytes == 4 * number and whole["critic's optimizer"].bytes == 8 * number
    # DeepSpeed casts the policy, not the critic.
    assert plan(config, TokenRewardPPOConfig, "zero2", 2, bf16=True)["critic's weights"].bytes == 4 * number
    assert not {name for name in plan(config, TokenRewardPPOConfig, critic_model="value_head") if "critic" in name}


def test_checkpointing_keeps_less_and_vllm_takes_its_share():
    config = LlamaConfig(**{**SMALL, "num_hidden_layers": 12})
    kept = [plan(config, gradient_checkpointing=way)["activations"].bytes for way in (True, False)]
    assert 3 * kept[0] < kept[1]
    own = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3}
    terms = plan(config, **own, given={"gpu_memory": 40e9})
    assert terms["vLLM"].bytes == 12e9 and terms["vLLM"].phases == PHASES
    assert plan(config, **own, vllm_enable_sleep_mode=True)["vLLM"].phases == ("generate",)
    assert "keys and values" in plan(config) and "keys and values" not in terms


def test_pairs_are_two_texts_a_row():
    config = LlamaConfig(**SMALL)
    given = {"max_length": 64, "per_device_train_batch_size": 2}
    assert plan(config, MaskDPOConfig, **given)["activations"].why.startswith("4 x 64 tokens")


def test_peak_is_of_one_phase():
    terms = [Term("a", 5, PHASES, ""), Term("b", 7, ("generate",), ""), Term("c", 4, ("backward", "step"), ""),
             Term("d", 4, ("step",), "")]  # fmt: skip
    assert peak(terms) == (13, "step")


def test_values_of_another_width_than_keys():
    latent = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
    experts = {
        "moe_intermediate_size": 32,
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
    }
    config = DeepseekV3Config(**{**SMALL, "num_key_value_heads": 4, "dtype": "bfloat16"}, **latent, **experts)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    assert trace(config, 2, 8).parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    "config",
    [
        MambaConfig(hidden_size=32, num_hidden_layers=2),
        FalconConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4),
    ],
)
def test_what_cannot_be_traced_is_said(config):
    with pytest.raises(ValueError, match=f"{type(config).__name__} cannot be planned"):
        trace(config, 1, 8)


def test_an_unknown_way_is_named():
    with pytest.raises(ValueError, match=f"sharding='zero1'.*{SHARDINGS[0]}"):
        plan(LlamaConfig(**SMALL), sharding="zero1")


# The command
def command(capsys, *flags):
    status = main(["plan", *flags])
    return status, capsys.readouterr()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("big")
    LlamaConfig(**BIG).save_pretrained(path)
    return str(path)


def test_the_way_with_least_communication_is_taken(folder, tmp_path, capsys):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    status, output = command(capsys, "--model", str(tmp_path), "--method", "fspo", "--gpus", "4")
    assert status == 0 and "recipes/accelerate/ddp.yaml --num_processes 4" in output.out
    status, output = command(capsys, "--model", folder, "--method", "mask_dpo", "--gpus", "32", "--bf16", "true",
                             "--gradient_checkpointing", "true", "--precompute_ref_log_probs", "true",
                             "--per_device_train_batch_size", "1", "--json")  # fmt: skip
    found = json.loads(output.out)
    assert status == 0 and [way["fits"] for way in found["plans"]] == [False, False, True]
    assert [way["sharding"] for way in found["plans"]] == ["ddp", "zero2", "zero3"]


def test_what_does_not_fit_says_what_would(folder, capsys):
    flags = [
        "--model",
        folder,
        "--method",
        "fspo",
        "--bf16",
        "true",
        "--use_vllm",
        "true",
        "--per_device_train_batch_size",
        "4",
    ]
    status, output = command(capsys, *flags, "--gpus", "8")
    assert status == 1
    advice = output.out.split("Would fit: ")[1].split()
    given = dict(zip(advice[::2], advice[1::2], strict=True))
    gpus = given.pop("--gpus", "8")
    sharding = given.pop("--sharding")
    settings = [word for flag in given.items() for word in flag]
    kept = flags[:-2] if "--per_device_train_batch_size" in given else flags
    status, output = command(capsys, *kept[:4], "--gpus", gpus, "--sharding", sharding, *kept[4:], *settings)
    assert status == 0, output.out


@pytest.mark.parametrize("given", ["--gpu_memory 24", "--gpu_memory 40 --gradient_accumulation_steps 4",
                                   "--gpu_memory 40 --generation_batch_size 512", "--gpu_memory 6 --gpus 3"])  # fmt: skip
def test_advice_fits_when_it_is_followed(tmp_path, capsys, given):
    """Also where it is generation that does not fit: smaller batches of which more are accumulated generate as much at a time."""
    LlamaConfig(**{**BIG, "hidden_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 16, "num_key_value_heads": 16,
                   "intermediate_size": 2048}).save_pretrained(tmp_path)  # fmt: skip
    flags = ["--model", str(tmp_path), "--method", "fspo", "--per_device_train_batch_size", "256", "--num_generations", "2",
             "--max_completion_length", "1024", "--bf16", "true", *given.split()]  # fmt: skip
    status, output = command(capsys, *flags)
    assert status == 1
    advice = output.out.split("Would fit: ")[1].strip()
    if advice.startswith("--"):
        status, output = command(capsys, *flags, *advice.split())
        assert status == 0, output.out
    else:
        assert advice.endswith(", or generate with vLLM (--use_vllm true)")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--method", "fspo"), "name the model"),
        (("--model", "x", "--method", "fspo", "--gpus", "0"), "--gpus=0 must be positive"),
        (("--model", "x", "--method", "fspo", "--gpu_memory", "nan"), "--gpu_memory=nan must be positive"),
        (("--model", "BROKEN", "--method", "fspo"), "no configuration of the model"),
        (("--model", "x", "--method", "fspo", "--config", "BROKEN/recipe.yaml"), "recipe.yaml is no YAML"),
        (("--model", "no/such", "--method", "fspo"), "no/such"),
        (("--model", "FOLDER", "--method", "fspo", "--sharding", "zero1"), "zero1"),
    ],
)
def test_bad_input(folder, tmp_path, flags, message, capsys):
    (tmp_path / "recipe.yaml").write_text("a: [", encoding="utf-8")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": "wide"}', encoding="utf-8")
    places = {"FOLDER": folder, "BROKEN": str(tmp_path)}
    for name, place in places.items():
        flags = [flag.replace(name, place) for flag in flags]
    status, output = command(capsys, *flags)
    assert status == 2 and message in output.err

import itertools
import json
import os
import random
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig
from torch.profiler import ProfilerActivity, profile
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForSequenceClassification,
    DeepseekV3Config,
    FalconConfig,
    Gemma3TextConfig,
    LlamaConfig,
    MambaConfig,
    Qwen3MoeConfig,
    Trainer,
)

from hf_factuality import FactGRPOConfig, MaskDPOConfig, TokenRewardPPOConfig
from hf_factuality.cli import main
from hf_factuality.trainers.memory import PHASES, SHARDINGS, Term, VerifierModel, memory_plan, peak, trace
from hf_factuality.trainers.memory.passes import _trace
from hf_factuality.verifiers.registry import model_in_process
from tests.conftest import fast_few


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


@pytest.mark.parametrize(
    "peft", [None, LoraConfig(target_modules=["q_proj", "o_proj"], layers_to_transform=[0, 2, 3, 5])]
)
@pytest.mark.parametrize("kind", fast_few([LlamaConfig, Gemma3TextConfig, Qwen3MoeConfig], 1))
def test_layers_alike_are_traced_as_if_each_were_computed(kind, peft):
    """With two kinds of layers that take turns, as Gemma's windows do, and with adapters on some of them."""
    config = kind(**{**SMALL, "num_hidden_layers": 7, "head_dim": 8, "sliding_window": 4})
    assert _trace(config, 2, 8, True, peft) == _trace(config, 2, 8, True, peft, twins=False)


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


@pytest.mark.slow
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
    # ZeRO-2 copies what it learns, even if that is float32.
    assert terms["optimizer"].bytes == -(-(12 if sharding == "zero2" else 8) * number // optimizer)


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
    learnt = 3 * 2 * (32 + 32)
    layers = sum(trace(plain, 1, 8, **given).layers) - learnt
    less = plan(plain, given=given)["weights"].bytes - plan(quantized, given=given)["weights"].bytes
    assert less == layers * (32 - bits) // 8 + 2 * learnt  # TRL has adapters in bfloat16 beside quantized weights
    with pytest.raises(ValueError, match=f"weights of {bits} bits are not learnt; add adapters"):
        plan(quantized)


@pytest.mark.parametrize(("sharding", "dtype", "optim", "bytes"), [
    ("zero2", "float32", "adamw_torch", 12), ("zero2", "bfloat16", "adamw_8bit", 6), ("zero3", "bfloat16", "adamw_8bit", 6),
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


# What FSDP2 keeps, by accelerate's `fsdp2_prepare_model`, in bytes of a parameter: weights that learn, frozen ones, gradients,
# moments, and what is summed up before the last of the accumulated batches, on every process.
FSDP2 = [
    ("bfloat16", True, 4, 2, 4, 8, 2),
    ("float32", True, 4, 4, 4, 8, 2),
    ("bfloat16", False, 2, 2, 2, 4, 2),
    ("float32", False, 4, 4, 4, 8, 4),
]


@pytest.mark.parametrize(("dtype", "bf16", "learnt", "frozen", "gradient", "moments", "summed"), FSDP2)
@pytest.mark.parametrize("lora", [False, True])
def test_fsdp2_keeps_float32_copies_of_what_it_learns(dtype, bf16, learnt, frozen, gradient, moments, summed, lora):
    config, given, number = LlamaConfig(**SMALL, dtype=dtype), {}, 34016
    trainable = number
    if lora:
        given = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")}
        trainable = 384
        # Adapters are float32 from the start.
        learnt, gradient, moments, summed = 4, 4, 8, 2 if bf16 else 4
    terms = plan(config, sharding="fsdp2", processes=4, bf16=bf16, gradient_accumulation_steps=2, given=given)
    rest = 0 if not lora else number
    assert terms["weights"].bytes == (trainable * learnt + rest * frozen) / 4
    assert terms["gradients"].bytes == trainable * gradient / 4 and terms["gradients"].phases == ("step",)
    assert terms["optimizer"].bytes == trainable * moments / 4
    assert terms["gradients before they are split"].bytes == trainable * summed


def test_fsdp2_splits_gradients_at_once_if_it_is_told_to():
    own = {"sharding": "fsdp2", "processes": 4, "gradient_accumulation_steps": 2, "bf16": True}
    terms = plan(LlamaConfig(**SMALL), **own,
                 accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}})  # fmt: skip
    assert "gradients before they are split" not in terms and "backward" in terms["gradients"].phases


@pytest.mark.parametrize(("method", "phase"), [(FactGRPOConfig, "score"), (MaskDPOConfig, "backward")])
def test_fsdp2_brings_the_whole_reference_together(method, phase):
    """`prepare_fsdp` of TRL splits it as one piece: gathered in a buffer and copied out of it."""
    own = {"sharding": "fsdp2", "processes": 4, "bf16": True, "beta": 0.1}
    terms = plan(LlamaConfig(**SMALL, dtype="bfloat16"), method, **own)
    assert terms["gathered reference"].bytes == 2 * 2 * 34016 and terms["gathered reference"].phases == (phase,)
    assert terms["reference"].bytes == 2 * 34016 / 4
    assert "gathered reference" not in plan(LlamaConfig(**SMALL), method, **{**own, "sharding": "zero3"})


@pytest.mark.slow
def test_the_plan_of_fsdp2_against_what_two_processes_keep(tmp_path):
    """By accelerate's own helper over gloo: weights, gradients, moments and reference, whole and LoRA, in 8 settings."""
    root = Path(__file__).parents[2]
    command = [
        sys.executable,
        str(root / "benchmarks" / "memory_plan.py"),
        "--fsdp2",
        "--out",
        str(tmp_path / "rows.json"),
    ]
    subprocess.run(command, check=True, cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True)
    rows = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    assert len(rows) == 8
    for row in rows:
        assert row["planned"] == pytest.approx(row["kept"], rel=0.1), row


@pytest.mark.parametrize(
    ("sharding", "dtype", "copies", "phases"),
    [
        ("zero2", "bfloat16", 4, ("step",)),  # one float32 gradient
        ("zero2", "float32", 0, ("step",)),
        ("zero3", "bfloat16", 6, PHASES),  # that, and the gradients as one tensor
    ],
)
def test_deepspeed_copies_gradients_for_its_step(sharding, dtype, copies, phases):
    config = LlamaConfig(**SMALL, dtype=dtype)
    terms = plan(config, sharding=sharding, processes=4, bf16=dtype == "bfloat16")
    found = terms["optimizer's step"].bytes if copies else "optimizer's step" in terms
    assert found == copies * 34016 / 4 and terms["gradients"].phases == phases


def test_zero3_steps_over_a_billion_parameters_at_a_time():
    config = LlamaConfig(**{**BIG, "intermediate_size": 655360, "num_hidden_layers": 4})
    assert plan(config, sharding="zero3", processes=4, bf16=True)["optimizer's step"].bytes == 6 * 10**9


@pytest.mark.parametrize("optim", ["adamw_torch", "adafactor", "sgd", "adagrad", "rmsprop", "sgd:momentum=0.9"])
def test_moments_are_those_of_the_real_optimizer(optim):
    name, _, more = optim.partition(":")
    settings = {"optim": name, "optim_args": more or None}
    config = LlamaConfig(**SMALL)
    model = AutoModelForCausalLM.from_config(config)
    args = FactGRPOConfig("out", use_cpu=True, bf16=False, report_to="none", **settings)
    kind, own = Trainer.get_optimizer_cls_and_kwargs(args)
    optimizer = kind(model.parameters(), **{**own, "lr": 1e-3})
    ids = torch.zeros(1, 4, dtype=torch.long)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    values = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    real = sum(value.nbytes for value in values if value.dim())
    terms = plan(config, **settings)
    assert (terms["optimizer"].bytes if real else "optimizer" in terms) == real


@pytest.mark.parametrize(("optim", "bytes"), [
    ("lion_32bit", 4), ("paged_adamw_32bit", 8), ("ademamix", 12), ("schedule_free_sgd", 2), ("adamw_torch_4bit", 1),
    ("adamw_torch_8bit", 2), ("schedule_free_adamw", 4),
])  # fmt: skip
def test_moments_of_other_optimizers_beside_bfloat16(optim, bytes):
    """bitsandbytes' are float32, torch's have the dtype of the weights."""
    assert plan(LlamaConfig(**SMALL, dtype="bfloat16"), optim=optim)["optimizer"].bytes == bytes * 34016


def test_moments_of_embeddings_have_32_bits_with_bitsandbytes():
    config = LlamaConfig(**SMALL, dtype="bfloat16")
    assert plan(config, optim="adamw_8bit")["optimizer"].bytes == 2 * 34016 + 6 * 96 * 32
    assert plan(config, optim="lion_8bit")["optimizer"].bytes == 34016 + 3 * 96 * 32


LORA = {"peft_config": LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sharding": "fsdp2", "optim": "adamw_8bit"}, "optim='adamw_8bit' does not run with FSDP2"),
        ({"sharding": "fsdp2", "optim": "adafactor"}, "optim='adafactor' does not run with FSDP2"),
        ({"sync_ref_model": True, "beta": 0.1, "given": LORA}, "sync_ref_model=True .* adapters"),
        ({"sync_ref_model": True}, "sync_ref_model=True .* beta=0"),
        ({"method": MaskDPOConfig, "beta": 0.1, "sync_ref_model": True, "precompute_ref_log_probs": True}, "precompute"),
        ({"method": TokenRewardPPOConfig, "sharding": "zero2", "freezing_actor_steps": 2, "weight_decay": 0.1}, "weight_decay=0.1"),
        ({"method": TokenRewardPPOConfig, "given": LORA, "quantization_config": {"load_in_4bit": True}}, "critic_model='policy'"),
    ],
)  # fmt: skip
def test_what_a_training_refuses_is_not_planned(settings, message):
    config = LlamaConfig(**SMALL, quantization_config=settings.pop("quantization_config", None))
    with pytest.raises(ValueError, match=message):
        plan(config, **settings)


def test_quantized_weights_are_whole_with_fsdp2():
    own = {"sharding": "fsdp2", "processes": 4, "given": LORA, "bf16": True}
    split, whole = (
        plan(LlamaConfig(**SMALL, dtype="bfloat16", quantization_config={"load_in_4bit": True, **more}), **own)["weights"].bytes
        for more in ({"bnb_4bit_quant_storage": "bfloat16"}, {})
    )  # fmt: skip
    quantized = (sum(trace(LlamaConfig(**SMALL), 1, 8, **LORA).layers) - 384) / 2
    assert whole - split == pytest.approx(quantized * 3 / 4, abs=1)


def judge_config(**own):
    return BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=256, **own
    )


def test_a_verifier_of_the_same_process():
    """The oracle: a real pass, and what torch's allocator gives out in it."""
    config = judge_config(attn_implementation="eager")
    model = BertForSequenceClassification(config).eval()
    ids = torch.ones(8, 64, dtype=torch.long)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled, torch.inference_mode():
        model(input_ids=ids, attention_mask=torch.ones_like(ids))
    now = most = 0
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    verifier = VerifierModel(config, "AutoModelForSequenceClassification", 8, 64)
    terms = plan(LlamaConfig(**SMALL), given={"verifier": verifier})
    assert terms["verifier"].bytes == sum(p.nbytes for p in model.parameters()) and terms["verifier"].phases == PHASES
    assert terms["verifier's pass"].bytes == pytest.approx(most, rel=0.15)
    assert terms["verifier's pass"].phases == ("score",)
    ahead = plan(
        LlamaConfig(**SMALL), generation_chunks=2, per_device_train_batch_size=8, given={"verifier": verifier}
    )
    assert ahead["verifier's pass"].phases == ("generate", "score")


@pytest.mark.parametrize(("name", "model", "judge"), [
    ("nli:some/model", "some/model", "NLIJudge"), ("citations:nli:some/model", "some/model", "NLIJudge"),
    ("hhem", "google/flan-t5-base", "HHEMJudge"), ("minicheck", "lytang/MiniCheck-Flan-T5-Large", "MiniCheckJudge"),
    ("reward:a/b", "a/b", "RewardJudge"), ("process:a/b", "a/b", "ProcessJudge"), ("probe:a/b", "a/b", "ProbeJudge"),
    ("truthfulness:a/b", "a/b", "TruthfulnessJudge"),
])  # fmt: skip
def test_models_that_a_verifier_loads(name, model, judge):
    found = model_in_process(name)
    assert found[0] == model and found[1].__name__ == judge


@pytest.mark.parametrize(
    "name", ["lexical", "gold", "llm:a/b", "compare:a/b", "pipeline:a/b", "some.module:Class", "citations"]
)
def test_verifiers_without_a_model_here(name):
    assert model_in_process(name) is None


# The command
def command(capsys, *flags):
    status = main(["plan", *flags])
    return status, capsys.readouterr()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """As many weights as Llama 3 70B has, in four layers."""
    path = tmp_path_factory.mktemp("big")
    LlamaConfig(**{**BIG, "intermediate_size": 655360, "num_hidden_layers": 4}).save_pretrained(path)
    return str(path)


def test_the_way_with_least_communication_is_taken(folder, tmp_path, capsys):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    status, output = command(capsys, "--model", str(tmp_path), "--method", "fspo", "--gpus", "4")
    assert status == 0 and "recipes/accelerate/ddp.yaml --num_processes 4" in output.out
    status, output = command(capsys, "--model", folder, "--method", "mask_dpo", "--gpus", "64", "--bf16", "true",
                             "--precompute_ref_log_probs", "true", "--max_length", "64",
                             "--per_device_train_batch_size", "1", "--gpu_memory", "160", "--json")  # fmt: skip
    found = json.loads(output.out)
    assert status == 0 and [way["fits"] for way in found["plans"]] == [False, False, True]
    assert [way["sharding"] for way in found["plans"]] == ["ddp", "zero2", "zero3"]


def test_the_verifier_of_a_script_is_counted(tmp_path, capsys):
    LlamaConfig(**SMALL).save_pretrained(tmp_path / "policy")
    judge_config().save_pretrained(tmp_path / "judge")
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        f"model_name_or_path: {tmp_path / 'policy'}\nverifier: nli:{tmp_path / 'judge'}\n", encoding="utf-8"
    )
    status, output = command(capsys, "--method", "fspo", "--config", str(recipe), "--json")
    terms = {term["name"]: term["bytes"] for term in json.loads(output.out)["plans"][0]["terms"]}
    number = sum(p.numel() for p in BertForSequenceClassification(judge_config()).parameters())
    assert status == 0 and terms["verifier"] == 4 * number
    status, output = command(capsys, "--method", "fspo", "--config", str(recipe), "--verifier", "nli:no/such")
    assert status == 2 and "verifier 'no/such'" in output.err


@pytest.mark.slow
def test_what_is_refused_by_one_way_is_planned_by_others(tmp_path, capsys):
    LlamaConfig(**SMALL).save_pretrained(tmp_path)
    flags = [
        "--model",
        str(tmp_path),
        "--method",
        "fspo",
        "--gpus",
        "4",
        "--gpu_memory",
        "0.1",
        "--optim",
        "adamw_8bit",
        "--json",
    ]
    status, output = command(capsys, *flags)
    assert status == 1 and [way["sharding"] for way in json.loads(output.out)["plans"]] == ["ddp", "zero2", "zero3"]
    status, output = command(capsys, *flags, "--sharding", "fsdp2")
    assert status == 2 and "does not run with FSDP2" in output.err


# Advice
SHAPES = {
    "small": {**BIG, "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 2,
              "num_attention_heads": 16, "num_key_value_heads": 4},
    "large": {**BIG, "intermediate_size": 65536, "num_hidden_layers": 3},
}  # fmt: skip


def grid():
    """Trainers, vLLM, sizes, GPUs, ways to split, adapters, optimizers and other settings: 5,040 in an order that is no order."""
    vllm = {"none": [], "colocate": ["--use_vllm", "true"], "server": ["--use_vllm", "true", "--vllm_mode", "server"]}
    rows = []
    for method, served in [*itertools.product(("fspo", "rlfh"), vllm), ("mask_dpo", "none")]:
        for shape, memory, (way, gpus), lora, optim, more in itertools.product(
            SHAPES, (8, 24, 80), (("ddp", 1), ("zero2", 4), ("zero3", 4), ("fsdp2", 4), (None, 8)), (False, True),
            ("adamw_torch_fused", "adamw_8bit", "sgd"),
            ([], ["--gradient_checkpointing", "false"], ["--dtype", "bfloat16"], ["--gradient_accumulation_steps", "4"]),
        ):  # fmt: skip
            flags = ["--method", method, "--gpus", str(gpus), "--gpu_memory", str(memory), "--bf16", "true", "--optim", optim,
                     "--per_device_train_batch_size", "8", "--beta", "0.01", *vllm[served], *more]  # fmt: skip
            flags += [*(("--sharding", way) if way else ()), *(("--use_peft", "true") if lora else ())]
            rows.append((shape, flags))
    random.Random(0).shuffle(rows)
    return rows


# What might help, by itself: written down here once more, so that what advice leaves out is seen.
SINGLE = [
    ["--gradient_checkpointing", "true"], ["--optim", "adamw_8bit"], ["--optim", "adamw_torch_8bit"], ["--dtype", "bfloat16"],
    ["--use_vllm", "true", "--vllm_mode", "server"], ["--vllm_enable_sleep_mode", "true"], ["--critic_model", "value_head"],
    ["--ds3_gather_for_generation", "false"], ["--use_peft", "true"], ["--precompute_ref_log_probs", "true"],
    ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "8"],
    ["--per_device_train_batch_size", "1", "--gradient_accumulation_steps", "32"],
]  # fmt: skip


def check_advice(capsys, tmp_path, count):
    """Follows all advice for the first settings of the grid; returns how many there were, and pieces of advice."""
    for name, shape in SHAPES.items():
        LlamaConfig(**shape).save_pretrained(tmp_path / name)

    def planned(*flags):
        status, output = command(capsys, *flags, "--json")
        if status == 2:
            return None, output.err
        found = json.loads(output.out)
        return min(found["plans"], key=lambda way: (not way["fits"], way["peak"])), found

    followed = checked = 0
    for shape, flags in grid():
        flags = ["--model", str(tmp_path / shape), *flags]
        now, found = planned(*flags)
        if now is None:
            assert "adamw_8bit" in flags and "fsdp2" in flags, found
            continue
        checked += 1
        for one in found["advice"] or ():
            then, output = planned(*flags, *one["flags"])
            assert then is not None, (flags, one, output)
            assert [then[name] for name in ("peak", "fits", "sharding")] == [
                one[name] for name in ("peak", "fits", "sharding")
            ]
            assert then["fits"] or then["peak"] < now["peak"], (flags, one)
            followed += 1
        if not now["fits"] and not any(one["fits"] for one in found["advice"]):
            accumulated = "32" if "--gradient_accumulation_steps" in flags else "8"
            for single in SINGLE:
                same = "--gradient_accumulation_steps" not in single or single[-1] == accumulated
                applies = "--critic_model" not in single or "rlfh" in flags
                if same and applies and not ("--precompute_ref_log_probs" in single and "mask_dpo" not in flags):
                    then, _ = planned(*flags, *single)
                    assert then is None or not then["fits"], (flags, single)
        if checked == count:
            return followed
    raise AssertionError("the grid is too small")


@pytest.mark.slow
def test_advice_is_what_the_plan_becomes(capsys, tmp_path):
    assert check_advice(capsys, tmp_path, 1) > 0


@pytest.mark.slow
def test_advice_is_what_the_plan_becomes_for_hundreds_of_settings(capsys, tmp_path):
    assert check_advice(capsys, tmp_path, 240) > 300


def advice(capsys, folder, *flags):
    status, output = command(capsys, "--model", folder, *flags, "--json")
    assert status == 1, output.err
    return {tuple(one["settings"]): one for one in json.loads(output.out)["advice"]}


@pytest.fixture(scope="module")
def middle(tmp_path_factory):
    path = tmp_path_factory.mktemp("middle")
    LlamaConfig(**SHAPES["large"]).save_pretrained(path)
    return str(path)


@pytest.mark.parametrize(
    ("flags", "settings", "values"),
    fast_few([
        ("--method rlfh --gpus 8 --gpu_memory 40 --sharding zero3", "critic_model", ["value_head"]),
        ("--method fspo --gpus 8 --gpu_memory 16 --sharding zero3 --use_peft true", "use_vllm vllm_mode", [True, "server"]),
        ("--method fspo --gpus 8 --gpu_memory 16 --sharding zero3 --use_peft true", "ds3_gather_for_generation", [False]),
        ("--method fspo --gpus 1 --gpu_memory 20", "optim", ["adamw_torch_8bit"]),
        ("--method fspo --gpus 8 --gpu_memory 8 --sharding fsdp2", "optim", ["adamw_torch_8bit"]),
        ("--method mask_dpo --gpus 8 --gpu_memory 8 --sharding fsdp2 --gradient_accumulation_steps 4", "accelerator_config",
         [{"gradient_accumulation_kwargs": {"sync_each_batch": True}}]),
        ("--method mask_dpo --gpus 1 --gpu_memory 20", "precompute_ref_log_probs", [True]),
    ], 0, 4),
)  # fmt: skip
def test_advice_knows_the_obvious_changes(capsys, middle, flags, settings, values):
    found = advice(capsys, middle, *flags.split(), "--bf16", "true", "--per_device_train_batch_size", "1",
                   "--num_generations" if "fspo" in flags else "--seed", "8", "--max_completion_length" if "mask" not in flags
                   else "--max_length", "256", *(() if "accumulation" in flags else ("--gradient_accumulation_steps", "8")))  # fmt: skip
    assert list(found[tuple(settings.split())]["settings"].values()) == values


def test_advice_does_not_propose_what_is_on(capsys, middle):
    found = advice(capsys, middle, "--method", "rlfh", "--bf16", "true", "--gpu_memory", "4", "--use_peft", "true", "--use_vllm",
                   "true", "--vllm_mode", "server", "--critic_model", "value_head", "--optim", "adamw_8bit", "--dtype", "bfloat16",
                   "--load_in_4bit", "true", "--per_device_train_batch_size", "1")  # fmt: skip
    on = {
        "use_peft",
        "use_vllm",
        "vllm_mode",
        "critic_model",
        "optim",
        "dtype",
        "load_in_4bit",
        "gradient_checkpointing",
    }
    assert not on & {name for settings in found for name in settings}


@pytest.mark.slow
def test_several_changes_are_joined_where_no_single_one_is_enough(capsys, middle):
    found = advice(capsys, middle, "--method", "rlfh", "--bf16", "true", "--gpu_memory", "24", "--gpus", "4",
                   "--per_device_train_batch_size", "8")  # fmt: skip
    fitting = [settings for settings, one in found.items() if one["fits"]]
    assert len(fitting) == 1 and len(fitting[0]) > 1


@pytest.mark.slow
def test_advice_is_printed_as_flags(capsys, middle):
    flags = ["--model", middle, "--method", "mask_dpo", "--gpus", "8", "--gpu_memory", "8", "--sharding", "fsdp2", "--bf16", "true",
             "--gradient_accumulation_steps", "4"]  # fmt: skip
    status, output = command(capsys, *flags)
    line = next(line for line in output.out.splitlines() if "sync_each_batch" in line)
    size, words = line.split(maxsplit=1)
    given = shlex.split(words.rpartition(" (")[0])
    assert status == 1 and given[0] == "--accelerator_config"
    status, output = command(capsys, *flags, *given, "--json")
    assert f"{json.loads(output.out)['plans'][0]['peak'] / 1e9:.1f}" == size


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--method", "fspo"), "name the model"),
        (("--model", "x", "--method", "fspo", "--gpus", "0"), "--gpus must be positive, got 0"),
        (("--model", "x", "--method", "fspo", "--gpu_memory", "nan"), "--gpu_memory must be positive, got nan"),
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

"""A prompt that several rows of a batch answer is read once, and what they say is the same."""

import pytest
import torch
from peft import LoraConfig, PrefixTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, MistralConfig, Qwen3NextConfig

from hf_factuality.generation.base import ChatRequest
from hf_factuality.generation.causal import CausalModel
from hf_factuality.generation.local import LocalChat
from hf_factuality.generation.sampling import SamplingConfig


HOW = SamplingConfig(temperature=1.0, max_new_tokens=12, num_samples=6)
PROMPTS = ("Who is Ada?", "Where was Marie Curie born, and when?", "Why?")
REQUESTS = [
    ChatRequest.of([{"role": "user", "content": text}], HOW, seed)
    for seed in range(6)  # equal prompts lie apart
    for text in PROMPTS
]


def small(kind, tokenizer, **settings):
    torch.manual_seed(0)
    config = kind(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=tokenizer.eos_token_id, **settings,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config)


@pytest.fixture
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


@pytest.fixture
def plain(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)


def said(model, tokenizer, batch_size, requests=REQUESTS):
    """Texts, and how many tokens the model read."""
    count = 0

    def counted(module, inputs):
        nonlocal count
        count += inputs[0].numel()

    hook = model.get_input_embeddings().register_forward_pre_hook(counted)
    chat = LocalChat(model, tokenizer, batch_size=batch_size)
    texts = [answer.text for answer in chat.chat(requests)]
    hook.remove()
    return texts, count, chat


def test_samples_are_the_same_and_prompts_are_read_once(plain, tokenizer, monkeypatch):
    alone, _, _ = said(plain, tokenizer, 1)
    once, few, _ = said(plain, tokenizer, len(REQUESTS))
    with monkeypatch.context() as patch:
        patch.setattr(CausalModel, "_read_once", lambda self, *batch: None)
        each, many, _ = said(plain, tokenizer, len(REQUESTS))
    assert once == each == alone and len(set(alone)) > len(PROMPTS)
    longest = max(len(tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True,
                                                    return_dict=False)) for text in PROMPTS)  # fmt: skip
    # The prompts of three rows in place of those of eighteen, and the last token of each row again.
    assert many - few == (18 - 3) * longest - 18


def test_an_adapter(plain, tokenizer):
    model = get_peft_model(plain, LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    assert said(model, tokenizer, 18)[0] == said(model, tokenizer, 1)[0]


def test_a_learnt_prefix_is_no_part_of_the_prompt(plain, tokenizer):
    model = get_peft_model(plain, PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    with torch.no_grad():
        for parameter in model.prompt_encoder.parameters():
            parameter.normal_()
    texts, _, chat = said(model, tokenizer, 18)
    assert not chat._reads_once and texts == said(model, tokenizer, 1)[0]


def test_a_model_that_keeps_positions_reads_every_row(plain, tokenizer):
    plain.model.rope_deltas = None
    assert not said(plain, tokenizer, 18)[2]._reads_once


@pytest.mark.parametrize(
    "kind, settings",
    [
        (MistralConfig, {"sliding_window": 8}),
        pytest.param(Qwen3NextConfig, {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
                     "head_dim": 16, "shared_expert_intermediate_size": 16,
                     "layer_types": ["linear_attention", "full_attention"]}, marks=pytest.mark.slow),
    ], ids=["sliding window", "state"],
)  # fmt: skip
def test_a_model_that_keeps_something_else_reads_every_row(tokenizer, kind, settings):
    model = small(kind, tokenizer, **settings)
    texts, _, chat = said(model, tokenizer, 18)
    assert not chat._reads_once and texts == said(model, tokenizer, 1)[0]


def test_prompts_that_differ_are_read_as_before(plain, tokenizer):
    one_each = REQUESTS[:3]
    texts, count, _ = said(plain, tokenizer, 3, one_each)
    assert texts == said(plain, tokenizer, 1, one_each)[0]
    assert said(plain, tokenizer, 3, one_each)[1] == count

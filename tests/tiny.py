"""A tiny causal language model and data for it, for tests that run a trainer."""

import functools

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


CORPUS = [
    "<think> Ada Lovelace was born in London. London is in England. </think><answer> England </answer>",
    "Marie Curie was born in Warsaw. She worked in Paris, and won two prizes in 1903 and 1911!",
    "Where was he born? The answer is not known. 玛丽出生在华沙。",
]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def save_tiny_model(folder) -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<|pad|>",
        eos_token="<|end|>",
        additional_special_tokens=special[2:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    fast.add_tokens(["<think>", "</think>", "<answer>", "</answer>"])
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(fast),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        pad_token_id=fast.pad_token_id,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
    )
    model = LlamaForCausalLM(config)
    # Random weights give near-uniform tokens; a larger spread makes completions end at different lengths.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    model.generation_config.eos_token_id = fast.eos_token_id
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return str(folder)


@functools.cache
def rows(n: int = 8, conversational: bool = True, evidence: bool = True) -> Dataset:
    questions = [f"Where was person {number} born?" for number in range(n)]
    columns = {
        "prompt": [[{"role": "user", "content": q}] for q in questions] if conversational else questions,
        "question": questions,
    }
    if evidence:
        columns["evidence"] = [["Marie Curie was born in Warsaw.", "Warsaw is in Poland."] for _ in questions]
    return Dataset.from_dict(columns)


def letters_reward(prompts, completions, **kwargs) -> list[float]:
    """Differs from completion to completion, so that groups have a non-zero advantage."""
    texts = [c if isinstance(c, str) else c[0]["content"] for c in completions]
    return [sum(ord(letter) % 7 for letter in text) / max(len(text), 1) for text in texts]

"""Batches sorted by length (`LocalChat`) against continuous batching of transformers, at temperature 0.

PYTHONPATH=. python benchmarks/continuous_batching.py

A Llama of random weights answers prompts of 20 to 200 tokens, of which about one token in a hundred ends an answer and 128
are the limit. Prints seconds, the shorter of two runs, and whether the texts are the same.
"""

import argparse
import logging
import random
import time

import torch
from transformers import ContinuousBatchingConfig, GenerationConfig, LlamaConfig, LlamaForCausalLM

from hf_factuality.generation import ChatRequest, LocalChat


VOCABULARY, LIMIT = 8000, 128


class Numbers:
    """A tokenizer whose texts are token ids."""

    eos_token_id, pad_token_id, chat_template = None, 0, None

    def __call__(self, text, add_special_tokens=True):
        return {"input_ids": list(map(int, text.split()))}

    def decode(self, ids, skip_special_tokens=False):
        return " ".join(map(str, ids))


def fastest(work, times=2):
    """Seconds of the fastest run, and what it made."""
    found = []
    for _ in range(times):
        start = time.perf_counter()
        made = work()
        found.append(time.perf_counter() - start)
    return min(found), made


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--hidden_size", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch_size", type=int, nargs="+", default=[32])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    draw = random.Random(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    ends = list(range(1, VOCABULARY, 97))
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=args.hidden_size, intermediate_size=args.hidden_size * 8 // 3,
        num_hidden_layers=args.layers, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048,
        bos_token_id=None, eos_token_id=ends, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval().to(device)
    model.generation_config.eos_token_id = ends
    prompts = [[draw.randrange(2, VOCABULARY) for _ in range(draw.randint(20, 200))] for _ in range(args.prompts)]
    texts = [" ".join(map(str, prompt)) for prompt in prompts]
    requests = [ChatRequest((("user", text),), max_new_tokens=LIMIT) for text in texts]
    print(f"{device}, {torch.get_num_threads()} threads, {args.prompts} prompts")
    for size in args.batch_size:
        client = LocalChat(model, Numbers(), batch_size=size, prompt_format="plain")
        seconds, sorted_ = fastest(lambda client=client: client.tokens(requests))
        print(f"sorted batches of {size}: {seconds:.1f} s, {sum(map(len, sorted_))} tokens")
    settings = GenerationConfig(max_new_tokens=LIMIT, do_sample=False, eos_token_id=ends, pad_token_id=0)

    def continuous():
        blocks = {"continuous_batching_config": ContinuousBatchingConfig(num_blocks=512)}
        found = model.generate_batch(prompts, generation_config=settings, **blocks)
        return [it.generated_tokens for _, it in sorted(found.items(), key=lambda it: int(it[0].rpartition("_")[2]))]

    seconds, found = fastest(continuous)
    same = sum(a == b for a, b in zip(found, sorted_, strict=True))
    print(
        f"continuous batching: {seconds:.1f} s, {sum(map(len, found))} tokens, {same} of {args.prompts} texts the same"
    )


if __name__ == "__main__":
    main()

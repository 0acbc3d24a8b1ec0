"""Tokens a second of the builders' local generation over those of plain `generate` in batches of 32, on a real model.

    PYTHONPATH=. python benchmarks/local_generation.py --texts 64 --seeds 3

The prompts are questions for a fact, and requests for a text on the evidence of the claims that were labelled by hand: from 15 to
150 tokens, shuffled. Plain `generate` takes them as they come, padded on the left. Both draw at temperature 1, one answer to a
prompt and then eight to each of an eighth of them, or give the likeliest answer. They go in turns. A token that is not padding
counts.
"""

import argparse
import os
import random
import statistics
import time


os.environ.setdefault("CI", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

from hf_factuality.data.sampling import TransformersSampler
from hf_factuality.demos.real_model import FACTS, find_model
from hf_factuality.generation import SamplingConfig
from hf_factuality.io.rows import read_rows


LABELLED = "tests/cases/judging/smollm2.jsonl"
# How: samples of a prompt, temperature.
WAYS = {"one answer, drawn": (1, 1.0), "one answer, the likeliest": (1, 0.0), "eight answers, drawn": (8, 1.0)}


def prompts(count: int, seed: int) -> list[list[dict]]:
    evidence = dict.fromkeys(row["evidence"] for _, row in read_rows(LABELLED))
    texts = [f"{text}\n\nSummarise this in two sentences." for text in evidence]
    texts += [row["question"] for _, row in read_rows(FACTS)][: len(texts)]
    draw = random.Random(seed)
    draw.shuffle(texts)
    return [[{"role": "user", "content": text}] for text in (texts * (count // len(texts) + 1))[:count]]


def plain(model, tokenizer, chats: list, samples: int, temperature: float, limit: int, seed: int) -> int:
    """Tokens that `generate` made, in batches of 32 answers."""
    torch.manual_seed(seed)
    texts = [tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True) for chat in chats]
    how = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {"do_sample": False}
    made, size = 0, max(32 // samples, 1)
    for start in range(0, len(texts), size):
        batch = tokenizer(texts[start : start + size], return_tensors="pt", padding=True, add_special_tokens=False)
        found = model.generate(**batch, max_new_tokens=limit, num_return_sequences=samples, **how)
        new = found[:, batch["input_ids"].shape[1] :]
        ends = new == tokenizer.eos_token_id
        made += int((ends.cumsum(1) - ends.int() == 0).sum())  # up to and with the first end
    return made


def ours(sampler: TransformersSampler, tokenizer, chats: list, limit: int, seed: int) -> int:
    found = [one for own in sampler.sample(chats, seed) for one in own]
    lengths = [len(tokenizer(one.text, add_special_tokens=False)["input_ids"]) for one in found]
    return sum(length + (length < limit) for length in lengths)  # with the end where there is one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--limit", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    folder = find_model()
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for name, (samples, temperature) in WAYS.items():
        ratios, speeds = [], []
        how = SamplingConfig(temperature=temperature, top_k=0, max_new_tokens=args.limit, num_samples=samples)
        sampler = TransformersSampler(folder, config=how, batch_size=32, model_kwargs={"dtype": "float32"})
        for seed in range(args.seeds):
            chats = prompts(args.texts // samples, seed)
            runs = {
                "plain": lambda c=chats, s=seed, n=samples, t=temperature: plain(
                    model, tokenizer, c, n, t, args.limit, s
                ),
                "ours": lambda c=chats, s=seed, it=sampler: ours(it, tokenizer, c, args.limit, s),
            }
            found = {}
            for who in ("plain", "ours") if seed % 2 else ("ours", "plain"):
                start = time.process_time()
                made = runs[who]()
                found[who] = made / (time.process_time() - start)
            ratios.append(found["ours"] / found["plain"])
            speeds.append(found)
            print(name, seed, {who: round(value, 1) for who, value in found.items()}, flush=True)
        spread = f" ± {statistics.stdev(ratios):.2f}" if len(ratios) > 1 else ""
        print(
            f"{name}: tokens a second of processor time over plain generate's: {statistics.fmean(ratios):.2f}{spread}"
        )


if __name__ == "__main__":
    main()

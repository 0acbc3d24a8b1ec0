"""Train a small model on the FSPO files, so that the example can be run on real data where no model can be downloaded.

    python benchmarks/fspo_small_model.py --data ../shared/data/fspo --out outputs/fspo-small-model
    hf-factuality train fspo --model_name_or_path outputs/fspo-small-model --output_dir outputs/fspo-real-data \
        --train_files ../shared/data/fspo/hotpot-2k-train.parquet ../shared/data/fspo/simple-rl-train.parquet \
        --max_steps 20 --per_device_train_batch_size 16 --gradient_accumulation_steps 2 --max_completion_length 128 \
        --learning_rate 1e-5 --dtype float32 --bf16 false --use_cpu true --gradient_checkpointing false \
        --logging_steps 1 --log_completions true --num_completions_to_print 0 --report_to none --save_strategy no

A model of this size cannot know the answers to two thousand questions. It is taught a few by heart: one or two short
sentences of the evidence, sometimes with a number or a name exchanged, and the answer, for the questions that 20 steps of
the command above draw (seed 42, at most 8 questions a step). It then says true and false things about them. The run
shows that the flow works on real data, not that the method helps.
"""

import argparse
import itertools
import random
import re
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tqdm import tqdm
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.trainer.utils import RepeatSampler

from hf_factuality import VerifierInput, load_fspo
from hf_factuality.verifiers import SentenceExtractor


CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tokenizer(texts) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|pad|>", "<|im_end|>", "<|im_start|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=6000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=CHAT_TEMPLATE
    )


def facts_to_learn(row) -> list[str]:
    """The two shortest sentences of the evidence that share a name with the question."""
    text = " ".join(row["evidence"])
    (spans,) = SentenceExtractor().extract([VerifierInput(text)])
    names = set(re.findall(r"\b[A-Z]\w+", row["question"])) - {"Which", "What", "Who", "The", "In", "Where", "When"}
    sentences = {span.text(text) for span in spans}
    fitting = [s for s in sentences if 5 <= len(s.split()) <= 30 and names & set(re.findall(r"\w+", s))]
    return sorted(fitting, key=lambda s: (len(s), s))[:2]


def corrupt(sentence: str, names: list[str], rng) -> str:
    """The sentence with one number or name exchanged."""
    numbers = re.findall(r"\b\d+\b", sentence)
    if numbers:
        number = rng.choice(numbers)
        return sentence.replace(number, str(int(number) + rng.randint(1, 40)), 1)
    found = re.findall(r"(?<=\w )[A-Z]\w+", sentence)
    return sentence.replace(rng.choice(found), rng.choice(names)) if found else sentence


def demonstrations(rows, rng) -> list[tuple[str, str]]:
    facts = [facts_to_learn(row) for row in rows]
    names = sorted({name for known in facts for s in known for name in re.findall(r"(?<=\w )[A-Z]\w+", s)})
    pairs = []
    for row, known in zip(rows, facts, strict=True):
        said = [corrupt(s, names, rng) if rng.random() < 0.3 else s for s in known]
        reasoning = " ".join(said) or "Let us compute."
        pairs.append((row["prompt"], f" {reasoning} </think>\n<answer> {row['answer']} </answer><|im_end|>"))
    return pairs


def train(model, tokenizer, pairs, rng, peak=2e-3, size=16, max_length=400):
    encoded = []
    for prompt, completion in pairs:
        start, ids = len(tokenizer(prompt)["input_ids"]), tokenizer(prompt + completion)["input_ids"]
        if len(ids) <= max_length:
            encoded.append((start, ids))
    rng.shuffle(encoded)
    # Batches of like lengths: neighbours among every few hundred examples, not among all, or copies would meet.
    for begin in range(0, len(encoded), 8 * size):
        encoded[begin : begin + 8 * size] = sorted(encoded[begin : begin + 8 * size], key=lambda item: len(item[1]))
    batches = [encoded[begin : begin + size] for begin in range(0, len(encoded) - size + 1, size)]
    rng.shuffle(batches)
    steps = len(batches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.05)
    progress = tqdm(range(steps), mininterval=5)
    for step in progress:
        rows = batches[step]
        width = max(len(ids) for _, ids in rows)
        inputs, labels = torch.full((size, width), tokenizer.pad_token_id), torch.full((size, width), -100)
        for number, (start, ids) in enumerate(rows):
            inputs[number, : len(ids)] = torch.tensor(ids)
            labels[number, start : len(ids)] = torch.tensor(ids[start:])
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(input_ids=inputs, attention_mask=inputs != tokenizer.pad_token_id, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress.set_postfix(loss=f"{loss.item():.2f}", refresh=False)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/fspo"))
    parser.add_argument("--out", type=Path, default=Path("outputs/fspo-small-model"))
    parser.add_argument("--epochs", type=int, default=220)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    files = [args.data / "hotpot-2k-train.parquet", args.data / "simple-rl-train.parquet"]
    raw = load_fspo(files, empty_answers="drop")
    tokenizer = make_tokenizer(text for row in raw for text in (row["question"], *row["evidence"]))
    dataset = load_fspo(files, tokenizer=tokenizer, empty_answers="drop")
    order = RepeatSampler(dataset, mini_repeat_count=1, batch_size=1, shuffle=True, seed=42)
    drawn = [dataset[index] for index in itertools.islice(order, 160)]
    hotpot = [row for row in drawn if row["evidence"]]
    maths = [row for row in drawn if not row["evidence"]][: len(hotpot) // 4]
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=192, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)

    pairs = [pair for _ in range(args.epochs) for pair in demonstrations(hotpot + maths, rng)]
    train(model, tokenizer, pairs, rng)
    model.save_pretrained(args.out)
    tokenizer.save_pretrained(args.out)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, saved to {args.out}")


if __name__ == "__main__":
    main()

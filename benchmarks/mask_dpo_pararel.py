"""From the facts of PARAREL to ten steps of Mask-DPO, on real questions and with a model that can be trained in a minute.

200 questions, a subject and a relation each, are made from the facts and phrases of PARAREL (Elazar et al. 2021). A small
Llama is trained on answers of three sentences, of which each names the right object or another one of the relation: often
the right one for part of the subjects, seldom for the others. So it says true and false things in one answer. Then the
command `hf-factuality build-preferences` samples 32 answers to each question, labels them with the lexical verifier against
the facts and makes the pairs, and `MaskDPOTrainer` takes ten steps on them.

The run shows that the way from questions to a trained model works on real input, and what is dropped on it, not that the
method helps: the model has seen nothing but these answers, and is asked the same questions again.

    PYTHONPATH=. python benchmarks/mask_dpo_pararel.py --data ../shared/data/pararel --out outputs/mask-dpo-pararel
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hf_factuality import MaskDPOConfig, MaskDPOTrainer
from hf_factuality.cli import main as command
from hf_factuality.data.pairs import hallucination_free_share
from hf_factuality.data.preferences import load_pairs
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import SamplingConfig, TransformersSampler
from hf_factuality.io.rows import read_rows
from hf_factuality.verifiers import LexicalVerifier, VerifierInput


# Relations with one object per subject and at least three plain phrases, and how they are asked for.
ASKED = {
    "P19": "Where was {} born?", "P20": "Where did {} die?", "P27": "Which citizenship does {} have?",
    "P36": "What is the capital of {}?", "P103": "What is the native language of {}?",
    "P159": "Where is the headquarter of {}?", "P176": "Which company produces {}?",
    "P413": "Which position does {} play?", "P449": "On which channel was {} originally aired?",
    "P495": "In which country was {} created?",
}  # fmt: skip
SHARE_KNOWN, RIGHT_KNOWN, RIGHT_OTHERS = 0.7, 0.8, 0.3
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def read_facts(data: Path, per_relation: int, rng: random.Random) -> list[dict]:
    """Questions with the phrases, the object and the other objects of the relation."""
    found = []
    for relation, asked in ASKED.items():
        facts = [row for _, row in read_rows(data / "facts" / f"{relation}.jsonl")]
        objects: dict[str, set] = {}
        for fact in facts:
            objects.setdefault(fact["sub_label"], set()).add(fact["obj_label"])
        phrases = [row["pattern"] for _, row in read_rows(data / "patterns" / f"{relation}.jsonl")]
        phrases = [text.strip().removesuffix(".").strip() + "." for text in phrases if text.count("[Y]") == 1][:3]
        others = sorted({fact["obj_label"] for fact in facts})
        single = sorted(subject for subject, names in objects.items() if len(names) == 1 and subject[0].isalpha())
        for subject in rng.sample(single, per_relation):
            (name,) = objects[subject]
            found.append(
                {
                    "id": f"{relation}/{subject}", "topic": relation, "question": asked.format(subject), "object": name,
                    "phrases": [phrase.replace("[X]", subject) for phrase in phrases],
                    "others": [other for other in others if other != name], "known": rng.random() < SHARE_KNOWN,
                }
            )  # fmt: skip
    for row in found:
        row["evidence"] = [" ".join(phrase.replace("[Y]", row["object"]) for phrase in row["phrases"])]
    return found


def answer(row: dict, rng: random.Random) -> str:
    right = RIGHT_KNOWN if row["known"] else RIGHT_OTHERS
    names = [row["object"] if rng.random() < right else rng.choice(row["others"]) for _ in row["phrases"]]
    return " ".join(phrase.replace("[Y]", name) for phrase, name in zip(row["phrases"], names, strict=True))


def make_model(rows: list[dict]) -> tuple[LlamaForCausalLM, PreTrainedTokenizerFast]:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    texts = [text for row in rows for text in (row["question"], *row["phrases"], row["object"], *row["others"][:100])]
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=3000, special_tokens=["<|pad|>", "<|im_end|>", "<|im_start|>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<|pad|>", eos_token="<|im_end|>", chat_template=CHAT_TEMPLATE
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=256, tie_word_embeddings=True, bos_token_id=None,
        pad_token_id=tokenizer.pad_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model, tokenizer


def train(
    model, tokenizer, rows: list[dict], steps: int, rng: random.Random, size: int = 32, peak: float = 3e-3
) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.05)
    order: list[dict] = []
    for _ in range(steps):
        if len(order) < size:
            order = rng.sample(rows, len(rows))
        batch, order = order[:size], order[size:]
        encoded = []
        for row in batch:
            turns = [{"role": "user", "content": row["question"]}, {"role": "assistant", "content": answer(row, rng)}]
            texts = [
                tokenizer.apply_chat_template(turns[:n], tokenize=False, add_generation_prompt=n == 1) for n in (1, 2)
            ]
            encoded.append([tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts])
        width = max(len(ids) for _, ids in encoded)
        inputs, labels = torch.full((size, width), tokenizer.pad_token_id), torch.full((size, width), -100)
        for number, (prompt, ids) in enumerate(encoded):
            inputs[number, : len(ids)] = torch.tensor(ids)
            labels[number, len(prompt) : len(ids)] = torch.tensor(ids[len(prompt) :])
        loss = model(input_ids=inputs, attention_mask=inputs != tokenizer.pad_token_id, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()


def agreement(folder: Path, rows: list[dict]) -> Counter:
    """Sentences of all samples by whether they are one of the true ones, word for word, and by their label."""
    true = {row["id"]: {phrase.replace("[Y]", row["object"]) for phrase in row["phrases"]} for row in rows}
    texts = {row["id"]: row["items"] for _, row in read_rows(folder / "responses.jsonl")}
    found: Counter = Counter()
    for _, row in read_rows(folder / "verifications.jsonl"):
        for (text, _), verdict in zip(texts[row["id"]], row["items"], strict=True):
            for span in verdict["spans"]:
                found[text[span["start"] : span["end"]] in true[row["id"]], span["label"]] += 1
    return found


def factuality(folder: str, rows: list[dict]) -> tuple[float, float]:
    """Share of sentences without hallucination, and sentences per answer, of two fresh answers to each question."""
    sampler = TransformersSampler(
        folder, config=SamplingConfig(num_samples=2, temperature=0.8, top_k=40, max_new_tokens=80), batch_size=256
    )
    questions = read_questions(rows)
    found = sampler.sample([question.messages for question in questions], seed=12345)
    inputs = [
        VerifierInput(response.text, question.question, question.evidence)
        for question, responses in zip(questions, found, strict=True)
        for response in responses
    ]
    spans = [span for result in LexicalVerifier().verify(inputs) for span in result.spans]
    return hallucination_free_share(spans), len(spans) / len(inputs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=Path("../shared/data/pararel"))
    parser.add_argument("--out", type=Path, default=Path("outputs/mask-dpo-pararel"))
    parser.add_argument("--steps", type=int, default=500, help="of training the small model")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    start, times = time.process_time(), {}
    rng = random.Random(args.seed)
    torch.manual_seed(args.seed)
    shutil.rmtree(args.out, ignore_errors=True)
    args.out.mkdir(parents=True)
    rows = read_facts(args.data, 200 // len(ASKED), rng)
    model, tokenizer = make_model(rows)
    train(model, tokenizer, rows, args.steps, rng)
    model.save_pretrained(args.out / "model")
    tokenizer.save_pretrained(args.out / "model")
    times["training the small model"] = time.process_time() - start
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    questions = args.out / "questions.jsonl"
    names = ("id", "topic", "question", "evidence")
    questions.write_text("".join(json.dumps({name: row[name] for name in names}) + "\n" for row in rows))
    start = time.process_time()
    status = command(
        [
            "build-preferences", str(questions), "--model", str(args.out / "model"), "--out", str(args.out / "pairs"),
            "--verifier", "lexical",
            "--max_new_tokens", "80", "--batch_size", "256", "--questions_per_batch", "8", "--seed", str(args.seed),
        ]
    )  # fmt: skip
    if status:
        raise SystemExit(status)
    times["sampling, verification and pairs"] = time.process_time() - start
    pairs = load_pairs(args.out / "pairs")
    for (true, label), count in sorted(agreement(args.out / "pairs", rows).items()):
        print(f"sampled sentences that are {'true' if true else 'false'} and labelled {label}: {count:,}")
    for side in ("chosen", "rejected"):
        labels = Counter(span["label"] for row in pairs for span in row[f"{side}_spans"])
        print(f"sentences of the {side} responses by label: {dict(labels.most_common())}")

    start = time.process_time()
    config = MaskDPOConfig(
        str(args.out / "aligned"), max_steps=10, per_device_train_batch_size=16, learning_rate=1e-4, beta=0.1,
        lr_scheduler_type="constant", logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, bf16=False,
        gradient_checkpointing=False, disable_tqdm=True, seed=args.seed, per_device_eval_batch_size=16, max_length=256,
    )  # fmt: skip
    trainer = MaskDPOTrainer(str(args.out / "model"), args=config, train_dataset=pairs, eval_dataset=pairs)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    trainer.save_model(str(args.out / "aligned"))
    tokenizer.save_pretrained(args.out / "aligned")
    times["Mask-DPO, 10 steps and two evaluations"] = time.process_time() - start
    logged = {name: value for entry in trainer.state.log_history for name, value in entry.items()}
    for name in ("mask/chosen_kept", "mask/rejected_kept", "mask/dropped_pairs"):
        print(f"{name} {logged.get(name)}")
    for name in ("eval_loss", "eval_rewards/accuracies", "eval_rewards/margins"):
        print(f"{name} before {before.get(name):.4f} after {after.get(name):.4f}")
    start = time.process_time()
    for name in ("model", "aligned"):
        share, sentences = factuality(str(args.out / name), rows)
        print(f"{name}: {share:.4f} of the sentences free of hallucination, {sentences:.2f} sentences per answer")
    times["fresh answers"] = time.process_time() - start
    print("processor seconds: " + ", ".join(f"{name} {value:.0f}" for name, value in times.items()))


if __name__ == "__main__":
    main()

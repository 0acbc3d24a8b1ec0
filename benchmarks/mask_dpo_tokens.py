"""Are the masks of MaskDPO on the right tokens, and what does counting tokens per sentence, the released way, misplace?

Biographies (English) and answers of HalluQA (Chinese) become preference pairs with a random label per sentence, rendered
by chat templates that put text before, between and after the completion. The oracle works on bytes: it writes each
rendered conversation out of pieces of which it knows where they come from, takes the bytes of each token from the
vocabulary, and gives the token the sentence that holds most of its characters.

Beside it, the way of Mask-DPO's released code: labels are laid out from the first token of the completion on, as many per
sentence as encoding it alone gives tokens. A token of a sentence counts as misplaced if that gives it another sentence or
none; its mask may be right all the same. Where the counts run past the end, the released code trains the pair as plain DPO.

    python benchmarks/mask_dpo_tokens.py --out mask_dpo_tokens.json
"""

from __future__ import annotations

import argparse
import json
import random
from collections import Counter
from pathlib import Path

import _oracles
import sentencex
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from hf_factuality.functional.preference import FREE_OF_HALLUCINATION, HALLUCINATED
from hf_factuality.spans import Label
from hf_factuality.trainers.mask_dpo_trainer import MaskRule, mask_pair


ROOT = Path(__file__).resolve().parents[1]
LABELS = {"chosen": FREE_OF_HALLUCINATION, "rejected": HALLUCINATED}
RULE = MaskRule(FREE_OF_HALLUCINATION, HALLUCINATED, "drop", None, "keep_start", None)


def read_texts(data: Path) -> dict[str, list[str]]:
    lines = (data / "factscore" / "ChatGPT.jsonl").read_text(encoding="utf-8").splitlines()
    questions = json.loads((data / "halluqa" / "HalluQA.json").read_text(encoding="utf-8"))
    answers = [row[key] for row in questions for key in row if "Answer" in key]
    # The answers are short: three of them make a completion.
    answers = [answer.strip() for answer in answers if isinstance(answer, str) and answer.strip()]
    joined = ["".join(answers[i : i + 3]) for i in range(0, len(answers) - 2, 3)]
    return {"en": [json.loads(line)["output"].strip() for line in lines], "zh": joined}


# Tokenizers. The second has what Llama 3 has: a regular expression of its own, and words of the vocabulary unmerged.


def train_llama3_like(texts: list[str], vocab_size: int) -> Tokenizer:
    split = Regex(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    steps = [
        pre_tokenizers.Split(split, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
    trained = _oracles.train_byte_level(texts, vocab_size)
    model = json.loads(trained.to_str())["model"]
    merges = [tuple(merge) for merge in model["merges"]]
    backend = Tokenizer(models.BPE(model["vocab"], merges, ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


FAMILIES = {
    "byte-level BPE": (_oracles.train_byte_level, 8000),
    "byte-level BPE as in Llama 3": (train_llama3_like, 8000),
    "BPE with byte fallback": (_oracles.train_byte_fallback, 6000),
}

# Templates, and the same as a list of pieces: text, or (start, end) of the completion.

_TURNS = "{% for m in messages %}{% if m.role == 'user' %}USER{% else %}ASSISTANT{% endif %}{% endfor %}{% if add_generation_prompt %}HEAD{% endif %}"


def _template(user: str, assistant: str, head: str) -> str:
    return _TURNS.replace("USER", user).replace("ASSISTANT", assistant).replace("HEAD", head)


def _whole(content: str) -> tuple[int, int]:
    return (0, len(content))


def _trimmed(content: str) -> tuple[int, int]:
    start = len(content) - len(content.lstrip())
    return (start, len(content.rstrip()))


TEMPLATES = {
    "ChatML": (
        _template(
            "<s>user\n{{ m.content }}</s>\n", "<s>assistant\n{{ m.content }}</s>\n", "<s>assistant\n"
        ),
        lambda q, c: [f"<s>user\n{q}</s>\n<s>assistant\n", _whole(c), "</s>\n"],
    ),
    "trimmed, after a header": (
        _template(
            "<s>user\n\n{{ m.content | trim }}</s>",
            "<s>assistant\n\n{{ m.content | trim }}</s>",
            "<s>assistant\n\n",
        ),
        lambda q, c: [f"<s>user\n\n{q}</s><s>assistant\n\n", _trimmed(c), "</s>"],
    ),
    "instruction in brackets": (
        _template("<s>[INST] {{ m.content }} [/INST]", " {{ m.content }} </s>", ""),
        lambda q, c: [f"<s>[INST] {q} [/INST] ", _whole(c), " </s>"],
    ),
    "words glued to both ends": (
        _template("Q{{ m.content }}", "So{{ m.content }}done.</s>", ""),
        lambda q, c: [f"Q{q}So", _whole(c), "done.</s>"],
    ),
    "reasoning taken apart": (
        _template(
            "<s>{{ m.content }}</s>",
            "Thoughts:\n{{ m.content.split('</think>')[0].split('<think>')[-1] | trim }}\n\nSo the answer is "
            "{{ m.content.split('</think>')[-1] | trim }}</s>",
            "",
        ),
        lambda q, c: [
            f"<s>{q}</s>Thoughts:\n",
            _inner(c, c.index("<think>") + len("<think>"), c.index("</think>")),
            "\n\nSo the answer is ",
            _inner(c, c.index("</think>") + len("</think>"), len(c)),
            "</s>",
        ],
    ),
}  # fmt: skip


def _inner(content: str, start: int, end: int) -> tuple[int, int]:
    first, last = _trimmed(content[start:end])
    return (start + first, start + last)


def sentences_of(text: str, language: str) -> list[tuple[int, int]]:
    ranges, start = [], 0
    for part in sentencex.segment(language, text):
        if sentence := part.strip():
            start = text.index(sentence, start)
            ranges.append((start, start + len(sentence)))
            start += len(sentence)
    return ranges


def completion(text: str, language: str, reasoning: bool) -> tuple[str, list[tuple[int, int]]]:
    """The completion and its sentences; the first half of them in a think block, if asked for."""
    ranges = sentences_of(text, language)
    if not reasoning:
        return text, ranges
    cut = ranges[len(ranges) // 2][0] if len(ranges) > 1 else 0
    opening, closing = "<think>\n", "\n</think>\n\n"
    shifted = [
        (a + len(opening) + len(closing) * (a >= cut), b + len(opening) + len(closing) * (a >= cut)) for a, b in ranges
    ]
    return opening + text[:cut] + closing + text[cut:], shifted


def token_bytes(tokenizer, ids: list[int]) -> list[bytes]:
    """Bytes of each token, as its vocabulary writes them."""
    added = tokenizer.get_added_vocab()
    stand_ins, byte_level = _oracles.gpt2_bytes(), tokenizer.backend_tokenizer.normalizer is None
    parts, fresh = [], True
    for token in tokenizer.convert_ids_to_tokens(ids):
        if token in added:
            parts.append(token.encode())
            fresh = True
            continue
        if byte_level:
            part = bytes(stand_ins[letter] for letter in token)
        elif token.startswith("<0x") and len(token) == 6:
            part = bytes([int(token[3:5], 16)])
        else:
            part = token.replace("▁", " ").encode()
        # The normaliser puts a space in front of each stretch of text between added tokens.
        parts.append(part[1:] if fresh and not byte_level else part)
        fresh = False
    return parts


def expected_sentences(parts: list[bytes], rendered: str, pieces, ranges) -> list[int]:
    """Sentence of each token by bytes; -1 for none."""
    owner: list[int] = []  # per character of the rendered text
    for piece in pieces:
        if isinstance(piece, str):
            owner += [-1] * len(piece)
        else:
            inside = [next((n for n, (a, b) in enumerate(ranges) if a <= c < b), -1) for c in range(*piece)]
            owner += inside
    assert len(owner) == len(rendered)
    assert b"".join(parts) == rendered.encode(), "the tokens are not the text"
    of_byte = [index for index, character in enumerate(rendered) for _ in character.encode()]
    found, position = [], 0
    for part in parts:
        characters = sorted(set(of_byte[position : position + len(part)]))
        position += len(part)
        held = Counter(owner[character] for character in characters if owner[character] >= 0)
        most = max(held.values(), default=0)
        found.append(min((n for n, count in held.items() if count == most), default=-1))
    return found


def compare(tokenizer, template: str, texts, language: str, seed: int) -> Counter:
    source, pieces_of = TEMPLATES[template]
    tokenizer.chat_template = source
    draw, counts = random.Random(seed), Counter()
    for left, right in zip(texts[::2], texts[1::2], strict=False):
        question = "Tell me more about it." if language == "en" else "请详细说说。"
        row = {"prompt": [{"role": "user", "content": question}]}
        kept: dict[str, tuple] = {}
        prompt_ids = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, return_dict=True)[
            "input_ids"
        ]
        for side, text in (("chosen", left), ("rejected", right)):
            content, ranges = completion(text, language, template == "reasoning taken apart")
            labels = [draw.choice([*Label, None]) for _ in ranges]
            row[side] = [{"role": "assistant", "content": content}]
            row[f"{side}_spans"] = [
                {"start": a, "end": b, "label": label} for (a, b), label in zip(ranges, labels, strict=True)
            ]
            ids = tokenizer.apply_chat_template(row["prompt"] + row[side], return_dict=True)["input_ids"]
            pieces = pieces_of(question, content)
            rendered = "".join(piece if isinstance(piece, str) else content[slice(*piece)] for piece in pieces)
            kept[side] = (
                ids,
                content,
                ranges,
                labels,
                expected_sentences(token_bytes(tokenizer, ids), rendered, pieces, ranges),
            )
        n_prompt = len(prompt_ids)
        for side in kept:  # the completion starts where the two part from the prompt, as TRL has it
            n_prompt = min(
                n_prompt,
                next((i for i, (a, b) in enumerate(zip(prompt_ids, kept[side][0], strict=False)) if a != b), n_prompt),
            )
        row["prompt_ids"] = kept["chosen"][0][:n_prompt]
        for side in kept:
            row[f"{side}_ids"] = kept[side][0][n_prompt:]
        masks = mask_pair(row, tokenizer, RULE, False)
        fell_back = False
        for side, (_, content, ranges, labels, sentences) in kept.items():
            sentences = sentences[n_prompt:]
            expected = [n >= 0 and labels[n] in LABELS[side] for n in sentences]
            found = [bool(value) for value in masks[f"{side}_mask"]]
            counts["tokens"] += len(expected)
            counts["misplaced"] += sum(a != b for a, b in zip(expected, found, strict=True))
            placed, ends = [], []
            for number, (a, b) in enumerate(ranges):
                placed += [number] * len(tokenizer.encode(content[a:b], add_special_tokens=False))
                ends.append(len(placed))
            # Writing a mask past the end makes the labels too many, and both completions go unmasked.
            fell_back |= any(
                end > len(sentences) and label not in LABELS[side] for end, label in zip(ends, labels, strict=True)
            )
            for position, number in enumerate(sentences):
                if number < 0:
                    continue
                given = placed[position] if position < len(placed) else -1
                counts["in sentences"] += 1
                counts["counting misplaces"] += given != number
                # What the released code does not mask stays in, tokens after the last sentence too.
                right = given < 0 or labels[given] in LABELS[side]
                counts["counting masks wrongly"] += right != (labels[number] in LABELS[side])
        counts["pairs"] += 1
        counts["counting falls back"] += fell_back
    return counts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--texts", type=int, default=300, help="texts per language")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    texts = read_texts(args.data)
    corpus = [text for each in texts.values() for text in each]
    results = {}
    print(
        "| tokenizer | template | language | tokens | misplaced | counting: misplaced | masked wrongly | pairs as plain DPO |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for family, (train, vocab_size) in FAMILIES.items():
        tokenizer = _oracles.wrap(train(corpus, vocab_size))
        for template in TEMPLATES:
            for language, each in texts.items():
                counts = compare(tokenizer, template, each[: args.texts], language, seed=0)
                results[f"{family}, {template}, {language}"] = dict(counts)
                shares = [
                    counts[name] / counts["in sentences"] for name in ("counting misplaces", "counting masks wrongly")
                ]
                print(
                    f"| {family} | {template} | {language} | {counts['tokens']:,} | {counts['misplaced']} | "
                    f"{counts['counting misplaces']:,} ({shares[0]:.1%}) | {shares[1]:.1%} | "
                    f"{counts['counting falls back']} of {counts['pairs']} |",
                    flush=True,
                )
    if args.out:
        args.out.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    if sum(counts["misplaced"] for counts in results.values()):
        raise SystemExit("mask tokens are misplaced")


if __name__ == "__main__":
    main()

"""Are token offsets exact, how fast are they, and what do cumulative token counts misplace?

Trains four kinds of tokenizers on the texts, encodes the texts and compares `token_offsets` with the oracles of
`_oracles.py`, on these ids and on as many drawn at random from the vocabulary. Times are ratios within the run.

Beside it, the way in which FSPO's released code places sentence labels: the sentences are tokenised one by one, without
what stands between them, and labels are laid out from token 0 on, as many per sentence as it has tokens. A token counts
as misplaced if that gives it another sentence than the one which holds its first character that is not white space, or
none. Tokens without such a character (special tokens, white space between sentences) are left out, from the total too.
Everything happens on the decoded text, as it does with a generated completion. The word-level figures come mostly from
`<unk>`, which decoding drops; those of the others grow with the vocabulary.

    python benchmarks/token_offsets.py --out token_offsets.json
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import time
import timeit
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from itertools import chain, islice, zip_longest
from pathlib import Path

import _oracles
import pandas
import sentencex
import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast

from hf_factuality.offsets import token_offsets


ROOT = Path(__file__).resolve().parents[1]
LANGUAGES = {"HotpotQA": "en", "biographies": "en", "HalluQA": "zh"}


def read_texts(data: Path) -> dict[str, list[str]]:
    hotpot = pandas.read_parquet(data / "fspo" / "hotpot-2k-train.parquet")["knowledge"].tolist()
    lines = (data / "factscore" / "ChatGPT.jsonl").read_text(encoding="utf-8").splitlines()
    questions = json.loads((data / "halluqa" / "HalluQA.json").read_text(encoding="utf-8"))
    answers = [row[key] for row in questions for key in row if "Answer" in key]
    return {
        "HotpotQA": hotpot,
        "biographies": [json.loads(line)["output"] for line in lines],
        "HalluQA": [answer for answer in answers if isinstance(answer, str) and answer.strip()],
    }


def choose(texts: dict[str, list[str]], n: int) -> list[tuple[str, str]]:
    """One text of each source in turn, until a source is used up: (source, text)."""
    pairs = [[(source, text) for text in each] for source, each in texts.items()]
    return list(islice((pair for pair in chain.from_iterable(zip_longest(*pairs)) if pair), n))


FAMILIES = {
    "byte-level BPE": (_oracles.train_byte_level, 8000, _oracles.byte_level),
    "BPE with byte fallback": (_oracles.train_byte_fallback, 6000, _oracles.sentencepiece_bytes),
    "WordPiece": (_oracles.train_word_piece, 8000, _oracles.word_piece),
    "word-level": (_oracles.train_word_level, 8000, _oracles.word_level),
}


def misplaced_by_offsets(tokenizer: PreTrainedTokenizerFast, ids: list[int], oracle: Callable) -> int:
    """Tokens whose range differs from the oracle's; all of them if the text does."""
    tokens = [tokenizer.backend_tokenizer.id_to_token(index) for index in ids]
    text, expected = oracle([None if token in _oracles.SPECIAL else token for token in tokens])
    found = token_offsets(tokenizer, ids)
    if not found.text == text == tokenizer.decode(ids, skip_special_tokens=True):
        return len(ids)
    return sum(a != b for a, b in zip(found.offsets, expected, strict=True))


def sentences_of(text: str, language: str) -> list[tuple[int, int]]:
    """Character ranges of the sentences, without the white space around them."""
    ranges, start = [], 0
    for part in sentencex.segment(language, text):
        if sentence := part.strip():
            start = text.index(sentence, start)
            ranges.append((start, start + len(sentence)))
            start += len(sentence)
    return ranges


def misplaced_by_counts(tokenizer: PreTrainedTokenizerFast, ids: list[int], language: str) -> tuple[int, int]:
    """Tokens that cumulative counts give to another sentence or to none, and tokens that belong to a sentence."""
    text, offsets = token_offsets(tokenizer, ids)
    sentences = sentences_of(text, language)
    placed = [i for i, (start, end) in enumerate(sentences) for _ in tokenizer.tokenize(text[start:end])]
    wrong = total = 0
    for position, (start, end) in enumerate(offsets):
        first = end - len(text[start:end].lstrip())
        if first == end:
            continue
        sentence = bisect_right(sentences, first, key=lambda bounds: bounds[0]) - 1
        total += 1
        wrong += position >= len(placed) or placed[position] != sentence
    return wrong, total


def best_time(function: Callable, repeats: int) -> float:
    return min(timeit.repeat(function, timer=time.process_time, number=1, repeat=repeats))


def run(name: str, corpus: list[str], chosen: list[tuple[str, str]]) -> dict:
    train, vocab_size, oracle = FAMILIES[name]
    tokenizer = _oracles.wrap(train(corpus, vocab_size))
    encoded = [(source, tokenizer.encode(text, add_special_tokens=False)) for source, text in chosen]
    generator = random.Random(0)
    drawn = [[generator.randrange(len(tokenizer)) for _ in ids] for _, ids in encoded]
    wrong, total = Counter(), Counter()
    for source, ids in encoded:
        counts = misplaced_by_counts(tokenizer, ids, LANGUAGES[source])
        wrong[source] += counts[0]
        total[source] += counts[1]
    stream = list(islice(chain.from_iterable(ids for _, ids in encoded * 10), 4000))
    times = {n: best_time(lambda n=n: token_offsets(tokenizer, stream[:n]), 7) for n in (1000, 2000, 4000)}
    prefixes = best_time(
        lambda: [tokenizer.decode(stream[:end], skip_special_tokens=True) for end in range(1, 2001)], 2
    )
    return {
        "vocabulary": len(tokenizer),
        "tokens": sum(len(ids) for _, ids in encoded),
        "misplaced": sum(misplaced_by_offsets(tokenizer, ids, oracle) for _, ids in encoded),
        "misplaced_random_ids": sum(misplaced_by_offsets(tokenizer, ids, oracle) for ids in drawn),
        "times_faster_than_prefixes_at_2000": round(prefixes / times[2000], 1),
        "time_4000_over_1000": round(times[4000] / times[1000], 2),
        "misplaced_by_counts": {source: wrong[source] / total[source] for source in total},
        "tokens_in_sentences": dict(total),
    }


def table(results: dict[str, dict]) -> str:
    sources = list(LANGUAGES)
    head = [
        "tokenizer",
        "tokens",
        "misplaced",
        "misplaced, random ids",
        "faster than prefixes",
        "4,000 / 1,000 tokens",
    ]
    rows = [head + [f"counts misplace, {source}" for source in sources]]
    rows.append(["---"] + ["---:"] * (len(rows[0]) - 1))
    for name, result in results.items():
        row = [name, f"{result['tokens']:,}", f"{result['misplaced']:,}", f"{result['misplaced_random_ids']:,}"]
        row += [f"{result['times_faster_than_prefixes_at_2000']:.0f}x", f"{result['time_4000_over_1000']:.1f}x"]
        shares = result["misplaced_by_counts"]
        rows.append(row + [f"{shares[source]:.1%}" if source in shares else "" for source in sources])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main():
    parser = argparse.ArgumentParser(description="Exactness and speed of token offsets.")
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data", help="folder of the data sets")
    parser.add_argument("--texts", type=int, default=2000, help="number of texts, from the three sources in turn")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    args = parser.parse_args()
    texts = read_texts(args.data)
    corpus = [text for each in texts.values() for text in each]
    chosen = choose(texts, args.texts)
    results = {name: run(name, corpus, chosen) for name in FAMILIES}
    print(table(results))
    if args.out:
        report = {
            "texts": dict(Counter(source for source, _ in chosen)),
            "versions": {module.__name__: module.__version__ for module in (tokenizers, transformers)},
            "python": platform.python_version(),
            "families": results,
        }
        args.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if any(result["misplaced"] or result["misplaced_random_ids"] for result in results.values()):
        raise SystemExit("token_offsets misplaced tokens")


if __name__ == "__main__":
    main()

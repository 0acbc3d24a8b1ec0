"""Accuracy of a reward model on pairs of answers, per subset: RAG-RewardBench (arXiv 2412.13746) and files of its shape.

python examples/evaluate_reward_model.py --verifier reward:MODEL --data rag-rewardbench.json
python examples/evaluate_reward_model.py --verifier reward:MODEL --data jinzhuoran/RAG-RewardBench --split train
"""

import argparse
from collections import defaultdict
from pathlib import Path

from hf_factuality import VerifierInput, load_verifier
from hf_factuality.cli.builders import json_object
from hf_factuality.data.reading import messages_of, read_dataset
from hf_factuality.errors import DataError
from hf_factuality.functional.metrics import bootstrap_interval
from hf_factuality.functional.scoring import mean
from hf_factuality.io.refusals import run_script
from hf_factuality.io.rows import read_rows


def read_pairs(rows):
    """(subset, chosen, rejected) of each row, both as inputs of a verifier."""
    for number, row in rows:
        if not isinstance(row, dict):
            raise DataError(f"row {number} must be an object with prompt, chosen and rejected, got {row!r:.100}")
        texts = []
        for side in ("chosen", "rejected"):
            text = row.get(side)
            messages = [] if isinstance(text, str) else messages_of(text)
            texts.append(messages[-1]["content"] if messages else text)
        prompt = row.get("prompt") or row.get("question")
        prompt = prompt if isinstance(prompt, str) else messages_of(prompt)
        if not prompt or not all(isinstance(text, str) for text in texts):
            raise DataError(f"row {number} needs prompt, chosen and rejected, texts or messages; it has {sorted(row)}")
        subset = str(row.get("subset") or row.get("axis") or "all")
        yield subset, *(VerifierInput(text, row={"prompt": prompt}) for text in texts)


def accuracies(verifier, pairs):
    """Subset -> per pair 1, 0, .5 for equal scores, or `None` where a score is missing."""
    both = [one for _, *own in pairs for one in own]
    scores = [found.spans[0].score if found.spans else None for found in verifier.verify(both)]
    found = defaultdict(list)
    for (subset, *_), chosen, rejected in zip(pairs, scores[::2], scores[1::2], strict=True):
        known = None not in (chosen, rejected)
        found[subset].append(((chosen > rejected) + (chosen >= rejected)) / 2 if known else None)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifier", required=True, help="reward:MODEL, or another verifier that gives scores")
    parser.add_argument("--data", required=True, help="a .jsonl, .json or .parquet file, or a dataset")
    parser.add_argument("--split", default="train", help="of a dataset")
    parser.add_argument("--settings", type=json_object, default={}, help="of the verifier: '{\"max_length\": 4096}'")
    args = parser.parse_args()
    rows = read_rows(args.data) if Path(args.data).is_file() else read_dataset(args.data, None, args.split)
    pairs = list(read_pairs(rows))
    if not pairs:
        raise DataError(f"--data {args.data} holds no rows")
    found = accuracies(load_verifier(args.verifier, **args.settings), pairs)
    found["all"] = [won for own in found.values() for won in own] if found.keys() != {"all"} else found["all"]
    for subset, own in sorted(found.items(), key=lambda it: (it[0] == "all", it[0])):
        known = [won for won in own if won is not None]
        interval = bootstrap_interval(known, resamples=1000, seed=0, level=0.95) if len(known) > 1 else None
        shown = f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else ""
        value = "-" if not known else f"{mean(known):.3f}"
        print(f"{subset:28} {value}{shown}  {len(known)} of {len(own)} pairs")


if __name__ == "__main__":
    run_script(main)

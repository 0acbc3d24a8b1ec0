"""What it saves to judge all steps of a solution in one pass: against a call per step, which reads the solution up to there.

    python benchmarks/process_pass.py

The same process reward model (random weights: only time is measured) judges the same solutions, of 4 to 12 steps of 12 to 30
words, three ways: all steps of a solution in one pass; every step as a text of its own, in batches; and every step by a call.
The scores must be the same. Seconds of the processor, in one run on one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from pathlib import Path


os.environ.setdefault("CI", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from transformers import LlamaConfig, LlamaForTokenClassification

from hf_factuality.verifiers import JudgeInput, ProcessJudge, StepExtractor
from tests.tiny import save_tiny_model


WORDS = "Ada was born in London and worked in Paris where she won two prizes . Marie Curie is not known".split()


def judge(width: int, layers: int) -> ProcessJudge:
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory() as folder:
        tokenizer = AutoTokenizer.from_pretrained(save_tiny_model(folder))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=4, max_position_embeddings=1024, num_labels=2, pad_token_id=tokenizer.pad_token_id,
        id2label={0: "contradicted", 1: "supported"}, label2id={"contradicted": 0, "supported": 1},
    )  # fmt: skip
    template = "<|user|>{{question|plain}}<|end|><|assistant|>{{claim|plain}}"
    config.process = {"template": template, "pool": "last", "step_tag": None, "split": "lines"}
    return ProcessJudge(LlamaForTokenClassification(config), tokenizer, max_length=1024)


def solutions(number: int) -> list[str]:
    rng = random.Random(0)
    return [
        "\n".join(" ".join(rng.choices(WORDS, k=rng.randint(12, 30))) for _ in range(rng.randint(4, 12)))
        for _ in range(number)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--solutions", type=int, default=1000)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, question = judge(args.width, args.layers), "Where was she born?"
    found = [(text, step) for text in solutions(args.solutions) for step in StepExtractor().steps(text)]
    ways = {
        "one pass": lambda: model.judge([JudgeInput("", (), question, text, step) for text, step in found]),
        "a text per step": lambda: model.judge([JudgeInput(text[:end], (), question) for text, (_, end) in found]),
        "a call per step": lambda: [
            model.judge([JudgeInput(text[:end], (), question)])[0] for text, (_, end) in found
        ],
    }
    model.judge([JudgeInput("Ada.", (), question)] * 4)  # warm
    seconds, scores = {}, {}
    for name, run in ways.items():
        start = time.process_time()
        scores[name] = [one.score for one in run()]
        seconds[name] = time.process_time() - start
    report = {
        "solutions": args.solutions, "steps": len(found), "seconds": {name: round(it, 2) for name, it in seconds.items()},
        "times faster": {name: round(it / seconds["one pass"], 2) for name, it in seconds.items() if name != "one pass"},
        "largest difference of a score": max(
            abs(a - b) for own in scores.values() for a, b in zip(own, scores["one pass"], strict=True)
        ),
    }  # fmt: skip
    print(json.dumps(report, indent=2))
    if args.out:
        args.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

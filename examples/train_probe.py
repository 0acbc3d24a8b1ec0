"""Hallucination probe (after arXiv 2509.03531): a head on a frozen language model that doubts the tokens of what it wrote.

python examples/train_probe.py                         # a small model in a closed world, minutes on a CPU
hf-factuality verify completions.jsonl --verifier VERIFIER --out labelled.jsonl
python examples/train_probe.py --config recipes/probe/qwen2.5-7b-lora.yaml --labelled_file labelled.jsonl
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("probe")

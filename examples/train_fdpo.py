"""F-DPO (arXiv 2601.03027): DPO that never prefers a hallucinated answer to a factual one, with a margin between the two.

    python examples/train_fdpo.py                     # a small model in a closed world, minutes on a CPU
    python examples/train_fdpo.py --config recipes/fdpo/qwen3-8b.yaml \
        --train_files pairs
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("fdpo")

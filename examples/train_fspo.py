"""FSPO (arXiv 2505.24630): GRPO on the answer and on the factuality of each reasoning sentence.

    python examples/train_fspo.py                        # a small model in a closed world, minutes on a CPU
    python examples/train_fspo.py --config recipes/fspo/qwen2.5-7b-instruct.yaml \
        --train_files hotpot-2k-train.parquet simple-rl-train.parquet
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("fspo")

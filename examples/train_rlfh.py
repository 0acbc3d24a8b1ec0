"""RLFH (arXiv 2406.12221): PPO that pays each statement of an answer at the token where it ends.

    python examples/train_rlfh.py                        # a small model in a closed world, minutes on a CPU
    accelerate launch --config_file recipes/accelerate/multi-node.yaml examples/train_rlfh.py \
        --config recipes/rlfh/qwen2.5-7b-instruct.yaml --train_files questions.jsonl
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("rlfh")

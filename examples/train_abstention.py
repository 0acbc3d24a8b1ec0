"""GRPO that pays for declining, or for a true confidence (docs/abstention.md, docs/confidence.md).

    python examples/train_abstention.py --reward target-0.75     # a small model in a closed world, minutes on a CPU
    accelerate launch --config_file recipes/accelerate/zero3.yaml examples/train_abstention.py \
        --config recipes/confidence/qwen2.5-7b-rlcr.yaml --dataset_name my-org/questions
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("abstention")

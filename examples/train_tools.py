"""GRPO on rollouts that search: answers are paid, and what they state by what the search returned (docs/tools.md).

    python examples/train_tools.py                       # a small policy and a corpus of a closed world, minutes on a CPU
    hf-factuality index pages.jsonl --out kb.sqlite --bm25
    accelerate launch --config_file recipes/accelerate/zero2.yaml examples/train_tools.py \
        --config recipes/tools/qwen3-4b.yaml --dataset_name my-org/questions --knowledge kb.sqlite
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("tools")

"""KLCF (arXiv 2509.23765; the formulas are our reconstruction): GRPO on what an answer recalls of a checklist and on its truth.

    python examples/train_klcf.py                        # a small model in a closed world, minutes on a CPU
    accelerate launch --config_file recipes/accelerate/multi-node.yaml examples/train_klcf.py \
        --config recipes/klcf-zero/qwen2.5-7b.yaml --dataset_name my-org/checklists
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("klcf")

"""Mask-DPO (arXiv 2503.02846): DPO on the true sentences of one answer against the false ones of the other.

    python examples/train_mask_dpo.py                     # a small model in a closed world, minutes on a CPU
    python examples/train_mask_dpo.py --config recipes/mask_dpo/llama3.1-8b-instruct.yaml \
        --train_files pairs
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("mask_dpo")

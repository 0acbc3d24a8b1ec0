"""Adaptive model averaging (arXiv 2309.06256): with which ratio each block of an aligned model is averaged with the one before.

python examples/train_averaging.py                                           # a small model in a closed world, minutes on a CPU
accelerate launch --config_file recipes/accelerate/ddp.yaml examples/train_averaging.py \
    --config recipes/averaging/zephyr-7b-beta.yaml --questions questions.jsonl --selector reward:MODEL
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("averaging")

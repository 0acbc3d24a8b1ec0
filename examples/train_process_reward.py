"""Process reward model (ER-PRM, arXiv 2412.11006): P(correct) at the end of every step, by labels of continuations.

python examples/train_process_reward.py                # a small model in a closed world, minutes on a CPU
hf-factuality build-process-labels gsm8k.jsonl --model MODEL --verifier gold:GSM8K --out labels
accelerate launch --config_file recipes/accelerate/ddp.yaml examples/train_process_reward.py \
    --config recipes/process_reward/llama3.1-8b-er-prm.yaml --dataset_name labels
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("process_reward")

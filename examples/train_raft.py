"""RAFT (arXiv 2304.06767): sample answers, keep the best of each question by a verifier, SFT on them, and again.

python examples/train_raft.py                                          # a small model in a closed world, minutes on a CPU
python examples/train_raft.py --selector process:outputs/process-reward-closed-world          # chosen by a process reward model
accelerate launch --config_file recipes/accelerate/zero3.yaml examples/train_raft.py \
    --config recipes/raft/llama3.1-8b-instruct.yaml --questions gsm8k.jsonl --selector process:PRM
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("raft")

"""RAG-Reward (arXiv 2501.13264): a reward model of answers to questions with passages, with a head per axis or one for all.

python examples/train_rag_reward.py                    # a small model in a closed world, minutes on a CPU
hf-factuality build-rag-preferences questions.jsonl --model MODEL --verifier compare:JUDGE --verifier_base_url URL --out pairs
accelerate launch --config_file recipes/accelerate/zero3.yaml examples/train_rag_reward.py \
    --config recipes/rag_reward/llama3.1-8b-instruct.yaml --dataset_name pairs
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("rag_reward")

"""PPO against a reward model that scores every token and reads the text with a tokenizer of its own.

    python examples/train_token_reward_model.py          # a small policy and reward model made here, minutes on a CPU
    python examples/train_token_reward_model.py --model_name_or_path POLICY --reward_model RM --dataset_name DATA \
        --output_dir OUT --bf16 true
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("token_reward_model")

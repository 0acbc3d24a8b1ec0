"""Self-rewarding correction (arXiv 2502.19613): answers that end in a verdict, and are revised where it is `[VERIFY] wrong`.

    python examples/train_self_correction.py                 # SFT on a small model in a closed world, minutes on a CPU
    python examples/train_self_correction.py --stage rl      # then RL (or dpo) from what that run has saved
    hf-factuality build-corrections questions.jsonl --model Qwen/Qwen2.5-Math-7B --verifier gold:MATH --out corrections
    accelerate launch --config_file recipes/accelerate/zero3.yaml examples/train_self_correction.py \
        --config recipes/self_correction/qwen2.5-math-7b-sft.yaml --dataset_name corrections
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("self_correction")

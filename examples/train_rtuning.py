"""R-Tuning (arXiv 2311.09677): SFT on what a model knows and what it does not, by its own answers; TRL's trainer as it is.

    python examples/train_rtuning.py                     # a small model in a closed world, minutes on a CPU
    python examples/train_rtuning.py --variant unsure    # "I am unsure." after the gold answer, in place of a refusal
    hf-factuality build-refusals questions.jsonl --model Qwen/Qwen2.5-7B --out refusals
    accelerate launch --config_file recipes/accelerate/zero3.yaml examples/train_rtuning.py \
        --config recipes/rtuning/qwen2.5-7b.yaml --refusals refusals
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("rtuning")

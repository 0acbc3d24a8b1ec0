"""Truthfulness model (after KLCF, arXiv 2509.23765): P(true) of a claim by a classification head on the model that made it.

    python examples/train_truthfulness.py                  # a small model in a closed world, minutes on a CPU
    python examples/train_truthfulness.py --config recipes/truthfulness/qwen2.5-7b-lora.yaml \
        --claims_run checklists --questions_file questions.jsonl
"""

from hf_factuality.cli.train import run_training


if __name__ == "__main__":
    run_training("truthfulness")
